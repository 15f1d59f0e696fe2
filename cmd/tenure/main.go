// Command tenure takes part in elections from the command line.
//
//	tenure run -key KEY [flags] -- COMMAND ARGS...   run a command while leading
//	tenure status -key KEY                           who leads
//	tenure watch -key KEY [-json]                    who leads, and each change
//	tenure evict -key KEY [-force]                   ask the leader to go
//	tenure put [-fence FENCE] KEY VALUE              write, unless the term is over
//	tenure del [-fence FENCE] KEY                    delete, unless the term is over
//
// The flags for etcd default to the variables that etcdctl knows: -endpoints is
// ETCDCTL_ENDPOINTS, -cacert, -cert and -certkey are ETCDCTL_CACERT, ETCDCTL_CERT
// and ETCDCTL_KEY, -user and -password are ETCDCTL_USER and ETCDCTL_PASSWORD.
//
// # Run
//
// The command is started once the election is won, in a process group of its own,
// with TENURE_KEY, TENURE_EPOCH, TENURE_LEASE and TENURE_FENCE in its environment.
// When the term is lost, or tenure is told to stop, the whole group gets SIGTERM,
// and SIGKILL before the lease can expire, or after -stop-timeout while it is
// still renewed: that is counted by the local clock, and waits for no answer of
// etcd. The election is given up only when the group is gone. After a loss tenure
// campaigns again, unless -once is given. Other signals are passed on.
//
// A command that ends by itself ends tenure, with its exit status; what it has
// left behind in its group is killed. On Linux the command dies with tenure,
// however that ends; its own children then are on their own, and so is everything
// on other systems: give them the fence.
//
// # Exit status
//
// That of the command of run, or 128 and the number of the signal that ended it;
// otherwise 0 if all went well, 1 for an error, 2 for a wrong usage, 3 if nobody
// leads, 4 if the write was fenced, or the term of run was lost and -once given.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/tenure-go/tenure"
)

const (
	statusError    = 1
	statusUsage    = 2
	statusNoLeader = 3
	statusFenced   = 4
)

var errUsage = errors.New("usage")

// exitStatus is the error of a command that has ended with it.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := dispatch(ctx, os.Args[1:], os.Stdout)
	stop()
	os.Exit(statusOf(err, os.Stderr))
}

// statusOf returns the exit status for an error, and reports it.
func statusOf(err error, stderr io.Writer) int {
	if status, ok := errors.AsType[exitStatus](err); ok {
		return int(status)
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp), errors.Is(err, errUsage):
		if !errors.Is(err, flag.ErrHelp) {
			_, _ = fmt.Fprintf(stderr, "tenure: %v\n", err)
		}
		return statusUsage
	}
	_, _ = fmt.Fprintf(stderr, "%s\n", prefixed(err))
	switch {
	case errors.Is(err, tenure.ErrNoLeader):
		return statusNoLeader
	case errors.Is(err, tenure.ErrFenced), errors.Is(err, tenure.ErrTermEnded):
		return statusFenced
	default:
		return statusError
	}
}

func prefixed(err error) string {
	if text := err.Error(); strings.HasPrefix(text, "tenure: ") {
		return text
	}
	return "tenure: " + err.Error()
}

// etcd is what the flags say about the cluster.
type etcd struct {
	endpoints, cacert, cert, key, user, password string
	timeout                                      time.Duration
}

func (e *etcd) flags(fs *flag.FlagSet) {
	env := func(name, fallback string) string {
		if v := os.Getenv(name); v != "" {
			return v
		}
		return fallback
	}
	fs.StringVar(&e.endpoints, "endpoints", env("ETCDCTL_ENDPOINTS", "127.0.0.1:2379"), "client `URLs` of all members, separated by commas")
	fs.StringVar(&e.cacert, "cacert", env("ETCDCTL_CACERT", ""), "`file` of the authority that has signed the servers' certificates")
	fs.StringVar(&e.cert, "cert", env("ETCDCTL_CERT", ""), "`file` of the client's certificate")
	fs.StringVar(&e.key, "certkey", env("ETCDCTL_KEY", ""), "`file` of its key")
	fs.StringVar(&e.user, "user", env("ETCDCTL_USER", ""), "`name`, or name:password")
	fs.StringVar(&e.password, "password", env("ETCDCTL_PASSWORD", ""), "password of the user")
	fs.DurationVar(&e.timeout, "timeout", 10*time.Second, "of single requests")
}

func (e *etcd) client() (*clientv3.Client, error) {
	cfg := clientv3.Config{
		Endpoints: strings.Split(e.endpoints, ","), Logger: zap.NewNop(),
		DialTimeout: 3 * time.Second, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 3 * time.Second,
		})},
	}
	cfg.Username, cfg.Password = e.user, e.password
	if name, password, ok := strings.Cut(e.user, ":"); ok && e.password == "" {
		cfg.Username, cfg.Password = name, password
	}
	if e.cacert != "" || e.cert != "" || e.key != "" {
		cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
		if e.cacert != "" {
			pem, err := os.ReadFile(e.cacert)
			if err != nil {
				return nil, fmt.Errorf("-cacert: %w", err)
			}
			cfg.TLS.RootCAs = x509.NewCertPool()
			if !cfg.TLS.RootCAs.AppendCertsFromPEM(pem) {
				return nil, fmt.Errorf("-cacert: %s holds no certificate", e.cacert)
			}
		}
		if e.cert != "" || e.key != "" {
			pair, err := tls.LoadX509KeyPair(e.cert, e.key)
			if err != nil {
				return nil, fmt.Errorf("-cert, -certkey: %w", err)
			}
			cfg.TLS.Certificates = []tls.Certificate{pair}
		}
	}
	return clientv3.New(cfg)
}

func dispatch(ctx context.Context, args []string, stdout io.Writer) error {
	commands := map[string]func(context.Context, []string, io.Writer) error{
		"run": run, "status": status, "watch": watch, "evict": evict, "put": put, "del": del,
	}
	if len(args) == 0 || commands[args[0]] == nil {
		return fmt.Errorf("%w: tenure run|status|watch|evict|put|del [flags]; -help after each tells more", errUsage)
	}
	return commands[args[0]](ctx, args[1:], stdout)
}

// flagSet returns the flags that all commands share.
func flagSet(name string) (*flag.FlagSet, *etcd, *string) {
	fs := flag.NewFlagSet("tenure "+name, flag.ContinueOnError)
	e := new(etcd)
	e.flags(fs)
	key := fs.String("key", os.Getenv("TENURE_KEY"), "the election's `key`, in full; default $TENURE_KEY")
	return fs, e, key
}

func parse(fs *flag.FlagSet, args []string, key *string, rest int) error {
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	switch {
	case key != nil && *key == "":
		return fmt.Errorf("%w: -key is empty", errUsage)
	case rest >= 0 && fs.NArg() != rest:
		return fmt.Errorf("%w: %s takes %d arguments after its flags, not %d", errUsage, fs.Name(), rest, fs.NArg())
	}
	return nil
}

// open parses args as [parse] does and connects to the cluster that they name.
func (e *etcd) open(fs *flag.FlagSet, args []string, key *string, rest int) (*clientv3.Client, error) {
	if err := parse(fs, args, key, rest); err != nil {
		return nil, err
	}
	return e.client()
}

func status(ctx context.Context, args []string, stdout io.Writer) error {
	fs, e, key := flagSet("status")
	asJSON := fs.Bool("json", false, "print JSON")
	client, err := e.open(fs, args, key, 0)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	leader, err := tenure.Lookup(ctx, client, *key)
	if err != nil {
		return err
	}
	return show(stdout, *asJSON, tenure.Status{State: tenure.Led, Leader: leader})
}

func watch(ctx context.Context, args []string, stdout io.Writer) error {
	fs, e, key := flagSet("watch")
	asJSON := fs.Bool("json", false, "print a line of JSON for each change")
	client, err := e.open(fs, args, key, 0)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	for st, err := range tenure.Observe(ctx, client, *key) {
		if err != nil {
			if ctx.Err() != nil {
				return nil // it was told to stop
			}
			return err
		}
		if err := show(stdout, *asJSON, st); err != nil {
			return err
		}
	}
	return nil
}

// show prints one line about who leads.
func show(w io.Writer, asJSON bool, st tenure.Status) error {
	l := st.Leader
	if asJSON {
		line := map[string]any{"state": st.State.String(), "key": l.Fence.Key}
		if l.Fence.Epoch != 0 {
			line["epoch"], line["fence"], line["identity"] = l.Fence.Epoch, l.Fence.String(), l.Identity
			if l.Address != "" {
				line["address"] = l.Address
			}
		}
		if st.Err != nil {
			line["error"] = st.Err.Error()
		}
		return json.NewEncoder(w).Encode(line)
	}
	text := st.State.String()
	if l.Fence.Epoch != 0 {
		text += fmt.Sprintf(" by %q, fence %v", l.Identity, l.Fence)
		if l.Address != "" {
			text += fmt.Sprintf(", address %q", l.Address)
		}
	}
	if st.Err != nil {
		text += fmt.Sprintf(" (%v)", st.Err)
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

func evict(ctx context.Context, args []string, stdout io.Writer) error {
	fs, e, key := flagSet("evict")
	force := fs.Bool("force", false, "delete the key if the leader has not gone after -patience")
	patience := fs.Duration("patience", 0, "how long to wait before -force, or at all; 0: the library's default")
	client, err := e.open(fs, args, key, 0)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	looking, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	leader, err := tenure.Lookup(looking, client, *key)
	if err != nil {
		return err
	}
	if err := tenure.Evict(ctx, client, leader.Fence, &tenure.EvictOptions{Force: *force, Patience: *patience}); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%q has gone, epoch %d\n", leader.Identity, leader.Fence.Epoch)
	return err
}

func put(ctx context.Context, args []string, _ io.Writer) error {
	return write(ctx, "put", args, 2, func(ctx context.Context, kv clientv3.KV, args []string) error {
		_, err := kv.Put(ctx, args[0], args[1])
		return err
	})
}

func del(ctx context.Context, args []string, _ io.Writer) error {
	return write(ctx, "del", args, 1, func(ctx context.Context, kv clientv3.KV, args []string) error {
		_, err := kv.Delete(ctx, args[0])
		return err
	})
}

// write makes one guarded write.
func write(ctx context.Context, name string, args []string, rest int, do func(context.Context, clientv3.KV, []string) error) error {
	fs := flag.NewFlagSet("tenure "+name, flag.ContinueOnError)
	e := new(etcd)
	e.flags(fs)
	text := fs.String("fence", os.Getenv("TENURE_FENCE"), "the text form of a term's fence; default $TENURE_FENCE")
	if err := parse(fs, args, nil, rest); err != nil {
		return err
	}
	var fence tenure.Fence
	if err := fence.UnmarshalText([]byte(*text)); err != nil {
		return fmt.Errorf("%w: -fence: %w", errUsage, err)
	}
	client, err := e.client()
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	return do(ctx, fence.KV(client), fs.Args())
}

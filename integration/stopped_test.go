package integration_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fencefile"
	"github.com/tenure-go/tenure/fencegrpc"
	"github.com/tenure-go/tenure/fencehttp"
	"github.com/tenure-go/tenure/fenceredis"
	"github.com/tenure-go/tenure/fencesql"
	"github.com/tenure-go/tenure/integration/internal/servers"
)

// The end-to-end proof, with real processes. One leads, and is stopped with SIGSTOP
// in the midst of a write. Its lease expires, another one takes over, and writes.
// Then the first is continued, and goes on where it was. All that happens to it is
// what the resource does: it asks no clock and no context. The same without the
// fence shows that it would have written.

// Environment variables of a candidate, which is this program started again.
const (
	candidateVar = "TENURE_TEST_CANDIDATE" // its name, which is what it writes
	etcdVar      = "TENURE_TEST_ETCD"
	resourceVar  = "TENURE_TEST_RESOURCE"
	addressVar   = "TENURE_TEST_ADDRESS"
	bareVar      = "TENURE_TEST_BARE" // no fence
)

func TestMain(m *testing.M) {
	program := candidate
	switch {
	case os.Getenv(candidateVar) != "":
	case os.Getenv(replicaVar) != "":
		program = replica
	default:
		os.Exit(m.Run())
	}
	if err := program(context.Background()); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

// candidate leads and writes once. It says on its standard output how far it is,
// and waits in the middle, and at its end, for a line on its standard input.
func candidate(ctx context.Context) error {
	name, bare := os.Getenv(candidateVar), os.Getenv(bareVar) != ""
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Getenv(etcdVar)}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	elector, err := tenure.New(client, election, &tenure.Options{Identity: name, TTL: time.Second})
	if err != nil {
		return err
	}
	term, err := elector.Campaign(ctx)
	if err != nil {
		return err
	}
	write, err := writers[os.Getenv(resourceVar)](os.Getenv(addressVar))
	if err != nil {
		return err
	}
	input := bufio.NewReader(os.Stdin)
	wait := func(what string) {
		fmt.Println(what)
		if _, err := input.ReadString('\n'); err != nil {
			os.Exit(1) // the test has ended
		}
	}
	err = write(ctx, term.Fence(), bare, name, func() { wait("in the middle") })
	if errors.Is(err, tenure.ErrFenced) {
		wait(fmt.Sprint("fenced: ", err))
		return nil
	}
	if err == nil {
		wait("written")
		return nil
	}
	// A transaction that the server has broken off, or an answer that is missing, is
	// not a refusal yet. Whoever tries again hears it.
	fmt.Println("broken off:", err)
	err = write(ctx, term.Fence(), bare, name, func() {})
	switch {
	case errors.Is(err, tenure.ErrFenced):
		wait(fmt.Sprint("fenced: ", err))
	case err == nil:
		wait("written")
	default:
		wait(fmt.Sprint("failed: ", err))
	}
	return nil
}

// writer sets the one value of a resource, with a pause between what begins the
// write and what ends it.
type writer func(ctx context.Context, fence tenure.Fence, bare bool, value string, middle func()) error

// writers connects to the resources by their names.
var writers = map[string]func(address string) (writer, error){
	"etcd":       etcdWriter,
	"PostgreSQL": sqlWriter(fencesql.PostgreSQL, "pgx", "SET idle_in_transaction_session_timeout = 2000"),
	"MariaDB":    sqlWriter(fencesql.MySQL, "mysql", "SET SESSION idle_transaction_timeout = 2"),
	"SQLite":     sqlWriter(fencesql.SQLite, "sqlite", ""),
	"Redis":      redisWriter,
	"HTTP":       httpWriter,
	"gRPC":       grpcWriter,
	"File":       fileWriter,
}

func etcdWriter(address string) (writer, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, fence tenure.Fence, bare bool, value string, middle func()) error {
		kv := clientv3.NewKV(client)
		if !bare {
			kv = fence.KV(kv)
		}
		txn := kv.Txn(ctx).Then(clientv3.OpPut("/value", value))
		middle()
		_, err := txn.Commit()
		return err
	}, nil
}

// sqlWriter stops inside the transaction. There it holds a lock, for which the
// next term waits until the server loses patience with idle transactions. SQLite
// has no such limit, so it stops where it holds no lock yet.
func sqlWriter(dialect fencesql.Dialect, driver, patience string) func(string) (writer, error) {
	return func(address string) (writer, error) {
		db, err := sql.Open(driver, address)
		if err != nil {
			return nil, err
		}
		table, err := fencesql.New(dialect)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, fence tenure.Fence, bare bool, value string, middle func()) error {
			conn, err := db.Conn(ctx)
			if err != nil {
				return err
			}
			defer conn.Close()
			if patience != "" && !bare {
				if _, err := conn.ExecContext(ctx, patience); err != nil {
					return err
				}
			}
			tx, err := conn.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }() // after a commit it says so
			if dialect == fencesql.SQLite {
				middle()
			}
			if !bare {
				if err := table.Check(ctx, tx, resource, fence); err != nil {
					return err
				}
			}
			if dialect != fencesql.SQLite {
				middle()
			}
			if _, err := tx.ExecContext(ctx, "UPDATE cells SET v = '"+value+"'"); err != nil {
				return err
			}
			return tx.Commit()
		}, nil
	}
}

func redisWriter(address string) (writer, error) {
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: address})
	gate, err := fenceredis.New(client, redisFence)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, fence tenure.Fence, bare bool, value string, middle func()) error {
		if err := client.Get(ctx, "{r}:value").Err(); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		middle()
		if bare {
			return client.Set(ctx, "{r}:value", value, 0).Err()
		}
		return gate.Do(ctx, fence, "SET", "{r}:value", value).Err()
	}, nil
}

// httpWriter stops in the midst of the body of a request, while the handler reads.
func httpWriter(address string) (writer, error) {
	client := &http.Client{Transport: new(http.Transport)}
	return func(ctx context.Context, fence tenure.Fence, bare bool, value string, middle func()) error {
		path := "/guarded"
		if bare {
			path = "/bare"
		}
		body, rest := io.Pipe()
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+address+path, body)
		if err != nil {
			return err
		}
		go func() { // ends with the request, which closes the body
			_, err := rest.Write([]byte(value[:1]))
			middle()
			if err == nil {
				_, err = rest.Write([]byte(value[1:]))
			}
			rest.CloseWithError(err)
		}()
		return send(client, req, fence)
	}, nil
}

// grpcWriter stops between two messages of a stream.
func grpcWriter(address string) (writer, error) {
	return func(ctx context.Context, fence tenure.Fence, bare bool, value string, middle func()) error {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithStreamInterceptor(fencegrpc.StreamClientInterceptor(func() (tenure.Fence, error) { return fence, nil })))
		if err != nil {
			return err
		}
		defer conn.Close()
		method := "/guarded/Put"
		if bare {
			method = "/bare/Put"
		}
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, method)
		if err != nil {
			return err
		}
		if err := stream.SendMsg(wrapperspb.String(value[:1])); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		middle()
		if err := stream.SendMsg(wrapperspb.String(value[1:])); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err := stream.CloseSend(); err != nil {
			return err
		}
		return stream.RecvMsg(new(emptypb.Empty)) // says why, if the stream has ended
	}, nil
}

func fileWriter(address string) (writer, error) {
	log, err := fencefile.Open(filepath.Join(address, "log"))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, fence tenure.Fence, bare bool, value string, middle func()) error {
		if !bare {
			if err := log.Seal(ctx, fence); err != nil {
				return err
			}
		}
		write := func() error { return os.WriteFile(filepath.Join(address, "value"), []byte(value), 0o600) }
		middle()
		if bare {
			return write()
		}
		return log.Do(ctx, fence, write)
	}, nil
}

// place is a resource as the test has it: an address for the candidates, and a
// look at the value.
type place struct {
	address string
	value   func() (string, error)
}

var places = map[string]func(*testing.T, *servers.Etcd) place{
	"etcd": func(t *testing.T, etcd *servers.Etcd) place {
		client := etcdClient(t, clientv3.Config{Endpoints: []string{etcd.Endpoint}})
		return place{etcd.Endpoint, func() (string, error) {
			resp, err := client.Get(t.Context(), "/value")
			if err != nil || len(resp.Kvs) == 0 {
				return "", err
			}
			return string(resp.Kvs[0].Value), nil
		}}
	},
	"PostgreSQL": func(t *testing.T, _ *servers.Etcd) place { return sqlPlace(t, postgres(t)) },
	"MariaDB":    func(t *testing.T, _ *servers.Etcd) place { return sqlPlace(t, mariadb(t)) },
	"SQLite":     func(t *testing.T, _ *servers.Etcd) place { return sqlPlace(t, sqlite(t)) },
	"Redis": func(t *testing.T, _ *servers.Etcd) place {
		server := servers.Redis(t)
		client := redisAt(t, server.DSN)
		return place{server.DSN, func() (string, error) { return client.Get(t.Context(), "{r}:value").Result() }}
	},
	"HTTP": func(t *testing.T, _ *servers.Etcd) place { return servicePlace(t, serveValueHTTP) },
	"gRPC": func(t *testing.T, _ *servers.Etcd) place { return servicePlace(t, serveValueGRPC) },
	"File": func(t *testing.T, _ *servers.Etcd) place {
		dir := t.TempDir()
		return place{dir, func() (string, error) {
			data, err := os.ReadFile(filepath.Join(dir, "value"))
			return string(data), err
		}}
	},
}

func sqlPlace(t *testing.T, d *database) place {
	t.Helper()
	db := d.open(t)
	d.fresh(t, db)
	for _, statement := range []string{"CREATE TABLE cells (v varchar(64))", "INSERT INTO cells VALUES ('')"} {
		_, err := db.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	return place{d.dsn, func() (value string, err error) {
		err = db.QueryRowContext(t.Context(), "SELECT v FROM cells").Scan(&value)
		return value, err
	}}
}

// cell is the value of a service.
type cell struct {
	mu    sync.Mutex
	value string
}

func (c *cell) set(value string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.value = value
}

func servicePlace(t *testing.T, serve func(*cell, net.Listener, *tenure.Gate) (stop func())) place {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := new(cell)
	t.Cleanup(serve(c, listener, tenure.NewGate(election)))
	return place{listener.Addr().String(), func() (string, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.value, nil
	}}
}

func serveValueHTTP(c *cell, l net.Listener, gate *tenure.Gate) (stop func()) {
	set := http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		value, err := io.ReadAll(req.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		c.set(string(value))
	})
	mux := http.NewServeMux()
	mux.Handle("/guarded", fencehttp.Handler(gate, set, nil))
	mux.Handle("/bare", set)
	server := &http.Server{Handler: mux}
	return serving(func() error { return server.Serve(l) }, func() { server.Close() })
}

func serveValueGRPC(c *cell, l net.Listener, gate *tenure.Gate) (stop func()) {
	guard := fencegrpc.StreamServerInterceptor(gate, nil)
	server := grpc.NewServer(grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if info.FullMethod == "/bare/Put" {
			return handler(srv, stream)
		}
		return guard(srv, stream, info, handler)
	}))
	set := func(_ any, stream grpc.ServerStream) error {
		value := ""
		for {
			part := new(wrapperspb.StringValue)
			if err := stream.RecvMsg(part); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return err
			}
			value += part.Value
		}
		c.set(value)
		return stream.SendMsg(new(emptypb.Empty))
	}
	for _, name := range []string{"guarded", "bare"} {
		server.RegisterService(&grpc.ServiceDesc{
			ServiceName: name,
			Streams:     []grpc.StreamDesc{{StreamName: "Put", ClientStreams: true, Handler: set}},
		}, nil)
	}
	return serving(func() error { return server.Serve(l) }, server.Stop)
}

// child is a candidate as the test sees it.
type child struct {
	*exec.Cmd
	input io.WriteCloser
	lines chan string // what it says; closed at its end
}

func (c *child) says(t *testing.T) string {
	t.Helper()
	select {
	case line, ok := <-c.lines:
		require.True(t, ok, "the candidate has ended")
		return line

	case <-time.After(limit):
		require.Fail(t, "the candidate says nothing")
		return ""
	}
}

func (c *child) goOn(t *testing.T) {
	t.Helper()
	_, err := io.WriteString(c.input, "\n")
	require.NoError(t, err)
}

func startCandidate(t *testing.T, name, resource, address, etcd string, bare bool) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), candidateVar+"="+name, etcdVar+"="+etcd, resourceVar+"="+resource, addressVar+"="+address)
	if bare {
		cmd.Env = append(cmd.Env, bareVar+"=1")
	}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	input, err := cmd.StdinPipe()
	require.NoError(t, err)
	output, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &child{Cmd: cmd, input: input, lines: make(chan string, 16)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(c.lines)
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			c.lines <- scanner.Text()
		}
		_ = cmd.Wait() // killed, as a rule
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
	})
	return c
}

func TestStoppedLeader(t *testing.T) {
	t.Parallel()
	for name, open := range places {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			etcd := servers.StartEtcd(t)
			p := open(t, etcd)
			t.Run("Bare", func(t *testing.T) { stoppedLeader(t, name, p, etcd, true) })
			t.Run("Fenced", func(t *testing.T) { stoppedLeader(t, name, p, etcd, false) })
		})
	}
}

func stoppedLeader(t *testing.T, resource string, p place, etcd *servers.Etcd, bare bool) {
	t.Helper()
	old := startCandidate(t, "old", resource, p.address, etcd.Endpoint, bare)
	require.Equal(t, "in the middle", old.says(t))
	require.NoError(t, old.Process.Signal(syscall.SIGSTOP))

	follower := startCandidate(t, "new", resource, p.address, etcd.Endpoint, bare)
	require.Equal(t, "in the middle", follower.says(t))
	follower.goOn(t)
	require.Equal(t, "written", follower.says(t))
	requireValue(t, p, "new")

	old.goOn(t) // it will find the line when it wakes
	require.NoError(t, old.Process.Signal(syscall.SIGCONT))
	said := old.says(t)
	if strings.HasPrefix(said, "broken off:") {
		t.Log(said)
		require.False(t, bare, "nothing stands in its way")
		requireValue(t, p, "new")
		said = old.says(t)
	}
	t.Log(said)
	if bare {
		require.Equal(t, "written", said)
		requireValue(t, p, "old") // this is the corruption
		return
	}
	require.Contains(t, said, "fenced: ")
	requireValue(t, p, "new")
}

func requireValue(t *testing.T, p place, want string) {
	t.Helper()
	got, err := p.value()
	require.NoError(t, err)
	require.Equal(t, want, got)
}

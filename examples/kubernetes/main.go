// Command kubernetes is a service as a Deployment runs it, with deployment.yaml
// beside it: every replica is ready and answers, by passing on to the leader what
// only the leader may do, and each probe has a meaning of its own. Alone, it starts
// one replica on an embedded etcd, asks its probes and ends as on a SIGTERM.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/examples/internal/embedded"
	"github.com/tenure-go/tenure/leaderhttp"
	"github.com/tenure-go/tenure/statushttp"
)

// Both, one after the other, must fit into the terminationGracePeriodSeconds of
// the manifest.
const (
	stopTimeout     = 20 * time.Second
	shutdownTimeout = 5 * time.Second
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "`address` to serve on")
	etcd := embedded.Flag()
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, etcd, *listen)
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func run(ctx context.Context, etcd *embedded.Endpoints, listen string) error {
	client, stop, err := etcd.Open(ctx)
	if err != nil {
		return err
	}
	defer stop()
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	address := os.Getenv("POD_ADDRESS") // where the other replicas reach this one
	if address == "" {
		address = listener.Addr().String()
	}
	name := os.Getenv("POD_NAME")
	monitor := statushttp.New(name)
	elector, err := tenure.New(client, "/kubernetes-example/leader", &tenure.Options{
		Identity: name, Address: address, TTL: 10 * time.Second, StopTimeout: stopTimeout, Hooks: monitor.Hooks(nil),
	})
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler(elector, monitor), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() { // after the election was given up: the last requests are passed on
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		_ = server.Shutdown(ctx) // what has not ended by then ends with the process
		<-served                 //nolint:errcheck // says that it was told to
	}()
	if etcd.Embedded() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		go func() {
			defer cancel()
			show(ctx, "http://"+listener.Addr().String())
		}()
	}
	return elector.Run(ctx, func(ctx context.Context, _ *tenure.Term) error {
		<-ctx.Done() // the leader's own work
		return context.Cause(ctx)
	})
}

func handler(elector *tenure.Elector, monitor *statushttp.Monitor) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/livez", monitor.Live(elector, 5*time.Minute))
	mux.Handle("/readyz", monitor.Able(elector)) // a follower is ready: it passes on
	mux.Handle("/leaderz", monitor.Leading(elector))
	mux.Handle("/status", monitor.Page(elector))
	mux.Handle("/", leaderhttp.Proxy(elector, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if term, ok := leaderhttp.TermFromContext(r.Context()); ok {
			fmt.Fprintf(w, "answered in epoch %d\n", term.Epoch())
		}
	}), nil))
	return mux
}

// show asks what the kubelet and a client ask.
func show(ctx context.Context, url string) {
	for _, path := range []string{"/livez", "/leaderz", "/readyz", "/"} {
		for attempt := 0; ctx.Err() == nil; attempt++ {
			status, text, err := get(ctx, url+path)
			if err == nil && status == http.StatusOK || attempt == 50 {
				fmt.Printf("GET %-8s %d %s", path, status, text)
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}

func get(ctx context.Context, url string) (status int, text string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

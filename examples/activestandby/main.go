// Command activestandby is an HTTP service of two instances of which one answers:
// each passes to the leader what it may not answer itself, so clients call either
// and never look for the leader. The election changes hands in the middle. With
// -endpoints it uses that etcd instead of an embedded one.
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
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/examples/internal/embedded"
	"github.com/tenure-go/tenure/leaderhttp"
	"github.com/tenure-go/tenure/statushttp"
)

const key = "/activestandby/leader"

func main() {
	calls := flag.Int("calls", 40, "end after so many calls; the hand-over comes after half of them")
	etcd := embedded.Flag()
	flag.Parse()
	if err := run(context.Background(), etcd, *calls); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, etcd *embedded.Endpoints, calls int) error {
	client, stop, err := etcd.Open(ctx)
	if err != nil {
		return err
	}
	defer stop()

	var addresses []string
	for _, name := range []string{"a", "b"} {
		address, stop, err := start(ctx, client, name)
		if err != nil {
			return err
		}
		defer stop()
		addresses = append(addresses, address)
	}

	// A client that knows no leader calls one instance after the other.
	answers := make(map[string]int)
	last := ""
	for n := range calls {
		if n == calls/2 {
			leader, err := tenure.Lookup(ctx, client, key)
			if err != nil {
				return err
			}
			fmt.Println(leader.Identity, "is asked to go")
			if err := tenure.Evict(ctx, client, leader.Fence, nil); err != nil {
				return err
			}
		}
		answer, err := call(ctx, "http://"+addresses[n%2]+"/")
		if err != nil {
			return err
		}
		if answer != last {
			fmt.Println("answered by", answer)
			last = answer
		}
		answers[answer]++
		time.Sleep(20 * time.Millisecond)
	}
	fmt.Println(calls, "calls to both instances, answered by", len(answers), "leaders")
	return nil
}

// start starts an instance: a candidate and a server.
func start(ctx context.Context, client *clientv3.Client, name string) (address string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	address = listener.Addr().String()
	monitor := statushttp.New(name)
	elector, err := tenure.New(client, key, &tenure.Options{Identity: name, Address: address, TTL: 5 * time.Second, Hooks: monitor.Hooks(nil)})
	if err != nil {
		listener.Close()
		return "", nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/", leaderhttp.Proxy(elector, app(name), nil)) // the leader serves app; the other one passes on
	mux.Handle("/status", monitor.Page(elector))
	mux.Handle("/readyz", monitor.Able(elector))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = server.Serve(listener) }()

	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		done <- elector.Run(ctx, func(ctx context.Context, _ *tenure.Term) error {
			<-ctx.Done() // the work is in the handler
			return nil
		})
	}()
	return address, func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			log.Println(name, err)
		}
		_ = server.Close()
	}, nil
}

// app is what only the leader may answer. A real one writes through term.KV.
func app(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		term, _ := leaderhttp.TermFromContext(r.Context())
		fmt.Fprintf(w, "%s, epoch %d", name, term.Epoch())
	})
}

// call asks until it is answered: 503 says that nothing was done, and for how long
// it can still take.
func call(ctx context.Context, url string) (string, error) {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return "", err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return "", err
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			return "", err
		}
		if resp.StatusCode == http.StatusOK {
			return string(body), nil
		}
		if resp.StatusCode != http.StatusServiceUnavailable {
			return "", fmt.Errorf("%s: %s", resp.Status, body)
		}
		time.Sleep(50 * time.Millisecond) // Retry-After is whole seconds
	}
}

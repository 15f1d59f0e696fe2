// Command scheduler shows what most services do: a loop that only one instance
// may run, whose writes carry the fence. It goes on where the term before has
// stopped, repeats a write whose answer was lost, and gives the election up on
// SIGTERM. Start several with -endpoints on the same etcd; alone, it does three
// jobs on an embedded one and ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/examples/internal/embedded"
)

func main() {
	jobs := flag.Int("jobs", 3, "end after so many jobs; 0: never")
	etcd := embedded.Flag()
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, etcd, *jobs)
	stop()
	if err != nil && !errors.Is(err, context.Canceled) { // which says that it was told to stop
		log.Fatal(err)
	}
}

func run(ctx context.Context, etcd *embedded.Endpoints, jobs int) error {
	client, stop, err := etcd.Open(ctx)
	if err != nil {
		return err
	}
	defer stop()

	elector, err := tenure.New(client, "/scheduler/leader", &tenure.Options{TTL: 5 * time.Second, Logger: slog.Default()})
	if err != nil {
		return err
	}
	// Run calls the function once per term, and again after every loss.
	return elector.Run(ctx, func(ctx context.Context, term *tenure.Term) error {
		kv := term.KV(client)
		done, err := last(ctx, kv) // an older term writes no more, so this stays true
		if err != nil {
			return err
		}
		for n := done + 1; jobs == 0 || n <= jobs; n++ {
			if err := finish(ctx, kv, n); err != nil {
				return err // we were replaced: Run campaigns again; else it ends with this error
			}
			fmt.Println("job", n, "done")
			select {
			case <-ctx.Done():
				return context.Cause(ctx)

			case <-time.After(100 * time.Millisecond):
			}
		}
		return nil // Run resigns and returns
	})
}

const lastKey = "/scheduler/last"

// last returns the number of the last job that is done.
func last(ctx context.Context, kv clientv3.KV) (int, error) {
	resp, err := kv.Get(ctx, lastKey)
	if err != nil || len(resp.Kvs) == 0 {
		return 0, err
	}
	return strconv.Atoi(string(resp.Kvs[0].Value))
}

// finish notes that job n is done. That may be written twice, so it is repeated
// until there is an answer, or the term has ended.
func finish(ctx context.Context, kv clientv3.KV, n int) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		_, err := kv.Put(attempt, lastKey, strconv.Itoa(n))
		cancel()
		if !errors.Is(err, tenure.ErrUnknownOutcome) {
			return err
		}
		select {
		case <-ctx.Done():
			return err

		case <-time.After(100 * time.Millisecond):
		}
	}
}

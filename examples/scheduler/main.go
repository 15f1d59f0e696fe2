// Command scheduler shows what most services do: a loop that only one instance
// may run, whose writes carry the fence. Start several with -endpoints on the same
// etcd; alone, it does three jobs on an embedded one and ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"time"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/examples/internal/embedded"
)

func main() {
	jobs := flag.Int("jobs", 3, "end after so many jobs; 0: never")
	etcd := embedded.Flag()
	flag.Parse()
	if err := run(context.Background(), etcd, *jobs); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, etcd *embedded.Endpoints, jobs int) error {
	endpoints, stop, err := etcd.Start(ctx)
	if err != nil {
		return err
	}
	defer stop()
	client, err := embedded.Client(endpoints)
	if err != nil {
		return err
	}
	defer client.Close()

	elector, err := tenure.New(client, "/scheduler/leader", &tenure.Options{TTL: 5 * time.Second})
	if err != nil {
		return err
	}
	// Run calls the function once per term, and again after every loss.
	return elector.Run(ctx, func(ctx context.Context, term *tenure.Term) error {
		kv := term.KV(client)
		fmt.Println("leading")
		for n := 1; jobs == 0 || n <= jobs; n++ {
			if _, err := kv.Put(ctx, fmt.Sprintf("/scheduler/jobs/%d", n), "done"); err != nil {
				return err // tenure.ErrFenced once we are replaced: Run campaigns again
			}
			fmt.Println("job", n, "done")
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(100 * time.Millisecond):
			}
		}
		if !term.Valid() {
			return errors.New("the last job ended late")
		}
		return nil // Run resigns and returns
	})
}

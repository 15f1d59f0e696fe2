// Command many shows many elections of one process on one lease: a leader for each
// of 200 shards. All elections together cost one renewal and one read per TTL/3,
// and closing the lease hands all of them over.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/examples/internal/embedded"
)

func main() {
	shards := flag.Int("shards", 200, "how many elections")
	etcd := embedded.Flag()
	flag.Parse()
	if err := run(context.Background(), etcd, *shards); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, etcd *embedded.Endpoints, shards int) error {
	endpoints, stop, err := etcd.Start(ctx)
	if err != nil {
		return err
	}
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var processes [2]*process
	for i := range processes { // in one process here, for the show
		client, err := embedded.Client(endpoints)
		if err != nil {
			return err
		}
		defer client.Close()
		if processes[i], err = start(ctx, client, shards); err != nil {
			return err
		}
		defer processes[i].stop(context.WithoutCancel(ctx))
		if i == 0 {
			report("first", processes[i], shards)
		}
	}
	began := time.Now()
	processes[0].stop(ctx)
	report("second", processes[1], shards)
	fmt.Printf("all were handed over in %d ms\n", time.Since(began).Milliseconds())
	return nil
}

// report waits until p leads all shards.
func report(name string, p *process, shards int) {
	for range shards {
		<-p.began
	}
	fmt.Printf("the %s process leads %d shards\n", name, shards)
}

// process is what each instance of the service has: one client, one lease, an
// elector for each shard.
type process struct {
	lease *tenure.Lease
	began chan struct{} // a value for each term
	runs  sync.WaitGroup
}

func start(ctx context.Context, client *clientv3.Client, shards int) (*process, error) {
	lease, err := tenure.NewLease(client, &tenure.LeaseOptions{TTL: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	p := &process{lease: lease, began: make(chan struct{}, shards)}
	for i := range shards {
		elector, err := tenure.New(client, fmt.Sprintf("/shards/%d", i), &tenure.Options{Lease: lease})
		if err != nil {
			return nil, err
		}
		p.runs.Go(func() {
			err := elector.Run(ctx, func(ctx context.Context, _ *tenure.Term) error {
				p.began <- struct{}{}
				<-ctx.Done() // the work of one shard
				return context.Cause(ctx)
			})
			if err != nil && !errors.Is(err, tenure.ErrLeaseClosed) && !errors.Is(err, context.Canceled) {
				log.Println(err)
			}
		})
	}
	return p, nil
}

// stop ends the work of all shards in order and gives them up.
func (p *process) stop(ctx context.Context) {
	if err := p.lease.Close(ctx); err != nil {
		log.Println(err)
	}
	p.runs.Wait()
}

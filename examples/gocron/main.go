// Command gocron shows gocron's distributed elector: schedulers run on all
// instances, and before each run gocron asks whether this one leads. Two instances
// take turns here; the first one leaves after a while.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/examples/internal/embedded"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	endpoints, stop, err := embedded.Flag().Start(ctx)
	if err != nil {
		return err
	}
	defer stop()
	for _, name := range []string{"one", "two"} { // in the same process, for the show
		client, err := embedded.Client(endpoints)
		if err != nil {
			return err
		}
		defer client.Close()
		if err := (&instance{name: name, client: client}).serve(ctx, 3); err != nil {
			return err
		}
	}
	return nil
}

// instance is one process of the service. It is a [gocron.Elector].
type instance struct {
	name    string
	client  *clientv3.Client
	elector *tenure.Elector
	jobs    sync.RWMutex // held for reading by each job that runs
	runs    atomic.Int64
}

var errNotLeading = errors.New("not leading")

// IsLeader is asked by gocron before each run of a job. It costs no round trip.
func (i *instance) IsLeader(context.Context) error {
	if i.elector.Term() == nil {
		return errNotLeading
	}
	return nil
}

// job runs on the leader. Between IsLeader and the write the term may have ended,
// so the job takes the term itself, and the write carries its fence.
func (i *instance) job() error {
	i.jobs.RLock()
	defer i.jobs.RUnlock()
	term := i.elector.Term()
	if term == nil || term.Context().Err() != nil {
		return errNotLeading
	}
	if _, err := term.KV(i.client).Put(term.Context(), "/gocron/last", i.name); err != nil {
		return err
	}
	fmt.Println(i.name, "has run the job")
	i.runs.Add(1)
	return nil
}

// serve leaves after some runs of the job.
func (i *instance) serve(ctx context.Context, runs int64) (err error) {
	if i.elector, err = tenure.New(i.client, "/gocron/leader", &tenure.Options{Identity: i.name, TTL: 5 * time.Second}); err != nil {
		return err
	}
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(i))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, scheduler.Shutdown()) }()
	if _, err := scheduler.NewJob(gocron.DurationJob(100*time.Millisecond), gocron.NewTask(i.job)); err != nil {
		return err
	}
	scheduler.Start()
	return i.elector.Run(ctx, func(ctx context.Context, _ *tenure.Term) error {
		fmt.Println(i.name, "leads")
		for i.runs.Load() < runs && ctx.Err() == nil {
			select {
			case <-ctx.Done():

			case <-time.After(50 * time.Millisecond):
			}
		}
		// Once the lock is ours no job is under way, and none begins before the
		// term is over: Run resigns when this function has returned.
		i.jobs.Lock()
		defer i.jobs.Unlock()
		return context.Cause(ctx)
	})
}

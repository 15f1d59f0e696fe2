// Command cron shows jobs of robfig/cron that run only on the leader: the cron
// table exists while a term does. When the term ends, its Stop waits for the jobs
// that are under way, and only then is the election given up.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/robfig/cron/v3"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/examples/internal/embedded"
)

func main() {
	runs := flag.Int64("runs", 2, "end after so many runs of the job; 0: never")
	etcd := embedded.Flag()
	flag.Parse()
	if err := run(context.Background(), etcd, *runs); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, etcd *embedded.Endpoints, runs int64) error {
	client, stop, err := etcd.Open(ctx)
	if err != nil {
		return err
	}
	defer stop()
	elector, err := tenure.New(client, "/cron/leader", &tenure.Options{TTL: 5 * time.Second})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var done atomic.Int64
	err = elector.Run(ctx, func(ctx context.Context, term *tenure.Term) error {
		table := cron.New()
		_, failed := table.AddFunc("@every 1s", func() {
			if err := report(ctx, term.KV(client)); err != nil {
				fmt.Println("the job has failed:", err)
				return
			}
			if done.Add(1) == runs {
				cancel()
			}
		})
		if failed != nil {
			return failed
		}
		table.Start()
		fmt.Println("leading: the table is active")
		<-ctx.Done()
		<-table.Stop().Done() // the jobs that are under way have ended
		fmt.Println("no job runs any more")
		return context.Cause(ctx)
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// report is the job. Its write is refused once this term has been replaced.
func report(ctx context.Context, kv clientv3.KV) error {
	at := time.Now().Format(time.RFC3339)
	_, err := kv.Put(ctx, "/cron/report", at)
	if err == nil {
		fmt.Println("reported at", at)
	}
	return err
}

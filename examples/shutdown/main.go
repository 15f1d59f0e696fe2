// Command shutdown shows how to end in order under a supervisor such as systemd or
// Kubernetes: SIGTERM ends the context of Run, the work finishes what it has
// begun, Run gives the election up, and another instance leads at once.
//
// StopTimeout must be shorter than the supervisor's patience (TimeoutStopSec,
// terminationGracePeriodSeconds): a process that is killed keeps the election
// until its lease expires.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/examples/internal/embedded"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err) //nolint:gocritic // the signals' handler ends with the process
	}
}

func run(ctx context.Context) error {
	endpoints, stop, err := embedded.Flag().Start(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	defer stop()

	var running sync.WaitGroup
	var standby error
	first := serve(ctx, endpoints, "first", func(ctx context.Context) {
		running.Go(func() {
			standby = serve(context.WithoutCancel(ctx), endpoints, "standby", func(context.Context) {})
		})
		time.AfterFunc(500*time.Millisecond, func() { _ = syscall.Kill(syscall.Getpid(), syscall.SIGTERM) }) // as the supervisor does
		<-ctx.Done()
		fmt.Printf("%s first is told to stop, and finishes its job\n", now())
		time.Sleep(300 * time.Millisecond)
	})
	fmt.Printf("%s first has ended\n", now())
	running.Wait()
	return errors.Join(first, standby)
}

// serve is a whole instance. Told to stop, it ends without an error.
func serve(ctx context.Context, endpoints []string, name string, work func(context.Context)) error {
	client, err := embedded.Client(endpoints)
	if err != nil {
		return err
	}
	defer client.Close() // after Run: it has to reach etcd to resign
	elector, err := tenure.New(client, "/shutdown/leader", &tenure.Options{Identity: name, TTL: 10 * time.Second, StopTimeout: 5 * time.Second})
	if err != nil {
		return err
	}
	err = elector.Run(ctx, func(ctx context.Context, _ *tenure.Term) error {
		fmt.Printf("%s %s leads\n", now(), name)
		work(ctx)
		return context.Cause(ctx)
	})
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

func now() string { return time.Now().Format("05.000") }

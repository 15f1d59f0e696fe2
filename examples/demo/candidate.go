package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/examples/internal/embedded"
)

// An event is what a candidate tells the director, a line of JSON each.
type event struct {
	At    time.Time
	Kind  string // candidate, leads, wrote, unknown, refused, stops, gone
	Epoch tenure.Epoch
	Text  string
}

// take is a candidate: it campaigns until its standard input ends, and counts
// while it leads.
func take(ctx context.Context, etcd *embedded.Endpoints, prefix, name string) error {
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

	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	tell := func(kind string, epoch tenure.Epoch, format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(event{At: time.Now(), Kind: kind, Epoch: epoch, Text: fmt.Sprintf(format, args...)})
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // the director closes our input when we shall go
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()

	elector, err := tenure.New(client, prefix+"/leader", &tenure.Options{Identity: name, TTL: ttl})
	if err != nil {
		return err
	}
	tell("candidate", 0, "campaigns")
	ended := elector.Run(ctx, func(ctx context.Context, term *tenure.Term) error {
		kv := term.KV(client)
		count, err := read(ctx, kv, prefix+"/counter")
		if err != nil {
			return err
		}
		tell("leads", term.Epoch(), "leads from the count of %d", count)
		for {
			// Between this look and the write below anything may happen, such
			// as a pause of the process. That is what the fence is for.
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			next := strconv.Itoa(count + 1)
			_, err := kv.Put(context.WithoutCancel(ctx), prefix+"/counter", next)
			switch {
			case err == nil:
				count++
				tell("wrote", term.Epoch(), "%d", count)
				if ctx.Err() != nil {
					tell("stops", term.Epoch(), "stops in order: %s", context.Cause(ctx))
					return nil
				}
				continue
			case errors.Is(err, tenure.ErrUnknownOutcome): // sent before the pause, answer lost in it
				tell("unknown", term.Epoch(), "does not know whether %s was written: %v", next, err)
				continue
			case errors.Is(err, tenure.ErrTermEnded):
				tell("refused", term.Epoch(), "wants to write %s; refused by its own clock: %s", next, err)
			default:
				tell("refused", term.Epoch(), "wants to write %s; refused by etcd: %s", next, err)
			}
			// The same write once more, past the local check: as a process would
			// send it that the fence had been handed to.
			_, err = term.Fence().KV(client).Put(context.WithoutCancel(ctx), prefix+"/counter", next)
			tell("refused", term.Epoch(), "sends the write all the same; refused by etcd: %v", err)
			return err // Run campaigns again
		}
	})
	if ctx.Err() != nil {
		tell("gone", 0, "has resigned and gone")
		return nil
	}
	return ended
}

// read returns the count so far. The read is linearizable, as the first one of a
// term must be.
func read(ctx context.Context, kv clientv3.KV, counter string) (int, error) {
	resp, err := kv.Get(ctx, counter)
	if err != nil || len(resp.Kvs) == 0 {
		return 0, err
	}
	return strconv.Atoi(string(resp.Kvs[0].Value))
}

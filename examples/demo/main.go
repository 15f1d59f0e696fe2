// Command demo shows the life of a term on a real etcd: three candidates, each a
// process of its own, guard a counter; the leader's process is paused, a follower
// takes over, and the old leader's write is refused when it wakes.
//
// It starts an etcd in its own process, or uses one that is given:
//
//	go run ./demo
//	go run ./demo -endpoints http://127.0.0.1:2379
//
// It ends by itself, with a summary, and with status 1 if a check failed.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/tenure-go/tenure/examples/internal/embedded"
)

const ttl = 3 * time.Second

func main() {
	etcd := embedded.Flag()
	candidate := flag.String("candidate", "", "take part as the candidate of this `name`: what the demo starts three times")
	prefix := flag.String("prefix", "", "of the keys; empty: a new one, which is removed at the end")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if *candidate != "" {
		err = take(ctx, etcd, *prefix, *candidate)
	} else {
		err = direct(ctx, etcd, *prefix)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

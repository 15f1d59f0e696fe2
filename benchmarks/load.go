package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// idle measures what waiting costs etcd.
func idle(ctx context.Context, c *config) error {
	t := &table{
		Name: "idle", Title: "Load on etcd of candidates that wait",
		Columns: []string{"candidates", "requests a second", "per candidate", "watches", "keys", "bytes in the key space"},
		Note:    "One election, TTL 10 s, one client for all but with a lease each; from etcd's own metrics over 20 s.",
	}
	c.report.add(t)
	sizes := []int{3, 100, 1000}
	if c.short {
		sizes = []int{3}
	}
	for _, n := range sizes {
		for _, v := range variants[:2] {
			cells, err := idleOf(ctx, c, v, n)
			if err != nil {
				return err
			}
			t.Rows = append(t.Rows, row{Name: fmt.Sprintf("%s, %d", v.name, n), Cells: cells})
		}
	}
	return nil
}

func idleOf(ctx context.Context, c *config, v variant, n int) ([]string, error) {
	watchesBefore, err := c.cluster.metric(ctx, "etcd_debugging_mvcc_watcher_total")
	if err != nil {
		return nil, err
	}
	g, err := newGroup(ctx, c, v, "idle", n, 1, 10)
	defer g.close()
	if err != nil {
		return nil, err
	}
	time.Sleep(seconds(3) + time.Duration(n)*time.Millisecond)
	requests := func() (float64, error) { return c.cluster.metric(ctx, "grpc_server_msg_received_total") }
	before, err := requests()
	if err != nil {
		return nil, err
	}
	const window = 20
	time.Sleep(seconds(window))
	after, err := requests()
	if err != nil {
		return nil, err
	}
	watches, err := c.cluster.metric(ctx, "etcd_debugging_mvcc_watcher_total")
	if err != nil {
		return nil, err
	}
	resp, err := g.clients[0].Get(ctx, "/benchmarks/", clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	keys, size := 0, 0
	for _, kv := range resp.Kvs {
		if strings.Contains(string(kv.Key), "/idle/") {
			keys++
			size += len(kv.Key) + len(kv.Value)
		}
	}
	per := (after - before) / window
	return []string{
		fmt.Sprint(n), fmt.Sprintf("%.1f", per), fmt.Sprintf("%.2f", per/float64(n)), fmt.Sprintf("%.0f", watches-watchesBefore), fmt.Sprint(keys), fmt.Sprint(size),
	}, nil
}

// load measures hand-overs while etcd is busy with other things.
func load(ctx context.Context, c *config) error {
	t := &table{
		Name: "load", Title: "Hand-over while etcd serves 5,000 other writes a second", chart: bars(span),
		Columns: []string{"median", "10 %", "90 %", "of Election's"},
		Note:    "10 candidates on 10 clients.",
	}
	c.report.add(t)
	rounds, perSecond := 40, 5000
	if c.short {
		rounds, perSecond = 5, 500
	}
	client, err := c.cluster.client(nil)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	var writers sync.WaitGroup
	defer writers.Wait()
	defer cancel()
	limit := rate.NewLimiter(rate.Limit(perSecond), 100)
	start, written := time.Now(), make([]int, 64)
	for i := range written {
		writers.Go(func() {
			for limit.Wait(ctx) == nil {
				if _, writeErr := client.Put(ctx, fmt.Sprintf("/benchmarks/load/%d", i), strings.Repeat("x", 100)); writeErr == nil {
					written[i]++
				}
			}
		})
	}
	times, err := handOvers(ctx, c, "load", 10, 10, rounds)
	if err != nil {
		return err
	}
	took := time.Since(start)
	cancel()
	writers.Wait()
	all := 0
	for _, n := range written {
		all += n
	}
	t.Note += fmt.Sprintf(" Written in fact: %.0f a second.", float64(all)/took.Seconds())
	base := times["concurrency.Election"].median()
	for _, v := range variants {
		d := times[v.name]
		t.Rows = append(t.Rows, row{Name: v.name, Cells: append(d.cells(), ratio(d.median(), base)), Value: d.median()})
	}
	return nil
}

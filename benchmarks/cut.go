package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// cutting is what one round of cutting a leader off has shown.
type cutting struct {
	lost     bool          // the leadership was lost before the cut already
	both     time.Duration // for which two have led, or less than 0
	fromCut  time.Duration // to the follower's leadership
	fromGone time.Duration // from the deletion of the key, as another client sees it
	err      error
}

// cut measures what becomes of a leader whose client is cut off.
func cut(ctx context.Context, c *config) error {
	two := &table{
		Name: "cut", Title: "Two leaders at once after the leader is cut off", chart: bars(span),
		Columns: []string{"TTL", "rounds", "with two leaders", "median", "longest", "lost before the cut"},
		Note: "The leader's client is cut off behind a proxy that swallows bytes, at a random point of its renewal cycle; its answers before that are late by 0.3 to 0.8 s. " +
			"The time for which it goes on believing after a follower's campaign has returned; 0 if it knew before.",
	}
	over := &table{
		Name: "takeover", Title: "Takeover after a crash", chart: bars(span),
		Columns: []string{"TTL", "from the cut: median", "90 %", "from the deletion: median", "10 %", "90 %"},
		Note:    "The same rounds. The deletion is seen by a third client; a negative time says that the follower led before that client had heard of it.",
	}
	c.report.add(two)
	c.report.add(over)
	type setting struct{ ttl, rounds int }
	settings := []setting{{3, 100}, {10, 100}}
	if c.short {
		settings = []setting{{3, 20}}
	}
	for _, s := range settings {
		results := make(map[string][]cutting)
		for done := 0; done < s.rounds; done += 20 {
			for _, i := range rand.Perm(len(variants)) {
				v := variants[i]
				if c.alone && v.name != ours {
					continue
				}
				var round sync.WaitGroup
				batch := make([]cutting, 20)
				for j := range batch {
					round.Go(func() { batch[j] = cutOff(ctx, c, v, s.ttl) })
				}
				round.Wait()
				for _, r := range batch {
					if r.err != nil {
						return fmt.Errorf("%s: %w", v.name, r.err)
					}
				}
				results[v.name] = append(results[v.name], batch...)
			}
		}
		for _, v := range variants {
			if len(results[v.name]) == 0 {
				continue
			}
			var both, fromCut, fromGone sample
			lost, doubled := 0, 0
			for _, r := range results[v.name] {
				if r.lost {
					lost++
					continue
				}
				if r.both > 0 {
					doubled++
				}
				both.add(max(r.both, 0))
				fromCut.add(r.fromCut)
				fromGone.add(r.fromGone)
			}
			name := fmt.Sprintf("%s, TTL %d s", v.name, s.ttl)
			two.Rows = append(two.Rows, row{Name: name, Value: both.median(), Cells: []string{
				fmt.Sprintf("%d s", s.ttl), fmt.Sprint(len(both)), fmt.Sprint(doubled), span(both.median()), span(both.at(1)), fmt.Sprint(lost),
			}})
			over.Rows = append(over.Rows, row{Name: name, Value: fromGone.median(), Cells: []string{
				fmt.Sprintf("%d s", s.ttl), span(fromCut.median()), span(fromCut.at(0.9)), span(fromGone.median()), span(fromGone.at(0.1)), span(fromGone.at(0.9)),
			}})
			if v.name == ours && doubled > 0 {
				c.report.broken("with a TTL of %d s two led at once in %d of %d rounds, for up to %s", s.ttl, doubled, len(both), span(both.at(1)))
			}
		}
	}
	return nil
}

// cutOff is one round.
func cutOff(ctx context.Context, c *config, v variant, ttl int) (r cutting) {
	p, err := newProxy(strings.TrimPrefix(c.cluster.endpoints[rand.IntN(len(c.cluster.endpoints))], "http://"))
	if err != nil {
		return cutting{err: err}
	}
	defer p.close()
	key := c.cluster.key("cut")
	var leader contender
	defer func() {
		if leader != nil {
			_ = leader.close() // after its client, which nobody would answer
		}
	}()
	var clients []*clientv3.Client
	defer func() {
		for _, client := range clients {
			_ = client.Close()
		}
	}()
	for _, endpoints := range [][]string{{p.endpoint()}, nil, nil} {
		client, clientErr := c.cluster.client(endpoints)
		if clientErr != nil {
			return cutting{err: clientErr}
		}
		clients = append(clients, client)
	}
	if leader, err = v.open(clients[0], key, ttl); err != nil {
		return cutting{err: err}
	}
	follower, err := v.open(clients[1], key, ttl)
	if err != nil {
		return cutting{err: err}
	}
	defer func() { _ = follower.close() }()
	if err := leader.campaign(ctx); err != nil {
		return cutting{err: err}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	gone := deletions(ctx, clients[2], key)
	won := make(chan time.Time, 1)
	failed := make(chan error, 1)
	go func() {
		if err := follower.campaign(ctx); err != nil {
			failed <- err
			return
		}
		won <- time.Now()
	}()
	p.delay.Store(int64(300*time.Millisecond + rand.N(500*time.Millisecond)))
	time.Sleep(2*seconds(ttl)/3 + rand.N(seconds(ttl)/3)) // at least one renewal
	r.lost = !leader.leads()
	p.cut.Store(true)
	at := time.Now()

	ended := make(chan time.Time, 1)
	go func() {
		for leader.leads() {
			time.Sleep(500 * time.Microsecond)
		}
		ended <- time.Now()
	}()
	var next, end time.Time
	limit := time.After(3*seconds(ttl) + seconds(10))
	for next.IsZero() || end.IsZero() {
		select {
		case next = <-won:

		case end = <-ended:

		case err := <-failed:
			return cutting{err: err}

		case <-limit:
			return cutting{err: fmt.Errorf("no takeover %v after the cut", time.Since(at))}
		}
	}
	r.both, r.fromCut = end.Sub(next), next.Sub(at)
	select {
	case t := <-gone:
		r.fromGone = next.Sub(t)

	case <-time.After(seconds(5)):
		r.err = fmt.Errorf("%s was taken over and its deletion was not seen", key)
	}
	return r
}

// deletions returns a channel that tells when the first key under prefix goes.
func deletions(ctx context.Context, client *clientv3.Client, prefix string) <-chan time.Time {
	gone := make(chan time.Time, 1)
	watch := client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithFilterPut())
	go func() {
		for resp := range watch {
			if len(resp.Events) > 0 {
				gone <- time.Now()
				return
			}
		}
	}()
	return gone
}

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// group is the candidates of one variant for one election, all but the leader
// waiting.
type group struct {
	variant variant
	clients []*clientv3.Client
	all     []contender
	cancel  context.CancelFunc
	ctx     context.Context
	won     chan int // index of who leads now
	failed  chan error
	running sync.WaitGroup
	leader  int
}

// newGroup starts n candidates on the given number of clients.
func newGroup(ctx context.Context, c *config, v variant, section string, n, clients, ttl int) (*group, error) {
	g := &group{variant: v, won: make(chan int, n), failed: make(chan error, n), leader: -1}
	g.ctx, g.cancel = context.WithCancel(ctx)
	for range clients {
		client, err := c.cluster.client(nil)
		if err != nil {
			return g, err
		}
		g.clients = append(g.clients, client)
	}
	key := c.cluster.key(section)
	for i := range n {
		m, err := v.open(g.clients[i%clients], key, ttl)
		if err != nil {
			return g, err
		}
		g.all = append(g.all, m)
		g.enter(i)
		if i == 0 {
			if err := g.next(); err != nil {
				return g, err
			}
		}
	}
	return g, nil
}

// enter lets a candidate campaign.
func (g *group) enter(i int) {
	g.running.Go(func() {
		switch err := g.all[i].campaign(g.ctx); {
		case err == nil:
			g.won <- i
		case g.ctx.Err() == nil:
			g.failed <- fmt.Errorf("%s: campaign: %w", g.variant.name, err)
		}
	})
}

func (g *group) next() error {
	select {
	case g.leader = <-g.won:
		return nil

	case err := <-g.failed:
		return err

	case <-time.After(time.Minute):
		return fmt.Errorf("%s: nobody leads after a minute", g.variant.name)

	case <-g.ctx.Done():
		return g.ctx.Err()
	}
}

// handOver lets the leader resign, and returns after how long another one leads.
func (g *group) handOver() (time.Duration, error) {
	old := g.leader
	resigned := make(chan error, 1)
	start := time.Now()
	go func() { resigned <- g.all[old].resign(g.ctx) }()
	err := g.next()
	took := time.Since(start)
	if err := errors.Join(err, <-resigned); err != nil {
		return 0, err
	}
	g.enter(old) // too late for this round
	return took, nil
}

func (g *group) close() {
	g.cancel()
	g.running.Wait()
	var closing sync.WaitGroup
	for _, m := range g.all {
		closing.Go(func() { _ = m.close() })
	}
	closing.Wait()
	for _, client := range g.clients {
		_ = client.Close()
	}
}

// handover measures the time from the leader's call of resign to the return of
// another candidate's campaign.
func handover(ctx context.Context, c *config) error {
	t := &table{
		Name: "handover", Title: "Hand-over after resign", chart: bars(span),
		Columns: []string{"candidates", "clients", "median", "10 %", "90 %", "of Election's"},
		Note:    "From the call of resign to the return of another candidate's campaign. Who has resigned does not contend in that round.",
	}
	c.report.add(t)
	type setting struct{ n, clients, rounds int }
	settings := []setting{{2, 2, 60}, {10, 10, 60}, {100, 1, 60}, {100, 50, 60}, {1000, 1, 30}}
	if c.short {
		settings = []setting{{2, 2, 10}, {20, 4, 10}}
	}
	for _, s := range settings {
		times, err := handOvers(ctx, c, "handover", s.n, s.clients, s.rounds)
		if err != nil {
			return err
		}
		base := times["concurrency.Election"].median()
		for _, v := range variants {
			d := times[v.name]
			cells := append([]string{fmt.Sprint(s.n), fmt.Sprint(s.clients)}, d.cells()...)
			t.Rows = append(t.Rows, row{Name: fmt.Sprintf("%s, %d on %d", v.name, s.n, s.clients), Cells: append(cells, ratio(d.median(), base)), Value: d.median()})
		}
	}
	return nil
}

// handOvers runs rounds of all variants, mixed. As many as a fifth of them come
// before, in which clients warm up, and are dropped.
func handOvers(ctx context.Context, c *config, section string, n, clients, rounds int) (map[string]sample, error) {
	groups := make([]*group, 0, len(variants))
	defer func() {
		for _, g := range groups {
			g.close()
		}
	}()
	for _, v := range variants {
		g, err := newGroup(ctx, c, v, section, n, clients, 60)
		groups = append(groups, g)
		if err != nil {
			return nil, err
		}
	}
	time.Sleep(time.Second)
	times := make(map[string]sample)
	for i := range rounds + rounds/5 {
		for _, j := range rand.Perm(len(groups)) {
			g := groups[j]
			took, err := g.handOver()
			if err != nil {
				return nil, err
			}
			if i >= rounds/5 {
				s := times[g.variant.name]
				s.add(took)
				times[g.variant.name] = s
			}
			time.Sleep(250*time.Millisecond + rand.N(20*time.Millisecond))
		}
	}
	return times, nil
}

// proposals counts what a hand-over costs Raft, everything included that follows
// from it until the next one.
func proposals(ctx context.Context, c *config) error {
	t := &table{
		Name: "proposals", Title: "Raft proposals per hand-over, 100 candidates",
		Columns: []string{"proposals", "after warming up with"},
		Note:    "From etcd's own metrics, with all that follows until the next hand-over: losing transactions, and who has resigned taking part again.",
	}
	c.report.add(t)
	n, warm, rounds := 100, 60, 40
	if c.short {
		warm, rounds = 40, 20
	}
	for _, v := range variants {
		g, err := newGroup(ctx, c, v, "proposals", n, 10, 60)
		if err == nil {
			time.Sleep(time.Second)
			var per float64
			per, err = countProposals(ctx, c, g, warm, rounds)
			t.Rows = append(t.Rows, row{Name: v.name, Cells: []string{fmt.Sprintf("%.1f", per), fmt.Sprintf("%d rounds", warm)}, Value: per})
			if v.name == ours && err == nil && per > 10 {
				c.report.broken("a hand-over among %d candidates costs %.1f Raft proposals; 10 at most were promised", n, per)
			}
		}
		g.close()
		if err != nil {
			return err
		}
	}
	return nil
}

func countProposals(ctx context.Context, c *config, g *group, warm, rounds int) (float64, error) {
	var before float64
	for i := range warm + rounds {
		if i == warm {
			var err error
			if before, err = metricOf(ctx, c.cluster.endpoints[0], "etcd_server_proposals_committed_total"); err != nil {
				return 0, err
			}
		}
		if _, err := g.handOver(); err != nil {
			return 0, err
		}
		time.Sleep(100 * time.Millisecond)
	}
	after, err := metricOf(ctx, c.cluster.endpoints[0], "etcd_server_proposals_committed_total")
	return (after - before) / float64(rounds), err
}

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
)

// lead begins a term, on a client of its own, that lasts until leave is called.
func lead(ctx context.Context, c *config, section string) (client *clientv3.Client, term *tenure.Term, leave func(), err error) {
	client, err = c.cluster.client(nil)
	if err != nil {
		return nil, nil, nil, err
	}
	e, err := tenure.New(client, c.cluster.key(section), &tenure.Options{TTL: time.Minute})
	if err == nil {
		term, err = e.Campaign(ctx)
	}
	if err != nil {
		return nil, nil, nil, errors.Join(err, client.Close())
	}
	return client, term, func() {
		_ = term.Resign()
		_ = client.Close()
	}, nil
}

// writes compares guarded writes with plain ones.
func writes(ctx context.Context, c *config) error {
	client, term, leave, err := lead(ctx, c, "writes")
	if err != nil {
		return err
	}
	defer leave()
	plain, guarded := clientv3.NewKV(client), term.KV(client)

	kinds := []struct {
		name  string
		bound float64 // of guarded over plain, in one writer's latency
		do    func(kv clientv3.KV, key string) error
	}{
		{"Put", 1.12, func(kv clientv3.KV, key string) error {
			_, err := kv.Put(ctx, key, "value")
			return err
		}},
		{"Delete", 1.12, func(kv clientv3.KV, key string) error {
			_, err := kv.Delete(ctx, key)
			return err
		}},
		{"Txn", 1.08, func(kv clientv3.KV, key string) error {
			_, err := kv.Txn(ctx).If(clientv3.Compare(clientv3.Version(key), ">", -1)).
				Then(clientv3.OpPut(key, "value")).Else(clientv3.OpGet(key)).Commit()
			return err
		}},
	}
	latency := &table{
		Name: "writes", Title: "Guarded writes against plain ones: latency", chart: bars(func(v float64) string { return fmt.Sprintf("%.2f", v) }),
		Columns: []string{"writers", "plain, median", "guarded, median", "ratio", "wanted at most"},
		Note:    "Windows of plain and of guarded writes take turns; the ratio is the median of the ratios of neighbours.",
	}
	rate := &table{
		Name: "throughput", Title: "Guarded writes against plain ones: throughput",
		Columns: []string{"writers", "plain a second", "guarded a second", "ratio"},
	}
	c.report.add(latency)
	c.report.add(rate)
	writers, windows, window := []int{1, 16, 64}, 20, 400*time.Millisecond
	if c.short {
		writers, windows, window = []int{1}, 12, 300*time.Millisecond
	}
	for _, kind := range kinds {
		for _, n := range writers {
			var rates, pair [2]sample
			var both, through sample
			for range windows {
				var med, ops [2]float64
				for _, i := range rand.Perm(2) {
					kv := []clientv3.KV{plain, guarded}[i]
					s, err := writeFor(window, n, func(key string) error { return kind.do(kv, key) })
					if err != nil {
						return fmt.Errorf("%s: %w", kind.name, err)
					}
					med[i], ops[i] = s.median(), float64(len(s))/window.Seconds()
					pair[i] = append(pair[i], med[i])
					rates[i] = append(rates[i], ops[i])
				}
				both = append(both, med[1]/med[0])
				through = append(through, ops[1]/ops[0])
			}
			r := both.median()
			name := fmt.Sprintf("%s, %d writers", kind.name, n)
			latency.Rows = append(latency.Rows, row{Name: name, Value: r, Cells: []string{
				fmt.Sprint(n), span(pair[0].median()), span(pair[1].median()), fmt.Sprintf("%.2f", r), fmt.Sprintf("%.2f", kind.bound),
			}})
			rate.Rows = append(rate.Rows, row{Name: name, Cells: []string{
				fmt.Sprint(n), fmt.Sprintf("%.0f", rates[0].median()), fmt.Sprintf("%.0f", rates[1].median()), fmt.Sprintf("%.2f", through.median()),
			}})
			if kind.name == "Put" && n == 1 && r > 1.3 {
				c.report.broken("a guarded Put takes %.2f times a plain one", r)
			}
		}
	}
	allocs := &table{
		Name: "allocs", Title: "Allocations of a write, client's side", Columns: []string{"plain", "guarded", "more"},
	}
	c.report.add(allocs)
	for _, kind := range kinds {
		var n [2]int64
		for i, kv := range []clientv3.KV{plain, guarded} {
			var failure error
			n[i] = measure(func(b *testing.B) {
				b.Helper()
				for b.Loop() {
					if err := kind.do(kv, "/benchmarks/data/0"); err != nil {
						failure = err
						return
					}
				}
			}).AllocsPerOp()
			if failure != nil {
				return fmt.Errorf("%s: %w", kind.name, failure)
			}
		}
		allocs.Rows = append(allocs.Rows, row{Name: kind.name, Cells: []string{fmt.Sprint(n[0]), fmt.Sprint(n[1]), fmt.Sprint(n[1] - n[0])}})
	}
	return nil
}

// writeFor lets n writers work for a while, each on keys of its own.
func writeFor(d time.Duration, n int, do func(key string) error) (sample, error) {
	var writers sync.WaitGroup
	var failure atomic.Pointer[error]
	samples := make([]sample, n)
	end := time.Now().Add(d)
	for i := range n {
		writers.Go(func() {
			for j := 0; ; j++ {
				start := time.Now()
				if start.After(end) || failure.Load() != nil {
					return
				}
				if err := do(fmt.Sprintf("/benchmarks/data/%d/%d", i, j%100)); err != nil {
					failure.Store(&err)
					return
				}
				samples[i].add(time.Since(start))
			}
		})
	}
	writers.Wait()
	if err := failure.Load(); err != nil {
		return nil, *err
	}
	var all sample
	for _, s := range samples {
		all = append(all, s...)
	}
	return all, nil
}

// check measures the two checks that take no round trip.
func check(ctx context.Context, c *config) error {
	_, term, leave, err := lead(ctx, c, "check")
	if err != nil {
		return err
	}
	defer leave()
	gate := tenure.NewGate(term.Fence().Key)
	t := &table{
		Name: "check", Title: "Checks without a round trip", Columns: []string{"a call", "allocations", "of time.Now()"},
		Note: "One after the other, and 64 goroutines at once. time.Now() is what a look at the clock costs on this machine.",
	}
	c.report.add(t)
	ask := func(ops func(b *testing.B)) (ns float64, allocs int64) {
		var best sample
		for range 5 {
			r := measure(ops)
			best = append(best, float64(r.T.Nanoseconds())/float64(r.N))
			allocs = r.AllocsPerOp()
		}
		return best.median(), allocs
	}
	var clock float64
	for _, it := range []struct {
		name string
		call func()
		most int64 // allocations
	}{
		{"time.Now()", func() { _ = time.Now() }, 0},
		{"Term.Valid()", func() { _ = term.Valid() }, 0},
		{"Gate.Enter() and leave()", func() {
			_, leave, err := gate.Enter(ctx, term.Fence())
			if err != nil {
				panic(err)
			}
			leave()
		}, 5},
	} {
		one, allocs := ask(func(b *testing.B) {
			b.Helper()
			for b.Loop() {
				it.call()
			}
		})
		many, _ := ask(func(b *testing.B) {
			b.Helper()
			b.SetParallelism(64)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					it.call()
				}
			})
		})
		if it.name == "time.Now()" {
			clock = one
		}
		t.Rows = append(t.Rows,
			row{Name: it.name, Cells: []string{span(one * 1e-9), fmt.Sprint(allocs), ratio(one, clock)}},
			row{Name: it.name + ", 64 at once", Cells: []string{span(many * 1e-9), fmt.Sprint(allocs), ratio(many, clock)}})
		if allocs > it.most {
			c.report.broken("%s allocates %d times; %d at most were promised", it.name, allocs, it.most)
		}
	}
	return nil
}

func measure(ops func(b *testing.B)) testing.BenchmarkResult {
	return testing.Benchmark(func(b *testing.B) {
		b.Helper()
		b.ReportAllocs()
		ops(b)
	})
}

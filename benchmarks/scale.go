package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc"

	"github.com/tenure-go/tenure"
)

// counter counts a client's requests.
type counter struct{ unary, messages atomic.Int64 }

func (c *counter) options() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			c.unary.Add(1)
			return invoke(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := open(ctx, desc, cc, method, opts...)
			if err != nil {
				return nil, err
			}
			return &countedStream{ClientStream: s, c: c}, nil
		}),
	}
}

type countedStream struct {
	grpc.ClientStream
	c *counter
}

func (s *countedStream) SendMsg(m any) error {
	s.c.messages.Add(1)
	return s.ClientStream.SendMsg(m)
}

// used is what the process uses: memory in bytes, and goroutines.
type used struct {
	bytes      float64
	goroutines int
}

func usage() used {
	for range 5 { // each shrinks idle stacks once
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return used{float64(m.HeapAlloc + m.StackInuse), runtime.NumGoroutine()}
}

func (u used) since(before used, n int) (bytes, goroutines float64) {
	return (u.bytes - before.bytes) / float64(n), float64(u.goroutines-before.goroutines) / float64(n)
}

// many is a number of elections of one process on one lease.
type many struct {
	client *clientv3.Client
	count  *counter
	cancel context.CancelFunc
	all    sync.WaitGroup
	leads  atomic.Int64
	failed atomic.Pointer[error]
	close  func()
}

// newMany starts candidates for elections 0 to n-1 below a prefix.
func newMany(ctx context.Context, c *config, name, prefix string, n int) (*many, error) {
	m := &many{count: new(counter)}
	ctx, m.cancel = context.WithCancel(ctx)
	client, err := c.cluster.client(nil, m.count.options()...)
	if err != nil {
		m.cancel()
		return nil, err
	}
	m.client = client
	campaign := func(i int, campaign func() error) {
		m.all.Go(func() {
			switch failure := campaign(); {
			case failure == nil:
				m.leads.Add(1)
			case ctx.Err() == nil:
				failure = fmt.Errorf("%s: election %d: %w", name, i, failure)
				m.failed.Store(&failure)
			}
		})
	}
	if name == ours {
		return m, m.elect(ctx, prefix, n, campaign)
	}
	s, err := concurrency.NewSession(client, concurrency.WithTTL(10))
	if err != nil {
		return nil, err
	}
	m.close = func() { _ = s.Close(); m.all.Wait() }
	for i := range n {
		e := concurrency.NewElection(s, fmt.Sprintf("%s/%05d", prefix, i))
		campaign(i, func() error { return e.Campaign(ctx, "x") })
	}
	return m, nil
}

// elect starts our candidates.
func (m *many) elect(ctx context.Context, prefix string, n int, campaign func(i int, campaign func() error)) error {
	lease, err := tenure.NewLease(m.client, &tenure.LeaseOptions{TTL: seconds(10)})
	if err != nil {
		return err
	}
	var terms sync.Map
	m.close = func() {
		terms.Range(func(_, t any) bool {
			m.all.Go(func() { _ = t.(*tenure.Term).Resign() })
			return true
		})
		closing, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = lease.Close(closing)
		m.all.Wait()
	}
	for i := range n {
		e, err := tenure.New(m.client, fmt.Sprintf("%s/%05d", prefix, i), &tenure.Options{Lease: lease})
		if err != nil {
			return err
		}
		campaign(i, func() error {
			term, err := e.Campaign(ctx)
			if err == nil {
				terms.Store(i, term)
			}
			return err
		})
	}
	return nil
}

func (m *many) end() {
	m.cancel()
	m.close()
	_ = m.client.Close()
}

// await waits until n elections are led.
func (m *many) await(n int) (time.Duration, error) {
	start := time.Now()
	for m.leads.Load() < int64(n) {
		if err := m.failed.Load(); err != nil {
			return 0, *err
		}
		if time.Since(start) > 3*time.Minute {
			return 0, fmt.Errorf("only %d of %d elections are led after %v", m.leads.Load(), n, time.Since(start))
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(start), nil
}

// scale measures many elections in one process on one lease.
func scale(ctx context.Context, c *config) error {
	t := &table{
		Name: "scale", Title: "Many elections in one process on one lease", chart: bars(span),
		Columns: []string{"all lead after", "leading: KiB", "goroutines", "following: KiB", "goroutines", "requests a second, leading", "following", "taken over after the leaders' end"},
		Note: "Memory and goroutines are per election, live heap and stacks, the client's own counted; requests are those of 15 s, unary calls and messages on streams. " +
			"At the end the leading side's client is closed; counted from the first key that goes.",
	}
	c.report.add(t)
	sizes := []int{1, 100, 1000, 10000}
	if c.short {
		sizes = []int{5000}
	}
	for _, n := range sizes {
		for _, name := range []string{ours, "concurrency.Election"} {
			cells, first, err := scaleOf(ctx, c, name, n)
			if err != nil {
				return err
			}
			t.Rows = append(t.Rows, row{Name: fmt.Sprintf("%s, %d", name, n), Cells: cells, Value: first.Seconds()})
		}
	}
	return nil
}

func scaleOf(ctx context.Context, c *config, name string, n int) (cells []string, first time.Duration, err error) {
	prefix := c.cluster.key("scale")
	start := usage()
	leading, err := newMany(ctx, c, name, prefix, n)
	if err != nil {
		return nil, 0, err
	}
	ended := false
	defer func() {
		if !ended {
			leading.end()
		}
	}()
	if first, err = leading.await(n); err != nil {
		return nil, 0, err
	}
	time.Sleep(seconds(5))
	one := usage()
	leadBytes, leadGoroutines := one.since(start, n)
	following, err := newMany(ctx, c, name, prefix, n)
	if err != nil {
		return nil, 0, err
	}
	defer following.end()
	time.Sleep(seconds(5) + time.Duration(n)*time.Millisecond)
	followBytes, followGoroutines := usage().since(one, n)

	const window = 15
	before := [2]int64{leading.requests(), following.requests()}
	time.Sleep(seconds(window))
	rates := [2]float64{float64(leading.requests()-before[0]) / window, float64(following.requests()-before[1]) / window}

	observer, err := c.cluster.client(nil)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = observer.Close() }()
	gone := deletions(ctx, observer, prefix)
	time.Sleep(100 * time.Millisecond)
	ended = true
	_ = leading.client.Close() // as a crash would: nothing is given up
	select {
	case <-gone:

	case <-time.After(seconds(40)):
		return nil, 0, fmt.Errorf("%s: no key went in 40 s", name)
	}
	taken, err := following.await(n)
	if err != nil {
		return nil, 0, err
	}
	leading.end()
	if name == ours {
		if rates[0] > 3+float64(n)/100 && n >= 100 {
			c.report.broken("%d elections on one lease cost %.1f requests a second", n, rates[0])
		}
		if leadGoroutines > 3 && n >= 100 {
			c.report.broken("an election on a shared lease costs %.1f goroutines; 3 at most were promised", leadGoroutines)
		}
	}
	kib := func(v float64) string { return fmt.Sprintf("%.1f", v/1024) }
	return []string{
		span(first.Seconds()), kib(leadBytes), fmt.Sprintf("%.1f", leadGoroutines), kib(followBytes), fmt.Sprintf("%.1f", followGoroutines),
		fmt.Sprintf("%.1f", rates[0]), fmt.Sprintf("%.1f", rates[1]), span(taken.Seconds()),
	}, first, nil
}

func (m *many) requests() int64 { return m.count.unary.Load() + m.count.messages.Load() }

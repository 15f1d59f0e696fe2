package tenure_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
)

// Each run takes other seeds, and prints those that fail. TENURE_SEEDS=1000
// tries more of them, TENURE_SEED=42 one again; the bubble's schedule is not part
// of the seed, so a rare failure may need several attempts.
const defaultSeeds = 8

// Promise 1 and 2, with everything that is allowed to go wrong going wrong at
// random: of three to five candidates never two are valid at once, whatever
// instant is looked at, and the guarded key never takes a write of an older term
// after one of a newer. When it is over somebody leads, and when all have gone
// nothing is left.
func TestNeverTwoValidTerms(t *testing.T) {
	seeds := make([]uint64, 0, defaultSeeds)
	if one, err := strconv.ParseUint(os.Getenv("TENURE_SEED"), 10, 64); err == nil {
		seeds = append(seeds, one)
	} else {
		n, err := strconv.Atoi(os.Getenv("TENURE_SEEDS"))
		if err != nil {
			n = defaultSeeds
		}
		for range n {
			seeds = append(seeds, rand.Uint64N(1e6))
		}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("TENURE_SEED=%d", seed), func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) { newOrdeal(t, s, seed).run() })
		})
	}
}

// An ordeal is one random run.
type ordeal struct {
	t     *testing.T
	s     *etcdtest.Server
	rand  *rand.Rand // of the test's own goroutine
	start time.Time
	ttl   time.Duration

	hosts      []*host
	candidates []*candidate

	mu     sync.Mutex
	terms  []*tenure.Term // all that have begun, in order
	over   map[*tenure.Term]bool
	faults []string // what has been done, for the report
	wrong  []string
}

// A host has a client, clocks, and one or more candidates.
type host struct {
	c     *etcdtest.Client
	lease *tenure.Lease // shared by its candidates; nil: each has its own
	rate  float64       // of its clocks, measured by the bubble's
	rules []*etcdtest.Rule

	mu   sync.Mutex
	step time.Duration // of its wall clock
}

// clocks are a pair that runs too fast or too slow by less than the margin, and
// whose wall part jumps.
func (h *host) clocks(start time.Time) func() (mono, wall time.Time) {
	return func() (mono, wall time.Time) {
		h.mu.Lock()
		defer h.mu.Unlock()
		mono = start.Add(time.Duration(float64(time.Since(start)) * h.rate))
		return mono, mono.Round(0).Add(h.step)
	}
}

func (h *host) heal() {
	h.c.Link.Delay(0, 0)
	h.c.Link.Heal()
	for _, rule := range h.rules {
		rule.Release()
	}
}

func (h *host) leads(candidates []*candidate) bool {
	return slices.ContainsFunc(candidates, func(c *candidate) bool { return c.h == h && c.e.Term() != nil })
}

type candidate struct {
	name string
	h    *host
	e    *tenure.Elector

	mu   sync.Mutex
	rand *rand.Rand // of the work
}

func newOrdeal(t *testing.T, s *etcdtest.Server, seed uint64) *ordeal {
	t.Helper()
	o := &ordeal{t: t, s: s, rand: rand.New(rand.NewPCG(seed, 0)), start: time.Now(), over: make(map[*tenure.Term]bool)}
	o.ttl = []time.Duration{2 * time.Second, 3 * time.Second, 5 * time.Second, 10 * time.Second}[o.rand.IntN(4)]
	for n := 3 + o.rand.IntN(3); n > 0; {
		h := &host{
			c:    s.Client(reconnectSoon),
			rate: 0.92 + o.rand.Float64()*0.16,
			step: time.Duration(o.rand.Int64N(int64(2*time.Hour))) - time.Hour,
		}
		o.hosts = append(o.hosts, h)
		here := 1
		if n > 1 && o.rand.IntN(3) == 0 {
			here = 2
			opts := &tenure.LeaseOptions{TTL: o.ttl}
			opts.SetClocks(h.clocks(o.start))
			h.lease = newLease(t, h.c, opts)
		}
		for ; here > 0; here-- {
			n--
			opts := &tenure.Options{
				Identity: string(rune('a' + len(o.candidates))), Lease: h.lease,
				StopTimeout: []time.Duration{time.Second, 30 * time.Second}[o.rand.IntN(2)],
			}
			opts.SetClocks(h.clocks(o.start))
			if h.lease == nil {
				opts.TTL = o.ttl
			}
			o.candidates = append(o.candidates, &candidate{
				name: opts.Identity, h: h, e: newElector(t, h.c, opts),
				rand: rand.New(rand.NewPCG(seed, uint64(n)+1)),
			})
		}
	}
	return o
}

// reconnectSoon sets what the documents recommend.
func reconnectSoon(cfg *clientv3.Config) {
	params := grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: time.Second}
	params.Backoff.MaxDelay = time.Second
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithConnectParams(params))
}

func (o *ordeal) logf(list *[]string, format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.logLocked(list, format, args...)
}

func (o *ordeal) logLocked(list *[]string, format string, args ...any) {
	*list = append(*list, fmt.Sprintf("%8.3f ", time.Since(o.start).Seconds())+fmt.Sprintf(format, args...))
}

// begin notes a term, at the instant at which it begins.
func (o *ordeal) begin(term *tenure.Term) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.terms); n > 0 && o.terms[n-1].Epoch() >= term.Epoch() {
		o.logLocked(&o.wrong, "epoch %d began after epoch %d", term.Epoch(), o.terms[n-1].Epoch())
	}
	o.terms = append(o.terms, term)
	o.lookLocked()
}

// look asks every term for its validity.
func (o *ordeal) look() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lookLocked()
}

func (o *ordeal) lookLocked() {
	var valid []*tenure.Term
	for _, term := range o.terms {
		switch {
		case !term.Valid():
			o.over[term] = true
		case o.over[term]:
			o.logLocked(&o.wrong, "epoch %d is valid again", term.Epoch())
		default:
			valid = append(valid, term)
		}
	}
	if len(valid) > 1 {
		o.logLocked(&o.wrong, "%v are valid, the first until %v from now", valid, time.Until(valid[0].ValidUntil()))
	}
}

// work writes, and stops sooner or later, or resigns in the middle.
func (o *ordeal) work(c *candidate) func(ctx context.Context, term *tenure.Term) error {
	return func(ctx context.Context, term *tenure.Term) error {
		o.begin(term)
		c.mu.Lock()
		pause := time.Duration(10+c.rand.IntN(90)) * time.Millisecond
		kind := c.rand.IntN(6)
		long := time.Duration(c.rand.Int64N(int64(2 * o.ttl)))
		c.mu.Unlock()
		write := func() {
			wctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.ttl)
			defer cancel()
			_, _ = term.KV(c.h.c.Client).Put(wctx, "/data", term.Fence().String())
			// As another process would, which knows nothing of the term's end.
			_, _ = term.Fence().KV(c.h.c.Client).Put(wctx, "/data", term.Fence().String())
		}
		var until <-chan time.Time
		if kind < 2 { // returns or resigns in the middle
			until = time.After(long)
		}
		for stopped := false; !stopped; {
			write()
			select {
			case <-ctx.Done():
				stopped = true
			case <-until:
				if kind == 0 {
					_ = term.Resign()
				}
				return nil
			case <-time.After(pause):
			}
		}
		if kind == 2 { // is slow to stop, or does not mean to
			for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(pause) {
				write()
			}
		}
		return nil
	}
}

func (o *ordeal) run() {
	t := o.t
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, c := range o.candidates {
		running.Go(func() {
			for ctx.Err() == nil { // Run ends with the work's nil
				if err := c.e.Run(ctx, o.work(c)); err != nil && ctx.Err() == nil {
					o.logf(&o.wrong, "Run of %s has ended: %v", c.name, err)
				}
			}
		})
	}
	looking := make(chan struct{})
	running.Go(func() {
		for {
			select {
			case <-looking:
				return
			case <-time.After(max(5*time.Millisecond, o.ttl/500)):
				o.look()
			}
		}
	})

	for end := time.Now().Add(min(20*o.ttl, 80*time.Second)); time.Now().Before(end); {
		time.Sleep(time.Duration(o.rand.Int64N(int64(o.ttl / 5))))
		o.look()
		if o.rand.IntN(8) == 0 {
			o.slowThenSilent()
		} else {
			o.harm(ctx)
		}
		o.look()
	}
	for _, h := range o.hosts {
		h.heal()
	}
	o.logf(&o.faults, "all is well")

	leads := func() bool {
		return slices.ContainsFunc(o.hosts, func(h *host) bool { return h.leads(o.candidates) })
	}
	etcdtest.Eventually(t, 3*o.ttl+10*time.Second, "somebody leads", true, leads)
	time.Sleep(o.ttl)
	cancel()
	etcdtest.Eventually(t, 3*o.ttl+2*time.Second, "valid terms", false, leads)
	close(looking)
	running.Wait()
	for _, h := range o.hosts {
		if h.lease != nil {
			require.NoError(t, h.lease.Close(context.Background()))
		}
	}
	time.Sleep(o.ttl + 2*time.Second)
	if keys := o.s.Keys(key); len(keys) > 0 {
		o.logf(&o.wrong, "a key is left: %v", keys)
	}
	if n := o.s.Leases(); n > 0 {
		o.logf(&o.wrong, "%d leases are left", n)
	}
	o.judge()
}

// judge looks at what the guarded key has taken.
func (o *ordeal) judge() {
	t := o.t
	t.Helper()
	var last tenure.Fence
	for _, ev := range history(t, o.s, "/data") {
		var fence tenure.Fence
		require.NoError(t, fence.UnmarshalText(ev.Kv.Value))
		if fence.Epoch < last.Epoch {
			o.logf(&o.wrong, "at revision %d a write of epoch %d was taken after one of %d", ev.Kv.ModRevision, fence.Epoch, last.Epoch)
		}
		last = fence
	}
	if len(o.wrong) > 0 {
		for _, line := range o.faults {
			t.Log(line)
		}
		t.Errorf("TTL %v, %d candidates, %d terms:", o.ttl, len(o.candidates), len(o.terms))
		for i, line := range o.wrong {
			if i == 10 {
				t.Logf("and %d more", len(o.wrong)-i)
				break
			}
			t.Error(line)
		}
	}
	t.Logf("%v: %d candidates, %d terms, %d faults", o.ttl, len(o.candidates), len(o.terms), len(o.faults))
}

// slowThenSilent is what tempts a leader most to trust its lease for too long: its
// renewals are answered late, then not at all, while all others are well and take
// over as soon as they can.
func (o *ordeal) slowThenSilent() {
	late := o.ttl/24 + time.Duration(o.rand.Int64N(int64(o.ttl/9)))
	lasts := o.ttl + time.Duration(o.rand.Int64N(int64(o.ttl)))
	for i, h := range o.hosts {
		h.heal()
		if h.leads(o.candidates) {
			o.logf(&o.faults, "host %d: answers are %v late for %v, then cut; the others are well", i, late, lasts)
			h.c.Link.Delay(0, late)
			defer h.c.Link.Cut()
		}
	}
	time.Sleep(lasts)
}

// harm does one thing that goes wrong.
func (o *ordeal) harm(ctx context.Context) {
	some := func(d time.Duration) time.Duration { return time.Duration(o.rand.Int64N(int64(d))) }
	i := o.rand.IntN(len(o.hosts))
	for j, h := range o.hosts { // where it hurts, as a rule
		if o.rand.IntN(2) == 0 && h.leads(o.candidates) {
			i = j
		}
	}
	h := o.hosts[i]
	fault := func(format string, args ...any) { o.logf(&o.faults, "host %d: "+format, append([]any{i}, args...)...) }
	switch k := o.rand.IntN(24); k {
	case 0:
		fault("cut")
		h.c.Link.Cut()
	case 1:
		fault("cut up")
		h.c.Link.CutUp()
	case 2:
		fault("cut down")
		h.c.Link.CutDown()
	case 3, 4, 5:
		fault("heal")
		h.c.Link.Heal()
	case 6, 7:
		fault("resume")
		h.c.Link.Resume()
	case 8, 9:
		up, down := some(o.ttl/8), some(o.ttl/4)
		fault("delay %v, %v", up, down)
		h.c.Link.Delay(up, down)
	case 10:
		fault("no delay")
		h.c.Link.Delay(0, 0)
	case 11:
		fault("drop connections")
		h.c.Link.DropConnections()
	case 12, 13:
		d := some(4*time.Hour) - 2*time.Hour
		if k == 13 {
			d = some(2*o.ttl) - o.ttl
		}
		fault("wall clock steps by %v", d)
		h.mu.Lock()
		h.step += d
		h.mu.Unlock()
	case 14:
		if o.rand.IntN(4) == 0 {
			down := some(2 * o.ttl)
			fault("and all others: the server restarts after %v", down)
			o.s.Restart(down)
		}
	case 15, 16:
		fault("the leader is asked to go")
		go func() {
			ctx, cancel := context.WithTimeout(ctx, o.ttl)
			defer cancel()
			if leader, err := tenure.Lookup(ctx, o.s.Admin(), key); err == nil {
				_ = tenure.Evict(ctx, o.s.Admin(), leader.Fence, nil)
			}
		}()
	default:
		method := []string{"LeaseKeepAlive", "LeaseKeepAlive", "LeaseGrant", "LeaseRevoke", "Txn", "Txn", "Txn", "Range", "Watch"}[o.rand.IntN(9)]
		d := some(o.ttl)
		name, action := "", etcdtest.Action{}
		switch o.rand.IntN(9) {
		case 0:
			name, action = "hold answer", etcdtest.HoldAnswer()
		case 1:
			name, action = "delay answer", etcdtest.DelayAnswer(d)
		case 2:
			name, action = "delay answer a little", etcdtest.DelayAnswer(d/6)
		case 3:
			name, action = "delay request", etcdtest.DelayRequest(d)
		case 4:
			name, action = "hold request", etcdtest.HoldRequest()
		case 5:
			name, action = "lose answer", etcdtest.LoseAnswer()
		case 6:
			name, action = "drop answer", etcdtest.DropAnswer(etcdtest.Unavailable)
		case 7:
			name, action = "duplicate request", etcdtest.DuplicateRequest()
		case 8:
			name, action = "retry request", etcdtest.RetryRequest()
		}
		n := 1 + o.rand.IntN(3)
		fault("%s of the next %d %s, %v", name, n, method, d)
		rule := h.c.Faults.On(method, action, etcdtest.Times(n))
		h.rules = append(h.rules, rule)
		time.AfterFunc(d, rule.Release)
	}
}

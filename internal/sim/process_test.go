package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
)

// A host is a machine with its clocks, and the process on it, if there is one.
type host struct {
	machine
	w      *world
	number int
	clock  *clock
	least  float64 // rate of the clock, ever

	mu     sync.Mutex
	p      *process  // the latest
	hurt   time.Time // when a fault was last in force
	rules  []*etcdtest.Rule
	linked bool // the link is in order
}

func (h *host) slowest() float64 { return h.least }

// process returns the one that runs, or nil.
func (h *host) process() *process {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.p
}

// trouble is when a fault was last in force on the way to etcd.
func (h *host) trouble() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.linked {
		return time.Now()
	}
	return h.hurt
}

// hurts notes that a fault is in force until d from now, or until further notice
// if d is negative.
func (h *host) hurts(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d < 0 {
		h.linked = false
	}
	if until := time.Now().Add(d); until.After(h.hurt) {
		h.hurt = until
	}
}

func (h *host) well() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.linked = true
	if now := time.Now(); now.After(h.hurt) {
		h.hurt = now
	}
}

// rule puts a fault of single messages in force, for a time.
func (h *host) rule(p *process, d time.Duration, method string, a etcdtest.Action, opts ...etcdtest.Option) {
	rule := p.client.Faults.On(method, a, opts...)
	h.mu.Lock()
	h.rules = append(h.rules, rule)
	h.mu.Unlock()
	time.AfterFunc(d, rule.Release)
	h.hurts(d + h.w.plan.ttl)
}

// heal ends all that is in force, but not the rate of the clocks.
func (h *host) heal() {
	h.clock.wake()
	h.mu.Lock()
	rules, p := h.rules, h.p
	h.rules = nil
	h.mu.Unlock()
	for _, rule := range rules {
		rule.Release()
	}
	if p != nil {
		p.client.Link.Delay(h.lag, h.lag)
		p.client.Link.Heal()
	}
	h.well()
}

// A process is a candidate in every election, on one client.
type process struct {
	w      *world
	m      *host
	number int // on this machine
	client *etcdtest.Client
	lease  *tenure.Lease // shared by its candidates; nil: each has its own
	ctx    context.Context
	end    context.CancelFunc
	wg     sync.WaitGroup

	candidates []*candidate // by election

	// Guarded by the ledger's mu.
	dead    bool // crashed: nobody asks it for anything any more
	leaving bool // its lease is being closed
}

// start starts a process unless one runs.
func (h *host) start() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.p != nil || h.w.over() {
		return
	}
	h.clock.wake() // nothing starts on a machine that sleeps
	p := &process{w: h.w, m: h, number: int(h.w.processes.Add(1)), client: h.w.s.Client(reconnectSoon)}
	p.client.Link.Delay(h.lag, h.lag)
	p.ctx, p.end = context.WithCancel(context.Background())
	if h.shared {
		opts := &tenure.LeaseOptions{TTL: h.w.plan.ttl, Margin: h.w.plan.margin}
		setClocks(opts, h.clock)
		var err error
		if p.lease, err = tenure.NewLease(p.client.Client, opts); err != nil {
			panic(err)
		}
	}
	for i := range h.w.plan.elections {
		p.candidates = append(p.candidates, &candidate{p: p, election: i})
	}
	for _, c := range p.candidates {
		p.wg.Go(c.live)
	}
	h.p, h.linked = p, true
}

// reconnectSoon sets what the documents recommend.
func reconnectSoon(cfg *clientv3.Config) {
	params := grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: time.Second}
	params.Backoff.MaxDelay = time.Second
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithConnectParams(params))
}

// leave takes the process off its machine. It returns nil if there is none.
func (h *host) leave() *process {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.p
	h.p, h.rules, h.linked = nil, nil, true
	return p
}

// crash ends the process without a word to anybody. Its goroutines end in the
// bubble, unseen.
func (p *process) crash() {
	p.w.mu.Lock()
	p.dead = true
	p.w.mu.Unlock()
	p.client.Link.Cut()
	p.client.Close()
	p.end()
}

// shutdown ends the process in order, and blocks until it has ended. Every other
// process closes its shared lease while it leads.
func (p *process) shutdown() {
	if p.number%2 == 0 {
		p.release()
	}
	p.end()
	p.wg.Wait()
	p.release()
}

// release closes the lease, if there is one.
func (p *process) release() {
	if p.lease == nil {
		return
	}
	p.w.mu.Lock()
	p.leaving = true
	p.w.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+10*p.w.plan.ttl)
	defer cancel()
	if err := p.lease.Close(ctx); err != nil {
		p.w.wrongf("process %d: Lease.Close() = %v", p.number, err)
	}
}

// A candidate takes part in one election, one call after the other.
type candidate struct {
	p        *process
	election int

	// Guarded by the ledger's mu.
	call    context.Context // the present call's
	cancel  context.CancelFunc
	inRun   bool
	terms   int
	highest tenure.Epoch // that this elector has led with
}

func (c *candidate) String() string { return fmt.Sprintf("process %d", c.p.number) }

// live calls Run, Campaign and TryCampaign until the process ends.
func (c *candidate) live() {
	w := c.p.w
	w.logf("%v starts on machine %d, for election %d", c, c.p.m.number, c.election)
	var e *tenure.Elector
	for n := 0; c.p.ctx.Err() == nil; n++ {
		if e == nil {
			if e = c.elector(); e == nil {
				return
			}
		}
		sh := w.plan.shift(c.p.m.number, c.election, n)
		if w.calm() {
			sh.before, sh.patience = time.Millisecond, time.Hour
		}
		pass(c.p.ctx, sh.before)
		ctx, cancel := context.WithTimeout(c.p.ctx, sh.patience)
		w.mu.Lock()
		c.call, c.cancel, c.inRun = ctx, cancel, sh.how < 2
		w.mu.Unlock()
		var err error
		switch sh.how {
		case 0, 1:
			err = c.run(ctx, e)
		case 2:
			err = c.campaign(ctx, e.Campaign)
		case 3:
			err = c.campaign(ctx, e.TryCampaign)
			if errors.Is(err, tenure.ErrHeld) {
				err = nil
				pass(ctx, w.plan.ttl/10)
			}
		}
		over := ctx.Err() != nil
		cancel()
		switch {
		case err == nil || over:
		case errors.Is(err, tenure.ErrRolledBack):
			// The operator has restored it, and starts whoever gives up.
			w.logf("%v gives up: %v", c, err)
			if w.pristine() {
				w.wrongf("%v has ended with %v and etcd was not restored", c, err)
			}
			e = nil
			w.mu.Lock()
			c.highest = 0
			w.mu.Unlock()
			pass(c.p.ctx, time.Second)
		default:
			w.mu.Lock()
			fits := c.p.dead || c.p.leaving && errors.Is(err, tenure.ErrLeaseClosed)
			w.mu.Unlock()
			if !fits {
				w.wrongf("%v has ended: %v", c, err)
			}
			pass(c.p.ctx, time.Second)
		}
	}
}

func (c *candidate) elector() *tenure.Elector {
	w, h := c.p.w, c.p.m
	opts := &tenure.Options{
		Identity: c.String(), Lease: c.p.lease, StopTimeout: h.stop,
		Hooks: &tenure.Hooks{
			TermStarted: func(term *tenure.Term) { w.begin(c, term) },
			TermEnded:   func(term *tenure.Term, cause error) { w.end(c, term, cause) },
		},
	}
	if w.plan.twins {
		opts.Identity = "twin"
	}
	if c.p.lease == nil {
		opts.TTL, opts.Margin = w.plan.ttl, w.plan.margin
		setClocks(opts, h.clock)
	} else {
		setClocks(opts, h.clock)
	}
	e, err := tenure.New(c.p.client.Client, w.elections[c.election].key, opts)
	if err != nil {
		w.wrongf("New() = %v", err)
		return nil
	}
	return e
}

// pass waits until ctx ends or d has passed.
func pass(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (c *candidate) run(ctx context.Context, e *tenure.Elector) error {
	var last *stay
	err := e.Run(ctx, func(ctx context.Context, term *tenure.Term) error {
		s := c.p.w.begin(c, term)
		last = s
		c.work(ctx, s)
		return nil
	})
	switch {
	case err != nil:
	case last == nil:
		c.p.w.wrongf("Run has ended as if its work were done, and it has done none")
	case !errors.Is(last.term.Err(), tenure.Resigned):
		c.p.w.wrongf("Run has ended as if its work were done, and its term had ended: %v", last.term.Err())
	}
	return err
}

func (c *candidate) campaign(ctx context.Context, win func(context.Context) (*tenure.Term, error)) error {
	term, err := win(ctx)
	if err != nil {
		return err
	}
	s := c.p.w.begin(c, term)
	wctx, cancel := context.WithCancel(term.Context())
	defer cancel()
	defer context.AfterFunc(c.p.ctx, cancel)()
	c.work(wctx, s)
	c.p.w.resigns(s)
	// An unconfirmed delete is the lease's business.
	_ = term.Resign()
	return nil
}

// work does the task of a term.
func (c *candidate) work(ctx context.Context, s *stay) {
	w := c.p.w
	todo := w.plan.task(c.p.m.number, c.election, s.number)
	if w.calm() {
		todo.does, todo.every = obeys, w.plan.ttl/10
	}
	w.works(s, true)
	defer w.works(s, false)
	if todo.haunts > 0 {
		c.p.wg.Go(func() { c.haunt(s, todo) })
	}
	until := make(<-chan time.Time)
	if todo.does == returns || todo.does == resigns {
		until = time.After(todo.length)
	}
	for n := 0; ; n++ {
		w.write(s, n, true)
		w.read(s)
		w.pass(s, todo.every/8)
		select {
		case <-ctx.Done():
			if todo.does == lingers {
				for end := time.Now().Add(todo.length); time.Now().Before(end); time.Sleep(todo.every) {
					n++
					w.write(s, n, n%2 == 0)
					w.read(s)
				}
			}
			return
		case <-until:
			if todo.does == resigns {
				w.resigns(s)
				_ = s.term.Resign()
			}
			return
		case <-time.After(todo.every):
		}
	}
}

// haunt writes with the fence of the term as another process would, which knows
// nothing of the term's end.
func (c *candidate) haunt(s *stay, todo task) {
	for end := time.Now().Add(todo.haunts); time.Now().Before(end) && !c.p.w.calm(); time.Sleep(todo.every) {
		c.p.w.write(s, 0, false)
		c.p.w.pass(s, todo.every)
	}
}

package tenure

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Elector lets this process take part in one election. [Elector.Run] is what
// most services want: it campaigns, does the work for as long as the term lasts,
// and campaigns again. [Elector.Campaign] and [Elector.TryCampaign] hand out a
// [Term] to those who arrange their work themselves.
//
// An elector is in at most one campaign or term at a time; a second Run or
// Campaign beside the first returns an error. All other methods may be called
// concurrently.
type Elector struct {
	key    string
	client *clientv3.Client
	opts   Options // complete
	log    *slog.Logger
	lease  *Lease
	events queue
	sit    func() place // a place at the election, until its leave

	term atomic.Pointer[Term]

	mu      sync.Mutex
	busy    bool
	status  Status
	highest Epoch    // seen, of whatever candidate
	cool    cooldown // after letting go
	lottery lottery  // owned by the campaign
}

// place is a seat from which terms can be won.
type place interface {
	seat
	// win blocks until a term is won, until ctx ends, or until that can never
	// be.
	win(ctx context.Context, mode mode) (*Term, error)
	// leave ends the place. The terms that were won there have ended.
	leave()
}

// mode is the way in which a term is wanted.
type mode int

const (
	forRun mode = iota // the place is used again
	wait               // the place is left when the term ends
	noWait             // likewise, and another holder is an error
)

// cooldown keeps who has just let go from winning again at once, so that a hand
// over hands over.
type cooldown struct {
	epoch Epoch // cool until a higher one was seen,
	until time.Time
}

// New returns an elector for the election of key. It sends nothing. The client
// is used but never changed or closed, and neither are its log settings.
//
// All faults of the arguments are reported at once, each with the field, its
// value and its bound.
func New(client *clientv3.Client, key string, opts *Options) (*Elector, error) {
	o := opts.complete()
	err := validateClient(client)
	if key == "" {
		err = errors.Join(err, errors.New("tenure: the key is empty"))
	}
	if err := errors.Join(err, o.validate(client)); err != nil {
		return nil, err
	}
	e := newElector(key, o)
	e.client, e.lease = client, o.Lease
	if e.lease == nil {
		e.lease = newLease(client, LeaseOptions{TTL: o.TTL, Margin: o.Margin, Logger: e.log, Hooks: o.Hooks, clocks: o.clocks})
		e.lease.events = &e.events
	}
	e.sit = func() place { return newSession(e) }
	return e, nil
}

func newElector(key string, o Options) *Elector {
	return &Elector{
		key: key, opts: o, log: o.Logger.With("election", key, "identity", o.Identity),
		lottery: newLottery(), status: Status{Leader: leaderOf(key, nil), Since: time.Now()},
	}
}

// Run campaigns, and each time it wins calls work with the term and its context,
// until ctx ends or winning has become impossible. Per term work is called once,
// on Run's own goroutine, and no other term begins here before it has returned.
//
// When the term's context ends, work must return: the lease is renewed while it
// does, for up to [Options.StopTimeout], unless the term was lost, in which case
// only the margin is left. When work has returned, Run asks etcd whether the
// term still holds. If it does, Run resigns and returns the error of work, nil
// included. If it does not, or if that cannot be told, the error of work is
// logged and Run campaigns again; so too if work has resigned. If work panics,
// Run resigns and the panic goes on.
//
// Run returns the error of ctx once ctx has ended, work has returned and the key
// is given up. It returns early, with an error that says why, only for what
// cannot heal: permission denied, a wrong password, a closed client or [Lease],
// and [ErrRolledBack]. Everything else is retried, ever more slowly, every two
// seconds in the end.
func (e *Elector) Run(ctx context.Context, work func(ctx context.Context, term *Term) error) error {
	p, err := e.begin()
	if err != nil {
		return err
	}
	defer e.events.wait()
	defer e.finish(p)
	for {
		term, err := p.win(ctx, forRun)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		}
		if again, err := e.lead(ctx, term, work); !again {
			return err
		}
	}
}

// lead does the work of one term. It reports whether to campaign again.
func (e *Elector) lead(ctx context.Context, term *Term, work func(context.Context, *Term) error) (again bool, err error) {
	unhook := context.AfterFunc(ctx, func() { term.stop(ContextEnded.because(context.Cause(ctx))) })
	defer unhook()
	defer func() { // also on the way of a panic, and of runtime.Goexit
		term.stopped()
		if resignErr := term.Resign(); resignErr != nil {
			term.log.Warn("the key could not be given up; it expires", "error", resignErr)
		}
	}()
	err = work(term.Context(), term)
	term.stopped()
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if lost := term.Verify(context.WithoutCancel(ctx)); lost != nil {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		level := slog.LevelInfo
		if err != nil && !errors.Is(err, ErrTermEnded) && !errors.Is(err, ErrFenced) && !errors.Is(err, context.Canceled) {
			level = slog.LevelWarn // the loss is not what the work tells: nobody else will
		}
		term.log.Log(ctx, level, "the work has returned and its term is over or unknown: campaigning again", "reason", string(reasonOf(lost)), "error", err)
		return true, nil
	}
	// Still ours, and returned because it was asked to go, not because the work
	// is finished.
	return term.Context().Err() != nil, err
}

// Campaign blocks until it has won a term, until ctx ends, or until winning has
// become impossible, as [Elector.Run] says. The context bounds the campaign and
// not the term. A campaign that fails leaves no key behind for longer than a
// TTL, whatever answers are missing.
//
// Call [Term.Resign] when the work has stopped, also if the term was lost.
func (e *Elector) Campaign(ctx context.Context) (*Term, error) { return e.campaign(ctx, wait) }

// TryCampaign is like [Elector.Campaign] but does not wait for another
// candidate: if one holds the election it returns [ErrHeld], and [LeaderOf]
// tells who. While etcd answers it blocks for a few round trips.
func (e *Elector) TryCampaign(ctx context.Context) (*Term, error) { return e.campaign(ctx, noWait) }

func (e *Elector) campaign(ctx context.Context, m mode) (*Term, error) {
	p, err := e.begin()
	if err != nil {
		return nil, err
	}
	term, err := p.win(ctx, m)
	if err != nil {
		e.finish(p)
		return nil, err
	}
	return term, nil // whose goroutine finishes
}

var errBusy = errors.New("tenure: the elector is already in a campaign or a term")

// begin takes the elector for one campaign or one Run.
func (e *Elector) begin() (place, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.busy {
		return nil, errBusy
	}
	e.busy = true
	return e.sit(), nil
}

func (e *Elector) finish(p place) {
	p.leave()
	e.publish(Status{State: Idle, Leader: leaderOf(e.key, nil)})
	e.mu.Lock()
	defer e.mu.Unlock()
	e.busy = false
}

// Term returns the present term, or nil if this process holds none at this
// moment. It is for code outside of Run: handlers, cron jobs, other schedulers.
func (e *Elector) Term() *Term {
	if t := e.term.Load(); t != nil && t.Valid() {
		return t
	}
	return nil
}

func (e *Elector) newTerm(ctx context.Context, seat seat, fence Fence, candidate string, gen *generation) *Term {
	t := &Term{
		fence: fence, candidate: candidate, gen: gen, seat: seat, opts: &e.opts, events: &e.events,
		log:  e.log.With("epoch", int64(fence.Epoch), "lease", leaseText(fence.Lease)),
		free: make(chan struct{}), done: make(chan struct{}), resigning: make(chan struct{}, 1),
	}
	t.owed.Store(true)
	t.ctx, t.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	t.life, t.ended = context.WithCancel(context.Background())
	return t
}

// won makes t the present term.
func (e *Elector) won(t *Term) {
	e.saw(t.Epoch())
	e.term.Store(t)
	t.log.Info("the term has started")
}

// lost makes room for the next term. Who has let go waits a little before it
// contends again, so that another candidate can take over; who has merely lost
// its lease does not.
func (e *Elector) lost(t *Term) {
	e.term.Store(nil)
	switch reasonOf(t.Err()) {
	case Resigned, Evicted, ContextEnded, KeyDeleted, KeyReplaced:
		e.mu.Lock()
		defer e.mu.Unlock()
		e.cool = cooldown{epoch: t.Epoch(), until: time.Now().Add(t.gen.ttl / 3)}
	}
}

// cooling returns until when this elector must not contend.
func (e *Elector) cooling() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.highest > e.cool.epoch {
		return time.Time{}
	}
	return e.cool.until
}

// warm ends the cooldown.
func (e *Elector) warm() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cool = cooldown{}
}

// saw notes the epoch of a term, whoever's.
func (e *Elector) saw(epoch Epoch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.highest = max(e.highest, epoch)
}

// floor is the epoch that one of ours must be above.
func (e *Elector) floor() Epoch {
	e.mu.Lock()
	defer e.mu.Unlock()
	return max(e.highest, e.opts.MinEpoch)
}

package tenure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Term is one unbroken hold of an election by one candidate. It exists only
// after winning and never comes back once it has ended; a new hold is a new
// Term, with a greater [Epoch].
//
// Two things end apart. The context ends when the work must stop: at a loss, or
// when this process is asked to let go. The validity ends when nobody here may
// claim the election any longer: at a loss, or at [Term.Resign]. While the work
// stops in order, between the two, the lease is still renewed and the term
// valid.
//
// Most callers pass [Term.Context] to everything they do, write through
// [Term.KV] or with [Term.Fence], and ask [Term.Valid] before an effect that
// carries no fence. All methods may be called concurrently.
type Term struct {
	fence     Fence
	candidate string // the id in the key's record, which makes it ours
	gen       *generation
	seat      seat
	opts      *Options
	events    *queue
	log       *slog.Logger
	inRun     bool // Run knows when the work has returned; otherwise Resign says so

	ctx    context.Context // the work's
	cancel context.CancelCauseFunc
	life   context.Context // ends with the validity
	ended  context.CancelFunc
	free   chan struct{} // closed when the key may be given up: the work has stopped
	done   chan struct{} // closed when the goroutine that watches the key has ended

	over   atomic.Bool             // the validity has ended, whatever the clocks say
	frozen atomic.Pointer[instant] // a limit that no renewal moves; nil: there is none
	owed   atomic.Bool             // the key may still stand, and nothing but us removes it
	gone   atomic.Int64            // the revision at which we have removed it, if known

	mu       sync.Mutex
	cause    error       // why the validity ended
	stopping bool        // the context has ended
	idle     bool        // the work has returned
	overstay *time.Timer // runs for StopTimeout while stopping and not idle

	resigning chan struct{} // of capacity 1: full while the key is given up, and for closing free
}

// seat is the place of a candidate at its election, as its term needs it. Where
// the lease is kept in etcd, that is a session.
type seat interface {
	// verify returns a reason if the term no longer holds the election, another
	// error if that cannot be told, and nil if it does.
	verify(ctx context.Context, t *Term) error
	// release gives the election up and returns nil when that is certain.
	release(t *Term) error
	// announce publishes the record of the term with another address and
	// metadata.
	announce(ctx context.Context, t *Term, address string, metadata map[string]string) error
	// abandon sees to it that the term is renewed no longer and that nobody else
	// wins before its lease would have run out.
	abandon(t *Term)
}

// Epoch returns the number of the term. It is greater than that of every earlier
// term of this election, and never 0.
func (t *Term) Epoch() Epoch { return t.fence.Epoch }

// Fence returns what writes of this term carry.
func (t *Term) Fence() Fence { return t.fence }

// Context returns the context of the term's work. It ends when the work must
// stop, and its cause tells why: a [Reason], perhaps with a detail. While this
// process runs, that is before another candidate can win; after a pause of the
// process it is late, and only [Term.Valid] can be relied on. It carries the
// values, but not the deadline, of the context given to [Elector.Run] or
// [Elector.Campaign].
func (t *Term) Context() context.Context { return t.ctx }

// Valid reports whether the term holds at this moment, by the local clocks alone
// and without a round trip. It turns false by itself when
//
//	valid until = (instant before the last counted renewal was sent) + granted TTL − margin
//
// has come on the monotonic or on the wall clock, even if no goroutine of this
// process has run since. True means that no other candidate holds the election,
// as far as the two clock rates differ by less than the margin allows and nobody
// interferes with the key. It is advice, not a fence: it can turn false right
// after it was asked.
func (t *Term) Valid() bool {
	now, limit := t.opts.clocks(), t.gen.limit.Load()
	if !now.before(*limit) {
		// A wall clock that is set right again, or a renewal that counts at this
		// very moment, must not bring back what the caller was told is over.
		t.gen.passed.Store(true)
	}
	return t.validAt(now)
}

// ValidAt is like [Term.Valid] for the instant at, which should come from
// [time.Now] so that it carries both clocks.
func (t *Term) ValidAt(at time.Time) bool { return t.validAt(instantAt(at)) }

func (t *Term) validAt(now instant) bool {
	return now.before(t.limit()) && !t.gen.passed.Load() && !t.over.Load()
}

// ValidUntil returns the instant at which the term ends unless a renewal moves
// it, by the local clock. For a term that has ended it is in the past.
func (t *Term) ValidUntil() time.Time {
	limit := t.limit().mono
	if t.over.Load() || t.gen.passed.Load() {
		if now := t.opts.clocks().mono; now.Before(limit) {
			return now // the lease may outlive the term; the term does not come back
		}
	}
	return limit
}

// limit is the instant before which the term is valid, unless it is over.
func (t *Term) limit() instant {
	limit := t.gen.limit.Load()
	if frozen := t.frozen.Load(); frozen != nil && frozen.mono.Before(limit.mono) {
		limit = frozen
	}
	return *limit
}

// Verify asks etcd, in one linearizable round trip, whether this term holds the
// election. It returns nil if it does and is valid by the clock as well; an
// [ErrTermEnded] with the [Reason] if it does not, in which case the term has
// ended; or, if no answer came before ctx ended or a few seconds passed, the
// error of the request, which tells nothing about the term.
func (t *Term) Verify(ctx context.Context) error {
	if err := t.Err(); err != nil {
		return err
	}
	if err := t.seat.verify(ctx, t); err != nil {
		if reasonOf(err) != "" {
			t.end(err)
			return t.Err()
		}
		return err
	}
	return t.Err()
}

// Err returns nil while the term is valid, and afterwards why it ended, as
// [context.Cause] of [Term.Context] does unless the work was told to stop for
// another reason before.
func (t *Term) Err() error {
	if t.Valid() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cause == nil {
		return LeaseExpired // the clock knows before any goroutine does
	}
	return t.cause
}

// KV returns kv with every write guarded by the term's [Fence], as [Fence.KV]
// does, that in addition refuses at once, with [ErrTermEnded] and the [Reason],
// when the term is not valid here, and that ends the term, with the reason
// [Fenced], when etcd refuses its fence. Writes that were sent before the term
// ended may still be applied, as long as no other term has begun.
func (t *Term) KV(kv clientv3.KV) clientv3.KV {
	return newGuardedKV(t.fence, kv, t.Err, func() { t.end(Fenced) })
}

// Announce publishes another address and other metadata with the leadership,
// without a new election. It blocks for one round trip as a rule, and at most
// until ctx ends or a few seconds have passed. It returns [ErrTermEnded] with the
// reason if the term does not hold the election any more, [ErrUnknownOutcome] if
// the answer is missing, and an error that names the fault if the record would
// be larger than 64 KiB or is not valid UTF-8.
func (t *Term) Announce(ctx context.Context, address string, metadata map[string]string) error {
	if err := t.Err(); err != nil {
		return err
	}
	if err := errors.Join(validateText("Announce: ", "", address, metadata)...); err != nil {
		return err
	}
	err := t.seat.announce(ctx, t, address, metadata)
	if reasonOf(err) != "" {
		t.end(err)
	}
	return err
}

// Resign ends the term on purpose: its context, then its validity, then the key
// in etcd, so that another candidate can take over at once. Call it when the
// work has stopped; [Elector.Run] does so by itself. It is right to call it
// always, and more than once: on a term that was lost it cleans up what is left.
// So that another candidate can win, this elector's next campaign, unless it is a
// [Elector.TryCampaign], contends only after a third of the TTL or after another
// term.
//
// It blocks until the key is gone, or until two seconds have passed, or a TTL if
// that is shorter. Then it returns [ErrUnknownOutcome], the key lives on for at
// most a TTL, and Resign may be called again. It takes no context, since it has
// to work when those of its caller have ended.
func (t *Term) Resign() error {
	t.stop(Resigned)
	if !t.inRun {
		t.stopped()
	}
	// Before the delete is sent: from then on another can win. What told the
	// work to stop, such as an eviction, is the reason.
	t.end(context.Cause(t.ctx))
	err := t.giveUp()
	<-t.done
	return err
}

// giveUp removes what may still stand of the term in etcd.
func (t *Term) giveUp() error {
	t.resigning <- struct{}{}
	defer func() { <-t.resigning }()
	select {
	case <-t.free:
	default:
		defer close(t.free)
	}
	if !t.owed.Load() {
		return nil
	}
	if err := t.seat.release(t); err != nil {
		return err
	}
	t.owed.Store(false)
	return nil
}

// start makes the term one that has begun, if admit agrees, before anything can
// end it.
func (t *Term) start(admit func() bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !admit() {
		return false
	}
	if hook := t.opts.Hooks.TermStarted; hook != nil {
		t.events.add(func() { hook(t) })
	}
	return true
}

// discard releases the contexts of a term that never began.
func (t *Term) discard() {
	t.over.Store(true)
	t.cancel(nil)
	t.ended()
}

// stop ends the context of the work. The term stays valid and renewed.
func (t *Term) stop(cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopLocked(cause)
}

func (t *Term) stopLocked(cause error) {
	if t.stopping {
		return
	}
	t.stopping = true
	t.cancel(cause)
	if !t.idle {
		t.overstay = time.AfterFunc(t.opts.StopTimeout, t.overstayed)
	}
}

// stopped tells that the work has returned.
func (t *Term) stopped() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.idle = true
	if t.overstay != nil {
		t.overstay.Stop()
	}
}

// overstayed is called when the work has not stopped within StopTimeout.
func (t *Term) overstayed() {
	t.log.Error("the work goes on after its term's context has ended", "after", t.opts.StopTimeout, "reason", string(reasonOf(context.Cause(t.ctx))))
	if hook := t.opts.Hooks.Overstayed; hook != nil {
		t.events.add(func() { hook(t) })
	}
	if !t.over.Load() {
		t.seat.abandon(t)
	}
	if t.opts.ExitOnStopTimeout {
		// The hooks may tell somebody, while the key is safe from others.
		timer := time.NewTimer(min(t.opts.clocks().until(t.limit()), time.Second))
		defer timer.Stop()
		select {
		case <-t.events.drained():
		case <-timer.C:
		}
		os.Exit(1)
	}
}

// end ends the validity, for good. The first cause stands.
func (t *Term) end(cause error) {
	t.mu.Lock()
	if t.over.Load() {
		t.mu.Unlock()
		return
	}
	// Valid must be false before anything else can be seen of the end.
	t.over.Store(true)
	t.cause = cause
	if reasonOf(cause) == KeyDeleted {
		t.owed.Store(false)
	}
	t.stopLocked(cause)
	// Before anybody can go on to the next term, or return from Run, which
	// waits for the hooks.
	if hook := t.opts.Hooks.TermEnded; hook != nil {
		t.events.add(func() { hook(t, cause) })
	}
	t.ended()
	t.mu.Unlock()
	t.log.Info("the term has ended", "reason", string(reasonOf(cause)), "error", cause)
}

// expiring is called when the validity runs out.
func (t *Term) expiring(left time.Duration) {
	t.log.Warn("the validity of the term is running out", "left", left)
	if hook := t.opts.Hooks.Expiring; hook != nil {
		t.events.add(func() { hook(t, left) })
	}
}

// String returns the fence's text form.
func (t *Term) String() string { return fmt.Sprintf("term %v", t.fence) }

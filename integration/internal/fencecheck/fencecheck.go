// Package fencecheck drives a resource that is guarded by fences through random
// interleavings of many writers with rising epochs, and checks what came out.
//
// A resource under test is a log. [Drive] lets writers append to it, raises the
// epoch now and then, keeps zombies of earlier terms writing, pauses between
// check and write, cuts connections and restarts the server, and records what
// each writer was told and what each reader saw. [History.Check] then asks for
// the fence's promise:
//
//   - No value of a lower epoch follows one of a higher epoch, nor becomes
//     visible after a read that showed a higher one, nor after a seal. No epoch
//     shows values of two leases.
//   - Nothing acknowledged is lost or doubled.
//   - Nothing refused is visible.
//   - Nothing is refused that no other term stood against.
package fencecheck

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
)

// Key is the election whose fences a run uses.
const Key = "/fencecheck/leader"

// Resource is a log that only grows, guarded by a fence. Its methods are called
// concurrently.
type Resource interface {
	// Append adds value, or refuses with [tenure.ErrFenced]. Any other error
	// says that the outcome is unknown. It calls [Between] after its check and
	// before its write.
	Append(ctx context.Context, fence tenure.Fence, value string) error

	// Read returns the log in its order, as it stands at one instant between
	// the call and the return.
	Read(ctx context.Context) ([]string, error)
}

// Sealer is a [Resource] that can take note of a fence without a write.
type Sealer interface {
	Seal(ctx context.Context, fence tenure.Fence) error
}

// Between is where Append calls back between its check and its write. It pauses
// there for as long as the run wants, and reports whether the connection should
// be cut now. Outside a run it does nothing.
func Between(ctx context.Context) (cut bool) {
	fault, _ := ctx.Value(betweenKey{}).(func() bool)
	return fault != nil && fault()
}

type betweenKey struct{}

// Options are the faults and the size of a run.
type Options struct {
	Writes  int    // the run ends when this many have been acknowledged; 10,000 if 0
	Writers int    // at once; 16 if 0
	Seed    uint64 // random if 0
	Spell   int    // about how many writes there are to a term, over all writers; 20 for each writer if 0

	Cut     bool         // let Between ask for a cut now and then
	Restart func() error // called at a third and at two thirds of the run; nil for never
}

// Run drives r and fails t if the history breaks the promise. It prints the seed.
func Run(t *testing.T, r Resource, o Options) *History {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	h, err := Drive(ctx, r, o)
	t.Log(h)
	if err != nil {
		t.Fatalf("the run did not come to its end: %v", err)
	}
	if err := h.Check(); err != nil {
		t.Fatalf("%v\n%v", h, err)
	}
	return h
}

// Outcome is what a writer was told.
type Outcome int

// What a writer was told.
const (
	Unknown Outcome = iota
	Acknowledged
	Refused
)

// Write is one call of Append.
type Write struct {
	Fence   tenure.Fence
	Value   string
	Outcome Outcome
	Rival   bool // another term had begun to write before the answer came
}

// Look is one call of Read.
type Look struct {
	Sealed   tenure.Epoch // acknowledged as sealed before the read began; 0 for none
	Answered int          // how many of the writes had been answered before the read began
	Values   []string
}

// History is what a run has recorded.
type History struct {
	Seed     uint64
	Writes   []Write // in the order of the answers
	Looks    []Look
	Final    []string
	Epochs   int   // how many terms there were
	Restarts int   // how many times the server was restarted
	Trouble  error // one of the errors behind the unknown outcomes
}

// String sums h up on one line.
func (h *History) String() string {
	var n [3]int
	for _, w := range h.Writes {
		n[w.Outcome]++
	}
	return fmt.Sprintf("seed %d: %d acknowledged, %d refused, %d unknown (such as: %v), %d terms, %d reads, %d restarts",
		h.Seed, n[Acknowledged], n[Refused], n[Unknown], h.Trouble, h.Epochs, len(h.Looks), h.Restarts)
}

// run is the state that the writers share.
type run struct {
	resource Resource
	options  Options
	acked    atomic.Int64

	mu      sync.Mutex
	history *History
	terms   []tenure.Fence // begun, in rising order; the last one leads
}

// Drive lets writers loose on r until enough writes have been acknowledged. An
// error says that this did not happen before ctx ended, or that the run itself
// has failed; the history is what was seen until then.
func Drive(ctx context.Context, r Resource, o Options) (*History, error) {
	if o.Writes == 0 {
		o.Writes = 10_000
	}
	if o.Writers == 0 {
		o.Writers = 16
	}
	if o.Spell == 0 {
		o.Spell = 20 * o.Writers
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	d := &run{resource: r, options: o, history: &History{Seed: o.Seed}}
	d.terms = []tenure.Fence{{Key: Key, Epoch: 1, Lease: 1}}

	group, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var workers sync.WaitGroup
	for i := range o.Writers {
		rng := rand.New(rand.NewPCG(o.Seed, uint64(i)))
		workers.Go(func() {
			if err := d.write(group, i, rng); err != nil {
				stop(err)
			}
		})
	}
	if o.Restart != nil {
		workers.Go(func() {
			if err := d.restart(group); err != nil {
				stop(fmt.Errorf("restart: %w", err))
			}
		})
	}
	workers.Wait()
	d.history.Epochs = len(d.terms)
	if err := context.Cause(group); err != nil {
		return d.history, err
	}
	final, err := r.Read(ctx)
	d.history.Final = final
	return d.history, err
}

func (d *run) done() bool { return d.acked.Load() >= int64(d.options.Writes) }

// restart restarts the server at a third and at two thirds of the run.
func (d *run) restart(ctx context.Context) error {
	for i := 1; i <= 2; i++ {
		for d.acked.Load() < int64(d.options.Writes*i/3) {
			if err := pause(ctx, time.Millisecond); err != nil {
				return nil // whoever stopped the run says why
			}
		}
		if err := d.options.Restart(); err != nil {
			return err
		}
		d.history.Restarts++ // read after all have ended
	}
	return nil
}

// write is one writer: it writes for some term for a while, then for another.
func (d *run) write(ctx context.Context, id int, rng *rand.Rand) error {
	fence := d.term(rng)
	for n := 0; !d.done(); n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		switch {
		case rng.IntN(d.options.Spell) == 0: // a new term begins
			fence = d.begin(rng)
			if sealer, ok := d.resource.(Sealer); ok && rng.IntN(2) == 0 {
				if err := sealer.Seal(ctx, fence); err == nil {
					if err := d.look(ctx, fence.Epoch); err != nil {
						return err
					}
				}
			}

		case rng.IntN(20) == 0:
			fence = d.term(rng)

		case rng.IntN(500) == 0:
			if err := d.look(ctx, 0); err != nil {
				return err
			}
		}
		w := Write{Fence: fence, Value: fmt.Sprintf("%d.%d.%d.%d", fence.Epoch, fence.Lease, id, n)}
		attempt, cancel := context.WithTimeout(context.WithValue(ctx, betweenKey{}, d.fault(ctx, rng)), 20*time.Second)
		err := d.resource.Append(attempt, fence, w.Value)
		cancel()
		d.record(w, err)
		switch {
		case err == nil:
			d.acked.Add(1)

		case errors.Is(err, tenure.ErrFenced):
			fence = d.term(rng)

		default: // the server may be away
			if err := pause(ctx, time.Duration(rng.IntN(int(5*time.Millisecond)))); err != nil {
				return err
			}
		}
	}
	return nil
}

// fault is what happens between the check and the write of one Append.
func (d *run) fault(ctx context.Context, rng *rand.Rand) func() bool {
	wait := time.Duration(0)
	if rng.IntN(20) == 0 {
		wait = time.Duration(rng.IntN(int(3 * time.Millisecond)))
	}
	cut := d.options.Cut && rng.IntN(200) == 0
	return func() bool {
		return wait > 0 && pause(ctx, wait) != nil || cut
	}
}

// begin starts a term. One in ten is what a careless restore of etcd produces:
// the epoch of the last one again, on another lease.
func (d *run) begin(rng *rand.Rand) tenure.Fence {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := d.terms[len(d.terms)-1]
	next.Lease = clientv3.LeaseID(len(d.terms) + 1)
	if rng.IntN(10) > 0 {
		next.Epoch += tenure.Epoch(1 + rng.IntN(1000))
	}
	d.terms = append(d.terms, next)
	return next
}

// term picks the leading term mostly, else one of those before it.
func (d *run) term(rng *rand.Rand) tenure.Fence {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := len(d.terms) - 1
	if rng.IntN(4) == 0 {
		last -= rng.IntN(min(4, len(d.terms)))
	}
	return d.terms[last]
}

func (d *run) record(w Write, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err == nil:
		w.Outcome = Acknowledged

	case errors.Is(err, tenure.ErrFenced):
		w.Outcome = Refused
		for _, term := range d.terms {
			w.Rival = w.Rival || term != w.Fence && term.Epoch >= w.Fence.Epoch
		}

	default:
		d.history.Trouble = err
	}
	d.history.Writes = append(d.history.Writes, w)
}

// look reads the log. A read that fails has seen nothing; a server that has been
// restarted may refuse it.
func (d *run) look(ctx context.Context, sealed tenure.Epoch) error {
	d.mu.Lock()
	answered := len(d.history.Writes)
	d.mu.Unlock()
	values, err := d.resource.Read(ctx)
	if err != nil {
		return ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.history.Looks = append(d.history.Looks, Look{Sealed: sealed, Answered: answered, Values: values})
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()

	case <-time.After(d):
		return nil
	}
}

// entry is a value of the log, taken apart.
type entry struct {
	value string
	epoch tenure.Epoch
	lease string
}

func parse(values []string) ([]entry, error) {
	entries := make([]entry, len(values))
	for i, v := range values {
		parts := strings.Split(v, ".")
		epoch, err := strconv.ParseInt(parts[0], 10, 64)
		if err != nil || len(parts) != 4 {
			return nil, fmt.Errorf("the log holds %q, which nobody wrote", v)
		}
		entries[i] = entry{value: v, epoch: tenure.Epoch(epoch), lease: parts[1]}
	}
	return entries, nil
}

// Check returns every kind of fault that h shows, with one example of each, or nil.
func (h *History) Check() error {
	final, err := parse(h.Final)
	if err != nil {
		return err
	}
	return errors.Join(h.checkOrder(final), h.checkOutcomes(final), h.checkLooks(final))
}

// checkOrder asks that epochs never fall, and that each has one lease.
func (h *History) checkOrder(final []entry) error {
	for i := 1; i < len(final); i++ {
		before, after := final[i-1], final[i]
		if after.epoch < before.epoch || after.epoch == before.epoch && after.lease != before.lease {
			return fmt.Errorf("order: %s stands after %s", after.value, before.value)
		}
	}
	return nil
}

// checkOutcomes asks that the log holds what was acknowledged, once, and nothing
// that was refused, and that there was a reason to refuse.
func (h *History) checkOutcomes(final []entry) error {
	count := make(map[string]int, len(final))
	var doubled, lost, visible, wrongly error
	for _, e := range final {
		if count[e.value]++; count[e.value] > 1 {
			doubled = fmt.Errorf("doubled: %s stands there twice", e.value)
		}
	}
	for _, w := range h.Writes {
		switch {
		case w.Outcome == Acknowledged && count[w.Value] == 0:
			lost = fmt.Errorf("lost: %s was acknowledged and is not there", w.Value)
		case w.Outcome == Refused && count[w.Value] > 0:
			visible = fmt.Errorf("visible: %s was refused and is there", w.Value)
		case w.Outcome == Refused && !w.Rival:
			wrongly = fmt.Errorf("wrongly: %s was refused and no other term stood against it", w.Value)
		}
	}
	return errors.Join(doubled, lost, visible, wrongly)
}

// checkLooks asks each read whether it still holds: once a higher epoch was
// visible or sealed, no lower one was added; what was acknowledged was there.
func (h *History) checkLooks(final []entry) error {
	var late, missing, gone error
	for _, look := range h.Looks {
		seen, err := parse(look.Values)
		if err != nil {
			return err
		}
		floor := look.Sealed
		there := make(map[string]bool, len(seen))
		for _, e := range seen {
			floor = max(floor, e.epoch)
			there[e.value] = true
		}
		for _, w := range h.Writes[:look.Answered] {
			if w.Outcome == Acknowledged && !there[w.Value] {
				missing = fmt.Errorf("missing: %s was acknowledged and a later read did not show it", w.Value)
			}
		}
		for _, e := range final {
			if e.epoch < floor && !there[e.value] {
				late = fmt.Errorf("late: %s came after a read had shown or a seal had taken epoch %d", e.value, floor)
			}
			delete(there, e.value)
		}
		for value := range there {
			gone = fmt.Errorf("gone: %s was there once", value)
		}
	}
	return errors.Join(late, missing, gone)
}

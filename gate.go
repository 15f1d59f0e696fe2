package tenure

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Gate is the check at a resource, in the memory of the process that owns the
// resource. It admits work that carries a [Fence] and remembers the highest
// epoch that it has seen:
//
//   - The same fence again enters at once, beside those inside.
//   - A higher epoch shuts out every lower one from this moment, cancels the
//     contexts of those inside, and enters when the last of them has left.
//   - A lower epoch, or the same epoch on another lease, is refused with
//     [ErrFenced].
//
// So work of an older term never runs beside or after work of a newer one. To
// check first and to act later is not a fence: act between [Gate.Enter] and
// leave, and stop when the context that Enter returns ends.
//
// A gate made by [NewGate] forgets what it knew when its process ends, and a new
// one believes the first fence that it sees. One made by [NewGateWith] asks a
// [GateMemory] before it believes a fence. All methods may be called
// concurrently.
type Gate struct {
	key    string
	memory GateMemory // nil: none

	mu     sync.Mutex
	have   Fence             // the highest fence known; the zero Fence before the first
	sealed Fence             // the last one that memory has sealed for this gate
	asking map[Fence]*answer // what memory is being asked
	term   Fence             // of all those inside
	inside *visit            // those inside, in a list
	change chan struct{}     // closed when have rises or the last older visit leaves; nil if nobody waits
}

// visit is one Enter that has not left.
type visit struct {
	cancel     context.CancelCauseFunc
	left       bool
	prev, next *visit
}

// NewGate returns a gate for the election of key. It has seen no epoch yet.
func NewGate(key string) *Gate { return &Gate{key: key} }

// Key returns the key of the gate's election.
func (g *Gate) Key() string { return g.key }

// Enter admits one piece of work that carries fence. It blocks while work of an
// older epoch is still inside, until that has left, ctx ends, or a yet higher
// epoch comes along; while a memory is asked about a fence that is new to the
// gate; and not at all otherwise.
//
// On success the work runs under the returned context, which ends with ctx or,
// with [ErrFenced] as its cause, when a higher epoch comes; leave must be called
// when the work has ended, may be called more than once, and never blocks. On
// an error nothing was admitted: [ErrFenced] if the fence is older than what the
// gate or its memory has seen, the error of ctx or of the memory, or a
// description of a fence that is not valid or belongs to another key. A fence
// that gives up waiting for others to leave has nevertheless been seen: what is
// older stays shut out.
func (g *Gate) Enter(ctx context.Context, fence Fence) (work context.Context, leave func(), err error) {
	if err := fence.Validate(); err != nil {
		return nil, nil, err
	}
	if fence.Key != g.key {
		return nil, nil, fmt.Errorf("tenure: a fence of %q at a gate of %q", fence.Key, g.key)
	}
	g.mu.Lock()
	for {
		later := order(g.have, fence)
		if later < 0 {
			err := g.refusalLocked()
			g.mu.Unlock()
			return nil, nil, err
		}
		if g.memory != nil && fence != g.sealed {
			g.mu.Unlock()
			if err := g.ask(ctx, fence); err != nil {
				return nil, nil, err
			}
			g.mu.Lock()
			continue // a yet higher epoch may have come meanwhile
		}
		if later > 0 {
			g.raiseLocked(fence)
		}
		if !g.olderInsideLocked() {
			break
		}
		if g.change == nil {
			g.change = make(chan struct{})
		}
		change := g.change
		g.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()

		case <-change:
		}
		g.mu.Lock()
	}
	defer g.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	work, cancel := context.WithCancelCause(ctx)
	v := &visit{cancel: cancel, next: g.inside}
	if v.next != nil {
		v.next.prev = v
	}
	g.inside, g.term = v, fence
	return work, func() { g.leave(v) }, nil
}

// Seal shuts out every epoch below fence's and waits until the work of those
// has left, under the same rules as [Gate.Enter]. A new leader seals before it
// reads the state that it will build on: until then a write of its predecessor
// may still be on its way, and would be accepted.
func (g *Gate) Seal(ctx context.Context, fence Fence) error {
	_, leave, err := g.Enter(ctx, fence)
	if err != nil {
		return err
	}
	leave()
	return nil
}

var errLeft = errors.New("tenure: the work has left the gate")

func (g *Gate) leave(v *visit) {
	v.cancel(errLeft)
	g.mu.Lock()
	defer g.mu.Unlock()
	if v.left {
		return
	}
	v.left = true
	if v.prev != nil {
		v.prev.next = v.next
	} else {
		g.inside = v.next
	}
	if v.next != nil {
		v.next.prev = v.prev
	}
	if !g.olderInsideLocked() {
		g.signalLocked()
	}
}

// raiseLocked makes fence, which is later, the highest that is known: it shuts
// out all others, and asks those inside to leave.
func (g *Gate) raiseLocked(fence Fence) {
	g.have = fence
	for v := g.inside; v != nil; v = v.next {
		v.cancel(g.refusalLocked())
	}
	g.signalLocked() // those who waited with a lower epoch are refused now
}

// olderInsideLocked reports whether work of another term than the newest is
// still inside. Nobody enters while that is so, hence all inside are of one
// term.
func (g *Gate) olderInsideLocked() bool {
	return g.inside != nil && g.term != g.have
}

func (g *Gate) signalLocked() {
	if g.change != nil {
		close(g.change)
		g.change = nil
	}
}

func (g *Gate) refusalLocked() error {
	return &leaderError{err: ErrFenced, leader: Leader{Fence: g.have}}
}

package tenure

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// GateMemory is what a [Gate] asks before it believes a fence, so that it knows
// after a restart what it knew before, or so that it believes nobody who made a
// fence up. [EtcdMemory] is one; another may keep the highest fence of each key
// in a database.
//
// It adds to what the gate knows, and replaces nothing: the gate must still be
// the only door to its resource. Several gates on one memory shut out what is
// older each for itself, when they are next asked about something new; until
// then work of an older term may be inside one while work of a newer one is
// inside another. Where several processes write to one resource, let the
// resource compare the fence in the transaction that writes.
type GateMemory interface {
	// Seal records fence and answers nil if no later fence of the same key was
	// ever recorded, in one atomic step: of two fences that are sealed at once,
	// the earlier is never the last to be told nil. What is recorded must outlive
	// the process. To seal a fence again is allowed.
	//
	// It returns [ErrFenced], and records nothing, if fence is older than what
	// is recorded, or of the same epoch on another lease; made by [FencedBy], the
	// error tells what that is, and the gate then shuts out all that is older.
	// Any other error says that it could not be told: the gate refuses the fence
	// with that error and asks again when it comes again.
	//
	// The gate asks about one fence once at a time, about different ones
	// concurrently, and waits as long as Seal does. Seal ends when ctx ends, and
	// bounds the requests that it makes: ctx may have no deadline.
	Seal(ctx context.Context, fence Fence) error
}

// NewGateWith returns a gate for the election of key that asks memory before it
// believes a fence: about each fence once, as long as no other comes between. A
// gate whose memory is out of reach refuses every fence but the one that it
// sealed last; it never guesses. It panics if memory is nil, which would be a
// gate that forgets.
func NewGateWith(key string, memory GateMemory) *Gate {
	if memory == nil {
		panic("tenure: NewGateWith without a memory; NewGate returns a gate that has none")
	}
	return &Gate{key: key, memory: memory, asking: make(map[Fence]*answer)}
}

// FencedBy returns the [ErrFenced] of a resource that refuses a fence because it
// has accepted another one, which [LeaderOf] then tells. It is for resources and
// memories that this package does not know.
func FencedBy(accepted Fence) error {
	return &leaderError{err: ErrFenced, leader: Leader{Fence: accepted}}
}

// answer is what a gate's memory says about one fence.
type answer struct {
	come chan struct{} // closed when there is an answer, or will be none
	err  error         // nil also if there was none: to be asked again
}

// ask asks the memory about fence, or waits for the answer to somebody else who
// has asked. It returns nil if fence may have been sealed: the caller looks
// again.
func (g *Gate) ask(ctx context.Context, fence Fence) error {
	g.mu.Lock()
	if a := g.asking[fence]; a != nil {
		g.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()

		case <-a.come:
			return a.err
		}
	}
	a := &answer{come: make(chan struct{})}
	g.asking[fence] = a
	g.mu.Unlock()
	defer func() { // also when the memory panics: others must not wait for ever
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.asking, fence)
		close(a.come)
	}()

	err := g.memory.Seal(ctx, fence)
	g.mu.Lock()
	defer g.mu.Unlock()
	leader, named := LeaderOf(err)
	switch {
	case err == nil:
		// A later fence may have been sealed since the memory answered. Then
		// this one is as old as if it had come now.
		if order(g.have, fence) >= 0 {
			g.sealed = fence
			g.learnLocked(fence)
		}

	case errors.Is(err, ErrFenced):
		a.err = err
		// The memory knows a later term, so older work inside has to leave. Its
		// own work is not admitted on hearsay: it is asked about when it comes.
		if named && leader.Fence.Key == g.key && leader.Fence.Validate() == nil {
			g.learnLocked(leader.Fence)
		}

	case ctx.Err() == nil:
		a.err = err
	} // otherwise it was only the asker who gave up, and the next one asks
	return err
}

// learnLocked raises what the gate knows to fence if that is later.
func (g *Gate) learnLocked(fence Fence) {
	if order(g.have, fence) > 0 {
		g.raiseLocked(fence)
	}
}

// EtcdMemory returns a memory that asks etcd, in one linearizable read through
// client for each fence that is new to the gate, and seals only the fence that
// holds its election at that moment, by epoch and lease. It is for gates whose
// senders may not be trusted: an invented epoch shuts nobody out. It keeps
// nothing itself, and a gate that was restarted is as well off as any.
//
// A fence that the gate has let in stays let in until a later one comes, even
// when its term has ended. A term that has ended before its fence first comes is
// refused, with [ErrFenced] and the holder of the election, if it has one. When
// etcd was restored from a snapshot without bumping its revision, epochs repeat,
// and only a gate that was not restarted remembers the higher ones.
//
// Each answer takes one round trip as a rule, and comes within a few seconds or
// is an error. client needs the permission to read the election's key.
func EtcdMemory(client *clientv3.Client) GateMemory { return etcdMemory{client} }

type etcdMemory struct{ client *clientv3.Client }

func (m etcdMemory) Seal(ctx context.Context, fence Fence) error {
	leader, err := Lookup(ctx, m.client, fence.Key)
	switch {
	case errors.Is(err, ErrNoLeader):
		return FencedBy(Fence{Key: fence.Key})
	case err != nil:
		return fmt.Errorf("tenure: the gate cannot tell who leads: %w", err)
	case leader.Fence != fence:
		return &leaderError{err: ErrFenced, leader: leader}
	}
	return nil
}

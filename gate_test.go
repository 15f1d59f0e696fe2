package tenure_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure"
)

// fenceOf is the fence of a term of the tests' election, on the same lease for all.
func fenceOf(epoch tenure.Epoch) tenure.Fence {
	return tenure.Fence{Key: key, Epoch: epoch, Lease: 100}
}

// entry is a call of Enter that may have to wait.
type entry struct {
	work  context.Context
	leave func()
	err   error
	done  bool
}

// entering starts an Enter on a goroutine of its own and lets it come as far as
// it can. The entry may be read after synctest.Wait.
func entering(ctx context.Context, gate *tenure.Gate, fence tenure.Fence) *entry {
	e := new(entry)
	go func() {
		e.work, e.leave, e.err = gate.Enter(ctx, fence)
		e.done = true
	}()
	synctest.Wait()
	return e
}

func mustEnter(t *testing.T, gate *tenure.Gate, fence tenure.Fence) (work context.Context, leave func()) {
	t.Helper()
	work, leave, err := gate.Enter(t.Context(), fence)
	require.NoError(t, err)
	require.NoError(t, work.Err())
	return work, leave
}

// requireFenced checks a refusal by a gate whose highest fence is have.
func requireFenced(t *testing.T, err error, have tenure.Fence) {
	t.Helper()
	require.ErrorIs(t, err, tenure.ErrFenced)
	leader, ok := tenure.LeaderOf(err)
	require.True(t, ok, "LeaderOf(%v)", err)
	require.Equal(t, have, leader.Fence)
}

func TestGateLetsTheSameFenceInSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := tenure.NewGate(key)
		_, leaveFirst := mustEnter(t, gate, fenceOf(5))
		second, leaveSecond := mustEnter(t, gate, fenceOf(5))
		leaveFirst()
		assert.NoError(t, second.Err(), "the leaving of one is none of the other's business")
		third, leaveThird := mustEnter(t, gate, fenceOf(5))
		leaveSecond()
		assert.NoError(t, third.Err())
		leaveThird()
		mustLeaveEmpty(t, gate, fenceOf(6))
	})
}

// mustLeaveEmpty checks that nobody is inside, by a seal that would wait.
func mustLeaveEmpty(t *testing.T, gate *tenure.Gate, above tenure.Fence) {
	t.Helper()
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.NoError(t, gate.Seal(ctx, above), "somebody is still inside")
	require.Zero(t, time.Since(start))
}

// Checking first and acting later is not a fence: the older work must have
// stopped before the newer begins. F05.
func TestGateWaitsForTheOlderTermToLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := tenure.NewGate(key)
		first, leaveFirst := mustEnter(t, gate, fenceOf(5))
		second, leaveSecond := mustEnter(t, gate, fenceOf(5))

		next := entering(t.Context(), gate, fenceOf(6))
		require.False(t, next.done, "Enter did not wait")
		for _, work := range []context.Context{first, second} {
			require.ErrorIs(t, work.Err(), context.Canceled)
			requireFenced(t, context.Cause(work), fenceOf(6))
		}
		_, _, err := gate.Enter(t.Context(), fenceOf(5))
		requireFenced(t, err, fenceOf(6))

		leaveFirst()
		synctest.Wait()
		require.False(t, next.done, "one of two has left")
		leaveSecond()
		synctest.Wait()
		require.True(t, next.done)
		require.NoError(t, next.err)
		require.NoError(t, next.work.Err())
		next.leave()
	})
}

func TestGateLetsAllWaitersOfTheNewTermIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := tenure.NewGate(key)
		_, leave := mustEnter(t, gate, fenceOf(5))
		var waiting []*entry
		for range 3 {
			waiting = append(waiting, entering(t.Context(), gate, fenceOf(6)))
		}
		leave()
		synctest.Wait()
		for _, e := range waiting {
			require.True(t, e.done)
			require.NoError(t, e.err)
			require.NoError(t, e.work.Err())
			e.leave()
		}
	})
}

func TestGateRefusesAWaiterWhenAYetHigherEpochComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := tenure.NewGate(key)
		_, leave := mustEnter(t, gate, fenceOf(5))
		middle := entering(t.Context(), gate, fenceOf(6))
		highest := entering(t.Context(), gate, fenceOf(7))
		require.True(t, middle.done, "it waits although it can never enter")
		requireFenced(t, middle.err, fenceOf(7))
		require.False(t, highest.done)
		leave()
		synctest.Wait()
		require.True(t, highest.done)
		require.NoError(t, highest.err)
		highest.leave()
	})
}

func TestGateRemembersAFenceThatGaveUpWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := tenure.NewGate(key)
		work, leave := mustEnter(t, gate, fenceOf(5))
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, err := gate.Enter(ctx, fenceOf(6))
		require.Equal(t, context.DeadlineExceeded, err)
		require.Equal(t, time.Second, time.Since(start))
		requireFenced(t, context.Cause(work), fenceOf(6))
		leave()

		_, _, err = gate.Enter(t.Context(), fenceOf(5))
		requireFenced(t, err, fenceOf(6))
		mustLeaveEmpty(t, gate, fenceOf(6))
	})
}

// Somebody whose context has ended gets nothing, and is seen all the same.
func TestGateAdmitsNothingUnderAnEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := tenure.NewGate(key)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		work, leave, err := gate.Enter(ctx, fenceOf(5))
		require.Equal(t, context.Canceled, err)
		require.Nil(t, work)
		require.Nil(t, leave)
		require.Equal(t, context.Canceled, gate.Seal(ctx, fenceOf(5)))

		_, _, err = gate.Enter(t.Context(), fenceOf(4))
		requireFenced(t, err, fenceOf(5))
		mustLeaveEmpty(t, gate, fenceOf(6))
	})
}

// After a careless restore of etcd two terms can have one epoch. Nobody can tell
// which came first, so whoever came to the resource first stays. F06.
func TestGateRefusesWhatIsNotLaterAndNotTheSameTerm(t *testing.T) {
	have := tenure.Fence{Key: key, Epoch: 5, Lease: 100}
	for name, tt := range map[string]struct {
		got     tenure.Fence
		refused bool
	}{
		"TheSame":               {tenure.Fence{Key: key, Epoch: 5, Lease: 100}, false},
		"LaterOnAnotherLease":   {tenure.Fence{Key: key, Epoch: 6, Lease: 99}, false},
		"LaterOnTheSameLease":   {tenure.Fence{Key: key, Epoch: 6, Lease: 100}, false},
		"EarlierOnTheSameLease": {tenure.Fence{Key: key, Epoch: 4, Lease: 100}, true},
		"EarlierOnAnotherLease": {tenure.Fence{Key: key, Epoch: 4, Lease: 101}, true},
		"SameEpochHigherLease":  {tenure.Fence{Key: key, Epoch: 5, Lease: 101}, true},
		"SameEpochLowerLease":   {tenure.Fence{Key: key, Epoch: 5, Lease: 99}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate := tenure.NewGate(key)
				require.NoError(t, gate.Seal(t.Context(), have))
				_, leave, err := gate.Enter(t.Context(), tt.got)
				if !tt.refused {
					require.NoError(t, err)
					leave()
					return
				}
				requireFenced(t, err, have)
				_, leave = mustEnter(t, gate, have) // as if nothing had happened
				leave()
			})
		})
	}
}

// F02.
func TestGateRefusesWhatIsNoFenceOfItsElection(t *testing.T) {
	for name, tt := range map[string]struct {
		fence tenure.Fence
		says  string
	}{
		"Zero":          {tenure.Fence{}, "Fence.Key is empty"},
		"NoKey":         {tenure.Fence{Epoch: 9, Lease: 1}, "Fence.Key is empty"},
		"EpochZero":     {tenure.Fence{Key: key, Lease: 1}, "Fence.Epoch is 0"},
		"EpochNegative": {tenure.Fence{Key: key, Epoch: -1, Lease: 1}, "Fence.Epoch is -1"},
		"NoLease":       {tenure.Fence{Key: key, Epoch: 9}, "Fence.Lease is 0"},
		"AnotherKey":    {tenure.Fence{Key: key + "2", Epoch: 9, Lease: 1}, fmt.Sprintf("%q at a gate of %q", key+"2", key)},
	} {
		t.Run(name, func(t *testing.T) {
			gate := tenure.NewGate(key)
			work, leave, err := gate.Enter(t.Context(), tt.fence)
			require.ErrorContains(t, err, tt.says)
			require.NotErrorIs(t, err, tenure.ErrFenced)
			require.Nil(t, work)
			require.Nil(t, leave)
			require.ErrorContains(t, gate.Seal(t.Context(), tt.fence), tt.says)

			// Nothing of it was remembered.
			require.NoError(t, gate.Seal(t.Context(), fenceOf(1)))
		})
	}
}

func TestGateLeaveCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := tenure.NewGate(key)
		work, leave := mustEnter(t, gate, fenceOf(5))
		_, leaveOther := mustEnter(t, gate, fenceOf(5))
		var leaving sync.WaitGroup
		for range 4 {
			leaving.Go(leave)
		}
		leaving.Wait()
		leave()
		require.ErrorIs(t, work.Err(), context.Canceled, "what has left must not go on")
		require.NotErrorIs(t, context.Cause(work), tenure.ErrFenced)

		next := entering(t.Context(), gate, fenceOf(6))
		require.False(t, next.done, "the other one is still inside")
		leaveOther()
		synctest.Wait()
		require.True(t, next.done)

		// A leave of a term that is long gone is nothing to its successor.
		leave()
		leaveOther()
		last := entering(t.Context(), gate, fenceOf(7))
		require.False(t, last.done)
		require.ErrorIs(t, context.Cause(next.work), tenure.ErrFenced)
		next.leave()
		synctest.Wait()
		require.NoError(t, last.err)
		last.leave()
	})
}

// Leaving in any order must leave nobody behind.
func TestGateLeavesInAnyOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := tenure.NewGate(key)
		for order := range 4 * 3 * 2 { // each stands for one permutation
			older := tenure.Epoch(1 + 2*order)
			var leaves []func()
			for range 4 {
				_, leave := mustEnter(t, gate, fenceOf(older))
				leaves = append(leaves, leave)
			}
			next := entering(t.Context(), gate, fenceOf(older+1))
			for rest := order; len(leaves) > 0; {
				require.False(t, next.done, "order %d: %d are still inside", order, len(leaves))
				i := rest % len(leaves)
				rest /= len(leaves)
				leaves[i]()
				leaves = slices.Delete(leaves, i, i+1)
				synctest.Wait()
			}
			require.True(t, next.done, "order %d", order)
			require.NoError(t, next.err)
			next.leave()
		}
	})
}

func TestGateWorkEndsWithItsContext(t *testing.T) {
	type private struct{}
	gate := tenure.NewGate(key)
	cause := errors.New("the request was withdrawn")
	ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), private{}, 42))
	work, leave, err := gate.Enter(ctx, fenceOf(5))
	require.NoError(t, err)
	defer leave()
	require.Equal(t, 42, work.Value(private{}))
	cancel(cause)
	require.ErrorIs(t, work.Err(), context.Canceled)
	require.Equal(t, cause, context.Cause(work))
}

// F11. Until the gate is sealed a write of the predecessor may still come.
func TestSealShutsOutThePredecessorBeforeItReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := tenure.NewGate(key)
		state := 0
		write := func(fence tenure.Fence) error {
			work, leave, err := gate.Enter(t.Context(), fence)
			if err != nil {
				return err
			}
			defer leave()
			<-work.Done()                // asked to stop in the middle of a write
			time.Sleep(time.Millisecond) // that cannot be stopped at once
			state++
			return nil
		}
		old := make(chan error, 1)
		go func() { old <- write(fenceOf(5)) }()
		synctest.Wait()

		require.NoError(t, gate.Seal(t.Context(), fenceOf(6)))
		read := state
		require.Equal(t, 1, read, "the write that was under way is not in what the new leader reads")
		requireFenced(t, write(fenceOf(5)), fenceOf(6))
		require.NoError(t, <-old)
		require.Equal(t, read, state)

		require.NoError(t, gate.Seal(t.Context(), fenceOf(6)), "sealing twice is allowed")
		_, leave := mustEnter(t, gate, fenceOf(6))
		leave()
	})
}

// enterer is the gate, or an imitation of it.
type enterer interface {
	Enter(ctx context.Context, fence tenure.Fence) (work context.Context, leave func(), err error)
}

// checkThenAct is what looks like a gate and is none: it compares the epoch, and
// lets the work do as it likes afterwards.
type checkThenAct struct {
	mu   sync.Mutex
	have tenure.Fence
}

func (g *checkThenAct) Enter(ctx context.Context, fence tenure.Fence) (work context.Context, leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if fence.Epoch < g.have.Epoch || fence.Epoch == g.have.Epoch && fence != g.have {
		return nil, nil, tenure.ErrFenced
	}
	g.have = fence
	return ctx, func() {}, nil
}

// believeLeases orders terms by epoch alone, as if epochs never repeated.
type believeLeases struct{ *tenure.Gate }

func (g believeLeases) Enter(ctx context.Context, fence tenure.Fence) (work context.Context, leave func(), err error) {
	fence.Lease = 1
	return g.Gate.Enter(ctx, fence)
}

// interleave lets many pieces of work of many terms enter and leave at random
// moments, and returns what they saw that must never be seen.
func interleave(ctx context.Context, gate enterer, seed uint64) (entered int, violation error) {
	var (
		mu      sync.Mutex
		inside  = make(map[tenure.Fence]int)
		highest tenure.Fence
		works   sync.WaitGroup
	)
	report := func(format string, args ...any) {
		if violation == nil {
			violation = fmt.Errorf(format, args...)
		}
	}
	for i := range 32 {
		works.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			for round := range 8 {
				time.Sleep(time.Duration(random.IntN(2_000)) * time.Microsecond)
				// The epochs rise with the rounds, with stragglers among them and
				// now and then two terms of one epoch.
				fence := fenceOf(tenure.Epoch(1 + 3*round + random.IntN(6)))
				if random.IntN(4) == 0 {
					fence.Lease++
				}
				ctx, cancel := context.WithTimeout(ctx, time.Duration(random.IntN(3_000))*time.Microsecond)
				work, leave, err := gate.Enter(ctx, fence)
				if err != nil {
					cancel()
					continue
				}
				mu.Lock()
				entered++
				inside[fence]++
				if len(inside) > 1 {
					report("work of different terms is inside at once: %v", inside)
				}
				if fence.Epoch < highest.Epoch || fence.Epoch == highest.Epoch && fence != highest {
					report("%v was admitted after %v", fence, highest)
				}
				highest = fence
				mu.Unlock()

				select {
				case <-work.Done(): // and then it takes its time to stop
					time.Sleep(time.Duration(random.IntN(500)) * time.Microsecond)

				case <-time.After(time.Duration(random.IntN(1_000)) * time.Microsecond):
				}
				mu.Lock()
				if inside[fence]--; inside[fence] == 0 {
					delete(inside, fence)
				}
				mu.Unlock()
				leave()
				cancel()
			}
		})
	}
	works.Wait()
	return entered, violation
}

// F05.
func TestGateNeverHoldsTwoTermsAtOnce(t *testing.T) {
	const runs = 30
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	admitted := 0
	for i := range uint64(runs) {
		synctest.Test(t, func(t *testing.T) {
			entered, violation := interleave(t.Context(), tenure.NewGate(key), seed+i)
			require.NoError(t, violation, "run %d", i)
			admitted += entered
		})
	}
	require.Greater(t, admitted, 5*runs, "hardly anything was admitted: the runs show nothing")
	t.Run("AndTheTestCanFail", func(t *testing.T) {
		for name, gate := range map[string]func() enterer{
			"CheckThenAct":  func() enterer { return new(checkThenAct) },
			"BelieveLeases": func() enterer { return believeLeases{tenure.NewGate(key)} },
		} {
			var violation error
			for i := range uint64(runs) {
				synctest.Test(t, func(t *testing.T) {
					_, seen := interleave(t.Context(), gate(), seed+i)
					violation = errors.Join(violation, seen)
				})
			}
			require.Error(t, violation, name)
		}
	})
}

// What admits a request must not cost it more than the request's own context.
func TestGateEnterAllocatesLittle(t *testing.T) {
	gate := tenure.NewGate(key)
	ctx := t.Context()
	derived := testing.AllocsPerRun(100, func() {
		_, cancel := context.WithCancelCause(ctx)
		cancel(nil)
	})
	entered := testing.AllocsPerRun(100, func() {
		_, leave, err := gate.Enter(ctx, fenceOf(5))
		if err != nil {
			t.Error(err)
			return
		}
		leave()
	})
	require.LessOrEqual(t, entered, derived+2, "a derived context, a visit and its leave")
}

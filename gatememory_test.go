package tenure_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
)

// memory is what a database would keep, with faults that a test puts in. It
// outlives the gates that ask it.
type memory struct {
	after func(fence tenure.Fence) // nil: nothing

	mu      sync.Mutex
	before  func(ctx context.Context, fence tenure.Fence) error // nil: no fault
	highest tenure.Fence
	asked   []tenure.Fence
}

// fault puts a fault in; nil takes it out.
func (m *memory) fault(f func(ctx context.Context, fence tenure.Fence) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.before = f
}

func (m *memory) Seal(ctx context.Context, fence tenure.Fence) error {
	m.mu.Lock()
	m.asked = append(m.asked, fence)
	before := m.before
	m.mu.Unlock()
	if before != nil {
		if err := before(ctx, fence); err != nil {
			return err
		}
	}
	err := m.record(fence)
	if m.after != nil {
		m.after(fence)
	}
	return err
}

func (m *memory) record(fence tenure.Fence) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if fence.Epoch < m.highest.Epoch || fence.Epoch == m.highest.Epoch && fence != m.highest {
		return tenure.FencedBy(m.highest)
	}
	m.highest = fence
	return nil
}

// questions returns what the memory was asked since the last call.
func (m *memory) questions() []tenure.Fence {
	m.mu.Lock()
	defer m.mu.Unlock()
	asked := m.asked
	m.asked = nil
	return asked
}

var errOutOfReach = errors.New("the memory is out of reach")

func TestGateAsksItsMemoryOnceAboutEachFence(t *testing.T) {
	m := new(memory)
	gate := tenure.NewGateWith(key, m)
	require.Equal(t, key, gate.Key())
	for range 3 {
		_, leave := mustEnter(t, gate, fenceOf(5))
		leave()
	}
	require.NoError(t, gate.Seal(t.Context(), fenceOf(5)))
	require.Equal(t, []tenure.Fence{fenceOf(5)}, m.questions())

	_, leave := mustEnter(t, gate, fenceOf(7))
	leave()
	require.Equal(t, []tenure.Fence{fenceOf(7)}, m.questions())

	// What the gate knows to be too old it need not ask about.
	for _, old := range []tenure.Fence{fenceOf(6), {Key: key, Epoch: 7, Lease: 101}} {
		_, _, err := gate.Enter(t.Context(), old)
		requireFenced(t, err, fenceOf(7))
	}
	// Nor about what is no fence of its election.
	_, _, err := gate.Enter(t.Context(), tenure.Fence{Key: key + "2", Epoch: 9, Lease: 100})
	require.ErrorContains(t, err, "at a gate of")
	require.Empty(t, m.questions())
}

func TestARestartedGateRefusesWhatItsPredecessorWouldHave(t *testing.T) {
	m := new(memory)
	require.NoError(t, tenure.NewGateWith(key, m).Seal(t.Context(), fenceOf(6)))

	for _, old := range []tenure.Fence{fenceOf(5), {Key: key, Epoch: 6, Lease: 101}} {
		restarted := tenure.NewGateWith(key, m)
		_, _, err := restarted.Enter(t.Context(), old)
		requireFenced(t, err, fenceOf(6))
		_, leave := mustEnter(t, restarted, fenceOf(6))
		leave()
	}
	// Without a memory it would not.
	require.NoError(t, tenure.NewGate(key).Seal(t.Context(), fenceOf(5)))
}

func TestAGateThatCannotReachItsMemoryBelievesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := new(memory)
		gate := tenure.NewGateWith(key, m)
		work, leave := mustEnter(t, gate, fenceOf(5))

		m.fault(func(context.Context, tenure.Fence) error { return errOutOfReach })
		for range 2 {
			_, _, err := gate.Enter(t.Context(), fenceOf(7))
			require.ErrorIs(t, err, errOutOfReach)
			require.NotErrorIs(t, err, tenure.ErrFenced)
		}
		require.ErrorIs(t, gate.Seal(t.Context(), fenceOf(7)), errOutOfReach)
		require.NoError(t, work.Err(), "nobody has sealed a later epoch")
		_, leaveToo := mustEnter(t, gate, fenceOf(5)) // needs no memory
		leaveToo()
		leave()

		m.fault(nil)
		_, leave = mustEnter(t, gate, fenceOf(6)) // 7 was not seen
		leave()
		_, leave = mustEnter(t, gate, fenceOf(7))
		leave()

		_, _, err := tenure.NewGateWith(key, &memory{before: func(context.Context, tenure.Fence) error { return errOutOfReach }}).Enter(t.Context(), fenceOf(5))
		require.ErrorIs(t, err, errOutOfReach, "not even the first fence is believed")
	})
}

// hang is a memory that does not answer.
func hang(ctx context.Context, _ tenure.Fence) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestAMemoryThatHangsHoldsNobodyLongerThanTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{before: hang}
		gate := tenure.NewGateWith(key, m)
		within := func(d time.Duration) *entry {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			t.Cleanup(cancel)
			return entering(ctx, gate, fenceOf(5))
		}
		start := time.Now()
		asker, short, long := within(2*time.Second), within(time.Second), within(time.Hour)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, context.DeadlineExceeded, short.err)

		// The asker gives up for itself alone: the next one asks.
		require.Len(t, m.questions(), 1)
		m.fault(nil)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, context.DeadlineExceeded, asker.err)
		require.True(t, long.done)
		require.NoError(t, long.err)
		require.Equal(t, 2*time.Second, time.Since(start))
		require.Len(t, m.questions(), 1)
		long.leave()
	})
}

func TestOneAsksForAllAboutOneFence(t *testing.T) {
	for name, answer := range map[string]error{
		"Sealed": nil, "Fenced": tenure.FencedBy(fenceOf(9)), "OutOfReach": errOutOfReach,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answers := make(chan error)
				m := &memory{before: func(_ context.Context, fence tenure.Fence) error {
					if fence == fenceOf(4) {
						return nil
					}
					return <-answers
				}}
				gate := tenure.NewGateWith(key, m)
				var waiting []*entry
				for range 10 {
					waiting = append(waiting, entering(t.Context(), gate, fenceOf(5)))
				}
				require.Len(t, m.questions(), 1)

				// Nobody waits for a question that is not theirs, nor in the gate's lock.
				_, leave := mustEnter(t, gate, fenceOf(4))
				leave()
				m.questions()

				answers <- answer
				synctest.Wait()
				for _, e := range waiting {
					require.True(t, e.done)
					if answer != nil {
						require.Equal(t, answer, e.err)
						continue
					}
					require.NoError(t, e.err)
					e.leave()
				}
				require.Empty(t, m.questions(), "they asked again")
			})
		})
	}
}

// Two terms are asked about at once, and the answer to the earlier comes last.
func TestAnAnswerThatCameLateAdmitsNoOlderTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := make(chan struct{})
		m := &memory{after: func(fence tenure.Fence) {
			if fence == fenceOf(6) {
				<-late
			}
		}}
		gate := tenure.NewGateWith(key, m)
		older := entering(t.Context(), gate, fenceOf(6))
		require.False(t, older.done)
		work, leave := mustEnter(t, gate, fenceOf(7))
		close(late)
		synctest.Wait()
		require.True(t, older.done)
		requireFenced(t, older.err, fenceOf(7))
		require.NoError(t, work.Err())
		leave()
		m.questions()
		_, leave = mustEnter(t, gate, fenceOf(7))
		leave()
		require.Empty(t, m.questions(), "the late answer was taken for the newest")
	})
}

// A refusal tells what another gate on the same memory has sealed.
func TestGateLearnsFromARefusalOfItsMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := new(memory)
		gate := tenure.NewGateWith(key, m)
		work, leave := mustEnter(t, gate, fenceOf(5))
		require.NoError(t, m.record(fenceOf(9))) // by another gate

		_, _, err := gate.Enter(t.Context(), fenceOf(7))
		requireFenced(t, err, fenceOf(9))
		require.ErrorIs(t, work.Err(), context.Canceled)
		requireFenced(t, context.Cause(work), fenceOf(9))
		m.questions()
		_, _, err = gate.Enter(t.Context(), fenceOf(8))
		requireFenced(t, err, fenceOf(9))
		require.Empty(t, m.questions())

		// It is hearsay all the same: 9 is asked about before it is let in, and
		// waits for the older work.
		m.fault(func(context.Context, tenure.Fence) error { return errOutOfReach })
		_, _, err = gate.Enter(t.Context(), fenceOf(9))
		require.ErrorIs(t, err, errOutOfReach)
		m.fault(nil)
		next := entering(t.Context(), gate, fenceOf(9))
		require.False(t, next.done)
		leave()
		synctest.Wait()
		require.NoError(t, next.err)
		next.leave()
	})
}

func TestGateLearnsNothingFromARefusalThatNamesNoLaterTerm(t *testing.T) {
	for name, refusal := range map[string]error{
		"Nobody":     tenure.ErrFenced,
		"Vacant":     tenure.FencedBy(tenure.Fence{Key: key}),
		"AnotherKey": tenure.FencedBy(tenure.Fence{Key: key + "2", Epoch: 9, Lease: 100}),
		"NoLease":    tenure.FencedBy(tenure.Fence{Key: key, Epoch: 9}),
		"Earlier":    tenure.FencedBy(fenceOf(3)), // as after a restore of the memory
		"SameEpoch":  tenure.FencedBy(tenure.Fence{Key: key, Epoch: 5, Lease: 101}),
	} {
		t.Run(name, func(t *testing.T) {
			m := new(memory)
			gate := tenure.NewGateWith(key, m)
			work, leave := mustEnter(t, gate, fenceOf(5))
			defer leave()
			m.fault(func(context.Context, tenure.Fence) error { return refusal })
			_, _, err := gate.Enter(t.Context(), fenceOf(7))
			require.Equal(t, refusal, err)
			require.NoError(t, work.Err())
			_, leaveToo := mustEnter(t, gate, fenceOf(5))
			leaveToo()
		})
	}
}

func TestAMemoryThatPanicsLeavesNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := make(chan struct{})
		m := &memory{before: func(context.Context, tenure.Fence) error {
			<-fails
			panic("out of memory")
		}}
		gate := tenure.NewGateWith(key, m)
		panicked := make(chan any, 1)
		go func() {
			defer func() { panicked <- recover() }()
			_, _, _ = gate.Enter(t.Context(), fenceOf(5))
		}()
		synctest.Wait()
		waiter := entering(t.Context(), gate, fenceOf(5))
		m.fault(nil)
		close(fails)
		require.Equal(t, "out of memory", <-panicked)
		synctest.Wait()
		require.True(t, waiter.done)
		require.NoError(t, waiter.err)
		require.Len(t, m.questions(), 2, "a panic was taken for an answer")
		waiter.leave()
	})
}

func TestAGateWithoutTheMemoryItShouldHaveIsNotMade(t *testing.T) {
	require.PanicsWithValue(t, "tenure: NewGateWith without a memory; NewGate returns a gate that has none", func() { tenure.NewGateWith(key, nil) })
}

// F05, with a memory that is slow, fails now and then, and is shared by gates
// that come one after the other, as a service that restarts.
func TestGateOnAFaultyMemoryNeverHoldsTwoTermsAtOnce(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	admitted := 0
	for i := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			random := rand.New(rand.NewPCG(seed, i))
			chance := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return random.IntN(n)
			}
			m := &memory{
				before: func(ctx context.Context, _ tenure.Fence) error {
					time.Sleep(time.Duration(chance(200)) * time.Microsecond)
					if chance(10) == 0 {
						return errOutOfReach
					}
					return ctx.Err()
				},
				after: func(tenure.Fence) { time.Sleep(time.Duration(chance(200)) * time.Microsecond) },
			}
			entered, violation := interleave(t.Context(), tenure.NewGateWith(key, m), seed+i)
			require.NoError(t, violation, "run %d", i)
			admitted += entered

			m.before, m.after = nil, nil
			restarted := tenure.NewGateWith(key, m)
			for epoch := range m.highest.Epoch - 1 {
				_, _, err := restarted.Enter(t.Context(), fenceOf(epoch+1))
				require.ErrorIs(t, err, tenure.ErrFenced, "run %d", i)
			}
			_, leave := mustEnter(t, restarted, m.highest)
			leave()
		})
	}
	require.Greater(t, admitted, 5*30, "hardly anything was admitted: the runs show nothing")
}

func TestEtcdMemoryLetsOnlyTheHolderIn(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		first, err := newElector(t, s.Client(), nil).Campaign(t.Context())
		require.NoError(t, err)
		c := s.Client()
		reads := c.Faults.On("Range", etcdtest.EditRequest(func(r *pb.RangeRequest) {
			require.False(t, r.Serializable, "a member that lags behind would answer")
		}))
		m := tenure.EtcdMemory(c.Client)
		gate := tenure.NewGateWith(key, m)
		holder := first.Fence()
		work, leave := mustEnter(t, gate, holder)

		for name, invented := range map[string]tenure.Fence{
			"Higher":       {Key: key, Epoch: holder.Epoch + 1, Lease: holder.Lease},
			"Highest":      {Key: key, Epoch: 1<<63 - 1, Lease: 1},
			"AnotherLease": {Key: key, Epoch: holder.Epoch, Lease: holder.Lease + 1},
			"Lower":        {Key: key, Epoch: holder.Epoch - 1, Lease: holder.Lease},
		} {
			for _, gate := range []*tenure.Gate{gate, tenure.NewGateWith(key, m)} {
				_, _, err := gate.Enter(t.Context(), invented)
				requireFenced(t, err, holder)
			}
			require.NoError(t, work.Err(), "%s has thrown the holder out", name)
		}
		_, leaveToo := mustEnter(t, gate, holder)
		leaveToo()
		require.Equal(t, 1+2+2+1+1, reads.Hits()) // what is known to be older is not asked about, nor the holder twice

		// Replaced: by the gate that has seen it and by one that restarts.
		leave()
		require.NoError(t, first.Resign())
		second := lead(t, newElector(t, s.Client(), nil))
		_, leave = mustEnter(t, gate, second.Fence())
		leave()
		for _, gate := range []*tenure.Gate{gate, tenure.NewGateWith(key, m)} {
			_, _, err = gate.Enter(t.Context(), holder)
			requireFenced(t, err, second.Fence())
		}
	})
}

func TestEtcdMemoryRefusesATermThatHasEnded(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		term := lead(t, newElector(t, s.Client(), nil))
		gate := tenure.NewGateWith(key, tenure.EtcdMemory(s.Client().Client))
		other, err := s.Admin().Grant(t.Context(), 60)
		require.NoError(t, err)
		_, err = s.Admin().Put(t.Context(), key, "{}", clientv3.WithLease(other.ID))
		require.NoError(t, err)
		_, _, err = gate.Enter(t.Context(), term.Fence())
		requireFenced(t, err, tenure.Fence{Key: key, Epoch: term.Epoch(), Lease: other.ID})

		_, err = s.Admin().Delete(t.Context(), key)
		require.NoError(t, err)
		gate = tenure.NewGateWith(key, tenure.EtcdMemory(s.Client().Client))
		_, _, err = gate.Enter(t.Context(), term.Fence())
		requireFenced(t, err, tenure.Fence{Key: key})
		require.ErrorContains(t, err, "nobody holds")
	})
}

func TestEtcdMemoryNeverGuesses(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		term := lead(t, newElector(t, s.Client(), nil))
		c := s.Client()
		gate := tenure.NewGateWith(key, tenure.EtcdMemory(c.Client))

		c.Link.Cut()
		start := time.Now()
		_, _, err := gate.Enter(t.Context(), term.Fence())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, tenure.ErrFenced)
		require.ErrorContains(t, err, "cannot tell who leads")
		require.Less(t, time.Since(start), 10*time.Second, "a request without a deadline")
		c.Link.Heal()

		denied := c.Faults.Next("Range", etcdtest.FailRequest(rpctypes.ErrGRPCPermissionDenied))
		_, _, err = gate.Enter(t.Context(), term.Fence())
		require.Equal(t, 1, denied.Hits())
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		require.NotErrorIs(t, err, tenure.ErrFenced)

		_, leave := mustEnter(t, gate, term.Fence())
		leave()

		_, _, err = tenure.NewGateWith(key, tenure.EtcdMemory(nil)).Enter(t.Context(), term.Fence())
		require.ErrorContains(t, err, "client is nil")
	})
}

// The answer of etcd is as old as its read. A successor that came meanwhile is
// known to the gate, or will shut the older work out when it comes.
func TestEtcdMemoryIsAskedWhileTheLeaderChanges(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		first, err := newElector(t, s.Client(), nil).Campaign(t.Context())
		require.NoError(t, err)
		c := s.Client()
		gate := tenure.NewGateWith(key, tenure.EtcdMemory(c.Client))
		held := c.Faults.Next("Range", etcdtest.HoldAnswer())
		older := entering(t.Context(), gate, first.Fence())
		etcdtest.Await(t, time.Second, "Fired", held.Fired())

		require.NoError(t, first.Resign())
		second := lead(t, newElector(t, s.Client(), nil))
		work, leave := mustEnter(t, gate, second.Fence())
		held.Release()
		etcdtest.Eventually(t, time.Second, "done", true, func() bool {
			synctest.Wait()
			return older.done
		})
		requireFenced(t, older.err, second.Fence())
		require.NoError(t, work.Err())
		leave()
	})
}

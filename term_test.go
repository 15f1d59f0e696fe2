package tenure_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
	"github.com/tenure-go/tenure/tenuretest"
)

// clocks are a monotonic and a wall clock that a test can hold apart.
type clocks struct {
	start time.Time
	rate  float64 // of both; 0: that of the bubble's clock

	mu      sync.Mutex
	wall    time.Duration // ahead of the bubble's clock
	stopped time.Time     // what the monotonic clock shows, unless zero
}

func (c *clocks) read() (mono, wall time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	mono = time.Now()
	if c.rate != 0 {
		mono = c.start.Add(time.Duration(c.rate * float64(mono.Sub(c.start))))
	}
	wall = mono.Round(0).Add(c.wall)
	if !c.stopped.IsZero() {
		mono = c.stopped
	}
	return mono, wall
}

// step sets the wall clock by d.
func (c *clocks) step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall += d
}

// stop stops the monotonic clock, as a machine does that goes to sleep.
func (c *clocks) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = time.Now()
}

// options returns options with the clocks.
func (c *clocks) options(ttl time.Duration, hooks *tenure.Hooks) *tenure.Options {
	o := &tenure.Options{TTL: ttl, Hooks: hooks}
	o.SetClocks(c.read)
	return o
}

// L04, L05.
func TestWallClockStepForward(t *testing.T) {
	const ttl = 10 * time.Second
	t.Run("ByTheTTLEndsTheTerm", func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			var clk clocks
			c := s.Client()
			term := lead(t, newElector(t, c, clk.options(ttl, nil)))
			time.Sleep(5 * time.Second)
			requests := len(sentFor(c, term))
			clk.step(ttl)
			require.False(t, term.Valid())
			require.ErrorIs(t, term.Err(), tenure.LeaseExpired)
			_, err := term.KV(c).Put(t.Context(), "k", "v")
			require.ErrorIs(t, err, tenure.LeaseExpired)
			etcdtest.Await(t, ttl/20+time.Millisecond, "Term.Context", term.Context().Done())
			require.ErrorIs(t, context.Cause(term.Context()), tenure.LeaseExpired)

			// The clock is set right again: too late.
			clk.step(-ttl)
			require.False(t, term.Valid())
			require.False(t, term.ValidUntil().After(time.Now()))
			time.Sleep(ttl + scan)
			require.Len(t, sentFor(c, term), requests)
			require.Empty(t, s.Keys(key))
		})
	})
	t.Run("CountsToTheMillisecond", func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			var clk clocks
			hooks, renewed := renewals()
			term := lead(t, newElector(t, s.Client(), clk.options(ttl, hooks)))
			counted(t, ttl, renewed)
			clk.step(time.Until(term.ValidUntil()) - time.Millisecond)
			require.True(t, term.Valid())
			clk.step(time.Millisecond)
			require.False(t, term.Valid())
		})
	})
	t.Run("ThatLeavesTimeIsMendedByTheNextRenewal", func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			var clk clocks
			c := s.Client()
			hooks, renewed := renewals()
			term := lead(t, newElector(t, c, clk.options(ttl, hooks)))
			for range 20 {
				counted(t, ttl, renewed)
				clk.step(ttl / 2)
				require.True(t, term.Valid())
			}
			counted(t, ttl, renewed)
			c.Link.Cut()
			endsAt(t, term, sent(t, c, "LeaseKeepAlive").Add(ttl-ttl/10))
		})
	})
	t.Run("WhileARenewalIsUnderWayEndsTheTerm", func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			var clk clocks
			c := s.Client()
			hooks, renewed := renewals()
			term := lead(t, newElector(t, c, clk.options(ttl, hooks)))
			held := c.Faults.Next("LeaseKeepAlive", etcdtest.HoldAnswer())
			etcdtest.Await(t, ttl, "Rule.Fired", held.Fired())
			clk.step(ttl)
			held.Release() // Before the guard of the limit has looked.
			synctest.Wait()
			require.False(t, term.Valid())
			if len(renewed) > 0 {
				require.Error(t, (<-renewed).err)
			}
			time.Sleep(ttl)
			require.False(t, term.Valid())
			require.ErrorIs(t, context.Cause(term.Context()), tenure.LeaseExpired)
		})
	})
}

// L04, L05. Both clocks step forward and back again between two looks of any
// goroutine at the limit. Who has seen the term invalid has seen the end of it.
func TestValidIsNeverTrueAgain(t *testing.T) {
	const ttl = 10 * time.Second
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var clk clocks
		c := s.Client()
		e := newElector(t, c, clk.options(ttl, nil))
		term := lead(t, e)
		time.Sleep(5 * time.Second)
		require.False(t, term.ValidAt(time.Now().Add(ttl)), "an instant that has not come ends nothing")
		require.True(t, term.Valid())
		clk.step(ttl)
		clk.step(-ttl)
		require.True(t, term.Valid(), "nobody has looked")
		require.Same(t, term, e.Term())
		require.Equal(t, tenure.Leading, e.Status().State)

		clk.step(ttl)
		require.Nil(t, e.Term())
		require.NotEqual(t, tenure.Leading, e.Status().State)
		require.False(t, term.Valid())
		clk.step(-ttl)
		require.Nil(t, e.Term())
		require.False(t, term.Valid())
		require.False(t, term.ValidAt(time.Now()))
		require.ErrorIs(t, term.Err(), tenure.LeaseExpired)
		require.False(t, term.ValidUntil().After(time.Now()))
		etcdtest.Await(t, ttl/20+time.Millisecond, "Term.Context", term.Context().Done())
		require.ErrorIs(t, context.Cause(term.Context()), tenure.LeaseExpired)
		requests := len(sentFor(c, term))
		time.Sleep(ttl + scan)
		require.False(t, term.Valid())
		require.Len(t, sentFor(c, term), requests)
		require.Empty(t, s.Keys(key))
	})
}

// L05.
func TestWallClockSetBackNeitherExtendsNorEndsTheTerm(t *testing.T) {
	const ttl = 10 * time.Second
	for _, wait := range []time.Duration{0, time.Hour} {
		t.Run(fmt.Sprintf("After%v", wait), func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				var clk clocks
				c := s.Client()
				hooks, renewed := renewals()
				term := lead(t, newElector(t, c, clk.options(ttl, hooks)))
				counted(t, ttl, renewed)
				until := term.ValidUntil()
				clk.step(-time.Hour)
				require.Equal(t, until, term.ValidUntil())
				time.Sleep(wait)
				require.True(t, term.Valid())
				require.NoError(t, term.Context().Err())
				c.Link.Cut()
				endsAt(t, term, sent(t, c, "LeaseKeepAlive").Add(ttl-ttl/10))
			})
		})
	}
}

// L04. A machine that sleeps: its monotonic clock stands still, nothing is sent,
// and its wall clock goes on.
func TestSleepOfTheMachineEndsTheTerm(t *testing.T) {
	const ttl = 10 * time.Second
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var clk clocks
		c := s.Client()
		hooks, renewed := renewals()
		term := lead(t, newElector(t, c, clk.options(ttl, hooks)))
		counted(t, ttl, renewed)
		limit := term.ValidUntil()
		c.Link.Cut()
		clk.stop()
		endsAt(t, term, limit)
		time.Sleep(time.Hour)
		c.Link.Heal()
		require.False(t, term.Valid())
		time.Sleep(time.Minute)
		require.False(t, term.Valid())
	})
}

// The leader's clocks are slow, by almost as much as the margin allows. The work
// is told to stop, and the term is over, before the key goes.
func TestMarginCoversSlowClocks(t *testing.T) {
	for _, ttl := range []time.Duration{2 * time.Second, 10 * time.Second} {
		for _, margin := range []time.Duration{0, ttl / 2} {
			t.Run(fmt.Sprintf("TTL%vMargin%v", ttl, margin), func(t *testing.T) {
				etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
					clk := clocks{start: time.Now(), rate: 0.91}
					if margin > 0 {
						clk.rate = 0.51
					}
					c := s.Client()
					hooks, renewed := renewals()
					opts := clk.options(ttl, hooks)
					opts.Margin = margin
					term := lead(t, newElector(t, c, opts))
					for range 20 {
						counted(t, ttl, renewed)
					}
					require.True(t, term.Valid())
					c.Link.Cut()
					sent := sent(t, c, "LeaseKeepAlive")
					time.Sleep(time.Until(sent.Add(ttl * 98 / 100)))
					require.True(t, term.Valid(), "the clocks of the test are not slow")
					time.Sleep(time.Until(sent.Add(ttl - time.Millisecond)))
					require.False(t, term.Valid())
					require.ErrorIs(t, context.Cause(term.Context()), tenure.LeaseExpired)
					require.Len(t, s.Keys(key), 1)
				})
			})
		}
	}
}

// ValidAt is the law that Valid applies to the clock, for any instant.
func TestValidAt(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		term := lead(t, newElector(t, s.Client(), nil))
		until := term.ValidUntil()
		for name, at := range map[string]struct {
			t     time.Time
			valid bool
		}{
			"Now":                         {time.Now(), true},
			"LongAgo":                     {time.Now().Add(-time.Hour), true},
			"AMillisecondBeforeTheLimit":  {until.Add(-time.Millisecond), true},
			"TheLimit":                    {until, false},
			"AfterTheLimit":               {until.Add(time.Nanosecond), false},
			"BeforeTheLimitByTheWallOnly": {until.Add(-time.Millisecond).Round(0), true},
			"TheLimitByTheWallOnly":       {until.Round(0), false},
			"BeforeTheLimitElsewhere":     {until.Add(-time.Millisecond).UTC(), true},
			"TheZeroTime":                 {time.Time{}, true},
		} {
			require.Equal(t, at.valid, term.ValidAt(at.t), name)
		}
		require.True(t, term.Valid())

		require.NoError(t, term.Resign())
		require.False(t, term.ValidAt(time.Now()))
		require.False(t, term.ValidAt(until.Add(-time.Hour)))
		require.False(t, term.Valid())
	})
}

// ValidUntil moves when a renewal counts and at no other time.
func TestValidUntilMovesOnlyWithCountedRenewals(t *testing.T) {
	const ttl = 6 * time.Second
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		var counts atomic.Int64
		hooks := &tenure.Hooks{Renewed: func(_ time.Duration, err error) {
			if err == nil {
				counts.Add(1)
			}
		}}
		c.Faults.On("Txn", etcdtest.FailRequest(etcdtest.Unavailable), etcdtest.Match(reads), etcdtest.Skip(3), etcdtest.Times(2))
		c.Faults.On("LeaseKeepAlive", etcdtest.LoseAnswer(), etcdtest.Skip(8), etcdtest.Times(1))
		term := lead(t, newElector(t, c, &tenure.Options{TTL: ttl, Hooks: hooks}))
		until, moves := term.ValidUntil(), 0
		for range 6000 {
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			if now := term.ValidUntil(); now != until {
				until = now
				moves++
			}
			synctest.Wait()
			require.EqualValues(t, counts.Load(), moves)
		}
		require.Greater(t, moves, 20)
		require.True(t, term.Valid())
	})
}

// L18, S01. Whatever ends a term, its context says what, the hook is told the
// same, and nothing makes the term valid again.
func TestEachLossHasItsReason(t *testing.T) {
	const ttl = 6 * time.Second
	type scene struct {
		s     *etcdtest.Server
		c     *etcdtest.Client
		lease *tenure.Lease
		term  *tenure.Term
	}
	for name, tt := range map[string]struct {
		do     func(t *testing.T, x *scene)
		reason tenure.Reason
		cause  error
		within time.Duration
	}{
		"LeaseRevoked": {func(t *testing.T, x *scene) {
			_, err := x.s.Admin().Revoke(t.Context(), x.term.Fence().Lease)
			require.NoError(t, err)
		}, tenure.KeyDeleted, nil, 0},
		"KeyDeleted": {func(t *testing.T, x *scene) {
			_, err := x.s.Admin().Delete(t.Context(), key)
			require.NoError(t, err)
		}, tenure.KeyDeleted, nil, 0},
		"KeyOverwritten": {func(t *testing.T, x *scene) {
			_, err := x.s.Admin().Put(t.Context(), key, "mine", clientv3.WithIgnoreLease())
			require.NoError(t, err)
		}, tenure.KeyReplaced, nil, 0},
		"KeyPutWithoutLease": {func(t *testing.T, x *scene) {
			_, err := x.s.Admin().Put(t.Context(), key, string(x.s.Keys(key)[0].Value))
			require.NoError(t, err)
		}, tenure.KeyReplaced, nil, 0},
		"ServerStopped": {func(_ *testing.T, x *scene) { x.s.Stop() }, tenure.LeaseExpired, nil, ttl},
		"LinkCut":       {func(_ *testing.T, x *scene) { x.c.Link.Cut() }, tenure.LeaseExpired, nil, ttl},
		"RenewalUnknown": {func(_ *testing.T, x *scene) {
			x.c.Faults.Next("LeaseKeepAlive", etcdtest.EditAnswer(func(r *pb.LeaseKeepAliveResponse) { r.TTL = 0 }))
		}, tenure.LeaseExpired, nil, ttl / 3},
		"PermissionDenied": {func(_ *testing.T, x *scene) {
			x.c.Faults.On("LeaseKeepAlive", etcdtest.FailRequest(rpctypes.ErrGRPCPermissionDenied))
		}, tenure.RenewalRefused, rpctypes.ErrPermissionDenied, ttl / 3},
		"ReadDenied": {func(_ *testing.T, x *scene) {
			x.c.Faults.On("Txn", etcdtest.FailRequest(rpctypes.ErrGRPCPermissionDenied), etcdtest.Match(reads))
			x.c.Faults.On("Range", etcdtest.FailRequest(rpctypes.ErrGRPCPermissionDenied))
		}, tenure.RenewalRefused, rpctypes.ErrPermissionDenied, ttl / 3},
		"WrongPassword": {func(_ *testing.T, x *scene) {
			x.c.Faults.On("LeaseKeepAlive", etcdtest.FailRequest(rpctypes.ErrGRPCAuthFailed))
		}, tenure.RenewalRefused, rpctypes.ErrAuthFailed, ttl / 3},
		"ClientClosed": {func(_ *testing.T, x *scene) { _ = x.c.Close() }, tenure.RenewalRefused, nil, 0},
		"LeaseClosed": {func(_ *testing.T, x *scene) {
			go x.lease.Close(context.Background())
		}, tenure.Resigned, tenure.ErrLeaseClosed, 0},
		"Resigned": {func(t *testing.T, x *scene) { require.NoError(t, x.term.Resign()) }, tenure.Resigned, nil, 0},
		"Evicted": {func(_ *testing.T, x *scene) {
			go func() { _ = tenure.Evict(context.Background(), x.s.Admin(), x.term.Fence(), nil) }()
		}, tenure.Evicted, nil, 0},
		"Fenced": {func(t *testing.T, x *scene) {
			x.c.Faults.On("Watch", etcdtest.LoseAnswer())
			_, err := x.s.Admin().Delete(t.Context(), key)
			require.NoError(t, err)
			_, err = x.term.KV(x.c).Put(t.Context(), "k", "v")
			require.ErrorIs(t, err, tenure.ErrFenced)
		}, tenure.Fenced, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				lease, err := tenure.NewLease(c.Client, &tenure.LeaseOptions{TTL: ttl})
				require.NoError(t, err)
				var ended []error
				x := &scene{s: s, c: c, lease: lease}
				x.term = lead(t, newElector(t, c, &tenure.Options{Lease: lease, Hooks: &tenure.Hooks{
					TermEnded: func(_ *tenure.Term, cause error) { ended = append(ended, cause) },
				}}))
				time.Sleep(5 * ttl / 4)
				tt.do(t, x)
				if tt.within > 0 {
					etcdtest.Await(t, tt.within, "Term.Context", x.term.Context().Done())
				}
				synctest.Wait()
				cause := context.Cause(x.term.Context())
				require.ErrorIs(t, cause, tt.reason)
				require.ErrorIs(t, cause, tenure.ErrTermEnded)
				if tt.cause != nil {
					require.ErrorIs(t, cause, tt.cause)
				}

				// Asked to go, it is valid until it has gone.
				asked := tt.reason == tenure.Evicted || name == "LeaseClosed"
				require.Equal(t, asked, x.term.Valid())
				_ = x.term.Resign()
				for range 100 {
					require.False(t, x.term.Valid())
					require.Error(t, x.term.Err())
					require.False(t, x.term.ValidUntil().After(time.Now()))
					time.Sleep(100 * time.Millisecond)
				}
				synctest.Wait()
				require.Len(t, ended, 1)
				require.Equal(t, x.term.Err(), ended[0])
				if !asked {
					require.Equal(t, cause, ended[0])
				}
			})
		})
	}
}

// A05, A07. The grant takes its time, the first renewals are lost, and the answer
// to the winning transaction comes late, or the transaction itself arrives late:
// just in time for the library, or by most of the TTL or more. A term is reported
// only with time left, with the epoch and the lease that the key has; and what
// lands in the end is no key that stays.
func TestLateWinIsReportedOnlyWithTimeLeft(t *testing.T) {
	for _, ttl := range []time.Duration{2 * time.Second, 3 * time.Second, 10 * time.Second} {
		inTime := min(ttl/3, 3*time.Second) - time.Millisecond // The library waits so long for an answer.
		for name, late := range map[string]func(d time.Duration) etcdtest.Action{"Answer": etcdtest.DelayAnswer, "Request": etcdtest.DelayRequest} {
			for _, by := range []time.Duration{inTime, ttl - scan, ttl, ttl + time.Second} {
				t.Run(fmt.Sprintf("%sBy%vOfTTL%v", name, by, ttl), func(t *testing.T) {
					etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
						c := s.Client()
						c.Faults.Next("LeaseGrant", etcdtest.DelayAnswer(inTime))
						c.Faults.On("LeaseKeepAlive", etcdtest.LoseRequest(), etcdtest.Times(2))
						winning := c.Faults.On("Txn", late(by), etcdtest.Match(wins))
						// The answers that would show the key in another way.
						c.Faults.On("Range", etcdtest.DelayAnswer(ttl/10))
						c.Faults.On("Watch", etcdtest.DelayAnswer(ttl/2))
						e := newElector(t, c, &tenure.Options{TTL: ttl})
						ctx, cancel := context.WithTimeout(t.Context(), 3*ttl)
						defer cancel()
						term, err := e.Campaign(ctx)
						require.NotZero(t, winning.Hits())
						if err == nil {
							t.Cleanup(func() { _ = term.Resign() })
						}
						if by == inTime {
							require.NoError(t, err)
							require.Equal(t, 1, positive(c), "not renewed before it was reported")
						}
						if err == nil {
							require.True(t, term.Valid())
							require.GreaterOrEqual(t, time.Until(term.ValidUntil()), (ttl-ttl/10)/2)
							kv := s.Keys(key)[0]
							require.EqualValues(t, term.Epoch(), kv.CreateRevision)
							require.EqualValues(t, term.Fence().Lease, kv.Lease)
							winning.Stop()
							time.Sleep(3 * ttl)
							require.True(t, term.Valid(), "%v", term.Err())
							require.NoError(t, term.Resign())
						}
						time.Sleep(2*ttl + 2*time.Second)
						require.Empty(t, s.Keys(key))
						require.Zero(t, s.Leases())
					})
				})
			}
		}
	}
}

// A07. The link hangs between the transaction and its answer for longer than the
// TTL, so that the key has come and gone when the answer is there.
func TestWinThatExpiredMeanwhileIsNotReported(t *testing.T) {
	const ttl = 3 * time.Second
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		c.Link.Delay(0, 100*time.Millisecond)
		seen := s.Admin().Watch(t.Context(), key)
		cut := make(chan int64, 1)
		go func() {
			created := <-seen
			c.Link.Cut()
			cut <- created.Events[0].Kv.CreateRevision
			time.Sleep(2 * ttl)
			c.Link.Resume()
		}()
		term := lead(t, newElector(t, c, &tenure.Options{TTL: ttl}))
		require.Greater(t, int64(term.Epoch()), <-cut)
		require.EqualValues(t, term.Epoch(), s.Keys(key)[0].CreateRevision)
		require.GreaterOrEqual(t, time.Until(term.ValidUntil()), (ttl-ttl/10)/2)
	})
}

// The work, and hooks, may block for as long as they like: they run on other
// goroutines than the renewals.
func TestSlowWorkAndHooksDoNotDisturbRenewals(t *testing.T) {
	const ttl = 3 * time.Second
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		free := make(chan struct{})
		defer close(free)
		hook := func() { <-free }
		e := newElector(t, c, &tenure.Options{TTL: ttl, Hooks: &tenure.Hooks{
			TermStarted:  func(*tenure.Term) { hook() },
			StateChanged: func(tenure.Status) { hook() },
			Renewed:      func(time.Duration, error) { hook() },
		}})
		term := lead(t, e)
		start := time.Now()
		time.Sleep(time.Hour + time.Millisecond) // The work does not look at its term.
		require.True(t, term.Valid())
		require.NoError(t, term.Context().Err())
		at := sentFor(c, term)
		for i, sent := range at {
			require.Equal(t, start.Add(time.Duration(i+1)*ttl/3), sent)
		}
		require.Len(t, at, int(time.Hour/(ttl/3)))
	})
}

// Expiring is called once for each time of trouble, of whatever kind, and not
// while renewals count, however large the margin is.
func TestExpiringIsCalledOncePerTrouble(t *testing.T) {
	const ttl = 10 * time.Second
	t.Run("Once", func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			c := s.Client()
			var calls []time.Duration
			hooks, renewed := renewals()
			var term *tenure.Term
			hooks.Expiring = func(expiring *tenure.Term, left time.Duration) {
				assert.Same(t, term, expiring)
				calls = append(calls, left)
			}
			var log logged
			term = lead(t, newElector(t, c, &tenure.Options{TTL: ttl, Hooks: hooks, Logger: log.logger()}))
			for i := range 3 {
				counted(t, ttl, renewed)
				until := term.ValidUntil()
				lost := c.Faults.On("LeaseKeepAlive", etcdtest.LoseAnswer())
				time.Sleep(time.Until(until) - ttl/3)
				synctest.Wait()
				require.Len(t, calls, i)
				time.Sleep(ttl/3 - time.Second)
				synctest.Wait()
				require.Len(t, calls, i+1)
				require.Less(t, calls[i], (ttl-ttl/10-ttl/3)/2)
				require.Greater(t, calls[i], ttl/10)
				lost.Stop()
			}
			require.True(t, log.has(slog.LevelWarn, "running out"))
			counted(t, ttl, renewed)
			c.Link.Cut()
			endsAt(t, term, term.ValidUntil())
			time.Sleep(time.Minute)
			require.Len(t, calls, 4)
		})
	})
	for _, margin := range []time.Duration{0, ttl / 4, ttl / 3, ttl / 2} {
		t.Run(fmt.Sprintf("NeverWhileRenewalsCountWithMargin%v", margin), func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				c.Link.Delay(50*time.Millisecond, 50*time.Millisecond)
				lead(t, newElector(t, c, &tenure.Options{TTL: ttl, Margin: margin, Hooks: &tenure.Hooks{
					Expiring: func(_ *tenure.Term, left time.Duration) { t.Errorf("Expiring(%v)", left) },
				}}))
				time.Sleep(10 * time.Minute)
			})
		})
	}
}

// L14, S14. Each attempt is told with its latency and its error, and the last
// trouble can be read from the status while the term goes on.
func TestRenewalsAndTroubleAreTold(t *testing.T) {
	const ttl = 9 * time.Second
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		hooks, renewed := renewals()
		e := newElector(t, c, &tenure.Options{TTL: ttl, Hooks: hooks})
		require.Equal(t, tenure.Idle, e.Status().State)
		require.Zero(t, e.Status().TTL)
		term := lead(t, e)
		c.Faults.On("LeaseKeepAlive", etcdtest.DelayAnswer(400*time.Millisecond))
		c.Faults.On("Txn", etcdtest.DelayAnswer(300*time.Millisecond), etcdtest.Match(reads))
		require.Equal(t, renewal{latency: 700 * time.Millisecond}, etcdtest.Await(t, ttl/2, "Hooks.Renewed", renewed))
		st := e.Status()
		require.Equal(t, tenure.Leading, st.State)
		require.Equal(t, term.Fence(), st.Leader.Fence)
		require.Equal(t, ttl, st.TTL)
		require.NoError(t, st.Err)
		require.Equal(t, time.Now(), st.Seen)
		heard := time.Now()

		failing := c.Faults.On("LeaseKeepAlive", etcdtest.FailRequest(rpctypes.ErrGRPCNoLeader))
		for range 2 {
			r := etcdtest.Await(t, ttl/2, "Hooks.Renewed", renewed)
			require.ErrorIs(t, r.err, rpctypes.ErrNoLeader)
			require.Zero(t, r.latency)
		}
		st = e.Status()
		require.Equal(t, tenure.Leading, st.State, "the term is valid")
		require.ErrorIs(t, st.Err, rpctypes.ErrNoLeader)
		require.Equal(t, heard, st.Seen)
		failing.Stop()
		counted(t, ttl, renewed)
		require.NoError(t, e.Status().Err)
		require.Equal(t, time.Now(), e.Status().Seen)
	})
}

// While etcd does not answer, the state of an elector that leads no more is
// Unreachable, since it was heard last.
func TestStateIsUnreachableAfterTheTermWasLost(t *testing.T) {
	const ttl = 6 * time.Second
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		var states []tenure.State
		hooks, renewed := renewals()
		hooks.StateChanged = func(st tenure.Status) { states = append(states, st.State) }
		e := newElector(t, c, &tenure.Options{TTL: ttl, Hooks: hooks})
		terms, _ := run(t, e)
		term := etcdtest.Await(t, time.Second, "Run", terms)
		counted(t, ttl, renewed)
		heard, limit := time.Now(), term.ValidUntil()
		c.Link.Cut()
		for time.Now().Before(limit) {
			require.Equal(t, tenure.Leading, e.Status().State)
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(ttl)
		st := e.Status()
		require.Equal(t, tenure.Unreachable, st.State)
		require.False(t, st.Since.After(heard.Add(time.Second)), "since %v, heard last at %v", st.Since, heard)
		require.Error(t, st.Err)
		synctest.Wait()
		require.Contains(t, states, tenure.Unreachable)

		c.Link.Heal()
		term = etcdtest.Await(t, 3*ttl, "Run", terms)
		synctest.Wait()
		require.Equal(t, tenure.Leading, e.Status().State)
		require.Equal(t, term.Fence(), e.Status().Leader.Fence)
		require.Equal(t, tenure.Leading, states[len(states)-1])
	})
}

// 50 electors on one lease cost as many requests as one, and lose their terms
// together. With more than one read can hold, the reads take turns.
func TestSharedLeaseCostsAsMuchAsOne(t *testing.T) {
	const ttl = 9 * time.Second
	for _, n := range []int{1, 50, 150} {
		t.Run(fmt.Sprintf("Electors%d", n), func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				hooks, renewals := renewals()
				lease, err := tenure.NewLease(c.Client, &tenure.LeaseOptions{TTL: ttl, Margin: 2 * time.Second, Hooks: hooks})
				require.NoError(t, err)
				terms := make([]*tenure.Term, n)
				for i := range terms {
					e, err := tenure.New(c.Client, fmt.Sprint("/jobs/", i), &tenure.Options{Lease: lease})
					require.NoError(t, err)
					terms[i] = lead(t, e)
				}
				time.Sleep(ttl + time.Second)
				renewed, txns, ranges := c.Faults.Count("LeaseKeepAlive"), c.Faults.Count("Txn"), c.Faults.Count("Range")
				time.Sleep(15 * time.Minute)
				require.Equal(t, int(15*time.Minute/(ttl/3)), c.Faults.Count("LeaseKeepAlive")-renewed)
				require.Equal(t, int(15*time.Minute/(ttl/3)), c.Faults.Count("Txn")-txns)
				require.Equal(t, ranges, c.Faults.Count("Range"))
				require.Len(t, streams(c), 1)
				require.Equal(t, 1, c.Faults.Count("LeaseGrant"))
				require.Equal(t, 1, s.Leases())
				turns := readIn(c, 2)
				for _, term := range terms {
					require.True(t, term.Valid())
					require.Equal(t, terms[0].ValidUntil(), term.ValidUntil())
					require.Contains(t, turns, term.Fence().Key)
				}

				require.Len(t, renewals, c.Faults.Count("LeaseKeepAlive"))
				limit := sent(t, c, "LeaseKeepAlive").Add(ttl - 2*time.Second)
				c.Link.Cut()
				endsAt(t, terms[0], limit)
				for _, term := range terms {
					require.False(t, term.Valid())
					require.ErrorIs(t, context.Cause(term.Context()), tenure.LeaseExpired)
				}
				c.Close()
			})
		})
	}
}

// readIn returns the keys that the last n reads have asked for.
func readIn(c *etcdtest.Client, n int) map[string]bool {
	keys := make(map[string]bool)
	log := c.Faults.Log("Txn")
	for i := len(log) - 1; i >= 0 && n > 0; i-- {
		r, ok := log[i].Body.(*pb.TxnRequest)
		if !ok || !reads(r) {
			continue
		}
		for _, op := range r.Success {
			keys[string(op.GetRequestRange().Key)] = true
		}
		n--
	}
	return keys
}

// newTerm returns a term that needs no etcd. To ask it the time costs the same.
func newTerm(tb testing.TB) *tenure.Term {
	tb.Helper()
	term := tenuretest.NewElection(key).Grant(nil)
	tb.Cleanup(func() { _ = term.Resign() })
	return term
}

func TestValidDoesNotAllocate(t *testing.T) {
	term, now := newTerm(t), time.Now()
	require.Zero(t, testing.AllocsPerRun(1000, func() { term.Valid() }), "Valid")
	require.Zero(t, testing.AllocsPerRun(1000, func() { term.ValidAt(now) }), "ValidAt")
	require.Zero(t, testing.AllocsPerRun(1000, func() { term.ValidUntil() }), "ValidUntil")
	require.NoError(t, term.Resign())
	require.Zero(t, testing.AllocsPerRun(1000, func() { term.Valid() }), "Valid after the end")
}

func BenchmarkValid(b *testing.B) {
	term := newTerm(b)
	b.ReportAllocs()
	for b.Loop() {
		term.Valid()
	}
}

func BenchmarkValidParallel(b *testing.B) {
	term := newTerm(b)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			term.Valid()
		}
	})
}

func BenchmarkValidAt(b *testing.B) {
	term, now := newTerm(b), time.Now()
	b.ReportAllocs()
	for b.Loop() {
		term.ValidAt(now)
	}
}

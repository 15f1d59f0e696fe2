package tenure_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
)

// resignTTL is above etcd's floor of 2 s, so that it is what is granted.
const resignTTL = 6 * time.Second

// bound is how long Resign may take.
func bound(ttl time.Duration) time.Duration { return min(ttl, 2*time.Second) }

// A17, S09. Two candidates hand over to each other, without a pause.
func TestResignHandsOver(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		for _, shared := range []bool{false, true} {
			t.Logf("shared lease: %v", shared)
			c := s.Client()
			opts := tenure.Options{TTL: resignTTL}
			if shared {
				lease, err := tenure.NewLease(c.Client, nil)
				require.NoError(t, err)
				opts = tenure.Options{Lease: lease}
			}
			electors := []*tenure.Elector{newElector(t, c, &opts), newElector(t, c, &opts)}
			term := lead(t, electors[0])
			won := campaign(t.Context(), electors[1])
			for i := range 100 {
				time.Sleep(time.Second) // for etcd to tell the follower of this term
				start := time.Now()
				require.NoError(t, term.Resign())
				again := campaign(t.Context(), electors[i%2])
				o := etcdtest.Await(t, time.Second, "Campaign", won)
				require.NoError(t, o.err)
				require.Less(t, time.Since(start), 200*time.Millisecond)
				require.Greater(t, o.term.Epoch(), term.Epoch())
				require.Same(t, o.term, electors[(i+1)%2].Term())
				require.Nil(t, electors[i%2].Term())
				term, won = o.term, again
			}
			time.Sleep(time.Second)
			require.NoError(t, term.Resign())
			require.NoError(t, etcdtest.Await(t, time.Second, "Campaign", won).term.Resign())
			require.Zero(t, s.Leases())
		}
	})
}

// A17. Whoever has let go waits for a third of the TTL, unless somebody else has
// led meanwhile.
func TestCoolDown(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		e := newElector(t, s.Client(), &tenure.Options{TTL: resignTTL})
		term := lead(t, e)
		start := time.Now()
		require.NoError(t, term.Resign())
		term = lead(t, e)
		require.GreaterOrEqual(t, time.Since(start), resignTTL/3)
		require.Less(t, time.Since(start), resignTTL/3+10*time.Millisecond)

		_, err := s.Admin().Delete(t.Context(), key)
		require.NoError(t, err)
		etcdtest.Await(t, time.Second, "Context", term.Context().Done())
		require.ErrorIs(t, term.Err(), tenure.KeyDeleted)
		start = time.Now()
		require.NoError(t, term.Resign())
		term = lead(t, e)
		require.GreaterOrEqual(t, time.Since(start), resignTTL/3-10*time.Millisecond)

		other := campaign(t.Context(), newElector(t, s.Client(), nil))
		time.Sleep(time.Second)
		start = time.Now()
		require.NoError(t, term.Resign())
		won := campaign(t.Context(), e)
		o := etcdtest.Await(t, time.Second, "Campaign", other)
		require.NoError(t, o.err)
		etcdtest.Eventually(t, time.Second, "State", tenure.Led, func() tenure.State { return e.Status().State })
		require.NoError(t, o.term.Resign())
		o = etcdtest.Await(t, time.Second, "Campaign", won)
		require.NoError(t, o.err)
		require.Less(t, time.Since(start), resignTTL/3)
		require.NoError(t, o.term.Resign())
	})
}

// A17. It has led also if the watch tells of its beginning and end at once.
func TestCoolDownEndsWithABriefTerm(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		e := newElector(t, c, &tenure.Options{TTL: 3 * resignTTL})
		term := lead(t, e)
		require.NoError(t, term.Resign())
		start := time.Now()
		won := campaign(t.Context(), e)
		etcdtest.Eventually(t, time.Second, "watches", 1, func() int { return c.Faults.Streams("Watch") })
		time.Sleep(100 * time.Millisecond)
		late := c.Faults.Next("Watch", etcdtest.DelayAnswer(100*time.Millisecond))
		other := lead(t, newElector(t, s.Client(), nil))
		require.NoError(t, other.Resign())
		o := etcdtest.Await(t, resignTTL, "Campaign", won)
		require.NoError(t, o.err)
		require.NotZero(t, late.Hits())
		require.Less(t, time.Since(start), resignTTL/2)
		require.Greater(t, o.term.Epoch(), other.Epoch())
		require.NoError(t, o.term.Resign())
	})
}

// A17, W12. A read from before the resignation, whose answer comes after it,
// does not bring the key back, to go once more.
func TestLateReadDoesNotEndTheCoolDown(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		const ttl = 6 * time.Second
		c := s.Client()
		e := newElector(t, c, &tenure.Options{TTL: ttl})
		terms, resign := make(chan *tenure.Term), make(chan struct{})
		done := startRun(t.Context(), e, func(ctx context.Context, term *tenure.Term) error {
			terms <- term
			select {
			case <-resign:
				return term.Resign()

			case <-ctx.Done():
				return nil
			}
		})
		term := etcdtest.Await(t, time.Second, "work", terms)
		for range 10 {
			late := c.Faults.Next("Txn", etcdtest.HoldAnswer(), etcdtest.Match(confirms))
			etcdtest.Await(t, ttl, "Txn", late.Fired())
			later := c.Faults.Next("Watch", etcdtest.HoldAnswer())
			resign <- struct{}{}
			<-term.Context().Done()
			start := time.Now()
			synctest.Wait()
			late.Release()
			synctest.Wait()
			later.Release()
			next := etcdtest.Await(t, ttl, "work", terms)
			require.GreaterOrEqual(t, time.Since(start), ttl/3)
			require.Greater(t, next.Epoch(), term.Epoch())
			term = next
		}
		require.Empty(t, done)
	})
}

// S05. Called often and at the same time, it does its work once.
func TestResignIsIdempotent(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		for _, shared := range []bool{false, true} {
			t.Logf("shared lease: %v", shared)
			x := newCandidacy(t, s, shared)
			x.keep()
			term := lead(t, x.e)
			x.c.Faults.Next("Txn", etcdtest.DelayAnswer(100*time.Millisecond), etcdtest.Match(deletesKey))
			var callers sync.WaitGroup
			for range 10 {
				callers.Go(func() {
					if err := term.Resign(); err != nil {
						t.Errorf("Resign() = %v, want no error", err)
					}
					if n := len(s.Keys(key)); n != 0 {
						t.Errorf("Resign has returned and there are %d keys", n)
					}
				})
			}
			callers.Wait()
			require.ErrorIs(t, context.Cause(term.Context()), tenure.Resigned)
			require.ErrorIs(t, term.Err(), tenure.Resigned)
			require.False(t, term.Valid())

			sent := len(x.c.Faults.Log("Txn"))
			require.NoError(t, term.Resign())
			require.Len(t, x.c.Faults.Log("Txn"), sent)
			x.clean()
		}
	})
}

// S05, S08. A delete that meets a fault once is repeated until it is known. One
// that meets it for as long as Resign lasts is reported as unknown; Resign can be
// called again, and if it is not, the key does not stay, although a shared lease
// is renewed.
func TestResignSurvivesFaults(t *testing.T) {
	for _, f := range faults() {
		t.Run(f.name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				for _, shared := range []bool{false, true} {
					for _, times := range []string{"once", "to the end, and Resign is called again", "to the end"} {
						t.Logf("shared lease: %v, the fault happens %s", shared, times)
						x := newCandidacy(t, s, shared)
						x.keep()
						term := lead(t, x.e)
						rule := x.c.Faults.On("Txn", f.action, etcdtest.Match(deletesKey))
						if times == "once" {
							rule.Stop()
							rule = x.c.Faults.Next("Txn", f.action, etcdtest.Match(deletesKey))
						}
						start := time.Now()
						err := term.Resign()
						require.LessOrEqual(t, time.Since(start), bound(acquireTTL))
						etcdtest.Await(t, time.Second, "the fault", rule.Fired())
						require.False(t, term.Valid())
						require.Error(t, term.Context().Err())
						if times == "once" {
							require.NoError(t, err)
						} else if err != nil {
							require.ErrorIs(t, err, tenure.ErrUnknownOutcome)
						}
						if err == nil {
							require.Empty(t, s.Keys(key))
						}
						rule.Release()
						if times == "to the end, and Resign is called again" {
							require.NoError(t, term.Resign())
							require.Empty(t, s.Keys(key))
						}
						x.clean()
						require.NoError(t, s.Client().Close())
					}
				}
			})
		})
	}
}

// S06. The answer to the delete is lost, and by the time it is repeated another
// candidate holds the key, or a later term of our own on the same lease.
func TestResignSparesTheSuccessor(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		for _, shared := range []bool{false, true} {
			t.Logf("shared lease: %v", shared)
			x := newCandidacy(t, s, shared)
			x.keep()
			term := lead(t, x.e)
			won := campaign(t.Context(), newElector(t, s.Client(), nil))
			time.Sleep(time.Second)
			deletes := x.c.Faults.On("Txn", etcdtest.DropAnswer(etcdtest.Unavailable), etcdtest.Match(deletesKey))
			resigned := make(chan error, 1)
			go func() { resigned <- term.Resign() }()
			o := etcdtest.Await(t, bound(acquireTTL), "Campaign", won)
			require.NoError(t, o.err)
			require.Empty(t, resigned)
			require.ErrorIs(t, etcdtest.Await(t, bound(acquireTTL), "Resign", resigned), tenure.ErrUnknownOutcome)
			require.Greater(t, deletes.Hits(), 1)
			deletes.Stop()
			require.NoError(t, term.Resign())
			time.Sleep(3 * acquireTTL)
			require.NoError(t, o.term.Verify(t.Context()))
			require.NoError(t, o.term.Resign())

			deletes = x.c.Faults.On("Txn", etcdtest.DropAnswer(etcdtest.Unavailable), etcdtest.Match(deletesKey))
			term = lead(t, x.e)
			require.ErrorIs(t, term.Resign(), tenure.ErrUnknownOutcome)
			deletes.Stop()
			next := lead(t, x.e)
			require.NoError(t, term.Resign())
			time.Sleep(3 * acquireTTL)
			x.leads(next)
			require.NoError(t, next.Resign())
			x.clean()
		}
	})
}

// S07. The context of Run is the usual way to say that a process ends.
func TestCancelledRunGivesUpTheKeyAtOnce(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		for _, shared := range []bool{false, true} {
			t.Logf("shared lease: %v", shared)
			x := newCandidacy(t, s, shared)
			x.keep()
			ctx, cancel := context.WithCancelCause(t.Context())
			ended := startRun(ctx, x.e, untilTold)
			etcdtest.Eventually(t, time.Second, "State", tenure.Leading, func() tenure.State { return x.e.Status().State })
			won := campaign(t.Context(), newElector(t, s.Client(), nil))
			time.Sleep(time.Minute)
			start := time.Now()
			cancel(errors.New("the process ends"))
			require.Equal(t, context.Canceled, etcdtest.Await(t, time.Second, "Run", ended))
			require.Zero(t, time.Since(start))
			o := etcdtest.Await(t, time.Second, "Campaign", won)
			require.NoError(t, o.err)
			require.Zero(t, time.Since(start))
			require.NoError(t, o.term.Resign())
			x.clean()
		}
	})
}

// S08, S10. The leader is cut off and gives up. The key is gone a TTL after the
// last renewal, or as soon as the network heals and somebody asks again.
func TestResignWithoutEtcd(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		for _, shared := range []bool{false, true} {
			for _, heals := range []bool{false, true} {
				t.Logf("shared lease: %v, the network heals: %v", shared, heals)
				x := newCandidacy(t, s, shared)
				x.keep()
				term := lead(t, x.e)
				time.Sleep(time.Minute)
				x.c.Link.Cut()
				start := time.Now()
				require.ErrorIs(t, term.Resign(), tenure.ErrUnknownOutcome)
				require.LessOrEqual(t, time.Since(start), bound(acquireTTL))
				if heals {
					x.c.Link.Heal()
					require.NoError(t, term.Resign())
					require.Empty(t, s.Keys(key))
				} else {
					time.Sleep(acquireTTL + 500*time.Millisecond - time.Since(start))
					require.Empty(t, s.Keys(key))
					require.ErrorIs(t, term.Resign(), tenure.ErrUnknownOutcome) // nor does it know now
					x.c.Link.Heal()
					require.NoError(t, term.Resign())
				}
				if x.kept != nil {
					require.NoError(t, x.kept.Resign())
				}
				time.Sleep(acquireTTL + time.Second)
				require.Zero(t, s.Leases())
				next := lead(t, x.e)
				x.leads(next)
				require.NoError(t, next.Resign())
			}
		}
	})
}

// A01. An earlier put of Run arrives while the elector is between two terms and
// still uses its lease, or when it has left a lease that others use.
func TestLatePutOfAnEarlierTermDoesNotStay(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		for _, shared := range []bool{false, true} {
			for _, between := range []bool{true, false} {
				t.Logf("shared lease: %v, the put arrives between terms: %v", shared, between)
				x := newCandidacy(t, s, shared)
				x.keep()
				put := x.c.Faults.Next("Txn", etcdtest.HoldRequest(), etcdtest.Match(putsKey))
				ctx, cancel := context.WithCancel(t.Context())
				terms := make(chan *tenure.Term)
				ended := startRun(ctx, x.e, func(ctx context.Context, term *tenure.Term) error {
					terms <- term
					<-ctx.Done()
					return nil
				})
				first := etcdtest.Await(t, acquireTTL, "Run", terms)
				x.leads(first)
				require.NoError(t, tenure.Evict(t.Context(), s.Admin(), first.Fence(), nil))
				time.Sleep(100 * time.Millisecond)
				require.Empty(t, s.Keys(key))
				if between {
					put.Release()
				}
				second := etcdtest.Await(t, acquireTTL, "Run", terms)
				time.Sleep(2 * acquireTTL)
				x.leads(second)
				require.Greater(t, second.Epoch(), first.Epoch())
				cancel()
				require.ErrorIs(t, etcdtest.Await(t, time.Second, "Run", ended), context.Canceled)
				put.Release()
				x.clean()
			}
		}
	})
}

// L35. What an elector has started ends with its term or its campaign, though
// the client lives on.
func TestNothingGoesOnAfterTheEnd(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		for _, shared := range []bool{false, true} {
			t.Logf("shared lease: %v", shared)
			x := newCandidacy(t, s, shared)
			quiet := func(after string) {
				t.Helper()
				require.Zero(t, s.Leases(), "leases after %s", after)
				synctest.Wait()
				require.Zero(t, x.c.Faults.Streams(""), "streams after %s", after)
				requests := x.c.Faults.Count("")
				time.Sleep(time.Minute)
				require.Equal(t, requests, x.c.Faults.Count(""), "requests after %s", after)
			}
			term := lead(t, x.e)
			time.Sleep(time.Minute)
			require.NoError(t, term.Resign())
			quiet("Resign")
			x.noise()

			holder := lead(t, newElector(t, s.Client(), nil))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			_, err := x.e.Campaign(ctx)
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
			_, err = x.e.TryCampaign(t.Context())
			require.ErrorIs(t, err, tenure.ErrHeld)
			for st, err := range tenure.Observe(t.Context(), x.c.Client, key) {
				require.NoError(t, err)
				require.Equal(t, tenure.Led, st.State)
				break
			}
			ctx, cancel = context.WithTimeout(t.Context(), 0)
			require.Error(t, tenure.Evict(ctx, x.c.Client, holder.Fence(), nil))
			cancel()
			require.NoError(t, holder.Resign())
			quiet("a campaign that was lost")
		}
	})
}

// E04. That the lease is not there is what revoking it is for.
func TestRevokedLeaseNeedNotBeRevoked(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		for _, how := range []string{"our request was repeated", "an operator was faster"} {
			t.Log(how)
			x := newCandidacy(t, s, false)
			term := lead(t, x.e)
			if how == "our request was repeated" {
				x.c.Faults.On("LeaseRevoke", etcdtest.RetryRequest())
			} else {
				_, err := s.Admin().Revoke(t.Context(), term.Fence().Lease)
				require.NoError(t, err)
			}
			start := time.Now()
			require.NoError(t, term.Resign())
			require.Zero(t, time.Since(start))
			require.LessOrEqual(t, x.c.Faults.Count("LeaseRevoke"), 1)
			require.Zero(t, s.Leases())
		}
	})
}

func sharedLease(t *testing.T, c *etcdtest.Client, ttl time.Duration) *tenure.Lease {
	t.Helper()
	lease, err := tenure.NewLease(c.Client, &tenure.LeaseOptions{TTL: ttl})
	require.NoError(t, err)
	return lease
}

// S09, S10. The work of each term stops before its key goes, and its lease is
// renewed meanwhile, however many TTLs that takes.
func TestCloseEndsTermsInOrder(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		const drain = 2 * resignTTL
		c := s.Client()
		lease := sharedLease(t, c, resignTTL)

		// A leader in Run, one of Campaign, and a follower.
		runs, err := tenure.New(c.Client, "/runs", &tenure.Options{Lease: lease})
		require.NoError(t, err)
		work := make(chan *tenure.Term, 1)
		ran := startRun(t.Context(), runs, func(ctx context.Context, term *tenure.Term) error {
			work <- term
			<-ctx.Done()
			time.Sleep(drain)
			if !term.Valid() {
				t.Error("the term has ended before its work")
			}
			return nil
		})
		running := etcdtest.Await(t, time.Second, "Run", work)
		term := lead(t, newElector(t, c, &tenure.Options{Lease: lease}))
		follows := newElector(t, c, &tenure.Options{Lease: lease})
		following := campaign(t.Context(), follows)

		successor, err := tenure.New(s.Client().Client, "/runs", nil)
		require.NoError(t, err)
		succeeded := campaign(t.Context(), successor)
		time.Sleep(time.Minute)

		closed := make(chan error, 2)
		start := time.Now()
		for range 2 {
			go func() { closed <- lease.Close(t.Context()) }()
		}
		require.ErrorIs(t, etcdtest.Await(t, time.Second, "Campaign", following).err, tenure.ErrLeaseClosed)
		for _, ended := range []*tenure.Term{term, running} {
			etcdtest.Await(t, time.Second, "Context", ended.Context().Done())
			require.ErrorIs(t, context.Cause(ended.Context()), tenure.Resigned)
			require.ErrorIs(t, context.Cause(ended.Context()), tenure.ErrLeaseClosed)
			require.True(t, ended.Valid(), "its work has not stopped yet")
		}
		require.Zero(t, time.Since(start))
		_, err = follows.Campaign(t.Context())
		require.ErrorIs(t, err, tenure.ErrLeaseClosed)
		_, err = follows.TryCampaign(t.Context())
		require.ErrorIs(t, err, tenure.ErrHeld)

		time.Sleep(drain / 2)
		require.True(t, term.Valid())
		require.NoError(t, term.Resign())
		require.Empty(t, s.Keys(key))
		_, err = follows.TryCampaign(t.Context())
		require.ErrorIs(t, err, tenure.ErrLeaseClosed)
		require.Empty(t, closed)
		require.Empty(t, succeeded)

		require.ErrorIs(t, etcdtest.Await(t, drain, "Run", ran), tenure.ErrLeaseClosed)
		for range 2 {
			require.NoError(t, etcdtest.Await(t, time.Second, "Close", closed))
		}
		require.Equal(t, drain, time.Since(start))
		o := etcdtest.Await(t, time.Second, "Campaign", succeeded)
		require.NoError(t, o.err)
		require.Equal(t, drain, time.Since(start))
		require.Equal(t, 1, s.Leases())
		require.NoError(t, o.term.Resign())

		require.NoError(t, lease.Close(t.Context()))
		require.Zero(t, c.Faults.Streams(""))
	})
}

// S10. Someone does not let go. When Close gives up waiting, nothing is renewed
// any more.
func TestCloseGivesUpWithItsContext(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		lease := sharedLease(t, c, resignTTL)
		term := lead(t, newElector(t, c, &tenure.Options{Lease: lease}))
		time.Sleep(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), 2*resignTTL-time.Second)
		defer cancel()
		start := time.Now()
		require.ErrorIs(t, lease.Close(ctx), context.DeadlineExceeded)
		require.Equal(t, 2*resignTTL-time.Second, time.Since(start))
		require.True(t, term.Valid())

		renewals := c.Faults.Count("LeaseKeepAlive")
		time.Sleep(resignTTL + 500*time.Millisecond)
		require.Equal(t, renewals, c.Faults.Count("LeaseKeepAlive"))
		require.False(t, term.Valid())
		require.ErrorIs(t, term.Err(), tenure.LeaseExpired)
		require.Empty(t, s.Keys(key))
		require.Zero(t, s.Leases())
		require.NoError(t, term.Resign())
		require.NoError(t, lease.Close(t.Context()))
	})
}

func TestCloseOfAnUnusedLeaseSendsNothing(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		lease := sharedLease(t, c, resignTTL)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, lease.Close(ctx))
		require.Empty(t, c.Faults.Log(""))
		_, err := newElector(t, c, &tenure.Options{Lease: lease}).Campaign(t.Context())
		require.ErrorIs(t, err, tenure.ErrLeaseClosed)
		require.Empty(t, s.Keys(key))
		require.Zero(t, s.Leases())
	})
}

// Close comes while a campaign is somewhere between its first request and the
// win. Either it has won, and its term ends in order, or it has not, and says
// why.
func TestCloseDuringACampaignLeavesNothing(t *testing.T) {
	for _, p := range cancelPoints() {
		t.Run(p.name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				x := newCandidacy(t, s, true)
				var holder *tenure.Term
				if p.follower {
					holder = lead(t, newElector(t, s.Client(), nil))
				}
				var won <-chan outcome
				if p.slow {
					won = x.dawdle(t.Context(), false)
				}
				rule := x.c.Faults.Next(p.method, p.hold, p.only)
				if !p.slow {
					won = campaign(t.Context(), x.e)
				}
				if p.resigns {
					etcdtest.Eventually(t, acquireTTL, "State", tenure.Led, func() tenure.State { return x.e.Status().State })
					require.NoError(t, holder.Resign())
				}
				etcdtest.Await(t, acquireTTL, p.method, rule.Fired())
				closed := make(chan error, 1)
				go func() { closed <- x.opts.Lease.Close(t.Context()) }()
				synctest.Wait()
				rule.Release()
				o := etcdtest.Await(t, acquireTTL, "Campaign", won)
				require.ErrorIs(t, o.err, tenure.ErrLeaseClosed)
				require.NoError(t, etcdtest.Await(t, acquireTTL, "Close", closed))
				if holder != nil {
					require.NoError(t, holder.Resign())
				}
				time.Sleep(acquireTTL + time.Second)
				require.Empty(t, s.Keys(key))
				require.Zero(t, s.Leases())
				require.Zero(t, x.c.Faults.Streams(""))
			})
		})
	}
}

// S15. The client is closed under a leader and under a follower. Both hear of it
// at once, and nothing of theirs stays.
func TestClosedClientEndsEverything(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		for _, renewing := range []bool{false, true} {
			t.Logf("shared lease: %v, a renewal is under way: %v", renewing, renewing)
			x := newCandidacy(t, s, renewing)
			work := make(chan *tenure.Term, 1)
			stopped := make(chan time.Time, 1)
			ran := startRun(t.Context(), x.e, func(ctx context.Context, term *tenure.Term) error {
				work <- term
				<-ctx.Done()
				stopped <- time.Now()
				return nil
			})
			term := etcdtest.Await(t, time.Second, "Run", work)
			following := campaign(t.Context(), newElector(t, x.c, x.opts))
			time.Sleep(time.Minute + 100*time.Millisecond)
			if renewing {
				confirmation := x.c.Faults.On("Txn", etcdtest.LoseAnswer(), etcdtest.Match(confirms))
				etcdtest.Await(t, acquireTTL, "the renewal", confirmation.Fired())
			}
			start := time.Now()
			require.NoError(t, x.c.Close())
			require.Equal(t, start, etcdtest.Await(t, time.Second, "the work", stopped))
			require.False(t, term.Valid())
			require.ErrorIs(t, context.Cause(term.Context()), tenure.RenewalRefused)
			require.Nil(t, x.e.Term())

			o := etcdtest.Await(t, bound(acquireTTL), "Campaign", following)
			if o.err == nil {
				// The key was given up, and won, before the connection was
				// closed: a term, for no time at all.
				etcdtest.Await(t, time.Second, "the term", o.term.Context().Done())
				require.ErrorIs(t, context.Cause(o.term.Context()), tenure.RenewalRefused)
				_ = o.term.Resign()
			}
			require.Error(t, etcdtest.Await(t, bound(acquireTTL), "Run", ran))
			_, err := x.e.Campaign(t.Context())
			require.Error(t, err)
			_, err = x.e.TryCampaign(t.Context())
			require.Error(t, err)
			time.Sleep(acquireTTL + 500*time.Millisecond - time.Since(start))
			require.Empty(t, s.Keys(key))
			require.Zero(t, s.Leases())
		}
	})
}

package tenure_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
)

// diary is what the hooks of an elector were told, in order.
type diary struct {
	mu      sync.Mutex
	entries []string
	causes  map[tenure.Epoch]error
}

func (d *diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.entries = append(d.entries, fmt.Sprintf(format, args...))
}

func (d *diary) read() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.entries...)
}

func (d *diary) cause(epoch tenure.Epoch) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.causes[epoch]
}

// terms returns hooks that note the beginnings and the ends of terms.
func (d *diary) terms() *tenure.Hooks {
	d.causes = make(map[tenure.Epoch]error)
	return &tenure.Hooks{
		TermStarted: func(term *tenure.Term) { d.note("started %d", term.Epoch()) },
		TermEnded: func(term *tenure.Term, cause error) {
			d.note("ended %d", term.Epoch())
			d.mu.Lock()
			defer d.mu.Unlock()
			d.causes[term.Epoch()] = cause
		},
	}
}

// createsKey narrows a rule to transactions that may create the election's key.
var createsKey = etcdtest.Match(func(r *pb.TxnRequest) bool {
	return len(r.Success) == 1 && string(r.Success[0].GetRequestPut().GetKey()) == key
})

var reasons = []tenure.Reason{
	tenure.LeaseExpired, tenure.RenewalRefused, tenure.KeyDeleted, tenure.KeyReplaced,
	tenure.Resigned, tenure.Evicted, tenure.ContextEnded, tenure.Fenced,
}

// L18, S01. Whoever asks gets the same reason, and no other: the work by the
// cause of its context, the holder of the term, and the hook.
func TestEveryReasonReachesContextTermAndHook(t *testing.T) {
	why := errors.New("shutting down")
	type scene struct {
		s      *etcdtest.Server
		c      *etcdtest.Client
		term   *tenure.Term
		cancel context.CancelCauseFunc
	}
	provoke := map[tenure.Reason]func(t *testing.T, x *scene){
		tenure.LeaseExpired: func(_ *testing.T, x *scene) { x.c.Link.Cut() },
		tenure.RenewalRefused: func(t *testing.T, x *scene) {
			_, err := x.s.Admin().RoleRevokePermission(t.Context(), "app", "/", clientv3.GetPrefixRangeEnd("/"))
			require.NoError(t, err)
		},
		tenure.KeyDeleted: func(t *testing.T, x *scene) {
			_, err := x.s.Admin().Delete(t.Context(), key)
			require.NoError(t, err)
		},
		tenure.KeyReplaced: func(t *testing.T, x *scene) {
			_, err := x.s.Admin().Put(t.Context(), key, "mine", clientv3.WithIgnoreLease())
			require.NoError(t, err)
		},
		tenure.Resigned: func(t *testing.T, x *scene) { require.NoError(t, x.term.Resign()) },
		tenure.Evicted: func(t *testing.T, x *scene) {
			require.NoError(t, tenure.Evict(t.Context(), x.s.Admin(), x.term.Fence(), nil))
		},
		tenure.ContextEnded: func(_ *testing.T, x *scene) { x.cancel(why) },
		tenure.Fenced: func(t *testing.T, x *scene) {
			// The watch is deaf to the loss, and the etcd client is not.
			x.c.Faults.On("Watch", etcdtest.LoseAnswer(), etcdtest.Deletes(key))
			_, err := x.s.Admin().Delete(t.Context(), key)
			require.NoError(t, err)
			_, err = x.term.KV(x.c.Client).Put(t.Context(), "/data", "")
			require.ErrorIs(t, err, tenure.ErrFenced)
		},
	}
	for _, reason := range reasons {
		t.Run(string(reason), func(t *testing.T) {
			etcdtest.BubbleWith(t, &etcdtest.ServerOptions{Auth: true}, func(t *testing.T, s *etcdtest.Server) {
				s.AddUser("app", "secret", clientv3.PermissionType(clientv3.PermReadWrite), "/")
				x := &scene{s: s, c: s.Client(etcdtest.As("app", "secret"))}
				var d diary
				e := newElector(t, x.c, &tenure.Options{TTL: 6 * time.Second, Hooks: d.terms()})
				var ctx context.Context
				ctx, x.cancel = context.WithCancelCause(t.Context())
				defer x.cancel(nil)
				toldBecause := make(chan error, 10)
				done := startRun(ctx, e, func(ctx context.Context, _ *tenure.Term) error {
					<-ctx.Done()
					toldBecause <- context.Cause(ctx)
					return nil
				})
				x.term = awaitTerm(t, 5*time.Second, e)
				require.NoError(t, x.term.Err())
				time.Sleep(5 * time.Second)
				provoke[reason](t, x)
				told := etcdtest.Await(t, 10*time.Second, "the end of the term's context", toldBecause)
				// An orderly end takes a while longer, and the hook is called
				// when it has come.
				etcdtest.Eventually(t, time.Second, "Term.Valid()", false, x.term.Valid)
				etcdtest.Eventually(t, time.Second, "TermEnded was called", true, func() bool { return d.cause(x.term.Epoch()) != nil })
				for who, err := range map[string]error{
					"Cause":     told,
					"Term.Err":  x.term.Err(),
					"TermEnded": d.cause(x.term.Epoch()),
				} {
					require.ErrorIs(t, err, tenure.ErrTermEnded, who)
					for _, r := range reasons {
						require.Equal(t, r == reason, errors.Is(err, r), "%s: %v, which is %v", who, err, r)
					}
					require.Equal(t, reason == tenure.ContextEnded, errors.Is(err, why), "%s: %v", who, err)
				}
				require.Equal(t, x.term.Err(), x.term.Verify(t.Context()))
				x.c.Link.Heal()
				x.cancel(nil)
				err := etcdtest.Await(t, 10*time.Second, "Run", done)
				if reason != tenure.RenewalRefused {
					require.Equal(t, context.Canceled, err)
				}
				require.ErrorIs(t, x.term.Err(), reason, "the first reason stands")
			})
		})
	}
}

// S12. Two candidates, many terms, every way to end one, and campaigns that came
// to nothing.
func TestTermHooksArePairedAndInOrder(t *testing.T) {
	for _, shared := range []bool{false, true} {
		t.Run(onLease(shared), func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				const ttl = 3 * time.Second
				ctx, cancel := context.WithCancel(t.Context())
				diaries := []*diary{{}, {}}
				var clients []*etcdtest.Client
				var electors []*tenure.Elector
				var dones []<-chan error
				var calls atomic.Int32
				for _, d := range diaries {
					c := s.Client()
					opts := withTTLAnd(t, c, ttl, shared, fmt.Sprintf("/sibling%d", len(clients)))
					opts.Hooks = d.terms()
					e := newElector(t, c, opts)
					clients, electors = append(clients, c), append(electors, e)
					dones = append(dones, startRun(ctx, e, func(ctx context.Context, term *tenure.Term) error {
						d.note("work %d", term.Epoch())
						calls.Add(1)
						return untilTold(ctx, term)
					}))
				}
				leader := func() int {
					t.Helper()
					led := -1
					etcdtest.Eventually(t, 20*time.Second, "somebody leads", true, func() bool {
						for i, e := range electors {
							if e.Term() != nil {
								led = i
							}
						}
						return led >= 0
					})
					return led
				}
				for round := range 12 {
					i := leader()
					term := electors[i].Term()
					time.Sleep(time.Second)
					switch round % 6 {
					case 0:
						_, err := s.Admin().Delete(ctx, key)
						require.NoError(t, err)
					case 1:
						require.NoError(t, tenure.Evict(ctx, s.Admin(), term.Fence(), nil))
					case 2:
						clients[i].Link.Cut()
						time.Sleep(2 * ttl)
						clients[i].Link.Heal()
					case 3:
						require.NoError(t, term.Resign())
					case 4:
						// The other one's attempt comes too late for its lease.
						late := clients[1-i].Faults.Next("Txn", etcdtest.DelayAnswer(10*time.Second), createsKey)
						_, err := s.Admin().Delete(ctx, key)
						require.NoError(t, err)
						time.Sleep(2 * ttl)
						late.Stop()
					case 5:
						s.Restart(2 * ttl)
					}
					etcdtest.Eventually(t, 10*time.Second, "Term.Valid()", false, term.Valid)
				}
				leader()
				cancel()
				for _, done := range dones {
					require.Equal(t, context.Canceled, etcdtest.Await(t, 10*time.Second, "Run", done))
				}
				var terms int
				for _, d := range diaries {
					entries := d.read() // without a wait: Run has waited for the hooks
					var open string
					for _, entry := range entries {
						what, epoch, _ := strings.Cut(entry, " ")
						switch what {
						case "started":
							require.Empty(t, open, "%v", entries)
							open = epoch
							terms++
						case "ended":
							require.Equal(t, open, epoch, "%v", entries)
							open = ""
						}
					}
					require.Empty(t, open, "%v", entries)
				}
				require.Equal(t, int(calls.Load()), terms, "hooks for exactly the terms that the work saw")
				require.Greater(t, terms, 10)
			})
		})
	}
}

// S12. A logger that takes its time does not let the hooks fall behind: they have
// all run when Run returns, and those of a term before those of the next.
func TestSlowLoggerDoesNotDelayHooks(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var d diary
		c := s.Client()
		e := newElector(t, c, &tenure.Options{
			TTL: 2 * time.Second, Hooks: d.terms(), Logger: slog.New(slowHandler{slog.DiscardHandler}),
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := startRun(ctx, e, untilTold)
		first := awaitTerm(t, 10*time.Second, e)
		c.Link.Cut()
		etcdtest.Await(t, 5*time.Second, "the end of the term's context", first.Context().Done())
		c.Link.Heal()
		second := awaitTerm(t, 10*time.Second, e)
		cancel()
		require.Equal(t, context.Canceled, etcdtest.Await(t, time.Minute, "Run", done))
		require.Equal(t, []string{
			"started " + fmt.Sprint(int64(first.Epoch())), "ended " + fmt.Sprint(int64(first.Epoch())),
			"started " + fmt.Sprint(int64(second.Epoch())), "ended " + fmt.Sprint(int64(second.Epoch())),
		}, d.read())
	})
}

type slowHandler struct{ slog.Handler }

func (slowHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h slowHandler) WithAttrs([]slog.Attr) slog.Handler { return h }

func (slowHandler) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "the term has ended" {
		time.Sleep(30 * time.Second)
	}
	return nil
}

// S12. The first hook blocks for many TTLs, in which the lease is renewed, a
// term ends and another begins. What was to be told meanwhile is told then, in
// order and one at a time.
func TestBlockingHookHoldsUpOnlyHooks(t *testing.T) {
	for _, shared := range []bool{false, true} {
		t.Run(onLease(shared), func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				const ttl = 3 * time.Second
				var d diary
				var inside atomic.Int32
				blocked := make(chan struct{})
				release := sync.OnceFunc(func() { close(blocked) })
				defer release()
				told := func(format string, args ...any) {
					assert.EqualValues(t, 1, inside.Add(1), "hooks at a time")
					defer inside.Add(-1)
					<-blocked
					d.note(format, args...)
					time.Sleep(10 * time.Millisecond)
				}
				c := s.Client()
				opts := withTTL(t, c, ttl, shared)
				opts.Hooks = &tenure.Hooks{
					TermStarted:  func(term *tenure.Term) { told("started %d", term.Epoch()) },
					TermEnded:    func(term *tenure.Term, _ error) { told("ended %d", term.Epoch()) },
					StateChanged: func(st tenure.Status) { told("%v", st.State) },
					Renewed:      func(time.Duration, error) { told("renewed") },
					Expiring:     func(term *tenure.Term, _ time.Duration) { told("expiring %d", term.Epoch()) },
					Overstayed:   func(term *tenure.Term) { told("overstayed %d", term.Epoch()) },
				}
				opts.StopTimeout = time.Second
				e := newElector(t, c, opts)
				ctx, cancel := context.WithCancel(t.Context())
				done := startRun(ctx, e, func(ctx context.Context, term *tenure.Term) error {
					<-ctx.Done()
					time.Sleep(2 * time.Second)
					return nil
				})
				first := awaitTerm(t, 5*time.Second, e)
				for range 100 {
					time.Sleep(ttl / 10)
					require.True(t, first.Valid())
				}
				_, err := s.Admin().Delete(ctx, key)
				require.NoError(t, err)
				etcdtest.Await(t, 50*time.Millisecond, "the end of the term's context", first.Context().Done())
				second := awaitTerm(t, 10*time.Second, e)
				time.Sleep(10 * ttl)
				require.True(t, second.Valid())
				cancel()
				etcdtest.Await(t, 50*time.Millisecond, "the end of the term's context", second.Context().Done())
				time.Sleep(3 * time.Second)
				require.Empty(t, s.Keys(key), "given up")
				require.Empty(t, done, "Run waits for the hooks")
				require.Empty(t, d.read())
				release()
				require.Equal(t, context.Canceled, etcdtest.Await(t, 5*time.Second, "Run", done))

				var got []string
				renewals := 0
				for _, entry := range d.read() {
					if entry == "renewed" {
						renewals++
						continue
					}
					got = append(got, entry)
				}
				require.Equal(t, []string{
					"vacant", fmt.Sprintf("started %d", first.Epoch()), "leading",
					"vacant", fmt.Sprintf("ended %d", first.Epoch()), fmt.Sprintf("overstayed %d", first.Epoch()),
					fmt.Sprintf("started %d", second.Epoch()), "leading",
					fmt.Sprintf("overstayed %d", second.Epoch()), fmt.Sprintf("ended %d", second.Epoch()), "idle",
				}, got)
				if !shared { // else the hook of the lease's own options tells
					require.Greater(t, renewals, 50)
				}
			})
		})
	}
}

// Status tells the same as the hook, and the hook every change once.
func TestStateChangedTellsEveryState(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		const ttl = 3 * time.Second
		states := func(d *diary) *tenure.Hooks {
			return &tenure.Hooks{StateChanged: func(st tenure.Status) { d.note("%v %s", st.State, st.Leader.Identity) }}
		}
		var leaders, followers diary
		c := s.Client()
		e := newElector(t, s.Client(), &tenure.Options{Identity: "one", TTL: ttl, Hooks: states(&leaders)})
		f := newElector(t, c, &tenure.Options{Identity: "two", TTL: ttl, Hooks: states(&followers)})
		require.Equal(t, tenure.Idle, e.Status().State)
		ctx, cancel := context.WithCancel(t.Context())
		edone := startRun(ctx, e, untilTold)
		awaitTerm(t, 5*time.Second, e)
		require.Equal(t, tenure.Leading, e.Status().State)
		fdone := startRun(t.Context(), f, func(_ context.Context, term *tenure.Term) error {
			time.Sleep(time.Minute)
			return nil
		})
		time.Sleep(time.Minute)
		require.Equal(t, tenure.Led, f.Status().State)

		before := time.Now()
		c.Link.Refuse()
		c.Link.DropConnections()
		time.Sleep(2 * ttl)
		st := f.Status()
		require.Equal(t, tenure.Unreachable, st.State)
		require.Equal(t, "one", st.Leader.Identity, "the last one known")
		require.WithinRange(t, st.Since, before.Add(-ttl/3-100*time.Millisecond), before, "since etcd was heard last")
		require.Error(t, st.Err)
		c.Link.Heal()
		// gRPC dials again when its back-off says so, which no heal shortens.
		etcdtest.Eventually(t, time.Minute, "Status().State", tenure.Led, func() tenure.State { return f.Status().State })

		cancel()
		require.Equal(t, context.Canceled, etcdtest.Await(t, 5*time.Second, "Run", edone))
		require.Equal(t, tenure.Idle, e.Status().State)
		require.NoError(t, etcdtest.Await(t, 2*time.Minute, "Run", fdone))
		require.Equal(t, []string{"vacant ", "leading one", "idle "}, leaders.read())
		require.Equal(t, []string{"led one", "unreachable one", "led one", "vacant ", "leading two", "idle "}, followers.read())
	})
}

// A hook may end the term, from whichever hook and in whichever mode.
func TestHookMayResign(t *testing.T) {
	for _, inRun := range []bool{false, true} {
		for _, name := range []string{"TermStarted", "StateChanged", "Expiring"} {
			t.Run(name+map[bool]string{false: "InCampaign", true: "InRun"}[inRun], func(t *testing.T) {
				etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
					c := s.Client()
					resigned := make(chan error, 10)
					var once sync.Once
					resign := func(term *tenure.Term) { once.Do(func() { resigned <- term.Resign() }) }
					var e *tenure.Elector
					hooks := map[string]*tenure.Hooks{
						"TermStarted": {TermStarted: resign},
						"StateChanged": {StateChanged: func(st tenure.Status) {
							if term := e.Term(); st.State == tenure.Leading && term != nil {
								resign(term)
							}
						}},
						"Expiring": {Expiring: func(term *tenure.Term, _ time.Duration) { resign(term) }},
					}[name]
					var ended atomic.Int32
					hooks.TermEnded = func(*tenure.Term, error) { ended.Add(1) }
					e = newElector(t, c, &tenure.Options{TTL: 6 * time.Second, Hooks: hooks})
					if name == "Expiring" {
						c.Faults.On("LeaseKeepAlive", etcdtest.FailRequest(etcdtest.Unavailable))
					}
					if inRun {
						var calls int
						require.ErrorIs(t, e.Run(t.Context(), func(ctx context.Context, _ *tenure.Term) error {
							if calls++; calls == 2 {
								return errWork
							}
							<-ctx.Done()
							return nil
						}), errWork)
					} else {
						term, err := e.Campaign(t.Context())
						require.NoError(t, err)
						etcdtest.Await(t, 10*time.Second, "the end of the term's context", term.Context().Done())
					}
					require.NoError(t, etcdtest.Await(t, 5*time.Second, "Term.Resign", resigned))
					etcdtest.Eventually(t, time.Second, "keys left", 0, func() int { return len(s.Keys(key)) })
					etcdtest.Eventually(t, time.Second, "TermEnded was called", true, func() bool { return ended.Load() > 0 })
				})
			})
		}
	}
}

// Renewed is told of each attempt, with the latency of the renewal and of the
// read that confirms it.
func TestRenewedTellsLatencyAndOutcome(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		type renewal struct {
			latency time.Duration
			err     error
		}
		c := s.Client()
		renewals := make(chan renewal, 100)
		lead(t, newElector(t, c, &tenure.Options{TTL: 9 * time.Second, Hooks: &tenure.Hooks{
			Renewed: func(latency time.Duration, err error) { renewals <- renewal{latency, err} },
		}}))
		require.NoError(t, etcdtest.Await(t, 5*time.Second, "Renewed", renewals).err)
		c.Faults.Next("LeaseKeepAlive", etcdtest.DelayAnswer(400*time.Millisecond))
		got := etcdtest.Await(t, 5*time.Second, "Renewed", renewals)
		require.NoError(t, got.err)
		require.Equal(t, 400*time.Millisecond, got.latency)
		c.Faults.Next("LeaseKeepAlive", etcdtest.LoseAnswer())
		got = etcdtest.Await(t, 5*time.Second, "Renewed", renewals)
		require.ErrorIs(t, got.err, context.DeadlineExceeded)
		require.Equal(t, 1500*time.Millisecond, got.latency, "a sixth of the TTL")
		require.NoError(t, etcdtest.Await(t, time.Second, "Renewed", renewals).err)
		require.Equal(t, 4, c.Faults.Count("LeaseKeepAlive"), "one call of the hook for each attempt")
		require.Empty(t, renewals)
	})
}

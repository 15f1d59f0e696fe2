package tenure_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
)

// awaitTerm waits until e leads, and returns the term.
func awaitTerm(t *testing.T, within time.Duration, e *tenure.Elector) *tenure.Term {
	t.Helper()
	etcdtest.Eventually(t, within, "Elector.Term() != nil", true, func() bool { return e.Term() != nil })
	return e.Term()
}

// newLease returns a lease for several electors of a client.
func newLease(t *testing.T, c *etcdtest.Client, opts *tenure.LeaseOptions) *tenure.Lease {
	t.Helper()
	l, err := tenure.NewLease(c.Client, opts)
	require.NoError(t, err)
	return l
}

// withTTL returns the options of an elector with a lease of its own, or with one
// that another elector of the client shares, which leads the election /sibling.
func withTTL(t *testing.T, c *etcdtest.Client, ttl time.Duration, shared bool) *tenure.Options {
	t.Helper()
	return withTTLAnd(t, c, ttl, shared, "/sibling")
}

// withTTLAnd is withTTL with the sibling's election.
func withTTLAnd(t *testing.T, c *etcdtest.Client, ttl time.Duration, shared bool, key string) *tenure.Options {
	t.Helper()
	if !shared {
		return &tenure.Options{TTL: ttl}
	}
	l := newLease(t, c, &tenure.LeaseOptions{TTL: ttl})
	sibling, err := tenure.New(c.Client, key, &tenure.Options{Lease: l})
	require.NoError(t, err)
	lead(t, sibling)
	return &tenure.Options{Lease: l}
}

func onLease(shared bool) string {
	if shared {
		return "OnSharedLease"
	}
	return "OnPrivateLease"
}

// logbook is what a logger has written.
type logbook struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logbook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logbook) logger() *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

// lines returns the lines that contain text.
func (b *logbook) lines(text string) (lines []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for line := range strings.Lines(b.buf.String()) {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

//go:noinline
func callRunFromHere(ctx context.Context, e *tenure.Elector, work func(context.Context, *tenure.Term) error) error {
	return e.Run(ctx, work)
}

// S02, S13. The key is deleted behind the holder's back, and the work takes no
// notice of its context for a minute.
func TestNextTermBeginsOnlyAfterWorkHasReturned(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		e := newElector(t, s.Client(), &tenure.Options{TTL: 3 * time.Second})
		ctx, cancel := context.WithCancel(t.Context())
		var running, calls atomic.Int32
		work := func(ctx context.Context, _ *tenure.Term) error {
			assert.EqualValues(t, 1, running.Add(1), "calls of the work at a time")
			defer running.Add(-1)
			assert.Contains(t, string(debug.Stack()), "callRunFromHere", "the work runs on the goroutine of Run")
			first := calls.Add(1) == 1
			<-ctx.Done()
			if first {
				time.Sleep(time.Minute)
			}
			return nil
		}
		done := make(chan error, 1)
		go func() { done <- callRunFromHere(ctx, e, work) }()
		first := awaitTerm(t, 10*time.Second, e)
		_, err := s.Admin().Delete(t.Context(), key)
		require.NoError(t, err)
		time.Sleep(59 * time.Second)
		require.ErrorIs(t, first.Err(), tenure.KeyDeleted)
		require.Nil(t, e.Term())
		require.Empty(t, s.Keys(key), "no campaign while the work goes on")
		require.EqualValues(t, 1, calls.Load())

		second := awaitTerm(t, 10*time.Second, e)
		require.Greater(t, second.Epoch(), first.Epoch())
		time.Sleep(time.Minute)
		require.EqualValues(t, 2, calls.Load(), "one call of the work per term")
		cancel()
		require.Equal(t, context.Canceled, etcdtest.Await(t, 10*time.Second, "Run", done))
	})
}

// S04. The drain is longer than two TTLs.
func TestLeaseIsRenewedWhileWorkDrains(t *testing.T) {
	const ttl, drain = 2 * time.Second, 5 * time.Second
	stops := map[string]func(s *etcdtest.Server, term *tenure.Term, cancel func()){
		"ContextEnded": func(_ *etcdtest.Server, _ *tenure.Term, cancel func()) { cancel() },
		"Evicted": func(s *etcdtest.Server, term *tenure.Term, _ func()) {
			go func() { _ = tenure.Evict(context.Background(), s.Admin(), term.Fence(), nil) }()
		},
	}
	for name, stop := range stops {
		for _, shared := range []bool{false, true} {
			t.Run(name+onLease(shared), func(t *testing.T) {
				etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
					c := s.Client()
					e := newElector(t, c, withTTL(t, c, ttl, shared))
					ctx, cancel := context.WithCancel(t.Context())
					told, drained := make(chan time.Time, 1), make(chan time.Time, 1)
					done := startRun(ctx, e, func(ctx context.Context, _ *tenure.Term) error {
						<-ctx.Done()
						told <- time.Now()
						time.Sleep(drain)
						drained <- time.Now()
						return nil
					})
					term := awaitTerm(t, 5*time.Second, e)
					time.Sleep(10 * time.Second)
					stop(s, term, cancel)
					began := etcdtest.Await(t, time.Second, "the end of the term's context", told)
					for time.Since(began) < drain-100*time.Millisecond {
						require.True(t, term.Valid(), "after %v of draining", time.Since(began))
						require.NoError(t, term.Err())
						require.Same(t, term, e.Term())
						require.Len(t, s.Keys(key), 1)
						require.EqualValues(t, term.Epoch(), s.Keys(key)[0].CreateRevision)
						time.Sleep(50 * time.Millisecond)
					}
					over := etcdtest.Await(t, time.Second, "the end of the drain", drained)
					etcdtest.Eventually(t, 100*time.Millisecond, "keys left", 0, func() int { return len(s.Keys(key)) })
					require.Less(t, time.Since(over), 100*time.Millisecond, "given up as soon as the work has returned")
					cancel()
					require.Equal(t, context.Canceled, etcdtest.Await(t, 5*time.Second, "Run", done))
				})
			})
		}
	}
}

// S03. The old work writes until 300 ms after its context has ended, and its
// successor from its first instant on.
func TestSuccessorWritesOnlyAfterLastWriteOfPredecessor(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var dones []<-chan error
		var terms atomic.Int32
		for range 2 {
			c := s.Client()
			e := newElector(t, c, &tenure.Options{TTL: 3 * time.Second})
			dones = append(dones, startRun(ctx, e, func(ctx context.Context, term *tenure.Term) error {
				terms.Add(1)
				for left := 30; left > 0; {
					if ctx.Err() != nil {
						left--
					}
					// Not guarded: only the order of events keeps these apart.
					if _, err := c.Put(context.Background(), "/data", term.Fence().String()); err != nil {
						return err
					}
					time.Sleep(10 * time.Millisecond)
				}
				return nil
			}))
		}
		for n := range int32(6) {
			etcdtest.Eventually(t, 10*time.Second, "terms", n+1, terms.Load)
			time.Sleep(500 * time.Millisecond)
			leader, err := tenure.Lookup(ctx, s.Admin(), key)
			require.NoError(t, err)
			require.NoError(t, tenure.Evict(ctx, s.Admin(), leader.Fence, nil))
		}
		cancel()
		for _, done := range dones {
			require.Equal(t, context.Canceled, etcdtest.Await(t, 5*time.Second, "Run", done))
		}
		var before tenure.Fence
		writes := history(t, s, "/data")
		for _, ev := range writes {
			var fence tenure.Fence
			require.NoError(t, fence.UnmarshalText(ev.Kv.Value))
			require.GreaterOrEqual(t, fence.Epoch, before.Epoch, "at revision %d", ev.Kv.ModRevision)
			before = fence
		}
		require.Greater(t, len(writes), 6*30)
	})
}

// history returns all puts to a key, which was never deleted.
func history(t *testing.T, s *etcdtest.Server, key string) []*clientv3.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	last, err := s.Admin().Get(ctx, key)
	require.NoError(t, err)
	require.Len(t, last.Kvs, 1)
	var events []*clientv3.Event
	for resp := range s.Admin().Watch(ctx, key, clientv3.WithRev(1)) {
		require.NoError(t, resp.Err())
		events = append(events, resp.Events...)
		if events[len(events)-1].Kv.ModRevision == last.Kvs[0].ModRevision {
			break
		}
	}
	require.Len(t, events, int(last.Kvs[0].Version))
	return events
}

var errWork = errors.New("the work is done")

// When work returns by itself, Run asks etcd whether the term still holds.
func TestRunVerifiesWhenWorkReturns(t *testing.T) {
	for _, want := range []error{nil, errWork} {
		t.Run("StillOursEndsRun", func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				e := newElector(t, s.Client(), nil)
				err := e.Run(t.Context(), func(context.Context, *tenure.Term) error {
					time.Sleep(30 * time.Second)
					return want
				})
				require.Equal(t, want, err)
				require.Empty(t, s.Keys(key))
				require.Zero(t, s.Leases())
			})
		})
	}

	again := func(t *testing.T, meanwhile func(s *etcdtest.Server, c *etcdtest.Client) (mend func())) {
		t.Helper()
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			c := s.Client()
			var book logbook
			e := newElector(t, c, &tenure.Options{TTL: 6 * time.Second, Logger: book.logger()})
			var calls int
			var mend func()
			err := e.Run(t.Context(), func(_ context.Context, term *tenure.Term) error {
				calls++
				if calls == 1 {
					mend = meanwhile(s, c)
					assert.True(t, term.Valid(), "nothing here knows of the loss")
					time.AfterFunc(4*time.Second, mend)
					return errWork
				}
				return nil
			})
			require.NoError(t, err)
			require.Equal(t, 2, calls)
			require.Len(t, book.lines(errWork.Error()), 1, "the error of the work is logged")
			require.Empty(t, s.Keys(key))
			require.Zero(t, s.Leases())
		})
	}
	t.Run("NoLongerOursCampaignsAgain", func(t *testing.T) {
		again(t, func(s *etcdtest.Server, c *etcdtest.Client) func() {
			rule := c.Faults.On("Watch", etcdtest.LoseAnswer(), etcdtest.Deletes(key))
			_, err := s.Admin().Delete(context.Background(), key)
			assert.NoError(t, err)
			time.Sleep(10 * time.Millisecond)
			return rule.Stop
		})
	})
	t.Run("UnknownCampaignsAgain", func(t *testing.T) {
		again(t, func(_ *etcdtest.Server, c *etcdtest.Client) func() {
			return c.Faults.On("Range", etcdtest.LoseAnswer()).Stop
		})
	})
}

// S07, S09. The key is gone when Run returns, not a TTL later.
func TestRunReturnsErrorOfItsContext(t *testing.T) {
	why := errors.New("shutting down")
	ends := map[string]struct {
		with func(context.Context) (context.Context, func())
		want error
	}{
		"Cancelled": {func(ctx context.Context) (context.Context, func()) {
			ctx, cancel := context.WithCancelCause(ctx)
			return ctx, func() { cancel(why) }
		}, context.Canceled},
		"DeadlineExceeded": {func(ctx context.Context) (context.Context, func()) {
			ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, why)
			context.AfterFunc(ctx, cancel)
			return ctx, func() { time.Sleep(time.Minute) }
		}, context.DeadlineExceeded},
	}
	for name, end := range ends {
		for _, shared := range []bool{false, true} {
			t.Run(name+onLease(shared), func(t *testing.T) {
				etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
					c := s.Client()
					e := newElector(t, c, withTTL(t, c, 10*time.Second, shared))
					ctx, stop := end.with(t.Context())
					var cause error
					done := startRun(ctx, e, func(ctx context.Context, _ *tenure.Term) error {
						<-ctx.Done()
						cause = context.Cause(ctx)
						return errWork
					})
					term := awaitTerm(t, 5*time.Second, e)
					stop()
					require.Equal(t, end.want, etcdtest.Await(t, 50*time.Millisecond, "Run", done), "exactly, not wrapped")
					require.Empty(t, s.Keys(key))
					require.False(t, term.Valid())
					require.ErrorIs(t, cause, tenure.ContextEnded)
					require.ErrorIs(t, cause, why)
				})
			})
		}
	}
	t.Run("WhileCampaigning", func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			holder := lead(t, newElector(t, s.Client(), nil))
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			err := newElector(t, s.Client(), nil).Run(ctx, func(context.Context, *tenure.Term) error {
				t.Error("the work was called without a term")
				return nil
			})
			require.Equal(t, context.DeadlineExceeded, err)
			require.True(t, holder.Valid())
			require.Equal(t, 1, s.Leases())
		})
	})
	t.Run("BeforeItBegins", func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			err := newElector(t, s.Client(), nil).Run(ctx, func(context.Context, *tenure.Term) error {
				t.Error("the work was called after the end of the context")
				return nil
			})
			require.Equal(t, context.Canceled, err)
			require.Empty(t, s.Keys(""))
			require.Zero(t, s.Leases())
		})
	})
}

func panicFromHere() { panic(errWork) }

// A03. Whatever way the work takes out of Run, the key is not left behind.
func TestWorkThatDoesNotReturnGivesUpTheKey(t *testing.T) {
	for _, shared := range []bool{false, true} {
		t.Run("Panic"+onLease(shared), func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				e := newElector(t, c, withTTL(t, c, 10*time.Second, shared))
				var term *tenure.Term
				var value any
				var stack string
				func() {
					defer func() {
						value = recover()
						stack = string(debug.Stack())
					}()
					_ = e.Run(t.Context(), func(_ context.Context, won *tenure.Term) error {
						term = won
						time.Sleep(30 * time.Second)
						panicFromHere()
						return nil
					})
				}()
				require.Equal(t, errWork, value)
				require.Contains(t, stack, "panicFromHere", "the stack is that of the panic")
				require.Empty(t, s.Keys(key), "gone before the panic goes on")
				require.ErrorIs(t, term.Err(), tenure.Resigned)
				require.Error(t, term.Context().Err())
				lead(t, e) // is free again
			})
		})
		t.Run("Goexit"+onLease(shared), func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				e := newElector(t, c, withTTL(t, c, 10*time.Second, shared))
				over := make(chan struct{})
				go func() {
					defer close(over)
					_ = e.Run(t.Context(), func(context.Context, *tenure.Term) error {
						runtime.Goexit()
						return nil
					})
				}()
				etcdtest.Await(t, 5*time.Second, "Goexit", over)
				require.Empty(t, s.Keys(key))
				lead(t, e)
			})
		})
	}
}

// A17. The work hands over in the middle of its term: the other candidate gets
// its turn, and this one comes back later.
func TestRunCampaignsAgainAfterWorkHasResigned(t *testing.T) {
	for _, alone := range []bool{true, false} {
		t.Run(map[bool]string{true: "Alone", false: "WithAnother"}[alone], func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				const ttl = 6 * time.Second
				ctx, cancel := context.WithCancel(t.Context())
				e := newElector(t, s.Client(), &tenure.Options{TTL: ttl})
				var epochs []tenure.Epoch
				var resigned, back time.Time
				done := startRun(ctx, e, func(ctx context.Context, term *tenure.Term) error {
					epochs = append(epochs, term.Epoch())
					if len(epochs) == 1 {
						time.Sleep(time.Minute)
						resigned = time.Now()
						assert.NoError(t, term.Resign())
						assert.ErrorIs(t, context.Cause(ctx), tenure.Resigned)
						assert.NoError(t, term.Resign(), "again")
						return errWork
					}
					back = time.Now()
					<-ctx.Done()
					return nil
				})
				first := awaitTerm(t, 5*time.Second, e)
				if !alone {
					other := newElector(t, s.Client(), &tenure.Options{TTL: ttl})
					limited, stop := context.WithTimeout(ctx, 10*time.Minute)
					term, err := other.Campaign(limited)
					stop()
					require.NoError(t, err)
					require.Less(t, time.Since(resigned), 100*time.Millisecond)
					time.Sleep(time.Minute)
					require.NoError(t, term.Resign())
				}
				<-first.Context().Done()
				second := awaitTerm(t, 10*time.Second, e)
				synctest.Wait()
				require.Greater(t, second.Epoch(), first.Epoch())
				if alone {
					require.GreaterOrEqual(t, back.Sub(resigned), ttl/3)
					require.Less(t, back.Sub(resigned), ttl/3+100*time.Millisecond)
				}
				cancel()
				require.Equal(t, context.Canceled, etcdtest.Await(t, 5*time.Second, "Run", done))
				require.Equal(t, []tenure.Epoch{first.Epoch(), second.Epoch()}, epochs)
			})
		})
	}
}

// L22, S02, S08. The work is wedged: it was told to stop and goes on for ever.
// Past StopTimeout nobody renews for it; until its lease would have run out
// nobody takes its place; and its siblings on the lease live on.
func TestTermOfOverstayingWorkRunsOut(t *testing.T) {
	const ttl, margin, stopTimeout, wedged = 6 * time.Second, 600 * time.Millisecond, 10 * time.Second, time.Minute
	check := func(t *testing.T, shared, evicted bool) {
		t.Helper()
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			c := s.Client()
			opts := withTTL(t, c, ttl, shared)
			var book logbook
			var calls, overstayed atomic.Int32
			var toldAt, reportedAt time.Time
			opts.Logger, opts.StopTimeout = book.logger(), stopTimeout
			opts.Hooks = &tenure.Hooks{Overstayed: func(*tenure.Term) {
				overstayed.Add(1)
				reportedAt = time.Now()
			}}
			e := newElector(t, c, opts)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			returned := make(chan time.Time, 1)
			done := startRun(ctx, e, func(ctx context.Context, _ *tenure.Term) error {
				calls.Add(1)
				<-ctx.Done()
				toldAt = time.Now()
				time.Sleep(wedged)
				returned <- time.Now()
				return nil
			})
			term := awaitTerm(t, 5*time.Second, e)
			follower := newElector(t, s.Client(), &tenure.Options{TTL: ttl})
			won := make(chan time.Time, 1)
			startRun(t.Context(), follower, func(ctx context.Context, term *tenure.Term) error {
				won <- time.Now()
				return untilTold(ctx, term)
			})
			time.Sleep(20 * time.Second)
			if evicted {
				go func() { _ = tenure.Evict(t.Context(), s.Admin(), term.Fence(), nil) }()
				<-term.Context().Done()
			} else {
				cancel()
			}
			time.Sleep(stopTimeout - time.Millisecond)
			require.Zero(t, overstayed.Load())
			require.True(t, term.Valid())
			time.Sleep(2 * time.Millisecond)
			synctest.Wait()
			require.EqualValues(t, 1, overstayed.Load())
			require.Equal(t, stopTimeout, reportedAt.Sub(toldAt))

			// From here on the limit stands.
			until := term.ValidUntil()
			expires := until.Add(margin)
			time.Sleep(time.Until(until) - time.Millisecond)
			require.True(t, term.Valid())
			time.Sleep(2 * time.Millisecond)
			require.False(t, term.Valid())
			require.Equal(t, until, term.ValidUntil())
			require.ErrorIs(t, term.Err(), tenure.LeaseExpired)
			require.Len(t, s.Keys(key), 1, "not deleted while it may be valid in the eyes of etcd")
			taken := etcdtest.Await(t, 5*time.Second, "the follower's term", won)
			require.False(t, taken.Before(expires), "the follower has won %v before the lease would have expired", expires.Sub(taken))
			require.Less(t, taken.Sub(expires), time.Second)
			for _, m := range c.Faults.Log("LeaseKeepAlive") {
				if req, ok := m.Body.(*pb.LeaseKeepAliveRequest); ok && !shared && clientv3.LeaseID(req.ID) == term.Fence().Lease {
					require.False(t, m.At.After(reportedAt), "renewed after StopTimeout")
				}
			}
			if shared {
				require.NotEmpty(t, s.Keys("/sibling"))
			}

			require.Equal(t, wedged, etcdtest.Await(t, wedged, "the work", returned).Sub(toldAt))
			time.Sleep(10 * ttl)
			require.EqualValues(t, 1, calls.Load(), "the follower leads")
			require.True(t, follower.Term().Valid())
			require.EqualValues(t, 1, overstayed.Load(), "reported once")
			require.Len(t, book.lines("level=ERROR"), 1)
			if evicted {
				require.Empty(t, done, "campaigns again")
				require.Equal(t, tenure.Led, e.Status().State)
				cancel()
			}
			require.Equal(t, context.Canceled, etcdtest.Await(t, 5*time.Second, "Run", done))
		})
	}
	for _, shared := range []bool{false, true} {
		t.Run("ContextEnded"+onLease(shared), func(t *testing.T) { check(t, shared, false) })
		t.Run("Evicted"+onLease(shared), func(t *testing.T) { check(t, shared, true) })
	}
}

// A wedged work that gives in before its lease has run out ends its term in
// order.
func TestWorkThatStopsAfterStopTimeoutResigns(t *testing.T) {
	for _, shared := range []bool{false, true} {
		t.Run(onLease(shared), func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				opts := withTTL(t, c, 6*time.Second, shared)
				opts.StopTimeout = time.Second
				e := newElector(t, c, opts)
				ctx, cancel := context.WithCancel(t.Context())
				done := startRun(ctx, e, func(ctx context.Context, _ *tenure.Term) error {
					<-ctx.Done()
					time.Sleep(2 * time.Second)
					return nil
				})
				term := awaitTerm(t, 5*time.Second, e)
				cancel()
				time.Sleep(2*time.Second - time.Millisecond)
				require.True(t, term.Valid())
				require.Equal(t, context.Canceled, etcdtest.Await(t, 50*time.Millisecond, "Run", done))
				require.Empty(t, s.Keys(key))
				require.ErrorIs(t, term.Err(), tenure.ContextEnded)
			})
		})
	}
}

const childEnv = "TENURE_TEST_CHILD"

// The process has to end, so the test runs once more in a child. It would end
// with another status if it came to its end.
func TestExitOnStopTimeoutEndsProcess(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			e := newElector(t, s.Client(), &tenure.Options{
				StopTimeout: time.Minute, ExitOnStopTimeout: true,
				Logger: slog.New(slog.NewTextHandler(os.Stdout, nil)),
				Hooks: &tenure.Hooks{Overstayed: func(*tenure.Term) {
					time.Sleep(500 * time.Millisecond)
					_, _ = os.Stdout.WriteString("the hook has run\n")
				}},
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := startRun(ctx, e, func(ctx context.Context, _ *tenure.Term) error {
				<-ctx.Done()
				time.Sleep(time.Minute - time.Second)
				_, _ = os.Stdout.WriteString("the work is still there\n")
				time.Sleep(time.Hour)
				return nil
			})
			awaitTerm(t, 5*time.Second, e)
			cancel()
			<-done
			os.Exit(3)
		})
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1")
	cmd.Env = append(os.Environ(), childEnv+"=1")
	out, err := cmd.CombinedOutput()
	exit, ok := errors.AsType[*exec.ExitError](err)
	require.True(t, ok, "%v\n%s", err, out)
	require.Equal(t, 1, exit.ExitCode(), "%s", out)
	require.Contains(t, string(out), "the work is still there", "not before StopTimeout")
	require.Contains(t, string(out), "level=ERROR", "it says why")
	require.Contains(t, string(out), "the hook has run")
	require.NotContains(t, string(out), "panic")
	require.NotContains(t, string(out), "FAIL")
}

// S11. One campaign at a time.
func TestSecondCampaignBesideTheFirstIsRefused(t *testing.T) {
	refused := func(t *testing.T, e *tenure.Elector) {
		t.Helper()
		never := func(context.Context, *tenure.Term) error {
			t.Error("a second work was called")
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		require.ErrorContains(t, e.Run(ctx, never), "already in a campaign or a term")
		_, err := e.Campaign(ctx)
		require.ErrorContains(t, err, "already in a campaign or a term")
		_, err = e.TryCampaign(ctx)
		require.ErrorContains(t, err, "already in a campaign or a term")
		require.Zero(t, time.Since(start), "at once")
	}
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		e := newElector(t, s.Client(), nil)
		holder := lead(t, newElector(t, s.Client(), nil))
		require.Nil(t, e.Term())

		ctx, cancel := context.WithCancel(t.Context())
		done := startRun(ctx, e, untilTold)
		time.Sleep(time.Minute)
		refused(t, e)
		require.Nil(t, e.Term(), "no term before winning")
		require.NoError(t, holder.Resign())
		require.True(t, awaitTerm(t, time.Second, e).Valid())
		refused(t, e)
		cancel()
		require.Equal(t, context.Canceled, etcdtest.Await(t, 5*time.Second, "Run", done))
		require.Nil(t, e.Term(), "nor after the end")

		// The end of the one makes room for the next, whatever way it took.
		for range 3 {
			term, err := e.TryCampaign(t.Context())
			require.NoError(t, err)
			refused(t, e)
			_, err = s.Admin().Delete(t.Context(), key)
			require.NoError(t, err)
			etcdtest.Eventually(t, time.Second, "Elector.Term() != nil", false, func() bool { return e.Term() != nil })
			require.NoError(t, term.Resign())
		}
	})
}

type ctxKey struct{}

// L21. The context of a campaign bounds the campaign.
func TestContextOfCampaignDoesNotBoundTerm(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		e := newElector(t, s.Client(), &tenure.Options{TTL: 2 * time.Second})
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), ctxKey{}, "value"), 2*time.Second)
		defer cancel()
		term, err := e.Campaign(ctx)
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		require.Error(t, ctx.Err())
		require.True(t, term.Valid())
		require.NoError(t, term.Context().Err())
		_, bounded := term.Context().Deadline()
		require.False(t, bounded)
		require.Equal(t, "value", term.Context().Value(ctxKey{}))
		require.NoError(t, term.Resign())

		err = e.Run(context.WithValue(t.Context(), ctxKey{}, "value"), func(ctx context.Context, term *tenure.Term) error {
			assert.Equal(t, "value", ctx.Value(ctxKey{}))
			assert.Equal(t, term.Context(), ctx)
			return nil
		})
		require.NoError(t, err)
	})
}

// S13. The same call of Run leads again, with a higher epoch.
func TestRunLeadsAgainAfterOutage(t *testing.T) {
	const ttl = 3 * time.Second
	for _, shared := range []bool{false, true} {
		t.Run(onLease(shared), func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				e := newElector(t, c, withTTL(t, c, ttl, shared))
				ctx, cancel := context.WithCancel(t.Context())
				done := startRun(ctx, e, untilTold)
				for range 3 {
					term := awaitTerm(t, 10*time.Second, e)
					s.Stop()
					time.Sleep(3 * ttl)
					require.ErrorIs(t, term.Err(), tenure.LeaseExpired)
					require.ErrorIs(t, context.Cause(term.Context()), tenure.LeaseExpired)
					require.Nil(t, e.Term())
					s.Start()
					require.Greater(t, awaitTerm(t, 20*time.Second, e).Epoch(), term.Epoch())
				}
				cancel()
				require.Equal(t, context.Canceled, etcdtest.Await(t, 5*time.Second, "Run", done))
				require.Empty(t, s.Keys(key))
			})
		})
	}
}

// passing are errors that any request can get and that pass.
func passing() map[string]error {
	errs := map[string]error{
		// E02. The server's, not ours.
		"Canceled":         rpctypes.ErrGRPCCanceled,
		"DeadlineExceeded": rpctypes.ErrGRPCDeadlineExceeded,
		// E03. It has no entry in etcd's table.
		"NotPrimaryLessor": status.Error(codes.Unknown, "lease: not a primary lessor"),
		"Unavailable":      etcdtest.Unavailable,
		"Internal":         status.Error(codes.Internal, "stream terminated by RST_STREAM"),
		"Exhausted":        status.Error(codes.ResourceExhausted, "grpc: received message larger than max"),
		"WaitApplied":      rpctypes.ErrGRPCTimeoutWaitAppliedIndex,
	}
	for name, err := range map[string]error{
		"NoSpace": rpctypes.ErrGRPCNoSpace, "TooManyRequests": rpctypes.ErrGRPCRequestTooManyRequests,
		"NoLeader": rpctypes.ErrGRPCNoLeader, "NotLeader": rpctypes.ErrGRPCNotLeader, "LeaderChanged": rpctypes.ErrGRPCLeaderChanged,
		"NotCapable": rpctypes.ErrGRPCNotCapable, "Stopped": rpctypes.ErrGRPCStopped,
		"Timeout": rpctypes.ErrGRPCTimeout, "LeaderFail": rpctypes.ErrGRPCTimeoutDueToLeaderFail, "ConnectionLost": rpctypes.ErrGRPCTimeoutDueToConnectionLost,
		"Unhealthy": rpctypes.ErrGRPCUnhealthy, "Corrupt": rpctypes.ErrGRPCCorrupt, "Learner": rpctypes.ErrGRPCNotSupportedForLearner,
		"InvalidToken": rpctypes.ErrGRPCInvalidAuthToken, "OldAuthRevision": rpctypes.ErrGRPCAuthOldRevision,
		"LeaseNotFound": rpctypes.ErrGRPCLeaseNotFound, "Compacted": rpctypes.ErrGRPCCompacted, "FutureRevision": rpctypes.ErrGRPCFutureRev,
	} {
		errs[name] = err
	}
	return errs
}

// E02, E03, E05, E06, L28, S13, S17. Every request fails for a while, first of a
// leader, then of a candidate.
func TestRunSurvivesErrorsThatHeal(t *testing.T) {
	for name, fault := range passing() {
		t.Run(name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				e := newElector(t, c, &tenure.Options{TTL: 2 * time.Second})
				ctx, cancel := context.WithCancel(t.Context())
				done := startRun(ctx, e, untilTold)
				first := awaitTerm(t, 5*time.Second, e)
				var rules []*etcdtest.Rule
				for _, method := range []string{"Range", "Txn", "LeaseGrant", "LeaseRevoke", "LeaseKeepAlive", "Watch"} {
					if method == "Watch" && status.Code(fault) == codes.Internal {
						continue // etcd's client would open streams without a pause
					}
					rules = append(rules, c.Faults.On(method, etcdtest.FailRequest(fault)))
				}
				c.Faults.Break("", fault)
				time.Sleep(10 * time.Second)
				require.Nil(t, e.Term())
				require.Empty(t, done)
				for _, rule := range rules {
					rule.Stop()
				}
				require.Greater(t, awaitTerm(t, 10*time.Second, e).Epoch(), first.Epoch())
				cancel()
				require.Equal(t, context.Canceled, etcdtest.Await(t, 5*time.Second, "Run", done))
				require.Empty(t, s.Keys(key))
				require.Zero(t, s.Leases())
			})
		})
	}
}

// S17. What goes on failing is tried ever more slowly.
func TestAttemptsBackOff(t *testing.T) {
	for _, method := range []string{"Range", "LeaseGrant", "Txn"} {
		t.Run(method, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				e := newElector(t, c, &tenure.Options{TTL: 30 * time.Second})
				rule := c.Faults.On(method, etcdtest.FailRequest(rpctypes.ErrGRPCRequestTooManyRequests))
				// Else the reads that confirm renewals tell what the others do not.
				c.Faults.On("LeaseKeepAlive", etcdtest.LoseRequest())
				ctx, cancel := context.WithCancel(t.Context())
				done := startRun(ctx, e, untilTold)
				time.Sleep(time.Minute)
				require.Nil(t, e.Term())
				// Six within the first two seconds or so, then one every one
				// to three.
				require.Greater(t, rule.Hits(), 20)
				require.Less(t, rule.Hits(), 80)
				require.Less(t, c.Faults.Count(""), 300)
				rule.Stop()
				awaitTerm(t, 4*time.Second, e)
				cancel()
				require.Equal(t, context.Canceled, etcdtest.Await(t, 5*time.Second, "Run", done))
			})
		})
	}
}

// What can never heal ends Run with the error that says what it is.
func TestRunEndsWithErrorsThatCannotHeal(t *testing.T) {
	auth := &etcdtest.ServerOptions{Auth: true}
	readWrite := clientv3.PermissionType(clientv3.PermReadWrite)
	cases := map[string]struct {
		client func(s *etcdtest.Server) *etcdtest.Client
		fault  func(t *testing.T, s *etcdtest.Server, c *etcdtest.Client)
		want   error
	}{
		"PermissionDenied": {
			client: func(s *etcdtest.Server) *etcdtest.Client { return s.Client(etcdtest.As("app", "secret")) },
			fault: func(t *testing.T, s *etcdtest.Server, _ *etcdtest.Client) {
				_, err := s.Admin().RoleRevokePermission(t.Context(), "app", "/", clientv3.GetPrefixRangeEnd("/"))
				require.NoError(t, err)
			},
			want: rpctypes.ErrPermissionDenied,
		},
		"WrongPassword": {
			client: func(s *etcdtest.Server) *etcdtest.Client { return s.Client(etcdtest.As("app", "secret")) },
			fault: func(t *testing.T, s *etcdtest.Server, c *etcdtest.Client) {
				_, err := s.Admin().UserChangePassword(t.Context(), "app", "another")
				require.NoError(t, err)
				c.Link.DropConnections()
			},
			want: rpctypes.ErrAuthFailed,
		},
		"ClientClosed": {
			client: func(s *etcdtest.Server) *etcdtest.Client { return s.Client(etcdtest.As("app", "secret")) },
			fault:  func(_ *testing.T, _ *etcdtest.Server, c *etcdtest.Client) { c.Close() },
			want:   errors.New("the etcd client was closed"),
		},
		"Unimplemented": {
			client: func(s *etcdtest.Server) *etcdtest.Client { return s.Client(etcdtest.As("app", "secret")) },
			fault: func(_ *testing.T, _ *etcdtest.Server, c *etcdtest.Client) {
				for _, method := range []string{"LeaseGrant", "LeaseKeepAlive"} {
					c.Faults.On(method, etcdtest.FailRequest(status.Error(codes.Unimplemented, "unknown service etcdserverpb.Lease")))
				}
			},
			want: status.Error(codes.Unimplemented, "unknown service etcdserverpb.Lease"),
		},
	}
	for name, tt := range cases {
		check := func(t *testing.T, err error) {
			t.Helper()
			require.Error(t, err)
			require.ErrorContains(t, err, tt.want.Error())
			require.NotEqual(t, tt.want, err, "with what was attempted")
		}
		t.Run(name+"FromTheStart", func(t *testing.T) {
			etcdtest.BubbleWith(t, auth, func(t *testing.T, s *etcdtest.Server) {
				s.AddUser("app", "secret", readWrite, "/")
				c := tt.client(s)
				tt.fault(t, s, c)
				e := newElector(t, c, nil)
				start := time.Now()
				check(t, e.Run(t.Context(), untilTold))
				require.Less(t, time.Since(start), 5*time.Second)
				require.Nil(t, e.Term())
				require.Empty(t, s.Keys(key))
			})
		})
		t.Run(name+"WhileLeading", func(t *testing.T) {
			etcdtest.BubbleWith(t, auth, func(t *testing.T, s *etcdtest.Server) {
				s.AddUser("app", "secret", readWrite, "/")
				c := tt.client(s)
				e := newElector(t, c, &tenure.Options{TTL: 6 * time.Second})
				done := startRun(t.Context(), e, untilTold)
				term := awaitTerm(t, 5*time.Second, e)
				time.Sleep(3 * time.Second)
				tt.fault(t, s, c)
				check(t, etcdtest.Await(t, 10*time.Second, "Run", done))
				require.False(t, term.Valid())
			})
		})
		t.Run(name+"WhileFollowing", func(t *testing.T) {
			etcdtest.BubbleWith(t, auth, func(t *testing.T, s *etcdtest.Server) {
				s.AddUser("app", "secret", readWrite, "/")
				holder := lead(t, newElector(t, s.Client(etcdtest.As("root", "root")), &tenure.Options{TTL: 6 * time.Second}))
				c := tt.client(s)
				done := startRun(t.Context(), newElector(t, c, &tenure.Options{TTL: 6 * time.Second}), untilTold)
				time.Sleep(3 * time.Second)
				tt.fault(t, s, c)
				check(t, etcdtest.Await(t, 10*time.Second, "Run", done))
				require.True(t, holder.Valid())
			})
		})
	}
	// One elector is not allowed to see its election. The others on its lease do
	// not suffer from that.
	t.Run("SiblingsLiveOn", func(t *testing.T) {
		etcdtest.BubbleWith(t, auth, func(t *testing.T, s *etcdtest.Server) {
			s.AddUser("app", "secret", readWrite, "/")
			holder := lead(t, newElector(t, s.Client(etcdtest.As("root", "root")), nil))
			c := s.Client(etcdtest.As("app", "secret"))
			opts := withTTL(t, c, 6*time.Second, true)
			sibling, err := tenure.New(c.Client, "/other", opts)
			require.NoError(t, err)
			term := lead(t, sibling)
			done := startRun(t.Context(), newElector(t, c, opts), untilTold)
			time.Sleep(3 * time.Second)
			_, err = s.Admin().RoleRevokePermission(t.Context(), "app", "/", clientv3.GetPrefixRangeEnd("/"))
			require.NoError(t, err)
			for _, key := range []string{"/sibling", "/other"} {
				_, err = s.Admin().RoleGrantPermission(t.Context(), "app", key, "", readWrite)
				require.NoError(t, err)
			}
			require.ErrorIs(t, etcdtest.Await(t, 10*time.Second, "Run", done), rpctypes.ErrPermissionDenied)
			time.Sleep(time.Minute)
			require.True(t, term.Valid())
			require.True(t, holder.Valid())
		})
	})
	t.Run("UserEmpty", func(t *testing.T) {
		etcdtest.BubbleWith(t, auth, func(t *testing.T, s *etcdtest.Server) {
			e := newElector(t, s.Client(), nil) // Who gives no name.
			err := e.Run(t.Context(), untilTold)
			require.ErrorIs(t, err, rpctypes.ErrUserEmpty)
		})
	})
	t.Run("LeaseClosed", func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			c := s.Client()
			l := newLease(t, c, nil)
			e := newElector(t, c, &tenure.Options{Lease: l})
			done := startRun(t.Context(), e, untilTold)
			awaitTerm(t, 5*time.Second, e)
			require.NoError(t, l.Close(t.Context()))
			require.ErrorIs(t, etcdtest.Await(t, time.Second, "Run", done), tenure.ErrLeaseClosed)
			require.ErrorIs(t, e.Run(t.Context(), untilTold), tenure.ErrLeaseClosed)
		})
	})
	t.Run("RolledBack", func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			e := newElector(t, s.Client(), &tenure.Options{MinEpoch: 1000})
			require.ErrorIs(t, e.Run(t.Context(), untilTold), tenure.ErrRolledBack)
			require.Empty(t, s.Keys(key))
		})
	})
}

// E04. The etcd client repeats a revoke by itself, and the second time there is
// nothing left to revoke.
func TestLeaseThatIsGoneNeedsNoRevoking(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		var book logbook
		term := lead(t, newElector(t, c, &tenure.Options{Logger: book.logger()}))
		c.Faults.On("LeaseRevoke", etcdtest.RetryRequest())
		start := time.Now()
		require.NoError(t, term.Resign())
		require.Less(t, time.Since(start), 10*time.Millisecond)
		require.Equal(t, 1, c.Faults.Count("LeaseRevoke"))
		require.Empty(t, book.lines("level=WARN"))
		require.Zero(t, s.Leases())
	})
}

// E06. Whatever is changed about any user, the token of this one is out of date.
func TestTermSurvivesChangesOfUsers(t *testing.T) {
	etcdtest.BubbleWith(t, &etcdtest.ServerOptions{Auth: true}, func(t *testing.T, s *etcdtest.Server) {
		s.AddUser("app", "secret", clientv3.PermissionType(clientv3.PermReadWrite), "/")
		leader := lead(t, newElector(t, s.Client(etcdtest.As("app", "secret")), &tenure.Options{TTL: 3 * time.Second}))
		follower := newElector(t, s.Client(etcdtest.As("app", "secret")), &tenure.Options{TTL: 3 * time.Second})
		done := startRun(t.Context(), follower, func(context.Context, *tenure.Term) error { return errWork })
		for i := range 30 {
			time.Sleep(700 * time.Millisecond)
			s.AddUser(strings.Repeat("x", i+1), "", clientv3.PermissionType(clientv3.PermRead), "/x")
			require.True(t, leader.Valid())
			require.Empty(t, done)
		}
		require.NoError(t, leader.Resign())
		require.ErrorIs(t, etcdtest.Await(t, time.Second, "Run", done), errWork)
	})
}

// A14. Who waits for an etcd that cannot be reached learns that in the end.
func TestCampaignSaysWhyNothingWasHeard(t *testing.T) {
	away := map[string]struct {
		link func(l *etcdtest.Link)
		want string
	}{
		"Refused": {(*etcdtest.Link).Refuse, "connection refused"},
		"Silent":  {(*etcdtest.Link).Cut, "no connection to etcd: CONNECTING"},
	}
	for name, tt := range away {
		t.Run(name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				tt.link(c.Link)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := newElector(t, c, nil).Campaign(ctx)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorContains(t, err, tt.want)
			})
		})
	}
}

// A13, S10. Nothing waits for an etcd that has fallen silent longer than it says.
func TestEveryCallReturnsWithinItsBound(t *testing.T) {
	const limit = time.Second // of the contexts, where there are any
	type scene struct {
		c    *etcdtest.Client
		ctx  context.Context
		e    *tenure.Elector // takes no part
		l    *tenure.Lease   // the term's
		term *tenure.Term
	}
	calls := map[string]struct {
		call  func(x *scene) error
		bound time.Duration
		want  error // besides one of the contexts'
	}{
		"Campaign":    {func(x *scene) error { _, err := x.e.Campaign(x.ctx); return err }, limit + time.Second, nil},
		"TryCampaign": {func(x *scene) error { _, err := x.e.TryCampaign(x.ctx); return err }, limit + time.Second, nil},
		"Run":         {func(x *scene) error { return x.e.Run(x.ctx, untilTold) }, limit + time.Second, nil},
		"Verify":      {func(x *scene) error { return x.term.Verify(context.Background()) }, 3 * time.Second, nil},
		"Announce":    {func(x *scene) error { return x.term.Announce(context.Background(), "", nil) }, 3 * time.Second, nil},
		"Resign":      {func(x *scene) error { return x.term.Resign() }, 2 * time.Second, tenure.ErrUnknownOutcome},
		"Close":       {func(x *scene) error { return x.l.Close(x.ctx) }, limit, nil},
		"Lookup": {func(x *scene) error {
			_, err := tenure.Lookup(context.Background(), x.c.Client, key)
			return err
		}, 3 * time.Second, nil},
		"Evict": {func(x *scene) error {
			return tenure.Evict(x.ctx, x.c.Client, x.term.Fence(), nil)
		}, limit, nil},
		"Observe": {func(x *scene) error {
			for range tenure.Observe(x.ctx, x.c.Client, key) { // until it ends
			}
			return x.ctx.Err()
		}, limit, nil},
	}
	for name, tt := range calls {
		t.Run(name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				x := &scene{c: s.Client()}
				x.l = newLease(t, x.c, nil)
				x.term = lead(t, newElector(t, x.c, &tenure.Options{Lease: x.l}))
				x.e = newElector(t, x.c, nil)
				x.c.Link.Cut()
				var cancel func()
				x.ctx, cancel = context.WithTimeout(t.Context(), limit)
				defer cancel()
				start := time.Now()
				err := tt.call(x)
				took := time.Since(start)
				require.Error(t, err)
				if tt.want == nil {
					tt.want = context.DeadlineExceeded
				}
				require.ErrorIs(t, err, tt.want)
				require.LessOrEqual(t, took, tt.bound)
			})
		})
	}
	t.Run("RunWhileLeading", func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			c := s.Client()
			e := newElector(t, c, nil)
			ctx, cancel := context.WithCancel(t.Context())
			done := startRun(ctx, e, untilTold)
			awaitTerm(t, 5*time.Second, e)
			c.Link.Cut()
			cancel()
			start := time.Now()
			require.Equal(t, context.Canceled, etcdtest.Await(t, time.Minute, "Run", done))
			require.LessOrEqual(t, time.Since(start), 2*time.Second)
		})
	})
	t.Run("ResignWithShortTTL", func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			c := s.Client()
			term := lead(t, newElector(t, c, &tenure.Options{TTL: time.Second}))
			c.Link.Cut()
			start := time.Now()
			require.ErrorIs(t, term.Resign(), tenure.ErrUnknownOutcome)
			require.LessOrEqual(t, time.Since(start), time.Second)
		})
	})
}

// S11. Everything at once, for the race detector. Whatever is seen in between is
// whole: a term that is handed out has an epoch and a lease, and a status that
// claims to lead names this elector.
func TestEverythingMayBeCalledConcurrently(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		ctx, cancel := context.WithCancel(t.Context())
		c := s.Client()
		l := newLease(t, c, &tenure.LeaseOptions{TTL: 2 * time.Second})
		var electors []*tenure.Elector
		var dones []<-chan error
		for i, opts := range []*tenure.Options{{Lease: l}, {Lease: l}, {TTL: 2 * time.Second}} {
			opts.Identity = string(rune('a' + i))
			e := newElector(t, c, opts)
			electors = append(electors, e)
			dones = append(dones, startRun(ctx, e, func(ctx context.Context, term *tenure.Term) error {
				kv := term.KV(c.Client)
				for ctx.Err() == nil {
					_, _ = kv.Put(ctx, "/data", "x")
					time.Sleep(31 * time.Millisecond)
				}
				return nil
			}))
		}
		time.Sleep(100 * time.Millisecond) // Run comes first
		var wg sync.WaitGroup
		often := func(every time.Duration, f func()) {
			wg.Go(func() {
				for ctx.Err() == nil {
					f()
					time.Sleep(every)
				}
			})
		}
		for i, e := range electors {
			withTerm := func(f func(term *tenure.Term)) func() {
				return func() {
					if term := e.Term(); term != nil {
						f(term)
					}
				}
			}
			often(7*time.Millisecond, func() {
				if st := e.Status(); st.State == tenure.Leading {
					assert.Equal(t, string(rune('a'+i)), st.Leader.Identity)
				}
			})
			often(11*time.Millisecond, withTerm(func(term *tenure.Term) {
				assert.NoError(t, term.Fence().Validate())
				_, _, _, _ = term.Valid(), term.ValidAt(time.Now()), term.ValidUntil(), term.String()
				_, _ = term.Err(), context.Cause(term.Context())
			}))
			often(41*time.Millisecond, withTerm(func(term *tenure.Term) { _ = term.Verify(ctx) }))
			often(53*time.Millisecond, withTerm(func(term *tenure.Term) { _ = term.Announce(ctx, "x", nil) }))
			often(700*time.Millisecond, withTerm(func(term *tenure.Term) { _ = term.Resign() }))
			often(700*time.Millisecond, withTerm(func(term *tenure.Term) { _ = term.Resign() }))
			often(300*time.Millisecond, func() { _, _ = e.TryCampaign(ctx) })
		}
		often(61*time.Millisecond, func() { _, _ = tenure.Lookup(ctx, c.Client, key) })
		often(900*time.Millisecond, func() {
			if leader, err := tenure.Lookup(ctx, c.Client, key); err == nil {
				_ = tenure.Evict(ctx, c.Client, leader.Fence, nil)
			}
		})
		wg.Go(func() {
			for range tenure.Observe(ctx, c.Client, key) { // for the race detector
			}
		})
		time.Sleep(8 * time.Second)
		for range 2 {
			wg.Go(func() { assert.NoError(t, l.Close(context.Background())) })
		}
		for _, done := range dones[:2] {
			require.ErrorIs(t, etcdtest.Await(t, 10*time.Second, "Run", done), tenure.ErrLeaseClosed)
		}
		awaitTerm(t, 10*time.Second, electors[2])
		cancel()
		require.Equal(t, context.Canceled, etcdtest.Await(t, 10*time.Second, "Run", dones[2]))
		wg.Wait()
		require.Empty(t, s.Keys(key))
		require.Zero(t, s.Leases())
		require.Greater(t, s.Keys("/data")[0].Version, int64(50))
	})
}

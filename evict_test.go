package tenure_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
)

// evict calls Evict and returns where its error will come.
func evict(ctx context.Context, c *clientv3.Client, fence tenure.Fence, opts *tenure.EvictOptions) <-chan error {
	done := make(chan error, 1)
	go func() { done <- tenure.Evict(ctx, c, fence, opts) }()
	return done
}

// lingering is a work that takes its time to stop.
func lingering(d time.Duration) func(ctx context.Context) {
	return func(ctx context.Context) {
		<-ctx.Done()
		time.Sleep(d)
	}
}

// TestEvictAsks: the holder is told, stops its work in its own time as the
// leader that it still is, and lets another candidate win.
func TestEvictAsks(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		const linger = 2*ttl + time.Second // renewals go on
		p := contendWith(t, s.Client(), key, nil, lingering(linger))
		term := p.won(t, time.Second)
		follower := contend(t, s.Client(), key, nil)
		follower.follows(t, term)

		c := s.Client()
		start := time.Now()
		evicted := evict(t.Context(), c.Client, term.Fence(), nil)
		etcdtest.Await(t, latency, "Context()", term.Context().Done())
		require.Equal(t, tenure.Evicted, context.Cause(term.Context()))
		for time.Since(start) < linger-200*time.Millisecond {
			require.NoError(t, term.Err())
			require.Empty(t, evicted)
			time.Sleep(100 * time.Millisecond)
		}
		leader, err := tenure.Lookup(t.Context(), c.Client, key)
		require.NoError(t, err)
		require.Equal(t, term.Fence(), leader.Fence)
		require.True(t, leader.Evicting)
		require.True(t, follower.elector.Status().Leader.Evicting)

		require.NoError(t, etcdtest.Await(t, time.Second, "Evict", evicted))
		require.InDelta(t, linger, time.Since(start), float64(latency))
		next := follower.won(t, latency)
		require.ErrorIs(t, term.Err(), tenure.Evicted)
		time.Sleep(time.Minute)
		require.NoError(t, next.Verify(t.Context()))
		require.Zero(t, c.Faults.Streams(""))

		leader, err = tenure.Lookup(t.Context(), c.Client, key)
		require.NoError(t, err)
		require.False(t, leader.Evicting)
	})
}

// TestEvictTouchesNoOtherTerm: what is not fence's term is refused and stays as
// it is.
func TestEvictTouchesNoOtherTerm(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		force := &tenure.EvictOptions{Force: true, Patience: -1}
		for _, opts := range []*tenure.EvictOptions{nil, force} {
			err := tenure.Evict(t.Context(), c.Client, tenure.Fence{Key: key, Epoch: 1, Lease: 1}, opts)
			require.ErrorIs(t, err, tenure.ErrNoLeader)
		}
		p := contend(t, s.Client(), key, &tenure.Options{Identity: "node-1"})
		term := p.won(t, time.Second)
		fence := term.Fence()
		before := s.Keys("")
		for _, wrong := range []tenure.Fence{
			{Key: key, Epoch: fence.Epoch - 1, Lease: fence.Lease},
			{Key: key, Epoch: fence.Epoch + 1, Lease: fence.Lease},
			{Key: key, Epoch: fence.Epoch, Lease: fence.Lease + 1},
		} {
			for _, opts := range []*tenure.EvictOptions{nil, force} {
				err := etcdtest.Await(t, time.Second, "Evict", evict(t.Context(), c.Client, wrong, opts))
				require.ErrorIs(t, err, tenure.ErrFenced)
				leader, ok := tenure.LeaderOf(err)
				require.True(t, ok)
				require.Equal(t, fence, leader.Fence)
				require.Equal(t, "node-1", leader.Identity)
			}
		}
		requests := c.Faults.Count("")
		require.Error(t, tenure.Evict(t.Context(), c.Client, tenure.Fence{Key: key}, force))
		require.ErrorContains(t, tenure.Evict(t.Context(), nil, fence, force), "client is nil")
		require.Equal(t, requests, c.Faults.Count(""))
		require.Equal(t, before, s.Keys(""))
		require.NoError(t, term.Verify(t.Context()))
	})
}

// TestEvictADisobedientHolder: by force once patience is at an end, without it
// when the holder's lease has run out.
func TestEvictADisobedientHolder(t *testing.T) {
	const stopTimeout = 15 * time.Second
	tests := map[string]struct {
		opts   *tenure.EvictOptions
		cause  tenure.Reason // of the work's context
		reason tenure.Reason // of the term's end
		after  time.Duration
		within time.Duration
	}{
		"Asked":        {nil, tenure.Evicted, tenure.LeaseExpired, stopTimeout, ttl + time.Second},
		"Forced":       {&tenure.EvictOptions{Force: true, Patience: 4 * time.Second}, tenure.Evicted, tenure.KeyDeleted, 4 * time.Second, latency},
		"ForcedAtOnce": {&tenure.EvictOptions{Force: true, Patience: -1}, tenure.KeyDeleted, tenure.KeyDeleted, 0, latency},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				p := contendWith(t, s.Client(), key, &tenure.Options{StopTimeout: stopTimeout}, lingering(40*time.Second))
				term := p.won(t, time.Second)
				far := s.Client() // so that the holder hears of the deletion first
				far.Link.Delay(20*time.Millisecond, 20*time.Millisecond)
				follower := contend(t, far, key, nil)
				follower.follows(t, term)
				time.Sleep(latency)

				start := time.Now()
				evicted := evict(t.Context(), s.Client().Client, term.Fence(), tt.opts)
				etcdtest.Await(t, latency, "Context()", term.Context().Done())
				require.ErrorIs(t, context.Cause(term.Context()), tt.cause)
				require.NoError(t, etcdtest.Await(t, time.Minute, "Evict", evicted))
				require.GreaterOrEqual(t, time.Since(start), tt.after)
				require.LessOrEqual(t, time.Since(start), tt.after+tt.within)
				follower.won(t, latency)
				synctest.Wait()
				require.ErrorIs(t, term.Err(), tt.reason)
				if tt.cause != tenure.Evicted {
					_, marked := s.Admin().Get(t.Context(), key, clientv3.WithRev(int64(term.Epoch())))
					require.NoError(t, marked)
				}
			})
		})
	}
}

// TestEvictWithLostAnswers: it ends the term, once, whatever becomes of its own
// requests, and the late ones do nothing to the next term.
func TestEvictWithLostAnswers(t *testing.T) {
	requests := map[string]struct {
		method string
		action etcdtest.Action
		times  int
		skip   int
	}{
		"TxnFails":          {"Txn", etcdtest.FailRequest(etcdtest.Unavailable), 3, 0},
		"TxnIsRefused":      {"Txn", etcdtest.FailRequest(rpctypes.ErrGRPCNoSpace), 3, 0},
		"TxnIsLost":         {"Txn", etcdtest.LoseRequest(), 2, 0},
		"TxnIsLate":         {"Txn", etcdtest.DelayRequest(20 * time.Second), 2, 0},
		"TxnAnswerIsLost":   {"Txn", etcdtest.LoseAnswer(), 2, 0},
		"TxnAnswerIsError":  {"Txn", etcdtest.DropAnswer(etcdtest.Unavailable), 3, 0},
		"TxnComesTwice":     {"Txn", etcdtest.RetryRequest(), 3, 0},
		"ReadIsLost":        {"Range", etcdtest.LoseRequest(), 2, 0},
		"ReadFails":         {"Range", etcdtest.FailRequest(etcdtest.Unavailable), 3, 0},
		"WatchIsDeaf":       {"Watch", etcdtest.LoseAnswer(), 1000, 0},
		"EventsAreLost":     {"Watch", etcdtest.LoseAnswer(), 1000, 1},
		"WatchIsNotAllowed": {"Watch", etcdtest.FailRequest(rpctypes.ErrGRPCPermissionDenied), 1000, 0},
	}
	ways := map[string]*tenure.EvictOptions{
		"Asking": nil,
		"Forced": {Force: true, Patience: -1},
	}
	for name, tt := range requests {
		for way, opts := range ways {
			t.Run(name+way, func(t *testing.T) {
				etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
					p := contend(t, s.Client(), key, nil)
					term := p.won(t, time.Second)
					follower := contend(t, s.Client(), key, nil)
					follower.follows(t, term)
					c := s.Client()
					rule := c.Faults.On(tt.method, tt.action, etcdtest.Times(tt.times), etcdtest.Skip(tt.skip))
					require.NoError(t, etcdtest.Await(t, 20*time.Second, "Evict", evict(t.Context(), c.Client, term.Fence(), opts)))
					require.NotZero(t, rule.Hits())
					next := follower.won(t, latency)
					etcdtest.Eventually(t, latency, "Valid()", false, term.Valid)
					time.Sleep(time.Minute)
					require.NoError(t, next.Err())
					require.NoError(t, next.Context().Err())
					require.Empty(t, follower.terms)
					require.Empty(t, p.terms)
					require.LessOrEqual(t, c.Faults.Count(""), 40)
				})
			})
		}
	}
}

// TestEvictReturnsWhenItsContextEnds: with an error that says what was in the
// way. The mark may stand.
func TestEvictReturnsWhenItsContextEnds(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		p := contendWith(t, s.Client(), key, nil, lingering(20*time.Second))
		term := p.won(t, time.Second)
		follower := contend(t, s.Client(), key, nil)
		follower.follows(t, term)
		deadline := func(d time.Duration) context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			t.Cleanup(cancel)
			return ctx
		}

		c := s.Client()
		c.Link.Cut()
		for _, opts := range []*tenure.EvictOptions{nil, {Force: true, Patience: -1}, {Force: true, Patience: time.Second}} {
			start := time.Now()
			require.ErrorIs(t, tenure.Evict(deadline(7*time.Second), c.Client, term.Fence(), opts), context.DeadlineExceeded)
			require.Equal(t, 7*time.Second, time.Since(start))
		}
		require.NoError(t, term.Context().Err(), "nothing has arrived")

		c = s.Client()
		c.Faults.On("Txn", etcdtest.FailRequest(rpctypes.ErrGRPCNoSpace))
		err := tenure.Evict(deadline(7*time.Second), c.Client, term.Fence(), nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, rpctypes.ErrNoSpace)
		require.LessOrEqual(t, c.Faults.Count("Txn"), 12)

		c = s.Client()
		require.ErrorIs(t, tenure.Evict(deadline(time.Second), c.Client, term.Fence(), nil), context.DeadlineExceeded)
		leader, err := tenure.Lookup(t.Context(), c.Client, key)
		require.NoError(t, err)
		require.True(t, leader.Evicting)
		require.Zero(t, c.Faults.Streams(""))
		follower.won(t, 20*time.Second)
	})
}

// TestEvictEndsWithWhatCannotHeal: without the permission to write.
func TestEvictEndsWithWhatCannotHeal(t *testing.T) {
	etcdtest.BubbleWith(t, &etcdtest.ServerOptions{Auth: true}, func(t *testing.T, s *etcdtest.Server) {
		s.AddUser("app", "secret", clientv3.PermissionType(clientv3.PermReadWrite), "/scheduler/")
		s.AddUser("reader", "secret", clientv3.PermissionType(clientv3.PermRead), "/scheduler/")
		s.AddUser("nobody", "secret", clientv3.PermissionType(clientv3.PermReadWrite), "/other/")
		term := contend(t, s.Client(etcdtest.As("app", "secret")), key, nil).won(t, time.Second)
		for _, user := range []string{"reader", "nobody"} {
			for _, opts := range []*tenure.EvictOptions{nil, {Force: true, Patience: -1}} {
				c := s.Client(etcdtest.As(user, "secret"))
				err := etcdtest.Await(t, time.Second, "Evict", evict(t.Context(), c.Client, term.Fence(), opts))
				require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
			}
		}
		require.NoError(t, term.Verify(t.Context()))
		require.NoError(t, term.Context().Err())
	})
}

// TestEvictTwice: of two operators, and a third who comes later, each hears that
// the term has ended.
func TestEvictTwice(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		p := contendWith(t, s.Client(), key, nil, lingering(5*time.Second))
		term := p.won(t, time.Second)
		var all []<-chan error
		for range 2 {
			all = append(all, evict(t.Context(), s.Client().Client, term.Fence(), nil))
		}
		time.Sleep(time.Second)
		all = append(all, evict(t.Context(), s.Client().Client, term.Fence(), nil))
		time.Sleep(time.Second)
		for _, done := range all {
			require.Empty(t, done)
		}
		for _, done := range all {
			require.NoError(t, etcdtest.Await(t, 5*time.Second, "Evict", done))
		}
	})
}

// TestMarkAndAnnounceKeepEachOther: whichever of the two writes second.
func TestMarkAndAnnounceKeepEachOther(t *testing.T) {
	both := func(t *testing.T, s *etcdtest.Server, term *tenure.Term) {
		t.Helper()
		leader, err := tenure.Lookup(t.Context(), s.Admin(), key)
		require.NoError(t, err)
		require.Equal(t, term.Fence(), leader.Fence)
		require.True(t, leader.Evicting)
		require.Equal(t, "elsewhere", leader.Address)
		require.Equal(t, "node-1", leader.Identity)
		require.Equal(t, tenure.Evicted, context.Cause(term.Context()))
		require.NoError(t, term.Err())
	}
	start := func(t *testing.T, s *etcdtest.Server) (holder, operator *etcdtest.Client, term *tenure.Term) {
		t.Helper()
		p := contendWith(t, s.Client(), key, &tenure.Options{Identity: "node-1", Address: "here"}, lingering(20*time.Second))
		return p.Client, s.Client(), p.won(t, time.Second)
	}
	announce := func(t *testing.T, term *tenure.Term) <-chan error {
		t.Helper()
		done := make(chan error, 1)
		go func() { done <- term.Announce(t.Context(), "elsewhere", nil) }()
		return done
	}
	t.Run("AnnouncedBeforeTheMark", func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			_, operator, term := start(t, s)
			gate := operator.Faults.Next("Txn", etcdtest.HoldRequest())
			evicted := evict(t.Context(), operator.Client, term.Fence(), nil)
			etcdtest.Await(t, time.Second, "Txn", gate.Fired())
			require.NoError(t, etcdtest.Await(t, time.Second, "Announce", announce(t, term)))
			gate.Release()
			time.Sleep(latency)
			both(t, s, term)
			require.NoError(t, etcdtest.Await(t, time.Minute, "Evict", evicted))
		})
	})
	t.Run("MarkedBeforeTheAnnouncement", func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			holder, operator, term := start(t, s)
			gate := holder.Faults.Next("Txn", etcdtest.HoldRequest())
			announced := announce(t, term)
			etcdtest.Await(t, time.Second, "Txn", gate.Fired())
			evicted := evict(t.Context(), operator.Client, term.Fence(), nil)
			time.Sleep(latency)
			gate.Release()
			require.NoError(t, etcdtest.Await(t, time.Second, "Announce", announced))
			both(t, s, term)
			require.NoError(t, etcdtest.Await(t, time.Minute, "Evict", evicted))
		})
	})
}

// TestEvictAKeyThatIsNoRecord: its holder cannot be asked, so only force helps.
func TestEvictAKeyThatIsNoRecord(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		lease, err := s.Admin().Grant(t.Context(), 3600)
		require.NoError(t, err)
		_, err = s.Admin().Put(t.Context(), key, "somebody", clientv3.WithLease(lease.ID))
		require.NoError(t, err)
		leader, err := tenure.Lookup(t.Context(), s.Admin(), key)
		require.NoError(t, err)
		err = etcdtest.Await(t, time.Second, "Evict", evict(t.Context(), s.Admin(), leader.Fence, nil))
		require.ErrorContains(t, err, "cannot be asked")
		require.Len(t, s.Keys(key), 1)
		start := time.Now()
		require.NoError(t, tenure.Evict(t.Context(), s.Admin(), leader.Fence, &tenure.EvictOptions{Force: true, Patience: 4 * time.Second}))
		require.Equal(t, 4*time.Second, time.Since(start))
		require.Empty(t, s.Keys(key))
	})
}

// TestEvictFromASharedLease: the other terms on it go on.
func TestEvictFromASharedLease(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		lease, err := tenure.NewLease(c.Client, nil)
		require.NoError(t, err)
		opts := &tenure.Options{Lease: lease}
		other := contend(t, c, "/other", opts).won(t, time.Second)
		for _, evict := range []*tenure.EvictOptions{nil, {Force: true, Patience: -1}} {
			p := contend(t, c, key, opts)
			term := p.won(t, time.Second)
			require.NoError(t, tenure.Evict(t.Context(), s.Admin(), term.Fence(), evict))
			etcdtest.Eventually(t, latency, "Valid()", false, term.Valid)
			p.stop()
			etcdtest.Await(t, time.Second, "Run", p.done)
			time.Sleep(time.Minute)
			require.NoError(t, other.Verify(t.Context()))
			require.NoError(t, other.Context().Err())
		}
	})
}

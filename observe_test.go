package tenure_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
)

// observer ranges over an observation until its test ends.
type observer struct {
	states chan tenure.Status
	done   chan error // the error that was delivered, or nil, then closed
	stop   context.CancelFunc
}

func observe(t *testing.T, c *etcdtest.Client) *observer {
	t.Helper()
	o := &observer{states: make(chan tenure.Status, 10000), done: make(chan error, 1)}
	ctx, stop := context.WithCancel(t.Context())
	o.stop = stop
	go func() {
		defer close(o.done)
		var failure error
		for st, err := range tenure.Observe(ctx, c.Client, key) {
			if failure != nil {
				panic("something was delivered after an error")
			}
			if failure = err; err == nil {
				o.states <- st
			}
		}
		o.done <- failure
	}()
	t.Cleanup(func() {
		stop()
		etcdtest.Await(t, time.Minute, "Observe", o.done)
	})
	return o
}

// next returns the next state that is delivered.
func (o *observer) next(t *testing.T, within time.Duration) tenure.Status {
	t.Helper()
	return etcdtest.Await(t, within, "Observe", o.states)
}

// led asserts that the next state delivered names term as the one that leads.
func (o *observer) led(t *testing.T, within time.Duration, term *tenure.Term) tenure.Status {
	t.Helper()
	st := o.next(t, within)
	require.Equal(t, tenure.Led, st.State)
	require.Equal(t, term.Fence(), st.Leader.Fence)
	return st
}

// vacant asserts that the next state delivered is a vacancy.
func (o *observer) vacant(t *testing.T, within time.Duration) {
	t.Helper()
	st := o.next(t, within)
	require.Equal(t, tenure.Vacant, st.State)
	require.Equal(t, tenure.Fence{Key: key}, st.Leader.Fence)
	require.NoError(t, st.Err)
}

// TestObserve: the present state comes at once, then each change, vacancies
// included. W11.
func TestObserve(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		o := observe(t, s.Client())
		start := time.Now()
		o.vacant(t, time.Second)
		require.Equal(t, start, time.Now())

		p := contend(t, s.Client(), key, &tenure.Options{
			Identity: "node-1", Address: "there", Metadata: map[string]string{"zone": "b"},
		})
		term := p.won(t, time.Second)
		st := o.led(t, latency, term)
		require.Equal(t, "node-1", st.Leader.Identity)
		require.Equal(t, "there", st.Leader.Address)
		require.Equal(t, map[string]string{"zone": "b"}, st.Leader.Metadata)
		require.WithinDuration(t, start, st.Leader.Acquired, time.Second)
		require.WithinDuration(t, time.Now(), st.Since, latency)
		require.WithinDuration(t, time.Now(), st.Seen, latency)

		late := observe(t, s.Client())
		start = time.Now()
		late.led(t, time.Second, term)
		require.Equal(t, start, time.Now())

		require.NoError(t, term.Announce(t.Context(), "elsewhere", nil))
		st = o.led(t, latency, term)
		require.Equal(t, "elsewhere", st.Leader.Address)
		require.Greater(t, st.Leader.Revision, int64(term.Epoch()))
		require.Equal(t, st.Leader, late.led(t, latency, term).Leader)

		for range 10 {
			require.NoError(t, term.Resign())
			next := p.won(t, ttl)
			for _, o := range []*observer{o, late} {
				o.vacant(t, latency)
				o.led(t, latency, next)
			}
			term = next
		}
		time.Sleep(time.Hour)
		require.Empty(t, o.states, "nothing has changed")

		p.stop()
		o.vacant(t, latency)
		_, err := s.Admin().Put(t.Context(), key, "forgotten")
		require.NoError(t, err)
		require.ErrorContains(t, o.next(t, latency).Err, "no lease")
	})
}

// TestObserveDeliversTheNewestOnly: a consumer that is busy for a while does not
// live through the past afterwards. W12.
func TestObserveDeliversTheNewestOnly(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		a, b := contend(t, s.Client(), key, nil), contend(t, s.Client(), key, nil)
		all := []*contender{a, b}
		_, term := nextOf(t, time.Second, all)
		handOver := func() {
			for range 20 {
				require.NoError(t, term.Resign())
				_, term = nextOf(t, ttl, all)
			}
			synctest.Wait()
		}
		rounds := 0
		for st, err := range tenure.Observe(t.Context(), s.Client().Client, key) {
			require.NoError(t, err)
			require.Equal(t, tenure.Led, st.State)
			require.Equal(t, term.Fence(), st.Leader.Fence)
			if rounds++; rounds == 5 {
				break
			}
			handOver()
		}
	})
}

// TestObserveThroughBrokenConnections: it goes on, and no epoch is older than
// one before. W12, W13, W16.
func TestObserveThroughBrokenConnections(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		o := observe(t, c)
		a, b := contend(t, s.Client(), key, nil), contend(t, s.Client(), key, nil)
		all := []*contender{a, b}
		_, term := nextOf(t, time.Second, all)
		for range 100 {
			switch rand.N(6) {
			case 0:
				c.Link.DropConnections()
			case 1:
				c.Link.Cut()
			case 2:
				c.Faults.Break("", etcdtest.Unavailable)
			case 3:
				c.Faults.Next("Watch", etcdtest.LoseAnswer())
			case 4:
				c.Faults.Next("Watch", etcdtest.ReplayAnswer())
			case 5:
				require.NoError(t, term.Resign())
				_, term = nextOf(t, ttl, all)
			}
			time.Sleep(rand.N(time.Second))
			if rand.N(3) == 0 {
				c.Link.Heal()
			}
		}
		c.Link.Heal()
		time.Sleep(healing + 3*observeEvery/2)
		require.NoError(t, term.Verify(t.Context()))
		o.stop()
		require.NoError(t, etcdtest.Await(t, time.Second, "Observe", o.done))

		var last tenure.Status
		for len(o.states) > 0 {
			st := <-o.states
			require.Contains(t, []tenure.State{tenure.Vacant, tenure.Led, tenure.Unreachable}, st.State)
			if st.State == tenure.Led {
				require.GreaterOrEqual(t, st.Leader.Fence.Epoch, last.Leader.Fence.Epoch)
				last = st
			}
		}
		require.Equal(t, term.Fence(), last.Leader.Fence)
	})
}

// observeEvery is about how often an observer reads the key.
const observeEvery = 5 * time.Second

// TestObserveADeafWatch: the read that is made now and then tells. W05, W09.
func TestObserveADeafWatch(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		o := observe(t, c)
		o.vacant(t, time.Second)
		time.Sleep(time.Minute)
		c.Faults.On("Watch", etcdtest.LoseAnswer())
		term := contend(t, s.Client(), key, nil).won(t, time.Second)
		o.led(t, 3*observeEvery/2, term)
	})
}

// TestObserveUnreachable: that etcd does not answer is told, with the time since
// when, and what was known last; and that it answers again, even if nothing has
// changed meanwhile. W05, W13, W18.
func TestObserveUnreachable(t *testing.T) {
	outages := map[string]struct {
		begin, end func(s *etcdtest.Server, l *etcdtest.Link)
	}{
		"LinkIsCut": {
			func(_ *etcdtest.Server, l *etcdtest.Link) { l.Cut() },
			func(_ *etcdtest.Server, l *etcdtest.Link) { l.Heal() },
		},
		"AnswersAreCut": {
			func(_ *etcdtest.Server, l *etcdtest.Link) { l.CutDown() },
			func(_ *etcdtest.Server, l *etcdtest.Link) { l.Resume() },
		},
		"ServerIsDown": {
			func(s *etcdtest.Server, _ *etcdtest.Link) { s.Stop() },
			func(s *etcdtest.Server, _ *etcdtest.Link) { s.Start() },
		},
	}
	for name, tt := range outages {
		t.Run(name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				_, err := s.Admin().Put(t.Context(), key, "")
				require.NoError(t, err)
				c := s.Client()
				o := observe(t, c)
				before := o.next(t, time.Second)
				time.Sleep(time.Minute)
				require.Empty(t, o.states)

				cut := time.Now()
				tt.begin(s, c.Link)
				st := o.next(t, 3*observeEvery)
				require.Equal(t, tenure.Unreachable, st.State)
				require.WithinRange(t, st.Since, cut.Add(-3*observeEvery/2), cut)
				require.Equal(t, st.Since, st.Seen)
				require.Equal(t, before.Leader, st.Leader)
				require.Error(t, st.Err)
				requests := c.Faults.Count("")
				time.Sleep(time.Minute)
				require.Empty(t, o.states, "told once")
				require.LessOrEqual(t, c.Faults.Count("")-requests, 60)

				tt.end(s, c.Link)
				st = o.next(t, 2*time.Minute) // gRPC's own back-off is the larger part
				require.Equal(t, before.State, st.State)
				require.Equal(t, before.Leader, st.Leader)
				require.Equal(t, time.Now(), st.Seen)
			})
		})
	}
}

// TestObserveRolledBack: a restore to an older revision is a state of its own,
// after which what is known starts anew, at an older epoch. W10.
func TestObserveRolledBack(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		s.Stop()
		empty := s.Snapshot()
		s.Start()
		time.Sleep(healing)
		create := func() int64 {
			r, err := s.Admin().Put(t.Context(), key, "")
			require.NoError(t, err)
			return r.Header.Revision
		}
		create()
		remove(t, s, key)
		last := create()
		o := observe(t, s.Client())
		require.EqualValues(t, last, o.next(t, time.Second).Leader.Fence.Epoch)

		s.Stop()
		s.Restore(empty)
		s.Start()
		for st := o.next(t, time.Minute); st.State != tenure.RolledBack; st = o.next(t, time.Minute) {
			require.Equal(t, tenure.Unreachable, st.State)
		}
		o.vacant(t, time.Second)
		first := create()
		require.Less(t, first, last)
		require.EqualValues(t, first, o.next(t, latency).Leader.Fence.Epoch)
	})
}

// TestObserveBumpedRestore: the revision of a restored etcd was bumped, and yet
// an older term holds the key again, which was replaced before.
func TestObserveBumpedRestore(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		put := func() tenure.Epoch {
			r, err := s.Admin().Put(t.Context(), key, "")
			require.NoError(t, err)
			return tenure.Epoch(r.Header.Revision)
		}
		older := put()
		s.Stop()
		backup := s.Snapshot()
		s.Start()
		time.Sleep(healing)
		remove(t, s, key)
		newer := put()
		o := observe(t, s.Client())
		require.Equal(t, newer, o.next(t, time.Second).Leader.Fence.Epoch)

		s.Stop()
		s.Restore(backup)
		s.Bump(1_000_000)
		s.Start()
		for st := o.next(t, time.Minute); st.State != tenure.RolledBack; st = o.next(t, time.Minute) {
			require.Equal(t, tenure.Unreachable, st.State)
		}
		require.Equal(t, older, o.next(t, time.Second).Leader.Fence.Epoch)
		time.Sleep(healing)
		require.Empty(t, o.states, "told once")
		remove(t, s, key)
		o.vacant(t, latency)
		require.Greater(t, put(), newer)
		require.Greater(t, o.next(t, latency).Leader.Fence.Epoch, newer)
	})
}

// TestObserveTellsASlowConsumerOfARollback: although it is not the newest state.
func TestObserveTellsASlowConsumerOfARollback(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		s.Stop()
		empty := s.Snapshot()
		s.Start()
		time.Sleep(healing)
		put := func() {
			_, err := s.Admin().Put(t.Context(), key, "")
			require.NoError(t, err)
		}
		put()
		var states []tenure.State
		for st, err := range tenure.Observe(t.Context(), s.Client().Client, key) {
			require.NoError(t, err)
			if states = append(states, st.State); len(states) == 3 {
				break
			}
			if len(states) == 1 {
				s.Stop()
				s.Restore(empty)
				s.Start()
				time.Sleep(time.Minute)
				put()
				synctest.Wait()
			}
		}
		require.Equal(t, []tenure.State{tenure.Led, tenure.RolledBack, tenure.Led}, states)
	})
}

// TestObserveEndsWithWhatCannotHeal: delivered once, last. W14.
func TestObserveEndsWithWhatCannotHeal(t *testing.T) {
	opts := &etcdtest.ServerOptions{Auth: true, TokenTTL: 2 * time.Second}
	etcdtest.BubbleWith(t, opts, func(t *testing.T, s *etcdtest.Server) {
		s.AddUser("app", "secret", clientv3.PermissionType(clientv3.PermRead), "/scheduler/")
		s.AddUser("other", "secret", clientv3.PermissionType(clientv3.PermRead), "/other/")

		o := observe(t, s.Client(etcdtest.As("other", "secret")))
		require.ErrorIs(t, etcdtest.Await(t, time.Second, "Observe", o.done), rpctypes.ErrPermissionDenied)
		require.Empty(t, o.states)

		o = observe(t, &etcdtest.Client{})
		require.ErrorContains(t, etcdtest.Await(t, time.Second, "Observe", o.done), "client is nil")

		c := s.Client(etcdtest.As("app", "secret"))
		o = observe(t, c)
		o.vacant(t, time.Second)
		for range 5 { // tokens that have expired heal
			time.Sleep(20 * time.Second)
			c.Link.DropConnections()
		}
		time.Sleep(healing)
		require.Empty(t, o.states)
		_, err := s.Admin().Put(t.Context(), key, "")
		require.NoError(t, err)
		require.Equal(t, tenure.Led, o.next(t, latency).State)

		_, err = s.Admin().UserRevokeRole(t.Context(), "app", "app")
		require.NoError(t, err)
		require.ErrorIs(t, etcdtest.Await(t, 3*observeEvery, "Observe", o.done), rpctypes.ErrPermissionDenied)
		require.Empty(t, o.states)

		closed := s.Client(etcdtest.As("root", "root"))
		o = observe(t, closed)
		o.next(t, time.Second)
		require.NoError(t, closed.Client.Close())
		require.Error(t, etcdtest.Await(t, 3*observeEvery, "Observe", o.done))
	})
}

// TestObserveLeavesNothing: however the consumer ends it.
func TestObserveLeavesNothing(t *testing.T) {
	type consumer func(t *testing.T, c *etcdtest.Client)
	over := func(ctx context.Context, c *etcdtest.Client, f func() bool) {
		for range tenure.Observe(ctx, c.Client, key) {
			if !f() {
				break
			}
		}
	}
	ends := map[string]consumer{
		"Break": func(t *testing.T, c *etcdtest.Client) { over(t.Context(), c, func() bool { return false }) },
		"Panic": func(t *testing.T, c *etcdtest.Client) {
			require.PanicsWithValue(t, "stop", func() { over(t.Context(), c, func() bool { panic("stop") }) })
		},
		"Context": func(t *testing.T, c *etcdtest.Client) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			over(ctx, c, func() bool { return true })
			require.Error(t, ctx.Err())
		},
		"ContextWhileCut": func(t *testing.T, c *etcdtest.Client) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			start := time.Now()
			over(ctx, c, func() bool { c.Link.Cut(); return true })
			require.Equal(t, time.Minute, time.Since(start))
			c.Link.Heal()
		},
		"ContextInTheLoop": func(t *testing.T, c *etcdtest.Client) {
			ctx, cancel := context.WithCancel(t.Context())
			over(ctx, c, func() bool { require.NoError(t, ctx.Err()); cancel(); return true })
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				for range 3 { // over and over again
					end(t, c)
				}
				time.Sleep(healing)
				synctest.Wait()
				require.Zero(t, c.Faults.Streams(""))
				stacks := make([]byte, 1<<20)
				stacks = stacks[:runtime.Stack(stacks, true)]
				require.NotContains(t, string(stacks), "tenure.gather")
				require.NotContains(t, string(stacks), "client/v3.(*watch")
			})
		})
	}
}

// TestLookup: one linearizable look, with its bound in time. A13, W18.
func TestLookup(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		_, err := tenure.Lookup(t.Context(), c.Client, key)
		require.ErrorIs(t, err, tenure.ErrNoLeader)

		p := contend(t, s.Client(), key, &tenure.Options{Identity: "node-1", Address: "there"})
		term := p.won(t, time.Second)
		leader, err := tenure.Lookup(t.Context(), c.Client, key)
		require.NoError(t, err)
		require.Equal(t, term.Fence(), leader.Fence)
		require.Equal(t, "node-1", leader.Identity)
		require.Equal(t, "there", leader.Address)
		require.False(t, leader.Evicting)

		_, err = tenure.Lookup(t.Context(), nil, key)
		require.ErrorContains(t, err, "client is nil")

		c.Link.Cut()
		start := time.Now()
		done := make(chan error, 1)
		go func() {
			_, err := tenure.Lookup(context.Background(), c.Client, key)
			done <- err
		}()
		err = etcdtest.Await(t, time.Minute, "Lookup", done)
		require.Equal(t, 3*time.Second, time.Since(start))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, tenure.ErrNoLeader)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		_, err = tenure.Lookup(ctx, c.Client, key)
		require.Equal(t, time.Second, time.Since(start))
		require.ErrorIs(t, err, context.DeadlineExceeded)

		c.Link.Heal()
		time.Sleep(healing)
		p.stop()
		etcdtest.Await(t, time.Second, "Run", p.done)
		_, err = tenure.Lookup(t.Context(), c.Client, key)
		require.ErrorIs(t, err, tenure.ErrNoLeader)
	})
}

// TestIsolatedObserver: what an observer at a member without the others knows
// grows old, and it says so; a lookup there is no answer rather than an old one.
// W18.
func TestIsolatedObserver(t *testing.T) {
	c := etcdtest.StartCluster(t, 3)
	lone := (c.Leader() + 1) % 3
	p := contend(t, c.Client(etcdtest.At(c.Endpoint((lone+1)%3), c.Endpoint((lone+2)%3))), key, nil)
	old := p.won(t, 10*time.Second)
	client := c.Client(etcdtest.At(c.Endpoint(lone)))
	o := observe(t, client)
	o.led(t, 10*time.Second, old)

	c.Partition(lone)
	cut := time.Now()
	require.NoError(t, old.Resign())
	term := p.won(t, 30*time.Second)
	st := o.next(t, 30*time.Second)
	require.Equal(t, tenure.Unreachable, st.State)
	require.Equal(t, old.Fence(), st.Leader.Fence, "the last one known")
	require.WithinRange(t, st.Seen, cut.Add(-3*observeEvery/2), time.Now())
	_, err := tenure.Lookup(t.Context(), client.Client, key)
	require.Error(t, err)
	require.NotErrorIs(t, err, tenure.ErrNoLeader)

	c.Mend(lone)
	o.led(t, 30*time.Second, term)
}

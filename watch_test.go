package tenure_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
)

const (
	// latency is what etcd may take to tell a watch that begins in the past.
	latency = 150 * time.Millisecond
	// backstop is within what time a candidate learns of what its watch has not
	// told: the lease is renewed, and the key read, every third of the TTL.
	backstop = third + latency
	// healing is within what time a client reaches etcd again after a fault has
	// ended: all back-offs are at their largest by then.
	healing = 5 * time.Second
)

// TestFollowerNeverHangs: whatever is wrong with a follower's watch, it takes
// over when the leader is gone.
func TestFollowerNeverHangs(t *testing.T) {
	has := func(f func(*pb.WatchResponse) bool) etcdtest.Option { return etcdtest.Match(f) }
	events := has(func(r *pb.WatchResponse) bool { return len(r.Events) > 0 })
	tests := map[string]struct {
		before func(c *etcdtest.Client)                             // the follower begins
		fault  func(t *testing.T, s *etcdtest.Server, p *contender) // once it follows
		after  func(t *testing.T, s *etcdtest.Server, p *contender) // the leader has gone
		within time.Duration
	}{
		"WatchIsSilent": { // W05
			fault: func(_ *testing.T, _ *etcdtest.Server, p *contender) {
				p.Faults.On("Watch", etcdtest.LoseAnswer())
			},
			within: backstop,
		},
		"DeletionIsSwallowed": { // W09
			fault: func(_ *testing.T, _ *etcdtest.Server, p *contender) {
				p.Faults.On("Watch", etcdtest.LoseAnswer(), etcdtest.Deletes(key))
			},
			within: backstop,
		},
		"WatchIsNeverConfirmed": { // W06
			before: func(c *etcdtest.Client) {
				c.Faults.On("Watch", etcdtest.LoseAnswer(), has((*pb.WatchResponse).GetCreated))
			},
			within: backstop,
		},
		"WatchIsNeverAskedFor": { // W06
			before: func(c *etcdtest.Client) { c.Faults.On("Watch", etcdtest.LoseRequest()) },
			within: backstop,
		},
		"WatchIsAskedForAgain": { // W06
			before: func(c *etcdtest.Client) { c.Faults.Next("Watch", etcdtest.LoseRequest()) },
			within: latency,
		},
		"WatchIsRejected": { // W06
			before: func(c *etcdtest.Client) {
				c.Faults.On("Watch", etcdtest.EditAnswer(func(r *pb.WatchResponse) {
					r.Canceled, r.CancelReason = true, "etcdserver: permission denied"
				}), has((*pb.WatchResponse).GetCreated))
			},
			within: backstop,
		},
		"WatchClosesAfterEachEvent": { // W07
			fault: func(_ *testing.T, _ *etcdtest.Server, p *contender) {
				p.Faults.On("Watch", etcdtest.EditAnswer(func(r *pb.WatchResponse) { r.Canceled, r.Events = true, nil }), events)
			},
			within: latency,
		},
		"StreamBreaksAtEachEvent": { // W07
			fault: func(_ *testing.T, _ *etcdtest.Server, p *contender) {
				p.Faults.On("Watch", etcdtest.DropAnswer(etcdtest.Unavailable), events)
			},
			within: backstop,
		},
		"Compacted": { // W03
			fault: func(t *testing.T, s *etcdtest.Server, p *contender) {
				compact(t, s)
				p.Link.DropConnections()
			},
			within: healing,
		},
		"CompactedWithTheDeletion": { // W03
			fault: func(_ *testing.T, _ *etcdtest.Server, p *contender) { p.Link.Cut() },
			after: func(t *testing.T, s *etcdtest.Server, p *contender) {
				compact(t, s)
				p.Link.Heal()
			},
			within: healing,
		},
		"LinkIsHalfOpenForAWhile": { // W05
			fault: func(_ *testing.T, _ *etcdtest.Server, p *contender) { p.Link.Cut() },
			after: func(_ *testing.T, _ *etcdtest.Server, p *contender) {
				time.Sleep(time.Minute)
				p.Link.Heal()
			},
			within: healing,
		},
		"AnswersAreCutForAWhile": { // W05
			fault: func(_ *testing.T, _ *etcdtest.Server, p *contender) { p.Link.CutDown() },
			after: func(_ *testing.T, _ *etcdtest.Server, p *contender) {
				time.Sleep(time.Minute)
				p.Link.Heal()
			},
			within: healing,
		},
		"OwnLeaseIsRevoked": { // A04
			fault: func(t *testing.T, s *etcdtest.Server, p *contender) {
				leases, err := s.Admin().Leases(t.Context())
				require.NoError(t, err)
				for _, l := range leases.Leases {
					if l.ID != p.elector.Status().Leader.Fence.Lease {
						_, err := s.Admin().Revoke(t.Context(), l.ID)
						require.NoError(t, err)
					}
				}
			},
			within: latency,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				leader := contend(t, s.Client(), key, nil)
				term := leader.won(t, time.Second)
				c := s.Client()
				if tt.before != nil {
					tt.before(c)
				}
				p := contend(t, c, key, nil)
				p.follows(t, term)
				time.Sleep(time.Minute)
				p.follows(t, term)
				if tt.fault != nil {
					tt.fault(t, s, p)
				}
				leader.stop()
				etcdtest.Await(t, time.Second, "Run", leader.done)
				if tt.after != nil {
					tt.after(t, s, p)
				}
				require.Greater(t, p.won(t, tt.within).Epoch(), term.Epoch())
				time.Sleep(ttl + time.Second) // a grant may have been answered in vain
				require.Equal(t, 1, s.Leases())
			})
		})
	}
}

// compact makes history of all revisions so far and of some more.
func compact(t *testing.T, s *etcdtest.Server) {
	t.Helper()
	var rev int64
	for i := range 10 {
		r, err := s.Admin().Put(t.Context(), "/other", fmt.Sprint(i))
		require.NoError(t, err)
		rev = r.Header.Revision
	}
	_, err := s.Admin().Compact(t.Context(), rev)
	require.NoError(t, err)
}

// TestKeyDeletedBeforeTheWatchIsOpen: what happens between the read and the
// opening of the watch is told by the watch. W01.
func TestKeyDeletedBeforeTheWatchIsOpen(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		leader := contend(t, s.Client(), key, nil)
		term := leader.won(t, time.Second)
		c := s.Client()
		gate := c.Faults.Next("Watch", etcdtest.HoldRequest())
		p := contend(t, c, key, nil)
		etcdtest.Await(t, time.Second, "Watch", gate.Fired())
		p.follows(t, term)
		leader.stop()
		etcdtest.Await(t, time.Second, "Run", leader.done)
		require.Empty(t, p.terms)
		gate.Release()
		p.won(t, latency)
	})
}

// TestHolderNotices: whatever an operator does to the holder's key, the holder
// hears of it from its watch, or from its next renewal if the watch is deaf, and
// leaves no key that nobody can expire. A10, S16, W02, W17.
func TestHolderNotices(t *testing.T) {
	put := func(t *testing.T, s *etcdtest.Server, value string, opts ...clientv3.OpOption) {
		t.Helper()
		_, err := s.Admin().Put(t.Context(), key, value, opts...)
		require.NoError(t, err)
	}
	foreign := func(t *testing.T, s *etcdtest.Server) clientv3.OpOption {
		t.Helper()
		l, err := s.Admin().Grant(t.Context(), 3600)
		require.NoError(t, err)
		return clientv3.WithLease(l.ID)
	}
	acts := map[string]struct {
		act    func(t *testing.T, s *etcdtest.Server, term *tenure.Term)
		reason tenure.Reason // KeyDeleted may be KeyReplaced, if the key is created anew at once
		stays  bool          // the operator's key is not the holder's to delete
	}{
		"Deleted": {
			act:    func(t *testing.T, s *etcdtest.Server, _ *tenure.Term) { remove(t, s, key) },
			reason: tenure.KeyDeleted,
		},
		"PutWithoutALease": {
			act:    func(t *testing.T, s *etcdtest.Server, _ *tenure.Term) { put(t, s, "mine") },
			reason: tenure.KeyReplaced,
		},
		"PutUnchangedWithoutALease": {
			act: func(t *testing.T, s *etcdtest.Server, _ *tenure.Term) {
				put(t, s, string(s.Keys(key)[0].Value))
			},
			reason: tenure.KeyReplaced,
		},
		"PutWithAnotherLease": {
			act:    func(t *testing.T, s *etcdtest.Server, _ *tenure.Term) { put(t, s, "mine", foreign(t, s)) },
			reason: tenure.KeyReplaced,
			stays:  true,
		},
		"PutWithTheSameLease": {
			act: func(t *testing.T, s *etcdtest.Server, term *tenure.Term) {
				put(t, s, "mine", clientv3.WithLease(term.Fence().Lease))
			},
			reason: tenure.KeyReplaced,
		},
		"DeletedAndCreatedUnchanged": { // on the holder's lease, so it is nobody else's to delete
			act: func(t *testing.T, s *etcdtest.Server, term *tenure.Term) {
				value := string(s.Keys(key)[0].Value)
				remove(t, s, key)
				put(t, s, value, clientv3.WithLease(term.Fence().Lease))
			},
			reason: tenure.KeyDeleted,
		},
		"DeletedAndCreatedByAnother": {
			act: func(t *testing.T, s *etcdtest.Server, _ *tenure.Term) {
				lease := foreign(t, s)
				remove(t, s, key)
				put(t, s, "mine", lease)
			},
			reason: tenure.KeyDeleted,
			stays:  true,
		},
		"DeletedAndCreatedWithoutALease": {
			act: func(t *testing.T, s *etcdtest.Server, _ *tenure.Term) {
				remove(t, s, key)
				put(t, s, "mine")
			},
			reason: tenure.KeyDeleted,
			stays:  true,
		},
	}
	watches := map[string]struct {
		fault  func(c *etcdtest.Client)
		within time.Duration
	}{
		"AtOnce":          {func(*etcdtest.Client) {}, latency},
		"WithADeafWatch":  {func(c *etcdtest.Client) { c.Faults.On("Watch", etcdtest.LoseAnswer()) }, backstop},
		"WithoutItsWatch": {func(c *etcdtest.Client) { c.Faults.On("Watch", etcdtest.LoseRequest()) }, backstop},
	}
	for name, tt := range acts {
		for how, w := range watches {
			t.Run(name+how, func(t *testing.T) {
				etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
					c := s.Client()
					w.fault(c)
					stopped := make(chan struct{}, 10)
					p := contendWith(t, c, key, nil, func(ctx context.Context) {
						<-ctx.Done()
						time.Sleep(time.Second)
						stopped <- struct{}{}
					})
					term := p.won(t, time.Second) // and before the watch is open
					tt.act(t, s, term)
					etcdtest.Await(t, w.within, "Context()", term.Context().Done())
					require.False(t, term.Valid())
					cause := context.Cause(term.Context())
					require.Equal(t, cause, term.Err())
					if tt.reason != tenure.KeyDeleted || !errors.Is(cause, tenure.KeyReplaced) {
						require.ErrorIs(t, cause, tt.reason)
					}

					// The operator's key stands while the work goes on.
					before := s.Keys(key)
					time.Sleep(time.Second - time.Millisecond)
					require.Equal(t, before, s.Keys(key))
					etcdtest.Await(t, time.Second, "the work", stopped)
					synctest.Wait()
					if tt.stays {
						require.Equal(t, before, s.Keys(key))
						time.Sleep(time.Minute)
						require.Empty(t, p.terms)
						remove(t, s, key)
					} else if len(before) > 0 {
						etcdtest.Eventually(t, backstop+third, "the operator's key is gone", true, func() bool {
							return !assert.ObjectsAreEqual(before, s.Keys(key))
						})
					}
					again := p.won(t, backstop+third)
					require.Greater(t, again.Epoch(), term.Epoch())
				})
			})
		}
	}
}

// TestKeyWithoutALeaseGoesAlthoughNobodyResigns: at the latest when the lease
// would have expired, if the holder had died. A10.
func TestKeyWithoutALeaseGoesAlthoughNobodyResigns(t *testing.T) {
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprintf("SharedLease=%v", shared), func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				opts := &tenure.Options{}
				if shared {
					lease, err := tenure.NewLease(c.Client, nil)
					require.NoError(t, err)
					opts.Lease = lease
					contend(t, c, "/other", opts).won(t, time.Second)
				}
				term, err := newElector(t, c, opts).Campaign(t.Context())
				require.NoError(t, err)
				time.Sleep(time.Minute)
				_, err = s.Admin().Put(t.Context(), key, "mine")
				require.NoError(t, err)
				synctest.Wait()
				require.ErrorIs(t, term.Err(), tenure.KeyReplaced)

				etcdtest.Eventually(t, ttl+100*time.Millisecond, "len(Keys())", 0, func() int { return len(s.Keys(key)) })
				require.NoError(t, term.Resign())
			})
		})
	}
}

// TestFollowerReportsAKeyWithoutALease: instead of waiting silently for what
// never comes, and takes over once the key is deleted. A10.
func TestFollowerReportsAKeyWithoutALease(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		_, err := s.Admin().Put(t.Context(), key, "forgotten")
		require.NoError(t, err)
		p := contend(t, s.Client(), key, nil)
		time.Sleep(time.Minute)
		st := p.elector.Status()
		require.Equal(t, tenure.Led, st.State)
		require.Zero(t, st.Leader.Fence.Lease)
		require.ErrorContains(t, st.Err, "no lease")
		remove(t, s, key)
		p.won(t, latency)
		synctest.Wait()
		require.NoError(t, p.elector.Status().Err)

		// The same, for a key that loses its lease under a follower.
		follower := contend(t, s.Client(), key, nil)
		time.Sleep(time.Second)
		require.NoError(t, follower.elector.Status().Err)
		p.Link.Cut()
		_, err = s.Admin().Put(t.Context(), key, "forgotten")
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.ErrorContains(t, follower.elector.Status().Err, "no lease")
		require.Empty(t, follower.terms)
		remove(t, s, key)
		follower.won(t, latency)
	})
}

// TestWatchIsRejectedWhileStreamsBreak: etcd's watcher can get stuck on this,
// so an elector must do without it, and with a new one afterwards. W06.
func TestWatchIsRejectedWhileStreamsBreak(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		leader := contend(t, s.Client(), key, nil)
		term := leader.won(t, time.Second)
		c := s.Client()
		reject := c.Faults.On("Watch", etcdtest.EditAnswer(func(r *pb.WatchResponse) {
			r.Canceled, r.CancelReason = true, "etcdserver: permission denied"
		}))
		p := contend(t, c, key, nil)
		p.follows(t, term)
		for range 300 {
			time.Sleep(rand.N(200 * time.Millisecond))
			c.Faults.Break("Watch", etcdtest.Unavailable)
		}
		require.LessOrEqual(t, c.Faults.Count("Watch"), 100)
		reject.Stop()
		time.Sleep(healing)
		leader.stop()
		p.won(t, latency)
	})
}

// TestTheCallersWatcherIsNotOurs: what the caller does to the watcher of its
// client, or a neighbour on it, does not reach an elector's watch. W08.
func TestTheCallersWatcherIsNotOurs(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		leader := contend(t, s.Client(), key, nil)
		term := leader.won(t, time.Second)
		c := s.Client()
		p := contend(t, c, key, nil)
		p.follows(t, term)
		unread := c.Watch(clientv3.WithRequireLeader(t.Context()), "/", clientv3.WithPrefix())
		for range 1000 {
			_, err := s.Admin().Put(t.Context(), "/other", "")
			require.NoError(t, err)
		}
		require.NoError(t, c.Watcher.Close())
		time.Sleep(time.Minute)
		leader.stop()
		p.won(t, latency)
		require.NotEmpty(t, unread)
	})
}

// TestTokensExpire: simple tokens that die within seconds, and connections that
// break, cost neither the leader its term nor the follower its watch. W14.
func TestTokensExpire(t *testing.T) {
	opts := &etcdtest.ServerOptions{Auth: true, TokenTTL: 2 * time.Second}
	etcdtest.BubbleWith(t, opts, func(t *testing.T, s *etcdtest.Server) {
		s.AddUser("app", "secret", clientv3.PermissionType(clientv3.PermReadWrite), "/scheduler/")
		leader := contend(t, s.Client(etcdtest.As("app", "secret")), key, nil)
		term := leader.won(t, time.Second)
		p := contend(t, s.Client(etcdtest.As("app", "secret")), key, nil)
		p.follows(t, term)
		for range 10 {
			time.Sleep(7 * time.Second)
			p.Link.DropConnections()
			leader.Link.DropConnections()
		}
		time.Sleep(healing)
		require.NoError(t, term.Verify(t.Context()))
		require.Equal(t, []tenure.State{tenure.Led}, p.history())
		leader.stop()
		p.won(t, latency)
	})
}

// TestOldEventsAreIgnored: what a watch tells twice, or again from the beginning
// after its stream broke, neither ends a term nor changes what a follower knows.
// W16.
func TestOldEventsAreIgnored(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		client := func() *etcdtest.Client {
			c := s.Client()
			c.Faults.On("Watch", etcdtest.ReplayAnswer())
			c.Faults.On("Watch", etcdtest.EditRequest(func(r *pb.WatchRequest) {
				r.GetCreateRequest().StartRevision = 1
			}), etcdtest.Match(func(r *pb.WatchRequest) bool { return r.GetCreateRequest() != nil }))
			return c
		}
		leader := contend(t, client(), key, nil)
		term := leader.won(t, time.Second)
		follower := contend(t, client(), key, nil)
		follower.follows(t, term)
		for range 20 {
			require.NoError(t, term.Resign())
			next := follower.won(t, time.Second)
			leader.follows(t, next)
			before := [][]tenure.State{leader.history(), follower.history()}
			for _, p := range []*contender{leader, follower} {
				// The past comes in one answer, of which the end is cut off.
				old := p.Faults.On("Watch", etcdtest.EditAnswer(func(r *pb.WatchResponse) {
					r.Events = r.Events[:rand.IntN(len(r.Events)-1)+1]
				}), etcdtest.Match(func(r *pb.WatchResponse) bool { return len(r.Events) > 1 }))
				require.Equal(t, 1, p.Faults.Break("Watch", etcdtest.Unavailable))
				etcdtest.Await(t, time.Second, "Watch", old.Fired())
				old.Stop()
			}
			time.Sleep(time.Second)
			require.Equal(t, before, [][]tenure.State{leader.history(), follower.history()})
			require.NoError(t, next.Verify(t.Context()))
			leader, follower, term = follower, leader, next
		}
		for _, p := range []*contender{leader, follower} {
			var last tenure.Epoch
			for _, st := range p.told() {
				if epoch := st.Leader.Fence.Epoch; epoch != 0 {
					require.GreaterOrEqual(t, epoch, last)
					last = epoch
				}
			}
		}
	})
}

// TestRestoredToAnOlderRevision: a follower's watch would wait for a revision
// that etcd reaches in the far future, if at all. W10.
func TestRestoredToAnOlderRevision(t *testing.T) {
	snapshot := func(s *etcdtest.Server) string {
		s.Stop()
		dir := s.Snapshot()
		s.Start()
		return dir
	}
	restore := func(s *etcdtest.Server, dir string) {
		s.Stop()
		s.Restore(dir)
		s.Start()
	}
	t.Run("AFollowerStillTakesOver", func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			leader := contend(t, s.Client(), key, nil)
			term := leader.won(t, time.Second)
			p := contend(t, s.Client(), key, nil)
			p.follows(t, term)
			dir := snapshot(s)
			time.Sleep(healing)
			for range 100 {
				_, err := s.Admin().Put(t.Context(), "/other", "")
				require.NoError(t, err)
			}
			time.Sleep(ttl) // so that somebody has seen the revision
			require.NoError(t, term.Verify(t.Context()))
			restore(s, dir)
			time.Sleep(ttl)
			require.Contains(t, p.history(), tenure.RolledBack)
			require.Equal(t, tenure.Led, p.state())
			leader.stop()
			require.Greater(t, p.won(t, latency).Epoch(), term.Epoch())
		})
	})
	t.Run("NobodyLeadsWithAnEpochThatWasThere", func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			a := contend(t, s.Client(), key, nil)
			first := a.won(t, time.Second)
			b := contend(t, s.Client(), key, nil)
			b.follows(t, first)
			dir := snapshot(s)
			time.Sleep(healing)
			var last *tenure.Term
			for range 3 {
				remove(t, s, key)
				a.follows(t, b.won(t, time.Second))
				remove(t, s, key)
				last = a.won(t, time.Second)
				b.follows(t, last)
			}
			restore(s, dir)
			for _, p := range []*contender{a, b} {
				require.ErrorIs(t, etcdtest.Await(t, time.Minute, "Run", p.done), tenure.ErrRolledBack)
			}
			require.False(t, last.Valid())
			require.Empty(t, s.Keys(key))

			// A new process, which is told what the resources have accepted.
			c := contend(t, s.Client(), key, &tenure.Options{MinEpoch: last.Epoch()})
			require.ErrorIs(t, etcdtest.Await(t, time.Minute, "Run", c.done), tenure.ErrRolledBack)
			for range 100 {
				_, err := s.Admin().Put(t.Context(), "/other", "")
				require.NoError(t, err)
			}
			c = contend(t, s.Client(), key, &tenure.Options{MinEpoch: last.Epoch()})
			require.Greater(t, c.won(t, time.Second).Epoch(), last.Epoch())
		})
	})
}

// TestWatchOnAnIsolatedMember: a member that has lost the others says so, after
// three of its election timeouts, and the watch goes to another one. Only much
// later would the lease's own read have told. W04.
func TestWatchOnAnIsolatedMember(t *testing.T) {
	c := etcdtest.StartCluster(t, 3)
	leader := contend(t, c.Client(), key, nil)
	term := leader.won(t, 10*time.Second)

	lone := (c.Leader() + 1) % 3
	client := c.Client()
	var others []*etcdtest.Link
	for i := 1; i < 3; i++ {
		l := client.Link.To(fmt.Sprintf("member%d:2379", (lone+i)%3))
		l.Refuse()
		others = append(others, l)
	}
	p := contend(t, client, key, &tenure.Options{TTL: 5 * time.Minute})
	etcdtest.Eventually(t, 10*time.Second, "Status().State", tenure.Led, p.state)
	etcdtest.Eventually(t, 10*time.Second, "Streams(Watch)", 1, func() int { return client.Faults.Streams("Watch") })
	for _, l := range others {
		l.Heal()
	}
	c.Partition(lone)
	leader.stop()
	require.Greater(t, p.won(t, time.Minute).Epoch(), term.Epoch())
	c.Mend(lone)
}

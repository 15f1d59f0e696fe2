package tenure_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
)

// ttl is the TTL of the default options, and third how often a lease is renewed.
const (
	ttl   = 10 * time.Second
	third = ttl / 3
)

// contender is an elector that runs until its test ends.
type contender struct {
	*etcdtest.Client
	elector *tenure.Elector
	terms   chan *tenure.Term // each, when its work begins
	done    chan error        // what Run returned, then closed
	stop    context.CancelFunc

	mu     sync.Mutex
	states []tenure.Status
}

// contend runs an elector for key on c whose work stops as soon as it is told.
func contend(t *testing.T, c *etcdtest.Client, key string, opts *tenure.Options) *contender {
	t.Helper()
	return contendWith(t, c, key, opts, func(ctx context.Context) { <-ctx.Done() })
}

// contendWith is contend with another work.
func contendWith(t *testing.T, c *etcdtest.Client, key string, opts *tenure.Options, work func(ctx context.Context)) *contender {
	t.Helper()
	p := &contender{Client: c, terms: make(chan *tenure.Term, 1000), done: make(chan error, 1)}
	var o tenure.Options
	if opts != nil {
		o = *opts
	}
	o.Hooks = &tenure.Hooks{StateChanged: func(s tenure.Status) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.states = append(p.states, s)
	}}
	var err error
	p.elector, err = tenure.New(c.Client, key, &o)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	p.stop = stop
	go func() {
		defer close(p.done)
		p.done <- p.elector.Run(ctx, func(ctx context.Context, term *tenure.Term) error {
			p.terms <- term
			work(ctx)
			return nil
		})
	}()
	t.Cleanup(func() {
		stop()
		etcdtest.Await(t, time.Minute, "Run", p.done)
	})
	return p
}

// won returns the contender's next term, which must begin within the given time.
func (p *contender) won(t *testing.T, within time.Duration) *tenure.Term {
	t.Helper()
	return etcdtest.Await(t, within, "a new term", p.terms)
}

// told returns what the contender was told so far of changes of its state.
func (p *contender) told() []tenure.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.states)
}

// history returns the states of what it was told.
func (p *contender) history() (states []tenure.State) {
	for _, s := range p.told() {
		states = append(states, s.State)
	}
	return states
}

func (p *contender) state() tenure.State { return p.elector.Status().State }

// follows waits until the contender follows the term.
func (p *contender) follows(t *testing.T, term *tenure.Term) {
	t.Helper()
	etcdtest.Eventually(t, time.Second, "Status().Leader.Fence", term.Fence(), func() tenure.Fence {
		s := p.elector.Status()
		if s.State != tenure.Led {
			return tenure.Fence{}
		}
		return s.Leader.Fence
	})
	synctest.Wait() // until its watch is open
}

// couldCreate reports whether a request could create a key, if it is a transaction.
func couldCreate(m proto.Message) bool {
	r, ok := m.(*pb.TxnRequest)
	return !ok || len(r.Success) == 1 && r.Success[0].GetRequestPut() != nil
}

// ifCreating limits a rule on transactions to those that could create a key.
var ifCreating = etcdtest.Match(func(m proto.Message) bool { return couldCreate(m) })

// puts returns how many transactions of a client could have created a key.
func puts(c *etcdtest.Client) int {
	n := 0
	for _, m := range c.Faults.Log("Txn") {
		if !m.Answer && couldCreate(m.Body) {
			n++
		}
	}
	return n
}

// remove deletes the election's key, as an operator would.
func remove(t *testing.T, s *etcdtest.Server, key string) {
	t.Helper()
	r, err := s.Admin().Delete(t.Context(), key)
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Deleted)
}

// nextOf returns the term that one of the contenders wins next, and its place
// among them.
func nextOf(t *testing.T, within time.Duration, all []*contender) (int, *tenure.Term) {
	t.Helper()
	winner := -1
	etcdtest.Eventually(t, within, "somebody wins", true, func() bool {
		winner = slices.IndexFunc(all, func(p *contender) bool { return len(p.terms) > 0 })
		return winner >= 0
	})
	return winner, <-all[winner].terms
}

// TestContest: whoever ends a term and however, one candidate wins the next one,
// and nobody else believes that it leads.
func TestContest(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var all []*contender
		for i := range 12 {
			c := s.Client()
			c.Link.Delay(rand.N(5*time.Millisecond), rand.N(5*time.Millisecond))
			all = append(all, contend(t, c, key, &tenure.Options{Identity: fmt.Sprint(i)}))
		}
		var last tenure.Epoch
		for round := range 60 {
			winner, term := nextOf(t, ttl, all)
			require.Greater(t, term.Epoch(), last, "an epoch is not above the one before")
			last = term.Epoch()
			time.Sleep(rand.N(4 * time.Second))

			for i, p := range all {
				require.Equal(t, i == winner, p.elector.Term() != nil, "contender %d of round %d", i, round)
				require.Equal(t, fmt.Sprint(winner), p.elector.Status().Leader.Identity)
				require.Empty(t, p.terms)
			}
			require.NoError(t, term.Verify(t.Context()))
			switch round % 3 {
			case 0:
				require.NoError(t, term.Resign())
			case 1:
				remove(t, s, key)
			case 2:
				_, err := s.Admin().Revoke(t.Context(), term.Fence().Lease)
				require.NoError(t, err)
			}
		}
	})
}

// TestElectionsAreIndependent: a key is a key and no prefix. A09.
func TestElectionsAreIndependent(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		keys := []string{"/x", "/x/", "/x/y", "/xy", "x"}
		terms := make(map[string]*tenure.Term)
		followers := make(map[string]*contender)
		for _, k := range keys {
			terms[k] = contend(t, s.Client(), k, nil).won(t, time.Second)
			followers[k] = contend(t, s.Client(), k, nil)
		}
		for _, k := range keys {
			followers[k].follows(t, terms[k])
		}
		for i, gone := range keys {
			remove(t, s, gone)
			next := followers[gone].won(t, time.Second)
			require.Equal(t, gone, next.Fence().Key)
			etcdtest.Eventually(t, time.Second, "Valid()", false, terms[gone].Valid)
			for _, k := range keys[i+1:] {
				require.NoError(t, terms[k].Verify(t.Context()), "%q after %q was deleted", k, gone)
				require.Empty(t, followers[k].terms)
			}
		}
	})
}

// TestSharedLeaseContendsOnce: the electors of a process that wait for the same
// key on one lease send one transaction for each vacancy. A08, A15.
func TestSharedLeaseContendsOnce(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		c.Link.Delay(5*time.Millisecond, 5*time.Millisecond)
		lease, err := tenure.NewLease(c.Client, nil)
		require.NoError(t, err)
		var all []*contender
		for range 30 {
			all = append(all, contend(t, c, key, &tenure.Options{Lease: lease}))
		}
		for round := range 20 {
			winner, term := nextOf(t, time.Second, all)
			time.Sleep(time.Second)
			require.Equal(t, round+1, puts(c), "transactions for %d vacancies", round+1)
			for i, p := range all {
				require.Equal(t, i == winner, p.elector.Term() != nil)
			}
			require.NoError(t, term.Resign())
		}
		require.Equal(t, 1, s.Leases())
	})
}

// TestLottery: among many candidates few contend at once, which they learn, and
// few candidates do not wait for each other. A15.
func TestLottery(t *testing.T) {
	const oneWay = time.Millisecond // resign, deletion, transaction and its answer take four
	tests := map[string]struct {
		candidates  int
		proposals   float64 // for a hand-over on average, at most
		mean, worst time.Duration
	}{
		"OfTwo":     {2, 2, 4 * oneWay, 4 * oneWay},
		"OfThree":   {3, 3, 6 * oneWay, 50 * oneWay},
		"OfHundred": {100, 10, 8 * oneWay, 100 * oneWay},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				c.Link.Delay(oneWay, oneWay)
				began := make(chan time.Time, 1)
				var all []*contender
				for range tt.candidates {
					all = append(all, contendWith(t, c, key, nil, func(ctx context.Context) {
						began <- time.Now()
						<-ctx.Done()
					}))
				}
				handOver := func() time.Duration {
					_, term := nextOf(t, time.Second, all)
					time.Sleep(250 * time.Millisecond)
					start := time.Now()
					require.NoError(t, term.Resign())
					return etcdtest.Await(t, time.Second, "began", began).Sub(start)
				}
				etcdtest.Await(t, time.Second, "began", began)
				for range 15 {
					handOver()
				}
				const rounds = 25
				before := s.Etcd().CommittedIndex()
				var sum, worst time.Duration
				for range rounds {
					took := handOver()
					sum, worst = sum+took, max(worst, took)
				}
				proposals := float64(s.Etcd().CommittedIndex()-before) / rounds
				t.Logf("%.1f proposals and %v for a hand-over, %v at worst", proposals, sum/rounds, worst)
				require.LessOrEqual(t, proposals, tt.proposals)
				require.LessOrEqual(t, sum/rounds, tt.mean)
				require.LessOrEqual(t, worst, tt.worst)
			})
		})
	}
}

// TestWhoLetGoLetsTheOtherWin: not once does the elector that has resigned, was
// evicted or lost its key to an operator win the next term, if there is another
// candidate. A17, S16.
func TestWhoLetGoLetsTheOtherWin(t *testing.T) {
	ends := map[string]func(t *testing.T, s *etcdtest.Server, term *tenure.Term){
		"AfterResigning": func(t *testing.T, _ *etcdtest.Server, term *tenure.Term) {
			require.NoError(t, term.Resign())
		},
		"AfterEviction": func(t *testing.T, s *etcdtest.Server, term *tenure.Term) {
			require.NoError(t, tenure.Evict(t.Context(), s.Admin(), term.Fence(), nil))
		},
		"AfterDeletion": func(t *testing.T, s *etcdtest.Server, _ *tenure.Term) {
			remove(t, s, key)
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				// In every other round the one that lets go is nearer to etcd.
				near, far := s.Client(), s.Client()
				near.Link.Delay(time.Millisecond, time.Millisecond)
				far.Link.Delay(9*time.Millisecond, 9*time.Millisecond)
				leader := contend(t, near, key, nil)
				term := leader.won(t, time.Second)
				follower := contend(t, far, key, nil)
				follower.follows(t, term)
				for range 100 {
					end(t, s, term)
					next := follower.won(t, time.Second)
					require.Empty(t, leader.terms)
					require.Greater(t, next.Epoch(), term.Epoch())
					leader.follows(t, next)
					leader, follower, term = follower, leader, next
				}
			})
		})
	}
	t.Run("ButAloneItWinsAgain", func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			p := contend(t, s.Client(), key, nil)
			for range 10 {
				require.NoError(t, p.won(t, third+time.Second).Resign())
			}
		})
	})
}

// TestStatus: following somebody, contending, leading and not reaching etcd are
// told apart, with the time since when. A20.
func TestStatus(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		const soon = 100 * time.Millisecond
		e := newElector(t, s.Client(), nil)
		assert.Equal(t, tenure.Idle, e.Status().State)
		assert.Equal(t, time.Now(), e.Status().Since)

		other := contend(t, s.Client(), key, &tenure.Options{Identity: "other", Address: "there"})
		term := other.won(t, time.Second)
		p := contend(t, s.Client(), key, &tenure.Options{Identity: "this"})
		p.follows(t, term)

		time.Sleep(time.Minute)
		st := p.elector.Status()
		assert.Equal(t, tenure.Led, st.State)
		assert.Equal(t, term.Fence(), st.Leader.Fence)
		assert.Equal(t, "other", st.Leader.Identity)
		assert.Equal(t, "there", st.Leader.Address)
		assert.WithinDuration(t, time.Now().Add(-time.Minute), st.Since, soon)
		assert.Equal(t, ttl, st.TTL)
		assert.LessOrEqual(t, time.Since(st.Seen), third+soon)
		assert.NoError(t, st.Err)

		p.Link.Cut()
		etcdtest.Eventually(t, ttl, "Status().State", tenure.Unreachable, p.state)
		st = p.elector.Status()
		assert.Equal(t, st.Seen, st.Since)
		assert.Greater(t, time.Since(st.Seen), third)
		assert.Equal(t, term.Fence(), st.Leader.Fence, "the last leader known")
		assert.Error(t, st.Err)
		p.Link.Heal()
		etcdtest.Eventually(t, 3*time.Second, "Status().State", tenure.Led, p.state)
		assert.WithinDuration(t, time.Now(), p.elector.Status().Since, soon)
		assert.NoError(t, p.elector.Status().Err)

		other.stop()
		term = p.won(t, time.Second)
		time.Sleep(time.Minute)
		st = p.elector.Status()
		assert.Equal(t, tenure.Leading, st.State)
		assert.Equal(t, term.Fence(), st.Leader.Fence)
		assert.Equal(t, "this", st.Leader.Identity)
		assert.WithinDuration(t, time.Now().Add(-time.Minute), st.Since, soon)

		p.Link.Cut()
		for term.Valid() {
			assert.Equal(t, tenure.Leading, p.state())
			time.Sleep(10 * time.Millisecond)
		}
		assert.NotEqual(t, tenure.Leading, p.state())
		etcdtest.Eventually(t, 3*time.Second, "Status().State", tenure.Unreachable, p.state)
		time.Sleep(time.Minute)
		assert.Equal(t, tenure.Unreachable, p.state())
		p.Link.Heal()
		term = p.won(t, 3*time.Second)
		synctest.Wait()
		assert.Equal(t, tenure.Leading, p.state())

		require.NoError(t, term.Resign())
		synctest.Wait()
		assert.Equal(t, tenure.Vacant, p.state())
		assert.Zero(t, p.elector.Status().Leader.Fence.Epoch)
		p.won(t, third+soon)

		p.stop()
		etcdtest.Await(t, time.Second, "Run", p.done)
		assert.Equal(t, tenure.Idle, p.state())

		assert.Equal(t, []tenure.State{tenure.Led, tenure.Unreachable, tenure.Led, tenure.Vacant, tenure.Leading},
			p.history()[:5], "what the hook was told first")
	})
}

// TestServerAway: an outage of three TTLs costs the term, no hot loop runs
// meanwhile, and the same Run leads again. A06, S13, W15.
func TestServerAway(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		p := contend(t, s.Client(), key, nil)
		first := p.won(t, time.Second)
		follower := contend(t, s.Client(), key, nil)
		follower.follows(t, first)
		all := []*contender{p, follower}
		var dials, requests []int
		for _, p := range all {
			dials, requests = append(dials, p.Link.Dials()), append(requests, p.Faults.Count(""))
		}
		s.Stop()
		time.Sleep(3 * ttl)
		require.ErrorIs(t, first.Err(), tenure.LeaseExpired)
		for i, p := range all {
			require.LessOrEqual(t, p.Link.Dials()-dials[i], 10, "dials")
			require.LessOrEqual(t, p.Faults.Count("")-requests[i], 30, "requests")
			require.Equal(t, tenure.Unreachable, p.state())
		}

		follower.stop()
		s.Start()
		again := p.won(t, time.Minute) // gRPC's own back-off is the larger part
		require.Greater(t, again.Epoch(), first.Epoch())
		require.NoError(t, again.Verify(t.Context()))
	})
}

// TestFailingRequests: whatever kind of request fails, it is repeated ever more
// slowly, and the first one that succeeds again is followed by a term. S17.
func TestFailingRequests(t *testing.T) {
	refused := etcdtest.FailRequest(status.Error(codes.ResourceExhausted, "etcdserver: too many requests"))
	for _, method := range []string{"Txn", "LeaseGrant", "Range"} {
		t.Run(method, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				rule := c.Faults.On(method, refused, ifCreating)
				p := contend(t, c, key, nil)
				time.Sleep(30 * time.Second)
				if method != "Range" { // renewals read the key as well, so it leads by now
					require.Empty(t, p.terms)
					require.ErrorContains(t, p.elector.Status().Err, "too many requests")
				}

				// Each pause is twice as long as the one before, from 50 ms up to
				// 2 s, give or take a half of it. The first one may be shorter.
				var last time.Time
				var pause, before time.Duration
				attempts := 0
				for _, m := range c.Faults.Log(method) {
					if m.Answer || !couldCreate(m.Body) {
						continue
					}
					if attempts++; attempts > 1 {
						before, pause = pause, min(max(2*pause, 50*time.Millisecond), 2*time.Second)
						require.GreaterOrEqual(t, m.At.Sub(last), before/2)
						require.Less(t, m.At.Sub(last), pause*3/2)
					}
					last = m.At
				}
				require.Greater(t, attempts, 10)
				require.LessOrEqual(t, time.Since(last), pause*3/2)

				rule.Stop()
				p.won(t, 3*time.Second)
			})
		})
	}
}

// TestQuorumLost: a follower says that etcd is unreachable, and since when,
// instead of pretending to wait for its turn. A20.
func TestQuorumLost(t *testing.T) {
	c := etcdtest.StartCluster(t, 3)
	opts := &tenure.Options{TTL: 3 * time.Second}
	leader := contend(t, c.Client(), key, opts)
	term := leader.won(t, 10*time.Second)
	follower := contend(t, c.Client(), key, opts)
	etcdtest.Eventually(t, 10*time.Second, "Status().State", tenure.Led, follower.state)

	to := c.Leader()
	before := time.Now()
	c.Stop((to + 1) % 3)
	c.Stop((to + 2) % 3)
	etcdtest.Eventually(t, 30*time.Second, "Status().State", tenure.Unreachable, follower.state)
	st := follower.elector.Status()
	require.WithinRange(t, st.Since, before.Add(-opts.TTL), st.Seen)
	require.Equal(t, term.Fence(), st.Leader.Fence)

	c.Restart((to + 1) % 3)
	// The term may have lived through this, if the machine is fast.
	etcdtest.Eventually(t, time.Minute, "one leads and one follows", true, func() bool {
		return leader.state() == tenure.Leading && follower.state() == tenure.Led ||
			leader.state() == tenure.Led && follower.state() == tenure.Leading
	})
}

// TestLearner: a member that does not vote yet refuses nearly everything, so an
// elector that has one of two endpoints there uses the other one. A16.
func TestLearner(t *testing.T) {
	c := etcdtest.StartCluster(t, 1)
	c.AddAndLaunchLearnerMember(quiet{t})
	voter, learner := c.Members[0].GRPCURL, c.Members[1].GRPCURL
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{learner, voter}, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })

	// Each has streams of its own, which begin at either member in turn.
	var all []*tenure.Term
	for i := range 6 {
		p := contend(t, &etcdtest.Client{Client: client}, fmt.Sprint(key, i), &tenure.Options{TTL: 3 * time.Second})
		all = append(all, p.won(t, 10*time.Second))
	}
	for _, term := range all {
		limit := term.ValidUntil()
		etcdtest.Eventually(t, 20*time.Second, "two renewals count", true, func() bool {
			return term.ValidUntil().Sub(limit) > time.Second
		})
	}
	for _, term := range all {
		require.NoError(t, term.Verify(t.Context()))
	}
}

// quiet keeps the log of a member out of the test's.
type quiet struct{ testing.TB }

func (quiet) Log(...any)          {}
func (quiet) Logf(string, ...any) {}

// TestEtcdsLeaderMoves: each new leader of etcd gives all leases their full TTL
// again, so a dead holder's key can stand for long. It is not mistaken for a
// living one's: its age is told, and an operator can evict it by force. L06.
func TestEtcdsLeaderMoves(t *testing.T) {
	c := etcdtest.StartCluster(t, 3)
	opts := &tenure.Options{TTL: 3 * time.Second}
	begun := time.Now()
	leader := contend(t, c.Client(), key, opts)
	term := leader.won(t, 10*time.Second)
	follower := contend(t, c.Client(), key, opts)
	etcdtest.Eventually(t, 10*time.Second, "Status().State", tenure.Led, follower.state)

	leader.Link.Cut()
	cut := time.Now()
	tick := time.NewTicker(opts.TTL / 4)
	defer tick.Stop()
	for term.Valid() || time.Since(term.ValidUntil()) < opts.TTL {
		c.MoveLeader((c.Leader() + 1) % 3)
		<-tick.C
	}
	st := follower.elector.Status()
	require.Equal(t, term.Fence(), st.Leader.Fence)
	require.WithinRange(t, st.Leader.Acquired, begun, cut)
	require.Greater(t, time.Since(cut), 3*opts.TTL/2)

	force := &tenure.EvictOptions{Force: true, Patience: -1}
	require.NoError(t, tenure.Evict(t.Context(), c.Admin(), term.Fence(), force))
	require.Greater(t, follower.won(t, 10*time.Second).Epoch(), term.Epoch())
}

package leadergrpc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
	"github.com/tenure-go/tenure/leadergrpc"
)

// put makes somebody the leader who is no elector, and returns the epoch.
func put(t *testing.T, s *etcdtest.Server, identity, address string) tenure.Epoch {
	t.Helper()
	record, err := json.Marshal(map[string]string{"identity": identity, "address": address, "candidate": identity})
	require.NoError(t, err)
	_, err = s.Admin().Put(t.Context(), key, string(record))
	require.NoError(t, err)
	leader, err := tenure.Lookup(t.Context(), s.Admin(), key)
	require.NoError(t, err)
	return leader.Fence.Epoch
}

func remove(t *testing.T, s *etcdtest.Server) {
	t.Helper()
	_, err := s.Admin().Delete(t.Context(), key)
	require.NoError(t, err)
}

// service is a server that is no candidate and answers always.
type service struct {
	pb.UnimplementedTestServiceServer
	name string
}

func (s *service) UnaryCall(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	return &pb.SimpleResponse{ServerId: s.name}, nil
}

func (h *hosts) serve(t *testing.T, name string) {
	t.Helper()
	server := grpc.NewServer()
	pb.RegisterTestServiceServer(server, &service{name: name})
	lis := h.listen(name + ":1")
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)
}

// TestFollows: as soon as the watch has told of a new term, the very next call
// reaches it, without a retry, and the connection to the leader before is gone.
func TestFollows(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var h hosts
		nodes := []*node{h.candidate(t, s, "a"), h.candidate(t, s, "b"), h.candidate(t, s, "c")}
		term := nextOf(t, nodes)
		f := follow(t, s.Client(), h.dial, nil)
		f.conn.Connect()
		settle() // once: the watch begins in the past
		for range 20 {
			require.NoError(t, term.Resign())
			term = nextOf(t, nodes)
			synctest.Wait() // no time passes
			for _, n := range nodes {
				if n.elector.Term() == term {
					f.reaches(t, n)
				}
			}
			synctest.Wait()
			for _, n := range nodes {
				open := int32(0)
				if n.elector.Term() == term {
					open = 1
				}
				require.Equal(t, open, h.host[n.name+":1"].open.Load())
			}
		}
		require.Equal(t, tenure.Led, f.status().State)
		require.Equal(t, term.Fence(), f.status().Leader.Fence)
	})
}

// TestANewTermIsDialledAnew: also at the same address, whose last connection may
// lead to a machine that has gone.
func TestANewTermIsDialledAnew(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var h hosts
		a := h.candidate(t, s, "a")
		f := follow(t, s.Client(), h.dial, nil)
		for n := range 3 {
			term := a.won(t, ttl)
			settle()
			f.reaches(t, a)
			settle()
			require.EqualValues(t, n+1, h.host["a:1"].dials.Load())
			require.EqualValues(t, 1, h.host["a:1"].open.Load())
			require.NoError(t, term.Resign())
		}
	})
}

// TestVacancy: calls fail at once and say why, or wait for the next leader, for an
// hour if it must be.
func TestVacancy(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var h hosts
		f := follow(t, s.Client(), h.dial, nil)
		f.fails(t, `the election "/scheduler/leader" is vacant`)
		require.Zero(t, f.gifts, "it might fail with what pick_first says of a state without an address")
		begun := time.Now()
		_, err := f.callFor(t.Context(), time.Second, grpc.WaitForReady(true))
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
		require.ErrorContains(t, err, `the election "/scheduler/leader" is vacant`)
		require.Equal(t, time.Second, time.Since(begun))

		answered := make(chan string, 1)
		go func() {
			name, err := f.callFor(t.Context(), 2*time.Hour, grpc.WaitForReady(true))
			if err != nil {
				name = err.Error()
			}
			answered <- name
		}()
		time.Sleep(time.Hour)
		require.Empty(t, answered)
		f.fails(t, "vacant")
		h.serve(t, "a")
		put(t, s, "a", "a:1")
		require.Equal(t, "a", etcdtest.Await(t, latency, "UnaryCall", answered))

		remove(t, s)
		settle()
		f.fails(t, `the election "/scheduler/leader" is vacant`)
		require.Zero(t, f.status())
		require.Zero(t, h.host["a:1"].open.Load())
	})
}

// TestAnnounce: a new address in the same term is dialled at once; other news of
// the leader leave the connection alone.
func TestAnnounce(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var h hosts
		a := h.candidate(t, s, "a")
		term := a.won(t, time.Second)
		f := follow(t, s.Client(), h.dial, nil)
		f.reaches(t, a)

		require.NoError(t, term.Announce(t.Context(), "a:1", map[string]string{"zone": "b"}))
		settle()
		f.reaches(t, a)
		require.EqualValues(t, 1, h.host["a:1"].dials.Load())
		require.Equal(t, "b", f.status().Leader.Metadata["zone"])

		h.serve(t, "elsewhere")
		require.NoError(t, term.Announce(t.Context(), "elsewhere:1", nil))
		settle()
		name, err := f.call(t)
		require.NoError(t, err)
		require.Equal(t, "elsewhere", name)
		settle()
		require.Zero(t, h.host["a:1"].open.Load())
	})
}

// TestAddressThatIsNone: is told, with the leader's name, until there is another.
func TestAddressThatIsNone(t *testing.T) {
	addresses := map[string]string{
		"":                     "it publishes no address",
		"a":                    `"a": it must be host:port or unix:path`,
		"a:1:2":                `"a:1:2": it must be host:port or unix:path`,
		"http://a:1":           `"http://a:1": it must be host:port or unix:path`,
		"unix:":                `"unix:": the port must be a number from 1 to 65535`,
		"a:":                   `"a:": the port must be a number from 1 to 65535`,
		"a:0":                  `"a:0": the port must be a number from 1 to 65535`,
		"a:65536":              `"a:65536": the port must be a number from 1 to 65535`,
		"a:https":              `"a:https": the port must be a number from 1 to 65535`,
		":8443":                `":8443": it must name a host that others can reach`,
		"0.0.0.0:8443":         `"0.0.0.0:8443": it must name a host that others can reach`,
		"[::]:8443":            `"[::]:8443": it must name a host that others can reach`,
		"a:1":                  "",
		"10.0.0.7:65535":       "",
		"[fd00::7]:8443":       "",
		"unix:/run/a.sock":     "",
		"unix:///run/a.sock":   "",
		"unix:a":               "",
		"scheduler.internal:1": "",
	}
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var h hosts
		h.serve(t, "good")
		var dialled atomic.Value
		f := follow(t, s.Client(), nil, nil, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			dialled.Store(addr)
			return h.dial(ctx, "good:1")
		}))
		for address, fault := range addresses {
			epoch := put(t, s, "node-1", address)
			settle()
			if fault != "" {
				f.fails(t, fmt.Sprintf(`the leader of "/scheduler/leader", "node-1" in epoch %d, cannot be called: `, epoch), fault)
				continue
			}
			name, err := f.call(t)
			require.NoError(t, err, address)
			require.Equal(t, "good", name)
			require.Equal(t, address, dialled.Load())
		}
	})
}

// TestAddressOfOnesOwn: the server is where Options.Address says.
func TestAddressOfOnesOwn(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var h hosts
		h.serve(t, "rpc")
		f := follow(t, s.Client(), h.dial, &leadergrpc.Options{Address: func(l tenure.Leader) (resolver.Address, error) {
			switch l.Identity {
			case "odd":
				return resolver.Address{}, errors.New("it is odd")
			case "empty":
				return resolver.Address{}, nil
			default:
				return resolver.Address{Addr: "rpc:1"}, nil
			}
		}})
		put(t, s, "node-1", "")
		name, err := f.call(t)
		require.NoError(t, err)
		require.Equal(t, "rpc", name)
		put(t, s, "odd", "rpc:1")
		settle()
		f.fails(t, `"odd" in epoch `, "cannot be called: it is odd")
		put(t, s, "empty", "rpc:1")
		settle()
		f.fails(t, `"empty" in epoch `, "cannot be called: it has no address")
	})
}

// TestRetriesCloseTheGap: a client that waits and tries again sees nothing of 20
// orderly hand-overs.
func TestRetriesCloseTheGap(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var h hosts
		nodes := []*node{h.candidate(t, s, "a"), h.candidate(t, s, "b"), h.candidate(t, s, "c")}
		term := nextOf(t, nodes)
		f := follow(t, s.Client(), h.dial, nil, grpc.WithDefaultServiceConfig(retries))
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		c := keepCalling(ctx, f)
		for range 20 {
			time.Sleep(time.Second)
			require.EqualValues(t, term.Epoch(), c.newest.Load())
			require.NoError(t, term.Resign())
			term = nextOf(t, nodes)
		}
		stop()
		<-c.completed
		require.Empty(t, c.failures)
		require.False(t, c.wentBack)
		require.Greater(t, c.calls, 10_000)
	})
}

// TestCrash: the leader and its machine are gone, five times. Until its lease has
// run out calls fail on their way to it; the first call after the takeover succeeds,
// though the last dial has failed and its pause is not over.
func TestCrash(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		h := hosts{far: 300 * time.Millisecond}
		leader := h.candidate(t, s, "a")
		leader.won(t, time.Second)
		f := follow(t, s.Client(), h.dial, nil)
		for _, name := range []string{"b", "c", "d", "e", "f"} {
			next := h.candidate(t, s, name)
			time.Sleep(time.Second)
			f.reaches(t, leader)

			crashed := time.Now()
			leader.client.Link.Cut()
			leader.server.Stop()
			settle() // a call on the connection that has just broken would fail with it
			waiting := make(chan string, 1)
			go func() {
				name, err := f.callFor(t.Context(), time.Hour, grpc.WaitForReady(true))
				if err != nil {
					name = err.Error()
				}
				waiting <- name
			}()
			failed := 0
			for len(next.terms) == 0 {
				if _, err := f.call(t); err != nil {
					require.Equal(t, codes.Unavailable, status.Code(err))
					failed++
				}
				time.Sleep(10 * time.Millisecond)
			}
			require.Less(t, time.Since(crashed), ttl+time.Second)
			require.Greater(t, failed, 100)
			settle() // but the dial has not ended yet
			f.reaches(t, next)
			require.Equal(t, next.name, etcdtest.Await(t, time.Millisecond, "UnaryCall", waiting))
			leader = next
		}
	})
}

// TestATakeoverWithoutAVacancyInBetween: if one leader replaces another so fast
// that the resolver hears of both at once, no call fails for want of an address,
// and even the same address is dialled anew.
func TestATakeoverWithoutAVacancyInBetween(t *testing.T) {
	for _, next := range []string{"a", "b"} {
		t.Run(next, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				var h hosts
				h.serve(t, "a")
				h.serve(t, "b")
				held, release := make(chan struct{}), make(chan struct{})
				f := follow(t, s.Client(), h.dial, &leadergrpc.Options{Address: func(l tenure.Leader) (resolver.Address, error) {
					if l.Metadata != nil {
						close(held)
						<-release
					}
					return resolver.Address{Addr: l.Address}, nil
				}})
				first := put(t, s, "a", "a:1")
				_, err := f.call(t)
				require.NoError(t, err)
				_, err = s.Admin().Put(t.Context(), key, `{"identity":"a","address":"a:1","candidate":"a","metadata":{"hold":"up"}}`)
				require.NoError(t, err)
				etcdtest.Await(t, time.Second, "Address", held)
				remove(t, s)
				second := put(t, s, next, next+":1")
				settle()
				close(release)
				settle()
				name, err := f.call(t)
				require.NoError(t, err)
				require.Equal(t, next, name)
				settle()
				require.EqualValues(t, 2, h.host["a:1"].dials.Load()+h.host["b:1"].dials.Load())
				require.EqualValues(t, 1, h.host["a:1"].open.Load()+h.host["b:1"].open.Load())
				f.mu.Lock()
				defer f.mu.Unlock()
				require.Len(t, f.shown, 3)
				require.Equal(t, first, f.shown[1].Leader.Fence.Epoch)
				require.Equal(t, second, f.shown[2].Leader.Fence.Epoch)
				require.Equal(t, 3, f.gifts)
				require.Empty(t, f.errs, "the vacancy was told, and nothing tested")
			})
		})
	}
}

// TestOutage: while etcd does not answer, the last leader is called on the same
// connection, and marked stale.
func TestOutage(t *testing.T) {
	outages := map[string]struct {
		begin, end func(s *etcdtest.Server, l *etcdtest.Link)
	}{
		"LinkIsCut": {
			func(_ *etcdtest.Server, l *etcdtest.Link) { l.Cut() },
			func(_ *etcdtest.Server, l *etcdtest.Link) { l.Heal() },
		},
		"ServerIsDown": {
			func(s *etcdtest.Server, _ *etcdtest.Link) { s.Stop() },
			func(s *etcdtest.Server, _ *etcdtest.Link) { s.Start() },
		},
	}
	for name, tt := range outages {
		t.Run(name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				var h hosts
				h.serve(t, "a")
				h.serve(t, "b")
				put(t, s, "a", "a:1")
				f := follow(t, s.Client(), h.dial, nil)
				reaches := func(want string) {
					t.Helper()
					name, err := f.call(t)
					require.NoError(t, err)
					require.Equal(t, want, name)
				}
				reaches("a")
				before, given := f.status(), f.given.Attributes

				began := time.Now()
				tt.begin(s, f.client.Link)
				for f.status().State == tenure.Led {
					time.Sleep(time.Second)
					reaches("a")
				}
				st := f.status()
				require.Equal(t, tenure.Unreachable, st.State)
				require.Equal(t, before.Leader, st.Leader, "the last one known")
				require.False(t, given.Equal(f.given.Attributes))
				require.WithinRange(t, st.Since, began.Add(-10*time.Second), began)
				require.Error(t, st.Err)
				for range 60 {
					time.Sleep(time.Minute)
					reaches("a")
				}
				require.EqualValues(t, 1, h.host["a:1"].dials.Load())

				tt.end(s, f.client.Link)
				for deadline := time.Now().Add(healing); f.status().State != tenure.Led; time.Sleep(time.Second) {
					require.True(t, time.Now().Before(deadline))
				}
				require.Equal(t, before.Leader, f.status().Leader)
				reaches("a")
				require.EqualValues(t, 1, h.host["a:1"].dials.Load(), "the connection has stayed")
				remove(t, s)
				put(t, s, "b", "b:1")
				settle()
				reaches("b")
			})
		})
	}
}

// TestOutageFromTheStart: no leader is known, and the calls say why.
func TestOutageFromTheStart(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var h hosts
		h.serve(t, "a")
		put(t, s, "a", "a:1")
		f := follow(t, s.Client(), h.dial, nil)
		f.client.Link.Cut()
		begun := time.Now()
		_, err := f.call(t)
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.ErrorContains(t, err, `the election "/scheduler/leader" is unreachable since `)
		require.ErrorContains(t, err, "no leader is known")
		require.LessOrEqual(t, time.Since(begun), 5*time.Second)
		f.fails(t, "unreachable")

		f.client.Link.Heal()
		name, err := f.callFor(t.Context(), healing, grpc.WaitForReady(true))
		require.NoError(t, err)
		require.Equal(t, "a", name)
	})
}

// TestOutageInAVacancy: nobody led when etcd was heard last.
func TestOutageInAVacancy(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var h hosts
		h.serve(t, "a")
		put(t, s, "a", "a:1")
		f := follow(t, s.Client(), h.dial, nil)
		_, err := f.call(t)
		require.NoError(t, err)
		remove(t, s)
		settle()
		f.fails(t, "vacant")
		f.client.Link.Cut()
		time.Sleep(time.Minute)
		f.fails(t, "unreachable", "no leader is known")
		require.Zero(t, h.host["a:1"].open.Load())
	})
}

// TestAHandOverDuringAnOutage: whom the resolver takes for the leader refuses; the
// refusal says that nothing was done.
func TestAHandOverDuringAnOutage(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var h hosts
		a := h.candidate(t, s, "a")
		term := a.won(t, time.Second)
		b := h.candidate(t, s, "b")
		f := follow(t, s.Client(), h.dial, nil)
		f.reaches(t, a)
		time.Sleep(time.Second)
		f.client.Link.Cut()
		require.NoError(t, term.Resign())
		b.won(t, ttl)
		time.Sleep(time.Minute)
		f.fails(t, "a does not lead")
		require.Equal(t, tenure.Unreachable, f.status().State)
		require.Equal(t, term.Fence(), f.status().Leader.Fence)

		f.client.Link.Heal()
		time.Sleep(healing)
		f.reaches(t, b)
	})
}

// TestRolledBack: after a restore of etcd to an older revision the leader of then
// is followed, though its epoch is lower than the last one known.
func TestRolledBack(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		s.Stop()
		empty := s.Snapshot()
		s.Start()
		time.Sleep(healing)
		var h hosts
		h.serve(t, "a")
		h.serve(t, "b")
		for range 5 {
			put(t, s, "a", "a:1")
			remove(t, s)
		}
		last := put(t, s, "a", "a:1")
		f := follow(t, s.Client(), h.dial, nil)
		_, err := f.call(t)
		require.NoError(t, err)

		s.Stop()
		s.Restore(empty)
		s.Start()
		time.Sleep(healing)
		f.fails(t, "vacant")
		first := put(t, s, "b", "b:1")
		require.Less(t, first, last)
		settle()
		name, err := f.call(t)
		require.NoError(t, err)
		require.Equal(t, "b", name)
		require.Equal(t, first, f.status().Leader.Fence.Epoch)
	})
}

// TestRolledBackToTheSameEpoch: it may be another term. What was known is forgotten,
// and the leader dialled anew.
func TestRolledBackToTheSameEpoch(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var h hosts
		h.serve(t, "a")
		put(t, s, "a", "a:1")
		s.Stop()
		snapshot := s.Snapshot()
		s.Start()
		time.Sleep(healing)
		_, err := s.Admin().Put(t.Context(), "/elsewhere", "")
		require.NoError(t, err)
		f := follow(t, s.Client(), h.dial, nil)
		_, err = f.call(t)
		require.NoError(t, err)
		before := f.status()

		s.Stop()
		s.Restore(snapshot)
		s.Start()
		time.Sleep(healing)
		_, err = f.call(t)
		require.NoError(t, err)
		require.Equal(t, before.Leader, f.status().Leader)
		require.EqualValues(t, 2, h.host["a:1"].dials.Load())
		require.ErrorContains(t, f.errs[len(f.errs)-1], "is rolled back")
	})
}

// TestNeverBackToAnOlderEpoch: whatever happens to the resolver's connection to
// etcd; and in the end it has the right one.
func TestNeverBackToAnOlderEpoch(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var h hosts
		f := follow(t, s.Client(), h.dial, nil)
		f.conn.Connect()
		names := []string{"a", "b", "c"}
		for _, name := range names {
			h.serve(t, name)
		}
		var name string
		for n := range 200 {
			switch rand.N(6) {
			case 0:
				f.client.Link.DropConnections()
			case 1:
				f.client.Link.Cut()
			case 2:
				f.client.Faults.Break("", etcdtest.Unavailable)
			case 3:
				f.client.Faults.Next("Watch", etcdtest.LoseAnswer())
			case 4:
				f.client.Faults.Next("Watch", etcdtest.ReplayAnswer())
			case 5:
				remove(t, s)
				name = names[n%3]
				put(t, s, name, name+":1")
			}
			time.Sleep(rand.N(time.Second))
			if rand.N(3) == 0 {
				f.client.Link.Heal()
			}
			_, _ = f.call(t) // gRPC must not rest
		}
		f.client.Link.Heal()
		time.Sleep(healing)
		got, err := f.call(t)
		require.NoError(t, err)
		require.Equal(t, name, got)
		var newest tenure.Epoch
		for _, st := range f.shown {
			require.GreaterOrEqual(t, st.Leader.Fence.Epoch, newest)
			newest = st.Leader.Fence.Epoch
		}
		require.NotZero(t, newest)
	})
}

// TestWhatCannotHeal: is reported by every call, also where a leader was known.
func TestWhatCannotHeal(t *testing.T) {
	opts := &etcdtest.ServerOptions{Auth: true}
	etcdtest.BubbleWith(t, opts, func(t *testing.T, s *etcdtest.Server) {
		s.AddUser("app", "secret", clientv3.PermissionType(clientv3.PermRead), "/scheduler/")
		s.AddUser("other", "secret", clientv3.PermissionType(clientv3.PermRead), "/other/")
		var h hosts
		h.serve(t, "a")
		put(t, s, "a", "a:1")
		lost := `the election "/scheduler/leader" cannot be followed any more: tenure: `

		follow(t, s.Client(etcdtest.As("other", "secret")), h.dial, nil).fails(t, lost, "permission denied")
		follow(t, &etcdtest.Client{}, h.dial, nil).fails(t, lost, "client is nil")

		f := follow(t, s.Client(etcdtest.As("app", "secret")), h.dial, nil)
		_, err := f.call(t)
		require.NoError(t, err)
		_, err = s.Admin().UserRevokeRole(t.Context(), "app", "app")
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		f.fails(t, lost, "permission denied")
		require.Zero(t, h.host["a:1"].open.Load())
		require.Zero(t, f.status())
		_, err = f.callFor(t.Context(), time.Minute, grpc.WaitForReady(true))
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
		require.ErrorContains(t, err, "permission denied")

		f = follow(t, s.Client(etcdtest.As("root", "root")), h.dial, nil)
		_, err = f.call(t)
		require.NoError(t, err)
		require.NoError(t, f.client.Client.Close())
		time.Sleep(10 * time.Second)
		f.fails(t, lost)
	})
}

// leavesNothing asserts that no stream of c is open, and that no goroutine of a
// resolver or of its watch is left.
func leavesNothing(t *testing.T, c *etcdtest.Client) {
	t.Helper()
	settle()
	require.Zero(t, c.Faults.Streams(""))
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	require.NotContains(t, string(stacks), "leadergrpc.(*leaderResolver)")
	require.NotContains(t, string(stacks), "tenure.gather")
}

// TestClose: at once, whatever the resolver is about, and nothing is left.
func TestClose(t *testing.T) {
	moments := map[string]func(t *testing.T, s *etcdtest.Server, f *follower){
		"InAVacancy": func(t *testing.T, _ *etcdtest.Server, f *follower) { f.fails(t, "vacant") },
		"Led": func(t *testing.T, s *etcdtest.Server, f *follower) {
			put(t, s, "a", "a:1")
			_, err := f.call(t)
			require.NoError(t, err)
		},
		"Unused":    func(*testing.T, *etcdtest.Server, *follower) {},
		"AtTheRead": func(_ *testing.T, _ *etcdtest.Server, f *follower) { f.client.Link.Cut(); f.conn.Connect() },
		"InAnOutage": func(t *testing.T, s *etcdtest.Server, f *follower) {
			put(t, s, "a", "a:1")
			_, err := f.call(t)
			require.NoError(t, err)
			f.client.Link.Cut()
			time.Sleep(time.Minute)
		},
		"WithACallWaiting": func(t *testing.T, _ *etcdtest.Server, f *follower) {
			done := make(chan error, 1)
			go func() {
				_, err := f.callFor(context.Background(), time.Hour, grpc.WaitForReady(true))
				done <- err
			}()
			settle()
			t.Cleanup(func() {
				require.Equal(t, codes.Canceled, status.Code(etcdtest.Await(t, time.Millisecond, "UnaryCall", done)))
			})
		},
		"AtAnUpdate": func(t *testing.T, s *etcdtest.Server, f *follower) {
			put(t, s, "a", "a:1")
			f.conn.Connect()
			settle()
			for range 100 {
				remove(t, s)
				put(t, s, "a", "a:1")
			}
		},
	}
	for name, get := range moments {
		t.Run(name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				var h hosts
				h.serve(t, "a")
				f := follow(t, s.Client(), h.dial, nil)
				get(t, s, f)
				begun := time.Now()
				require.NoError(t, f.conn.Close())
				require.Equal(t, begun, time.Now())
				f.client.Link.Heal()
				time.Sleep(healing)
				leavesNothing(t, f.client)
			})
		})
	}
}

// TestCloseWaits: for the resolver's goroutine, even where the caller's own function
// holds it up.
func TestCloseWaits(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var h hosts
		h.serve(t, "a")
		put(t, s, "a", "a:1")
		busy := make(chan struct{})
		f := follow(t, s.Client(), h.dial, &leadergrpc.Options{Address: func(l tenure.Leader) (resolver.Address, error) {
			close(busy)
			time.Sleep(time.Minute)
			return resolver.Address{Addr: l.Address}, nil
		}})
		f.conn.Connect()
		<-busy
		begun := time.Now()
		require.NoError(t, f.conn.Close())
		require.Equal(t, time.Minute, time.Since(begun))
	})
}

// TestRest: without calls gRPC closes the resolver, and the next call starts anew.
func TestRest(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var h hosts
		h.serve(t, "a")
		h.serve(t, "b")
		put(t, s, "a", "a:1")
		f := follow(t, s.Client(), h.dial, nil)
		_, err := f.call(t)
		require.NoError(t, err)
		time.Sleep(time.Hour)
		leavesNothing(t, f.client)
		remove(t, s)
		put(t, s, "b", "b:1")
		name, err := f.call(t)
		require.NoError(t, err)
		require.Equal(t, "b", name)
	})
}

// TestStreamsStayUntilTheyEnd: gRPC drains the connection to the leader before.
// What has begun there goes on; what begins goes to the new one.
func TestStreamsStayUntilTheyEnd(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var h hosts
		a := h.candidate(t, s, "a")
		term := a.won(t, time.Second)
		b := h.candidate(t, s, "b")
		f := follow(t, s.Client(), h.dial, nil)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := f.FullDuplexCall(ctx)
		require.NoError(t, err)
		echo := func() {
			t.Helper()
			require.NoError(t, stream.Send(&pb.StreamingOutputCallRequest{}))
			_, err := stream.Recv()
			require.NoError(t, err)
		}
		echo()
		require.NoError(t, term.Resign())
		b.won(t, ttl)
		settle()
		echo()
		f.reaches(t, b)
		require.EqualValues(t, 1, h.host["a:1"].open.Load())
		cancel()
		settle()
		require.Zero(t, h.host["a:1"].open.Load())
	})
}

// TestAnotherPolicy: follows as well, and says in its own words that there is no
// address.
func TestAnotherPolicy(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var h hosts
		f := follow(t, s.Client(), h.dial, nil, grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`))
		f.fails(t)
		for range 3 {
			for _, name := range []string{"a", "b"} {
				h.serve(t, name)
				put(t, s, name, name+":1")
				settle()
				got, err := f.call(t)
				require.NoError(t, err)
				require.Equal(t, name, got)
				remove(t, s)
				settle()
				f.fails(t)
				require.Zero(t, h.host[name+":1"].open.Load())
			}
		}
		put(t, s, "b", "b:1")
		name, err := f.callFor(t.Context(), time.Minute, grpc.WaitForReady(true))
		require.NoError(t, err)
		require.Equal(t, "b", name)
	})
}

// TestOneBuilderManyConnections: each with a resolver of its own.
func TestOneBuilderManyConnections(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var h hosts
		h.serve(t, "a")
		put(t, s, "a", "a:1")
		c := s.Client()
		b := leadergrpc.NewBuilder(c.Client, nil)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				conn, err := grpc.NewClient(leadergrpc.Target(key), grpc.WithResolvers(b), grpc.WithContextDialer(h.dial),
					grpc.WithTransportCredentials(insecure.NewCredentials()))
				if assert.NoError(t, err) {
					_, err = pb.NewTestServiceClient(conn).UnaryCall(t.Context(), &pb.SimpleRequest{})
					assert.NoError(t, err)
					assert.NoError(t, conn.Close())
				}
			})
		}
		all.Wait()
		leavesNothing(t, c)
	})
}

// TestAttributesCanBeCompared: as gRPC does, although a status has a map.
func TestAttributesCanBeCompared(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var h hosts
		attrs := func() resolver.State {
			f := follow(t, s.Client(), h.dial, nil)
			f.conn.Connect()
			settle()
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.given
		}
		put(t, s, "a", "a:1")
		led := attrs()
		require.True(t, led.Attributes.Equal(attrs().Attributes))
		put(t, s, "a", "a:2")
		require.False(t, led.Attributes.Equal(attrs().Attributes))
		_, ok := leadergrpc.StatusOf(resolver.State{})
		require.False(t, ok)
	})
}

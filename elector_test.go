package tenure_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
)

// What several members of etcd do is tested here, on the real clock. The TTLs are
// long enough for a busy machine to renew in time. A term that is lost all the
// same is followed by a later one, so what others know is compared by "at least".

// witness sees every term that begins in a test, and fails the test if one
// begins while another is valid.
type witness struct {
	t    *testing.T
	wins chan win

	mu    sync.Mutex
	terms []*tenure.Term
}

// service is an elector that runs as it does in a service, until its test ends.
type service struct {
	*tenure.Elector
	client *etcdtest.Client
	stop   context.CancelFunc // ends the context of Run
	done   chan error         // what Run has returned
}

// win is a term that has begun, and whose it is.
type win struct {
	*service
	term *tenure.Term
}

func newWitness(t *testing.T) *witness {
	t.Helper()
	return &witness{t: t, wins: make(chan win, 1000)}
}

// serve starts an elector on a client. Its work goes on until it is told to stop.
func (w *witness) serve(c *etcdtest.Client, opts *tenure.Options) *service {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	s := &service{Elector: newElector(w.t, c, opts), client: c, stop: cancel, done: make(chan error, 1)}
	go func() {
		defer close(s.done)
		s.done <- s.Run(ctx, func(ctx context.Context, term *tenure.Term) error {
			w.saw(term)
			w.wins <- win{s, term}
			<-ctx.Done()
			return nil
		})
	}()
	w.t.Cleanup(func() {
		cancel()
		for range s.done { // until Run has returned
		}
	})
	return s
}

// saw compares a term with all others. A validity never comes back once it has
// ended, so if a term is valid before and after another one was, both were.
func (w *witness) saw(term *tenure.Term) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, other := range w.terms {
		if term.Valid() && other.Valid() && term.Valid() {
			w.t.Errorf("%v has begun while %v is valid", term, other)
		}
	}
	w.terms = append(w.terms, term)
}

// next returns the next term that begins, whoever's.
func (w *witness) next() win {
	w.t.Helper()
	return etcdtest.Await(w.t, inTime, "a term", w.wins)
}

// awaitRenewal waits until a renewal has counted that was sent after now.
func awaitRenewal(t *testing.T, e *tenure.Elector, term *tenure.Term) {
	t.Helper()
	granted := e.Status().TTL
	due := time.Now().Add(granted - granted/10)
	etcdtest.Eventually(t, inTime, "a renewal counts", true, func() bool { return term.ValidUntil().After(due) || !term.Valid() })
	require.NoError(t, term.Err())
}

// awaitFollowing waits until an elector knows the holder of the election.
func awaitFollowing(t *testing.T, e *tenure.Elector, holder *tenure.Term) {
	t.Helper()
	etcdtest.Eventually(t, inTime, "it follows "+holder.String(), true, func() bool {
		st := e.Status()
		return st.State == tenure.Led && st.Leader.Fence.Epoch >= holder.Epoch()
	})
}

// awaitRefusal waits until a write with the fence of a term that was replaced
// has been refused, which needs the connection of its client to be back.
func awaitRefusal(t *testing.T, c *etcdtest.Client, old, holder *tenure.Term) {
	t.Helper()
	var err error
	etcdtest.Eventually(t, inTime, "a write of the old term is fenced", true, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = old.Fence().KV(c.Client).Put(ctx, "/data/x", "late")
		require.Error(t, err)
		return errors.Is(err, tenure.ErrFenced)
	})
	leader, ok := tenure.LeaderOf(err)
	require.True(t, ok)
	require.GreaterOrEqual(t, leader.Fence.Epoch, holder.Epoch())
	_, err = old.KV(c.Client).Put(t.Context(), "/data/x", "late")
	require.ErrorIs(t, err, tenure.ErrTermEnded)
}

// value returns the value of a key of the cluster, or "".
func value(c *etcdtest.Cluster, key string) string {
	for _, kv := range c.Keys(key) {
		return string(kv.Value)
	}
	return ""
}

// follow observes the election in the background, until the test ends.
func follow(t *testing.T, c *etcdtest.Client) <-chan tenure.Status {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	seen, done := make(chan tenure.Status, 1000), make(chan struct{})
	go func() {
		defer close(done)
		for st, err := range tenure.Observe(ctx, c.Client, key) {
			assert.NoError(t, err)
			seen <- st
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return seen
}

// awaitState reads what an observer has seen up to a state, which for Led is
// that of a certain holder.
func awaitState(t *testing.T, seen <-chan tenure.Status, state tenure.State, holder *tenure.Term) {
	t.Helper()
	for {
		st := etcdtest.Await(t, inTime, "the observer sees "+state.String(), seen)
		if st.State == state && (holder == nil || st.Leader.Fence.Epoch >= holder.Epoch()) {
			return
		}
	}
}

// The life of a term from end to end: acquire, renew, expire, contest, fence,
// resume. L02, L03, S07.
func TestLifeOfATerm(t *testing.T) {
	cluster := etcdtest.StartCluster(t, 3)
	w := newWitness(t)
	seen := follow(t, cluster.Client())
	awaitState(t, seen, tenure.Vacant, nil)
	for range 3 {
		w.serve(cluster.Client(), &tenure.Options{TTL: 2 * time.Second})
	}

	first := w.next()
	awaitState(t, seen, tenure.Led, first.term)
	_, err := first.term.KV(first.client.Client).Put(t.Context(), "/data/x", "first")
	require.NoError(t, err)

	for range 2 {
		awaitRenewal(t, first.Elector, first.term)
	}
	require.Same(t, first.term, first.Term())
	require.Empty(t, w.wins)

	first.client.Link.Cut()
	awaitEnd(t, first.term, tenure.LeaseExpired)
	require.Nil(t, first.Term())

	second := w.next() // the witness has found the first one over
	require.NotSame(t, first.service, second.service)
	require.Greater(t, second.term.Epoch(), first.term.Epoch())

	_, err = second.term.KV(second.client.Client).Put(t.Context(), "/data/x", "second")
	require.NoError(t, err)
	first.client.Link.Heal()
	awaitRefusal(t, first.client, first.term, second.term)
	require.Equal(t, "second", value(cluster, "/data/x"))

	leader, err := tenure.Lookup(t.Context(), cluster.Admin(), key)
	require.NoError(t, err)
	require.GreaterOrEqual(t, leader.Fence.Epoch, second.term.Epoch())
	awaitState(t, seen, tenure.Led, second.term)
	awaitFollowing(t, first.Elector, second.term) // whose Run goes on

	second.stop()
	require.ErrorIs(t, etcdtest.Await(t, inTime, "Run", second.done), context.Canceled)
	third := w.next()
	require.NotSame(t, second.service, third.service)
	require.Greater(t, third.term.Epoch(), second.term.Epoch())
	awaitState(t, seen, tenure.Led, third.term)
	require.Empty(t, w.wins)
}

// L01, L02, F13.
func TestPartitionOfTheLeadersClient(t *testing.T) {
	cluster := etcdtest.StartCluster(t, 1)
	opts := &tenure.Options{TTL: 2 * time.Second}

	t.Run("WriteUnderWayArrivesTooLate", func(t *testing.T) {
		w := newWitness(t)
		w.serve(cluster.Client(), opts)
		first := w.next()
		follower := w.serve(cluster.Client(), opts)
		awaitFollowing(t, follower.Elector, first.term)
		_, err := first.term.KV(first.client.Client).Put(t.Context(), "/data/x", "before")
		require.NoError(t, err)

		first.client.Link.Cut()
		wrote := make(chan error, 1)
		go func() { // sent while the term is valid
			_, err := first.term.KV(first.client.Client).Put(t.Context(), "/data/x", "late")
			wrote <- err
		}()
		second := w.next()
		require.Same(t, follower, second.service)
		require.ErrorIs(t, first.term.Err(), tenure.LeaseExpired)
		first.client.Link.Resume()
		require.ErrorIs(t, etcdtest.Await(t, inTime, "Put", wrote), tenure.ErrFenced)
		require.Equal(t, "before", value(cluster, "/data/x"))
		awaitFollowing(t, first.Elector, second.term)
	})

	// What the leader sends arrives, and etcd goes on renewing its lease until it
	// gives up.
	t.Run("LeaderThatHearsNothingStopsRenewing", func(t *testing.T) {
		w := newWitness(t)
		w.serve(cluster.Client(), opts)
		first := w.next()
		follower := w.serve(cluster.Client(), opts)
		awaitFollowing(t, follower.Elector, first.term)

		first.client.Link.CutDown()
		awaitEnd(t, first.term, tenure.LeaseExpired)
		second := w.next()
		require.Same(t, follower, second.service)
		first.client.Link.Heal()
		awaitRefusal(t, first.client, first.term, second.term)
		awaitFollowing(t, first.Elector, second.term)
	})
}

// L09: an orderly change of etcd's leader costs no term, though a renewal that
// was acknowledged before it does not count.
func TestEtcdLeaderMoves(t *testing.T) {
	cluster := etcdtest.StartCluster(t, 3)
	renewed := make(chan error, 100)
	opts := &tenure.Options{TTL: 3 * time.Second, Hooks: &tenure.Hooks{Renewed: func(_ time.Duration, err error) { renewed <- err }}}
	w := newWitness(t)
	c := cluster.Client()
	acknowledged := c.Faults.Next("LeaseKeepAlive", etcdtest.HoldAnswer())
	w.serve(c, opts)
	first := w.next()
	follower := w.serve(cluster.Client(), nil)
	awaitFollowing(t, follower.Elector, first.term)

	etcdtest.Await(t, inTime, "a renewal is acknowledged", acknowledged.Fired())
	cluster.MoveLeader((cluster.Leader() + 1) % 3)
	acknowledged.Release()
	require.Error(t, etcdtest.Await(t, inTime, "the renewal", renewed))
	awaitRenewal(t, first.Elector, first.term)
	require.NoError(t, first.term.Verify(t.Context()))
	require.NoError(t, first.term.Context().Err())
	require.Empty(t, w.wins)

	first.stop()
	second := w.next()
	require.Same(t, follower, second.service)
}

// L12, L24: the renewal that is under way is lost with etcd's leader. It must not
// wait the term away, and the next one counts with the next leader.
func TestEtcdLeaderStops(t *testing.T) {
	for _, pinned := range []bool{false, true} {
		name := "ClientOfAllMembers"
		if pinned {
			name = "ClientOfAFollower"
		}
		t.Run(name, func(t *testing.T) {
			cluster := etcdtest.StartCluster(t, 3)
			leader := cluster.Leader()
			var at []func(*clientv3.Config)
			if pinned {
				at = append(at, etcdtest.At(cluster.Endpoint((leader+1)%3)))
			}
			w := newWitness(t)
			w.serve(cluster.Client(at...), &tenure.Options{TTL: 4 * time.Second})
			first := w.next()
			follower := w.serve(cluster.Client(), nil)
			awaitFollowing(t, follower.Elector, first.term)

			lost := first.client.Faults.Next("LeaseKeepAlive", etcdtest.LoseRequest())
			etcdtest.Await(t, inTime, "a renewal", lost.Fired())
			cluster.Stop(leader)
			awaitRenewal(t, first.Elector, first.term)
			cluster.Restart(leader)
			require.NoError(t, first.term.Verify(t.Context()))
			require.Empty(t, w.wins)

			first.stop()
			second := w.next()
			require.Same(t, follower, second.service)
			require.Greater(t, second.term.Epoch(), first.term.Epoch())
		})
	}
}

// A12, A01: the put is under way when etcd's leader stops.
func TestEtcdLeaderStopsBetweenGrantAndPut(t *testing.T) {
	cluster := etcdtest.StartCluster(t, 3)
	leader := cluster.Leader()
	w := newWitness(t)
	c := cluster.Client(etcdtest.At(cluster.Endpoint((leader + 1) % 3)))
	put := c.Faults.Next("Txn", etcdtest.HoldRequest(), etcdtest.Match(contends))
	s := w.serve(c, &tenure.Options{TTL: 2 * time.Second})
	etcdtest.Await(t, inTime, "the put", put.Fired())
	cluster.Stop(leader)
	put.Release()
	first := w.next()
	require.Same(t, s, first.service)
	require.NoError(t, first.term.Verify(t.Context()))
	require.Len(t, cluster.Keys(key), 1)
	s.stop()
	require.ErrorIs(t, etcdtest.Await(t, inTime, "Run", s.done), context.Canceled)
	require.Empty(t, cluster.Keys(key))
}

// contends reports whether a transaction would create the election's key.
func contends(r *pb.TxnRequest) bool {
	return len(r.Success) == 1 && string(r.Success[0].GetRequestPut().GetKey()) == key
}

// L09, F11: a member that is cut off from the majority, with the leader's client
// on its side. Whatever that member acknowledges, the term must not outlive the
// key as the majority sees it.
func TestMemberCutOffWithTheLeadersClient(t *testing.T) {
	for _, name := range []string{"EtcdLeader", "Follower"} {
		t.Run(name, func(t *testing.T) {
			cluster := etcdtest.StartCluster(t, 3)
			cut := cluster.Leader()
			if name == "Follower" {
				cut = (cut + 1) % 3
			}
			majority := etcdtest.At(cluster.Endpoint((cut+1)%3), cluster.Endpoint((cut+2)%3))
			w := newWitness(t)
			w.serve(cluster.Client(etcdtest.At(cluster.Endpoint(cut))), &tenure.Options{TTL: 2 * time.Second})
			first := w.next()
			follower := w.serve(cluster.Client(majority), nil)
			awaitFollowing(t, follower.Elector, first.term)
			operator := cluster.Client(majority)
			watch := operator.Watch(t.Context(), key, clientv3.WithFilterPut())

			cluster.Partition(cut)
			resp := etcdtest.Await(t, inTime, "the deletion of the key", watch)
			require.NoError(t, resp.Err())
			require.False(t, first.term.Valid(), "the key has gone")
			require.ErrorIs(t, first.term.Err(), tenure.LeaseExpired)
			second := w.next()
			require.Same(t, follower, second.service)

			// Nobody who asks the member that was left behind is told of the old
			// holder, though the member would tell.
			_, err := second.term.KV(second.client.Client).Put(t.Context(), "/data/x", "second")
			require.NoError(t, err)
			stale, err := first.client.Get(t.Context(), key, clientv3.WithSerializable())
			require.NoError(t, err)
			require.Len(t, stale.Kvs, 1)
			require.EqualValues(t, first.term.Epoch(), stale.Kvs[0].CreateRevision)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
			defer cancel()
			leader, err := tenure.Lookup(ctx, first.client.Client, key)
			require.Error(t, err, "Lookup has answered %v", leader.Fence)
			ctx, cancel = context.WithTimeout(t.Context(), time.Second/2)
			defer cancel()
			_, err = first.term.Fence().KV(first.client.Client).Put(ctx, "/data/x", "late")
			require.ErrorIs(t, err, tenure.ErrUnknownOutcome)

			cluster.Mend(cut)
			awaitRefusal(t, first.client, first.term, second.term)
			require.Equal(t, "second", value(cluster, "/data/x"))
		})
	}
}

// A20, L15, L24, W05.
func TestQuorumIsLostAndComesBack(t *testing.T) {
	cluster := etcdtest.StartCluster(t, 3)
	c := cluster.Client()
	holder := newElector(t, c, &tenure.Options{TTL: 2 * time.Second})
	term, err := holder.Campaign(t.Context())
	require.NoError(t, err)
	w := newWitness(t)
	w.saw(term)
	follower := w.serve(cluster.Client(), &tenure.Options{TTL: 2 * time.Second})
	awaitFollowing(t, follower.Elector, term)
	seen := follow(t, cluster.Client())
	awaitState(t, seen, tenure.Led, term)

	cluster.Stop(1)
	cluster.Stop(2)
	stopped := time.Now()
	awaitEnd(t, term, tenure.LeaseExpired)
	etcdtest.Eventually(t, inTime, "the follower's state", tenure.Unreachable, func() tenure.State { return follower.Status().State })
	awaitState(t, seen, tenure.Unreachable, nil)
	st := follower.Status()
	require.Error(t, st.Err)
	require.Equal(t, term.Fence(), st.Leader.Fence, "the last one known")
	require.False(t, st.Since.After(time.Now()))
	require.Less(t, st.Since.Sub(stopped), time.Second, "since the last answer, not since it was noticed")
	require.Nil(t, follower.Term(), "nobody makes himself the leader by the clock")

	// The holder, which has not even resigned, renews its lease no longer. If it
	// did, its key would never go.
	renewals := c.Faults.Count("LeaseKeepAlive")
	cluster.Restart(1)
	cluster.Restart(2)
	second := w.next()
	require.Greater(t, second.term.Epoch(), term.Epoch())
	awaitState(t, seen, tenure.Led, second.term)
	require.Equal(t, renewals, c.Faults.Count("LeaseKeepAlive"))
	giveUp(t, term)
	require.NoError(t, second.term.Verify(t.Context()))
}

// S08, S10: who cannot reach etcd is told so in bounded time, and what it could
// not delete expires.
func TestResignOutOfReach(t *testing.T) {
	cluster := etcdtest.StartCluster(t, 3)
	cut := cluster.Leader()
	e := newElector(t, cluster.Client(etcdtest.At(cluster.Endpoint(cut))), &tenure.Options{TTL: 2 * time.Second})
	term, err := e.Campaign(t.Context())
	require.NoError(t, err)
	cluster.Partition(cut)
	resigned := make(chan error, 1)
	go func() { resigned <- term.Resign() }()
	require.ErrorIs(t, etcdtest.Await(t, inTime, "Resign", resigned), tenure.ErrUnknownOutcome)
	require.False(t, term.Valid())

	majority := cluster.Client(etcdtest.At(cluster.Endpoint((cut+1)%3), cluster.Endpoint((cut+2)%3)))
	next, err := newElector(t, majority, nil).Campaign(t.Context())
	require.NoError(t, err)
	cluster.Mend(cut)
	giveUp(t, term)
	require.NoError(t, next.Verify(t.Context()), "the successor is not touched")
	giveUp(t, next)
}

// W04: the watch of a follower is at a member that has lost the cluster, and so
// silent. Its TTL is so long that its own reads do not help it.
func TestFollowerOfAMemberThatIsCutOff(t *testing.T) {
	cluster := etcdtest.StartCluster(t, 3)
	cut := (cluster.Leader() + 1) % 3
	holder, err := newElector(t, cluster.Client(etcdtest.At(cluster.Endpoint(cluster.Leader()))), nil).Campaign(t.Context())
	require.NoError(t, err)

	c := cluster.Client()
	for i := range 3 {
		if i != cut {
			c.Link.To(memberAddr(cluster, i)).Refuse()
		}
	}
	w := newWitness(t)
	follower := w.serve(c, &tenure.Options{TTL: 5 * time.Minute})
	awaitFollowing(t, follower.Elector, holder)
	etcdtest.Eventually(t, inTime, "watches", 1, func() int { return c.Faults.Streams("Watch") })
	for i := range 3 {
		c.Link.To(memberAddr(cluster, i)).Heal()
	}
	cluster.Partition(cut)
	giveUp(t, holder)
	require.Same(t, follower, w.next().service)
	follower.stop()
	for range follower.done {
	}
	cluster.Mend(cut)
}

// memberAddr returns the address of a member's endpoint, for [etcdtest.Link.To].
func memberAddr(c *etcdtest.Cluster, member int) string {
	return strings.TrimPrefix(c.Endpoint(member), "http://")
}

// L17: the connection that carries the renewals is dead, and nothing says so.
func TestRenewalsLeaveADeadConnection(t *testing.T) {
	cluster := etcdtest.StartCluster(t, 3)
	c := cluster.Client()
	for i := 1; i < 3; i++ {
		c.Link.To(memberAddr(cluster, i)).Refuse()
	}
	w := newWitness(t)
	s := w.serve(c, &tenure.Options{TTL: 5 * time.Second})
	first := w.next()
	awaitRenewal(t, s.Elector, first.term) // its stream is at member 0
	for i := 1; i < 3; i++ {
		c.Link.To(memberAddr(cluster, i)).Heal()
	}
	etcdtest.Eventually(t, inTime, "the other members are connected", true, func() bool {
		return connected(t, c, cluster.Endpoint(1)) && connected(t, c, cluster.Endpoint(2))
	})
	c.Link.To(memberAddr(cluster, 0)).Cut()
	awaitRenewal(t, s.Elector, first.term)
	require.Empty(t, w.wins)
	c.Link.To(memberAddr(cluster, 0)).Heal()
}

// connected reports whether the client has a connection to an endpoint.
func connected(t *testing.T, c *etcdtest.Client, endpoint string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := c.Status(ctx, endpoint)
	return err == nil
}

// A16: a learner refuses almost everything, and is no reason to give up.
func TestLearnerEndpoint(t *testing.T) {
	cluster := etcdtest.StartCluster(t, 1)
	learner := cluster.AddLearner()
	c := cluster.Client(etcdtest.At(cluster.Endpoint(learner), cluster.Endpoint(0)))
	_, err := tenure.Lookup(t.Context(), c.Client, key)
	require.ErrorIs(t, err, tenure.ErrNoLeader)
	for range 3 { // each request goes to the next endpoint
		w := newWitness(t)
		s := w.serve(c, &tenure.Options{TTL: 2 * time.Second})
		first := w.next()
		_, err = first.term.KV(c.Client).Put(t.Context(), "/data/x", "v")
		require.NoError(t, err)
		awaitRenewal(t, s.Elector, first.term)
		s.stop()
		require.ErrorIs(t, etcdtest.Await(t, inTime, "Run", s.done), context.Canceled)
		require.Empty(t, cluster.Keys(key))
	}
}

// W03: the deletion that a follower waits for has been compacted when its watch
// is back. Its TTL is so long that its own reads do not help it.
func TestCompactionWhileFollowing(t *testing.T) {
	cluster := etcdtest.StartCluster(t, 1)
	holder, err := newElector(t, cluster.Client(), nil).Campaign(t.Context())
	require.NoError(t, err)
	w := newWitness(t)
	follower := w.serve(cluster.Client(), &tenure.Options{TTL: 5 * time.Minute})
	awaitFollowing(t, follower.Elector, holder)
	etcdtest.Eventually(t, inTime, "watches", 1, func() int { return follower.client.Faults.Streams("Watch") })

	follower.client.Link.Cut()
	giveUp(t, holder)
	resp, err := cluster.Admin().Put(t.Context(), "/data/x", "v")
	require.NoError(t, err)
	_, err = cluster.Admin().Compact(t.Context(), resp.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	follower.client.Link.DropConnections()
	follower.client.Link.Heal()
	require.Same(t, follower, w.next().service)
}

// F09, L14, L18: what the candidate may do is to read and write the election's
// key, and below /data/. It needs no more.
func TestLimitedRole(t *testing.T) {
	cluster := etcdtest.StartCluster(t, 1)
	admin := cluster.Admin()
	ctx, cancel := context.WithTimeout(t.Context(), inTime)
	defer cancel()
	for _, user := range []string{"root", "candidate", "reader", "leaver", "nobody"} {
		_, err := admin.UserAdd(ctx, user, "secret")
		require.NoError(t, err)
		_, err = admin.RoleAdd(ctx, user)
		require.NoError(t, err)
		_, err = admin.UserGrantRole(ctx, user, user)
		require.NoError(t, err)
	}
	grant := func(c *clientv3.Client, role, key, end string, permission clientv3.PermissionType) {
		t.Helper()
		_, err := c.RoleGrantPermission(ctx, role, key, end, permission)
		require.NoError(t, err)
	}
	grant(admin, "candidate", key, "", clientv3.PermissionType(clientv3.PermReadWrite))
	grant(admin, "candidate", "/data/", clientv3.GetPrefixRangeEnd("/data/"), clientv3.PermissionType(clientv3.PermReadWrite))
	grant(admin, "reader", key, "", clientv3.PermissionType(clientv3.PermRead))
	_, err := admin.AuthEnable(ctx)
	require.NoError(t, err)
	root := cluster.Client(etcdtest.As("root", "secret"))
	candidate := cluster.Client(etcdtest.As("candidate", "secret"))
	opts := &tenure.Options{TTL: 2 * time.Second}

	w := newWitness(t)
	s := w.serve(candidate, opts)
	first := w.next()
	awaitRenewal(t, s.Elector, first.term)
	kv := first.term.KV(candidate.Client)
	_, err = kv.Put(ctx, "/data/x", "v")
	require.NoError(t, err)
	_, err = kv.Put(ctx, "/other", "v")
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied, "neither fenced nor unknown")
	require.NotErrorIs(t, err, tenure.ErrFenced)
	require.NoError(t, first.term.Verify(ctx))

	reader := cluster.Client(etcdtest.As("reader", "secret"))
	awaitState(t, follow(t, reader), tenure.Led, first.term)
	nobody := cluster.Client(etcdtest.As("nobody", "secret"))
	_, err = newElector(t, nobody, opts).Campaign(ctx)
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	for _, err = range tenure.Observe(ctx, nobody.Client, key) {
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	}
	require.Error(t, err, "it has ended with an error")
	leaver := cluster.Client(etcdtest.As("leaver", "secret"))
	_, err = root.UserChangePassword(ctx, "leaver", "another")
	require.NoError(t, err)
	_, err = newElector(t, leaver, opts).Campaign(ctx)
	require.ErrorIs(t, err, rpctypes.ErrAuthFailed)

	// Evicting is writing the key: a reader cannot.
	require.ErrorIs(t, tenure.Evict(ctx, reader.Client, first.term.Fence(), nil), rpctypes.ErrPermissionDenied)
	require.NoError(t, tenure.Evict(ctx, root.Client, first.term.Fence(), nil))
	require.ErrorIs(t, context.Cause(first.term.Context()), tenure.Evicted)
	second := w.next()

	// The permission to write is taken away: it can never be renewed again.
	_, err = root.RoleRevokePermission(ctx, "candidate", key, "")
	require.NoError(t, err)
	grant(root.Client, "candidate", key, "", clientv3.PermissionType(clientv3.PermRead))
	awaitEnd(t, second.term, tenure.RenewalRefused)
	require.ErrorIs(t, etcdtest.Await(t, inTime, "Run", s.done), rpctypes.ErrPermissionDenied)
	etcdtest.Eventually(t, inTime, "keys left behind", 0, func() int {
		resp, err := root.Get(ctx, key)
		require.NoError(t, err)
		return len(resp.Kvs)
	})
}

// L06: each change of etcd's leader gives every lease its full TTL again, so the
// key of a dead holder outlives it for as long as etcd goes on changing. The
// holder's own limit does not move, no follower helps itself, and an operator
// need not wait.
func TestEtcdLeaderMovesWhileTheHolderIsDead(t *testing.T) {
	const ttl = 2 * time.Second
	cluster := etcdtest.StartCluster(t, 3)
	w := newWitness(t)
	w.serve(cluster.Client(), &tenure.Options{TTL: ttl})
	first := w.next()
	follower := w.serve(cluster.Client(), nil)
	awaitFollowing(t, follower.Elector, first.term)
	first.client.Link.Cut()

	var moved time.Time
	tick := time.NewTicker(ttl / 2)
	defer tick.Stop()
	for range 4 {
		moved = time.Now()
		cluster.MoveLeader((cluster.Leader() + 1) % 3)
		<-tick.C
	}
	awaitEnd(t, first.term, tenure.LeaseExpired)
	second := w.next()
	require.Same(t, follower, second.service)
	require.GreaterOrEqual(t, time.Since(moved), ttl, "etcd has kept the key for a TTL after the last change")

	second.client.Link.Cut()
	won := make(chan *tenure.Term, 1)
	go func() {
		term, err := newElector(t, cluster.Client(), nil).Campaign(t.Context())
		assert.NoError(t, err)
		won <- term
	}()
	force := &tenure.EvictOptions{Force: true, Patience: -1}
	require.NoError(t, tenure.Evict(t.Context(), cluster.Admin(), second.term.Fence(), force))
	third := etcdtest.Await(t, inTime, "Campaign", won)
	require.Greater(t, third.Epoch(), second.term.Epoch())
	giveUp(t, third)
	first.client.Link.Heal()
	second.client.Link.Heal()
}

// A15: each transaction that contends costs etcd a proposal, whether it wins or
// loses, and of thirty that wait for a vacancy only a few may send one.
func TestHerdIsKeptOffEtcd(t *testing.T) {
	const (
		candidates = 30
		warmUp     = 15
		measured   = 30
	)
	cluster := etcdtest.StartCluster(t, 1)
	c := cluster.Client()
	won := make(chan *tenure.Term, candidates)
	ctx, cancel := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	for range candidates {
		e := newElector(t, c, nil)
		runs.Go(func() {
			_ = e.Run(ctx, func(ctx context.Context, term *tenure.Term) error {
				won <- term
				<-ctx.Done()
				return nil
			})
		})
	}
	defer runs.Wait()
	defer cancel()

	contended := func() (n int) {
		for _, m := range c.Faults.Log("Txn") {
			if r, ok := m.Body.(*pb.TxnRequest); ok && !m.Answer && contends(r) {
				n++
			}
		}
		return n
	}
	before := 0
	for i := range warmUp + measured {
		term := etcdtest.Await(t, inTime, "a term", won)
		if i == warmUp {
			before = contended()
		}
		giveUp(t, term)
	}
	perVacancy := float64(contended()-before) / measured
	t.Logf("%.1f proposals a vacancy", perVacancy)
	require.Less(t, perVacancy, 10.0)
}

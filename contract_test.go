package tenure_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
)

// environment is what the contract needs of the place where it is checked. The
// server of a bubble has it, and so has an embedded cluster.
type environment interface {
	Client(edits ...func(*clientv3.Config)) *etcdtest.Client
	Admin() *clientv3.Client
	Keys(prefix string) []*mvccpb.KeyValue
	Leases() int
}

var (
	_ environment = (*etcdtest.Server)(nil)
	_ environment = (*etcdtest.Cluster)(nil)
)

func TestContractInBubble(t *testing.T) {
	for _, c := range contract {
		t.Run(c.property, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) { uphold(t, s, c.check) })
		})
	}
}

func TestContractOnOneMember(t *testing.T)    { contractOnCluster(t, 1) }
func TestContractOnThreeMembers(t *testing.T) { contractOnCluster(t, 3) }

func contractOnCluster(t *testing.T, size int) {
	t.Helper()
	cluster := etcdtest.StartCluster(t, size)
	for _, c := range contract {
		t.Run(c.property, func(t *testing.T) { uphold(t, cluster, c.check) })
	}
}

// uphold checks one property, and then that nothing is left of it. A lease that a
// busy cluster has not revoked in a second, or has granted too late for its
// candidate, is left to its TTL.
func uphold(t *testing.T, env environment, check func(*testing.T, environment)) {
	t.Helper()
	t.Cleanup(func() { // after those of the property
		etcdtest.Eventually(t, inTime, "keys left behind", 0, func() int { return len(env.Keys(key)) })
		etcdtest.Eventually(t, inTime, "leases left behind", 0, env.Leases)
	})
	check(t, env)
}

// inTime bounds what must happen but may take its time on a busy machine.
const inTime = 30 * time.Second

// mustWin wins a term with an elector of its own on a client of its own.
func mustWin(t *testing.T, env environment, opts *tenure.Options) *tenure.Term {
	t.Helper()
	return lead(t, newElector(t, env.Client(), opts))
}

// giveUp resigns. On a busy machine the delete may take longer than an orderly
// end is given; it is repeated then.
func giveUp(t *testing.T, term *tenure.Term) {
	t.Helper()
	etcdtest.Eventually(t, inTime, "Resign()", nil, term.Resign)
}

// awaitEnd waits for the end of a term's context, and checks that it and the
// validity ended for the reason.
func awaitEnd(t *testing.T, term *tenure.Term, reason tenure.Reason) {
	t.Helper()
	etcdtest.Await(t, inTime, "the end of the term's context", term.Context().Done())
	require.ErrorIs(t, context.Cause(term.Context()), reason)
	require.ErrorIs(t, context.Cause(term.Context()), tenure.ErrTermEnded)
	require.False(t, term.Valid())
	require.ErrorIs(t, term.Err(), reason)
}

// contract is what holds wherever etcd runs, in the order of a term's life. A
// property may use the election's key and what is below it, and data below
// /data/. It leaves the election as it has found it.
var contract = []struct {
	property string
	check    func(t *testing.T, env environment)
}{
	{"AcquirePublishesTheTerm", func(t *testing.T, env environment) {
		before := time.Now()
		c := env.Client()
		e := newElector(t, c, &tenure.Options{Identity: "node-1", Address: "10.0.0.7:8443", Metadata: map[string]string{"zone": "b"}})
		require.Nil(t, e.Term())
		require.Equal(t, tenure.Idle, e.Status().State)
		_, err := tenure.Lookup(t.Context(), c.Client, key)
		require.ErrorIs(t, err, tenure.ErrNoLeader)

		term := lead(t, e)
		require.Same(t, term, e.Term())
		require.True(t, term.Valid())
		require.NoError(t, term.Verify(t.Context()))
		// The limit counts from the sending of the grant, or of a renewal.
		require.False(t, term.ValidUntil().Before(before.Add(9*time.Second)))
		require.False(t, term.ValidUntil().After(time.Now().Add(9*time.Second)))

		kvs := env.Keys(key)
		require.Len(t, kvs, 1)
		require.Equal(t, tenure.Fence{Key: key, Epoch: tenure.Epoch(kvs[0].CreateRevision), Lease: clientv3.LeaseID(kvs[0].Lease)}, term.Fence())
		require.NoError(t, term.Fence().Validate())
		leader, err := tenure.Lookup(t.Context(), c.Client, key)
		require.NoError(t, err)
		require.Equal(t, term.Fence(), leader.Fence)
		require.Equal(t, "node-1", leader.Identity)
		require.Equal(t, "10.0.0.7:8443", leader.Address)
		require.Equal(t, map[string]string{"zone": "b"}, leader.Metadata)
		require.False(t, leader.Acquired.Before(before.Add(-time.Second)))
		st := e.Status()
		require.Equal(t, tenure.Leading, st.State)
		require.Equal(t, term.Fence(), st.Leader.Fence)
		require.Equal(t, 10*time.Second, st.TTL)

		giveUp(t, term)
		require.Empty(t, env.Keys(key), "Resign has returned")
		awaitEnd(t, term, tenure.Resigned)
		require.Nil(t, e.Term())
		require.Equal(t, tenure.Idle, e.Status().State)
	}},

	// L21.
	{"ContextOfTheCampaignDoesNotBoundTheTerm", func(t *testing.T, env environment) {
		ctx, cancel := context.WithCancel(t.Context())
		term, err := newElector(t, env.Client(), nil).Campaign(ctx)
		require.NoError(t, err)
		defer func() { _ = term.Resign() }()
		cancel()
		require.NoError(t, term.Context().Err())
		require.NoError(t, term.Verify(t.Context()))
	}},

	// A03.
	{"CancelledCampaignLeavesNothing", func(t *testing.T, env environment) {
		holder := mustWin(t, env, nil)
		e := newElector(t, env.Client(), nil)
		ctx, cancel := context.WithCancel(t.Context())
		lost := make(chan error, 1)
		go func() {
			_, err := e.Campaign(ctx)
			lost <- err
		}()
		etcdtest.Eventually(t, inTime, "the follower's leader", holder.Fence(), func() tenure.Fence { return e.Status().Leader.Fence })
		etcdtest.Eventually(t, inTime, "leases, one of them kept warm", 2, env.Leases)
		cancel()
		require.ErrorIs(t, etcdtest.Await(t, inTime, "Campaign", lost), context.Canceled)
		etcdtest.Eventually(t, inTime, "leases", 1, env.Leases)
		require.NoError(t, holder.Verify(t.Context()))
	}},

	{"TryCampaignDoesNotWait", func(t *testing.T, env environment) {
		e := newElector(t, env.Client(), nil)
		term, err := e.TryCampaign(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { _ = term.Resign() })
		_, err = e.TryCampaign(t.Context())
		require.Error(t, err, "one campaign at a time")
		require.NotErrorIs(t, err, tenure.ErrHeld)

		other := newElector(t, env.Client(), nil)
		_, err = other.TryCampaign(t.Context())
		require.ErrorIs(t, err, tenure.ErrHeld)
		leader, ok := tenure.LeaderOf(err)
		require.True(t, ok)
		require.Equal(t, term.Fence(), leader.Fence)
		etcdtest.Eventually(t, inTime, "leases", 1, env.Leases)

		giveUp(t, term)
		next, err := other.TryCampaign(t.Context())
		require.NoError(t, err)
		require.Greater(t, next.Epoch(), term.Epoch())
		giveUp(t, next)
	}},

	// F06.
	{"MinEpochIsARealFloor", func(t *testing.T, env environment) {
		next := func() tenure.Epoch { // the epoch that a term would have now
			resp, err := env.Admin().Get(t.Context(), key)
			require.NoError(t, err)
			return tenure.Epoch(resp.Header.Revision + 1)
		}
		for _, run := range []func(*tenure.Elector) error{
			func(e *tenure.Elector) error { _, err := e.Campaign(t.Context()); return err },
			func(e *tenure.Elector) error { return e.Run(t.Context(), untilTold) },
		} {
			// A refused campaign does not wait for its lease; one that etcd has
			// granted meanwhile expires.
			e := newElector(t, env.Client(), &tenure.Options{MinEpoch: next(), TTL: 2 * time.Second})
			require.ErrorIs(t, run(e), tenure.ErrRolledBack)
			require.Empty(t, env.Keys(key))
		}
		floor := next() - 1
		require.Greater(t, mustWin(t, env, &tenure.Options{MinEpoch: floor}).Epoch(), floor)
	}},

	{"RenewalsCarryTheTermBeyondItsTTL", func(t *testing.T, env environment) {
		counted := make(chan struct{}, 100)
		term := mustWin(t, env, &tenure.Options{TTL: 2 * time.Second, Hooks: &tenure.Hooks{Renewed: func(_ time.Duration, err error) {
			if err == nil {
				counted <- struct{}{}
			}
		}}})
		first := term.ValidUntil()
		for range 7 { // two TTLs and a third
			etcdtest.Await(t, inTime, "a renewal that counts", counted)
		}
		require.True(t, term.Valid())
		require.True(t, term.ValidUntil().After(first.Add(3*time.Second)))
		require.NoError(t, term.Context().Err())
		require.NoError(t, term.Verify(t.Context()))
		require.EqualValues(t, 1, env.Keys(key)[0].Version, "renewing does not write the key")
	}},

	// A08, L16.
	{"SharedLeaseIsRenewedOnceForAll", func(t *testing.T, env environment) {
		c := env.Client()
		counted := make(chan struct{}, 100)
		lease, err := tenure.NewLease(c.Client, &tenure.LeaseOptions{TTL: 2 * time.Second, Hooks: &tenure.Hooks{Renewed: func(_ time.Duration, err error) {
			if err == nil {
				counted <- struct{}{}
			}
		}}})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, lease.Close(context.Background())) })
		var terms []*tenure.Term
		for i := range 5 {
			e, err := tenure.New(c.Client, fmt.Sprintf("%s/%d", key, i), &tenure.Options{Lease: lease})
			require.NoError(t, err)
			terms = append(terms, lead(t, e))
		}
		etcdtest.Eventually(t, inTime, "leases", 1, env.Leases)

		// The lease does not make two electors of one key one candidate.
		rival, err := tenure.New(c.Client, key+"/0", &tenure.Options{Lease: lease})
		require.NoError(t, err)
		_, err = rival.TryCampaign(t.Context())
		require.ErrorIs(t, err, tenure.ErrHeld)

		for range 4 { // beyond the TTL
			etcdtest.Await(t, inTime, "a renewal that counts", counted)
		}
		for _, term := range terms {
			require.Equal(t, terms[0].Fence().Lease, term.Fence().Lease)
			require.NoError(t, term.Verify(t.Context()))
		}
		require.LessOrEqual(t, c.Faults.Streams("LeaseKeepAlive"), 1)
		require.Less(t, c.Faults.Count("LeaseKeepAlive"), 2*len(terms))

		giveUp(t, terms[0])
		etcdtest.Eventually(t, inTime, "leases, which the others need", 1, env.Leases)
		require.Len(t, env.Keys(key), len(terms)-1)
		won, err := rival.TryCampaign(t.Context())
		require.NoError(t, err)
		require.Greater(t, won.Epoch(), terms[4].Epoch())
		giveUp(t, won)
	}},

	{"SharedLeaseClosesInOrder", func(t *testing.T, env environment) {
		c := env.Client()
		lease, err := tenure.NewLease(c.Client, nil)
		require.NoError(t, err)
		stopped := make(chan bool, 2)
		ran := make(chan error, 2)
		for i := range 2 {
			e, err := tenure.New(c.Client, fmt.Sprintf("%s/%d", key, i), &tenure.Options{Lease: lease})
			require.NoError(t, err)
			leading := make(chan struct{})
			go func() {
				ran <- e.Run(t.Context(), func(ctx context.Context, term *tenure.Term) error {
					close(leading)
					<-ctx.Done()
					stopped <- term.Valid()
					return nil
				})
			}()
			etcdtest.Await(t, inTime, "a term", leading)
		}
		require.NoError(t, lease.Close(t.Context()))
		for range 2 {
			require.True(t, etcdtest.Await(t, inTime, "the work", stopped), "valid while the work stops")
			require.ErrorIs(t, etcdtest.Await(t, inTime, "Run", ran), tenure.ErrLeaseClosed)
		}
		require.Empty(t, env.Keys(key))
		etcdtest.Eventually(t, inTime, "leases", 0, env.Leases)
		require.NoError(t, lease.Close(t.Context()))
		e, err := tenure.New(c.Client, key, &tenure.Options{Lease: lease})
		require.NoError(t, err)
		_, err = e.Campaign(t.Context())
		require.ErrorIs(t, err, tenure.ErrLeaseClosed)
	}},

	// L08.
	{"RevokedLeaseEndsTheTerm", func(t *testing.T, env environment) {
		term := mustWin(t, env, nil)
		_, err := env.Admin().Revoke(t.Context(), term.Fence().Lease)
		require.NoError(t, err)
		awaitEnd(t, term, tenure.KeyDeleted)
	}},

	// W02, S16.
	{"DeletedKeyEndsTheTerm", func(t *testing.T, env environment) {
		term := mustWin(t, env, nil)
		_, err := env.Admin().Delete(t.Context(), key)
		require.NoError(t, err)
		awaitEnd(t, term, tenure.KeyDeleted)
		require.ErrorIs(t, term.Verify(t.Context()), tenure.KeyDeleted)
	}},

	// A10.
	{"KeyWithoutLeaseEndsTheTermAndIsRemoved", func(t *testing.T, env environment) {
		term := mustWin(t, env, nil)
		_, err := env.Admin().Put(t.Context(), key, "an operator's")
		require.NoError(t, err)
		awaitEnd(t, term, tenure.KeyReplaced)
		giveUp(t, term)
		require.Empty(t, env.Keys(key), "nobody could ever expire it")
	}},

	// A10, W17.
	{"KeyOnAnotherLeaseEndsTheTermAndStays", func(t *testing.T, env environment) {
		term := mustWin(t, env, nil)
		lease, err := env.Admin().Grant(t.Context(), 60)
		require.NoError(t, err)
		_, err = env.Admin().Put(t.Context(), key, "another's", clientv3.WithLease(lease.ID))
		require.NoError(t, err)
		awaitEnd(t, term, tenure.KeyReplaced)
		giveUp(t, term)
		require.Len(t, env.Keys(key), 1, "it is another's")
		_, err = env.Admin().Revoke(t.Context(), lease.ID)
		require.NoError(t, err)
	}},

	// W17, S06.
	{"KeyCreatedAnewEndsTheTermAndStays", func(t *testing.T, env environment) {
		term := mustWin(t, env, nil)
		_, err := env.Admin().Delete(t.Context(), key)
		require.NoError(t, err)
		_, err = env.Admin().Put(t.Context(), key, "another's")
		require.NoError(t, err)
		etcdtest.Await(t, inTime, "the end of the term", term.Context().Done())
		// The watch may have told both in one go.
		require.Contains(t, []tenure.Reason{tenure.KeyDeleted, tenure.KeyReplaced}, term.Err())
		giveUp(t, term)
		require.Len(t, env.Keys(key), 1, "it is another's")
		_, err = env.Admin().Delete(t.Context(), key)
		require.NoError(t, err)
	}},

	// A15, S09.
	{"ContestHasOneWinnerAtATime", func(t *testing.T, env environment) {
		const n = 5
		won := make(chan *tenure.Term, n)
		var campaigns sync.WaitGroup
		t.Cleanup(campaigns.Wait)
		var electors []*tenure.Elector
		for range n {
			e := newElector(t, env.Client(), nil)
			electors = append(electors, e)
			campaigns.Go(func() {
				term, err := e.Campaign(t.Context())
				if assert.NoError(t, err) {
					won <- term
				}
			})
		}
		var last tenure.Epoch
		for range n {
			term := etcdtest.Await(t, inTime, "a winner", won)
			t.Cleanup(func() { _ = term.Resign() })
			require.Greater(t, term.Epoch(), last)
			last = term.Epoch()
			for _, e := range electors {
				if other := e.Term(); other != nil {
					require.Same(t, term, other)
				}
			}
			require.Len(t, env.Keys(key), 1)
			require.Empty(t, won)
			giveUp(t, term)
		}
		require.Empty(t, env.Keys(key))
	}},

	// S03, S04, S07.
	{"HandOverWaitsForTheWork", func(t *testing.T, env environment) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stopping, finish := make(chan *tenure.Term, 1), make(chan struct{})
		finished := sync.OnceFunc(func() { close(finish) })
		t.Cleanup(finished)
		leading := make(chan struct{})
		old := newElector(t, env.Client(), nil)
		ran := startRun(ctx, old, func(ctx context.Context, term *tenure.Term) error {
			close(leading)
			<-ctx.Done()
			stopping <- term
			<-finish
			return nil
		})
		etcdtest.Await(t, inTime, "a term", leading)
		w := newWitness(t)
		follower := w.serve(env.Client(), nil)

		cancel()
		term := etcdtest.Await(t, inTime, "the end of the work's context", stopping)
		require.ErrorIs(t, context.Cause(term.Context()), tenure.ContextEnded)
		require.ErrorIs(t, context.Cause(term.Context()), context.Canceled)
		awaitFollowing(t, follower.Elector, term)
		require.NoError(t, term.Verify(t.Context()), "the work has not returned")
		require.Same(t, term, old.Term())
		require.Empty(t, w.wins)
		w.saw(term)
		finished()
		require.ErrorIs(t, etcdtest.Await(t, inTime, "Run", ran), context.Canceled)
		require.False(t, term.Valid())
		require.Greater(t, w.next().term.Epoch(), term.Epoch())
	}},

	// A17.
	{"EvictedHolderLetsAnotherWin", func(t *testing.T, env environment) {
		w := newWitness(t)
		services := []*service{w.serve(env.Client(), nil), w.serve(env.Client(), nil)}
		old := w.next()
		for range 3 {
			require.NoError(t, tenure.Evict(t.Context(), env.Client().Client, old.term.Fence(), nil))
			require.ErrorIs(t, context.Cause(old.term.Context()), tenure.Evicted)
			require.False(t, old.term.Valid())
			next := w.next()
			require.NotSame(t, old.service, next.service)
			require.Greater(t, next.term.Epoch(), old.term.Epoch())

			err := tenure.Evict(t.Context(), env.Client().Client, old.term.Fence(), nil)
			require.ErrorIs(t, err, tenure.ErrFenced)
			leader, _ := tenure.LeaderOf(err)
			require.Equal(t, next.term.Fence(), leader.Fence)
			require.NoError(t, next.term.Verify(t.Context()), "it was not the one to go")
			old = next
		}
		for _, s := range services {
			s.stop()
		}
		for _, s := range services {
			require.ErrorIs(t, etcdtest.Await(t, inTime, "Run", s.done), context.Canceled)
		}
		require.ErrorIs(t, tenure.Evict(t.Context(), env.Client().Client, old.term.Fence(), nil), tenure.ErrNoLeader)
	}},

	// F01, F03, F13.
	{"WriteAfterTakeOverIsRefused", func(t *testing.T, env environment) {
		c := env.Client()
		old := mustWin(t, env, nil)
		kv := old.KV(c.Client)
		_, err := kv.Put(t.Context(), "/data/x", "old")
		require.NoError(t, err)
		require.NoError(t, tenure.Evict(t.Context(), c.Client, old.Fence(), &tenure.EvictOptions{Force: true, Patience: -1}))
		_, err = old.Fence().KV(c.Client).Put(t.Context(), "/data/x", "late")
		require.ErrorIs(t, err, tenure.ErrFenced)
		leader, ok := tenure.LeaderOf(err)
		require.True(t, ok)
		require.Zero(t, leader.Fence.Epoch, "nobody leads")

		awaitEnd(t, old, tenure.KeyDeleted)
		next := mustWin(t, env, nil)
		_, err = kv.Put(t.Context(), "/data/x", "late")
		require.ErrorIs(t, err, tenure.KeyDeleted)
		stale := old.Fence().KV(c.Client)
		_, put := stale.Put(t.Context(), "/data/x", "late")
		_, del := stale.Delete(t.Context(), "/data/x")
		_, txn := stale.Txn(t.Context()).
			If(clientv3.Compare(clientv3.CreateRevision("/data/y"), ">", 0)).
			Else(clientv3.OpPut("/data/y", "late")).
			Commit()
		for _, err := range []error{put, del, txn} {
			require.ErrorIs(t, err, tenure.ErrFenced)
			leader, _ := tenure.LeaderOf(err)
			require.Equal(t, next.Fence(), leader.Fence)
		}
		kvs := env.Keys("/data/")
		require.Len(t, kvs, 1)
		require.Equal(t, "old", string(kvs[0].Value))

		_, err = next.KV(c.Client).Delete(t.Context(), "/data/x")
		require.NoError(t, err)
		require.Empty(t, env.Keys("/data/"))
	}},

	// W11, W12.
	{"ObserversSeeEachTerm", func(t *testing.T, env environment) {
		c := env.Client()
		ctx, cancel := context.WithCancel(t.Context())
		seen := make(chan tenure.Status, 100)
		go func() {
			defer close(seen)
			for st, err := range tenure.Observe(ctx, c.Client, key) {
				assert.NoError(t, err)
				seen <- st
			}
		}()
		st := etcdtest.Await(t, inTime, "the present state", seen)
		require.Equal(t, tenure.Vacant, st.State)
		var last tenure.Epoch
		for range 3 {
			term := mustWin(t, env, nil)
			for st.Leader.Fence != term.Fence() {
				st = etcdtest.Await(t, inTime, "the next state", seen)
				if st.State == tenure.Led {
					require.GreaterOrEqual(t, st.Leader.Fence.Epoch, last)
					last = st.Leader.Fence.Epoch
				}
			}
			for again := range tenure.Observe(ctx, c.Client, key) { // a late one starts with the present
				require.Equal(t, tenure.Led, again.State)
				require.Equal(t, term.Fence(), again.Leader.Fence)
				break
			}
			giveUp(t, term)
		}
		cancel()
		for range seen { // ends
		}
	}},

	// W05, A20.
	{"FollowerThatIsCutOffSaysSo", func(t *testing.T, env environment) {
		holder := mustWin(t, env, nil)
		w := newWitness(t)
		follower := w.serve(env.Client(), &tenure.Options{TTL: time.Second})
		state := func() tenure.State { return follower.Status().State }
		etcdtest.Eventually(t, inTime, "state", tenure.Led, state)

		follower.client.Link.Cut()
		etcdtest.Eventually(t, inTime, "state", tenure.Unreachable, state)
		st := follower.Status()
		require.Error(t, st.Err)
		require.Equal(t, holder.Fence(), st.Leader.Fence, "the last one known")
		require.True(t, st.Since.Before(time.Now()))

		follower.client.Link.Heal()
		etcdtest.Eventually(t, inTime, "state", tenure.Led, state)
		giveUp(t, holder)
		w.next()
	}},

	// S05, S06.
	{"ResignMayBeRepeated", func(t *testing.T, env environment) {
		c := env.Client()
		first := lead(t, newElector(t, c, nil))
		answers := c.Faults.On("Txn", etcdtest.LoseAnswer())
		require.ErrorIs(t, first.Resign(), tenure.ErrUnknownOutcome)
		answers.Stop()
		require.Empty(t, env.Keys(key), "it was deleted all the same")

		second := mustWin(t, env, nil)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { assert.NoError(t, first.Resign()) })
		}
		wg.Wait()
		require.NoError(t, second.Verify(t.Context()), "the successor is not touched")

		_, err := env.Admin().Delete(t.Context(), key)
		require.NoError(t, err)
		awaitEnd(t, second, tenure.KeyDeleted)
		require.NoError(t, second.Resign())
		require.NoError(t, second.Resign())
		require.ErrorIs(t, second.Err(), tenure.KeyDeleted, "the first reason stands")
	}},

	// S13, A06.
	{"RunCampaignsAgainAfterEveryLoss", func(t *testing.T, env environment) {
		admin := env.Admin()
		w := newWitness(t)
		s := w.serve(env.Client(), &tenure.Options{TTL: 2 * time.Second})
		last := w.next().term
		for _, lose := range []struct {
			reasons []tenure.Reason
			how     func(f tenure.Fence) error
		}{
			{[]tenure.Reason{tenure.KeyDeleted}, func(f tenure.Fence) error { _, err := admin.Delete(t.Context(), f.Key); return err }},
			{[]tenure.Reason{tenure.KeyReplaced}, func(f tenure.Fence) error { _, err := admin.Put(t.Context(), f.Key, ""); return err }},
			// A renewal may be the first to tell.
			{[]tenure.Reason{tenure.KeyDeleted, tenure.LeaseExpired}, func(f tenure.Fence) error { _, err := admin.Revoke(t.Context(), f.Lease); return err }},
		} {
			require.NoError(t, lose.how(last.Fence()))
			etcdtest.Await(t, inTime, "the end of the term's context", last.Context().Done())
			reason, _ := errors.AsType[tenure.Reason](context.Cause(last.Context()))
			require.Contains(t, lose.reasons, reason)
			term := w.next().term
			require.Greater(t, term.Epoch(), last.Epoch())
			require.NoError(t, term.Verify(t.Context()))
			last = term
		}
		s.stop()
		require.ErrorIs(t, etcdtest.Await(t, inTime, "Run", s.done), context.Canceled)
		require.ErrorIs(t, context.Cause(last.Context()), tenure.ContextEnded)
		require.Empty(t, env.Keys(key), "at once, not by expiry")
	}},
}

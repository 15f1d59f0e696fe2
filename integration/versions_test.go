package integration_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/integration/internal/servers"
)

// releases of etcd that docs/etcd.md speaks of. On 3.4 the library promises the
// fence alone; what is tested here is what holds as long as one member of etcd
// runs undisturbed, and that is everything.
var releases = []string{"3.4", "3.5", "3.6", "3.7"}

// inTime bounds what must happen but may take its time on a busy machine.
const inTime = 30 * time.Second

// site is a released server and how to reach it.
type site struct {
	server         *servers.EtcdServer
	endpoint       string
	user, password string
	admin          *clientv3.Client

	// forgets: a client whose token the server has forgotten is never let in
	// again. An Authenticate request carries the old token, and 3.4 refuses it.
	forgets bool
}

func TestReleasesOfEtcd(t *testing.T) {
	for _, release := range releases {
		t.Run(release, func(t *testing.T) {
			for mode, begin := range map[string]func(*testing.T, string) *site{"Plain": plain, "TLS": secured, "Passwords": locked} {
				t.Run(mode, func(t *testing.T) {
					t.Parallel()
					begin(t, release).uphold(t, release)
				})
			}
			t.Run("Proxy", func(t *testing.T) {
				t.Parallel()
				s := plain(t, release)
				s.endpoint = s.server.Proxy(t).DSN
				writeAfterTakeOverIsRefused(t, s, electionOf("Proxy"), "/data/Proxy/")
			})
		})
	}
}

// uphold checks the contract, then a crash of the server, then that nothing is
// left.
func (s *site) uphold(t *testing.T, release string) {
	t.Helper()
	status, err := s.admin.Status(t.Context(), s.server.DSN)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(status.Version, release+"."), status.Version)
	t.Logf("etcd %s", status.Version)
	t.Run("Contract", func(t *testing.T) {
		for _, c := range contract {
			t.Run(c.property, func(t *testing.T) {
				t.Parallel()
				c.check(t, s, electionOf(c.property), "/data/"+c.property+"/")
			})
		}
	})
	t.Run("CrashOfTheServerIsSurvived", func(t *testing.T) { crashOfTheServerIsSurvived(t, s) })
	if s.forgets {
		s.admin = s.root(t)
	}
	becomes(t, "nothing is left behind", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		keys, err := s.admin.Get(ctx, "/election/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil || keys.Count != 0 {
			return false
		}
		leases, err := s.admin.Leases(ctx)
		return err == nil && len(leases.Leases) == 0
	})
}

func plain(t *testing.T, release string) *site {
	t.Helper()
	return begun(t, servers.EtcdRelease(t, release, false))
}

func secured(t *testing.T, release string) *site {
	t.Helper()
	return begun(t, servers.EtcdRelease(t, release, true))
}

func begun(t *testing.T, server *servers.EtcdServer) *site {
	t.Helper()
	s := &site{server: server, endpoint: server.DSN}
	s.admin = s.root(t)
	return s
}

// locked demands passwords, and gives electors the least role of docs/etcd.md.
func locked(t *testing.T, release string) *site {
	t.Helper()
	s := plain(t, release)
	s.forgets = release == "3.4"
	require.NoError(t, s.admin.Close())
	setUp := s.client(t)
	must := func(_ any, err error) { t.Helper(); require.NoError(t, err) }
	ctx := t.Context()
	must(setUp.UserAdd(ctx, "root", "secret"))
	must(setUp.UserGrantRole(ctx, "root", "root"))
	must(setUp.RoleAdd(ctx, "scheduler"))
	for _, c := range contract {
		for _, key := range []string{electionOf(c.property), electionOf(c.property) + "/0", electionOf(c.property) + "/1"} {
			must(setUp.RoleGrantPermission(ctx, "scheduler", key, "", clientv3.PermissionType(clientv3.PermReadWrite)))
		}
	}
	must(setUp.RoleGrantPermission(ctx, "scheduler", electionOf("Crash"), "", clientv3.PermissionType(clientv3.PermReadWrite)))
	must(setUp.RoleGrantPermission(ctx, "scheduler", "/data/", clientv3.GetPrefixRangeEnd("/data/"), clientv3.PermissionType(clientv3.PermReadWrite)))
	must(setUp.UserAdd(ctx, "elector", "pass"))
	must(setUp.UserGrantRole(ctx, "elector", "scheduler"))
	must(setUp.AuthEnable(ctx))

	s.user, s.password = "elector", "pass"
	s.admin = s.root(t)
	_, err := s.client(t).Put(ctx, "/election/", "not ours")
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied, "the role is limited")
	return s
}

// root is a client that may do everything.
func (s *site) root(t *testing.T) *clientv3.Client {
	t.Helper()
	r := *s
	if s.user != "" {
		r.user, r.password = "root", "secret"
	}
	return r.client(t)
}

func electionOf(property string) string { return "/election/" + property }

// client connects as docs/etcd.md recommends.
func (s *site) client(t *testing.T) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{s.endpoint}, TLS: s.server.TLS, Username: s.user, Password: s.password,
		DialTimeout: 3 * time.Second, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 3 * time.Second,
		})},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() }) // some have closed it
	return client
}

func newElector(t *testing.T, client *clientv3.Client, key string, opts *tenure.Options) *tenure.Elector {
	t.Helper()
	e, err := tenure.New(client, key, opts)
	require.NoError(t, err)
	return e
}

// lead wins a term with an elector and a client of its own.
func (s *site) lead(t *testing.T, key string, opts *tenure.Options) *tenure.Term {
	t.Helper()
	return campaign(t, newElector(t, s.client(t), key, opts))
}

func campaign(t *testing.T, e *tenure.Elector) *tenure.Term {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), inTime)
	defer cancel()
	term, err := e.Campaign(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { _ = term.Resign() }) // ended already, unless the test has failed
	return term
}

// service runs an elector whose work lasts as long as its term.
type service struct {
	elector *tenure.Elector
	client  *clientv3.Client
	terms   chan *tenure.Term
	cancel  context.CancelFunc
	done    chan error
}

func (s *site) serve(t *testing.T, key string, opts *tenure.Options) *service {
	t.Helper()
	client := s.client(t)
	ctx, cancel := context.WithCancel(t.Context())
	v := &service{client: client, elector: newElector(t, client, key, opts), terms: make(chan *tenure.Term, 10), cancel: cancel, done: make(chan error, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		v.done <- v.elector.Run(ctx, func(ctx context.Context, term *tenure.Term) error {
			v.terms <- term
			<-ctx.Done()
			return nil
		})
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return v
}

func (v *service) next(t *testing.T) *tenure.Term {
	t.Helper()
	return await(t, "a term", v.terms)
}

func (v *service) stop(t *testing.T) {
	t.Helper()
	v.cancel()
	require.ErrorIs(t, await(t, "Run", v.done), context.Canceled)
}

func await[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:

	case <-time.After(inTime):
		t.Fatalf("not within %v: %s", inTime, what)
	}
	return v
}

func becomes(t *testing.T, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, inTime, 10*time.Millisecond, what)
}

func awaitEnd(t *testing.T, term *tenure.Term, reasons ...tenure.Reason) {
	t.Helper()
	await(t, "the end of the term's context", term.Context().Done())
	require.False(t, term.Valid())
	for _, reason := range reasons {
		if errors.Is(term.Err(), reason) {
			return
		}
	}
	t.Fatalf("the term has ended with %v, not one of %v", term.Err(), reasons)
}

// contract is what is promised of an election, in the order of a term's life. A
// property has the election of key, key/0 and key/1, and the data below its
// prefix.
var contract = []struct {
	property string
	check    func(t *testing.T, s *site, key, data string)
}{
	{"AcquirePublishesTheTerm", func(t *testing.T, s *site, key, _ string) {
		client := s.client(t)
		_, err := tenure.Lookup(t.Context(), client, key)
		require.ErrorIs(t, err, tenure.ErrNoLeader)
		e := newElector(t, client, key, &tenure.Options{Identity: "node-1", Address: "10.0.0.7:8443"})
		term := campaign(t, e)
		require.Same(t, term, e.Term())
		require.NoError(t, term.Verify(t.Context()))
		leader, err := tenure.Lookup(t.Context(), client, key)
		require.NoError(t, err)
		require.Equal(t, term.Fence(), leader.Fence)
		require.Equal(t, "node-1", leader.Identity)
		require.Equal(t, "10.0.0.7:8443", leader.Address)
		require.Equal(t, tenure.Leading, e.Status().State)

		_, err = newElector(t, s.client(t), key, nil).TryCampaign(t.Context())
		require.ErrorIs(t, err, tenure.ErrHeld)
		held, _ := tenure.LeaderOf(err)
		require.Equal(t, term.Fence(), held.Fence)

		giveUp(t, term)
		require.ErrorIs(t, term.Err(), tenure.Resigned)
		_, err = tenure.Lookup(t.Context(), client, key)
		require.ErrorIs(t, err, tenure.ErrNoLeader)
	}},

	{"RenewalsCarryTheTermBeyondItsTTL", func(t *testing.T, s *site, key, _ string) {
		counted := make(chan struct{}, 100)
		e := newElector(t, s.client(t), key, &tenure.Options{TTL: 2 * time.Second, Hooks: &tenure.Hooks{Renewed: func(_ time.Duration, err error) {
			if err == nil {
				counted <- struct{}{}
			}
		}}})
		term := campaign(t, e)
		require.Equal(t, 2*time.Second, e.Status().TTL)
		first := term.ValidUntil()
		for range 7 { // two TTLs and a third
			await(t, "a renewal that counts", counted)
		}
		require.True(t, term.Valid())
		require.True(t, term.ValidUntil().After(first.Add(3*time.Second)))
		require.NoError(t, term.Verify(t.Context()))
		giveUp(t, term)
	}},

	{"ResignationHandsOver", func(t *testing.T, s *site, key, _ string) {
		old := s.serve(t, key, nil)
		first := old.next(t)
		other := s.serve(t, key, nil)
		becomes(t, "the follower's leader", func() bool { return other.elector.Status().Leader.Fence == first.Fence() })
		old.stop(t)
		require.False(t, first.Valid())
		second := other.next(t)
		require.Greater(t, second.Epoch(), first.Epoch())
		require.NoError(t, second.Verify(t.Context()))
		other.stop(t)
	}},

	{"CrashOfTheHolderHandsOver", func(t *testing.T, s *site, key, _ string) {
		old := s.serve(t, key, &tenure.Options{TTL: 2 * time.Second})
		first := old.next(t)
		other := s.serve(t, key, &tenure.Options{TTL: 2 * time.Second})
		require.NoError(t, old.client.Close()) // nothing more of it reaches etcd
		second := other.next(t)
		require.False(t, first.Valid())
		awaitEnd(t, first, tenure.RenewalRefused, tenure.LeaseExpired)
		require.Error(t, await(t, "Run, whose client is closed", old.done))
		require.Greater(t, second.Epoch(), first.Epoch())
		other.stop(t)
	}},

	{"EvictedHolderLetsAnotherWin", func(t *testing.T, s *site, key, _ string) {
		old := s.serve(t, key, nil)
		first := old.next(t)
		other := s.serve(t, key, nil)
		becomes(t, "the follower's leader", func() bool { return other.elector.Status().Leader.Fence == first.Fence() })
		require.NoError(t, tenure.Evict(t.Context(), s.client(t), first.Fence(), nil))
		awaitEnd(t, first, tenure.Evicted)
		second := other.next(t)
		require.Greater(t, second.Epoch(), first.Epoch())
		require.ErrorIs(t, tenure.Evict(t.Context(), s.client(t), first.Fence(), nil), tenure.ErrFenced)
		old.stop(t)
		other.stop(t)
	}},

	{"ForeignDeletesAreNoticed", func(t *testing.T, s *site, key, _ string) {
		v := s.serve(t, key, &tenure.Options{TTL: 2 * time.Second}) // a third of it passes before the next term
		first := v.next(t)
		_, err := s.admin.Delete(t.Context(), key)
		require.NoError(t, err)
		awaitEnd(t, first, tenure.KeyDeleted)
		second := v.next(t)
		require.Greater(t, second.Epoch(), first.Epoch())
		_, err = s.admin.Revoke(t.Context(), second.Fence().Lease)
		require.NoError(t, err)
		awaitEnd(t, second, tenure.KeyDeleted, tenure.LeaseExpired) // a renewal may be the first to tell
		require.Greater(t, v.next(t).Epoch(), second.Epoch())
		v.stop(t)
	}},

	{"KeyPutWithoutLeaseEndsTheTermAndIsRemoved", func(t *testing.T, s *site, key, _ string) {
		v := s.serve(t, key, &tenure.Options{TTL: 2 * time.Second}) // a third of it passes before the next term
		first := v.next(t)
		_, err := s.admin.Put(t.Context(), key, "an operator's")
		require.NoError(t, err)
		awaitEnd(t, first, tenure.KeyReplaced)
		require.Greater(t, v.next(t).Epoch(), first.Epoch(), "the key, which nobody could expire, has gone")
		v.stop(t)
	}},

	{"ObserversSeeEachTerm", func(t *testing.T, s *site, key, _ string) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		client := s.client(t)
		seen := make(chan tenure.Status, 100)
		go func() {
			defer close(seen)
			for st, err := range tenure.Observe(ctx, client, key) {
				assert.NoError(t, err)
				seen <- st
			}
		}()
		st := await(t, "the present state", seen)
		require.Equal(t, tenure.Vacant, st.State)
		for range 3 {
			term := s.lead(t, key, nil)
			for st.Leader.Fence != term.Fence() {
				st = await(t, "the term", seen)
			}
			giveUp(t, term)
			for st.State != tenure.Vacant {
				st = await(t, "the vacancy", seen)
			}
		}
		cancel()
		for range seen { // ends
		}
	}},

	{"WriteAfterTakeOverIsRefused", writeAfterTakeOverIsRefused},

	{"FenceOutlivesCompaction", func(t *testing.T, s *site, key, data string) {
		client := s.client(t)
		old := s.lead(t, key, nil)
		put, err := s.admin.Put(t.Context(), data+"x", "1")
		require.NoError(t, err)
		compact := func(rev int64) {
			_, err := s.admin.Compact(t.Context(), rev)
			if !errors.Is(err, rpctypes.ErrCompacted) { // as far, by another
				require.NoError(t, err)
			}
		}
		compact(put.Header.Revision) // beyond the epoch
		_, err = old.KV(client).Put(t.Context(), data+"x", "2")
		require.NoError(t, err)
		require.NoError(t, old.Verify(t.Context()))
		giveUp(t, old)
		next := s.lead(t, key, nil)
		put, err = next.KV(client).Put(t.Context(), data+"x", "3")
		require.NoError(t, err)
		compact(put.Header.Revision)
		_, err = old.Fence().KV(client).Put(t.Context(), data+"x", "late")
		require.ErrorIs(t, err, tenure.ErrFenced)
		giveUp(t, next)
	}},

	{"SharedLeaseCarriesSeveralElections", func(t *testing.T, s *site, key, _ string) {
		client := s.client(t)
		counted := make(chan struct{}, 100)
		lease, err := tenure.NewLease(client, &tenure.LeaseOptions{TTL: 2 * time.Second, Hooks: &tenure.Hooks{Renewed: func(_ time.Duration, err error) {
			if err == nil {
				counted <- struct{}{}
			}
		}}})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, lease.Close(context.Background())) })
		first := campaign(t, newElector(t, client, key+"/0", &tenure.Options{Lease: lease}))
		second := campaign(t, newElector(t, client, key+"/1", &tenure.Options{Lease: lease}))
		require.Equal(t, first.Fence().Lease, second.Fence().Lease)
		for range 4 { // beyond the TTL
			await(t, "a renewal that counts", counted)
		}
		require.NoError(t, first.Verify(t.Context()))
		giveUp(t, first)
		require.NoError(t, second.Verify(t.Context()), "it stays")
		third := s.lead(t, key+"/0", nil)
		require.Greater(t, third.Epoch(), first.Epoch())
		giveUp(t, third)
		giveUp(t, second)
	}},
}

// giveUp resigns. On a busy machine the delete may take longer than an orderly
// end is given; it is repeated then.
func giveUp(t *testing.T, term *tenure.Term) {
	t.Helper()
	becomes(t, "Resign", func() bool { return term.Resign() == nil })
}

// writeAfterTakeOverIsRefused is all that is promised through a proxy.
func writeAfterTakeOverIsRefused(t *testing.T, s *site, key, data string) {
	t.Helper()
	client := s.client(t)
	old := s.lead(t, key, nil)
	_, err := old.KV(client).Put(t.Context(), data+"x", "old")
	require.NoError(t, err)
	require.NoError(t, tenure.Evict(t.Context(), client, old.Fence(), &tenure.EvictOptions{Force: true, Patience: -1}))
	next := s.lead(t, key, nil)
	require.Greater(t, next.Epoch(), old.Epoch())
	stale := old.Fence().KV(client)
	_, put := stale.Put(t.Context(), data+"x", "late")
	_, del := stale.Delete(t.Context(), data+"x")
	_, txn := stale.Txn(t.Context()).
		If(clientv3.Compare(clientv3.CreateRevision(data+"y"), ">", 0)).
		Else(clientv3.OpPut(data+"y", "late")).
		Commit()
	for _, err := range []error{put, del, txn} {
		require.ErrorIs(t, err, tenure.ErrFenced)
		leader, _ := tenure.LeaderOf(err)
		require.Equal(t, next.Fence(), leader.Fence)
	}
	kvs, err := client.Get(t.Context(), data, clientv3.WithPrefix())
	require.NoError(t, err)
	require.Len(t, kvs.Kvs, 1)
	require.Equal(t, "old", string(kvs.Kvs[0].Value))
	resp, err := next.KV(client).Txn(t.Context()).
		If(clientv3.Compare(clientv3.Value(data+"x"), "=", "new")).
		Then(clientv3.OpPut(data+"x", "wrong")).
		Else(clientv3.OpPut(data+"x", "new")).
		Commit()
	require.NoError(t, err)
	require.False(t, resp.Succeeded)
	deleted, err := next.KV(client).Delete(t.Context(), data, clientv3.WithPrefix())
	require.NoError(t, err)
	require.EqualValues(t, 1, deleted.Deleted)
	giveUp(t, next)
}

// crashOfTheServerIsSurvived kills the server and starts it again on its data. The
// term may go on, or end and be followed by another. Where the client is never let
// in again, the term ends by its clock, and another process takes over.
func crashOfTheServerIsSurvived(t *testing.T, s *site) {
	t.Helper()
	counted := make(chan struct{}, 100)
	v := s.serve(t, electionOf("Crash"), &tenure.Options{TTL: 3 * time.Second, Hooks: &tenure.Hooks{Renewed: func(_ time.Duration, err error) {
		if err == nil {
			counted <- struct{}{}
		}
	}}})
	first := v.next(t)
	// A server replays what came after its last write to the disk, tokens included.
	// When a second has passed since that write, it has forgotten the older tokens.
	await(t, "a renewal", counted)
	_, err := s.admin.Put(t.Context(), "/data/crash", "before")
	require.NoError(t, err)
	await(t, "a renewal", counted)
	require.NoError(t, s.server.Restart())
	if s.forgets {
		awaitEnd(t, first, tenure.LeaseExpired)
		other := s.lead(t, electionOf("Crash"), nil)
		require.Greater(t, other.Epoch(), first.Epoch())
		_, err = first.Fence().KV(s.client(t)).Put(t.Context(), "/data/crash", "late")
		require.ErrorIs(t, err, tenure.ErrFenced)
		require.Empty(t, v.terms)
		giveUp(t, other)
		v.stop(t)
		return
	}
	write := func(term *tenure.Term) error {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := term.KV(v.client).Put(ctx, "/data/crash", "x")
		return err
	}
	last, deadline := first, time.Now().Add(inTime)
	for err := write(last); err != nil; err = write(last) {
		require.True(t, time.Now().Before(deadline), "no guarded write since the crash: %v", err)
		if last.Valid() {
			continue
		}
		next := v.next(t)
		require.Greater(t, next.Epoch(), last.Epoch())
		last = next
	}
	// Whichever it was, it is renewed now.
	limit := last.ValidUntil()
	becomes(t, "a renewal counts", func() bool { return last.ValidUntil().After(limit) })
	t.Logf("the term went on: %v", last == first)
	v.stop(t)
}

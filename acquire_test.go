package tenure_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
)

// acquireTTL is above etcd's floor of 2 s, so that it is what is granted.
const acquireTTL = 3 * time.Second

// candidacy is an elector with a client of its own, on a lease of its own or on
// a shared one that another elector keeps alive.
type candidacy struct {
	t      *testing.T
	s      *etcdtest.Server
	c      *etcdtest.Client
	opts   *tenure.Options
	e      *tenure.Elector
	keeper *tenure.Elector // nil: the lease is private
	joined <-chan outcome
	kept   *tenure.Term
}

func newCandidacy(t *testing.T, s *etcdtest.Server, shared bool) *candidacy {
	t.Helper()
	x := &candidacy{t: t, s: s, c: s.Client(), opts: &tenure.Options{TTL: acquireTTL, Identity: "candidate"}}
	if shared {
		lease, err := tenure.NewLease(x.c.Client, &tenure.LeaseOptions{TTL: acquireTTL})
		require.NoError(t, err)
		x.opts.TTL, x.opts.Lease = 0, lease
		x.keeper, err = tenure.New(x.c.Client, "/keeper", &tenure.Options{Lease: lease})
		require.NoError(t, err)
	}
	x.e = newElector(t, x.c, x.opts)
	return x
}

// join lets another elector use the shared lease.
func (x *candidacy) join() {
	if x.keeper != nil && x.joined == nil {
		x.joined = campaign(x.t.Context(), x.keeper)
	}
}

// keep makes the shared lease one that goes on living.
func (x *candidacy) keep() {
	x.t.Helper()
	if x.join(); x.joined == nil || x.kept != nil {
		return
	}
	o := etcdtest.Await(x.t, time.Minute, "the keeper's Campaign", x.joined)
	require.NoError(x.t, o.err)
	x.kept = o.term
	x.t.Cleanup(func() { _ = x.kept.Resign() })
}

// outcome is what a campaign came to.
type outcome struct {
	term *tenure.Term
	err  error
}

func campaign(ctx context.Context, e *tenure.Elector) <-chan outcome {
	c := make(chan outcome, 1)
	go func() {
		term, err := e.Campaign(ctx)
		c <- outcome{term, err}
	}()
	return c
}

// dawdle campaigns and returns when the key has been put, but so little is left
// of the lease that the campaign has to wait for a renewal. Nobody else may have
// used the lease before; if together is set, the other elector does from now on.
func (x *candidacy) dawdle(ctx context.Context, together bool) <-chan outcome {
	x.t.Helper()
	x.c.Faults.Next("LeaseGrant", etcdtest.DelayAnswer(900*time.Millisecond))
	put := x.c.Faults.Next("Txn", etcdtest.DelayAnswer(900*time.Millisecond), etcdtest.Match(putsKey))
	renewals := x.c.Faults.On("LeaseKeepAlive", etcdtest.LoseRequest())
	if together {
		x.join()
	}
	won := campaign(ctx, x.e)
	etcdtest.Await(x.t, time.Second, "the put", put.Fired())
	time.Sleep(901 * time.Millisecond)
	require.Len(x.t, x.s.Keys(key), 1)
	require.Nil(x.t, x.e.Term())
	renewals.Stop()
	return won
}

// noise raises etcd's revision, so that only the key's create revision can be
// taken for one.
func (x *candidacy) noise() {
	x.t.Helper()
	for range 3 {
		_, err := x.s.Admin().Put(x.t.Context(), "/noise", "")
		require.NoError(x.t, err)
	}
}

// leads asserts that the term is the one that etcd knows of.
func (x *candidacy) leads(term *tenure.Term) {
	x.t.Helper()
	kvs := x.s.Keys(key)
	require.Len(x.t, kvs, 1)
	require.EqualValues(x.t, kvs[0].CreateRevision, term.Epoch())
	require.EqualValues(x.t, kvs[0].Lease, term.Fence().Lease)
	require.True(x.t, term.Valid())
	require.NoError(x.t, term.Verify(x.t.Context()))
	require.Same(x.t, term, x.e.Term())
	require.GreaterOrEqual(x.t, time.Until(term.ValidUntil()), (acquireTTL-acquireTTL/10)/2)
}

// clean asserts that nothing is left a TTL and a second after the last request
// has arrived, that a shared lease is still good, and the elector too.
func (x *candidacy) clean() {
	x.t.Helper()
	time.Sleep(acquireTTL + time.Second)
	require.Empty(x.t, x.s.Keys(key))
	x.keep()
	if x.keeper == nil {
		require.Zero(x.t, x.s.Leases())
	} else {
		require.True(x.t, x.kept.Valid(), "the shared lease has ended: %v", x.kept.Err())
		require.Equal(x.t, 1, x.s.Leases())
	}
	x.noise()
	term := etcdtest.Await(x.t, 2*acquireTTL, "Campaign", campaign(x.t.Context(), x.e))
	require.NoError(x.t, term.err)
	x.leads(term.term)
	require.NoError(x.t, term.term.Resign())
	require.Empty(x.t, x.s.Keys(key))
	if x.keeper != nil {
		require.NoError(x.t, x.kept.Resign())
	}
	require.Zero(x.t, x.s.Leases())
	synctest.Wait()
	require.Zero(x.t, x.c.Faults.Streams(""))
	require.NoError(x.t, x.c.Close())
}

// Messages of a campaign for the key.
func asksFor(r *pb.RangeRequest) bool { return string(r.Key) == key }

func putsKey(r *pb.TxnRequest) bool {
	return len(r.Success) == 1 && string(r.Success[0].GetRequestPut().GetKey()) == key
}

func deletesKey(r *pb.TxnRequest) bool {
	return len(r.Success) == 1 && string(r.Success[0].GetRequestDeleteRange().GetKey()) == key
}

func watchesKey(r *pb.WatchRequest) bool { return string(r.GetCreateRequest().GetKey()) == key }

func created(r *pb.WatchResponse) bool { return r.Created }

func confirms(r *pb.TxnRequest) bool { return len(r.Compare) == 0 }

// firstPut returns the first request that would create the key, to be sent again
// as late as one likes.
func (x *candidacy) firstPut() *pb.TxnRequest {
	x.t.Helper()
	for _, m := range x.c.Faults.Log("Txn") {
		if r, ok := m.Body.(*pb.TxnRequest); ok && putsKey(r) {
			return r
		}
	}
	require.Fail(x.t, "there was no put")
	return nil
}

// fault is something that happens to a request or to its answer.
type fault struct {
	name   string
	action etcdtest.Action
	stream bool // can happen on a stream
	answer bool
}

func faults() []fault {
	fs := []fault{
		{"RequestLost", etcdtest.LoseRequest(), true, false},
		{"RequestLate", etcdtest.DelayRequest(acquireTTL / 10), true, false},
		{"RequestLaterThanTheTTL", etcdtest.DelayRequest(2 * acquireTTL), true, false},
		{"RequestHeldUntilAllIsOver", etcdtest.HoldRequest(), true, false},
		{"RequestDoubled", etcdtest.DuplicateRequest(), false, false},
		{"RequestRepeated", etcdtest.RetryRequest(), false, false},
		{"AnswerLost", etcdtest.LoseAnswer(), true, true},
		{"AnswerLate", etcdtest.DelayAnswer(acquireTTL / 10), true, true},
		{"AnswerLaterThanTheTTL", etcdtest.DelayAnswer(2 * acquireTTL), true, true},
	}
	for _, e := range []struct {
		name string
		err  error
	}{
		{"Unavailable", etcdtest.Unavailable},
		{"DeadlineExceeded", status.Error(codes.DeadlineExceeded, "context deadline exceeded")},
		{"Canceled", rpctypes.ErrGRPCCanceled},
		{"NoSpace", rpctypes.ErrGRPCNoSpace},
		{"TooManyRequests", status.Error(codes.ResourceExhausted, "etcdserver: too many requests")},
	} {
		fs = append(fs,
			fault{"RequestRefusedWith" + e.name, etcdtest.FailRequest(e.err), true, false},
			fault{"AnswerReplacedBy" + e.name, etcdtest.DropAnswer(e.err), true, true})
	}
	return fs
}

// step is one kind of request of a campaign.
type step struct {
	method  string
	request etcdtest.Option
	answer  etcdtest.Option
	held    bool // the key, by another, so that the campaign has to watch it
}

func steps() []step {
	every := etcdtest.Skip(0)
	return []step{
		{"LeaseGrant", every, every, false},
		{"Range", etcdtest.Match(asksFor), etcdtest.Match(asksFor), false},
		{"Txn", etcdtest.Match(putsKey), etcdtest.Match(putsKey), false},
		{"Watch", etcdtest.Match(watchesKey), etcdtest.Match(created), true},
	}
}

// How long a fault lasts.
var spans = []string{"once", "for two seconds", "to the end"}

// A01, A02, A03, A05, F07. Each request of a campaign meets each fault: once,
// for two seconds, and until the campaign is called off. It ends with a leader
// that has the right epoch, or with no key.
func TestAcquireLeadsOrLeavesNothing(t *testing.T) {
	for _, step := range steps() {
		for _, f := range faults() {
			if step.method == "Watch" && !f.stream {
				continue
			}
			t.Run(step.method+f.name, func(t *testing.T) {
				etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
					for _, shared := range []bool{false, true} {
						for _, span := range spans {
							t.Logf("shared lease: %v, the fault happens %s", shared, span)
							acquireUnder(newCandidacy(t, s, shared), step, f, span)
						}
					}
				})
			})
		}
	}
}

func acquireUnder(x *candidacy, step step, f fault, span string) {
	t := x.t
	t.Helper()
	if step.method != "LeaseGrant" {
		x.keep()
	}
	var holder *tenure.Term
	if step.held {
		holder = lead(t, newElector(t, x.s.Client(), nil))
	}
	only := []etcdtest.Option{step.request}
	if f.answer {
		only[0] = step.answer
	}
	if span == "once" {
		only = append(only, etcdtest.Times(1))
	}
	rule := x.c.Faults.On(step.method, f.action, only...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	won := campaign(ctx, x.e)
	etcdtest.Await(t, acquireTTL, "the fault", rule.Fired())
	x.noise()
	if holder != nil {
		require.NoError(t, holder.Resign())
	}
	switch span {
	case "for two seconds":
		time.Sleep(2 * time.Second)
		rule.Stop()
	case "to the end":
		time.Sleep(2 * time.Second)
		cancel()
	}
	o := etcdtest.Await(t, 2*acquireTTL, "Campaign", won)
	rule.Stop()
	if span == "to the end" && o.err != nil {
		require.ErrorIs(t, o.err, context.Canceled)
	} else {
		require.NoError(t, o.err)
		x.leads(o.term)
		require.NoError(t, o.term.Resign())
	}
	rule.Release()
	time.Sleep(2 * acquireTTL) // until all that was late has arrived
	x.clean()
}

// cancelPoint is a message at which a campaign can be called off. Those of a
// follower come while another holds the key, or just after.
type cancelPoint struct {
	name     string
	method   string
	hold     etcdtest.Action
	only     etcdtest.Option
	follower bool
	resigns  bool // the holder, so that the message comes
	slow     bool // the campaign, so that it has to renew before it can lead
}

func cancelPoints() []cancelPoint {
	request, answer := etcdtest.HoldRequest(), etcdtest.HoldAnswer()
	keys := etcdtest.Match(asksFor)
	creates, confirmation := etcdtest.Match(putsKey), etcdtest.Match(confirms)
	all := etcdtest.Skip(0)
	return []cancelPoint{
		{"FirstReadSent", "Range", request, keys, false, false, false},
		{"FirstReadAnswered", "Range", answer, keys, false, false, false},
		{"GrantSent", "LeaseGrant", request, all, false, false, false},
		{"GrantAnswered", "LeaseGrant", answer, all, false, false, false},
		{"PutSent", "Txn", request, creates, false, false, false},
		{"PutAnswered", "Txn", answer, creates, false, false, false},
		{"RenewalSentBeforeLeading", "LeaseKeepAlive", request, all, false, false, true},
		{"RenewalAnsweredBeforeLeading", "LeaseKeepAlive", answer, all, false, false, true},
		{"ConfirmationSentBeforeLeading", "Txn", request, confirmation, false, false, true},
		{"ConfirmationAnsweredBeforeLeading", "Txn", answer, confirmation, false, false, true},
		{"ReadSentWhileFollowing", "Range", request, keys, true, false, false},
		{"ReadAnsweredWhileFollowing", "Range", answer, keys, true, false, false},
		{"WatchSent", "Watch", request, etcdtest.Match(watchesKey), true, false, false},
		{"WatchAnswered", "Watch", answer, etcdtest.Match(created), true, false, false},
		{"RenewalSentWhileFollowing", "LeaseKeepAlive", request, all, true, false, false},
		{"RenewalAnsweredWhileFollowing", "LeaseKeepAlive", answer, all, true, false, false},
		{"ConfirmationSentWhileFollowing", "Txn", request, confirmation, true, false, false},
		{"ConfirmationAnsweredWhileFollowing", "Txn", answer, confirmation, true, false, false},
		{"DeletionSeen", "Watch", answer, etcdtest.Deletes(key), true, true, false},
		{"PutSentAfterFollowing", "Txn", request, creates, true, true, false},
		{"PutAnsweredAfterFollowing", "Txn", answer, creates, true, true, false},
	}
}

// A03. At each point the message is let go at once, long after the campaign, or
// never.
func TestCancelledCampaignLeavesNothing(t *testing.T) {
	for _, p := range cancelPoints() {
		t.Run(p.name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				for _, shared := range []bool{false, true} {
					for _, release := range []string{"at once", "late", "never"} {
						t.Logf("shared lease: %v, the message goes on %s", shared, release)
						x := newCandidacy(t, s, shared)
						if p.method != "LeaseGrant" && !p.slow {
							x.keep()
						}
						var holder *tenure.Term
						if p.follower {
							holder = lead(t, newElector(t, s.Client(), nil))
						}
						ctx, cancel := context.WithCancel(t.Context())
						var won <-chan outcome
						if p.slow {
							won = x.dawdle(ctx, false)
						}
						rule := x.c.Faults.Next(p.method, p.hold, p.only)
						if !p.slow {
							won = campaign(ctx, x.e)
						}
						if p.resigns {
							etcdtest.Eventually(t, acquireTTL, "State", tenure.Led, func() tenure.State { return x.e.Status().State })
							require.NoError(t, holder.Resign())
						}
						etcdtest.Await(t, acquireTTL, p.method, rule.Fired())
						cancel()
						if release == "at once" {
							rule.Release()
						}
						o := etcdtest.Await(t, 2*time.Second, "Campaign", won)
						require.Nil(t, o.term)
						require.ErrorIs(t, o.err, context.Canceled)
						require.Nil(t, x.e.Term())
						require.Equal(t, tenure.Idle, x.e.Status().State)
						if holder != nil {
							require.NoError(t, holder.Resign())
						}
						if release == "late" {
							time.Sleep(2 * acquireTTL)
							rule.Release()
						}
						x.clean()
					}
				}
			})
		})
	}
}

// A03. A key that was put but may not become a term is withdrawn, and what
// becomes of the withdrawal decides nothing either.
func TestFailedWithdrawalLeavesNothing(t *testing.T) {
	for _, f := range faults() {
		t.Run(f.name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				for _, shared := range []bool{false, true} {
					t.Logf("shared lease: %v", shared)
					x := newCandidacy(t, s, shared)
					withdrawal := x.c.Faults.On("Txn", f.action, etcdtest.Match(deletesKey))
					ctx, cancel := context.WithCancel(t.Context())
					won := x.dawdle(ctx, true)
					cancel()
					etcdtest.Await(t, acquireTTL, "the withdrawal", withdrawal.Fired())
					time.AfterFunc(2*time.Second, withdrawal.Release)
					o := etcdtest.Await(t, acquireTTL, "Campaign", won)
					require.ErrorIs(t, o.err, context.Canceled)
					time.Sleep(2 * acquireTTL)
					x.clean()
				}
			})
		})
	}
}

// A01. The put arrives long after its campaign has ended, whichever way it was
// made. On a lease of its own it is refused; a shared lease would keep it for
// ever, so it is swept as soon as it is seen.
func TestLatePutDoesNotStay(t *testing.T) {
	for _, try := range []struct {
		name string
		call func(ctx context.Context, e *tenure.Elector) error
	}{
		{"AfterCampaign", func(ctx context.Context, e *tenure.Elector) error { _, err := e.Campaign(ctx); return err }},
		{"AfterTryCampaign", func(ctx context.Context, e *tenure.Elector) error { _, err := e.TryCampaign(ctx); return err }},
		{"AfterRun", func(ctx context.Context, e *tenure.Elector) error { return e.Run(ctx, nil) }},
	} {
		t.Run(try.name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				for _, shared := range []bool{false, true} {
					t.Logf("shared lease: %v", shared)
					x := newCandidacy(t, s, shared)
					x.keep()
					put := x.c.Faults.Next("Txn", etcdtest.HoldRequest(), etcdtest.Match(putsKey))
					ctx, cancel := context.WithCancel(t.Context())
					ended := make(chan error, 1)
					go func() { ended <- try.call(ctx, x.e) }()
					etcdtest.Await(t, time.Second, "the put", put.Fired())
					cancel()
					require.ErrorIs(t, etcdtest.Await(t, time.Second, "the campaign", ended), context.Canceled)
					time.Sleep(time.Minute)

					ctx, cancel = context.WithCancel(t.Context())
					seen := s.Admin().Watch(ctx, key)
					put.Release()
					if shared {
						require.True(t, etcdtest.Await(t, time.Second, "the late put", seen).Events[0].IsCreate())
						require.EqualValues(t, 0, etcdtest.Await(t, time.Second, "the clean-up", seen).Events[0].Kv.CreateRevision)
					}
					time.Sleep(time.Second)
					require.Empty(t, s.Keys(key))
					cancel()
					x.clean()
				}
			})
		})
	}
}

// A01. Who cleans up after one campaign spares what belongs to others: to a
// later campaign on the same lease, or to another process.
func TestCleanUpSparesTheLiving(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		x := newCandidacy(t, s, true)
		x.keep()
		put := x.c.Faults.Next("Txn", etcdtest.HoldRequest(), etcdtest.Match(putsKey))
		ctx, cancel := context.WithCancel(t.Context())
		won := campaign(ctx, x.e)
		etcdtest.Await(t, time.Second, "the put", put.Fired())
		cancel()
		require.Error(t, etcdtest.Await(t, time.Second, "Campaign", won).err)

		ours := lead(t, x.e)
		time.Sleep(5 * acquireTTL)
		x.leads(ours)
		put.Release() // now it loses against the term
		time.Sleep(5 * acquireTTL)
		x.leads(ours)
		require.NoError(t, ours.Resign())

		theirs := lead(t, newElector(t, s.Client(), nil))
		time.Sleep(5 * acquireTTL)
		require.NoError(t, theirs.Verify(t.Context()))
		require.Equal(t, theirs.Epoch(), tenure.Epoch(s.Keys(key)[0].CreateRevision))
	})
}

// A02. etcd's client repeats a put by itself when the server reports a deadline,
// and tells only what became of the second one. The first can still be on its
// way when the campaign has ended.
func TestRefusedRepetitionOfAPutProvesNothing(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		for _, shared := range []bool{false, true} {
			t.Logf("shared lease: %v", shared)
			x := newCandidacy(t, s, shared)
			x.keep()
			second := x.c.Faults.On("Txn", etcdtest.FailRequest(rpctypes.ErrGRPCRequestTooManyRequests), etcdtest.Match(putsKey))
			first := x.c.Faults.Next("Txn", etcdtest.FailRequest(rpctypes.ErrGRPCDeadlineExceeded), etcdtest.Match(putsKey))
			ctx, cancel := context.WithCancel(t.Context())
			won := campaign(ctx, x.e)
			etcdtest.Await(t, time.Second, "the first put", first.Fired())
			etcdtest.Await(t, time.Second, "the second put", second.Fired())
			time.Sleep(time.Millisecond)
			cancel()
			require.ErrorIs(t, etcdtest.Await(t, time.Second, "Campaign", won).err, context.Canceled)
			second.Stop()

			put := x.firstPut()
			_, err := pb.NewKVClient(s.Admin().ActiveConnection()).Txn(t.Context(), put)
			if shared {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, rpctypes.Error(err), rpctypes.ErrLeaseNotFound)
			}
			x.clean()
		}
	})
}

// A07. What was spent before the win does not shorten the term: it is renewed
// first.
func TestTermBeginsWithTimeLeft(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		x := newCandidacy(t, s, false)
		o := etcdtest.Await(t, time.Second, "Campaign", x.dawdle(t.Context(), false))
		require.NoError(t, o.err)
		x.leads(o.term)
		require.NoError(t, o.term.Resign())
	})
}

// A05. The key is there, but the lease that it is on cannot be renewed.
func TestPutOnADyingLeaseIsNoTerm(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		x := newCandidacy(t, s, false)
		x.c.Faults.Next("LeaseGrant", etcdtest.DelayAnswer(900*time.Millisecond))
		put := x.c.Faults.Next("Txn", etcdtest.DelayAnswer(900*time.Millisecond), etcdtest.Match(putsKey))
		x.c.Faults.On("LeaseKeepAlive", etcdtest.LoseRequest())
		won := campaign(t.Context(), x.e)
		etcdtest.Await(t, acquireTTL, "the put", put.Fired())
		first := s.Keys(key)[0]
		o := etcdtest.Await(t, acquireTTL, "Campaign", won)
		require.NoError(t, o.err)
		require.Greater(t, int64(o.term.Epoch()), first.CreateRevision)
		require.NotEqual(t, first.Lease, int64(o.term.Fence().Lease))
		x.leads(o.term)
		require.NoError(t, o.term.Resign())
	})
}

// A01. The key appears with our candidate id, but on a lease that was given up
// for another one meanwhile.
func TestPutOfAnEarlierLeaseIsNoTerm(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		x := newCandidacy(t, s, false)
		puts := x.c.Faults.On("Txn", etcdtest.FailRequest(etcdtest.Unavailable), etcdtest.Match(putsKey))
		renewals := x.c.Faults.On("LeaseKeepAlive", etcdtest.LoseAnswer()) // which keep the lease alive
		won := campaign(t.Context(), x.e)
		etcdtest.Await(t, time.Second, "the put", puts.Fired())
		first := x.firstPut()
		lease := first.Success[0].GetRequestPut().Lease
		etcdtest.Eventually(t, 2*acquireTTL, "a put on another lease", true, func() bool {
			for _, m := range x.c.Faults.Log("Txn") {
				if r, ok := m.Body.(*pb.TxnRequest); ok && putsKey(r) && r.Success[0].GetRequestPut().Lease != lease {
					return true
				}
			}
			return false
		})
		renewals.Stop()
		_, err := pb.NewKVClient(s.Admin().ActiveConnection()).Txn(t.Context(), first)
		require.NoError(t, err)
		puts.Stop()
		o := etcdtest.Await(t, 2*acquireTTL, "Campaign", won)
		require.NoError(t, o.err)
		require.NotEqual(t, lease, int64(o.term.Fence().Lease))
		x.leads(o.term)
		time.Sleep(3 * acquireTTL)
		x.leads(o.term)
		require.NoError(t, o.term.Resign())
		x.clean()
	})
}

// A04. A follower's lease ends while it waits, by force or because nobody could
// renew it.
func TestFollowerWhoseLeaseEndsStillWins(t *testing.T) {
	for _, loss := range []struct {
		name string
		end  func(t *testing.T, s *etcdtest.Server, c *etcdtest.Client, keep clientv3.LeaseID)
	}{
		{"Revoked", func(t *testing.T, s *etcdtest.Server, _ *etcdtest.Client, keep clientv3.LeaseID) {
			r, err := s.Admin().Leases(t.Context())
			require.NoError(t, err)
			require.Len(t, r.Leases, 2)
			for _, l := range r.Leases {
				if l.ID != keep {
					_, err := s.Admin().Revoke(t.Context(), l.ID)
					require.NoError(t, err)
				}
			}
		}},
		{"Expired", func(_ *testing.T, _ *etcdtest.Server, c *etcdtest.Client, _ clientv3.LeaseID) {
			c.Link.Cut()
			time.Sleep(2 * acquireTTL)
			c.Link.Heal()
		}},
	} {
		t.Run(loss.name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				for _, shared := range []bool{false, true} {
					t.Logf("shared lease: %v", shared)
					holder := lead(t, newElector(t, s.Client(), nil))
					x := newCandidacy(t, s, shared)
					won := campaign(t.Context(), x.e)
					time.Sleep(acquireTTL)
					loss.end(t, s, x.c, holder.Fence().Lease)
					time.Sleep(acquireTTL)
					require.NoError(t, holder.Resign())
					o := etcdtest.Await(t, acquireTTL, "Campaign", won)
					require.NoError(t, o.err)
					x.leads(o.term)
					require.NoError(t, o.term.Resign())
				}
			})
		})
	}
}

// A06. etcd is away for so long that every lease ends. The same calls of Run go
// on with new ones.
func TestExpiredLeaseIsNotUsedAgain(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		terms := make(chan *tenure.Term, 10)
		var ended [2]<-chan error
		ctx, cancel := context.WithCancel(t.Context())
		for i := range ended {
			e := newElector(t, s.Client(), &tenure.Options{TTL: acquireTTL})
			ended[i] = startRun(ctx, e, func(ctx context.Context, term *tenure.Term) error {
				terms <- term
				<-ctx.Done()
				return nil
			})
		}
		last := etcdtest.Await(t, acquireTTL, "Run", terms)
		for range 3 {
			time.Sleep(time.Minute)
			require.True(t, last.Valid())
			s.Restart(5 * acquireTTL)
			next := etcdtest.Await(t, time.Minute, "Run", terms) // gRPC dials ever more slowly
			require.ErrorIs(t, last.Err(), tenure.LeaseExpired)
			require.Greater(t, next.Epoch(), last.Epoch())
			last = next
		}
		cancel()
		for _, ended := range ended {
			require.ErrorIs(t, etcdtest.Await(t, acquireTTL, "Run", ended), context.Canceled)
		}
		require.Empty(t, terms)
		require.Empty(t, s.Keys(key))
	})
}

// A08. The lease does not say which of its electors leads.
func TestElectorsOfOneKeyOnOneLeaseCompete(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		lease, err := tenure.NewLease(c.Client, &tenure.LeaseOptions{TTL: acquireTTL})
		require.NoError(t, err)
		const n = 5
		won := make(chan *tenure.Term, n)
		ctx, cancel := context.WithCancel(t.Context())
		for range n {
			e := newElector(t, c, &tenure.Options{Identity: "all the same", Lease: lease})
			go func() {
				for ctx.Err() == nil {
					if term, err := e.Campaign(ctx); err == nil {
						won <- term
						<-term.Context().Done()
					}
				}
				won <- nil
			}()
		}
		var last tenure.Epoch
		for range 4 * n {
			term := etcdtest.Await(t, acquireTTL, "Campaign", won)
			time.Sleep(acquireTTL)
			require.Empty(t, won, "two electors lead")
			require.True(t, term.Valid())
			require.Greater(t, term.Epoch(), last)
			require.EqualValues(t, s.Keys(key)[0].CreateRevision, term.Epoch())
			require.Equal(t, 1, s.Leases())
			last = term.Epoch()
			// Whoever contends first next time has contended, and does not win.
			c.Faults.Next("Txn", etcdtest.FailRequest(etcdtest.Unavailable), etcdtest.Match(putsKey))
			require.NoError(t, term.Resign())
		}
		cancel()
		for left := n; left > 0; {
			if term := etcdtest.Await(t, acquireTTL, "Campaign", won); term != nil {
				require.NoError(t, term.Resign())
			} else {
				left--
			}
		}
		require.Empty(t, s.Keys(key))
		require.Zero(t, s.Leases())
	})
}

// A11. A full etcd keeps its leader, elects nobody, and says so.
func TestFullDatabaseElectsNobody(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		alarm := func(a pb.AlarmRequest_AlarmAction) {
			t.Helper()
			_, err := pb.NewMaintenanceClient(s.Admin().ActiveConnection()).Alarm(t.Context(),
				&pb.AlarmRequest{Action: a, MemberID: uint64(s.Etcd().MemberID()), Alarm: pb.AlarmType_NOSPACE})
			require.NoError(t, err)
		}
		holder := lead(t, newElector(t, s.Client(), &tenure.Options{TTL: acquireTTL}))
		alarm(pb.AlarmRequest_ACTIVATE)
		for _, shared := range []bool{false, true} {
			t.Logf("shared lease: %v", shared)
			x := newCandidacy(t, s, shared)
			ctx, cancel := context.WithTimeout(t.Context(), 5*acquireTTL)
			o := etcdtest.Await(t, 6*acquireTTL, "Campaign", campaign(ctx, x.e))
			cancel()
			require.ErrorIs(t, o.err, context.DeadlineExceeded)
			require.ErrorIs(t, o.err, rpctypes.ErrNoSpace)
			require.True(t, holder.Valid())
		}
		require.NoError(t, holder.Resign())
		require.Zero(t, s.Leases())

		x := newCandidacy(t, s, false)
		won := campaign(t.Context(), x.e)
		time.Sleep(5 * acquireTTL)
		require.Empty(t, s.Keys(key))
		alarm(pb.AlarmRequest_DEACTIVATE)
		o := etcdtest.Await(t, 2*acquireTTL, "Campaign", won)
		require.NoError(t, o.err)
		x.leads(o.term)
		require.NoError(t, o.term.Resign())
	})
}

// A12. What was proposed to an etcd leader that stops then is lost, and etcd
// itself says so only after seven seconds.
func TestEtcdLeaderStopsBeforeThePut(t *testing.T) {
	cluster := etcdtest.StartCluster(t, 3)
	c := cluster.Client()
	put := c.Faults.Next("Txn", etcdtest.HoldRequest(), etcdtest.Match(putsKey))
	won := campaign(t.Context(), newElector(t, c, &tenure.Options{TTL: 5 * time.Second}))
	etcdtest.Await(t, 5*time.Second, "the put", put.Fired())
	cluster.Stop(cluster.Leader())
	put.Release()
	o := etcdtest.Await(t, 5*time.Second, "Campaign", won)
	require.NoError(t, o.err)
	require.Equal(t, o.term.Epoch(), tenure.Epoch(cluster.Keys(key)[0].CreateRevision))
	require.NoError(t, o.term.Resign())
	require.Empty(t, cluster.Keys(key))
}

// A13. The network swallows everything, so nothing ever fails by itself: each
// call ends with its context or at a bound of its own.
func TestNothingHangsWithoutAnswers(t *testing.T) {
	const patience = 2 * time.Second // of contexts
	const cleanUp = acquireTTL / 2   // of a campaign that may have put the key
	none := context.Background()
	for _, tt := range []struct {
		name  string
		leads bool
		bound time.Duration
		call  func(ctx context.Context, x *candidacy, term *tenure.Term) error
	}{
		{"Campaign", false, patience + cleanUp, func(ctx context.Context, x *candidacy, _ *tenure.Term) error {
			_, err := x.e.Campaign(ctx)
			return err
		}},
		{"TryCampaign", false, patience + cleanUp, func(ctx context.Context, x *candidacy, _ *tenure.Term) error {
			_, err := x.e.TryCampaign(ctx)
			return err
		}},
		{"Run", false, patience + cleanUp, func(ctx context.Context, x *candidacy, _ *tenure.Term) error {
			return x.e.Run(ctx, nil)
		}},
		{"Lookup", false, 3 * time.Second, func(_ context.Context, x *candidacy, _ *tenure.Term) error {
			_, err := tenure.Lookup(none, x.c.Client, key)
			return err
		}},
		{"Observe", false, patience, func(ctx context.Context, x *candidacy, _ *tenure.Term) error {
			for range tenure.Observe(ctx, x.c.Client, key) {
			}
			return ctx.Err()
		}},
		{"Evict", true, patience, func(ctx context.Context, x *candidacy, term *tenure.Term) error {
			return tenure.Evict(ctx, x.c.Client, term.Fence(), nil)
		}},
		{"EvictByForce", true, patience, func(ctx context.Context, x *candidacy, term *tenure.Term) error {
			return tenure.Evict(ctx, x.c.Client, term.Fence(), &tenure.EvictOptions{Force: true, Patience: -1})
		}},
		{"Verify", true, 3 * time.Second, func(_ context.Context, _ *candidacy, term *tenure.Term) error {
			return term.Verify(none)
		}},
		{"Announce", true, 3 * time.Second, func(_ context.Context, _ *candidacy, term *tenure.Term) error {
			return term.Announce(none, "here", nil)
		}},
		{"Put", true, patience, func(ctx context.Context, x *candidacy, term *tenure.Term) error {
			_, err := term.KV(x.c.Client).Put(ctx, "k", "v")
			return err
		}},
		{"Resign", true, min(acquireTTL, 2*time.Second), func(_ context.Context, _ *candidacy, term *tenure.Term) error {
			return term.Resign()
		}},
		{"Close", true, patience, func(ctx context.Context, x *candidacy, _ *tenure.Term) error {
			if x.opts.Lease == nil {
				return errors.New("there is nothing to close")
			}
			return x.opts.Lease.Close(ctx)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				for _, shared := range []bool{false, true} {
					t.Logf("shared lease: %v", shared)
					x := newCandidacy(t, s, shared)
					x.keep()
					var term *tenure.Term
					if tt.leads {
						term = lead(t, x.e)
					}
					x.c.Link.Cut()
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					ended := make(chan error, 1)
					start := time.Now()
					go func() { ended <- tt.call(ctx, x, term) }()
					require.Error(t, etcdtest.Await(t, time.Minute, tt.name, ended))
					require.LessOrEqual(t, time.Since(start), tt.bound)
					cancel()
					x.c.Link.Heal()
					if term != nil {
						require.NoError(t, term.Resign())
					}
					if x.kept != nil {
						require.NoError(t, x.kept.Resign())
					}
					time.Sleep(acquireTTL + time.Second)
					require.Empty(t, s.Keys("/"))
					require.Zero(t, s.Leases())
				}
			})
		})
	}
}

// A14. Nothing listens at the endpoints. A campaign that has no patience says
// what is wrong, and not only that its time is over.
func TestCampaignSaysThatEtcdCannotBeReached(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		for _, shared := range []bool{false, true} {
			t.Logf("shared lease: %v", shared)
			x := newCandidacy(t, s, shared)
			x.c.Link.Refuse()
			for _, patience := range []time.Duration{500 * time.Millisecond, time.Second, 10 * time.Second} {
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				_, err := x.e.Campaign(ctx)
				cancel()
				require.Equal(t, patience, time.Since(start))
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorContains(t, err, "connect")
			}
		}
	})
}

// A18. A process that was killed is started again under the same name, on the
// same host. It does not take its predecessor's term for its own.
func TestRestartedProcessIsNotItsPredecessor(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		opts := &tenure.Options{Identity: "node-1", Address: "10.0.0.7:8443", TTL: acquireTTL}
		before := s.Client()
		old := lead(t, newElector(t, before, opts))
		before.Link.Cut()

		e := newElector(t, s.Client(), opts)
		_, err := e.TryCampaign(t.Context())
		require.ErrorIs(t, err, tenure.ErrHeld)
		won := campaign(t.Context(), e)
		for time.Now().Before(old.ValidUntil()) {
			require.Empty(t, won)
			require.Nil(t, e.Term())
			require.NotEqual(t, tenure.Leading, e.Status().State)
			time.Sleep(100 * time.Millisecond)
		}
		o := etcdtest.Await(t, acquireTTL, "Campaign", won)
		require.NoError(t, o.err)
		require.Greater(t, o.term.Epoch(), old.Epoch())
		require.NotEqual(t, o.term.Fence().Lease, old.Fence().Lease)
		require.ErrorIs(t, old.Err(), tenure.LeaseExpired)
		before.Link.Heal()
		_ = old.Resign()
		require.NoError(t, o.term.Verify(t.Context()), "the predecessor has cleaned up too much")
		require.NoError(t, o.term.Resign())
	})
}

func TestTryCampaignDoesNotWait(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		for _, shared := range []bool{false, true} {
			t.Logf("shared lease: %v", shared)
			x := newCandidacy(t, s, shared)
			term, err := x.e.TryCampaign(t.Context())
			require.NoError(t, err)
			x.leads(term)
			require.NoError(t, term.Resign())

			holder := lead(t, newElector(t, s.Client(), &tenure.Options{Identity: "other", Address: "there"}))
			grants := x.c.Faults.Count("LeaseGrant")
			for range 100 {
				start := time.Now()
				term, err = x.e.TryCampaign(t.Context())
				require.Zero(t, time.Since(start))
				require.Nil(t, term)
				require.ErrorIs(t, err, tenure.ErrHeld)
				leader, ok := tenure.LeaderOf(err)
				require.True(t, ok)
				require.Equal(t, holder.Fence(), leader.Fence)
				require.Equal(t, "other", leader.Identity)
				require.Equal(t, "there", leader.Address)
				require.Equal(t, tenure.Idle, x.e.Status().State)
			}
			require.Equal(t, grants, x.c.Faults.Count("LeaseGrant"), "a lease was granted for nothing")
			require.NoError(t, holder.Resign())

			for range 3 { // who lets go may try again at once
				start := time.Now()
				term, err = x.e.TryCampaign(t.Context())
				require.NoError(t, err)
				require.Zero(t, time.Since(start))
				require.NoError(t, term.Resign())
				require.Zero(t, s.Leases())
			}
		}
	})
}

// F10. The key carries our candidate id, but the campaign does not know it yet.
func TestNoTermBeforeTheWin(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		x := newCandidacy(t, s, false)
		holder := lead(t, newElector(t, s.Client(), nil))
		put := x.c.Faults.Next("Txn", etcdtest.DelayAnswer(500*time.Millisecond), etcdtest.Match(putsKey))
		won := campaign(t.Context(), x.e)
		time.Sleep(acquireTTL)
		require.Equal(t, tenure.Led, x.e.Status().State)
		require.Nil(t, x.e.Term())
		require.NoError(t, holder.Resign())
		etcdtest.Await(t, time.Second, "the put", put.Fired())
		require.Len(t, s.Keys(key), 1)
		require.Nil(t, x.e.Term())
		require.NotEqual(t, tenure.Leading, x.e.Status().State)
		o := etcdtest.Await(t, time.Second, "Campaign", won)
		require.NoError(t, o.err)
		x.leads(o.term)
		require.NoError(t, o.term.Resign())
		require.Nil(t, x.e.Term())
	})
}

// L31. One lease serves a campaign for as long as it takes, however often it
// loses.
func TestLostContestsDoNotLeakLeases(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		winner := newElector(t, s.Client(), &tenure.Options{TTL: acquireTTL})
		x := newCandidacy(t, s, false)
		x.c.Faults.On("Txn", etcdtest.DelayRequest(20*time.Millisecond), etcdtest.Match(putsKey))
		ctx, cancel := context.WithCancel(t.Context())
		var won <-chan outcome
		for i := range 300 {
			term, err := winner.TryCampaign(t.Context())
			require.NoError(t, err)
			if i == 0 {
				won = campaign(ctx, x.e)
			}
			time.Sleep(40 * time.Millisecond)
			require.LessOrEqual(t, s.Leases(), 2)
			require.NoError(t, term.Resign())
			time.Sleep(5 * time.Millisecond)
		}
		require.Empty(t, won)
		cancel()
		require.ErrorIs(t, etcdtest.Await(t, time.Second, "Campaign", won).err, context.Canceled)
		require.Greater(t, x.c.Faults.Count("Txn"), 15, "it has not contended")
		require.Equal(t, 1, x.c.Faults.Count("LeaseGrant"))
		require.Zero(t, s.Leases())
	})
}

// L33. A store that speaks etcd's language but has no leases.
func TestStoreWithoutLeasesIsRefused(t *testing.T) {
	unimplemented := status.Error(codes.Unimplemented, "unknown service etcdserverpb.Lease")
	for _, method := range []string{"LeaseGrant", "LeaseKeepAlive"} {
		t.Run(method, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				for _, shared := range []bool{false, true} {
					t.Logf("shared lease: %v", shared)
					x := newCandidacy(t, s, shared)
					x.c.Faults.On(method, etcdtest.FailRequest(unimplemented))
					err := etcdtest.Await(t, acquireTTL, "Run", startRun(t.Context(), x.e, untilTold))
					require.ErrorContains(t, err, "unknown service etcdserverpb.Lease")
					time.Sleep(acquireTTL + time.Second)
					require.Empty(t, s.Keys(key))
				}
			})
		})
	}
}

// F06. The resources have seen higher epochs than etcd would hand out next.
func TestEpochIsAboveMinEpoch(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		for _, shared := range []bool{false, true} {
			t.Logf("shared lease: %v", shared)
			x := newCandidacy(t, s, shared)
			x.keep()
			r, err := s.Admin().Get(t.Context(), key)
			require.NoError(t, err)
			next := tenure.Epoch(r.Header.Revision + 1)

			opts := *x.opts
			opts.MinEpoch = next
			e := newElector(t, x.c, &opts)
			for name, call := range map[string]func() error{
				"Campaign":    func() error { _, err := e.Campaign(t.Context()); return err },
				"TryCampaign": func() error { _, err := e.TryCampaign(t.Context()); return err },
				"Run":         func() error { return e.Run(t.Context(), nil) },
			} {
				require.ErrorIs(t, call(), tenure.ErrRolledBack, name)
				require.Equal(t, tenure.Idle, e.Status().State)
			}
			for _, m := range x.c.Faults.Log("Txn") {
				r, ok := m.Body.(*pb.TxnRequest)
				require.False(t, ok && putsKey(r), "the key was put")
			}

			// The look before the put is for courtesy. The one after it counts.
			x.c.Faults.Next("Range", etcdtest.DropAnswer(status.Error(codes.Internal, "stream terminated")), etcdtest.Match(asksFor), etcdtest.Skip(1))
			_, err = e.Campaign(t.Context())
			require.ErrorIs(t, err, tenure.ErrRolledBack)
			require.Empty(t, s.Keys(key))

			opts.MinEpoch = next // which that put has used up
			term := lead(t, newElector(t, x.c, &opts))
			require.Greater(t, term.Epoch(), next)
			require.NoError(t, term.Resign())
			if x.kept != nil {
				require.NoError(t, x.kept.Resign())
			}
			time.Sleep(acquireTTL + time.Second) // for a grant whose campaign was already over
			require.Zero(t, s.Leases())
		}
	})
}

// F06. A snapshot is restored. An elector does not lead with an epoch that it has
// seen before, its own or another's, and does if revisions were bumped.
func TestRestoredEtcdDoesNotRepeatEpochs(t *testing.T) {
	for _, bump := range []int64{0, 1000} {
		t.Run(fmt.Sprintf("BumpedBy%d", bump), func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				x := newCandidacy(t, s, false)
				y := newElector(t, s.Client(), x.opts) // only watches
				x.noise()
				s.Stop()
				snapshot := s.Snapshot()
				s.Start()
				for range 10 {
					x.noise()
				}
				term := lead(t, x.e)
				last := term.Epoch()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				_, err := y.Campaign(ctx)
				cancel()
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.NoError(t, term.Resign())
				s.Stop()
				s.Restore(snapshot)
				if bump > 0 {
					s.Bump(bump)
				}
				s.Start()

				for _, e := range []*tenure.Elector{x.e, y} {
					for range 2 { // it stays so
						ctx, cancel := context.WithTimeout(t.Context(), 2*acquireTTL)
						term, err := e.Campaign(ctx)
						cancel()
						if bump == 0 {
							require.ErrorIs(t, err, tenure.ErrRolledBack)
							require.ErrorContains(t, err, fmt.Sprint("above ", last))
							continue
						}
						require.NoError(t, err)
						require.Greater(t, term.Epoch(), last)
						last = term.Epoch()
						require.NoError(t, term.Resign())
					}
				}
				time.Sleep(acquireTTL + time.Second)
				require.Empty(t, s.Keys(key))
				require.Zero(t, s.Leases())
			})
		})
	}
}

// F06. The restored etcd knows a holder where the elector knows a vacancy of a
// later revision. It finds out by losing once.
func TestRestoredHolderIsSeen(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		_, err := s.Admin().Put(t.Context(), key, "by hand, so that nobody renews it")
		require.NoError(t, err)
		s.Stop()
		snapshot := s.Snapshot()
		s.Start()
		_, err = s.Admin().Delete(t.Context(), key)
		require.NoError(t, err)

		x := newCandidacy(t, s, false)
		for range 100 {
			x.noise()
		}
		term := lead(t, x.e)
		require.NoError(t, term.Resign())
		ctx, cancel := context.WithCancel(t.Context())
		won := campaign(ctx, x.e) // which lets others go first
		etcdtest.Eventually(t, time.Second, "State", tenure.Vacant, func() tenure.State { return x.e.Status().State })
		s.Stop()
		s.Restore(snapshot)
		s.Start()
		brake := x.c.Faults.On("Txn", etcdtest.LoseRequest(), etcdtest.Match(putsKey), etcdtest.Skip(5))
		time.Sleep(2 * acquireTTL)
		require.Zero(t, brake.Hits(), "it goes on trying")
		require.Equal(t, tenure.Led, x.e.Status().State)
		cancel()
		require.ErrorIs(t, etcdtest.Await(t, time.Second, "Campaign", won).err, context.Canceled)
	})
}

func TestNewSendsNothing(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		for _, shared := range []bool{false, true} {
			x := newCandidacy(t, s, shared)
			time.Sleep(time.Minute)
			require.Empty(t, x.c.Faults.Log(""))
			require.Equal(t, tenure.Idle, x.e.Status().State)
		}
	})
}

// A02. etcd's client repeats a put by itself when the server reports a deadline,
// and tells nobody. The first of the two can still be on its way when the second
// has won and the term has been resigned.
func TestTwinOfThePutDoesNotStay(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		for _, shared := range []bool{false, true} {
			t.Logf("shared lease: %v", shared)
			x := newCandidacy(t, s, shared)
			x.keep()
			x.c.Faults.Next("Txn", etcdtest.FailRequest(rpctypes.ErrGRPCDeadlineExceeded), etcdtest.Match(putsKey))
			term := lead(t, x.e)
			x.leads(term)
			require.NoError(t, term.Resign())
			_, err := pb.NewKVClient(s.Admin().ActiveConnection()).Txn(t.Context(), x.firstPut())
			if shared {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, rpctypes.Error(err), rpctypes.ErrLeaseNotFound)
			}
			x.clean()
		}
	})
}

package etcdtest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tenure-go/tenure/internal/etcdtest"
)

// within returns a context that ends after d of the bubble's time.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// version is how often the key k has been put.
func version(s *etcdtest.Server) int64 {
	kvs := s.Keys("k")
	if len(kvs) == 0 {
		return 0
	}
	return kvs[0].Version
}

// TestUnary shows for each action what becomes of one Put with a deadline of
// 10 s, and of the next one, which has to succeed.
func TestUnary(t *testing.T) {
	const limit = 10 * time.Second
	refused := status.Error(codes.ResourceExhausted, "etcdtest: refused")
	tests := map[string]struct {
		action  etcdtest.Action
		err     error         // that the caller gets
		took    time.Duration // until it does
		applied int64         // puts that the server has applied by then
		later   int64         // and in the end
	}{
		"DelayRequest":          {etcdtest.DelayRequest(3 * time.Second), nil, 3 * time.Second, 1, 1},
		"DelayRequestTooLong":   {etcdtest.DelayRequest(time.Minute), context.DeadlineExceeded, limit, 0, 1},
		"HoldRequest":           {etcdtest.HoldRequest(), context.DeadlineExceeded, limit, 0, 0},
		"LoseRequest":           {etcdtest.LoseRequest(), context.DeadlineExceeded, limit, 0, 0},
		"FailRequest":           {etcdtest.FailRequest(refused), refused, 0, 0, 0},
		"FailRequestUnavail":    {etcdtest.FailRequest(etcdtest.Unavailable), etcdtest.Unavailable, 0, 0, 0},
		"FailRequestOfEtcd":     {etcdtest.FailRequest(rpctypes.ErrGRPCTimeout), rpctypes.ErrTimeout, 0, 0, 0},
		"RetryRequest":          {etcdtest.RetryRequest(), nil, 0, 2, 2},
		"DuplicateRequest":      {etcdtest.DuplicateRequest(), nil, 0, 2, 2},
		"EditRequest":           {etcdtest.EditRequest(func(r *pb.PutRequest) { r.Key = []byte("other") }), nil, 0, 0, 0},
		"DelayAnswer":           {etcdtest.DelayAnswer(3 * time.Second), nil, 3 * time.Second, 1, 1},
		"DelayAnswerTooLong":    {etcdtest.DelayAnswer(time.Minute), context.DeadlineExceeded, limit, 1, 1},
		"HoldAnswer":            {etcdtest.HoldAnswer(), context.DeadlineExceeded, limit, 1, 1},
		"LoseAnswer":            {etcdtest.LoseAnswer(), context.DeadlineExceeded, limit, 1, 1},
		"DropAnswer":            {etcdtest.DropAnswer(refused), refused, 0, 1, 1},
		"DropAnswerUnavailable": {etcdtest.DropAnswer(etcdtest.Unavailable), etcdtest.Unavailable, 0, 1, 1},
		"EditAnswer":            {etcdtest.EditAnswer(func(*pb.PutResponse) {}), nil, 0, 1, 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				rule := c.Faults.Next("Put", tt.action)
				require.Zero(t, rule.Hits())

				start := time.Now()
				_, err := c.Put(within(t, limit), "k", "v")
				require.Equal(t, tt.took, time.Since(start))
				require.ErrorIs(t, err, tt.err)
				require.Equal(t, tt.applied, version(s))
				require.Equal(t, 1, rule.Hits())
				etcdtest.Await(t, time.Second, "Fired", rule.Fired())

				time.Sleep(2 * time.Minute)
				require.Equal(t, tt.later, version(s))

				_, err = c.Put(within(t, limit), "k", "v")
				require.NoError(t, err)
				require.Equal(t, tt.later+1, version(s))
				require.Equal(t, 2, c.Faults.Count("Put"))
			})
		})
	}
}

func TestHeldRequestIsSentOnReleaseAlthoughTheCallerHasGone(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		hold := c.Faults.Next("Put", etcdtest.HoldRequest())
		_, err := c.Put(within(t, time.Second), "k", "v")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(time.Hour)
		require.Zero(t, version(s))
		hold.Release()
		synctest.Wait()
		require.EqualValues(t, 1, version(s))
	})
}

func TestHeldRequestIsAnsweredToACallerThatWaits(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		hold := c.Faults.Next("Put", etcdtest.HoldRequest())
		revision := make(chan int64, 1)
		go func() {
			r, err := c.Put(t.Context(), "k", "v")
			if err == nil {
				revision <- r.Header.Revision
			}
		}()
		etcdtest.Await(t, time.Second, "Fired", hold.Fired())
		time.Sleep(time.Hour)
		require.Empty(t, revision)
		hold.Release()
		hold.Release()
		got := etcdtest.Await(t, time.Second, "Put", revision)
		require.Equal(t, s.Keys("k")[0].ModRevision, got)
	})
}

func TestHeldAnswerOfAnAppliedRequest(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		hold := c.Faults.Next("Put", etcdtest.HoldAnswer())
		done := make(chan error, 1)
		go func() {
			_, err := c.Put(t.Context(), "k", "v")
			done <- err
		}()
		etcdtest.Await(t, time.Second, "Fired", hold.Fired())
		require.EqualValues(t, 1, version(s))
		time.Sleep(time.Hour)
		require.Empty(t, done)
		hold.Release()
		require.NoError(t, etcdtest.Await(t, time.Second, "Put", done))
	})
}

func TestWhichAnswerARepeatedRequestGets(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		create := func(key string) bool {
			r, err := c.Txn(t.Context()).
				If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
				Then(clientv3.OpPut(key, "v")).
				Commit()
			require.NoError(t, err)
			return r.Succeeded
		}
		c.Faults.Next("Txn", etcdtest.DuplicateRequest())
		require.True(t, create("a"))
		c.Faults.Next("Txn", etcdtest.RetryRequest())
		require.False(t, create("b"))
		require.Len(t, s.Keys(""), 2)
	})
}

func TestEdits(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		c.Faults.Next("Put", etcdtest.EditRequest(func(r *pb.PutRequest) { r.Value = []byte("other") }))
		c.Faults.Next("Put", etcdtest.EditAnswer(func(r *pb.PutResponse) { r.Header.Revision = 42 }))
		r, err := c.Put(t.Context(), "k", "v")
		require.NoError(t, err)
		require.EqualValues(t, 42, r.Header.Revision)
		require.Equal(t, "other", string(s.Keys("k")[0].Value))
	})
}

func TestEtcdsOwnRetriesPassThroughTheFaults(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		c.Faults.On("Range", etcdtest.FailRequest(etcdtest.Unavailable), etcdtest.Times(3))
		_, err := c.Get(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, 4, c.Faults.Count("Range"))
	})
}

func TestErrorsOfTheServerPass(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		rule := c.Faults.Next("Put", etcdtest.LoseAnswer())
		_, err := c.Put(t.Context(), "k", "v", clientv3.WithLease(1))
		require.ErrorIs(t, err, rpctypes.ErrLeaseNotFound)
		require.Zero(t, rule.Hits())
	})
}

func TestRules(t *testing.T) {
	puts := func(t *testing.T, c *etcdtest.Client, keys ...string) (failed []string) {
		t.Helper()
		for _, k := range keys {
			if _, err := c.Put(t.Context(), k, "v"); err != nil {
				failed = append(failed, k)
			}
		}
		return failed
	}
	fail := etcdtest.FailRequest(etcdtest.Unavailable)
	drop := etcdtest.DropAnswer(etcdtest.Unavailable)
	isB := etcdtest.Match(func(r *pb.PutRequest) bool { return string(r.Key) == "b" })

	tests := map[string]struct {
		rules func(*etcdtest.Faults)
		want  []string
	}{
		"Next":        {func(f *etcdtest.Faults) { f.Next("Put", fail) }, []string{"a"}},
		"NextTwo":     {func(f *etcdtest.Faults) { f.Next("Put", fail, etcdtest.Times(2)) }, []string{"a", "b"}},
		"On":          {func(f *etcdtest.Faults) { f.On("Put", fail) }, []string{"a", "b", "c"}},
		"AnyMethod":   {func(f *etcdtest.Faults) { f.On("", fail) }, []string{"a", "b", "c"}},
		"OtherMethod": {func(f *etcdtest.Faults) { f.On("Range", fail) }, nil},
		"Times":       {func(f *etcdtest.Faults) { f.On("Put", fail, etcdtest.Times(2)) }, []string{"a", "b"}},
		"Skip":        {func(f *etcdtest.Faults) { f.On("Put", fail, etcdtest.Skip(2)) }, []string{"c"}},
		"Match":       {func(f *etcdtest.Faults) { f.On("Put", fail, isB) }, []string{"b"}},
		"MatchAnswer": {func(f *etcdtest.Faults) { f.On("Put", drop, isB) }, []string{"b"}},
		"MatchType": {func(f *etcdtest.Faults) {
			f.On("Put", fail, etcdtest.Match(func(*pb.RangeRequest) bool { return true }))
		}, nil},
		"NewestActs": {func(f *etcdtest.Faults) {
			f.On("Put", fail)
			f.Next("Put", etcdtest.DelayRequest(time.Second))
		}, []string{"b", "c"}},
		"Stop": {func(f *etcdtest.Faults) { f.On("Put", fail).Stop() }, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c, other := s.Client(), s.Client()
				tt.rules(c.Faults)
				require.Equal(t, tt.want, puts(t, c, "a", "b", "c"))
				require.Empty(t, puts(t, other, "a", "b", "c"), "faults belong to one client")
			})
		})
	}
}

func TestLog(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		start := time.Now()
		c.Faults.Next("Put", etcdtest.DelayAnswer(time.Second))
		_, err := c.Put(t.Context(), "k", "v")
		require.NoError(t, err)
		c.Faults.Next("Put", etcdtest.FailRequest(etcdtest.Unavailable))
		_, err = c.Put(t.Context(), "k", "v")
		require.Error(t, err)
		_, err = c.Get(t.Context(), "k")
		require.NoError(t, err)

		log := c.Faults.Log("Put")
		require.Len(t, log, 4)
		require.Equal(t, "k", string(log[0].Body.(*pb.PutRequest).Key))
		require.Equal(t, start, log[0].At)
		require.True(t, log[1].Answer)
		require.IsType(t, &pb.PutResponse{}, log[1].Body)
		require.Equal(t, start.Add(time.Second), log[1].At)
		require.ErrorIs(t, log[3].Err, etcdtest.Unavailable)
		require.Nil(t, log[3].Body)
		require.Equal(t, 2, c.Faults.Count("Put"))
		require.Equal(t, 3, c.Faults.Count(""))
	})
}

// keepAlive opens a keep-alive stream of its own, with none of the client's
// logic in between.
func keepAlive(t *testing.T, c *etcdtest.Client, id clientv3.LeaseID) (renew func(), answers <-chan *pb.LeaseKeepAliveResponse, ended <-chan error) {
	t.Helper()
	stream, err := pb.NewLeaseClient(c.ActiveConnection()).LeaseKeepAlive(t.Context())
	require.NoError(t, err)
	got := make(chan *pb.LeaseKeepAliveResponse, 100)
	end := make(chan error, 1)
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				end <- err
				return
			}
			got <- r
		}
	}()
	return func() {
		t.Helper()
		require.NoError(t, stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}))
	}, got, end
}

// TestStream shows for each action what becomes of the first of two renewals,
// sent 5 s apart.
func TestStream(t *testing.T) {
	broken := status.Error(codes.Unavailable, "etcdtest: broken")
	tests := map[string]struct {
		action  etcdtest.Action
		answers []time.Duration // when they arrive
		ended   error
	}{
		"None":             {etcdtest.EditAnswer(func(*pb.LeaseKeepAliveResponse) {}), []time.Duration{0, 5 * time.Second}, nil},
		"DelayRequest":     {etcdtest.DelayRequest(3 * time.Second), []time.Duration{3 * time.Second, 5 * time.Second}, nil},
		"DelayPastNext":    {etcdtest.DelayRequest(7 * time.Second), []time.Duration{7 * time.Second, 7 * time.Second}, nil},
		"HoldRequest":      {etcdtest.HoldRequest(), nil, nil},
		"LoseRequest":      {etcdtest.LoseRequest(), []time.Duration{5 * time.Second}, nil},
		"FailRequest":      {etcdtest.FailRequest(broken), nil, broken},
		"RetryRequest":     {etcdtest.RetryRequest(), []time.Duration{0, 0, 5 * time.Second}, nil},
		"DuplicateRequest": {etcdtest.DuplicateRequest(), []time.Duration{0, 0, 5 * time.Second}, nil},
		"DelayAnswer":      {etcdtest.DelayAnswer(3 * time.Second), []time.Duration{3 * time.Second, 5 * time.Second}, nil},
		"HoldAnswer":       {etcdtest.HoldAnswer(), nil, nil},
		"LoseAnswer":       {etcdtest.LoseAnswer(), []time.Duration{5 * time.Second}, nil},
		"DropAnswer":       {etcdtest.DropAnswer(broken), nil, broken},
		"ReplayAnswer":     {etcdtest.ReplayAnswer(), []time.Duration{0, 0, 5 * time.Second}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				lease, err := c.Grant(t.Context(), 60)
				require.NoError(t, err)
				c.Faults.Next("LeaseKeepAlive", tt.action)
				start := time.Now()
				renew, answers, ended := keepAlive(t, c, lease.ID)
				renew()
				time.AfterFunc(5*time.Second, func() {
					if tt.ended == nil {
						renew()
					}
				})
				for _, want := range tt.answers {
					r := etcdtest.Await(t, time.Minute, "Recv", answers)
					require.Equal(t, want, time.Since(start))
					require.EqualValues(t, 60, r.TTL)
				}
				if tt.ended != nil {
					require.ErrorIs(t, etcdtest.Await(t, time.Minute, "Recv", ended), tt.ended)
					require.Zero(t, c.Faults.Streams("LeaseKeepAlive"))
					return
				}
				time.Sleep(10 * time.Second)
				require.Empty(t, answers)
				require.Empty(t, ended)
				require.Equal(t, 2, c.Faults.Count("LeaseKeepAlive"))
				require.Equal(t, 1, c.Faults.Streams("LeaseKeepAlive"))
			})
		})
	}
}

func TestHeldMessagesOfAStreamKeepTheirOrder(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		lease, err := c.Grant(t.Context(), 60)
		require.NoError(t, err)
		request := c.Faults.Next("LeaseKeepAlive", etcdtest.HoldRequest())
		answer := c.Faults.Next("LeaseKeepAlive", etcdtest.HoldAnswer())
		renew, answers, _ := keepAlive(t, c, lease.ID)
		renew()
		renew()
		time.Sleep(time.Second)
		request.Release()
		etcdtest.Await(t, time.Second, "Fired", answer.Fired())
		time.Sleep(time.Second)
		require.Empty(t, answers)
		answer.Release()
		synctest.Wait()
		require.Len(t, answers, 2)
	})
}

func TestFalsifiedKeepAliveEndsTheClientsLease(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		lease, err := c.Grant(t.Context(), 60)
		require.NoError(t, err)
		alive, err := c.KeepAlive(t.Context(), lease.ID)
		require.NoError(t, err)
		require.EqualValues(t, 60, etcdtest.Await(t, time.Minute, "KeepAlive", alive).TTL)
		c.Faults.Next("LeaseKeepAlive", etcdtest.EditAnswer(func(r *pb.LeaseKeepAliveResponse) { r.TTL = 0 }))
		require.Nil(t, etcdtest.Await(t, time.Minute, "KeepAlive", alive))
		require.Equal(t, 1, s.Leases())
	})
}

func TestSwallowedDelete(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		rule := c.Faults.On("Watch", etcdtest.LoseAnswer(), etcdtest.Deletes("a"))
		events := c.Watch(t.Context(), "", clientv3.WithPrefix())
		for _, key := range []string{"a", "b"} {
			_, err := s.Admin().Put(t.Context(), key, "v")
			require.NoError(t, err)
			require.True(t, etcdtest.Await(t, time.Second, "Watch", events).Events[0].IsCreate())
		}
		for _, key := range []string{"a", "b"} {
			_, err := s.Admin().Delete(t.Context(), key)
			require.NoError(t, err)
		}
		require.Equal(t, "b", string(etcdtest.Await(t, time.Second, "Watch", events).Events[0].Kv.Key))
		require.Equal(t, 1, rule.Hits())
	})
}

func TestReplayedEvent(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		events := c.Watch(t.Context(), "k")
		c.Faults.Next("Watch", etcdtest.ReplayAnswer(), etcdtest.Match(func(r *pb.WatchResponse) bool { return len(r.Events) > 0 }))
		_, err := s.Admin().Put(t.Context(), "k", "v")
		require.NoError(t, err)
		first := etcdtest.Await(t, time.Second, "Watch", events)
		require.Equal(t, first.Events[0].Kv.ModRevision, etcdtest.Await(t, time.Second, "Watch", events).Events[0].Kv.ModRevision)
	})
}

func TestBreakEndsOpenStreams(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		events := c.Watch(t.Context(), "k")
		synctest.Wait()
		require.Equal(t, 1, c.Faults.Streams("Watch"))
		require.Zero(t, c.Faults.Break("LeaseKeepAlive", etcdtest.Unavailable))
		require.Equal(t, 1, c.Faults.Break("Watch", etcdtest.Unavailable))

		time.Sleep(time.Second)
		require.Equal(t, 1, c.Faults.Streams("Watch"), "the client has opened a new one")
		require.Equal(t, 2, c.Faults.Count("Watch"))
		_, err := s.Admin().Put(t.Context(), "k", "v")
		require.NoError(t, err)
		etcdtest.Await(t, time.Second, "Watch", events)

		c.Faults.Break("", rpctypes.ErrGRPCPermissionDenied)
		r := etcdtest.Await(t, time.Second, "Watch", events)
		require.ErrorIs(t, r.Err(), rpctypes.ErrPermissionDenied)
	})
}

func TestCutClientAloneIsSilent(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		a, b := s.Client(), s.Client()
		for _, c := range []*etcdtest.Client{a, b} {
			_, err := c.Get(t.Context(), "k")
			require.NoError(t, err)
		}
		a.Link.CutDown()
		_, err := a.Put(within(t, time.Minute), "k", "v")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.EqualValues(t, 1, version(s), "the request has arrived")
		a.Link.CutUp()
		_, err = a.Put(within(t, time.Minute), "k", "v")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.EqualValues(t, 1, version(s))
		_, err = b.Put(within(t, time.Minute), "k", "v")
		require.NoError(t, err)

		a.Link.Heal()
		synctest.Wait() // Until the client has seen the reset.
		_, err = a.Put(within(t, time.Minute), "k", "v")
		require.NoError(t, err)
		require.Equal(t, 2, a.Link.Dials())
	})
}

func TestOneOfTwoEndpoints(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client(etcdtest.At("http://a:1", "http://b:1"))
		c.Link.To("a:1").Refuse()
		for range 10 {
			_, err := c.Put(t.Context(), "k", "v")
			require.NoError(t, err)
		}
		synctest.Wait()
		require.NotZero(t, c.Link.To("a:1").Dials())
		require.Equal(t, 1, c.Link.To("b:1").Dials())
	})
}

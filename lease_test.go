package tenure_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
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

// scan is how often etcd looks for leases that have expired.
const scan = 500 * time.Millisecond

// renewal is one call of Hooks.Renewed.
type renewal struct {
	latency time.Duration
	err     error
}

// renewals returns hooks that tell of each attempt to renew, and where to hear
// of them.
func renewals() (*tenure.Hooks, <-chan renewal) {
	c := make(chan renewal, 10000)
	return &tenure.Hooks{Renewed: func(latency time.Duration, err error) { c <- renewal{latency, err} }}, c
}

// counted waits for a renewal that counts from now on, within a TTL.
func counted(t *testing.T, ttl time.Duration, c <-chan renewal) {
	t.Helper()
	for len(c) > 0 {
		<-c
	}
	for {
		if etcdtest.Await(t, ttl, "Hooks.Renewed", c).err == nil {
			return
		}
	}
}

// sent returns when the client last sent a request of a method.
func sent(t *testing.T, c *etcdtest.Client, method string) time.Time {
	t.Helper()
	var at time.Time
	for _, m := range c.Faults.Log(method) {
		if !m.Answer {
			at = m.At
		}
	}
	require.False(t, at.IsZero(), "no request of %s", method)
	return at
}

// sentFor returns when the client has sent renewals of the term's lease.
func sentFor(c *etcdtest.Client, term *tenure.Term) (at []time.Time) {
	for _, m := range c.Faults.Log("LeaseKeepAlive") {
		if r, ok := m.Body.(*pb.LeaseKeepAliveRequest); ok && r.ID == int64(term.Fence().Lease) {
			at = append(at, m.At)
		}
	}
	return at
}

// Transactions of the protocol: reads confirm renewals, wins win the key.
func reads(r *pb.TxnRequest) bool { return len(r.Compare) == 0 }

func wins(r *pb.TxnRequest) bool {
	return len(r.Compare) == 1 && r.Success[0].GetRequestPut() != nil
}

// endsAt asserts that the term is valid until a millisecond before limit, and
// that from limit on it is not and its context has ended as it does when a lease
// expires.
func endsAt(t *testing.T, term *tenure.Term, limit time.Time) {
	t.Helper()
	time.Sleep(time.Until(limit) - time.Millisecond)
	synctest.Wait()
	require.True(t, term.Valid(), "a millisecond before its limit the term is over: %v", term.Err())
	require.NoError(t, term.Context().Err())
	time.Sleep(time.Millisecond)
	require.False(t, term.Valid(), "the term is valid at its limit")
	synctest.Wait()
	require.ErrorIs(t, context.Cause(term.Context()), tenure.LeaseExpired)
	require.ErrorIs(t, term.Err(), tenure.LeaseExpired)
}

// L01. The answers take almost as long as the library waits for them, so a limit
// that counted from any of them would be off by much.
func TestDeadlineCountsFromTheSend(t *testing.T) {
	for _, ttl := range []time.Duration{2 * time.Second, 3 * time.Second, 10 * time.Second} {
		t.Run(fmt.Sprintf("TTL%v", ttl), func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				c.Faults.On("LeaseGrant", etcdtest.DelayAnswer(ttl/4))
				c.Faults.On("LeaseKeepAlive", etcdtest.DelayAnswer(ttl/6-time.Millisecond))
				c.Faults.On("Txn", etcdtest.DelayAnswer(ttl/6-time.Millisecond), etcdtest.Match(reads))
				hooks, renewed := renewals()
				term := lead(t, newElector(t, c, &tenure.Options{TTL: ttl, Hooks: hooks}))
				require.Equal(t, sent(t, c, "LeaseGrant").Add(ttl-ttl/10), term.ValidUntil())

				for range 5 {
					counted(t, ttl, renewed)
					require.Equal(t, sent(t, c, "LeaseKeepAlive").Add(ttl-ttl/10), term.ValidUntil())
				}
				c.Link.Cut()
				endsAt(t, term, sent(t, c, "LeaseKeepAlive").Add(ttl-ttl/10))
			})
		})
	}
}

// L01. The first renewal is due a third of the TTL after the grant was sent, and
// each one as long after the one before, however late the answers come.
func TestRenewalsAreDueAThirdOfTheTTLAfterTheLastSend(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		const ttl = 9 * time.Second
		c := s.Client()
		c.Faults.On("LeaseGrant", etcdtest.DelayAnswer(2*time.Second))
		c.Faults.On("LeaseKeepAlive", etcdtest.DelayAnswer(time.Second))
		hooks, renewed := renewals()
		lead(t, newElector(t, c, &tenure.Options{TTL: ttl, Hooks: hooks}))
		due := sent(t, c, "LeaseGrant")
		for range 5 {
			due = due.Add(ttl / 3)
			counted(t, ttl, renewed)
			require.Equal(t, due, sent(t, c, "LeaseKeepAlive"))
		}
	})
}

// L01. An answer that names a shorter TTL, or comes late, changes nothing for
// the worse, and one that names a longer TTL than was granted nothing at all.
func TestDeadlineNeverMovesBackwards(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		for i, ttl := range []int64{1, 4, 1, 9, 2, 10, 5} {
			c.Faults.Next("LeaseKeepAlive", etcdtest.EditAnswer(func(r *pb.LeaseKeepAliveResponse) { r.TTL = ttl }), etcdtest.Skip(10*i))
		}
		term := lead(t, newElector(t, c, &tenure.Options{TTL: 10 * time.Second}))
		last := term.ValidUntil()
		for range 4000 {
			time.Sleep(50 * time.Millisecond)
			until := term.ValidUntil()
			require.False(t, until.Before(last), "the limit moved from %v to %v", last, until)
			last = until
		}
		require.True(t, term.Valid())
	})
}

func TestFalsifiedTTLDoesNotExtendTheTerm(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		c.Faults.On("LeaseKeepAlive", etcdtest.EditAnswer(func(r *pb.LeaseKeepAliveResponse) { r.TTL = 3600 }))
		hooks, renewed := renewals()
		term := lead(t, newElector(t, c, &tenure.Options{TTL: 5 * time.Second, Hooks: hooks}))
		counted(t, 5*time.Second, renewed)
		c.Link.Cut()
		endsAt(t, term, sent(t, c, "LeaseKeepAlive").Add(4500*time.Millisecond))
	})
}

// L25. Parts of a second are rounded up, since etcd would raise a TTL of 0 in
// silence, and the default margin is a tenth of what was granted.
func TestMarginAndGrantedTTL(t *testing.T) {
	for name, tt := range map[string]struct {
		ttl, margin time.Duration
		election    uint // timeout of etcd in ms
		granted     time.Duration
		limit       time.Duration // from the send
	}{
		"DefaultTTL":                       {granted: 10 * time.Second, limit: 9 * time.Second},
		"DefaultMarginIsATenth":            {ttl: 5 * time.Second, granted: 5 * time.Second, limit: 4500 * time.Millisecond},
		"SmallestMargin":                   {ttl: 3 * time.Second, margin: time.Millisecond, granted: 3 * time.Second, limit: 2999 * time.Millisecond},
		"ExplicitMargin":                   {ttl: 10 * time.Second, margin: 2500 * time.Millisecond, granted: 10 * time.Second, limit: 7500 * time.Millisecond},
		"LargestMargin":                    {ttl: 4 * time.Second, margin: 2 * time.Second, granted: 4 * time.Second, limit: 2 * time.Second},
		"PartsOfASecondAreRoundedUp":       {ttl: 2001 * time.Millisecond, granted: 3 * time.Second, limit: 2700 * time.Millisecond},
		"LastPartOfASecondIsRoundedUp":     {ttl: 3*time.Second - time.Nanosecond, granted: 3 * time.Second, limit: 2700 * time.Millisecond},
		"FloorOfTheServerCounts":           {ttl: time.Second, granted: 2 * time.Second, limit: 1800 * time.Millisecond},
		"ShortestTTL":                      {ttl: time.Second, election: 500, granted: time.Second, limit: 900 * time.Millisecond},
		"RaisedTTLCounts":                  {ttl: 3 * time.Second, election: 5000, granted: 8 * time.Second, limit: 7200 * time.Millisecond},
		"RaisedTTLLeavesTheExplicitMargin": {ttl: 2 * time.Second, margin: 500 * time.Millisecond, election: 5000, granted: 8 * time.Second, limit: 7500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			etcdtest.BubbleWith(t, &etcdtest.ServerOptions{ElectionMs: tt.election}, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				var log logged
				hooks, renewed := renewals()
				e := newElector(t, c, &tenure.Options{TTL: tt.ttl, Margin: tt.margin, Hooks: hooks, Logger: log.logger()})
				term := lead(t, e)
				require.Equal(t, tt.granted, e.Status().TTL)
				require.Equal(t, sent(t, c, "LeaseGrant").Add(tt.limit), term.ValidUntil())
				counted(t, tt.granted, renewed)
				require.Equal(t, sent(t, c, "LeaseGrant").Add(tt.granted/3), sent(t, c, "LeaseKeepAlive"))
				require.Equal(t, sent(t, c, "LeaseKeepAlive").Add(tt.limit), term.ValidUntil())
				raised := tt.ttl != 0 && tt.granted >= tt.ttl+time.Second
				require.Equal(t, raised, log.has(slog.LevelWarn, "etcd has raised the TTL of the lease"))

				c.Link.Cut()
				endsAt(t, term, sent(t, c, "LeaseKeepAlive").Add(tt.limit))
				require.Len(t, s.Keys(key), 1, "the key is gone before etcd's own limit")
			})
		})
	}
}

// Nothing overflows.
func TestLongestTTL(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		const ttl = clientv3.MaxLeaseTTL * time.Second
		c := s.Client()
		term := lead(t, newElector(t, c, &tenure.Options{TTL: ttl}))
		time.Sleep(time.Hour)
		require.True(t, term.Valid())
		require.Equal(t, sent(t, c, "LeaseGrant").Add(ttl-ttl/10), term.ValidUntil())
		require.NoError(t, term.Resign())
		require.Empty(t, s.Keys(key))
	})
}

// L09, L10, L12, L14, L24, L34, E03, E06. What does not prove that the key still
// stands does not move the limit, though etcd may have acknowledged the renewal.
// Once, it costs nothing.
func TestOnlyConfirmedRenewalsCount(t *testing.T) {
	const ttl = 6 * time.Second
	header := func(change func(*pb.ResponseHeader)) etcdtest.Action {
		return etcdtest.EditAnswer(func(r interface{ GetHeader() *pb.ResponseHeader }) { change(r.GetHeader()) })
	}
	older := header(func(h *pb.ResponseHeader) { h.RaftTerm-- })
	newer := header(func(h *pb.ResponseHeader) { h.RaftTerm++ })
	read := []etcdtest.Option{etcdtest.Match(reads)}
	for name, tt := range map[string]struct {
		method string
		action etcdtest.Action
		opts   []etcdtest.Option
		acked  bool // etcd acknowledges the renewals
	}{
		"ReadLost":                    {"Txn", etcdtest.LoseRequest(), read, true},
		"ReadFailed":                  {"Txn", etcdtest.FailRequest(etcdtest.Unavailable), read, true},
		"AnswerOfReadLost":            {"Txn", etcdtest.LoseAnswer(), read, true},
		"AnswerOfReadLate":            {"Txn", etcdtest.DelayAnswer(ttl/6 + time.Millisecond), read, true},
		"AnswerOfReadDropped":         {"Txn", etcdtest.DropAnswer(rpctypes.ErrGRPCLeaderChanged), read, true},
		"AcknowledgedInOlderRaftTerm": {"LeaseKeepAlive", older, nil, true},
		"AcknowledgedInNewerRaftTerm": {"LeaseKeepAlive", newer, nil, true},
		"ConfirmedInNewerRaftTerm":    {"Txn", newer, read, true},
		"RequestLost":                 {"LeaseKeepAlive", etcdtest.LoseRequest(), nil, false},
		"AnswerLost":                  {"LeaseKeepAlive", etcdtest.LoseAnswer(), nil, true},
		"AnswerLate":                  {"LeaseKeepAlive", etcdtest.DelayAnswer(ttl/6 + time.Millisecond), nil, true},
		"AnswerMostOfTheTTLLate":      {"LeaseKeepAlive", etcdtest.DelayAnswer(ttl * 9 / 10), nil, true},
		"StreamBroken":                {"LeaseKeepAlive", etcdtest.FailRequest(etcdtest.Unavailable), nil, false},
		"MemberHasNoLeader":           {"LeaseKeepAlive", etcdtest.FailRequest(rpctypes.ErrGRPCNoLeader), nil, false},
		"MemberIsNotThePrimaryLessor": {"LeaseKeepAlive", etcdtest.FailRequest(status.Error(codes.Unknown, "not a primary lessor")), nil, false},
		"RevisionOfTheAuthStoreIsOld": {"LeaseKeepAlive", etcdtest.FailRequest(rpctypes.ErrGRPCAuthOldRevision), nil, false},
		"TokenIsInvalid":              {"LeaseKeepAlive", etcdtest.FailRequest(rpctypes.ErrGRPCInvalidAuthToken), nil, false},
		"ServerIsOverloaded":          {"LeaseKeepAlive", etcdtest.FailRequest(rpctypes.ErrGRPCRequestTooManyRequests), nil, false},
		"ServerCancelsTheRequest":     {"LeaseKeepAlive", etcdtest.FailRequest(rpctypes.ErrGRPCCanceled), nil, false},
	} {
		t.Run(name+"AlwaysEndsTheTermAtItsLimit", func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				hooks, renewed := renewals()
				term := lead(t, newElector(t, c, &tenure.Options{TTL: ttl, Hooks: hooks}))
				counted(t, ttl, renewed)
				limit := sent(t, c, "LeaseKeepAlive").Add(ttl - ttl/10)
				acks := positive(c)
				c.Faults.On(tt.method, tt.action, tt.opts...)

				endsAt(t, term, limit)
				require.Equal(t, limit, term.ValidUntil())
				for len(renewed) > 0 {
					require.Error(t, (<-renewed).err)
				}
				if tt.acked {
					time.Sleep(time.Second) // Beyond what the last renewal that counted would have given.
					require.Len(t, s.Keys(key), 1, "no renewal was acknowledged")
				}
				if tt.method == "Txn" {
					require.Greater(t, positive(c), acks)
				}
			})
		})
		t.Run(name+"OnceIsSurvived", func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				hooks, renewed := renewals()
				term := lead(t, newElector(t, c, &tenure.Options{TTL: ttl, Hooks: hooks}))
				rule := c.Faults.Next(tt.method, tt.action, append(tt.opts, etcdtest.Skip(1))...)
				counted(t, ttl, renewed)
				until := term.ValidUntil()
				require.Error(t, etcdtest.Await(t, ttl, "Hooks.Renewed", renewed).err)
				require.Equal(t, until, term.ValidUntil())
				require.Equal(t, 1, rule.Hits())
				counted(t, ttl, renewed)
				require.Equal(t, sent(t, c, "LeaseKeepAlive").Add(ttl-ttl/10), term.ValidUntil())
				time.Sleep(10 * ttl)
				require.True(t, term.Valid())
				require.NoError(t, term.Context().Err())
			})
		})
	}
}

// positive returns how many renewals etcd has acknowledged to the client.
func positive(c *etcdtest.Client) (n int) {
	for _, m := range c.Faults.Log("LeaseKeepAlive") {
		if ack, ok := m.Body.(*pb.LeaseKeepAliveResponse); ok && ack.TTL > 0 {
			n++
		}
	}
	return n
}

// logged keeps what is logged at the level Info and above.
type logged struct {
	mu      sync.Mutex
	records []slog.Record
}

func (l *logged) logger() *slog.Logger                         { return slog.New(l) }
func (l *logged) Enabled(_ context.Context, v slog.Level) bool { return v >= slog.LevelInfo }
func (l *logged) WithAttrs([]slog.Attr) slog.Handler           { return l }
func (l *logged) WithGroup(string) slog.Handler                { return l }

func (l *logged) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, r)
	return nil
}

// has reports whether something was logged at a level with a text in it.
func (l *logged) has(level slog.Level, text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.records {
		if r.Level == level && strings.Contains(r.Message, text) {
			return true
		}
	}
	return false
}

// L01, L02. The leader's client is cut off at many points of the renewal cycle,
// while answers are slow. Its term must be over before etcd lets the key go, and
// not by chance: when its own limit has come.
func TestTermEndsBeforeTheKeyVanishes(t *testing.T) {
	const rounds = 36
	for _, ttl := range []time.Duration{2 * time.Second, 3 * time.Second, 10 * time.Second} {
		t.Run(fmt.Sprintf("TTL%v", ttl), func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				for i := range rounds {
					cutOff(t, s, ttl, i, ttl/3*time.Duration(i)/rounds, (300+500*time.Duration(i*7%rounds)/rounds)*time.Millisecond)
				}
			})
		})
	}
}

func cutOff(t *testing.T, s *etcdtest.Server, ttl time.Duration, round int, after, delay time.Duration) {
	t.Helper()
	c := s.Client()
	defer c.Close()
	hooks, renewed := renewals()
	term := lead(t, newElector(t, c, &tenure.Options{TTL: ttl, Hooks: hooks}))
	deleted := s.Admin().Watch(t.Context(), key, clientv3.WithRev(int64(term.Epoch())+1))
	counted(t, ttl, renewed)
	ended := make(chan time.Time, 1)
	context.AfterFunc(term.Context(), func() { ended <- time.Now() })

	c.Link.Delay(0, delay)
	time.Sleep(ttl/3 + after)
	switch round % 3 {
	case 0:
		c.Link.Cut()
	case 1:
		c.Link.CutUp()
	case 2:
		c.Link.CutDown() // Renewals still arrive.
	}
	synctest.Wait()
	limit := term.ValidUntil()
	etcdtest.Await(t, 3*ttl+2*scan, "Watch", deleted)
	vanished := time.Now()
	require.False(t, term.Valid(), "round %d: valid although the key is gone", round)
	require.Len(t, ended, 1, "round %d: the context goes on although the key is gone", round)
	end := <-ended
	require.True(t, end.Before(vanished), "round %d: ended at %v, key gone at %v", round, end, vanished)
	if round%3 != 1 { // An answer under way may still have counted after the cut.
		require.Equal(t, limit, end, "round %d", round)
	}
}

// streams returns the numbers of the streams on which the client has sent
// renewals, in the order of their first.
func streams(c *etcdtest.Client) []int {
	var numbers []int
	for _, m := range c.Faults.Log("LeaseKeepAlive") {
		if !slices.Contains(numbers, m.Stream) {
			numbers = append(numbers, m.Stream)
		}
	}
	return numbers
}

// L19, L23. In an hour of holding a term nothing grows but the time: one stream,
// one renewal and one read per TTL/3, no authentication, no noise in the log.
func TestSteadyStateCostsOneRenewalAndOneReadPerThirdOfTheTTL(t *testing.T) {
	const ttl = 9 * time.Second
	for _, auth := range []bool{false, true} {
		t.Run(fmt.Sprintf("Auth%v", auth), func(t *testing.T) {
			etcdtest.BubbleWith(t, &etcdtest.ServerOptions{Auth: auth}, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				if auth {
					s.AddUser("app", "secret", clientv3.PermissionType(clientv3.PermReadWrite), key)
					c = s.Client(etcdtest.As("app", "secret"))
				}
				var log logged
				hooks, _ := renewals()
				hooks.Expiring = func(term *tenure.Term, left time.Duration) { t.Errorf("Expiring(%v, %v)", term, left) }
				term := lead(t, newElector(t, c, &tenure.Options{TTL: ttl, Hooks: hooks, Logger: log.logger()}))
				time.Sleep(time.Minute + time.Second) // Not at the instant of a renewal.
				authenticated, txns, ranges := c.Faults.Count("Authenticate"), c.Faults.Count("Txn"), c.Faults.Count("Range")
				require.Less(t, authenticated, 6)
				renewed := c.Faults.Count("LeaseKeepAlive")
				grants := c.Faults.Count("LeaseGrant")

				time.Sleep(time.Hour)
				require.True(t, term.Valid())
				require.Equal(t, int(time.Hour/(ttl/3)), c.Faults.Count("LeaseKeepAlive")-renewed)
				require.Equal(t, int(time.Hour/(ttl/3)), c.Faults.Count("Txn")-txns)
				require.Equal(t, ranges, c.Faults.Count("Range"))
				require.Equal(t, grants, c.Faults.Count("LeaseGrant"))
				require.Equal(t, authenticated, c.Faults.Count("Authenticate"))
				require.Len(t, streams(c), 1)
				require.Equal(t, 1, c.Faults.Streams("LeaseKeepAlive"))
				require.False(t, log.has(slog.LevelWarn, ""))
				require.False(t, log.has(slog.LevelError, ""))
			})
		})
	}
}

// L17, L24, L34. A renewal that hangs is given up after a sixth of the TTL at
// most, so that several attempts fit in, and never is a second request sent
// before the first one was answered or its stream abandoned.
func TestAttemptsAreBoundedAndOneAtATime(t *testing.T) {
	for _, ttl := range []time.Duration{2 * time.Second, 6 * time.Second, time.Minute} {
		t.Run(fmt.Sprintf("TTL%v", ttl), func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				term := lead(t, newElector(t, c, &tenure.Options{TTL: ttl}))
				limit := term.ValidUntil()
				c.Faults.On("LeaseKeepAlive", etcdtest.LoseAnswer())
				endsAt(t, term, limit)
				time.Sleep(ttl)

				log := c.Faults.Log("LeaseKeepAlive")
				require.GreaterOrEqual(t, len(log)/2, 4, "attempts")
				require.Less(t, len(log)/2, 12, "attempts")
				require.Zero(t, len(log)%2)
				for i := 0; i < len(log); i += 2 {
					request, end := log[i], log[i+1]
					require.False(t, request.Answer, "a second answer")
					require.True(t, end.Answer, "a second request while one is outstanding")
					require.Error(t, end.Err)
					require.Equal(t, request.Stream, end.Stream)
					require.LessOrEqual(t, end.At.Sub(request.At), ttl/6)
					require.True(t, request.At.Before(limit), "a renewal was sent after the limit")
				}
				require.Len(t, streams(c), len(log)/2, "a stream was used again after an answer was missing")
			})
		})
	}
}

// L01. Of two attempts the first one's answer comes while the second one waits.
func TestAnswerOfAnAbandonedAttemptIsNotTakenForAnothers(t *testing.T) {
	const ttl = 6 * time.Second
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		hooks, renewed := renewals()
		term := lead(t, newElector(t, c, &tenure.Options{TTL: ttl, Hooks: hooks}))
		counted(t, ttl, renewed)
		until := term.ValidUntil()
		first := c.Faults.Next("LeaseKeepAlive", etcdtest.HoldAnswer())
		second := c.Faults.Next("LeaseKeepAlive", etcdtest.LoseRequest(), etcdtest.Skip(1))
		etcdtest.Await(t, ttl, "Rule.Fired", second.Fired())
		first.Release()
		synctest.Wait()
		require.Equal(t, until, term.ValidUntil())
		require.Error(t, (<-renewed).err)
		require.Error(t, etcdtest.Await(t, ttl, "Hooks.Renewed", renewed).err)
		require.Equal(t, until, term.ValidUntil())

		counted(t, ttl, renewed)
		require.Equal(t, sent(t, c, "LeaseKeepAlive").Add(ttl-ttl/10), term.ValidUntil())
	})
}

// L11. An answer that comes after the term was resigned brings nothing back.
func TestLateAnswerDoesNotReviveAResignedTerm(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		e := newElector(t, c, &tenure.Options{TTL: 6 * time.Second})
		term := lead(t, e)
		held := c.Faults.Next("LeaseKeepAlive", etcdtest.HoldAnswer())
		etcdtest.Await(t, 3*time.Second, "Rule.Fired", held.Fired())
		require.NoError(t, term.Resign())
		until := term.ValidUntil()
		require.False(t, until.After(time.Now()))
		requests := c.Faults.Count("LeaseKeepAlive")
		held.Release()
		time.Sleep(time.Minute)
		require.False(t, term.Valid())
		require.Nil(t, e.Term())
		require.False(t, term.ValidUntil().After(until.Add(time.Minute)))
		require.Equal(t, requests, c.Faults.Count("LeaseKeepAlive"))
		require.Zero(t, s.Leases())
	})
}

// L13. Each lease has a stream of its own: answers that one waits for do not
// hold up another one on the same client.
func TestPrivateLeasesDoNotWaitForEachOther(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		slow := lead(t, newElector(t, c, &tenure.Options{TTL: 6 * time.Second}))
		other, err := tenure.New(c.Client, "/other", &tenure.Options{TTL: 6 * time.Second})
		require.NoError(t, err)
		quick := lead(t, other)
		limit := slow.ValidUntil()
		c.Faults.On("LeaseKeepAlive", etcdtest.DelayAnswer(time.Hour), etcdtest.Match(func(r *pb.LeaseKeepAliveResponse) bool {
			return r.ID == int64(slow.Fence().Lease)
		}))
		endsAt(t, slow, limit)
		time.Sleep(time.Minute)
		require.True(t, quick.Valid())
	})
}

// L12, L17, L29. One of two endpoints stops answering, or answers too slowly,
// with connections that stay open. The next attempt goes to the other one.
func TestTermSurvivesAnEndpointThatHangs(t *testing.T) {
	const ttl = 6 * time.Second
	for name, hang := range map[string]func(*etcdtest.Link){
		"Cut":     (*etcdtest.Link).Cut,
		"CutUp":   (*etcdtest.Link).CutUp,
		"CutDown": (*etcdtest.Link).CutDown,
		"Slow":    func(l *etcdtest.Link) { l.Delay(ttl, ttl) },
	} {
		for _, endpoint := range []string{"a:2379", "b:2379"} {
			t.Run(name+endpoint[:1], func(t *testing.T) {
				etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
					c := s.Client(etcdtest.At("http://a:2379", "http://b:2379"))
					term := lead(t, newElector(t, c, &tenure.Options{TTL: ttl}))
					for range 5 {
						hang(c.Link.To(endpoint))
						time.Sleep(4 * ttl)
						require.True(t, term.Valid(), "%v", term.Err())
						require.NoError(t, term.Context().Err())
						c.Link.To(endpoint).Delay(0, 0)
						c.Link.To(endpoint).Heal()
						time.Sleep(ttl + 1234*time.Millisecond) // Another point of the cycle.
					}
				})
			})
		}
	}
}

// run starts an elector whose work is to wait for the end of the term. It
// returns the terms and what Run returns.
func run(t *testing.T, e *tenure.Elector) (terms <-chan *tenure.Term, ended <-chan error) {
	t.Helper()
	started, done := make(chan *tenure.Term, 100), make(chan error, 1)
	go func() {
		done <- e.Run(t.Context(), func(ctx context.Context, term *tenure.Term) error {
			started <- term
			<-ctx.Done()
			return nil
		})
	}()
	return started, done
}

// L14, L18. A permission that is taken away ends the term at the next renewal
// and Run with the error, instead of letting the lease run out and trying again.
func TestRevokedPermissionEndsTheTermAtTheNextRenewal(t *testing.T) {
	const ttl = 6 * time.Second
	etcdtest.BubbleWith(t, &etcdtest.ServerOptions{Auth: true}, func(t *testing.T, s *etcdtest.Server) {
		s.AddUser("app", "secret", clientv3.PermissionType(clientv3.PermReadWrite), key)
		e := newElector(t, s.Client(etcdtest.As("app", "secret")), &tenure.Options{TTL: ttl})
		terms, ended := run(t, e)
		term := etcdtest.Await(t, time.Second, "Run", terms)
		time.Sleep(5 * ttl / 4)
		s.AddUser("reader", "secret", clientv3.PermissionType(clientv3.PermRead), key)
		_, err := s.Admin().UserGrantRole(t.Context(), "app", "reader")
		require.NoError(t, err)
		require.True(t, term.Valid())
		_, err = s.Admin().UserRevokeRole(t.Context(), "app", "app")
		require.NoError(t, err)

		etcdtest.Await(t, ttl/3+ttl/30, "Term.Context", term.Context().Done())
		require.ErrorIs(t, context.Cause(term.Context()), tenure.RenewalRefused)
		require.ErrorIs(t, context.Cause(term.Context()), rpctypes.ErrPermissionDenied)
		require.ErrorIs(t, etcdtest.Await(t, 2*ttl, "Run", ended), rpctypes.ErrPermissionDenied)
		require.Empty(t, terms)
		time.Sleep(ttl + scan)
		require.Empty(t, s.Keys(key))
		require.Zero(t, s.Leases())
	})
}

// L18. A new password makes the next stream fail for good.
func TestChangedPasswordEndsTheTerm(t *testing.T) {
	const ttl = 6 * time.Second
	etcdtest.BubbleWith(t, &etcdtest.ServerOptions{Auth: true}, func(t *testing.T, s *etcdtest.Server) {
		s.AddUser("app", "secret", clientv3.PermissionType(clientv3.PermReadWrite), key)
		terms, ended := run(t, newElector(t, s.Client(etcdtest.As("app", "secret")), &tenure.Options{TTL: ttl}))
		term := etcdtest.Await(t, time.Second, "Run", terms)
		time.Sleep(5 * ttl / 4)
		_, err := s.Admin().UserChangePassword(t.Context(), "app", "other")
		require.NoError(t, err)

		etcdtest.Await(t, ttl, "Term.Context", term.Context().Done())
		require.ErrorIs(t, context.Cause(term.Context()), tenure.RenewalRefused)
		require.ErrorIs(t, context.Cause(term.Context()), rpctypes.ErrAuthFailed)
		require.ErrorIs(t, etcdtest.Await(t, ttl, "Run", ended), rpctypes.ErrAuthFailed)
		require.Empty(t, terms)
	})
}

// L14, W14, E06. Tokens that expire between two renewals, connections that break,
// and changes of other users' rights cost no term.
func TestTermSurvivesExpiredTokens(t *testing.T) {
	const ttl = 9 * time.Second
	etcdtest.BubbleWith(t, &etcdtest.ServerOptions{Auth: true, TokenTTL: time.Second}, func(t *testing.T, s *etcdtest.Server) {
		s.AddUser("app", "secret", clientv3.PermissionType(clientv3.PermReadWrite), key)
		c := s.Client(etcdtest.As("app", "secret"))
		term := lead(t, newElector(t, c, &tenure.Options{TTL: ttl}))
		time.Sleep(10 * time.Minute)
		require.True(t, term.Valid(), "%v", term.Err())
		for i := range 20 {
			c.Link.DropConnections()
			s.AddUser(fmt.Sprint("other", i), "secret", clientv3.PermissionType(clientv3.PermRead), "/other")
			time.Sleep(5 * time.Second)
			require.True(t, term.Valid(), "%v", term.Err())
		}
		require.NoError(t, term.Context().Err())
		_, err := s.Admin().Delete(t.Context(), key)
		require.NoError(t, err)
		synctest.Wait()
		require.ErrorIs(t, context.Cause(term.Context()), tenure.KeyDeleted, "the watch is deaf")
	})
}

// L06, L20. While etcd is away only the local limit counts. An etcd that comes
// back gives every lease its full TTL anew, so after a loss the next term can
// take as long to come.
func TestRestartOfEtcd(t *testing.T) {
	const ttl = 10 * time.Second
	t.Run("WithinTheTTLIsSurvived", func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			hooks, renewed := renewals()
			term := lead(t, newElector(t, s.Client(), &tenure.Options{TTL: ttl, Hooks: hooks}))
			for range 5 {
				counted(t, ttl, renewed)
				s.Restart(2 * time.Second)
				time.Sleep(ttl)
				require.True(t, term.Valid(), "%v", term.Err())
				require.NoError(t, term.Context().Err())
			}
		})
	})
	t.Run("BeyondTheTTLEndsTheTermAndTheNextOneIsHigher", func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			c := s.Client()
			hooks, renewed := renewals()
			terms, _ := run(t, newElector(t, c, &tenure.Options{TTL: ttl, Hooks: hooks}))
			first := etcdtest.Await(t, time.Second, "Run", terms)
			counted(t, ttl, renewed)
			limit := sent(t, c, "LeaseKeepAlive").Add(ttl - ttl/10)
			s.Stop()
			endsAt(t, first, limit)
			time.Sleep(ttl)
			s.Start()

			// The key stands for another TTL, since the server has restarted.
			second := etcdtest.Await(t, 2*ttl, "Run", terms)
			require.Greater(t, second.Epoch(), first.Epoch())
			require.False(t, first.Valid())
		})
	})
	t.Run("RightAfterTheGrantIsSurvived", func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			term := lead(t, newElector(t, s.Client(), &tenure.Options{TTL: time.Minute}))
			limit := term.ValidUntil()
			s.Restart(30 * time.Second)
			require.True(t, term.Valid())
			time.Sleep(time.Until(limit) + time.Second)
			require.True(t, term.Valid(), "%v", term.Err())
			require.NoError(t, term.Context().Err())
		})
	})
}

// L15, L24, L34, W15. While etcd does not answer there is no hot loop, and after
// its limit a lease is not renewed any more, although it still could be: it
// expires, and another candidate wins.
func TestLeaseIsNotRenewedAfterItsLimit(t *testing.T) {
	const ttl = 6 * time.Second
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		hooks, renewed := renewals()
		term := lead(t, newElector(t, c, &tenure.Options{TTL: ttl, Hooks: hooks}))
		counted(t, ttl, renewed)
		refused := c.Faults.On("Txn", etcdtest.FailRequest(etcdtest.Unavailable), etcdtest.Match(reads))
		limit := term.ValidUntil()
		before := c.Faults.Count("LeaseKeepAlive")
		endsAt(t, term, limit)
		require.Less(t, c.Faults.Count("LeaseKeepAlive")-before, 30)
		require.Len(t, s.Keys(key), 1)
		refused.Stop()

		until := term.ValidUntil()
		acked := sent(t, c, "LeaseKeepAlive")
		rival := lead(t, newElector(t, s.Client(), nil))
		require.Less(t, time.Since(acked), ttl+2*scan)
		require.True(t, rival.Valid())
		require.False(t, term.Valid())
		require.Equal(t, until, term.ValidUntil())
		for _, at := range sentFor(c, term) {
			require.False(t, at.After(limit))
		}
	})
}

// L08, S01. An operator revokes the lease between two renewals.
func TestRevokedLeaseIsNoticedByTheWatch(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		term := lead(t, newElector(t, c, nil))
		time.Sleep(5 * time.Second)
		renewals := c.Faults.Count("LeaseKeepAlive")
		_, err := s.Admin().Revoke(t.Context(), term.Fence().Lease)
		require.NoError(t, err)
		synctest.Wait()
		require.False(t, term.Valid())
		require.ErrorIs(t, context.Cause(term.Context()), tenure.KeyDeleted)
		require.Equal(t, renewals, c.Faults.Count("LeaseKeepAlive"))
	})
}

// L08, L10, L24. What a deaf watch does not tell, the next renewal does: a TTL of
// 0 is final.
func TestRenewalOfAnUnknownLeaseEndsTheTermAtOnce(t *testing.T) {
	t.Run("Revoked", func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			c := s.Client()
			term := lead(t, newElector(t, c, nil))
			time.Sleep(5 * time.Second)
			c.Faults.On("Watch", etcdtest.LoseAnswer())
			_, err := s.Admin().Revoke(t.Context(), term.Fence().Lease)
			require.NoError(t, err)
			etcdtest.Await(t, 10*time.Second/3, "Term.Context", term.Context().Done())
			require.ErrorIs(t, context.Cause(term.Context()), tenure.LeaseExpired)
			require.Equal(t, time.Now(), sent(t, c, "LeaseKeepAlive"))
			require.False(t, term.Valid())
		})
	})
	t.Run("Falsified", func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			c := s.Client()
			hooks, renewed := renewals()
			term := lead(t, newElector(t, c, &tenure.Options{Hooks: hooks}))
			c.Faults.Next("LeaseKeepAlive", etcdtest.EditAnswer(func(r *pb.LeaseKeepAliveResponse) { r.TTL = 0 }))
			require.Error(t, etcdtest.Await(t, 4*time.Second, "Hooks.Renewed", renewed).err)
			synctest.Wait()
			require.ErrorIs(t, context.Cause(term.Context()), tenure.LeaseExpired)
			require.False(t, term.Valid())
		})
	})
	// A renewal says something of the lease; what the key is like only a read
	// can say.
	t.Run("PositiveTTLOfADeletedKey", func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			c := s.Client()
			term := lead(t, newElector(t, c, nil))
			time.Sleep(5 * time.Second)
			c.Faults.On("Watch", etcdtest.LoseAnswer())
			_, err := s.Admin().Delete(t.Context(), key)
			require.NoError(t, err)
			etcdtest.Await(t, 10*time.Second/3, "Term.Context", term.Context().Done())
			require.ErrorIs(t, context.Cause(term.Context()), tenure.KeyDeleted)
			require.Equal(t, time.Now(), sent(t, c, "LeaseKeepAlive"))
		})
	})
}

package leaderhttp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
	"github.com/tenure-go/tenure/leaderhttp"
)

// follow returns a Transport on n, closed when the test ends.
func follow(t testing.TB, c *etcdtest.Client, n *network, opts leaderhttp.TransportOptions) *leaderhttp.Transport {
	t.Helper()
	if opts.Base == nil {
		opts.Base = n.transport()
	}
	tr, err := leaderhttp.NewTransport(c.Client, key, &opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr
}

// lead holds the election with an address until the test ends or resign is called.
func lead(t testing.TB, s *etcdtest.Server, address string) (term *tenure.Term) {
	t.Helper()
	e := elector(t, s.Client(), address, 6*time.Second)
	term, err := e.Campaign(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = term.Resign() })
	return term
}

func request(t testing.TB, method, url string, body io.Reader, within time.Duration) *http.Request {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	require.NoError(t, err)
	return req
}

// once is a body that can be had only once. It tells whether it was closed.
type once struct {
	io.Reader

	closed atomic.Int32
}

func (o *once) Close() error {
	o.closed.Add(1)
	return nil
}

func newOnce(s string) *once { return &once{Reader: strings.NewReader(s)} }

// The Transport finds the leader, waits while there is none, and goes with the
// election.
func TestTransportFollowsTheLeader(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		n := newNetwork(t)
		tr := follow(t, s.Client(), n, leaderhttp.TransportOptions{})
		n.serve("first:80", says("first"))
		n.serve("second:80", says("second"))
		client := &http.Client{Transport: tr, Timeout: limit}
		get := func() string {
			resp, err := client.Get("http://leader/x?y")
			require.NoError(t, err)
			return read(t, resp)
		}
		answers := make(chan string, 1)
		go func() { answers <- get() }()
		time.Sleep(10 * time.Second)
		require.Equal(t, tenure.Vacant, tr.Status().State)
		require.Empty(t, answers)
		first := lead(t, s, "first:80")
		synctest.Wait()
		require.Equal(t, "first", etcdtest.Await(t, time.Second, "Get", answers))
		require.Equal(t, first.Fence(), tr.Status().Leader.Fence)

		// What leads elsewhere is followed there.
		require.NoError(t, first.Announce(t.Context(), "second:80", nil))
		synctest.Wait()
		require.Equal(t, "second", get())
		require.NoError(t, first.Announce(t.Context(), "first:80", nil))

		require.NoError(t, first.Resign())
		go func() { answers <- get() }()
		synctest.Wait()
		require.Empty(t, answers)
		second := lead(t, s, "second:80")
		require.Equal(t, "second", etcdtest.Await(t, 100*time.Millisecond, "Get", answers))
		require.Equal(t, second.Fence(), tr.Status().Leader.Fence)
	})
}

// What the leader gets is the request, marked, for its own address.
func TestTransportKeepsTheRequest(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		n := newNetwork(t)
		term := lead(t, s, "lead:80")
		tr := follow(t, s.Client(), n, leaderhttp.TransportOptions{Host: "app.internal:1"})
		var got *http.Request
		n.serve("lead:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got = r
			_, _ = io.Copy(w, r.Body)
		}))
		other := lead2(t, n)
		req := request(t, http.MethodPost, "http://APP.internal:1/a%2Fb?x;%zz", newOnce("body"), limit)
		before := req.Clone(t.Context())
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		require.Equal(t, "lead:80", resp.Request.URL.Host, "it tells where the answer came from")
		require.NoError(t, resp.Request.Context().Err())
		require.Equal(t, "body", read(t, resp))
		require.Error(t, resp.Request.Context().Err(), "the attempt goes on after its answer was closed")
		require.Equal(t, "/a%2Fb?x;%zz", got.RequestURI)
		require.Equal(t, "lead:80", got.Host)
		require.Equal(t, []string{mark(term)}, got.Header[leaderhttp.Header])
		require.Equal(t, before.Header, req.Header, "the caller's request has changed")
		require.Equal(t, before.URL, req.URL)

		req = request(t, http.MethodGet, "http://app.internal:1/", nil, limit)
		req.Host = "virtual"
		req.Header.Set(leaderhttp.Header, `"7:other"`)
		resp, err = tr.RoundTrip(req)
		require.NoError(t, err)
		read(t, resp)
		require.Equal(t, "virtual", got.Host)
		require.Equal(t, []string{`"7:other"`, mark(term)}, got.Header[leaderhttp.Header])

		// Other hosts are none of its business.
		got = nil
		resp, err = tr.RoundTrip(request(t, http.MethodGet, "http://other:80/", nil, limit))
		require.NoError(t, err)
		require.Equal(t, "other", read(t, resp))
		require.Empty(t, other.Load().Header[leaderhttp.Header])
		require.Nil(t, got)
	})
}

func mark(term *tenure.Term) string {
	return `"` + fmt.Sprint(int64(term.Epoch())) + `:%2Fapp%2Fleader"`
}

// lead2 serves another host and keeps the last request to it.
func lead2(t *testing.T, n *network) *atomic.Pointer[http.Request] {
	t.Helper()
	var last atomic.Pointer[http.Request]
	n.serve("other:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		last.Store(r)
		_, _ = io.WriteString(w, "other")
	}))
	return &last
}

// A request that would wait for ever ends with its context, or at once if so
// wished, and says what was in the way.
func TestTransportWaitsAsLongAsItMay(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		n := newNetwork(t)
		patient := follow(t, s.Client(), n, leaderhttp.TransportOptions{})
		hasty := follow(t, s.Client(), n, leaderhttp.TransportOptions{FailFast: true})
		synctest.Wait()
		body := newOnce("x")
		began := time.Now()
		_, err := patient.RoundTrip(request(t, http.MethodPost, "http://leader/", body, 7*time.Second))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, tenure.ErrNoLeader)
		require.Equal(t, 7*time.Second, time.Since(began))
		require.EqualValues(t, 1, body.closed.Load())

		began = time.Now()
		_, err = hasty.RoundTrip(request(t, http.MethodGet, "http://leader/", nil, limit))
		require.ErrorIs(t, err, tenure.ErrNoLeader)
		require.ErrorContains(t, err, key)

		// Likewise with a leader that nobody can reach, that has no address, or one
		// that would be reached in the clear.
		term := lead(t, s, "lead:80")
		synctest.Wait()
		_, err = hasty.RoundTrip(request(t, http.MethodPost, "http://leader/", newOnce("x"), limit))
		require.ErrorIs(t, err, errRefused)
		require.NotErrorIs(t, err, tenure.ErrUnknownOutcome)
		require.Zero(t, time.Since(began))
		_, err = patient.RoundTrip(request(t, http.MethodGet, "http://leader/", nil, 7*time.Second))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, errRefused)
		require.Greater(t, n.dialed("lead:80"), 8)
		require.Less(t, n.dialed("lead:80"), 25, "a pause of about a second")
		for address, says := range map[string]string{"": "no address", "http://lead:80": "the request is for https"} {
			require.NoError(t, term.Announce(t.Context(), address, nil))
			synctest.Wait()
			_, err = hasty.RoundTrip(request(t, http.MethodGet, "https://leader/", nil, limit))
			require.ErrorContains(t, err, says)
		}

		// Closed while somebody waits.
		require.NoError(t, term.Resign())
		synctest.Wait()
		closed := make(chan error, 1)
		go func() {
			_, err := patient.RoundTrip(request(t, http.MethodGet, "http://leader/", nil, limit))
			closed <- err
		}()
		synctest.Wait()
		require.NoError(t, patient.Close())
		require.ErrorContains(t, etcdtest.Await(t, time.Second, "RoundTrip", closed), "closed")
		_, err = patient.RoundTrip(request(t, http.MethodGet, "http://leader/", nil, limit))
		require.ErrorContains(t, err, "closed")
		require.NoError(t, patient.Close())
	})
}

// A body reaches a server whole and once, or the outcome is unknown and nothing is
// sent again.
func TestBodiesAreNotReplayed(t *testing.T) {
	type want struct {
		bodies  []string // that servers have read
		answer  string   // or
		unknown bool
	}
	breaks := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	for name, tt := range map[string]struct {
		method string
		body   func() io.Reader
		first  http.Handler // what the first attempt comes to; nil: it is not sent
		edit   func(*http.Request)
		want   want
	}{
		"PostOutcomeUnknown":        {http.MethodPost, nil, breaks, nil, want{[]string{"b"}, "", true}},
		"PostOnceOutcomeUnknown":    {http.MethodPost, func() io.Reader { return newOnce("b") }, breaks, nil, want{[]string{"b"}, "", true}},
		"PutOnceOutcomeUnknown":     {http.MethodPut, func() io.Reader { return newOnce("b") }, breaks, nil, want{[]string{"b"}, "", true}},
		"PutTwice":                  {http.MethodPut, nil, breaks, nil, want{[]string{"b", "b"}, "done", false}},
		"DeleteTwice":               {http.MethodDelete, nil, breaks, nil, want{[]string{"b", "b"}, "done", false}},
		"PostWithKeyTwice":          {http.MethodPost, nil, breaks, func(r *http.Request) { r.Header.Set("Idempotency-Key", "1") }, want{[]string{"b", "b"}, "done", false}},
		"PostEmptyOutcomeUnknown":   {http.MethodPost, func() io.Reader { return nil }, breaks, nil, want{[]string{""}, "", true}},
		"GetTwice":                  {http.MethodGet, func() io.Reader { return nil }, breaks, nil, want{[]string{"", ""}, "done", false}},
		"PostNotSent":               {http.MethodPost, nil, nil, nil, want{[]string{"b"}, "done", false}},
		"PostOnceNotSent":           {http.MethodPost, func() io.Reader { return newOnce("b") }, nil, nil, want{[]string{"b"}, "done", false}},
		"PostRefused":               {http.MethodPost, nil, refuses, nil, want{[]string{"b", "b"}, "done", false}},
		"PostOnceRefused":           {http.MethodPost, func() io.Reader { return newOnce("b") }, refuses, nil, want{[]string{"b"}, "refused", false}},
		"PostOnceRefusedUnread":     {http.MethodPost, func() io.Reader { return newOnce("b") }, refuses, expect, want{[]string{"b"}, "done", false}},
		"PostUnavailableInOtherWay": {http.MethodPost, nil, unavailable(""), nil, want{[]string{"b"}, "refused", false}},
		"PostRefusedToSomebodyElse": {http.MethodPost, nil, unavailable(`"1:%2Fother"`), nil, want{[]string{"b"}, "refused", false}},
	} {
		t.Run(name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				n := newNetwork(t)
				lead(t, s, "lead:80")
				base := n.transport()
				base.ExpectContinueTimeout = time.Minute
				tr := follow(t, s.Client(), n, leaderhttp.TransportOptions{Base: base})
				var bodies []string
				attempts := 0
				h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					attempts++
					if attempts == 1 && r.Header.Get("Expect") != "" {
						tt.first.ServeHTTP(w, r)
						return
					}
					b, err := io.ReadAll(r.Body)
					require.NoError(t, err)
					bodies = append(bodies, string(b))
					if attempts == 1 && tt.first != nil {
						tt.first.ServeHTTP(w, r)
						return
					}
					_, _ = io.WriteString(w, "done")
				})
				if tt.first == nil {
					go func() {
						time.Sleep(3 * time.Second)
						n.serve("lead:80", h)
					}()
				} else {
					n.serve("lead:80", h)
				}
				body := io.Reader(strings.NewReader("b"))
				if tt.body != nil {
					body = tt.body()
				}
				req := request(t, tt.method, "http://leader/", body, limit)
				if tt.edit != nil {
					tt.edit(req)
				}
				resp, err := tr.RoundTrip(req)
				if tt.want.unknown {
					require.ErrorIs(t, err, tenure.ErrUnknownOutcome)
				} else {
					require.NoError(t, err)
					require.Equal(t, tt.want.answer, read(t, resp))
				}
				require.Equal(t, tt.want.bodies, bodies)
				if o, ok := body.(*once); ok {
					require.Positive(t, o.closed.Load(), "nobody has closed the body")
				}
			})
		})
	}
}

func expect(r *http.Request) { r.Header.Set("Expect", "100-continue") }

// refuses is what a candidate that does not lead says.
var refuses = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	w.Header()[leaderhttp.Header] = r.Header[leaderhttp.Header]
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, "refused")
})

// unavailable is a service that is busy, be it the leader's own, or a candidate in
// another election behind it.
func unavailable(mark string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(leaderhttp.Header, mark)
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "refused")
	})
}

// A host that is gone without a word holds nobody up: as soon as another leader is
// known, attempts at the last one that are safe to give up are given up.
func TestNewLeaderEndsAttemptsAtTheLast(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		n := newNetwork(t)
		first := lead(t, s, "gone:80")
		tr := follow(t, s.Client(), n, leaderhttp.TransportOptions{})
		n.swallow("gone:80", true)
		stuck, patient := make(chan struct{}), make(chan struct{})
		defer close(stuck)
		defer close(patient)
		var served atomic.Int32
		n.serve("stuck:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Patient") != "" {
				<-patient
				_, _ = io.WriteString(w, "at last")
				return
			}
			if served.Add(1) == 1 {
				_, _ = io.WriteString(w, "begun ")
				_ = http.NewResponseController(w).Flush()
			}
			<-stuck
			_, _ = io.WriteString(w, "late")
		}))
		n.serve("next:80", says("next"))
		type result struct {
			body string
			err  error
			at   time.Time
		}
		send := func(method string, within time.Duration, header ...string) <-chan result {
			c := make(chan result, 1)
			req := request(t, method, "http://leader/", nil, within)
			for _, name := range header {
				req.Header.Set(name, "yes")
			}
			go func() {
				resp, err := tr.RoundTrip(req)
				if err != nil {
					c <- result{err: err, at: time.Now()}
					return
				}
				c <- result{body: read(t, resp), at: time.Now()}
			}()
			return c
		}
		waiting := []<-chan result{send(http.MethodGet, time.Hour), send(http.MethodPost, time.Hour)}
		time.Sleep(time.Minute)
		require.NoError(t, first.Resign())
		synctest.Wait()
		second := lead(t, s, "next:80")
		won := time.Now()
		for _, c := range waiting {
			got := etcdtest.Await(t, time.Second, "RoundTrip", c)
			require.NoError(t, got.err)
			require.Equal(t, "next", got.body)
			require.Less(t, got.at.Sub(won), 100*time.Millisecond)
		}

		// The same leader elsewhere is another one in this.
		n.swallow("hole:80", true)
		require.NoError(t, second.Announce(t.Context(), "hole:80", nil))
		synctest.Wait()
		moved := send(http.MethodPost, time.Hour)
		time.Sleep(time.Minute)
		require.NoError(t, second.Announce(t.Context(), "next:80", nil))
		require.Equal(t, "next", etcdtest.Await(t, time.Second, "RoundTrip", moved).body)

		// Sent and not answered: what may be sent twice goes on, the rest waits. An
		// answer that has begun goes on to its end.
		require.NoError(t, second.Announce(t.Context(), "stuck:80", nil))
		synctest.Wait()
		begun := send(http.MethodGet, time.Hour)
		synctest.Wait()
		get, post, late := send(http.MethodGet, time.Hour), send(http.MethodPost, time.Minute), send(http.MethodGet, time.Hour, "Patient")
		synctest.Wait()
		require.EqualValues(t, 3, served.Load())
		require.NoError(t, second.Resign())
		time.Sleep(time.Second)
		require.Empty(t, get)
		patient <- struct{}{}
		require.Equal(t, "at last", etcdtest.Await(t, time.Second, "RoundTrip", late).body, "in a vacancy the last leader may still answer")
		lead(t, s, "next:80")
		require.Equal(t, "next", etcdtest.Await(t, time.Second, "RoundTrip", get).body)
		failed := etcdtest.Await(t, time.Hour, "RoundTrip", post)
		require.ErrorIs(t, failed.err, tenure.ErrUnknownOutcome)
		require.ErrorIs(t, failed.err, context.DeadlineExceeded)
		require.Empty(t, begun)
		stuck <- struct{}{}
		stuck <- struct{}{}
		stuck <- struct{}{}
		require.Equal(t, "begun late", etcdtest.Await(t, time.Second, "RoundTrip", begun).body)
	})
}

// While etcd is away the last known leader is the leader, also for those who ask
// for the first time.
func TestTransportSurvivesAnOutageOfEtcd(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		n := newNetwork(t)
		lead(t, s, "lead:80")
		n.serve("lead:80", says("lead"))
		c := s.Client()
		tr := follow(t, c, n, leaderhttp.TransportOptions{FailFast: true})
		synctest.Wait()
		c.Link.Cut()
		etcdtest.Eventually(t, time.Minute, "State", tenure.Unreachable, func() tenure.State { return tr.Status().State })
		time.Sleep(time.Hour)
		resp, err := tr.RoundTrip(request(t, http.MethodGet, "http://leader/", nil, limit))
		require.NoError(t, err)
		require.Equal(t, "lead", read(t, resp))
		c.Link.Heal()
		etcdtest.Eventually(t, time.Minute, "State", tenure.Led, func() tenure.State { return tr.Status().State })
	})
}

// A base that does not tell how far a request came is asked once.
func TestUntoldAttemptsAreNotRepeated(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		n := newNetwork(t)
		lead(t, s, "lead:80")
		broken := errors.New("broken")
		var asked atomic.Int32
		tr := follow(t, s.Client(), n, leaderhttp.TransportOptions{Base: roundTrip(func(*http.Request) (*http.Response, error) {
			asked.Add(1)
			return nil, broken
		})})
		_, err := tr.RoundTrip(request(t, http.MethodGet, "http://leader/", nil, limit))
		require.Equal(t, broken, err)
		require.EqualValues(t, 1, asked.Load())

		// Neither is what net/http refuses to send.
		tr = follow(t, s.Client(), n, leaderhttp.TransportOptions{})
		req := request(t, http.MethodGet, "http://leader/", nil, limit)
		req.Header.Set("X", "a\nb")
		_, err = tr.RoundTrip(req)
		require.ErrorContains(t, err, "invalid header field value")

		// A request that was sent on for the leader must not be sent on by us.
		body := newOnce("x")
		req = request(t, http.MethodPost, "http://leader/", body, limit)
		req.Header.Set(leaderhttp.Header, `"1:%2Fapp%2Fleader"`)
		_, err = tr.RoundTrip(req)
		require.ErrorContains(t, err, "sent on for the leader already")
		require.EqualValues(t, 1, body.closed.Load())
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Anybody can be a proxy to the leader with a Transport, upgrades included.
func TestTransportBelowAReverseProxy(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		n := newNetwork(t)
		lead(t, s, "lead:80")
		n.serve("lead:80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			conn, rw, err := http.NewResponseController(w).Hijack()
			require.NoError(t, err)
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_, _ = io.Copy(conn, rw)
		}))
		tr := follow(t, s.Client(), n, leaderhttp.TransportOptions{})
		n.serve("edge:80", &httputil.ReverseProxy{Transport: tr, Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL.Scheme, pr.Out.URL.Host = "http", "leader"
		}})
		conn, err := n.dial(t.Context(), "tcp", "edge:80")
		require.NoError(t, err)
		defer conn.Close()
		_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		require.NoError(t, err)
		head := make([]byte, len("HTTP/1.1 101 Switching Protocols"))
		_, err = io.ReadFull(conn, head)
		require.NoError(t, err)
		require.Equal(t, "HTTP/1.1 101 Switching Protocols", string(head))
		var rest bytes.Buffer
		for !strings.HasSuffix(rest.String(), "\r\n\r\n") {
			_, err = io.CopyN(&rest, conn, 1)
			require.NoError(t, err)
		}
		_, err = io.WriteString(conn, "hello")
		require.NoError(t, err)
		echo := make([]byte, 5)
		_, err = io.ReadFull(conn, echo)
		require.NoError(t, err)
		require.Equal(t, "hello", string(echo))
	})
}

// What can never be followed is an error, and so are arguments that make no sense.
func TestTransportThatCannotFollow(t *testing.T) {
	_, err := leaderhttp.NewTransport(nil, key, nil)
	require.ErrorContains(t, err, "the client is nil")
	etcdtest.BubbleWith(t, &etcdtest.ServerOptions{Auth: true}, func(t *testing.T, s *etcdtest.Server) {
		_, err := s.Admin().UserAdd(t.Context(), "poor", "poor")
		require.NoError(t, err)
		c := s.Client(etcdtest.As("poor", "poor"))
		_, err = leaderhttp.NewTransport(c.Client, "", nil)
		require.ErrorContains(t, err, "the key is empty")
		tr := follow(t, c, newNetwork(t), leaderhttp.TransportOptions{})
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err = tr.RoundTrip(request(t, http.MethodGet, "http://leader/", nil, time.Minute))
		})
		wg.Wait()
		require.ErrorContains(t, err, "permission denied")
		require.NotErrorIs(t, err, context.DeadlineExceeded)
	})
}

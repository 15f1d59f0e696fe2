package leaderhttp_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
	"github.com/tenure-go/tenure/leaderhttp"
	"github.com/tenure-go/tenure/tenuretest"
)

// each runs f for both handlers.
func each(t *testing.T, f func(t *testing.T, handler func(*tenure.Elector, http.Handler, *leaderhttp.Options) http.Handler)) {
	t.Helper()
	t.Run("Proxy", func(t *testing.T) { f(t, leaderhttp.Proxy) })
	t.Run("Redirect", func(t *testing.T) { f(t, leaderhttp.Redirect) })
}

// never is a local handler that must not be called.
func never(t *testing.T) http.Handler {
	t.Helper()
	return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the local handler was called") })
}

// The leader serves by itself, and its handler has the term; nothing else has.
func TestLeaderServesLocally(t *testing.T) {
	each(t, func(t *testing.T, handler func(*tenure.Elector, http.Handler, *leaderhttp.Options) http.Handler) {
		e := candidate(t, tenuretest.NewElection(key), "me:80")
		require.Eventually(t, func() bool { return e.Term() != nil }, limit, time.Millisecond)
		var during context.Context
		h := handler(e, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			term, ok := leaderhttp.TermFromContext(r.Context())
			require.True(t, ok)
			require.Same(t, e.Term(), term)
			require.NoError(t, r.Context().Err())
			during = r.Context()
			w.WriteHeader(http.StatusTeapot)
		}), nil)
		require.Equal(t, http.StatusTeapot, ask(h, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)).StatusCode)
		require.Error(t, during.Err(), "the request has ended, its context goes on")
		_, ok := leaderhttp.TermFromContext(t.Context())
		require.False(t, ok)
	})
}

// A request is work of the term: its context ends with it, for the same reason. A
// leader that stops takes no more; what it answers after its term is cut off.
func TestRequestEndsWithTheTerm(t *testing.T) {
	for reason, whole := range map[tenure.Reason]bool{tenure.Evicted: true, tenure.LeaseExpired: false} {
		t.Run(string(reason), func(t *testing.T) {
			election := tenuretest.NewElection(key)
			e, err := election.Elector(nil)
			require.NoError(t, err)
			term, err := e.Campaign(t.Context()) // who campaigns so resigns by itself
			require.NoError(t, err)
			defer func() { require.NoError(t, term.Resign()) }()
			var h http.Handler
			h = leaderhttp.Proxy(e, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				election.End(reason)
				etcdtest.Await(t, limit, "Done", r.Context().Done())
				require.ErrorIs(t, context.Cause(r.Context()), reason)
				require.Equal(t, !whole, e.Term() == nil)
				if whole {
					resp := ask(h, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
					name, _ := kind(t, resp)
					require.Equal(t, "no-leader", name)
					require.Equal(t, "1", resp.Header.Get("Retry-After"))
				}
				_, _ = io.WriteString(w, "stale?")
			}), nil)
			request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
			if whole {
				require.Equal(t, "stale?", read(t, ask(h, request)))
			} else {
				require.PanicsWithValue(t, http.ErrAbortHandler, func() { ask(h, request) })
			}
		})
	}
}

// What the client of a leader sees that lost its term before it had answered is a
// broken connection, never the answer.
func TestAnswerAfterTheTermIsNeverSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		election := tenuretest.NewElection(key)
		e := candidate(t, election, "me:80")
		synctest.Wait()
		n.serve("me:80", leaderhttp.Proxy(e, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "stale")
			election.End(tenure.LeaseExpired)
		}), nil))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://me:80/", nil)
		require.NoError(t, err)
		_, err = n.transport().RoundTrip(req)
		require.ErrorIs(t, err, io.EOF)
	})
}

// The leader sees what the client has sent.
func TestProxyKeepsTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		e, term := follower(t, "lead:8080")
		var got *http.Request
		var body string
		n.serve("lead:8080", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			got, body = r, string(b)
			w.Header().Set("X-App", "yes")
			w.Header().Set("Trailer", "X-Sum")
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, "answer")
			w.Header().Set("X-Sum", "7")
		}))
		n.serve("standby:80", leaderhttp.Proxy(e, never(t), &leaderhttp.Options{Transport: n.transport()}))

		req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, "http://standby:80/a%2Fb//c?x=1;y=%zz&z", strings.NewReader("question"))
		require.NoError(t, err)
		req.Host = "app.example"
		req.Header = http.Header{
			"X-Forwarded-For": {"203.0.113.9"}, "X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {"www.example"},
			"Forwarded": {"for=203.0.113.9"}, "Cookie": {"a=b"},
			// An intermediary cannot be told to drop the mark.
			"Connection": {"Tenure-Leader"},
		}
		resp, err := n.transport().RoundTrip(req)
		require.NoError(t, err)
		require.Equal(t, http.StatusConflict, resp.StatusCode)
		require.Equal(t, "answer", read(t, resp))
		require.Equal(t, "yes", resp.Header.Get("X-App"))
		require.Equal(t, "7", resp.Trailer.Get("X-Sum"))

		require.Equal(t, http.MethodPatch, got.Method)
		require.Equal(t, "/a%2Fb//c?x=1;y=%zz&z", got.RequestURI)
		require.Equal(t, "question", body)
		require.Equal(t, "app.example", got.Host)
		require.Equal(t, "a=b", got.Header.Get("Cookie"))
		require.Equal(t, []string{"203.0.113.9"}, got.Header["X-Forwarded-For"], "the client in memory has no IP address to be added")
		require.Equal(t, []string{"https"}, got.Header["X-Forwarded-Proto"])
		require.Equal(t, []string{"www.example"}, got.Header["X-Forwarded-Host"])
		require.Equal(t, []string{"for=203.0.113.9"}, got.Header["Forwarded"])
		require.Equal(t, []string{fmt.Sprintf(`"%d:%%2Fapp%%2Fleader"`, term.Epoch())}, got.Header[leaderhttp.Header])
	})
}

// Only the published address is a target, with the client's path and query.
func TestRedirectGoesToTheLeaderAlone(t *testing.T) {
	e, _ := follower(t, "lead:8080")
	secure, _ := follower(t, "https://lead.example:443")
	for target, want := range map[string]string{
		"/":                           "http://lead:8080/",
		"/a%2Fb//c?x=1;y=%zz&z":       "http://lead:8080/a%2Fb//c?x=1;y=%zz&z",
		"/?":                          "http://lead:8080/?",
		"//evil.example/x":            "http://lead:8080//evil.example/x",
		"http://evil.example/x?y":     "http://lead:8080/x?y",
		"http://u:p@evil.example/":    "http://lead:8080/",
		"/x?next=http://evil.example": "http://lead:8080/x?next=http://evil.example",
	} {
		// httptest.NewRequest would panic for some; this is what a server reads.
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("POST " + target + " HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 1\r\n\r\nx")))
		require.NoError(t, err)
		resp := ask(leaderhttp.Redirect(e, never(t), nil), r)
		require.Equal(t, http.StatusTemporaryRedirect, resp.StatusCode)
		require.Equal(t, want, resp.Header.Get("Location"))
		require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
	}
	for scheme, want := range map[string]string{"": "http://lead:8080/", "https": "https://lead:8080/"} {
		resp := ask(leaderhttp.Redirect(e, never(t), &leaderhttp.Options{Scheme: scheme}), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
		require.Equal(t, want, resp.Header.Get("Location"))
	}
	// Who asked the leader's address would ask it for ever.
	for host, h := range map[string]http.Handler{
		"LEAD:8080":    leaderhttp.Redirect(e, never(t), nil),
		"lead.example": leaderhttp.Redirect(secure, never(t), nil),
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.Host = host
		resp := ask(h, r)
		name, _ := kind(t, resp)
		require.Equal(t, "not-leading", name, host)
		require.Equal(t, "1", resp.Header.Get("Retry-After"))
	}
}

// Two candidates that each take the other for the leader do not pass a request to
// and fro.
func TestLoopsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		a, _ := follower(t, "b:80")
		b, _ := follower(t, "a:80")
		var hops atomic.Int32
		for addr, e := range map[string]*tenure.Elector{"a:80": a, "b:80": b} {
			h := leaderhttp.Proxy(e, never(t), &leaderhttp.Options{Transport: n.transport()})
			n.serve(addr, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				hops.Add(1)
				h.ServeHTTP(w, r)
			}))
		}
		self, _ := follower(t, "self:80")
		h := leaderhttp.Proxy(self, never(t), &leaderhttp.Options{Transport: n.transport()})
		n.serve("self:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			hops.Add(1)
			h.ServeHTTP(w, r)
		}))
		client := &http.Client{Transport: n.transport(), Timeout: limit}
		for _, start := range []string{"a:80", "b:80", "self:80"} {
			hops.Store(0)
			resp, err := client.Get("http://" + start + "/")
			require.NoError(t, err)
			name, _ := kind(t, resp)
			require.Equal(t, "not-leading", name)
			require.Equal(t, "1", resp.Header.Get("Retry-After"))
			require.EqualValues(t, 2, hops.Load())
			require.NoError(t, resp.Body.Close())
		}
		resp := ask(leaderhttp.Redirect(a, never(t), nil), marked(t, `"1:%2Fapp%2Fleader"`))
		name, _ := kind(t, resp)
		require.Equal(t, "not-leading", name)
	})
}

func marked(t *testing.T, fields ...string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
	r.Header[leaderhttp.Header] = fields
	return r
}

// A leader serves what is meant for its term or an older one. What is meant for a
// later one it refuses: it has been replaced, whatever its clock says.
func TestMarkIsHeldAgainstTheTerm(t *testing.T) {
	each(t, func(t *testing.T, handler func(*tenure.Elector, http.Handler, *leaderhttp.Options) http.Handler) {
		e, err := tenuretest.NewElection(key).Elector(&tenure.Options{MinEpoch: 41})
		require.NoError(t, err)
		run(t, e)
		require.Eventually(t, func() bool { return e.Term() != nil }, limit, time.Millisecond)
		h := handler(e, says("me"), nil)
		for _, fields := range [][]string{
			nil, {`"42:%2Fapp%2Fleader"`}, {`"41:%2Fapp%2Fleader"`}, {`"43:%2Fother"`}, {`"43:%2Fother"`, `"42:%2Fapp%2Fleader"`},
		} {
			resp := ask(h, marked(t, fields...))
			require.Equal(t, http.StatusOK, resp.StatusCode, fields)
			require.Equal(t, "me", read(t, resp))
			require.Empty(t, resp.Header[leaderhttp.Header])
		}
		for _, fields := range [][]string{{`"43:%2Fapp%2Fleader"`}, {`"9:%2Fother" , "43:%2Fapp%2Fleader"`}} {
			resp := ask(h, marked(t, fields...))
			require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
			name, p := kind(t, resp)
			require.Equal(t, "not-leading", name)
			require.EqualValues(t, 42, p.Epoch)
			require.Equal(t, []string{`"43:%2Fapp%2Fleader"`}, resp.Header[leaderhttp.Header])
		}
		for says, fields := range map[string][]string{
			"has no quotes":             {`42:%2Fapp%2Fleader`},
			"has no epoch":              {`"x:%2Fapp%2Fleader"`},
			`"0:%2Fapp`:                 {`"0:%2Fapp%2Fleader"`},
			"has no key":                {`"42:"`},
			"%zz":                       {`"42:%zz"`},
			"is not spelled as it must": {`"042:%2Fapp%2Fleader"`},
			"/app/leader":               {`"42:/app/leader"`},
			"two Strings":               {`"42:%2Fapp%2Fleader"`, `"41:%2Fapp%2Fleader"`},
			`""`:                        {""},
			"9223372036854775808":       {`"9223372036854775808:%2Fapp%2Fleader"`},
		} {
			resp := ask(h, marked(t, fields...))
			require.Equal(t, http.StatusBadRequest, resp.StatusCode, says)
			name, p := kind(t, resp)
			require.Equal(t, "mark-malformed", name)
			require.Contains(t, p.Detail, says)
		}
	})
}

// failing is a transport that fails without telling how far it came.
type failing struct{ err error }

func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }

// What cannot be brought to the leader is answered as the package comment says, and
// the reason is told here alone.
func TestAnswersOfAStandby(t *testing.T) {
	secret := errors.New("secret")
	idle, err := tenuretest.NewElection(key).Elector(nil)
	require.NoError(t, err)
	led := func(address string) *tenure.Elector {
		e, _ := follower(t, address)
		return e
	}
	cases := map[string]struct {
		elector *tenure.Elector
		base    http.RoundTripper
		status  int
		kind    string
		says    string
	}{
		"Idle":        {idle, nil, 503, "leader-unknown", "the elector is idle"},
		"NoAddress":   {led(""), nil, 503, "no-address", "publishes no address"},
		"Path":        {led("http://lead/x"), nil, 503, "no-address", "more than a host"},
		"User":        {led("http://u:p@lead"), nil, 503, "no-address", "more than a host"},
		"Query":       {led("lead:80?x"), nil, 503, "no-address", "more than a host"},
		"Fragment":    {led("lead:80#x"), nil, 503, "no-address", "more than a host"},
		"Script":      {led("javascript://lead/"), nil, 503, "no-address", "another scheme"},
		"NoHost":      {led(":80"), nil, 503, "no-address", "has no host"},
		"NoURL":       {led("a b"), nil, 503, "no-address", "is no URL"},
		"Port":        {led("lead:65536"), nil, 503, "no-address", "no valid port"},
		"Port0":       {led("lead:0"), nil, 503, "no-address", "no valid port"},
		"BrokenProxy": {led("lead:80"), failing{secret}, 502, "outcome-unknown", "secret"},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			var told error
			opts := &leaderhttp.Options{Transport: tt.base, Failed: func(_ *http.Request, err error) { told = err }}
			for _, handler := range []func(*tenure.Elector, http.Handler, *leaderhttp.Options) http.Handler{leaderhttp.Proxy, leaderhttp.Redirect} {
				told = nil
				if tt.base != nil {
					handler = leaderhttp.Proxy
				}
				resp := ask(handler(tt.elector, never(t), opts), httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader("x")))
				require.Equal(t, tt.status, resp.StatusCode)
				got, p := kind(t, resp)
				require.Equal(t, tt.kind, got)
				require.Empty(t, resp.Header["Retry-After"], "nothing is known of when this will end")
				require.Empty(t, p.Detail)
				require.ErrorContains(t, told, tt.says)
				require.Equal(t, tt.status == 502, errors.Is(told, tenure.ErrUnknownOutcome))
			}
		})
	}
	require.PanicsWithValue(t, `leaderhttp: Options.Scheme is "ftp": it must be "http" or "https"`, func() {
		leaderhttp.Proxy(idle, nil, &leaderhttp.Options{Scheme: "ftp"})
	})
}

// A request that was sent and not answered has an unknown outcome, and is not sent
// again.
func TestProxyNeverRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		e, _ := follower(t, "lead:80")
		var served atomic.Int32
		n.serve("lead:80", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			served.Add(1)
			_, _ = io.Copy(io.Discard, r.Body)
			panic(http.ErrAbortHandler)
		}))
		h := leaderhttp.Proxy(e, never(t), &leaderhttp.Options{Transport: n.transport()})
		resp := ask(h, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader("x")))
		name, _ := kind(t, resp)
		require.Equal(t, "outcome-unknown", name)
		require.EqualValues(t, 1, served.Load())
	})
}

// Retry-After of a leader that is gone: from the first failure on its lease can
// last a TTL, and in that time the next leader is there.
func TestRetryAfterIsTheTimeThatIsLeft(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		n := newNetwork(t)
		first, second := s.Client(), s.Client()
		lead := elector(t, first, "first:80", 10*time.Second)
		run(t, lead)
		etcdtest.Eventually(t, limit, "Term()", true, func() bool { return lead.Term() != nil })
		standby := elector(t, second, "second:80", 10*time.Second)
		base := n.transport()
		h := leaderhttp.Proxy(standby, says("second"), &leaderhttp.Options{Transport: base})
		get := func() *http.Response {
			return ask(h, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
		}
		require.Equal(t, "leader-unknown", first1(kind(t, get())))
		run(t, standby)
		etcdtest.Eventually(t, limit, "State", tenure.Led, func() tenure.State { return standby.Status().State })
		stop := n.serve("first:80", leaderhttp.Proxy(lead, says("first"), nil))
		require.Equal(t, "first", read(t, get()))

		// A client that leaves says nothing about the leader.
		base.CloseIdleConnections()
		n.swallow("first:80", true)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Equal(t, "leader-unreachable", first1(kind(t, ask(h, httptest.NewRequestWithContext(short, http.MethodGet, "/", nil)))))
		n.swallow("first:80", false)
		time.Sleep(3 * time.Second)

		// Neither does a failure that is over. A leader that is there and cannot be
		// reached may be back at any time.
		stop()
		require.Equal(t, "10", get().Header.Get("Retry-After"))
		time.Sleep(20 * time.Second)
		require.Equal(t, "1", get().Header.Get("Retry-After"))
		stop = n.serve("first:80", leaderhttp.Proxy(lead, says("first"), nil))
		require.Equal(t, "first", read(t, get()))

		time.Sleep(5 * time.Second)
		first.Link.Cut()
		stop()
		began := time.Now()
		var waits []string
		for {
			resp := get()
			if resp.StatusCode == http.StatusOK {
				require.Equal(t, "second", read(t, resp))
				break
			}
			name, p := kind(t, resp)
			require.Equal(t, "leader-unreachable", name)
			require.NotZero(t, p.Epoch)
			want := max(int((10*time.Second-time.Since(began)+time.Second-1)/time.Second), 1)
			require.Equal(t, fmt.Sprint(want), resp.Header.Get("Retry-After"), time.Since(began))
			waits = append(waits, resp.Header.Get("Retry-After"))
			time.Sleep(700 * time.Millisecond)
		}
		require.Equal(t, "10", waits[0])
		require.Less(t, time.Since(began), 11500*time.Millisecond)
		require.Greater(t, len(waits), 8)

		// It is cut off itself now: what is sent to it as the leader is refused for
		// as long as its term can still stand in etcd.
		second.Link.Cut()
		etcdtest.Eventually(t, limit, "State", tenure.Unreachable, func() tenure.State { return standby.Status().State })
		st := standby.Status()
		resp := ask(h, marked(t, fmt.Sprintf(`"%d:%%2Fapp%%2Fleader"`, st.Leader.Fence.Epoch)))
		require.Equal(t, "not-leading", first1(kind(t, resp)))
		require.Equal(t, "1", resp.Header.Get("Retry-After"), "its own lease is lost, nothing is left of it")
	})
}

func first1[A, B any](a A, _ B) A { return a }

func elector(t testing.TB, c *etcdtest.Client, address string, ttl time.Duration) *tenure.Elector {
	t.Helper()
	e, err := tenure.New(c.Client, key, &tenure.Options{Identity: address, Address: address, TTL: ttl})
	require.NoError(t, err)
	return e
}

// A follower that does not hear etcd refuses what is meant for the leader until the
// term that it may have missed is over.
func TestRetryAfterOfWhoDoesNotHearEtcd(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		leader, c := elector(t, s.Client(), "first:80", 10*time.Second), s.Client()
		run(t, leader)
		etcdtest.Eventually(t, limit, "Term()", true, func() bool { return leader.Term() != nil })
		e := elector(t, c, "second:80", 10*time.Second)
		run(t, e)
		etcdtest.Eventually(t, limit, "State", tenure.Led, func() tenure.State { return e.Status().State })
		h := leaderhttp.Proxy(e, never(t), nil)
		refused := func() string {
			resp := ask(h, marked(t, fmt.Sprintf(`"%d:%%2Fapp%%2Fleader"`, leader.Term().Epoch())))
			require.Equal(t, "not-leading", first1(kind(t, resp)))
			return resp.Header.Get("Retry-After")
		}
		time.Sleep(time.Minute)
		require.Equal(t, "1", refused(), "it knows who leads")
		c.Link.Cut()
		etcdtest.Eventually(t, limit, "State", tenure.Unreachable, func() tenure.State { return e.Status().State })
		st := e.Status()
		require.Equal(t, 10*time.Second, st.TTL)
		want := int((time.Until(st.Seen.Add(10*time.Second)) + time.Second - 1) / time.Second)
		require.Greater(t, want, 1)
		require.Equal(t, fmt.Sprint(want), refused())
		time.Sleep(10 * time.Second)
		require.Equal(t, "1", refused())
	})
}

// Nobody leads, and this candidate must wait a little.
func TestVacancy(t *testing.T) {
	each(t, func(t *testing.T, handler func(*tenure.Elector, http.Handler, *leaderhttp.Options) http.Handler) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			e := elector(t, s.Client(), "me:80", 6*time.Second)
			run(t, e)
			etcdtest.Eventually(t, limit, "Term()", true, func() bool { return e.Term() != nil })
			require.NoError(t, tenure.Evict(t.Context(), s.Admin(), e.Term().Fence(), nil))
			etcdtest.Eventually(t, limit, "State", tenure.Vacant, func() tenure.State { return e.Status().State })
			resp := ask(handler(e, never(t), nil), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
			require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
			require.Equal(t, "no-leader", first1(kind(t, resp)))
			require.Equal(t, "1", resp.Header.Get("Retry-After"))
		})
	})
}

// Events arrive one by one, and a protocol upgrade goes through.
func TestStreamsPassTheProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		election := tenuretest.NewElection(key)
		lead := candidate(t, election, "lead:80")
		synctest.Wait()
		standby := candidate(t, election, "standby:80")
		synctest.Wait()
		app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/echo" {
				require.Equal(t, "websocket", r.Header.Get("Upgrade"))
				conn, rw, err := http.NewResponseController(w).Hijack()
				require.NoError(t, err)
				defer conn.Close()
				_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
				_, _ = io.Copy(conn, rw)
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			if r.URL.Path == "/sized" {
				w.Header().Set("Content-Type", "text/plain")
				w.Header().Set("Content-Length", "27")
			}
			for i := range 3 {
				if i > 0 {
					time.Sleep(time.Second)
				}
				_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
				require.NoError(t, http.NewResponseController(w).Flush())
			}
		})
		n.serve("lead:80", leaderhttp.Proxy(lead, app, nil))
		n.serve("standby:80", leaderhttp.Proxy(standby, never(t), &leaderhttp.Options{Transport: n.transport()}))

		for _, path := range []string{"/", "/sized"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://standby:80"+path, nil)
			require.NoError(t, err)
			began := time.Now()
			resp, err := n.transport().RoundTrip(req)
			require.NoError(t, err)
			lines := bufio.NewScanner(resp.Body)
			for i := range 3 {
				require.True(t, lines.Scan())
				require.Equal(t, fmt.Sprintf("data: %d", i), lines.Text())
				require.Equal(t, time.Duration(i)*time.Second, time.Since(began))
				require.True(t, lines.Scan())
			}
			require.NoError(t, resp.Body.Close())
		}

		conn, err := n.dial(t.Context(), "tcp", "standby:80")
		require.NoError(t, err)
		defer conn.Close()
		_, err = io.WriteString(conn, "GET /echo HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		require.NoError(t, err)
		r := bufio.NewReader(conn)
		resp, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
		for _, word := range []string{"hello", "again"} {
			_, err = io.WriteString(conn, word+"\n")
			require.NoError(t, err)
			line, err := r.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, word+"\n", line)
		}
	})
}

// The address of the client is added to those that are known.
func TestProxyAddsTheClientsAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		e, _ := follower(t, "lead:80")
		var got http.Header
		n.serve("lead:80", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header }))
		h := leaderhttp.Proxy(e, never(t), &leaderhttp.Options{Transport: n.transport()})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://app.example/", nil)
		r.RemoteAddr = net.JoinHostPort("192.0.2.7", "1234")
		ask(h, r)
		require.Equal(t, "192.0.2.7", got.Get("X-Forwarded-For"))
		require.Equal(t, "app.example", got.Get("X-Forwarded-Host"))
		require.Equal(t, "http", got.Get("X-Forwarded-Proto"))
		r.Header.Set("X-Forwarded-For", "203.0.113.9")
		ask(h, r)
		require.Equal(t, "203.0.113.9, 192.0.2.7", got.Get("X-Forwarded-For"))
	})
}

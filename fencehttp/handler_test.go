package fencehttp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fencehttp"
	"github.com/tenure-go/tenure/internal/etcdtest"
	"github.com/tenure-go/tenure/tenuretest"
)

// limit bounds what should take no time.
const limit = 30 * time.Second

// memory is a gate's memory made of a function.
type memory func(context.Context, tenure.Fence) error

func (m memory) Seal(ctx context.Context, fence tenure.Fence) error { return m(ctx, fence) }

// serve serves h over HTTP/1.1 or HTTP/2 and returns a client of it, which sends
// fence with every request; the zero fence: none.
func serve(t *testing.T, h http.Handler, http2 bool) (url string, client func(fence tenure.Fence) *http.Client) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = http2
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL, func(fence tenure.Fence) *http.Client {
		base := s.Client().Transport
		if fence == (tenure.Fence{}) {
			return &http.Client{Transport: base, Timeout: limit}
		}
		return &http.Client{Transport: fencehttp.Transport(base, always(fence)), Timeout: limit}
	}
}

// overBoth runs f for both versions of HTTP.
func overBoth(t *testing.T, f func(t *testing.T, http2 bool)) {
	t.Helper()
	t.Run("HTTP1", func(t *testing.T) { f(t, false) })
	t.Run("HTTP2", func(t *testing.T) { f(t, true) })
}

// result is what came of a request.
type result struct {
	status int
	body   string
	err    error // of the request, or of reading the body
	fenced error // what Refused says
}

func do(req *http.Request, client *http.Client) result {
	resp, err := client.Do(req)
	if err != nil {
		return result{err: err}
	}
	defer resp.Body.Close()
	r := result{status: resp.StatusCode, fenced: fencehttp.Refused(resp)}
	body, err := io.ReadAll(resp.Body)
	r.body, r.err = string(body), err
	return r
}

// post sends a request on a goroutine of its own.
func post(t *testing.T, client *http.Client, url string, body io.Reader) <-chan result {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	require.NoError(t, err)
	done := make(chan result, 1)
	go func() { done <- do(req, client) }()
	return done
}

func pending[T any](t *testing.T, c <-chan T, what string) {
	t.Helper()
	select {
	case got := <-c:
		require.Fail(t, what, "%v", got)
	default:
	}
}

func TestHandlerGivesTheFenceAndTheGatesContext(t *testing.T) {
	gate := tenure.NewGate(key)
	type private struct{}
	var during context.Context
	h := fencehttp.Handler(gate, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fence, ok := fencehttp.FromContext(r.Context())
		require.True(t, ok)
		require.Equal(t, fenceOf(5), fence)
		require.Equal(t, 42, r.Context().Value(private{}))
		require.NoError(t, r.Context().Err())
		during = r.Context()
		w.WriteHeader(http.StatusTeapot)
	}), nil)
	req := httptest.NewRequestWithContext(context.WithValue(t.Context(), private{}, 42), http.MethodPost, "/", nil)
	require.NoError(t, fencehttp.Set(req.Header, fenceOf(5)))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	require.Equal(t, http.StatusTeapot, w.Code)
	require.Error(t, during.Err(), "the handler has left, its context goes on")
	_, ok := fencehttp.FromContext(t.Context())
	require.False(t, ok)
}

// What does not pass is answered as the package comment says, and not handled.
func TestAnswersToWhatDoesNotPass(t *testing.T) {
	outOfReach := errors.New("dial tcp 10.0.0.9:5432: secret")
	type want struct {
		status int
		kind   string // of the problem
		detail string
		epoch  float64
	}
	cases := map[string]struct {
		fields []string
		want   want
		cause  error
	}{
		"Missing":       {nil, want{400, "fence-missing", "no field Tenure-Fence", 0}, nil},
		"Two":           {[]string{`"7:64:/scheduler/leader"`, `"7:64:/scheduler/leader"`}, want{400, "fence-malformed", "2 fields", 0}, nil},
		"OtherElection": {[]string{`"9:64:/scheduler/leader2"`}, want{400, "other-election", `"/scheduler/leader2" at a gate of "/scheduler/leader"`, 0}, nil},
		"Older":         {[]string{`"6:64:/scheduler/leader"`}, want{412, "fenced", "", 7}, tenure.ErrFenced},
		"AnotherLease":  {[]string{`"7:65:/scheduler/leader"`}, want{412, "fenced", "", 7}, tenure.ErrFenced},
		"OutOfReach":    {[]string{`"8:64:/scheduler/leader"`}, want{503, "gate-unavailable", "", 0}, outOfReach},
	}
	for name, tt := range malformed {
		cases["Malformed"+name] = struct {
			fields []string
			want   want
			cause  error
		}{[]string{tt.field}, want{400, "fence-malformed", tt.says, 0}, nil}
	}
	gate := tenure.NewGateWith(key, memory(func(_ context.Context, fence tenure.Fence) error {
		if fence.Epoch > 7 {
			return outOfReach
		}
		return nil
	}))
	require.NoError(t, gate.Seal(t.Context(), fenceOf(7)))
	var told error
	h := fencehttp.Handler(gate, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was let in") }),
		&fencehttp.Options{Refused: func(_ *http.Request, err error) { told = err }})
	for name, tt := range cases {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			t.Run(name+method, func(t *testing.T) {
				told = nil
				req := httptest.NewRequestWithContext(t.Context(), method, "/", nil)
				if tt.fields != nil {
					req.Header[fencehttp.Header] = tt.fields
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, req)
				require.Equal(t, tt.want.status, w.Code)
				require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
				require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
				var p map[string]any
				require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
				require.Equal(t, "tag:github.com,2026:tenure-go/tenure/"+tt.want.kind, p["type"])
				require.EqualValues(t, tt.want.status, p["status"])
				require.NotEmpty(t, p["title"])
				if tt.want.detail != "" {
					require.Contains(t, p["detail"], tt.want.detail)
				} else {
					require.NotContains(t, p, "detail")
				}
				if tt.want.epoch > 0 {
					require.Equal(t, tt.want.epoch, p["epoch"])
				} else {
					require.NotContains(t, p, "epoch")
				}
				require.NotContains(t, w.Body.String(), "secret")
				require.Equal(t, tt.want.status == 503, w.Header().Get("Retry-After") != "")
				if tt.want.status == 412 {
					require.Equal(t, tt.fields, w.Header()[fencehttp.Header])
					require.NotContains(t, w.Body.String(), "64", "the lease of the later term")
				} else {
					require.NotContains(t, w.Header(), fencehttp.Header)
				}
				require.Error(t, told)
				if tt.cause != nil {
					require.ErrorIs(t, told, tt.cause)
				}
			})
		}
	}
}

// The gate's memory hangs until the request ends.
func TestARequestThatEndsWhileItWaitsIsNotLetIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := tenure.NewGateWith(key, memory(func(ctx context.Context, _ tenure.Fence) error {
			<-ctx.Done()
			return ctx.Err()
		}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil)
		require.NoError(t, fencehttp.Set(req.Header, fenceOf(5)))
		w := httptest.NewRecorder()
		start := time.Now()
		fencehttp.Handler(gate, http.NotFoundHandler(), nil).ServeHTTP(w, req)
		require.Equal(t, http.StatusServiceUnavailable, w.Code)
		require.Equal(t, time.Second, time.Since(start))
	})
}

func TestTheClientKnowsARefusal(t *testing.T) {
	overBoth(t, func(t *testing.T, http2 bool) {
		gate := tenure.NewGate(key)
		require.NoError(t, gate.Seal(t.Context(), fenceOf(6)))
		url, client := serve(t, fencehttp.Handler(gate, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			require.Equal(t, http2, r.ProtoMajor == 2)
		}), nil), http2)

		for _, method := range []string{http.MethodPost, http.MethodHead} {
			req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(strings.Repeat("x", 1<<20)))
			require.NoError(t, err)
			r := do(req, client(fenceOf(5)))
			require.NoError(t, r.err)
			require.Equal(t, http.StatusPreconditionFailed, r.status)
			require.ErrorIs(t, r.fenced, tenure.ErrFenced)
			leader, ok := tenure.LeaderOf(r.fenced)
			require.Equal(t, method == http.MethodPost, ok) // the answer to a HEAD request tells no more
			if ok {
				require.Equal(t, tenure.Fence{Key: key, Epoch: 6}, leader.Fence)
				require.Contains(t, r.body, `"epoch":6`, "the body was lost")
			}
		}
		r := <-post(t, client(fenceOf(6)), url, nil)
		require.Equal(t, result{status: http.StatusOK}, r)
		r = <-post(t, client(tenure.Fence{}), url, nil)
		require.Equal(t, http.StatusBadRequest, r.status)
		require.NoError(t, r.fenced)
	})
}

func TestOptionalRequestsPassWithoutAFenceOnly(t *testing.T) {
	gate := tenure.NewGate(key)
	require.NoError(t, gate.Seal(t.Context(), fenceOf(6)))
	h := fencehttp.Handler(gate, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, ok := fencehttp.FromContext(r.Context())
		_, _ = fmt.Fprint(w, ok)
	}), &fencehttp.Options{Optional: fencehttp.Reading})
	for _, tt := range []struct {
		method, field string
		status        int
		body          string
	}{
		{"GET", "", 200, "false"},
		{"HEAD", "", 200, "false"},
		{"OPTIONS", "", 200, "false"},
		{"TRACE", "", 200, "false"},
		{"POST", "", 400, ""},
		{"PUT", "", 400, ""},
		{"PATCH", "", 400, ""},
		{"DELETE", "", 400, ""},
		{"CONNECT", "", 400, ""},
		{"get", "", 400, ""}, // methods have their case
		{"QUERY", "", 400, ""},
		{"GET", `"6:64:/scheduler/leader"`, 200, "true"},
		{"GET", `"5:64:/scheduler/leader"`, 412, ""},
		{"GET", "x", 400, ""},
		{"POST", `"6:64:/scheduler/leader"`, 200, "true"},
	} {
		req := httptest.NewRequest(tt.method, "/", nil)
		if tt.field != "" {
			req.Header.Set(fencehttp.Header, tt.field)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		require.Equal(t, tt.status, w.Code, "%v", tt)
		if tt.status == 200 {
			require.Equal(t, tt.body, w.Body.String(), "%v", tt)
		}
	}
}

// F05. The older handler is told to stop, the newer request waits until it has,
// and the older client is not told that all is well.
func TestALaterTermWaitsForTheHandlerOfTheOlder(t *testing.T) {
	overBoth(t, func(t *testing.T, http2 bool) {
		inside, leave := make(chan context.Context, 1), make(chan struct{})
		var writes []tenure.Epoch // guarded by the gate
		url, client := serve(t, fencehttp.Handler(tenure.NewGate(key), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			fence, _ := fencehttp.FromContext(r.Context())
			if fence.Epoch == 5 {
				inside <- r.Context()
				<-leave // a pause between the check and the write
			}
			writes = append(writes, fence.Epoch)
		}), nil), http2)
		old := post(t, client(fenceOf(5)), url, nil)
		work := etcdtest.Await(t, limit, "inside", inside)
		next := post(t, client(fenceOf(6)), url, nil)
		etcdtest.Await(t, limit, "Done", work.Done())
		require.ErrorIs(t, context.Cause(work), tenure.ErrFenced)

		r := <-post(t, client(fenceOf(5)), url, nil)
		require.ErrorIs(t, r.fenced, tenure.ErrFenced, "it was seen already")
		pending(t, next, "it did not wait")
		close(leave)
		require.Equal(t, result{status: http.StatusOK}, etcdtest.Await(t, limit, "next", next))
		require.Error(t, etcdtest.Await(t, limit, "old", old).err, "cut off in the middle, and told of a success")
		require.Equal(t, []tenure.Epoch{5, 6}, writes)
	})
}

// And that test can fail: this is what looks like a gate and is none.
func TestCheckingFirstAndActingLaterCorrupts(t *testing.T) {
	gate := tenure.NewGate(key)
	inside, leave := make(chan struct{}), make(chan struct{})
	written := make(chan tenure.Epoch, 2)
	url, client := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fence, _, err := fencehttp.Get(r.Header)
		if err != nil || gate.Seal(r.Context(), fence) != nil {
			return
		}
		if fence.Epoch == 5 {
			close(inside)
			<-leave
		}
		written <- fence.Epoch
	}), false)
	old := post(t, client(fenceOf(5)), url, nil)
	etcdtest.Await(t, limit, "inside", inside)
	require.Equal(t, http.StatusOK, (<-post(t, client(fenceOf(6)), url, nil)).status)
	close(leave)
	<-old
	require.Equal(t, tenure.Epoch(6), <-written)
	require.Equal(t, tenure.Epoch(5), <-written)
}

// The old leader is paused in the middle of its request, or does not read its
// answer. Its connection stays open, and no context ends the handler's wait for
// it.
func TestAPausedClientHoldsNoLaterTerm(t *testing.T) {
	overBoth(t, func(t *testing.T, http2 bool) {
		for name, wait := range map[string]func(w http.ResponseWriter, r *http.Request) error{
			"Reading": func(_ http.ResponseWriter, r *http.Request) error {
				_, err := io.Copy(io.Discard, r.Body)
				return err
			},
			"Writing": func(w http.ResponseWriter, _ *http.Request) error {
				for {
					if _, err := w.Write(make([]byte, 1<<20)); err != nil {
						return err
					}
				}
			},
		} {
			t.Run(name, func(t *testing.T) {
				inside, stopped := make(chan struct{}), make(chan error, 1)
				url, client := serve(t, fencehttp.Handler(tenure.NewGate(key), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if fence, _ := fencehttp.FromContext(r.Context()); fence.Epoch == 5 {
						close(inside)
						stopped <- wait(w, r)
					}
				}), nil), http2)

				read, write := io.Pipe()
				defer write.Close()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, read)
				require.NoError(t, err)
				answered := make(chan *http.Response, 1)
				go func() {
					defer close(answered)
					if resp, err := client(fenceOf(5)).Do(req); err == nil {
						answered <- resp // whose body nobody reads
					}
				}()
				_, err = write.Write([]byte("the first half"))
				require.NoError(t, err)
				etcdtest.Await(t, limit, "inside", inside)

				r := etcdtest.Await(t, limit, "next", post(t, client(fenceOf(6)), url, nil))
				require.Equal(t, result{status: http.StatusOK}, r)
				require.Error(t, etcdtest.Await(t, limit, "stopped", stopped))
				cancel()
				require.NoError(t, write.Close()) // the client waits for its body, too
				if resp := <-answered; resp != nil {
					require.NoError(t, resp.Body.Close())
				}
			})
		}
	})
}

// A stream that the gate ends must not look complete.
func TestAStreamThatIsCutOffIsNotTakenForWhole(t *testing.T) {
	overBoth(t, func(t *testing.T, http2 bool) {
		url, client := serve(t, fencehttp.Handler(tenure.NewGate(key), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if fence, _ := fencehttp.FromContext(r.Context()); fence.Epoch > 5 {
				return
			}
			_, _ = fmt.Fprintln(w, "first")
			require.NoError(t, http.NewResponseController(w).Flush())
			<-r.Context().Done()
		}), nil), http2)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		require.NoError(t, err)
		resp, err := client(fenceOf(5)).Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		lines := bufio.NewReader(resp.Body)
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "first\n", line, "the stream was held back")

		r := etcdtest.Await(t, limit, "next", post(t, client(fenceOf(6)), url, nil))
		require.Equal(t, result{status: http.StatusOK}, r)
		_, err = lines.ReadString('\n')
		require.Error(t, err)
		require.NotEqual(t, io.EOF, err)
	})
}

// A handler that panics has left all the same.
func TestAHandlerThatPanicsLeavesTheGate(t *testing.T) {
	gate := tenure.NewGate(key)
	url, client := serve(t, fencehttp.Handler(gate, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler)
	}), nil), false)
	require.Error(t, (<-post(t, client(fenceOf(5)), url, nil)).err)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	require.NoError(t, gate.Seal(ctx, fenceOf(6)))
}

// A connection that was taken over is inside until its handler returns.
func TestAHijackedConnectionIsInsideTheGate(t *testing.T) {
	gate := tenure.NewGate(key)
	inside, stopped := make(chan struct{}), make(chan error, 1)
	url, client := serve(t, fencehttp.Handler(gate, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		close(inside)
		_, err = conn.Read(make([]byte, 1))
		stopped <- err
	}), nil), false)
	old := post(t, client(fenceOf(5)), url, nil)
	etcdtest.Await(t, limit, "inside", inside)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	require.NoError(t, gate.Seal(ctx, fenceOf(6)))
	var timeout net.Error
	require.ErrorAs(t, etcdtest.Await(t, limit, "stopped", stopped), &timeout)
	require.Error(t, (<-old).err)
}

// Two gates, one behind the other: the refusal of the inner one, which the outer
// handler passes on, says nothing about the fence of the outer one's client.
func TestARefusalThatIsPassedOnIsNotTheCallers(t *testing.T) {
	inner := tenure.NewGate("/other")
	require.NoError(t, inner.Seal(t.Context(), tenure.Fence{Key: "/other", Epoch: 9, Lease: 1}))
	behind, toBehind := serve(t, fencehttp.Handler(inner, http.NotFoundHandler(), nil), false)
	url, client := serve(t, fencehttp.Handler(tenure.NewGate(key), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, behind, nil)
		if err != nil {
			panic(err)
		}
		resp, err := toBehind(tenure.Fence{Key: "/other", Epoch: 8, Lease: 1}).Do(req)
		if err != nil {
			panic(err)
		}
		defer resp.Body.Close()
		for name, values := range resp.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	}), nil), false)
	r := <-post(t, client(fenceOf(5)), url, nil)
	require.Equal(t, http.StatusPreconditionFailed, r.status)
	require.NoError(t, r.fenced)
}

// Nobody who makes a fence up gets in, or gets the leader out.
func TestAGateThatAsksEtcdBelievesNoInvention(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		elector, err := tenure.New(s.Client().Client, key, nil)
		require.NoError(t, err)
		term, err := elector.Campaign(t.Context())
		require.NoError(t, err)
		defer func() { _ = term.Resign() }()
		c := s.Client()
		h := fencehttp.Handler(tenure.NewGateWith(key, tenure.EtcdMemory(c.Client)), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut {
				<-r.Context().Done()
			}
		}), nil)
		request := func(ctx context.Context, method string, fence tenure.Fence) int {
			req := httptest.NewRequestWithContext(ctx, method, "/", nil)
			require.NoError(t, fencehttp.Set(req.Header, fence))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, req)
			return w.Code
		}
		c.Link.Cut()
		require.Equal(t, 503, request(t.Context(), http.MethodPost, term.Fence()), "not even the first fence is believed")
		c.Link.Heal()
		require.Equal(t, 200, request(t.Context(), http.MethodPost, term.Fence()))

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan int, 1)
		go func() { done <- request(ctx, http.MethodPut, term.Fence()) }()
		synctest.Wait()
		invented := term.Fence()
		invented.Epoch++
		require.Equal(t, 412, request(t.Context(), http.MethodPost, invented))
		synctest.Wait()
		pending(t, done, "the leader was thrown out")
		require.Equal(t, 200, request(t.Context(), http.MethodPost, term.Fence()))
		c.Link.Cut()
		require.Equal(t, 503, request(t.Context(), http.MethodPost, invented))
		require.Equal(t, 200, request(t.Context(), http.MethodPost, term.Fence()), "what is known needs no memory")
		cancel()
		require.Equal(t, 200, <-done)
	})
}

// The leader learns from a refusal that it was replaced, and campaigns again.
func TestRunCampaignsAgainAfterARefusal(t *testing.T) {
	gate := tenure.NewGate(key)
	url, client := serve(t, fencehttp.Handler(gate, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil), false)
	election := tenuretest.NewElection(key)
	term := election.Grant(nil)
	require.NoError(t, gate.Seal(t.Context(), tenure.Fence{Key: key, Epoch: term.Epoch() + 1, Lease: 1}))
	c := client(tenure.Fence{})
	c.Transport = fencehttp.Transport(c.Transport, fencehttp.FromTerm(term))
	r := <-post(t, c, url, strings.NewReader("write"))
	require.ErrorIs(t, r.fenced, tenure.ErrFenced)
	require.NoError(t, term.Resign())
	require.ErrorIs(t, (<-post(t, c, url, nil)).err, tenure.Resigned)
}

// The answer is cut off also where the writer knows no deadlines.
func TestAnAnswerIsCutOffWhateverTheWriter(t *testing.T) {
	gate := tenure.NewGate(key)
	sealed := make(chan error, 1)
	h := fencehttp.Handler(gate, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		go func() { sealed <- gate.Seal(t.Context(), fenceOf(6)) }()
		<-r.Context().Done()
	}), nil)
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
	require.NoError(t, fencehttp.Set(req.Header, fenceOf(5)))
	require.PanicsWithValue(t, http.ErrAbortHandler, func() { h.ServeHTTP(httptest.NewRecorder(), req) })
	require.NoError(t, etcdtest.Await(t, limit, "Seal", sealed))
}

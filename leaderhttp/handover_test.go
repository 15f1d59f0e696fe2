package leaderhttp_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
	"github.com/tenure-go/tenure/leaderhttp"
)

// node is a candidate that serves HTTP on a real socket.
type node struct {
	*etcdtest.Client

	elector *tenure.Elector
	proxy   http.Handler // to elector
	addr    string
	server  *httptest.Server
}

// listen listens at the address that the node has, or takes one.
func (n *node) listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", cmp.Or(n.addr, "127.0.0.1:0"))
	require.NoError(t, err)
	if n.addr == "" { // clients read it later on
		n.addr = l.Addr().String()
	}
	return l
}

// serve begins to answer.
func (n *node) serve(l net.Listener) {
	n.server = httptest.NewUnstartedServer(n.proxy)
	_ = n.server.Listener.Close()
	n.server.Listener = l
	n.server.Start()
}

// crash breaks all connections of the node and its listener.
func (n *node) crash() {
	n.Link.Cut()
	n.server.CloseClientConnections()
	n.server.Close()
}

// service is what the nodes serve. It notes each request that it has answered.
type service struct {
	t testing.TB

	mu    sync.Mutex
	posts map[string]int
}

// ServeHTTP answers with the epoch of the term.
func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	term, ok := leaderhttp.TermFromContext(r.Context())
	if !assert.True(s.t, ok) {
		return
	}
	if r.Method == http.MethodPost {
		id, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client has gone
		}
		s.mu.Lock()
		s.posts[string(id)]++
		s.mu.Unlock()
	}
	_, _ = fmt.Fprint(w, int64(term.Epoch()))
}

// witness checks that nobody answers for an epoch below one that had been answered
// for before the question.
type witness struct{ seen atomic.Int64 }

func (w *witness) ask(t testing.TB, ask func() (epoch int64, ok bool)) {
	t.Helper()
	floor := w.seen.Load()
	epoch, ok := ask()
	if !ok {
		return
	}
	assert.GreaterOrEqual(t, epoch, floor, "answered by a leader that had been replaced before the question")
	for {
		old := w.seen.Load()
		if epoch <= old || w.seen.CompareAndSwap(old, epoch) {
			return
		}
	}
}

// Clients keep calling while the election changes hands in every way. Each call is
// answered by the leader of then, or refused.
func TestClientsKeepCallingThroughHandovers(t *testing.T) {
	const ttl = 2 * time.Second
	cluster := etcdtest.StartCluster(t, 3)
	app := &service{t: t, posts: make(map[string]int)}
	nodes := make([]*node, 3)
	direct := &http.Transport{}
	t.Cleanup(direct.CloseIdleConnections)
	for i := range nodes {
		n := &node{Client: cluster.Client()}
		nodes[i] = n
		l := n.listen(t)
		n.elector = elector(t, n.Client, n.addr, ttl)
		n.proxy = leaderhttp.Proxy(n.elector, app, &leaderhttp.Options{Transport: direct})
		n.serve(l)
		t.Cleanup(func() { n.server.Close() })
		run(t, n.elector)
	}
	leader := func() *node {
		var found *node
		etcdtest.Eventually(t, time.Minute, "a node leads", true, func() bool {
			for _, n := range nodes {
				if n.elector.Term() != nil {
					found = n
				}
			}
			return found != nil
		})
		return found
	}
	leader()

	observer := cluster.Client()
	tr, err := leaderhttp.NewTransport(observer.Client, key, &leaderhttp.TransportOptions{Base: direct})
	require.NoError(t, err)
	defer tr.Close()

	var (
		clients     sync.WaitGroup
		stop        = make(chan struct{})
		byProxy     witness
		byTransport witness
		answered    [3]atomic.Int64 // by proxies; GET and POST by the Transport
		unknown     atomic.Int64
		ids         atomic.Int64
		problems    sync.Map
		keep        = func(f func()) {
			clients.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						f()
						time.Sleep(time.Millisecond)
					}
				}
			})
		}
		number = func(resp *http.Response) (int64, bool) {
			defer resp.Body.Close()
			var epoch int64
			if err := json.NewDecoder(resp.Body).Decode(&epoch); err != nil {
				return 0, false // cut off: the term had ended
			}
			return epoch, true
		}
	)
	send := func(rt http.RoundTripper, method, url, body string) (*http.Response, error) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
		if err != nil {
			panic(err)
		}
		resp, err := rt.RoundTrip(req)
		if err != nil {
			cancel()
			return nil, err
		}
		resp.Body = &closing{resp.Body, cancel}
		return resp, nil
	}
	for range 2 {
		keep(func() { // any candidate
			byProxy.ask(t, func() (int64, bool) {
				resp, err := send(direct, http.MethodPost, "http://"+nodes[rand.N(3)].addr+"/", fmt.Sprint("p", ids.Add(1)))
				if err != nil {
					return 0, false // it has crashed, or its term had ended before it could answer
				}
				if resp.StatusCode != http.StatusOK {
					defer resp.Body.Close()
					var p problem
					assert.NoError(t, json.NewDecoder(resp.Body).Decode(&p))
					problems.Store(p.Type[strings.LastIndex(p.Type, "/")+1:], true)
					return 0, false
				}
				epoch, ok := number(resp)
				if ok {
					answered[0].Add(1)
				}
				return epoch, ok
			})
		})
		keep(func() { // the leader, safely
			byTransport.ask(t, func() (int64, bool) {
				resp, err := send(tr, http.MethodGet, "http://leader/", "")
				if !assert.NoError(t, err) || !assert.Equal(t, http.StatusOK, resp.StatusCode) {
					return 0, false
				}
				answered[1].Add(1)
				return number(resp)
			})
		})
		keep(func() { // the leader, once
			byTransport.ask(t, func() (int64, bool) {
				resp, err := send(tr, http.MethodPost, "http://leader/", fmt.Sprint("t", ids.Add(1)))
				if errors.Is(err, tenure.ErrUnknownOutcome) {
					unknown.Add(1)
					return 0, false
				}
				if !assert.NoError(t, err) || !assert.Equal(t, http.StatusOK, resp.StatusCode) {
					return 0, false
				}
				answered[2].Add(1)
				return number(resp)
			})
		})
	}

	// arrived waits until both kinds of client are answered for a term after epoch.
	var slowest time.Duration
	arrived := func(epoch tenure.Epoch) {
		t.Helper()
		etcdtest.Eventually(t, time.Minute, "the takeover reaches the watch", true, func() bool { return tr.Status().Leader.Fence.Epoch > epoch })
		known := time.Now()
		etcdtest.Eventually(t, 30*time.Second, "the Transport's clients are answered by the next leader", true, func() bool { return byTransport.seen.Load() > int64(epoch) })
		slowest = max(slowest, time.Since(known))
		etcdtest.Eventually(t, 30*time.Second, "the proxies' clients are answered by the next leader", true, func() bool { return byProxy.seen.Load() > int64(epoch) })
	}
	for range 20 {
		term := leader().elector.Term()
		if term == nil {
			continue // lost meanwhile, on a busy machine: a change of hands, too
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := tenure.Evict(ctx, cluster.Admin(), term.Fence(), nil)
		cancel()
		if !errors.Is(err, tenure.ErrFenced) && !errors.Is(err, tenure.ErrNoLeader) {
			require.NoError(t, err)
		}
		arrived(term.Epoch())
	}
	for range 5 {
		n := leader()
		epoch := n.elector.Status().Leader.Fence.Epoch
		n.crash()
		arrived(epoch)
		n.Link.Heal()
		n.serve(n.listen(t))
	}
	for range 2 {
		epoch := leader().elector.Status().Leader.Fence.Epoch
		for i := range 3 {
			cluster.Stop(i)
		}
		for _, n := range nodes {
			etcdtest.Eventually(t, time.Minute, "Term()", true, func() bool { return n.elector.Term() == nil })
		}
		for i := range 3 {
			cluster.Restart(i)
		}
		arrived(epoch)
	}
	close(stop)
	clients.Wait()

	for i := range answered {
		require.Positive(t, answered[i].Load())
	}
	app.mu.Lock()
	defer app.mu.Unlock()
	require.NotEmpty(t, app.posts)
	for id, n := range app.posts {
		require.Equal(t, 1, n, "the body %q has come more than once", id)
	}
	problems.Range(func(name, _ any) bool {
		require.Contains(t, []string{"no-leader", "not-leading", "leader-unknown", "leader-unreachable", "outcome-unknown"}, name)
		return true
	})
	t.Logf("answered: %d by proxies, %d GET and %d POST by the Transport, %d of unknown outcome; the slowest first answer came %v after the news",
		answered[0].Load(), answered[1].Load(), answered[2].Load(), unknown.Load(), slowest)
	require.Less(t, slowest, 5*time.Second)
}

// closing ends a context with a body.
type closing struct {
	io.ReadCloser

	end func()
}

func (c *closing) Close() error {
	defer c.end()
	return c.ReadCloser.Close()
}

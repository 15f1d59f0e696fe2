package leaderhttp_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/tenuretest"
)

const key = "/app/leader"

// limit bounds what should take no time.
const limit = 30 * time.Second

// network is a network of HTTP servers in memory, which works in a bubble.
type network struct {
	t testing.TB

	mu    sync.Mutex
	hosts map[string]*listener
	holes map[string]bool // hosts that swallow everything
	dials map[string]int
}

func newNetwork(t testing.TB) *network {
	t.Helper()
	return &network{t: t, hosts: make(map[string]*listener), holes: make(map[string]bool), dials: make(map[string]int)}
}

var errRefused = errors.New("connection refused")

func (n *network) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	n.mu.Lock()
	l, hole := n.hosts[addr], n.holes[addr]
	n.dials[addr]++
	n.mu.Unlock()
	switch {
	case hole:
		<-ctx.Done()
		return nil, ctx.Err()
	case l == nil:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errRefused}
	}
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.done:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errRefused}
	}
}

// transport returns a transport on the network, closed when the test ends.
func (n *network) transport() *http.Transport {
	tr := &http.Transport{DialContext: n.dial}
	n.t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// serve serves h at addr until stop is called or the test ends. To stop breaks all
// connections.
func (n *network) serve(addr string, h http.Handler) (stop func()) {
	l := &listener{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
	s := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	n.mu.Lock()
	n.hosts[addr] = l
	n.mu.Unlock()
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l)
	}()
	stop = sync.OnceFunc(func() {
		n.mu.Lock()
		if n.hosts[addr] == l {
			delete(n.hosts, addr)
		}
		n.mu.Unlock()
		_ = s.Close()
		<-served
	})
	n.t.Cleanup(stop)
	return stop
}

// swallow makes addr a host that is gone, or back: dials to it hang.
func (n *network) swallow(addr string, gone bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.holes[addr] = gone
}

func (n *network) dialed(addr string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials[addr]
}

type listener struct {
	addr  string
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *listener) Addr() net.Addr { return pipeAddr(l.addr) }

type pipeAddr string

func (pipeAddr) Network() string  { return "pipe" }
func (a pipeAddr) String() string { return string(a) }

// problem is a problem document as a client reads it.
type problem struct {
	Type   string
	Title  string
	Status int
	Detail string
	Epoch  tenure.Epoch
}

// kind returns the last part of the problem's type, after checking that resp is a
// whole problem document.
func kind(t testing.TB, resp *http.Response) (string, problem) {
	t.Helper()
	require.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
	require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
	var p problem
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&p))
	require.Equal(t, resp.StatusCode, p.Status)
	require.NotEmpty(t, p.Title)
	name, ok := strings.CutPrefix(p.Type, "tag:github.com,2026:tenure-go/tenure/")
	require.True(t, ok, p.Type)
	return name, p
}

// ask has a handler answer a request without a network.
func ask(h http.Handler, r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

// says is a handler that names itself.
func says(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) })
}

func read(t testing.TB, resp *http.Response) string {
	t.Helper()
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(body)
}

// candidate returns an elector that runs in election until the test ends. Its
// work ends with its context.
func candidate(t testing.TB, election *tenuretest.Election, address string) *tenure.Elector {
	t.Helper()
	e, err := election.Elector(&tenure.Options{Address: address})
	require.NoError(t, err)
	run(t, e)
	return e
}

// run runs e until the test ends.
func run(t testing.TB, e *tenure.Elector) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- e.Run(ctx, func(ctx context.Context, _ *tenure.Term) error {
			<-ctx.Done()
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// follower returns an elector of an election that somebody at address leads, and
// the term.
func follower(t testing.TB, address string) (*tenure.Elector, *tenure.Term) {
	t.Helper()
	election := tenuretest.NewElection(key)
	term := election.Grant(&tenure.Options{Identity: "other", Address: address})
	e := candidate(t, election, "standby:80")
	require.Eventually(t, func() bool { return e.Status().State == tenure.Led }, limit, time.Millisecond)
	t.Cleanup(func() { _ = term.Resign() })
	return e, term
}

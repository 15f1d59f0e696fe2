package leaderhttp

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"sync"
)

// flight follows one attempt of a request as net/http tells: an attempt that
// never got a connection was not sent. A RoundTripper that tells nothing may have
// sent anything.
type flight struct {
	mu       sync.Mutex
	phase    phase
	returned bool // the attempt is over
	replaced bool // it was given up for another leader
}

type phase int

const (
	untold phase = iota
	dialing
	sent
)

// follow returns r with a trace for f.
func (f *flight) follow(r *http.Request) *http.Request {
	return r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		// Each time that it is asked for another connection, net/http knows by
		// itself that the request may be sent again.
		GetConn: func(string) { f.enter(dialing) },
		GotConn: func(httptrace.GotConnInfo) { f.enter(sent) },
	}))
}

func (f *flight) enter(p phase) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.phase = p
}

// replace gives the attempt up, by cancel, unless it is over or may have been sent
// and must not be repeated.
func (f *flight) replace(cancel context.CancelCauseFunc, repeatable bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.returned || f.phase != dialing && (f.phase != sent || !repeatable) {
		return
	}
	f.replaced = true
	cancel(errReplaced)
}

// landed ends the attempt and tells how far it came.
func (f *flight) landed() (p phase, replaced bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.returned = true
	return f.phase, f.replaced
}

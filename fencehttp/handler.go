package fencehttp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/wire"
)

// Options configure [Handler]. A nil *Options guards every request and tells
// nobody.
type Options struct {
	// Optional reports whether a request that has no fence is let in all the
	// same, past the gate; [Reading] is one such rule. A request that has a fence
	// goes through the gate in any case. Default: none is.
	Optional func(*http.Request) bool

	// Refused, if set, is told of each request that was not let in, and why: a
	// [tenure.ErrFenced], the error of the gate's memory or of the request's
	// context, or what is wrong with the fence. The answer to the client says
	// less. It is called on the request's goroutine.
	Refused func(*http.Request, error)
}

// Reading reports whether the method of r is one that only reads: GET, HEAD,
// OPTIONS or TRACE. It is for [Options.Optional], where the handler holds to
// that.
func Reading(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// Handler returns a handler that lets requests in to next through gate, by the
// fence that they carry, and answers those that may not pass as the package
// comment says. A request waits while the work of an older term leaves, for as
// long as its context lasts.
//
// The request is inside the gate until next returns or panics. Its context is
// the gate's, with the fence in it for [FromContext]; when a later epoch comes,
// it ends with [tenure.ErrFenced] as its cause, and that epoch waits until next
// has returned. Reads of the body and writes of the answer then fail at once, even
// those that wait for a client that has been paused. So next stops when its
// context ends, starts nothing that goes on after it returns, and if it hijacks
// the connection, returns only when it is done with it. The ResponseWriter is the
// one that the handler was given, so streams work as always; if it is a wrapper,
// it should have the Unwrap method that [http.ResponseController] asks for.
//
// When next returns after its context has ended this way, the answer is cut off
// as by [http.ErrAbortHandler]. Nobody can tell whether it was whole or where
// next has stopped, and an answer that ends early looks complete, an empty one
// even like a success. The client sees a broken connection: the outcome is
// unknown.
func Handler(gate *tenure.Gate, next http.Handler, opts *Options) http.Handler {
	h := &handler{gate: gate, next: next}
	if opts != nil {
		h.opts = *opts
	}
	return h
}

type handler struct {
	gate *tenure.Gate
	next http.Handler
	opts Options
	last wire.Last
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fence, ok, err := get(r.Header, h.last.Parse)
	switch {
	case err != nil:
		h.refuse(w, r, malformed, err)
		return
	case !ok && h.opts.Optional != nil && h.opts.Optional(r):
		h.next.ServeHTTP(w, r)
		return
	case !ok:
		h.refuse(w, r, missing, fmt.Errorf("fencehttp: there is no field %s", Header))
		return
	case fence.Key != h.gate.Key():
		h.refuse(w, r, otherElection, fmt.Errorf("fencehttp: %s: a fence of %q at a gate of %q", Header, fence.Key, h.gate.Key()))
		return
	}
	work, leave, err := h.gate.Enter(r.Context(), fence)
	if errors.Is(err, tenure.ErrFenced) {
		w.Header().Set(Header, r.Header.Get(Header))
		h.refuse(w, r, fenced, err)
		return
	}
	if err != nil {
		w.Header().Set("Retry-After", "1")
		h.refuse(w, r, unavailable, err)
		return
	}
	defer leave()
	// The work may wait for a client that has been paused in the middle of its
	// body, and no context ends that.
	defer context.AfterFunc(work, func() {
		if errors.Is(context.Cause(work), tenure.ErrFenced) {
			hangUp(w)
		}
	})()
	h.next.ServeHTTP(w, r.WithContext(wire.NewContext(work, fence)))
	if errors.Is(context.Cause(work), tenure.ErrFenced) {
		panic(http.ErrAbortHandler)
	}
}

// hangUp ends the reads and writes that wait for the client of w, now and from now
// on. Where w cannot do that, as a recorder of a test, there is no client.
func hangUp(w http.ResponseWriter) {
	now := time.Now()
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(now)
	_ = rc.SetWriteDeadline(now)
}

// problem is a problem document of RFC 9457.
type problem struct {
	Type   string       `json:"type"`
	Title  string       `json:"title"`
	Status int          `json:"status"`
	Detail string       `json:"detail,omitempty"`
	Epoch  tenure.Epoch `json:"epoch,omitempty"` // of the later term
}

const tag = "tag:github.com,2026:tenure-go/tenure/"

var (
	fenced        = problem{Type: tag + "fenced", Title: "The term has been replaced", Status: http.StatusPreconditionFailed}
	missing       = problem{Type: tag + "fence-missing", Title: "A fence is required", Status: http.StatusBadRequest}
	malformed     = problem{Type: tag + "fence-malformed", Title: "The fence is malformed", Status: http.StatusBadRequest}
	otherElection = problem{Type: tag + "other-election", Title: "The fence is of another election", Status: http.StatusBadRequest}
	unavailable   = problem{Type: tag + "gate-unavailable", Title: "The fence cannot be checked now", Status: http.StatusServiceUnavailable}
)

// refuse answers with p. What is wrong with the client's own field it tells; what
// the gate or its memory said is none of the client's business, the later epoch
// aside.
func (h *handler) refuse(w http.ResponseWriter, r *http.Request, p problem, err error) {
	if h.opts.Refused != nil {
		h.opts.Refused(r, err)
	}
	if p.Status == http.StatusBadRequest {
		p.Detail = err.Error()
	}
	if leader, ok := tenure.LeaderOf(err); ok {
		p.Epoch = leader.Fence.Epoch
	}
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and numbers
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // a client that has gone needs no answer
}

package leaderhttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/tenure-go/tenure"
)

// Options configure [Proxy] and [Redirect]. A nil *Options and the zero value of
// each field mean the defaults.
type Options struct {
	// Scheme is that of addresses that are published without one: "http" or
	// "https". Default: "http".
	Scheme string

	// Transport is what [Proxy] reaches the leader with. Default:
	// [http.DefaultTransport], which takes up to 30 s to find that a host is
	// gone, and the proxy that the environment names; one that dials for a few
	// seconds only is better where the candidates are near to each other.
	Transport http.RoundTripper

	// Failed, if set, is told of each request that was answered with a problem
	// document, and why. It is called on the request's goroutine.
	Failed func(*http.Request, error)
}

// Proxy returns a handler that serves requests by local while elector's term is
// valid, and otherwise passes them on to the leader. What cannot be passed on is
// answered as the package comment says. It panics if opts name another scheme
// than http and https. Put it outside of anything that strips the path.
//
// The leader sees the request as if the client had come to it: the same method,
// path, query, body and Host, and the X-Forwarded fields as they came, with the
// client's address added to X-Forwarded-For. So whoever trusts these fields has
// them set at the edge, before all candidates. Answers are passed on as they come,
// flushed at once; streams, trailers and protocol upgrades work. A body that is
// under way is never sent twice.
//
// A term whose context has ended is about to be given up and serves no new
// request. To local, a request's context also ends with the term's, with the same
// cause: the request is work of the term. [TermFromContext] returns the term.
// When local returns and the term is not valid any more, the answer is cut off as
// by [http.ErrAbortHandler]: the client shall not take for the leader's word what
// somebody else may have changed since. An answer of up to 2 KiB that is not flushed
// is buffered until then and never sent, which makes it a lease read. Of what is
// larger, or flushed, some or all may be gone: before it begins such an answer, and
// after it has read what it tells, local asks [tenure.Term.Valid] itself.
//
// It knows only what elector does, so the elector has to campaign. During an
// outage of etcd it goes on with the leader that was known last.
func Proxy(elector *tenure.Elector, local http.Handler, opts *Options) http.Handler {
	h := newHandler(elector, local, opts)
	h.forward = h.pass
	h.proxy = &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      h.opts.Transport,
		FlushInterval:  -1,
		ModifyResponse: h.answered,
		ErrorHandler:   h.failed,
		ErrorLog:       log.New(io.Discard, "", 0), // of answers that break off, which the client sees
	}
	return h
}

// Redirect is like [Proxy], but sends the client to the leader by itself: 307,
// with the same path and query at the leader's published address, and nowhere
// else. The client repeats method and body there. It must be able to reach the
// candidates' addresses. What came with a mark for the leader is refused and not
// redirected, and neither is a request that came to the leader's address already.
// Beyond that, only the client counts how often it is sent on; all do, and two
// candidates that believe in each other soon cease to.
func Redirect(elector *tenure.Elector, local http.Handler, opts *Options) http.Handler {
	h := newHandler(elector, local, opts)
	h.forward = h.redirect
	return h
}

type handler struct {
	elector *tenure.Elector
	local   http.Handler
	opts    Options
	proxy   *httputil.ReverseProxy
	forward func(http.ResponseWriter, *http.Request, tenure.Status, *url.URL)

	mu     sync.Mutex
	broken tenure.Fence // of the leader that could not be reached lately
	since  time.Time    // when that began
}

func newHandler(elector *tenure.Elector, local http.Handler, opts *Options) *handler {
	h := &handler{elector: elector, local: local}
	if opts != nil {
		h.opts = *opts
	}
	switch h.opts.Scheme {
	case "":
		h.opts.Scheme = "http"
	case "http", "https":
	default:
		panic(fmt.Sprintf("leaderhttp: Options.Scheme is %q: it must be \"http\" or \"https\"", h.opts.Scheme))
	}
	return h
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	term, st := h.elector.Term(), h.elector.Status()
	mark, epoch, err := find(r.Header, st.Leader.Fence.Key)
	if err != nil {
		p := malformed
		p.Detail = err.Error()
		h.refuse(w, r, st, p, 0, err)
		return
	}
	if mark != "" {
		w.Header().Set(Header, mark)
	}
	switch {
	case term != nil && term.Epoch() >= epoch && term.Context().Err() == nil:
		w.Header().Del(Header)
		h.lead(w, r, term)
	case mark != "":
		wait := soon
		if st.State == tenure.Unreachable {
			wait = left(st, st.Seen)
		}
		h.refuse(w, r, st, notLeading, wait, fmt.Errorf("leaderhttp: sent here for the leader of epoch %d, and this process does not lead", epoch))
	case term != nil:
		h.refuse(w, r, st, noLeader, soon, fmt.Errorf("leaderhttp: the leader stops: %w", context.Cause(term.Context())))
	case st.Leader.Fence.Epoch != 0:
		leader, err := target(st.Leader.Address, h.opts.Scheme)
		if err != nil {
			h.refuse(w, r, st, noAddress, 0, err)
			return
		}
		h.forward(w, r, st, leader)
	case st.State == tenure.Vacant:
		h.refuse(w, r, st, noLeader, soon, fmt.Errorf("leaderhttp: %w", tenure.ErrNoLeader))
	default:
		h.refuse(w, r, st, unknown, 0, fmt.Errorf("leaderhttp: %w: the elector is %v", tenure.ErrNoLeader, st.State))
	}
}

type termKey struct{}

// TermFromContext returns the term under which a request is served, from the
// context that [Proxy] and [Redirect] give to their local handler.
func TermFromContext(ctx context.Context) (*tenure.Term, bool) {
	term, ok := ctx.Value(termKey{}).(*tenure.Term)
	return term, ok
}

// lead serves r as the leader.
func (h *handler) lead(w http.ResponseWriter, r *http.Request, term *tenure.Term) {
	ctx, cancel := context.WithCancelCause(context.WithValue(r.Context(), termKey{}, term))
	defer cancel(nil)
	defer context.AfterFunc(term.Context(), func() { cancel(context.Cause(term.Context())) })()
	h.local.ServeHTTP(w, r.WithContext(ctx))
	if !term.Valid() {
		panic(http.ErrAbortHandler)
	}
}

// passage is what is known of a request that is passed on.
type passage struct {
	flight flight
	status tenure.Status
	leader *url.URL
}

type passageKey struct{}

func passageOf(ctx context.Context) *passage { return ctx.Value(passageKey{}).(*passage) }

func (h *handler) pass(w http.ResponseWriter, r *http.Request, st tenure.Status, leader *url.URL) {
	p := &passage{status: st, leader: leader}
	h.proxy.ServeHTTP(w, p.flight.follow(r.WithContext(context.WithValue(r.Context(), passageKey{}, p))))
}

// rewrite keeps all of the request but where it goes. The mark is added after the
// fields that a client calls hop-by-hop were removed.
func rewrite(pr *httputil.ProxyRequest) {
	p := passageOf(pr.In.Context())
	pr.Out.URL = at(p.leader, pr.In)
	came := pr.In.Header
	pr.Out.Header["X-Forwarded-For"] = came["X-Forwarded-For"]
	pr.SetXForwarded()
	if pr.Out.Header.Get("X-Forwarded-For") == "" { // over a socket that has no IP addresses
		pr.Out.Header["X-Forwarded-For"] = came["X-Forwarded-For"]
	}
	for _, name := range []string{"Forwarded", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values, ok := came[name]; ok {
			pr.Out.Header[name] = values
		}
	}
	pr.Out.Header.Add(Header, mark(p.status.Leader.Fence))
}

// answered is told of the leader's answers.
func (h *handler) answered(*http.Response) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.broken = tenure.Fence{}
	return nil
}

// failed answers a request that the leader has not.
func (h *handler) failed(w http.ResponseWriter, r *http.Request, err error) {
	p := passageOf(r.Context())
	if phase, _ := p.flight.landed(); phase != dialing {
		h.refuse(w, r, p.status, lostOutcome, 0, fmt.Errorf("%w: %w", tenure.ErrUnknownOutcome, err))
		return
	}
	since := time.Now()
	if r.Context().Err() == nil { // else it is the client that has gone
		h.mu.Lock()
		if h.broken != p.status.Leader.Fence {
			h.broken, h.since = p.status.Leader.Fence, since
		}
		since = h.since
		h.mu.Unlock()
	}
	h.refuse(w, r, p.status, unreachable, left(p.status, since), err)
}

var errSelf = errors.New("leaderhttp: the leader's address is the one that was asked, and this process does not lead")

func (h *handler) redirect(w http.ResponseWriter, r *http.Request, st tenure.Status, leader *url.URL) {
	port := map[string]string{"http": ":80", "https": ":443"}[leader.Scheme] // which clients leave out
	if strings.EqualFold(strings.TrimSuffix(r.Host, port), strings.TrimSuffix(leader.Host, port)) {
		h.refuse(w, r, st, notLeading, soon, errSelf)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	http.Redirect(w, r, at(leader, r).String(), http.StatusTemporaryRedirect)
}

func (h *handler) refuse(w http.ResponseWriter, r *http.Request, st tenure.Status, p problem, wait time.Duration, err error) {
	if h.opts.Failed != nil {
		h.opts.Failed(r, err)
	}
	p.Epoch = st.Leader.Fence.Epoch
	p.write(w, wait)
}

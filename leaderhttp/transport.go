package leaderhttp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
)

// TransportOptions configure [NewTransport]. A nil *TransportOptions and the zero
// value of each field mean the defaults.
type TransportOptions struct {
	// Host is the host, with the port if any, that stands for the leader in the
	// URLs of requests. Default: "leader". Requests to every other host, as after
	// a redirect, go to Base as they are.
	Host string

	// Base sends the requests. It must tell net/http/httptrace when it gets a
	// connection, as [http.Transport] does; one that does not is never asked
	// twice. Default: [http.DefaultTransport].
	Base http.RoundTripper

	// FailFast fails a request where it would have to wait: in a vacancy with
	// [tenure.ErrNoLeader], after a failed attempt with its error, unless another
	// leader is known by then.
	FailFast bool

	// Repeat reports whether a request may be sent once more, if its outcome is
	// unknown and its body can be had anew. Default: [Idempotent].
	Repeat func(*http.Request) bool
}

// Idempotent reports whether r may be sent twice by its method (RFC 9110, section
// 9.2.2): GET, HEAD, OPTIONS, TRACE, PUT or DELETE; or because it has a field
// Idempotency-Key. What other clients have done between the two is not undone: a
// PUT that is sent twice may overwrite a later one.
func Idempotent(r *http.Request) bool {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return r.Header.Get("Idempotency-Key") != ""
}

// Transport is an [http.RoundTripper] that sends requests to the leader of an
// election, whoever that is. It follows the election on a goroutine of its own;
// Close ends it. All methods may be called concurrently.
type Transport struct {
	key  string
	opts TransportOptions
	stop context.CancelFunc
	done chan struct{}

	mu  sync.Mutex
	now *news
}

// news is what is known of the election, until the next.
type news struct {
	status tenure.Status
	err    error           // why there will be no other
	next   chan struct{}   // closed when there is another
	reign  context.Context // ends when another leads, or the same elsewhere
	end    context.CancelFunc
}

var (
	errMarked   = errors.New("leaderhttp: the request has been sent on for the leader already: whose address is this?")
	errClosed   = errors.New("leaderhttp: the transport is closed")
	errReplaced = errors.New("leaderhttp: another leader has begun")
)

// NewTransport returns a Transport for the leader of the election of key, and
// starts to follow it. It sends nothing by itself and never fails because etcd is
// out of reach; every fault of the arguments is reported at once. The client is
// used but never changed or closed.
func NewTransport(client *clientv3.Client, key string, opts *TransportOptions) (*Transport, error) {
	var o TransportOptions
	if opts != nil {
		o = *opts
	}
	if o.Host == "" {
		o.Host = "leader"
	}
	if o.Base == nil {
		o.Base = http.DefaultTransport
	}
	if o.Repeat == nil {
		o.Repeat = Idempotent
	}
	switch {
	case client == nil || client.ActiveConnection() == nil:
		return nil, errors.New("leaderhttp: the client is nil or has no connection, like one inside the server's own process")
	case key == "":
		return nil, errors.New("leaderhttp: the key is empty")
	}
	ctx, stop := context.WithCancel(context.Background())
	t := &Transport{key: key, opts: o, stop: stop, done: make(chan struct{})}
	t.tell(tenure.Status{Leader: tenure.Leader{Fence: tenure.Fence{Key: key}}, Since: time.Now()}, nil)
	go t.follow(ctx, client)
	return t, nil
}

// Close ends the Transport and waits for its goroutine. Requests that wait for a
// leader fail; those under way go on. It leaves the base and its connections alone.
// Close may be called again, and returns nil.
func (t *Transport) Close() error {
	t.stop()
	<-t.done
	return nil
}

// CloseIdleConnections is what [http.Client.CloseIdleConnections] calls.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.opts.Base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// Status returns what is known of the election: [tenure.Idle] before etcd was
// heard, [tenure.Unreachable] with the leader that was known last while it does
// not answer. It never blocks.
func (t *Transport) Status() tenure.Status { return t.present().status }

func (t *Transport) present() *news {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now
}

// follow tells what becomes of the election until ctx ends or that can never be
// known.
func (t *Transport) follow(ctx context.Context, client *clientv3.Client) {
	defer close(t.done)
	for st, err := range tenure.Observe(ctx, client, t.key) {
		if err != nil {
			t.tell(t.Status(), err)
			return
		}
		t.tell(st, nil)
	}
	t.tell(t.Status(), errClosed)
}

// tell makes st the present news. Only follow calls it, and NewTransport before.
func (t *Transport) tell(st tenure.Status, err error) {
	n := &news{status: st, err: err, next: make(chan struct{})}
	old := t.now // only we write it
	switch {
	case old != nil && (st.Leader.Fence.Epoch == 0 || same(old.status.Leader, st.Leader)):
		// In a vacancy the last leader may still answer what it was asked.
		n.reign, n.end = old.reign, old.end
	default:
		n.reign, n.end = context.WithCancel(context.Background())
	}
	t.mu.Lock()
	t.now = n
	t.mu.Unlock()
	if old != nil {
		close(old.next)
		if old.reign != n.reign {
			old.end()
		}
	}
}

// same reports whether two leaders are the same one at the same place.
func same(a, b tenure.Leader) bool { return a.Fence == b.Fence && a.Address == b.Address }

// The pauses between two attempts at the same leader. The watch may tell of a
// leader a moment before that one has heard of it by itself, so the first is short.
const (
	shortest = 5 * time.Millisecond
	longest  = time.Second
)

// RoundTrip sends a request to the leader and returns its answer.
//
// While nobody leads, or it is not known who, it waits until the request's context
// ends, which should have a deadline: see [TransportOptions.FailFast]. During an
// outage of etcd the last known leader stays the leader. It never goes back to an
// older epoch, except after etcd itself was rolled back.
//
// The request is sent again, after a pause of up to a second or as soon as another
// leader is known, only if
//
//   - it was not sent: there was no connection; or
//   - who got it has refused it because it does not lead, as [Proxy] and [Redirect]
//     do: nothing was done; or
//   - it may be sent twice, as [TransportOptions.Repeat] says, and either its
//     connection failed or another leader has begun before it was answered.
//
// A body that was read is only sent again if the request has GetBody. An attempt
// that cannot be repeated is never given up; if it fails, the error is an
// [tenure.ErrUnknownOutcome]. A refusal that cannot be repeated is returned as the
// answer that it is.
//
// An address that is published without a scheme is reached with the request's own.
// A request for https is never sent in the clear. Its Host is the leader's address
// unless it is set to something else than its URL's. The answer's Request tells
// where it came from.
//
// Errors: that of the request's context, with what was in the way; that of the
// base if it cannot be told whether anything was sent; [tenure.ErrNoLeader] and
// [tenure.ErrUnknownOutcome], as above; what makes it impossible to follow the
// election, as a missing permission; or that the Transport is closed.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL == nil || !strings.EqualFold(req.URL.Host, t.opts.Host) {
		return t.opts.Base.RoundTrip(req)
	}
	body := &parcel{req: req}
	defer body.done()
	if mark, _, err := find(req.Header, t.key); err != nil || mark != "" {
		return nil, cmp.Or(err, errMarked)
	}
	var tried *news
	var failure error // of the last attempt
	for pause := shortest; ; pause = min(2*pause, longest) {
		n, err := t.leader(req.Context(), tried, failure, pause)
		if err != nil {
			return nil, err
		}
		resp, err := t.attempt(req, body, n)
		again, ok := errors.AsType[*retry](err)
		if !ok {
			return resp, err
		}
		if tried != nil && tried.reign != n.reign {
			pause = shortest / 2
		}
		tried, failure = n, again.cause
	}
}

// leader returns the news of a leader to ask. After a failed attempt that is
// another one, or after a pause the same.
func (t *Transport) leader(ctx context.Context, tried *news, failure error, pause time.Duration) (*news, error) {
	var again <-chan time.Time
	if tried != nil {
		timer := time.NewTimer(pause/2 + rand.N(pause))
		defer timer.Stop()
		again = timer.C
	}
	for rested := tried == nil; ; {
		if err := ctx.Err(); err != nil {
			return nil, waited(err, failure)
		}
		n := t.present()
		leads := n.status.Leader.Fence.Epoch != 0
		switch {
		case n.err != nil:
			return nil, n.err
		case leads && (rested || n.reign != tried.reign):
			return n, nil
		case t.opts.FailFast && failure != nil:
			return nil, failure
		case t.opts.FailFast:
			return nil, t.nobody(n)
		case failure == nil:
			failure = t.nobody(n)
		}
		select {
		case <-ctx.Done():

		case <-n.next:

		case <-again:
			rested = true
		}
	}
}

// nobody is the error of a vacancy.
func (t *Transport) nobody(n *news) error {
	if n.status.Err != nil {
		return fmt.Errorf("%w: %q: %w", tenure.ErrNoLeader, t.key, n.status.Err)
	}
	return fmt.Errorf("%w: nobody holds %q, as far as is known", tenure.ErrNoLeader, t.key)
}

// waited is the error of a request whose context has ended.
func waited(err, failure error) error {
	if failure == nil {
		return err
	}
	return fmt.Errorf("%w; meanwhile: %w", err, failure)
}

// retry is the error of an attempt after which another one is right.
type retry struct{ cause error }

func (r *retry) Error() string { return r.cause.Error() }

// attempt sends req to the leader of n.
func (t *Transport) attempt(req *http.Request, body *parcel, n *news) (*http.Response, error) {
	leader, err := target(n.status.Leader.Address, req.URL.Scheme)
	if err == nil && req.URL.Scheme == "https" && leader.Scheme != "https" {
		err = fmt.Errorf("leaderhttp: the leader publishes the address %q, and the request is for https", n.status.Leader.Address)
	}
	if err != nil {
		return nil, &retry{err}
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	mark := mark(n.status.Leader.Fence)
	// The caller's request must not change, so it is a copy that is sent.
	var f flight
	out := f.follow(req.WithContext(ctx))
	out.URL = at(leader, req)
	if out.Host == req.URL.Host {
		out.Host = ""
	}
	out.Header = make(http.Header, len(req.Header)+1)
	maps.Copy(out.Header, req.Header)
	out.Header[Header] = append(out.Header[Header][:len(out.Header[Header]):len(out.Header[Header])], mark)
	if out.Body, err = body.next(); err != nil {
		cancel(nil)
		return nil, fmt.Errorf("leaderhttp: have the body anew: %w", err)
	}
	repeatable := t.opts.Repeat(req) && body.renewable()

	unhook := context.AfterFunc(n.reign, func() { f.replace(cancel, repeatable) })
	resp, err := t.opts.Base.RoundTrip(out)
	unhook()
	phase, replaced := f.landed()
	switch {
	case err == nil && replaced:
		_ = resp.Body.Close()
		err = errReplaced
	case err == nil && refused(resp, mark) && body.takeBack():
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4<<10)) // so that the connection can be used again
		_ = resp.Body.Close()
		cancel(nil)
		return nil, &retry{fmt.Errorf("leaderhttp: %s does not lead", leader)}
	case err == nil:
		ending(resp, func() { cancel(nil) })
		return resp, nil
	}
	cancel(nil)
	switch {
	case req.Context().Err() != nil && phase == sent && !repeatable:
		return nil, fmt.Errorf("%w: %w", tenure.ErrUnknownOutcome, err)
	case req.Context().Err() != nil || phase == untold:
		return nil, err
	case phase == dialing && body.takeBack(), repeatable:
		return nil, &retry{err}
	case phase == dialing:
		return nil, err
	default:
		return nil, fmt.Errorf("%w: %w", tenure.ErrUnknownOutcome, err)
	}
}

// refused reports whether resp says that a candidate does not lead.
func refused(resp *http.Response, mark string) bool {
	if resp.StatusCode != http.StatusServiceUnavailable {
		return false
	}
	said := resp.Header[Header]
	return len(said) == 1 && said[0] == mark
}

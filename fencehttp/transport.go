package fencehttp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/wire"
)

// Transport returns a RoundTripper that sends every request through base, which
// is [http.DefaultTransport] if nil, with the fence that fence returns at that
// moment. A fence that the request has already, perhaps from outside, is
// replaced.
//
// If fence returns an error, nothing is sent and the request fails with that
// error: with [FromTerm], [tenure.ErrTermEnded] once the term is over here. In
// another process than the leader's, fence returns what the leader has passed on.
//
// An answer is handed on as it came, a refusal too; ask [Refused]. To make an
// error of it here would lose the answer, break the rule that a RoundTripper
// does not interpret it, and have those who repeat failed requests repeat this
// one. A redirect is followed with the fence, to whatever host; set
// [http.Client.CheckRedirect] where that should not be.
//
// The result may be used concurrently if fence may.
func Transport(base http.RoundTripper, fence func() (tenure.Fence, error)) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return &transport{base: base, fence: fence}
}

type transport struct {
	base  http.RoundTripper
	fence func() (tenure.Fence, error)
	last  wire.Last
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	// The caller's request must not change, so it is a copy with headers of its
	// own that is sent.
	sent := req.WithContext(req.Context())
	sent.Header = make(http.Header, len(req.Header)+1)
	maps.Copy(sent.Header, req.Header)
	fence, err := t.fence()
	if err == nil {
		err = set(sent.Header, fence, t.last.Format)
	}
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // a RoundTripper closes the body, come what may; nothing was read from it
		}
		return nil, err
	}
	return t.base.RoundTrip(sent)
}

// CloseIdleConnections is what [http.Client.CloseIdleConnections] calls.
func (t *transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// Refused returns a [tenure.ErrFenced] if resp says that a gate has refused the
// very fence that its request carried: nothing was done, and the term is over.
// [tenure.LeaderOf] tells the epoch of the later term, without its lease, where
// the answer does. For every other answer, a 412 for another reason included,
// Refused returns nil and reads nothing.
//
// Otherwise it reads the first kilobytes of the body. They can be read again, and
// the body has to be closed as always.
func Refused(resp *http.Response) error {
	if resp.StatusCode != http.StatusPreconditionFailed || resp.Request == nil {
		return nil
	}
	sent, ok, _ := Get(resp.Request.Header)
	refused, same, _ := Get(resp.Header)
	if !ok || !same || refused != sent { // whatever is malformed is no refusal of what was sent
		return nil
	}
	err := tenure.ErrFenced
	if epoch := later(resp); epoch > 0 {
		err = tenure.FencedBy(tenure.Fence{Key: sent.Key, Epoch: epoch})
	}
	return fmt.Errorf("fencehttp: %s %s: %w", resp.Request.Method, resp.Request.URL.Redacted(), err)
}

// later returns the epoch in the problem document of a refusal, or 0 if it tells
// none, as the answer to a HEAD request does.
func later(resp *http.Response) tenure.Epoch {
	body := resp.Body
	head, readErr := io.ReadAll(io.LimitReader(body, 4<<10))
	rest := io.Reader(body)
	if readErr != nil {
		rest = failing{readErr} // the caller sees it in its place
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), rest), body}
	var p problem
	if json.Unmarshal(head, &p) != nil {
		return 0
	}
	return p.Epoch
}

// failing is a reader that fails.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

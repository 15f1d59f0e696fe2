package leaderhttp

import (
	"errors"
	"io"
	"net/http"
	"sync"
)

// parcel is the body of a request on its way through several attempts. Its owner
// is the call of RoundTrip.
type parcel struct {
	req  *http.Request
	lent *loan // the last one; nil before the first attempt
}

var errTaken = errors.New("leaderhttp: the body is with another attempt")

// renewable reports whether the body can be had anew, even if it was read.
func (p *parcel) renewable() bool {
	return p.req.Body == nil || p.req.Body == http.NoBody || p.req.GetBody != nil
}

// takeBack reports whether another attempt is possible as far as the body goes.
// If it was not read, the last attempt loses it.
func (p *parcel) takeBack() bool {
	return p.lent != nil && p.lent.takeBack() || p.renewable()
}

// next returns the body for the next attempt. After the first one, takeBack has
// been asked.
func (p *parcel) next() (io.ReadCloser, error) {
	switch body := p.req.Body; {
	case body == nil || body == http.NoBody:
		return body, nil
	case p.lent == nil || p.lent.takeBack():
		p.lent = &loan{body: body}
		return p.lent, nil
	}
	return p.req.GetBody() // its first attempt closes the caller's own
}

// done leaves the body to the attempt that has it, or closes it. A RoundTripper
// closes the body of a request, come what may.
func (p *parcel) done() {
	switch body := p.req.Body; {
	case p.lent != nil:
		p.lent.keep()
	case body != nil:
		_ = body.Close() // nobody has read it
	}
}

// loan is the caller's body in the hands of one attempt. A transport may go on
// reading and closing it in the background, long after it has returned.
type loan struct {
	body io.ReadCloser

	mu     sync.Mutex
	read   bool // it may not be whole any more
	taken  bool // for another attempt
	closed bool
	kept   bool // nobody takes it back any more
}

func (l *loan) Read(p []byte) (int, error) {
	l.mu.Lock()
	taken := l.taken
	l.read = l.read || !taken
	l.mu.Unlock()
	if taken {
		return 0, errTaken
	}
	return l.body.Read(p)
}

// Close closes the body unless another attempt may still want it.
func (l *loan) Close() error {
	l.mu.Lock()
	l.closed = true
	now := !l.taken && (l.kept || l.read)
	l.mu.Unlock()
	if now {
		return l.body.Close()
	}
	return nil
}

// takeBack ends the loan if nothing was read.
func (l *loan) takeBack() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken = l.taken || !l.read
	return l.taken
}

// keep makes the loan final, and closes the body if its attempt will not.
func (l *loan) keep() {
	l.mu.Lock()
	l.kept = true
	now := l.taken || l.closed && !l.read
	l.mu.Unlock()
	if now {
		_ = l.body.Close()
	}
}

// answer is the body of an answer. It ends the attempt's context when it is
// closed.
type answer struct {
	io.ReadCloser

	end func()
}

func (a *answer) Close() error {
	defer a.end()
	return a.ReadCloser.Close()
}

// duplex is the body of an answer that switches protocols.
type duplex struct {
	*answer
	io.Writer
}

// ending makes the body of resp call end when it is closed.
func ending(resp *http.Response, end func()) {
	a := &answer{ReadCloser: resp.Body, end: end}
	resp.Body = a
	if w, ok := a.ReadCloser.(io.Writer); ok {
		resp.Body = &duplex{answer: a, Writer: w}
	}
}

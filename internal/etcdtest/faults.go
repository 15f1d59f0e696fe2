package etcdtest

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Faults act on the single requests and answers of one client, as its rules
// say, and keep a log of them. Of the rules that match a message the newest
// acts, and no other. All methods may be called concurrently.
//
// A method is named as in "Txn", "Range", "Put", "DeleteRange", "LeaseGrant",
// "LeaseKeepAlive", "LeaseRevoke", "LeaseTimeToLive", "Watch" or
// "Authenticate"; the empty name stands for all. A single Get is a Range, and
// an Op of a transaction is part of a Txn.
type Faults struct {
	ctx    context.Context // ends when the client is closed
	cancel context.CancelFunc
	late   sync.WaitGroup // requests under way without their callers

	mu      sync.Mutex
	closed  bool
	rules   []*Rule
	log     []Message
	opened  int // streams
	streams map[*stream]struct{}
}

// A Message is one entry of a client's log: a request when the caller hands it
// over, whatever becomes of it; an answer when the caller gets it; or an error
// when a call or stream ends with one.
type Message struct {
	At     time.Time
	Method string
	Stream int           // 0 for a unary call, else the number of the stream
	Answer bool          // the client received it
	Body   proto.Message // a copy; nil for an error
	Err    error
}

func newFaults() *Faults {
	f := &Faults{streams: make(map[*stream]struct{})}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

// On puts an action in force for every message of a method that the options
// let through, until the rule is stopped.
func (f *Faults) On(method string, a Action, opts ...Option) *Rule {
	r := &Rule{
		f:        f,
		method:   method,
		action:   a,
		left:     -1,
		fired:    make(chan struct{}),
		released: make(chan struct{}),
	}
	for _, opt := range opts {
		opt(r)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, r)
	return r
}

// Next is On for the next such message only.
func (f *Faults) Next(method string, a Action, opts ...Option) *Rule {
	return f.On(method, a, append([]Option{Times(1)}, opts...)...)
}

// Count returns how many requests of a method the client has made, attempts of
// etcd's own retry layer and messages on streams included.
func (f *Faults) Count(method string) int {
	n := 0
	for _, m := range f.Log(method) {
		if !m.Answer {
			n++
		}
	}
	return n
}

// Log returns what has passed between the client and the server for a method.
func (f *Faults) Log(method string) []Message {
	f.mu.Lock()
	defer f.mu.Unlock()
	var log []Message
	for _, m := range f.log {
		if method == "" || method == m.Method {
			log = append(log, m)
		}
	}
	return log
}

// Streams returns how many streams of a method are open.
func (f *Faults) Streams(method string) int { return len(f.find(method)) }

// Break ends all open streams of a method with err, a status error, and returns
// how many there were.
func (f *Faults) Break(method string, err error) int {
	open := f.find(method)
	for _, s := range open {
		s.end(err)
	}
	return len(open)
}

func (f *Faults) find(method string) []*stream {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []*stream
	for s := range f.streams {
		if method == "" || method == s.method {
			found = append(found, s)
		}
	}
	return found
}

func (f *Faults) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed, f.rules = true, nil
	f.cancel()
}

// start runs a goroutine that close ends, unless it is too late for that.
func (f *Faults) start(run func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.late.Go(run)
	}
}

func (f *Faults) record(m Message, body any) {
	m.At = time.Now()
	if body, ok := body.(proto.Message); ok {
		m.Body = proto.Clone(body)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, m)
}

// claim returns the action for a message and the rule it comes from. Without a
// rule the action does nothing.
func (f *Faults) claim(method string, answer bool, req, resp any) (Action, *Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range slices.Backward(f.rules) {
		if r.claimLocked(method, answer, req, resp) {
			return r.action, r
		}
	}
	return Action{}, nil
}

// wait waits as the action says. It fails when the context ends first or the
// client is closed, and an action without a wait never does.
func (f *Faults) wait(ctx context.Context, a Action, r *Rule) error {
	var timeout <-chan time.Time
	var released <-chan struct{}
	switch {
	case a.delay > 0:
		timer := time.NewTimer(a.delay)
		defer timer.Stop()
		timeout = timer.C
	case a.hold:
		released = r.released
	case a.lost: // For good.
	default:
		return nil
	}
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()

	case <-f.ctx.Done():
		return status.FromContextError(f.ctx.Err()).Err()

	case <-timeout:

	case <-released:
	}
	return nil
}

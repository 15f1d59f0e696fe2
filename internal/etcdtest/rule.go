package etcdtest

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// A Rule is an action in force.
type Rule struct {
	f        *Faults
	method   string
	action   Action
	match    []func(req, resp any) bool
	fired    chan struct{}
	released chan struct{}

	// Guarded by f.mu.
	skip int
	left int // negative without bound
	hits int
}

// An Option narrows a rule.
type Option func(*Rule)

// Times ends the rule after it has acted n times.
func Times(n int) Option { return func(r *Rule) { r.left = n } }

// Skip lets the first n messages that match pass.
func Skip(n int) Option { return func(r *Rule) { r.skip = n } }

// Match limits the rule to messages of type T, a pointer such as
// *etcdserverpb.TxnRequest, for which f returns true. For an action on the
// answer of a unary call, T may be the type of the request as well. The faults
// are locked meanwhile, so f must neither wait nor use them.
func Match[T any](f func(T) bool) Option {
	return func(r *Rule) {
		r.match = append(r.match, func(req, resp any) bool {
			if m, ok := req.(T); ok {
				return f(m)
			}
			m, ok := resp.(T)
			return ok && f(m)
		})
	}
}

// Deletes limits a rule on the answers of Watch to those that report the
// deletion of key. They may report more.
func Deletes(key string) Option {
	return Match(func(r *pb.WatchResponse) bool {
		for _, e := range r.Events {
			if e.Type == mvccpb.Event_DELETE && string(e.Kv.Key) == key {
				return true
			}
		}
		return false
	})
}

// Fired is closed when the rule first acts. A request has then not been sent
// yet; an answer has come, so that the server has done what it answers.
func (r *Rule) Fired() <-chan struct{} { return r.fired }

// Hits returns how often the rule has acted.
func (r *Rule) Hits() int {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	return r.hits
}

// Stop ends the rule. What it holds stays held.
func (r *Rule) Stop() {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	r.left = 0
}

// Release ends the rule and lets go all it holds.
func (r *Rule) Release() {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	r.left = 0
	select {
	case <-r.released:
	default:
		close(r.released)
	}
}

// claimLocked reports whether the rule acts on a message, and counts it if so.
func (r *Rule) claimLocked(method string, answer bool, req, resp any) bool {
	if r.left == 0 || r.action.answer != answer || r.method != "" && r.method != method {
		return false
	}
	for _, match := range r.match {
		if !match(req, resp) {
			return false
		}
	}
	if r.skip > 0 {
		r.skip--
		return false
	}
	r.left--
	if r.hits++; r.hits == 1 {
		close(r.fired)
	}
	return true
}

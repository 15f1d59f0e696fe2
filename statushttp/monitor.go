package statushttp

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tenure-go/tenure"
)

// kept is how many of each kind a Monitor remembers.
const kept = 10

// Monitor remembers what has happened to one elector lately, and makes handlers
// that show it. It learns through hooks, and asks the elector at each request for
// what is true now. All methods may be called concurrently.
type Monitor struct {
	identity string

	mu         sync.Mutex
	renewals   []renewal
	terms      []term
	changes    []change
	overstayed bool // since the last term started
	refusals   refusals
}

// New returns a Monitor that knows nothing yet. The identity names this process on
// the page; it should be [tenure.Options.Identity]. It may be empty.
func New(identity string) *Monitor { return &Monitor{identity: identity} }

// Hooks returns hooks for the elector, and for its [tenure.Lease] too if it shares
// one, whose renewals are nobody else's to tell. The hooks of next, which may be
// nil, are called after the Monitor's own.
func (m *Monitor) Hooks(next *tenure.Hooks) *tenure.Hooks {
	if next == nil {
		next = &tenure.Hooks{}
	}
	hooks := *next // with those that are of no interest here
	hooks.TermStarted = func(t *tenure.Term) {
		m.started(t)
		call(next.TermStarted, t)
	}
	hooks.TermEnded = func(t *tenure.Term, cause error) {
		m.ended(t, cause)
		if next.TermEnded != nil {
			next.TermEnded(t, cause)
		}
	}
	hooks.StateChanged = func(st tenure.Status) {
		m.changed(st)
		call(next.StateChanged, st)
	}
	hooks.Renewed = func(latency time.Duration, err error) {
		m.renewed(latency, err)
		if next.Renewed != nil {
			next.Renewed(latency, err)
		}
	}
	hooks.Overstayed = func(t *tenure.Term) {
		m.mu.Lock()
		m.overstayed = true
		m.mu.Unlock()
		call(next.Overstayed, t)
	}
	return &hooks
}

func call[T any](hook func(T), arg T) {
	if hook != nil {
		hook(arg)
	}
}

// Refused counts err if it is an [tenure.ErrFenced], and does nothing otherwise. It
// is for whoever sees such errors: around the writes of a leader, or as
// fencehttp.Options.Refused at a gate. A term that ends because it was fenced counts
// by itself.
func (m *Monitor) Refused(err error) {
	if !errors.Is(err, tenure.ErrFenced) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refusedLocked()
}

func (m *Monitor) refusedLocked() {
	m.refusals.Count++
	m.refusals.Last = new(now())
}

func (m *Monitor) started(t *tenure.Term) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.overstayed = false // the work has returned, or there would be no other term
	m.terms = push(m.terms, term{Epoch: t.Epoch(), Started: now(), fence: t.Fence()})
}

func (m *Monitor) ended(t *tenure.Term, cause error) {
	reason, _ := errors.AsType[tenure.Reason](cause)
	m.mu.Lock()
	defer m.mu.Unlock()
	if reason == tenure.Fenced {
		m.refusedLocked()
	}
	for i := range m.terms {
		if m.terms[i].fence == t.Fence() {
			m.terms[i].Ended, m.terms[i].Reason = new(now()), string(reason)
			if cause.Error() != reason.Error() {
				m.terms[i].Cause = cause.Error()
			}
		}
	}
}

func (m *Monitor) changed(st tenure.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changes = push(m.changes, change{At: now(), State: st.State.String(), Identity: st.Leader.Identity, Epoch: st.Leader.Fence.Epoch})
}

func (m *Monitor) renewed(latency time.Duration, err error) {
	r := renewal{At: now(), LatencySeconds: latency.Seconds(), Counted: err == nil}
	if err != nil {
		r.Error = err.Error()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.renewals = push(m.renewals, r)
}

// push puts the newest first and forgets the oldest.
func push[T any](list []T, newest T) []T {
	return slices.Insert(list[:min(len(list), kept-1)], 0, newest)
}

func now() time.Time { return time.Now().UTC().Round(0) }

// status is what the page shows, and what it is as JSON: members may be added, and
// none is changed.
type status struct {
	Time       time.Time    `json:"time"`               // of the answer, by this process's clock, as all others
	Identity   string       `json:"identity,omitempty"` // of this process
	Election   string       `json:"election"`           // its key
	State      string       `json:"state"`              // of [tenure.Status], and so on
	Since      time.Time    `json:"since"`
	Seen       *time.Time   `json:"seen"` // null: not asked
	TTLSeconds float64      `json:"ttl_seconds"`
	Error      string       `json:"error,omitempty"`
	Overstayed bool         `json:"overstayed"` // work has not stopped in time, and no other term has started since
	Leader     *leader      `json:"leader"`     // the last one known; null: nobody
	Term       *presentTerm `json:"term"`       // this process's; null: it does not lead
	Renewals   []renewal    `json:"renewals"`   // the last ten, newest first, as the next two
	Terms      []term       `json:"terms"`      // of this process
	Changes    []change     `json:"changes"`    // of state or of leader, as this process saw them
	Refusals   refusals     `json:"refusals"`
}

// leader is who holds the election. Its lease is not told, so that nobody learns a
// fence here.
type leader struct {
	Identity string            `json:"identity"`
	Address  string            `json:"address,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Epoch    tenure.Epoch      `json:"epoch"`
	Acquired time.Time         `json:"acquired"` // by the leader's clock
	Evicting bool              `json:"evicting"`
}

// presentTerm is a term of this process that is valid.
type presentTerm struct {
	Epoch       tenure.Epoch `json:"epoch"`
	LeftSeconds float64      `json:"left_seconds"` // until it ends, if no renewal counts
	Stopping    bool         `json:"stopping"`     // its context has ended
}

// renewal is one attempt to renew the lease.
type renewal struct {
	At             time.Time `json:"at"`
	LatencySeconds float64   `json:"latency_seconds"`
	Counted        bool      `json:"counted"`
	Error          string    `json:"error,omitempty"`
}

// term is a term of this process.
type term struct {
	Epoch   tenure.Epoch `json:"epoch"`
	Started time.Time    `json:"started"`
	Ended   *time.Time   `json:"ended"`            // null: not yet
	Reason  string       `json:"reason,omitempty"` // a [tenure.Reason]
	Cause   string       `json:"cause,omitempty"`  // the same with details, if there are any

	fence tenure.Fence
}

// change is a new state, or a new leader.
type change struct {
	At       time.Time    `json:"at"`
	State    string       `json:"state"`
	Identity string       `json:"identity,omitempty"`
	Epoch    tenure.Epoch `json:"epoch,omitempty"`
}

// refusals are the writes and requests that a fence has refused, as far as
// [Monitor.Refused] was told of them.
type refusals struct {
	Count int64      `json:"count"`
	Last  *time.Time `json:"last"` // null: none
}

// status returns what is known, and what is true now of elector.
func (m *Monitor) status(elector *tenure.Elector) status {
	present, st := elector.Term(), elector.Status()
	s := status{
		Time: now(), Identity: m.identity, Election: st.Leader.Fence.Key,
		State: st.State.String(), Since: st.Since.UTC().Round(0), TTLSeconds: st.TTL.Seconds(),
	}
	if !st.Seen.IsZero() {
		s.Seen = new(st.Seen.UTC().Round(0))
	}
	if st.Err != nil {
		s.Error = st.Err.Error()
	}
	if l := st.Leader; l.Fence.Epoch != 0 {
		s.Leader = &leader{
			Identity: l.Identity, Address: l.Address, Metadata: maps.Clone(l.Metadata),
			Epoch: l.Fence.Epoch, Acquired: l.Acquired.UTC(), Evicting: l.Evicting,
		}
	}
	if present != nil {
		s.Term = &presentTerm{
			Epoch: present.Epoch(), LeftSeconds: max(time.Until(present.ValidUntil()).Seconds(), 0),
			Stopping: context.Cause(present.Context()) != nil,
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.Overstayed, s.Refusals = m.overstayed, m.refusals
	s.Renewals = append([]renewal{}, m.renewals...)
	s.Changes = append([]change{}, m.changes...)
	s.Terms = append([]term{}, m.terms...)
	return s
}

package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
)

// A ledger knows every term of a run, what was done to it, and what of that is
// wrong.
type ledger struct {
	plan  *plan
	start time.Time

	mu        sync.Mutex
	wrong     []string
	log       io.Writer // of what has happened, in order
	faults    map[kind]int
	terms     int
	known     map[*tenure.Term]*stay
	elections []*election
	evicted   map[tenure.Fence]bool
	harmed    map[tenure.Fence]time.Time     // by others than its holder
	forcing   map[tenure.Fence]bool          // an eviction by force is under way, which asks first
	revoked   map[clientv3.LeaseID]time.Time // likewise
	restored  time.Time                      // plainly or not
	down      time.Time                      // when the server was last not up
}

// An election is what the ledger knows of one.
type election struct {
	key, data string
	gate      *tenure.Gate
	highest   tenure.Epoch // that has begun
	acked     tenure.Epoch // the highest that has written
	present   []*stay      // terms that are, or were lately
	last      time.Time    // the last end of a validity
	writes    map[string]outcome
	versions  []version    // of the data, since the last restore
	entered   tenure.Fence // the last that the gate has let in
	inside    map[tenure.Fence]int
}

// A stay is a term and what the ledger knows of it.
type stay struct {
	term     *tenure.Term
	c        *candidate
	number   int // among those of the candidate
	call     context.Context
	inRun    bool
	began    time.Time
	over     time.Time // when it was first not valid
	ended    bool      // as the hook tells
	resigned bool      // somebody here has asked for that
	working  bool
	returned bool // the work has
	told     time.Time
}

// outcome is what a writer was told.
type outcome int

const (
	pending outcome = iota // or unknown, or fenced
	acked
	unsent // refused here
)

func newLedger(p *plan, log io.Writer) *ledger {
	l := &ledger{
		plan: p, log: log, start: time.Now(), faults: make(map[kind]int), known: make(map[*tenure.Term]*stay),
		evicted: make(map[tenure.Fence]bool), harmed: make(map[tenure.Fence]time.Time), forcing: make(map[tenure.Fence]bool), revoked: make(map[clientv3.LeaseID]time.Time),
	}
	for i := range p.elections {
		key := fmt.Sprintf("/sim/%d", i)
		l.elections = append(l.elections, &election{key: key, data: fmt.Sprintf("/data/%d", i), gate: tenure.NewGate(key), writes: make(map[string]outcome), inside: make(map[tenure.Fence]int)})
	}
	return l
}

func (l *ledger) logf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.logLocked(format, args...)
}

func (l *ledger) logLocked(format string, args ...any) string {
	line := fmt.Sprintf("%9.3f ", time.Since(l.start).Seconds()) + fmt.Sprintf(format, args...)
	fmt.Fprintln(l.log, line)
	return line
}

func (l *ledger) wrongf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wrongLocked(format, args...)
}

func (l *ledger) wrongLocked(format string, args ...any) {
	l.wrong = append(l.wrong, l.logLocked("WRONG: "+format, args...))
}

// begin notes a term, as soon as anybody hears of it.
func (l *ledger) begin(c *candidate, term *tenure.Term) *stay {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.known[term]; s != nil {
		return s
	}
	l.terms++
	s := &stay{term: term, c: c, number: c.terms, call: c.call, inRun: c.inRun, began: time.Now()}
	c.terms++
	l.known[term] = s
	e := l.elections[c.election]
	l.logLocked("%v begins %v", c, term.Fence())
	if term.Epoch() <= c.highest {
		l.wrongLocked("%v begins epoch %d and has seen %d", c, term.Epoch(), c.highest)
	}
	c.highest = max(c.highest, term.Epoch())
	harmed := l.harmedLocked(s)
	if term.Epoch() <= e.highest && harmed.IsZero() {
		l.wrongLocked("epoch %d begins after epoch %d", term.Epoch(), e.highest)
	}
	if harmed.IsZero() || harmed != l.restored {
		e.highest = max(e.highest, term.Epoch())
	}
	for _, o := range e.present {
		if o.c == c && o.working {
			l.wrongLocked("%v begins epoch %d while it works in epoch %d", c, term.Epoch(), o.term.Epoch())
		}
	}
	e.present = append(e.present, s)
	l.lookLocked(e)
	return s
}

// end notes what the library says about the end of a term.
func (l *ledger) end(c *candidate, term *tenure.Term, cause error) {
	s := l.begin(c, term)
	l.mu.Lock()
	defer l.mu.Unlock()
	reason, ok := errors.AsType[tenure.Reason](cause)
	l.logLocked("%v ends %v: %v", c, term.Fence(), cause)
	switch {
	case s.ended:
		l.wrongLocked("epoch %d has ended twice", term.Epoch())
	case !ok:
		l.wrongLocked("epoch %d has ended for no reason: %v", term.Epoch(), cause)
	case !l.fitsLocked(s, reason):
		l.wrongLocked("epoch %d of %v has ended for a reason that does not fit: %v", term.Epoch(), c, cause)
	}
	if _, ok := errors.AsType[tenure.Reason](context.Cause(term.Context())); !ok {
		l.wrongLocked("the context of epoch %d has ended for no reason: %v", term.Epoch(), context.Cause(term.Context()))
	}
	s.ended = true
	if term.Valid() {
		l.wrongLocked("epoch %d has ended and is valid", term.Epoch())
	}
}

// fitsLocked reports whether a term can have ended for the reason.
func (l *ledger) fitsLocked(s *stay, reason tenure.Reason) bool {
	if s.working && s.inRun && !s.resigned {
		switch reason {
		case tenure.Resigned, tenure.Evicted, tenure.ContextEnded:
			return false // the work comes first
		}
	}
	switch reason {
	case tenure.Resigned:
		return s.resigned || s.returned || s.c.p.leaving
	case tenure.Evicted:
		return l.evicted[s.term.Fence()]
	case tenure.ContextEnded:
		return s.inRun && s.call.Err() != nil
	case tenure.RenewalRefused:
		return s.c.p.dead
	case tenure.LeaseExpired:
		patience := 3*l.plan.ttl + 5*time.Second
		return l.excusedLocked(s) || s.c.p.dead || time.Since(s.c.p.m.trouble()) < patience ||
			time.Since(l.down) < patience || s.term.Context().Err() != nil
	default: // deleted, replaced, fenced
		// Or the lease had run out, and a process that stood still heard of what
		// came after before its own timer told it.
		mono, _ := s.c.p.m.clock.read()
		return l.excusedLocked(s) || !s.over.IsZero() || s.term.ValidUntil().Before(mono)
	}
}

// excusedLocked reports whether promise 1 is off for a term: others than its
// holder have ended it in etcd, or its clocks are beyond the assumption.
func (l *ledger) excusedLocked(s *stay) bool {
	return !l.harmedLocked(s).IsZero() || s.c.p.m.beyond
}

// harmedLocked returns when others have ended a term in etcd, or zero.
func (l *ledger) harmedLocked(s *stay) time.Time {
	fence := s.term.Fence()
	if at, ok := l.harmed[fence]; ok {
		return at
	}
	if at, ok := l.revoked[fence.Lease]; ok {
		return at
	}
	// A key from before the restore may have been reported after it.
	if !l.restored.IsZero() && s.began.Before(l.restored.Add(2*l.plan.ttl)) {
		return l.restored
	}
	return time.Time{}
}

// look asks every term for its validity.
func (l *ledger) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.elections {
		l.lookLocked(e)
	}
}

func (l *ledger) lookLocked(e *election) {
	now := time.Now()
	var valid []*stay
	for _, s := range e.present {
		if s.c.p.dead {
			continue
		}
		epoch := s.term.Epoch()
		if !s.term.Valid() {
			if s.over.IsZero() {
				s.over, e.last = now, now
			}
			continue
		}
		valid = append(valid, s)
		if !s.over.IsZero() {
			l.wrongLocked("epoch %d is valid again", epoch)
		}
		if s.ended {
			l.wrongLocked("epoch %d has ended and is valid", epoch)
		}
		if err := s.term.Context().Err(); err != nil {
			if s.told.IsZero() {
				s.told = now
			}
			if _, ok := errors.AsType[tenure.Reason](context.Cause(s.term.Context())); !ok {
				l.wrongLocked("the context of epoch %d has ended for no reason: %v", epoch, context.Cause(s.term.Context()))
			}
		}
		if s.c.p.m.beyond {
			continue
		}
		longest := time.Duration(float64(l.plan.ttl) / s.c.p.m.slowest())
		if at := l.harmedLocked(s); !at.IsZero() && at != l.restored && !l.forcing[s.term.Fence()] && now.Sub(at) > longest {
			l.wrongLocked("epoch %d is valid %v after it has gone from etcd", epoch, now.Sub(at))
		}
		// A renewal that stands still with its process is sent when that wakes,
		// though the timer of the library has run on.
		told := s.told
		if woken := s.c.p.m.clock.woken(); woken.After(told) {
			told = woken
		}
		if stop := s.c.p.m.stop + longest; s.working && !s.told.IsZero() && now.Sub(told) > stop {
			l.wrongLocked("epoch %d is valid %v after its work was told to stop", epoch, now.Sub(told))
		}
	}
	for i, s := range valid {
		for _, o := range valid[i+1:] {
			older, newer := s, o
			if older.term.Epoch() > newer.term.Epoch() {
				older, newer = o, s
			}
			if !l.excusedLocked(older) && (l.restored.IsZero() || !l.excusedLocked(newer)) {
				l.wrongLocked("epochs %d of %v and %d of %v are both valid, the former for another %v", older.term.Epoch(), older.c,
					newer.term.Epoch(), newer.c, time.Until(older.term.ValidUntil()))
			}
		}
	}
	e.present = slices.DeleteFunc(e.present, func(s *stay) bool {
		return !s.working && (s.c.p.dead || s.ended && !s.over.IsZero() && now.Sub(s.over) > 4*l.plan.ttl)
	})
}

// leader is the stay of whoever leads, or nil.
func (l *ledger) leader(election int) *stay {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found *stay
	for _, s := range l.elections[election].present {
		if !s.c.p.dead && s.term.Valid() && (found == nil || s.term.Epoch() > found.term.Epoch()) {
			found = s
		}
	}
	return found
}

// read is a lease read of a term: it reads the state, which whoever leads has
// written last, and then asks Valid.
func (l *ledger) read(s *stay) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.elections[s.c.election]
	latest := e.acked
	if s.term.Valid() && latest > s.term.Epoch() && !l.excusedLocked(s) {
		l.wrongLocked("a lease read of epoch %d misses what epoch %d has written", s.term.Epoch(), latest)
	}
}

// wrote notes the outcome of a write.
func (l *ledger) wrote(s *stay, value string, o outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.elections[s.c.election]
	e.writes[value] = o
	if o == acked && (l.restored.IsZero() || s.began.After(l.restored)) {
		e.acked = max(e.acked, s.term.Epoch())
	}
}

// enter notes that the gate has let a fence in, and returns what notes that it
// has left.
func (l *ledger) enter(s *stay) (leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, fence := l.elections[s.c.election], s.term.Fence()
	last := e.entered
	if fence.Epoch < last.Epoch || fence.Epoch == last.Epoch && fence.Lease != last.Lease {
		l.wrongLocked("the gate lets %v in after %v", fence, last)
	}
	e.entered = fence
	e.inside[fence]++
	if len(e.inside) > 1 {
		l.wrongLocked("the gate has let in %v at once", slices.Collect(maps.Keys(e.inside)))
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if e.inside[fence]--; e.inside[fence] == 0 {
			delete(e.inside, fence)
		}
	}
}

// harm notes that others are about to end the term of a fence.
func (l *ledger) harm(fence tenure.Fence) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.harmed[fence]; !ok {
		l.harmed[fence] = time.Now()
	}
}

// force is harm that others come to do when they have asked in vain, at the
// latest when done is called.
func (l *ledger) force(fence tenure.Fence) (done func()) {
	l.harm(fence)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forcing[fence] = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.harmed[fence] = time.Now()
		delete(l.forcing, fence)
	}
}

// judge checks the history of each guarded key, as etcd has it.
func (l *ledger) judge(final bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.elections {
		var last version
		seen := make(map[string]bool)
		for _, v := range e.versions {
			seen[v.value] = true
			switch {
			case v.epoch < last.epoch:
				l.wrongLocked("at revision %d %s takes a write of epoch %d after one of %d", v.revision, e.data, v.epoch, last.epoch)
			case v.epoch == last.epoch && v.lease != last.lease:
				l.wrongLocked("at revision %d %s takes a write of epoch %d on lease %x after one on %x", v.revision, e.data, v.epoch, v.lease, last.lease)
			}
			if e.writes[v.value] == unsent {
				l.wrongLocked("at revision %d %s takes %q, which was refused before it was sent", v.revision, e.data, v.value)
			}
			last = v
		}
		if final && l.restored.IsZero() {
			for _, value := range slices.Sorted(maps.Keys(e.writes)) {
				if e.writes[value] == acked && !seen[value] {
					l.wrongLocked("%s has never had %q, which was acknowledged", e.data, value)
				}
			}
		}
	}
}

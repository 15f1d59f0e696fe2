package tenure

import (
	"context"
	"crypto/rand"
	"maps"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure/internal/seam"
)

func init() {
	seam.NewElection = func(key string) seam.Election {
		return &soloElection{key: key, changed: make(chan struct{})}
	}
}

// soloElection is an election that only electors of this process take part in
// and that needs no etcd. Its terms are real ones. It is for users' own tests.
type soloElection struct {
	key string

	mu      sync.Mutex
	epoch   Epoch
	term    *Term         // the holder's
	leader  Leader        // what it publishes
	changed chan struct{} // closed and replaced when term changes
}

func (s *soloElection) Elector(opts any) (any, error) {
	given, _ := opts.(*Options)
	o := given.complete()
	if err := o.validate(nil); err != nil {
		return nil, err
	}
	e := newElector(s.key, o)
	e.sit = func() place { return &soloPlace{s: s, e: e} }
	return e, nil
}

func (s *soloElection) End(reason error) bool {
	s.mu.Lock()
	t := s.term
	s.mu.Unlock()
	if t == nil {
		return false
	}
	switch reasonOf(reason) {
	case Evicted, ContextEnded:
		t.stop(reason) // in order: the holder resigns
	case Resigned:
		_ = t.Resign() // cannot fail: there is no etcd to be out of reach
	default:
		t.end(reason)
	}
	return true
}

// free makes the election vacant if t holds it.
func (s *soloElection) free(t *Term) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term == t {
		s.term = nil
		close(s.changed)
		s.changed = make(chan struct{})
	}
}

// soloPlace is a candidate's place at a soloElection.
type soloPlace struct {
	s *soloElection
	e *Elector
}

func (p *soloPlace) win(ctx context.Context, m mode) (*Term, error) {
	s, e := p.s, p.e
	for {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		s.mu.Lock()
		if s.term == nil {
			break
		}
		leader, changed := s.leader, s.changed
		s.mu.Unlock()
		e.publish(Status{State: Led, Leader: leader, Seen: time.Now()})
		if m == noWait {
			return nil, &leaderError{err: ErrHeld, leader: leader}
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	defer s.mu.Unlock()
	s.epoch = max(s.epoch, e.opts.MinEpoch) + 1
	gen := &generation{id: clientv3.LeaseID(s.epoch), ttl: e.opts.TTL, margin: e.opts.Margin}
	limit := e.opts.clocks().add(100 * 365 * 24 * time.Hour) // it ends when it is told to
	gen.limit.Store(&limit)
	t := e.newTerm(ctx, p, Fence{Key: s.key, Epoch: s.epoch, Lease: gen.id}, rand.Text(), gen)
	t.inRun = m == forRun
	t.start(func() bool { return true })
	s.term = t
	s.leader = Leader{
		Fence: t.fence, Identity: e.opts.Identity, Address: e.opts.Address, Metadata: e.opts.Metadata,
		Acquired: time.Now().UTC(), Revision: int64(s.epoch),
	}
	e.won(t)
	e.publish(Status{State: Leading, Leader: s.leader, Seen: time.Now()})
	go func() {
		defer close(t.done)
		<-t.life.Done()
		if t.owed.Load() {
			<-t.free
		}
		s.free(t)
		e.term.Store(nil)
		if m != forRun {
			e.finish(p)
		}
	}()
	return t, nil
}

func (p *soloPlace) leave() {}

func (p *soloPlace) verify(_ context.Context, t *Term) error {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if p.s.term != t {
		return KeyDeleted
	}
	return nil
}

func (p *soloPlace) release(t *Term) error {
	p.s.free(t)
	return nil
}

func (p *soloPlace) announce(_ context.Context, t *Term, address string, metadata map[string]string) error {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if p.s.term != t {
		return KeyDeleted
	}
	p.s.leader.Address, p.s.leader.Metadata = address, maps.Clone(metadata)
	return nil
}

func (p *soloPlace) abandon(t *Term) { t.end(LeaseExpired) }

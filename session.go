package tenure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// session is a candidate's place at an election that is kept in etcd. The
// goroutine that campaigns owns it, and while a term lasts the goroutine that
// watches the key does.
type session struct {
	e      *Elector
	l      *Lease
	v      *view
	joined bool
	met    bool // there are other candidates, or were

	owes *generation // a lease on which something of ours may stand, or appear
}

func newSession(e *Elector) place {
	v := newView(e.client, e.lease.kv, e.key, e.lease.watchers.fresh)
	v.timeout = e.lease.request()
	return &session{e: e, l: e.lease, v: v}
}

// join takes part in the lease, which begins to be granted if it is not.
func (s *session) join() error {
	if s.joined {
		return nil
	}
	err := s.l.join(s.v)
	s.joined = err == nil
	return err
}

func (s *session) leave() {
	if s.joined {
		s.l.leave(s.v, s.owes)
	}
	s.v.close()
	s.l.rest()
}

// campaign is one attempt to win one term.
type campaign struct {
	record  record
	unknown bool          // a put of ours may be under way
	gen     *generation   // the last one we put with
	retry   backoff       // after unknown outcomes
	vacancy int           // the one that ready is about
	ready   time.Time     // do not contend before
	drawn   time.Duration // the delay that the lottery gave
	behind  bool          // another elector of ours has contended meanwhile
}

// win follows the key until it is vacant, contends for it, and returns the term
// once it is ours, whichever of our requests or of the watch's events showed it.
func (s *session) win(ctx context.Context, m mode) (*Term, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err() // a lease that is being granted could not be taken back
	}
	if m != noWait { // which may find that it needs no lease
		if err := s.join(); err != nil {
			return nil, err
		}
	}
	c := &campaign{record: newRecord(&s.e.opts), vacancy: -1}
	s.l.enlist(c.record.Candidate)
	term, err := s.follow(ctx, m, c)
	if err != nil {
		s.forsake(c)
		if ctx.Err() == nil && s.l.client.Ctx().Err() != nil {
			err = fmt.Errorf("%w: %w", errClientClosed, err) // which may be any, such as a timeout
		}
		return nil, err
	}
	return term, nil
}

// trouble is what stands in the way of a term, as far as that is known.
func (s *session) trouble() error {
	_, _, _, trouble := s.l.health()
	if err := cmp.Or(trouble, s.v.trouble, s.v.refused); err != nil || s.v.known {
		return err
	}
	// No request has failed yet, but perhaps none was ever sent.
	if state := s.l.client.ActiveConnection().GetState(); state != connectivity.Ready {
		return fmt.Errorf("no connection to etcd: %v", state)
	}
	return nil
}

// forsake ends a campaign that was not won, cleaning up what it may have put.
func (s *session) forsake(c *campaign) {
	if c.gen != nil && (c.unknown || s.ours(c, s.v.held)) {
		s.owes = c.gen
	}
	s.l.delist(c.record.Candidate)
}

func (s *session) ours(c *campaign, kv *keyValue) bool {
	return kv != nil && decodeRecord(kv.Value).Candidate == c.record.Candidate
}

func (s *session) follow(ctx context.Context, m mode, c *campaign) (*Term, error) {
	e, v := s.e, s.v
	for {
		if s.joined {
			// Also while another holds the election, so that the lease is warm
			// when it is needed, and that its end is noticed.
			if err := s.l.failed(); err != nil {
				return nil, err
			}
		}
		if !s.ours(c, v.held) { // else it is led once there is a term
			e.observe(v)
		}
		switch {
		case !v.known:
		case v.held == nil:
			if err := s.join(); err != nil {
				return nil, err
			}
			contended, err := s.contend(ctx, m, c)
			if err != nil {
				return nil, err
			}
			if contended {
				continue // look at what has become of it
			}
		case s.ours(c, v.held):
			term, err := s.begin(ctx, m, c)
			if term != nil || err != nil {
				return term, err
			}
			continue
		default:
			s.met = true
			e.saw(Epoch(v.held.CreateRevision))
			if s.l.orphaned(v.held) {
				// Nobody else would end it. A restored etcd can bring it back.
				s.withdraw(ctx, c, v.held)
				if ctx.Err() == nil {
					continue
				}
			}
			if m == noWait {
				return nil, &leaderError{err: ErrHeld, leader: leaderOf(e.key, v.held)}
			}
		}
		wctx, cancel := ctx, context.CancelFunc(func() {})
		if v.known && v.held == nil { // not yet
			wctx, cancel = context.WithDeadline(ctx, c.ready)
		}
		err := v.next(wctx)
		cancel()
		if ctx.Err() != nil {
			return nil, ended(ctx, s.trouble())
		}
		if err != nil && wctx.Err() == nil {
			return nil, err
		}
	}
}

// contend tries to create the key, unless it is too early for that: then it sets
// c.ready and reports false.
func (s *session) contend(ctx context.Context, m mode, c *campaign) (contended bool, err error) {
	e, v := s.e, s.v
	now := time.Now()
	if c.vacancy != v.vacancies {
		if c.vacancy >= 0 {
			e.warm() // somebody has held it since, if only for a moment
		}
		c.drawn, c.behind = 0, false
		if s.met { // they have waited for this vacancy, as we have
			c.drawn = e.lottery.draw()
		}
		c.vacancy, c.ready = v.vacancies, now.Add(c.drawn)
		if until := e.cooling(); m != noWait && until.After(c.ready) {
			c.ready = until
		}
	}
	if now.Before(c.ready) {
		return false, nil
	}
	if err := s.risen(ctx); err != nil {
		return false, err
	}
	gen, err := s.l.live(ctx)
	if err != nil {
		return false, err
	}
	if !s.l.contend(e.key) {
		c.behind, c.ready = true, now.Add(e.lottery.unit)
		return false, nil
	}
	defer s.l.contended(e.key)
	if c.behind {
		// What has become of it is known here only once the watch tells, which
		// may not even be open yet. A read costs etcd less than losing.
		c.behind = false
		_, err = v.read(ctx)
		return true, err
	}
	if c.drawn > 0 {
		e.lottery.unclaimed()
	}
	won, err := s.create(ctx, c, gen)
	switch {
	case err == nil:
		if s.met && !won && c.drawn == 0 && !s.ours(c, v.held) {
			e.lottery.lost()
		}
		return true, nil
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		s.l.kill(gen, LeaseExpired.because(errLeaseGone))
	case permanent(s.l.client, err):
		return false, fmt.Errorf("create %q: %w", e.key, err)
	}
	// The next attempt repeats the same transaction with the same lease, if that
	// is still ours, and the same candidate id; or the watch shows the key first.
	e.log.Warn("the key could not be created", "error", err)
	v.refused = fmt.Errorf("create %q: %w", e.key, err) // but etcd may well be heard
	e.observe(v)
	c.ready = time.Now().Add(max(c.retry.next(), 20*time.Millisecond))
	return false, nil
}

// create is the create-if-absent transaction. It reports whether this very
// transaction has put the key; the view holds the key in either case.
func (s *session) create(ctx context.Context, c *campaign, gen *generation) (won bool, err error) {
	v := s.v
	c.gen = gen
	c.record.Acquired = time.Now().UTC()
	value := c.record.encode()
	sent := time.Now()
	rctx, cancel := context.WithTimeout(ctx, min(s.l.request(), gen.left(s.l.clocks())))
	defer cancel()
	rctx, failed := withAttempts(rctx)
	resp, err := s.l.kv.Txn(rctx).
		If(clientv3.Compare(clientv3.CreateRevision(v.key), "=", 0)).
		Then(clientv3.OpPut(v.key, value, clientv3.WithLease(gen.id))).
		Else(clientv3.OpGet(v.key)).
		Commit()
	if err != nil {
		// Even if etcd has refused it. Its client repeats a request by itself
		// after some errors, and what it reports is about the last one only.
		c.unknown = true
		return false, err
	}
	if failed.Load() {
		c.unknown = true // the twin of this one may yet be applied
	}
	v.relief()
	s.e.lottery.took(time.Since(sent))
	rev := resp.Header.Revision
	if rev < v.rev.Load() {
		// Older than what was known before the request: etcd was rolled back,
		// and the watch waits for a revision that is far ahead.
		v.drop()
		v.rolledBack = true
	}
	if resp.Succeeded {
		v.set(&keyValue{Key: []byte(v.key), Value: []byte(value), CreateRevision: rev, ModRevision: rev, Version: 1, Lease: int64(gen.id)}, rev)
		return true, nil
	}
	v.set(keyOf(resp.Responses[0].GetResponseRange()), rev)
	return false, nil
}

// attempts is the KV service on the client's connection. It notes the attempts
// of a transaction that failed: etcd's client repeats it by itself after some
// errors and then reports the last attempt alone.
type attempts struct{ pb.KVClient }

type attemptsKey struct{}

// withAttempts returns a context for one transaction, and whether an attempt of
// it has failed, once the transaction has returned.
func withAttempts(ctx context.Context) (context.Context, *atomic.Bool) {
	failed := new(atomic.Bool)
	return context.WithValue(ctx, attemptsKey{}, failed), failed
}

func (a attempts) Txn(ctx context.Context, req *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	if failed, ok := ctx.Value(attemptsKey{}).(*atomic.Bool); ok {
		opts = append(slices.Clip(opts), grpc.OnFinish(func(err error) {
			if err != nil {
				failed.Store(true)
			}
		}))
	}
	return a.KVClient.Txn(ctx, req, opts...)
}

// begin makes a term of the key that the view holds, which carries our candidate
// id. It returns neither a term nor an error if that came to nothing.
func (s *session) begin(ctx context.Context, m mode, c *campaign) (*Term, error) {
	e, l, v := s.e, s.l, s.v
	kv := v.held
	epoch := Epoch(kv.CreateRevision) // never a header's: only this stays what it is
	if floor := e.floor(); epoch <= floor {
		s.withdraw(ctx, c, kv)
		return nil, fmt.Errorf("%w: it gave the epoch %d, which must be above %d", ErrRolledBack, epoch, floor)
	}
	gen := c.gen
	if int64(gen.id) != kv.Lease || l.fresh(ctx, gen) != nil {
		// On a lease that is lost, or about to be: the key was put too late.
		s.withdraw(ctx, c, kv)
		return nil, ctx.Err()
	}
	t := e.newTerm(ctx, s, Fence{Key: e.key, Epoch: epoch, Lease: gen.id}, c.record.Candidate, gen)
	t.inRun = m == forRun
	// The last look at ctx: from here on the term is the caller's.
	if ctx.Err() != nil || !t.start(func() bool { return l.admit(t) }) {
		t.discard()
		s.withdraw(ctx, c, kv)
		return nil, ctx.Err()
	}
	e.won(t)
	e.observe(v)
	go s.watch(t, m, c)
	return t, nil
}

// withdraw deletes a key of ours that did not become a term.
func (s *session) withdraw(ctx context.Context, c *campaign, kv *keyValue) {
	rev, err := s.l.deleteKey(context.WithoutCancel(ctx), leaderOf(s.e.key, kv).Fence)
	if err != nil {
		c.unknown = true
		_ = c.retry.wait(ctx) // the caller looks at ctx
		return
	}
	s.v.gone(rev)
}

// risen returns [ErrRolledBack] if the key that we would create now could get an
// epoch that is not above the floor.
func (s *session) risen(ctx context.Context) error {
	floor := int64(s.e.floor())
	if s.v.rev.Load() >= floor {
		return nil // the next revision is above it
	}
	rctx, cancel := context.WithTimeout(ctx, s.v.timeout)
	defer cancel()
	resp, err := s.l.kv.Get(rctx, s.e.key)
	if err != nil || resp.Header.Revision >= floor {
		return nil // what cannot be told now is checked again after winning
	}
	return fmt.Errorf("%w: its revision is %d, and an epoch must be above %d", ErrRolledBack, resp.Header.Revision, floor)
}

// watch looks after the key of t until t has ended and the key is given up.
func (s *session) watch(t *Term, m mode, c *campaign) {
	defer close(t.done)
	e, l, v := s.e, s.l, s.v
	for t.life.Err() == nil {
		s.check(t, c)
		if t.life.Err() != nil {
			break
		}
		if err := v.next(t.life); err != nil && t.life.Err() == nil {
			t.end(RenewalRefused.because(err))
		}
	}
	l.dismiss(t)
	if t.owed.Load() {
		// Resign gives the key up when the work has stopped.
		timer := time.NewTimer(t.limit().mono.Sub(l.clocks().mono) + t.gen.margin)
		select {
		case <-t.free:
		case <-timer.C:
			s.outstayed(t)
		}
		timer.Stop()
	}
	if !t.owed.Load() && leaderOf(e.key, v.held).Fence == t.fence {
		v.gone(t.gone.Load()) // though the watch has not told yet
	}
	l.delist(t.candidate)
	e.lost(t)
	if c.unknown || t.owed.Load() {
		s.owes = t.gen
	}
	if m != forRun {
		e.finish(s)
	} else if s.owes != nil {
		l.settle(s.owes, v.key)
		s.owes = nil
	}
}

// outstayed is called when the key of a term that was lost still is not given up
// at the time at which it would have gone if this process had died. A key that
// nobody would ever expire goes now, whatever the work does; every other one is
// left to etcd, which may give the work more time.
func (s *session) outstayed(t *Term) {
	switch reasonOf(t.Err()) {
	case LeaseExpired, RenewalRefused:
		if t.frozen.Load() == nil {
			return
		}
	}
	if err := t.giveUp(); err != nil {
		t.log.Warn("the key could not be given up; it expires", "error", err)
	}
}

// check compares the key with the term.
func (s *session) check(t *Term, c *campaign) {
	s.e.observe(s.v)
	kv := s.v.held
	switch {
	case kv == nil:
		t.end(KeyDeleted)
	case Epoch(kv.CreateRevision) != t.fence.Epoch:
		t.owed.Store(false)
		t.end(KeyReplaced)
	case clientv3.LeaseID(kv.Lease) != t.fence.Lease:
		// Without a lease nobody could ever expire it, so we delete it; on
		// somebody else's lease it is theirs.
		t.owed.Store(kv.Lease == 0)
		t.end(KeyReplaced.because(fmt.Errorf("it was put with lease %s instead of %s", leaseText(clientv3.LeaseID(kv.Lease)), leaseText(t.fence.Lease))))
	case !s.ours(c, kv):
		t.end(KeyReplaced.because(errors.New("its value was overwritten")))
	case decodeRecord(kv.Value).Evict:
		t.stop(Evicted)
	}
}

func (s *session) verify(ctx context.Context, t *Term) error {
	ctx, cancel := context.WithTimeout(ctx, s.l.request())
	defer cancel()
	resp, err := s.l.kv.Get(ctx, t.fence.Key)
	if err != nil {
		return fmt.Errorf("verify the term: %w", err)
	}
	switch {
	case len(resp.Kvs) == 0:
		return KeyDeleted
	case Epoch(resp.Kvs[0].CreateRevision) != t.fence.Epoch,
		clientv3.LeaseID(resp.Kvs[0].Lease) != t.fence.Lease,
		decodeRecord(resp.Kvs[0].Value).Candidate != t.candidate:
		return KeyReplaced
	}
	return nil
}

func (s *session) release(t *Term) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.l.tidy())
	defer cancel()
	var retry backoff
	var err error
	for retry.wait(ctx) == nil {
		actx, cancel := context.WithTimeout(ctx, s.l.tidy()/2)
		var rev int64
		rev, err = s.l.deleteKey(actx, t.fence)
		cancel()
		if err == nil {
			t.gone.Store(rev)
			return nil
		}
		if permanent(s.l.client, err) {
			break
		}
	}
	return fmt.Errorf("%w: give up %q: %w", ErrUnknownOutcome, t.fence.Key, err)
}

func (s *session) announce(ctx context.Context, t *Term, address string, metadata map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	resp, err := s.l.kv.Get(ctx, t.fence.Key)
	if err != nil {
		return fmt.Errorf("announce: %w", err)
	}
	kv := keyOf((*pb.RangeResponse)(resp))
	for {
		if kv == nil {
			return KeyDeleted
		}
		r := decodeRecord(kv.Value)
		if Epoch(kv.CreateRevision) != t.fence.Epoch || clientv3.LeaseID(kv.Lease) != t.fence.Lease || r.Candidate != t.candidate {
			return KeyReplaced
		}
		r.Address, r.Metadata = address, maps.Clone(metadata)
		value := r.encode()
		if len(value) > maxRecordBytes {
			return fmt.Errorf("tenure: the address and the metadata make a record of %d bytes: it must have at most %d", len(value), maxRecordBytes)
		}
		// The revision is compared, since an eviction writes the same record.
		txn, err := s.l.kv.Txn(ctx).
			If(append(t.fence.guard(), clientv3.Compare(clientv3.ModRevision(t.fence.Key), "=", kv.ModRevision))...).
			Then(clientv3.OpPut(t.fence.Key, value, clientv3.WithLease(t.fence.Lease))).
			Else(clientv3.OpGet(t.fence.Key)).
			Commit()
		switch {
		case err != nil && ambiguous(err):
			return fmt.Errorf("%w: announce: %w", ErrUnknownOutcome, err)
		case err != nil:
			return fmt.Errorf("announce: %w", err)
		case txn.Succeeded:
			return nil
		}
		kv = keyOf(txn.Responses[0].GetResponseRange())
	}
}

// abandon lets the term run out. Alone on its lease, the lease is renewed no
// longer and etcd does the rest. A shared lease lives on, so the term's limit is
// frozen, and watch deletes the key when the lease would have expired.
func (s *session) abandon(t *Term) {
	l := s.l
	l.mu.Lock()
	alone := len(l.views) == 1
	l.mu.Unlock()
	if alone {
		t.gen.end()
		return
	}
	limit := t.gen.limit.Load()
	t.frozen.Store(limit)
	time.AfterFunc(l.clocks().until(*limit), func() { t.end(LeaseExpired) })
}

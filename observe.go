package tenure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Leader is what the election's key says about its holder.
type Leader struct {
	Fence    Fence // its key, epoch and lease; Lease is 0 for a key that nobody can expire
	Identity string
	Address  string
	Metadata map[string]string
	Acquired time.Time // by the holder's wall clock
	Evicting bool      // the holder has been asked to go
	Revision int64     // at which the key was last written
}

func leaderOf(key string, kv *keyValue) Leader {
	if kv == nil {
		return Leader{Fence: Fence{Key: key}}
	}
	r := decodeRecord(kv.Value)
	return Leader{
		Fence:    Fence{Key: key, Epoch: Epoch(kv.CreateRevision), Lease: clientv3.LeaseID(kv.Lease)},
		Identity: r.Identity, Address: r.Address, Metadata: r.Metadata,
		Acquired: r.Acquired, Evicting: r.Evict, Revision: kv.ModRevision,
	}
}

// State is what is known of an election.
type State int

const (
	// Idle: the elector takes no part, or has not heard from etcd yet.
	Idle State = iota
	// Vacant: nobody holds the election; candidates contend for it.
	Vacant
	// Led: somebody holds it, as far as an observer knows, or another candidate
	// does.
	Led
	// Leading: this elector holds it.
	Leading
	// Unreachable: etcd does not answer; what was known last may be outdated.
	Unreachable
	// RolledBack: etcd's revision went back, as it does when a snapshot is
	// restored without bumping it; epochs may repeat. Or the key did, as it does
	// when one is restored with a bump. What is known starts anew.
	RolledBack
)

var stateNames = [...]string{"idle", "vacant", "led", "leading", "unreachable", "rolled back"}

// String returns the name of the state in lower case.
func (s State) String() string {
	if s < 0 || int(s) >= len(stateNames) {
		return fmt.Sprintf("State(%d)", int(s))
	}
	return stateNames[s]
}

// Status is what an elector or an observer knows of an election. It is local
// knowledge: right when it was learned, and of the age that Seen tells.
type Status struct {
	State  State
	Leader Leader        // the last one known; its epoch is 0 when nobody held it
	Since  time.Time     // when the state began; for Unreachable, when etcd was heard last
	Seen   time.Time     // when etcd was heard last
	TTL    time.Duration // that etcd has granted to this elector's lease; 0: none
	Err    error         // the last trouble, or what is odd about the key; nil: none
}

var errNoLease = errors.New("tenure: the election's key has no lease: it will never expire and must be deleted by hand")

// statusOf is what v knows.
func statusOf(v *view) Status {
	st := Status{Leader: leaderOf(v.key, v.held), Seen: v.seen, Err: v.trouble}
	switch {
	case v.rolledBack:
		st.State = RolledBack
	case v.trouble != nil:
		st.State, st.Since = Unreachable, v.since
	case !v.known:
	case v.held == nil:
		st.State, st.Err = Vacant, v.refused
	default:
		st.State = Led
		if v.held.Lease == 0 {
			st.Err = errNoLease
		}
	}
	return st
}

// same reports whether a consumer would see no difference.
func (s Status) same(o Status) bool {
	return s.State == o.State && s.Leader.Fence == o.Leader.Fence && s.Leader.Revision == o.Leader.Revision
}

// Status returns what the elector knows. It never blocks.
func (e *Elector) Status() Status {
	e.mu.Lock()
	st := e.status
	e.mu.Unlock()
	if e.lease != nil && st.State != Idle {
		ttl, heard, unreachable, trouble := e.lease.health()
		st.TTL = ttl
		if heard.After(st.Seen) {
			st.Seen = heard
		}
		if st.Err == nil {
			st.Err = trouble
		}
		if unreachable && st.State != Leading && st.State != Unreachable {
			st.State, st.Since = Unreachable, heard
		}
	}
	if st.State == Leading && e.Term() == nil {
		st.State = Led // the clock is ahead of the goroutine that will say why
	}
	return st
}

// observe publishes what v knows.
func (e *Elector) observe(v *view) {
	st := statusOf(v)
	if v.rolledBack {
		e.log.Error("etcd's revision went back, or the election's key: was a snapshot restored?")
		e.publish(st)
		v.rolledBack = false
		st = statusOf(v)
	}
	if t := e.Term(); t != nil && st.Leader.Fence == t.fence {
		st.State = Leading
	} else if _, heard, unreachable, trouble := e.lease.health(); unreachable && st.State != Unreachable {
		st.State, st.Since, st.Err = Unreachable, heard, trouble
	}
	e.publish(st)
}

// publish makes st the status.
func (e *Elector) publish(st Status) {
	e.mu.Lock()
	old := e.status
	if st.Since.IsZero() {
		st.Since = time.Now()
		if st.State == old.State {
			st.Since = old.Since
		}
	}
	e.status = st
	e.mu.Unlock()
	if st.same(old) {
		return
	}
	if st.Err != nil && st.State == Led {
		e.log.Warn("the election cannot change hands", "epoch", int64(st.Leader.Fence.Epoch), "error", st.Err)
	}
	if hook := e.opts.Hooks.StateChanged; hook != nil {
		e.events.add(func() { hook(st) })
	}
}

// Lookup asks etcd, in one linearizable round trip, who holds the election of
// key. It returns [ErrNoLeader] if nobody does. It blocks until the answer, until
// ctx ends, or for a few seconds, and returns the error of the request if there
// was no answer.
func Lookup(ctx context.Context, client *clientv3.Client, key string) (Leader, error) {
	if err := validateClient(client); err != nil {
		return Leader{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	resp, err := clientv3.NewKV(client).Get(ctx, key)
	if err != nil {
		return Leader{}, fmt.Errorf("tenure: look up %q: %w", key, err)
	}
	if len(resp.Kvs) == 0 {
		return Leader{}, fmt.Errorf("%w: nobody holds %q", ErrNoLeader, key)
	}
	return leaderOf(key, resp.Kvs[0]), nil
}

// observeEvery is about how often an observer reads the key, against a watch
// that has gone deaf.
const observeEvery = 5 * time.Second

// Observe follows the election of key without taking part. The sequence starts
// with the present state and goes on with each change: [Led], [Vacant],
// [Unreachable] and [RolledBack]; only the newest is delivered if the consumer is
// slow, and never an older epoch after a newer one, unless RolledBack stands
// between. It heals itself, whatever happens to etcd, and ends when ctx ends or
// the consumer stops. An error is delivered once, last, and only if following
// the key can never succeed, as without the permission to read it.
//
// The sequence may be ranged over again. It follows the key on goroutines of its
// own, which have ended when the range statement has.
func Observe(ctx context.Context, client *clientv3.Client, key string) iter.Seq2[Status, error] {
	return func(yield func(Status, error) bool) {
		if err := validateClient(client); err != nil {
			yield(Status{}, err)
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		c := make(chan news, 1)
		go gather(ctx, client, key, c)
		defer func() { // also on the way of a panic
			cancel()
			for range c {
			}
		}()
		last := Status{State: -1}
		for n := range c {
			for _, st := range []Status{n.back, n.now} {
				if st.State == Idle || st.same(last) {
					continue
				}
				if ctx.Err() != nil || !yield(st, nil) {
					return
				}
				last = st
			}
			if n.err != nil {
				yield(Status{}, n.err)
				return
			}
		}
	}
}

// news is what an observer has not been told yet.
type news struct {
	back Status // told before now, if its state is RolledBack
	now  Status // the newest
	err  error  // why there will be nothing else
}

// gather follows key until ctx ends, or until that can never succeed, and keeps
// the news in c, which has room for one. It closes c in the end.
func gather(ctx context.Context, client *clientv3.Client, key string, c chan news) {
	defer close(c)
	w := &watchers{client: client}
	defer w.close()
	v := newView(client, clientv3.NewKV(client), key, w.fresh)
	defer v.close()
	v.every = observeEvery
	for {
		err := v.next(ctx)
		if ctx.Err() != nil {
			return
		}
		var n news
		select {
		case n = <-c: // the consumer is slow
		default:
		}
		if err != nil {
			n.err = fmt.Errorf("tenure: observe: %w", err)
			c <- n
			return
		}
		if v.rolledBack {
			n.back = statusSince(v)
			v.rolledBack = false
		}
		n.now = statusSince(v)
		c <- n
	}
}

func statusSince(v *view) Status {
	st := statusOf(v)
	if st.Since.IsZero() {
		st.Since = time.Now()
	}
	return st
}

// EvictOptions configure [Evict]. A nil *EvictOptions asks and waits.
type EvictOptions struct {
	// Force deletes the key if the holder has not gone within Patience. The
	// holder learns of it from its watch; until then it believes that it leads,
	// and only fences hold it back.
	Force bool

	// Patience is how long the holder may take if Force is set. Default 30 s; a
	// negative one deletes the key without asking.
	Patience time.Duration
}

// Evict ends the term of fence, which [Lookup] tells, on purpose. It marks the
// key's record; the holder sees that, stops its work and resigns, in order, with
// the reason [Evicted], and lets another candidate win before it contends again.
//
// Evict blocks until the term has ended, however it did, and then returns nil.
// Otherwise it returns the error of ctx, in which case the mark may stand;
// [ErrNoLeader] or [ErrFenced], if the election is vacant or of another term when
// Evict begins; or the error of a request. It never touches another term than
// fence's.
func Evict(ctx context.Context, client *clientv3.Client, fence Fence, opts *EvictOptions) error {
	if err := errors.Join(validateClient(client), fence.Validate()); err != nil {
		return err
	}
	var o EvictOptions
	if opts != nil {
		o = *opts
	}
	if o.Patience == 0 {
		o.Patience = defaultStopTimeout
	}
	w := &watchers{client: client}
	defer w.close()
	v := newView(client, clientv3.NewKV(client), fence.Key, w.fresh)
	defer v.close()
	v.every = observeEvery
	patience := ctx
	if o.Force {
		var cancel context.CancelFunc
		patience, cancel = context.WithTimeout(ctx, max(o.Patience, 0))
		defer cancel()
	}
	var retry backoff
	for begun := false; ; {
		force := patience.Err() != nil
		waiting := patience
		if force {
			waiting = ctx
		}
		again := func() {}
		var failed error
		if v.known {
			if leader := leaderOf(fence.Key, v.held); leader.Fence != fence {
				switch {
				case begun:
					return nil
				case v.held == nil:
					return fmt.Errorf("%w: nobody holds %q", ErrNoLeader, fence.Key)
				default:
					return &leaderError{err: ErrFenced, leader: leader}
				}
			}
			begun = true
			r := decodeRecord(v.held.Value)
			switch {
			case force, r.Candidate != "" && !r.Evict:
				failed = v.mark(ctx, fence, r, force)
			case r.Candidate == "" && !o.Force:
				return fmt.Errorf("tenure: evict: the value of %q is no record of a candidate, so its holder cannot be asked", fence.Key)
			}
			if failed != nil {
				if permanent(client, failed) {
					return fmt.Errorf("tenure: evict: %w", failed)
				}
				// It may have been applied, or may yet be; to repeat it is
				// harmless, and until then the key is followed.
				waiting, again = context.WithTimeout(waiting, max(retry.next(), 20*time.Millisecond))
			}
		}
		err := v.next(waiting)
		again()
		switch {
		case ctx.Err() != nil:
			return ended(ctx, cmp.Or(v.trouble, failed))
		case err != nil && waiting.Err() == nil:
			return fmt.Errorf("tenure: evict: %w", err)
		}
	}
}

// mark asks the holder of fence to go, or deletes its key. The watch shows what
// came of it.
func (v *view) mark(ctx context.Context, fence Fence, r record, force bool) error {
	ctx, cancel := context.WithTimeout(ctx, v.timeout)
	defer cancel()
	then := clientv3.OpDelete(fence.Key)
	guard := fence.guard()
	if !force {
		r.Evict = true
		// With WithIgnoreLease the key stays on the holder's lease.
		then = clientv3.OpPut(fence.Key, r.encode(), clientv3.WithIgnoreLease())
		guard = append(guard, clientv3.Compare(clientv3.ModRevision(fence.Key), "=", v.held.ModRevision))
	}
	_, err := v.kv.Txn(ctx).If(guard...).Then(then).Commit()
	return err
}

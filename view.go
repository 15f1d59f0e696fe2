package tenure

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

type keyValue = mvccpb.KeyValue

// view follows one key: a linearizable read, then a watch from the revision
// after it, and again from the read whenever the watch breaks. Reads that
// somebody else makes of the key (the lease does, to count its renewals) come in
// through reads, as a backstop against a watch that has gone deaf.
//
// One goroutine at a time owns a view; rev, reads, poke and check are for others
// too.
type view struct {
	key     string
	client  *clientv3.Client
	kv      clientv3.KV
	watcher func(stale clientv3.Watcher) clientv3.Watcher
	timeout time.Duration // of one read, or of opening the watch
	every   time.Duration // between reads of its own; 0: none, the lease reads

	reads chan reading  // of capacity 1, the newest
	poke  chan struct{} // of capacity 1: wakes next
	check chan struct{} // of capacity 1: makes next read the key

	life context.Context // of the watch
	end  context.CancelFunc

	held       *keyValue    // nil: vacant
	rev        atomic.Int64 // held is the state at this revision, or a later one
	created    int64        // the create revision that held had last
	cluster    uint64
	known      bool // held has been read at least once
	vacancies  int  // how often the key has become vacant
	rolledBack bool // since the owner last looked

	seen    time.Time // the last answer
	since   time.Time // when trouble began
	trouble error     // why nothing was heard lately
	refused error     // why the key could not be created, while it is vacant

	watch    clientv3.WatchChan
	opening  chan clientv3.WatchChan // while etcd has not confirmed the watch
	using    clientv3.Watcher
	stop     context.CancelFunc // of the watch, or of its opening
	openedAt time.Time
	retry    backoff
	again    time.Time // when to open it again; zero: not known yet
}

// reading is the state of a key at a revision, as a linearizable read found it.
type reading struct {
	kv      *keyValue
	rev     int64
	cluster uint64
	floor   int64 // the view's revision before the read was sent
}

// requireLeader is the root of every watch: a member that has lost the cluster
// must say so.
var requireLeader = clientv3.WithRequireLeader(context.Background())

func newView(client *clientv3.Client, kv clientv3.KV, key string, watcher func(clientv3.Watcher) clientv3.Watcher) *view {
	v := &view{key: key, client: client, kv: kv, watcher: watcher, timeout: requestTimeout, reads: make(chan reading, 1), poke: make(chan struct{}, 1), check: make(chan struct{}, 1)}
	// A private watcher, so that the fate of the streams is not shared with the
	// caller's watches.
	v.life, v.end = context.WithCancel(requireLeader)
	v.seen = time.Now()
	return v
}

// close ends the watch. The view must not be used afterwards.
func (v *view) close() {
	v.drop()
	v.end()
}

// wake makes next return soon.
func (v *view) wake() {
	select {
	case v.poke <- struct{}{}:
	default:
	}
}

// doubt makes next read the key soon.
func (v *view) doubt() {
	select {
	case v.check <- struct{}{}:
	default:
	}
}

// deliver hands in a reading. Only one goroutine at a time may call it.
func (v *view) deliver(r reading) {
	select {
	case <-v.reads: // the owner has not seen the previous one, which is older
	default:
	}
	v.reads <- r
}

// next blocks until the key may have changed, or trouble has begun or ended, or
// wake was called. It returns an error if ctx ends or if following the key can
// never succeed; whatever else goes wrong, it heals.
func (v *view) next(ctx context.Context) error {
	var backstop, confirm <-chan time.Time
	for {
		if v.watch == nil && v.opening == nil {
			changed, err := v.refresh(ctx)
			if changed || err != nil {
				return err
			}
			continue
		}
		if v.every > 0 && backstop == nil {
			backstop = time.After(v.every/2 + rand.N(v.every))
		}
		if v.opening != nil && confirm == nil {
			confirm = time.After(v.timeout)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()

		case <-v.poke:
			return nil

		case v.watch = <-v.opening:
			v.opening, v.openedAt, confirm = nil, time.Now(), nil

		case <-confirm:
			// Neither confirmed nor refused: the stream is dead, or its
			// watcher is stuck. Another watcher opens another stream.
			confirm = nil
			v.drop()
			v.using = v.watcher(v.using)

		case resp, ok := <-v.watch:
			if v.apply(resp, ok) {
				return nil
			}

		case r := <-v.reads:
			if v.adopt(r) {
				return nil
			}

		case <-v.check:
			changed, err := v.read(ctx)
			if changed || err != nil {
				return err
			}

		case <-backstop:
			backstop = nil
			changed, err := v.read(ctx)
			if changed || err != nil {
				return err
			}
		}
	}
}

// refresh reads the key and opens the watch after it, waiting first if that has
// failed lately. It reports whether there is something to look at.
func (v *view) refresh(ctx context.Context) (changed bool, err error) {
	if v.again.IsZero() {
		v.again = time.Now().Add(v.retry.next())
	}
	timer := time.NewTimer(time.Until(v.again))
	defer timer.Stop()
	for !v.again.IsZero() {
		select {
		case <-ctx.Done():
			return false, ctx.Err()

		case <-v.poke:
			return true, nil

		case r := <-v.reads:
			if v.adopt(r) {
				return true, nil
			}

		case <-timer.C:
			v.again = time.Time{}
		}
	}
	changed, err = v.read(ctx)
	if err == nil && v.trouble == nil {
		v.open()
	}
	return changed, err
}

// read reads the key. Failing for now is no error but trouble.
func (v *view) read(ctx context.Context) (changed bool, err error) {
	floor := v.rev.Load()
	rctx, cancel := context.WithTimeout(ctx, v.timeout)
	resp, err := v.kv.Get(rctx, v.key)
	cancel()
	switch {
	case err == nil:
		r := reading{rev: resp.Header.Revision, cluster: resp.Header.ClusterId, floor: floor}
		if len(resp.Kvs) > 0 {
			r.kv = resp.Kvs[0]
		}
		return v.adopt(r), nil
	case ctx.Err() != nil:
		return false, ctx.Err()
	case permanent(v.client, err):
		return false, fmt.Errorf("read %q: %w", v.key, err)
	}
	return v.suffer(fmt.Errorf("read %q: %w", v.key, err)), nil
}

// adopt takes over a reading unless the watch already knows better, and reports
// whether anything changed.
func (v *view) adopt(r reading) (changed bool) {
	recovered := v.relief()
	back := r.rev < r.floor || v.cluster != 0 && r.cluster != v.cluster
	if r.rev < v.rev.Load() && !back {
		return recovered
	}
	changed = !v.known || back || !sameKey(v.held, r.kv)
	if changed {
		// The watch should have told this first. If it only was late, opening
		// it again costs little; if it is deaf, or waits for a revision that a
		// restored etcd has not reached yet, this heals it.
		v.drop()
	}
	v.rolledBack = v.rolledBack || back
	v.set(r.kv, r.rev)
	v.cluster, v.known = r.cluster, true
	return changed || recovered
}

// set makes kv the state at rev.
func (v *view) set(kv *keyValue, rev int64) {
	if kv == nil && (v.held != nil || !v.known) {
		v.vacancies++
	}
	if kv != nil {
		v.refused = nil
		// A restore that bumps the revision, or whose revision has overtaken ours
		// since, shows in nothing but a key of the past.
		v.rolledBack = v.rolledBack || kv.CreateRevision < v.created
		v.created = kv.CreateRevision
	}
	v.held = kv
	v.rev.Store(rev)
}

// gone makes the key vacant that we have deleted, at rev if that is known: a read
// from before must not bring it back.
func (v *view) gone(rev int64) { v.set(nil, max(v.rev.Load(), rev)) }

// apply takes over what the watch tells, and all that it has in store, so that
// the owner sees the newest state only.
func (v *view) apply(resp clientv3.WatchResponse, ok bool) (changed bool) {
	for {
		var broken error
		switch {
		case !ok:
			broken = errors.New("the watch was closed")
		case resp.Err() != nil:
			broken = resp.Err() // compacted, no leader, token expired: all heal by reading
		}
		if broken != nil {
			v.drop()
			return changed
		}
		changed = v.relief() || changed
		for _, ev := range resp.Events {
			if ev.Kv.ModRevision <= v.rev.Load() {
				continue // told before: by a read, or by a server that repeats itself
			}
			changed = true
			if ev.Type == clientv3.EventTypeDelete {
				v.set(nil, ev.Kv.ModRevision)
			} else {
				v.set(ev.Kv, ev.Kv.ModRevision)
			}
		}
		select {
		case resp, ok = <-v.watch:
		default:
			return changed
		}
	}
}

// open starts a watch after the state that is known. Watch returns only when
// etcd has confirmed it, so it runs beside; drop waits for it.
func (v *view) open() {
	ctx, stop := context.WithCancel(v.life)
	v.using = v.watcher(nil) // the last one may have been closed or replaced
	opening := make(chan clientv3.WatchChan, 1)
	w, from := v.using, v.rev.Load()+1
	go func() { opening <- w.Watch(ctx, v.key, clientv3.WithRev(from)) }()
	v.opening, v.stop = opening, stop
}

// drop ends the watch. The next call of next opens another one.
func (v *view) drop() {
	if v.stop != nil {
		v.stop()
	}
	if v.opening != nil {
		<-v.opening // Watch returns at once when its context has ended
	}
	if v.watch != nil && time.Since(v.openedAt) > watchStable {
		v.retry = backoff{}
	}
	v.watch, v.opening, v.stop = nil, nil, nil
}

// suffer notes trouble and reports whether it is new.
func (v *view) suffer(err error) (began bool) {
	began = v.trouble == nil
	if began {
		v.since = v.seen
	}
	v.trouble = err
	return began
}

// relief notes an answer and reports whether it ended trouble.
func (v *view) relief() (ended bool) {
	ended = v.trouble != nil
	v.trouble, v.seen = nil, time.Now()
	return ended
}

// watchers hands out the watcher that several views share.
type watchers struct {
	client *clientv3.Client

	mu  sync.Mutex
	all []clientv3.Watcher // the last one is in use
}

// fresh returns the watcher in use, or a new one in place of stale.
func (w *watchers) fresh(stale clientv3.Watcher) clientv3.Watcher {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.all); n == 0 || w.all[n-1] == stale {
		// The old one is not closed, since other views may be content with it.
		w.all = append(w.all, clientv3.NewWatcher(w.client))
	}
	return w.all[len(w.all)-1]
}

// close ends the streams of all watchers. A stream ends by itself with the last
// watch on it, but not if that was cancelled before etcd had confirmed it.
func (w *watchers) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, old := range w.all {
		go func() { _ = old.Close() }() // which waits for ever if its stream is stuck
	}
	w.all = nil
}

func sameKey(a, b *keyValue) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.CreateRevision == b.CreateRevision && a.ModRevision == b.ModRevision
}

const (
	requestTimeout = 3 * time.Second // of one request, where nothing shorter binds
	watchStable    = 5 * time.Second // a watch that lived so long may be reopened at once
	maxBackoff     = 2 * time.Second
)

// backoff spaces out attempts: none before the first, then 50 ms, doubling up to
// maxBackoff, each with a random part.
type backoff struct{ last time.Duration }

func (b *backoff) wait(ctx context.Context) error {
	d := b.next()
	if d == 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()

	case <-timer.C:
		return nil
	}
}

func (b *backoff) next() time.Duration {
	d := b.last
	b.last = min(max(2*d, 50*time.Millisecond), maxBackoff)
	if d == 0 {
		return 0
	}
	return d/2 + rand.N(d)
}

package tenure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/tenure-go/tenure/internal/code"
)

// Lease is etcd's promise to delete our keys unless we renew within the TTL. It
// is granted when the first elector campaigns on it, renewed in the background,
// granted anew whenever it was lost, and revoked when the last campaign or term
// on it has ended.
//
// Every elector has a lease of its own unless [Options.Lease] gives it a shared
// one. A shared lease costs one renewal and one read per TTL/3 for thousands of
// electors; in return they lose their terms together when it expires.
//
// All methods may be called concurrently.
type Lease struct {
	client *clientv3.Client
	kv     clientv3.KV // our own: the caller's may have been wrapped
	rpc    pb.LeaseClient
	ttl    time.Duration // wished
	margin time.Duration // 0: a share of what is granted
	log    *slog.Logger
	hooks  *Hooks
	clocks func() instant
	events *queue // that of its one elector, unless it is shared

	kick  chan struct{} // of capacity 1: renew now
	debts sync.WaitGroup

	watchers watchers // of the views

	mu         sync.Mutex
	changed    chan struct{} // closed and replaced when anything below changes
	gen        *generation   // nil while there is none
	err        error         // why there will be none
	closed     bool
	views      []*view // of the campaigns and terms on this lease
	turn       int     // of the views to be read next
	terms      map[*Term]struct{}
	candidates map[string]struct{} // ids of campaigns and terms that live
	contending map[string]struct{} // keys for which an elector of ours is contending
	heard      time.Time           // the last renewal or grant that counted
	failures   int                 // since then
	trouble    error               // the last of them
	stop       context.CancelFunc  // of run; nil while nobody uses the lease
	done       chan struct{}       // closed when the last run has ended
}

// generation is one lease of etcd: the instant until which it is ours moves, and
// once it is over it stays so.
type generation struct {
	id     clientv3.LeaseID
	ttl    time.Duration // granted
	margin time.Duration
	limit  atomic.Pointer[instant] // valid before it; a renewal makes a new value
	passed atomic.Bool             // somebody was told that the limit has passed: nothing moves it any more
	over   context.Context         // ended when it may never be renewed again
	end    context.CancelFunc

	// Guarded by Lease.mu.
	dead   bool // the limit has passed, or etcd has said so
	warned bool
	revoke bool
	owed   map[string]*view // keys to be swept
	timer  *time.Timer
}

func (g *generation) left(now instant) time.Duration {
	if g.passed.Load() {
		return 0
	}
	return now.until(*g.limit.Load())
}

// NewLease returns a lease to be shared by electors. It sends nothing; every
// fault of the options is reported at once. Close it when its electors are done.
func NewLease(client *clientv3.Client, opts *LeaseOptions) (*Lease, error) {
	var o LeaseOptions
	if opts != nil {
		o = *opts
	}
	if err := errors.Join(append(validateTimes("LeaseOptions", o.TTL, o.Margin), validateClient(client))...); err != nil {
		return nil, err
	}
	return newLease(client, o), nil
}

func newLease(client *clientv3.Client, o LeaseOptions) *Lease {
	if o.TTL == 0 {
		o.TTL = defaultTTL
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Hooks == nil {
		o.Hooks = &Hooks{}
	}
	if o.clocks == nil {
		o.clocks = readClocks
	}
	return &Lease{
		client: client, kv: clientv3.NewKVFromKVClient(attempts{clientv3.RetryKVClient(client)}, client), rpc: pb.NewLeaseClient(client.ActiveConnection()),
		heard: time.Now(), events: new(queue),
		ttl: o.TTL, margin: o.Margin, log: o.Logger, hooks: o.Hooks, clocks: o.clocks,
		kick: make(chan struct{}, 1), changed: make(chan struct{}), watchers: watchers{client: client},
		terms: make(map[*Term]struct{}), candidates: make(map[string]struct{}), contending: make(map[string]struct{}),
	}
}

func validateClient(client *clientv3.Client) error {
	if client == nil || client.ActiveConnection() == nil {
		return errors.New("tenure: the client is nil or has no connection, like one inside the server's own process")
	}
	return nil
}

// Close ends the terms on the lease in order and then the lease. The contexts of
// the terms end with the reason [Resigned], campaigns end with [ErrLeaseClosed],
// and Close blocks until all of them have let go and the lease has been revoked,
// or ctx ends. In that case renewals stop for good, so that etcd deletes what is
// left within a TTL, and Close returns the error of ctx. A term from
// [Elector.Campaign] lets go when its holder calls [Term.Resign].
//
// Close may be called again. A closed lease cannot be used any more.
func (l *Lease) Close(ctx context.Context) error {
	l.mu.Lock()
	l.closed, l.err = true, ErrLeaseClosed
	terms := slices.Collect(maps.Keys(l.terms))
	l.wakeLocked()
	l.signalLocked()
	l.mu.Unlock()
	for _, t := range terms { // no more are admitted
		t.stop(Resigned.because(ErrLeaseClosed))
	}
	l.mu.Lock()
	for len(l.views) > 0 {
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-ctx.Done():
			l.mu.Lock()
			if l.gen != nil {
				l.gen.end()
			}
			l.mu.Unlock()
			return ctx.Err()

		case <-changed:
		}
		l.mu.Lock()
	}
	done := l.done
	l.mu.Unlock()
	if done == nil {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()

	case <-done:
		return nil
	}
}

func (l *Lease) signalLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// join adds a view and starts the lease if it is the first one.
func (l *Lease) join(v *view) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrLeaseClosed
	}
	l.views = append(l.views, v)
	if l.stop == nil {
		ctx, stop := context.WithCancel(context.Background())
		previous := l.done // may still be revoking
		l.stop, l.done, l.err = stop, make(chan struct{}), nil
		go l.run(ctx, previous, l.done)
	}
	return nil
}

// leave removes a view. The last one to leave waits until the lease has been
// revoked, or until that has failed within a second and time must do it. If
// others stay, and owes is not nil, the lease takes over the clean-up of the
// key.
func (l *Lease) leave(v *view, owes *generation) {
	l.mu.Lock()
	l.views = slices.DeleteFunc(l.views, func(w *view) bool { return w == v })
	l.signalLocked()
	if len(l.views) > 0 {
		l.oweLocked(owes, v.key)
		l.mu.Unlock()
		return
	}
	stop, done := l.stop, l.done
	l.stop = nil
	l.mu.Unlock()
	stop()
	<-done
}

// run keeps the lease until ctx ends, and revokes it then.
func (l *Lease) run(ctx context.Context, previous, done chan struct{}) {
	defer close(done)
	if previous != nil {
		<-previous
	}
	for ctx.Err() == nil {
		gen, err := l.grant(ctx)
		if err != nil {
			if ctx.Err() == nil {
				l.fail(err)
			}
			return
		}
		l.keep(ctx, gen)
		l.mu.Lock()
		gen.end() // under the lock, so that no debt begins after the wait below
		revoke, over := gen.revoke || ctx.Err() != nil, l.err != nil
		l.mu.Unlock()
		if revoke {
			l.kill(gen, LeaseExpired)
			l.revoke(gen)
		}
		l.debts.Wait()
		if over {
			return
		}
	}
}

// fail tells everybody that the lease will not be granted any more.
func (l *Lease) fail(err error) {
	l.log.Error("the lease cannot be kept", "error", err)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
	l.wakeLocked()
	l.signalLocked()
}

// failed returns why there will be no lease any more, or nil.
func (l *Lease) failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// live returns the present generation, waiting for one until ctx ends or none
// will come.
func (l *Lease) live(ctx context.Context) (*generation, error) {
	for {
		l.mu.Lock()
		gen, err, changed, trouble := l.gen, l.err, l.changed, l.trouble
		l.mu.Unlock()
		if err != nil {
			return nil, err
		}
		if gen != nil && gen.over.Err() == nil && gen.left(l.clocks()) > 0 {
			return gen, nil
		}
		select {
		case <-ctx.Done():
			return nil, ended(ctx, trouble)

		case <-changed:
		}
	}
}

// fresh blocks until at least half of gen's time is left, asking for a renewal
// if need be. It returns an error if gen or ctx ends first.
func (l *Lease) fresh(ctx context.Context, gen *generation) error {
	for {
		l.mu.Lock()
		changed := l.changed
		l.mu.Unlock()
		if gen.over.Err() != nil {
			return LeaseExpired
		}
		if gen.left(l.clocks()) >= (gen.ttl-gen.margin)/2 {
			return nil
		}
		select {
		case l.kick <- struct{}{}:
		default:
		}
		select {
		case <-ctx.Done():
			return ctx.Err()

		case <-gen.over.Done():

		case <-changed:
		}
	}
}

// grant asks for a lease until it gets one. A grant goes through Raft, so the
// answer is proof that etcd's own clock for it started after the request was
// sent.
func (l *Lease) grant(ctx context.Context) (*generation, error) {
	var retry backoff
	for {
		if err := retry.wait(ctx); err != nil {
			return nil, err
		}
		wish := (l.ttl + time.Second - 1) / time.Second
		sent := l.clocks()
		rctx, cancel := context.WithTimeout(ctx, l.request())
		resp, err := l.rpc.LeaseGrant(rctx, &pb.LeaseGrantRequest{TTL: int64(wish)})
		cancel()
		if err != nil {
			err = fmt.Errorf("grant a lease: %w", rpctypes.Error(err))
			if permanent(l.client, err) {
				return nil, err
			}
			l.suffer(err)
			continue
		}
		gen := &generation{id: clientv3.LeaseID(resp.ID), ttl: time.Duration(resp.TTL) * time.Second, margin: l.margin}
		if gen.ttl > wish*time.Second {
			l.log.Warn("etcd has raised the TTL of the lease", "lease", leaseText(gen.id), "asked", wish*time.Second, "granted", gen.ttl)
		}
		if gen.margin == 0 {
			gen.margin = gen.ttl / marginShare
		}
		gen.over, gen.end = context.WithCancel(context.Background())
		limit := sent.add(gen.ttl - gen.margin)
		gen.limit.Store(&limit)
		l.mu.Lock()
		l.gen = gen
		l.reliefLocked()
		gen.timer = time.AfterFunc(l.untilGuard(gen, l.clocks()), func() { l.guard(gen) })
		l.signalLocked()
		l.mu.Unlock()
		return gen, nil
	}
}

// admit adds t to the terms that end with its generation, unless that is over.
func (l *Lease) admit(t *Term) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil || t.gen.over.Err() != nil {
		return false
	}
	l.terms[t] = struct{}{}
	return true
}

func (l *Lease) dismiss(t *Term) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.terms, t)
}

// request is the time that one request may take.
func (l *Lease) request() time.Duration {
	return min(max(l.ttl/3, time.Second/2), requestTimeout)
}

// tidy is the time that an orderly end may take for each of its two steps, the
// delete and the revoke.
func (l *Lease) tidy() time.Duration { return min(l.ttl/2, time.Second) }

// keep renews gen until ctx ends, or gen, or the client.
func (l *Lease) keep(ctx context.Context, gen *generation) {
	stream := &renewals{rpc: l.rpc}
	defer stream.abandon()
	// A request on a client that is closed meanwhile would not fail at once: etcd's
	// retry layer repeats it until its time is over.
	renewing, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.client.Ctx(), cancel)()
	// Due a third of the TTL after the send, here of the grant, whose answer may
	// have taken long.
	timer := time.NewTimer(gen.left(l.clocks()) - (gen.ttl - gen.margin) + gen.ttl/3)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return

		case <-gen.over.Done():
			return

		case <-l.client.Ctx().Done():
			l.kill(gen, RenewalRefused.because(errClientClosed))
			return

		case <-l.kick:

		case <-timer.C:
		}
		sent := l.clocks()
		err := l.renew(renewing, gen, stream)
		if ctx.Err() != nil || gen.over.Err() != nil {
			return
		}
		latency := l.clocks().mono.Sub(sent.mono)
		if hook := l.hooks.Renewed; hook != nil {
			l.events.add(func() { hook(latency, err) })
		}
		switch {
		case err == nil:
			timer.Reset(max(gen.ttl/3-latency, 0))
		case errors.Is(err, errLeaseGone):
			l.kill(gen, LeaseExpired.because(err))
			return
		case permanent(l.client, err):
			if code.Of(err) == codes.Unimplemented {
				l.fail(err) // nor would the next lease be renewed
			}
			l.kill(gen, RenewalRefused.because(err))
			return
		default:
			l.suffer(err)
			l.log.Warn("a renewal of the lease does not count", "lease", leaseText(gen.id), "error", err)
			pause := min(gen.ttl/30, time.Second)
			timer.Reset(pause/2 + rand.N(pause))
		}
	}
}

var (
	errLeaseGone    = errors.New("etcd does not know the lease")
	errClientClosed = errors.New("the etcd client was closed")
)

// renew makes one attempt. The validity counts from the instant before the
// renewal was sent, and counts at all only if a linearizable read, sent after
// the renewal was acknowledged, answers with the same Raft term: a leader of
// etcd that has stalled or was replaced acknowledges renewals that its successor
// knows nothing of. The read serves as the regular look at our keys, too.
func (l *Lease) renew(ctx context.Context, gen *generation, stream *renewals) error {
	sent := l.clocks()
	ack, err := stream.renew(ctx, gen.id, attempt(gen, sent))
	if err != nil {
		return fmt.Errorf("renew the lease: %w", err)
	}
	if ack.TTL <= 0 {
		return errLeaseGone
	}
	raftTerm, err := l.readKeys(ctx, attempt(gen, l.clocks()))
	if err != nil {
		return fmt.Errorf("confirm a renewal of the lease: %w", err)
	}
	if raftTerm != ack.Header.RaftTerm {
		return fmt.Errorf("confirm a renewal of the lease: it was acknowledged in Raft term %d and etcd is in %d", ack.Header.RaftTerm, raftTerm)
	}
	return l.extend(gen, sent.add(min(time.Duration(ack.TTL)*time.Second, gen.ttl)-gen.margin))
}

// attempt bounds one request of a renewal: a fraction of what is left, so that a
// request that hangs leaves time for others at other endpoints.
func attempt(gen *generation, now instant) time.Duration {
	return max(min(gen.ttl/6, gen.left(now)/2), 10*time.Millisecond)
}

// extend moves gen's limit to limit, unless the old one has passed meanwhile: a
// lease that this process has taken for expired stays so.
func (l *Lease) extend(gen *generation, limit instant) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if gen.dead || gen.left(l.clocks()) <= 0 {
		return errors.New("the answer came after the lease had expired")
	}
	if limit.mono.After(gen.limit.Load().mono) {
		gen.limit.Store(&limit)
		gen.warned = false
	}
	l.reliefLocked()
	l.signalLocked()
	return nil
}

// guard ends gen when its limit passes. It looks more often than that, since the
// wall clock may come to the limit before the timer, which runs on the
// monotonic clock, does.
func (l *Lease) guard(gen *generation) {
	now := l.clocks()
	left := gen.left(now)
	if left <= 0 {
		l.kill(gen, LeaseExpired)
		return
	}
	var warn []*Term
	l.mu.Lock()
	if gen.dead {
		l.mu.Unlock()
		return
	}
	// Half of what is left when a renewal is due: with a large margin that is less
	// than a third of the TTL.
	if left < gen.ttl/3-gen.margin/2 && !gen.warned {
		gen.warned = true
		warn = l.termsLocked(gen)
	}
	gen.timer.Reset(l.untilGuard(gen, now))
	l.mu.Unlock()
	for _, t := range warn {
		t.expiring(left)
	}
}

func (l *Lease) untilGuard(gen *generation, now instant) time.Duration {
	return max(min(gen.left(now), gen.ttl/20, time.Second), 0)
}

// kill ends gen and the terms on it.
func (l *Lease) kill(gen *generation, cause error) {
	l.mu.Lock()
	if gen.dead {
		l.mu.Unlock()
		return
	}
	gen.dead = true
	gen.end()
	gen.timer.Stop()
	if l.gen == gen {
		l.gen = nil
	}
	ended := l.termsLocked(gen)
	l.signalLocked()
	l.mu.Unlock()
	for _, t := range ended {
		t.end(cause)
	}
}

func (l *Lease) termsLocked(gen *generation) (terms []*Term) {
	for t := range l.terms {
		if t.gen == gen {
			terms = append(terms, t)
		}
	}
	return terms
}

// revoke gives gen back. If it cannot, gen expires by itself, since it is
// renewed no longer.
func (l *Lease) revoke(gen *generation) {
	ctx, cancel := context.WithTimeout(context.Background(), l.tidy())
	defer cancel()
	var retry backoff
	for retry.wait(ctx) == nil {
		rctx, cancel := context.WithTimeout(ctx, l.tidy()/2)
		_, err := l.rpc.LeaseRevoke(rctx, &pb.LeaseRevokeRequest{ID: int64(gen.id)})
		cancel()
		err = rpctypes.Error(err)
		if err == nil || errors.Is(err, rpctypes.ErrLeaseNotFound) || permanent(l.client, err) {
			return
		}
		l.log.Warn("the lease could not be revoked", "lease", leaseText(gen.id), "error", err)
	}
}

// suffer notes that a grant or a renewal failed.
func (l *Lease) suffer(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures++
	l.trouble = err
	if l.failures == unreachableAfter {
		l.wakeLocked()
	}
}

func (l *Lease) reliefLocked() {
	if l.failures >= unreachableAfter {
		l.wakeLocked()
	}
	l.failures, l.trouble, l.heard = 0, nil, time.Now()
}

func (l *Lease) wakeLocked() {
	for _, v := range l.views {
		v.wake()
	}
}

// unreachableAfter is how many failures in a row make etcd "unreachable" to
// those who ask; a single one is ordinary at a leader change of etcd.
const unreachableAfter = 2

// health returns the granted TTL, or 0; when a grant or a renewal counted last;
// whether etcd has become unreachable since; and the last failure since.
func (l *Lease) health() (ttl time.Duration, heard time.Time, unreachable bool, trouble error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gen != nil {
		ttl = l.gen.ttl
	}
	return ttl, l.heard, l.failures >= unreachableAfter, l.trouble
}

// readKeys reads the keys of up to readBatch views, linearizably and in turn,
// and hands each what it found. It returns the Raft term of the answer.
func (l *Lease) readKeys(ctx context.Context, limit time.Duration) (raftTerm uint64, err error) {
	l.mu.Lock()
	n := min(len(l.views), readBatch)
	batch := make([]*view, 0, n)
	for range n {
		batch = append(batch, l.views[l.turn%len(l.views)])
		l.turn++
	}
	l.mu.Unlock()
	if n == 0 {
		return 0, errors.New("nobody uses the lease any more")
	}
	ops := make([]clientv3.Op, n)
	floors := make([]int64, n)
	for i, v := range batch {
		ops[i] = clientv3.OpGet(v.key)
		floors[i] = v.rev.Load()
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// A transaction of reads alone is linearizable, as a single read is, and
	// costs no Raft proposal.
	resp, err := l.kv.Txn(ctx).Then(ops...).Commit()
	if err != nil && permanent(l.client, err) {
		// One forbidden key is enough for that. Who follows it finds out by a
		// read of its own, and goes; so this says nothing about the lease.
		for _, v := range batch {
			v.doubt()
		}
		return 0, fmt.Errorf("the keys could not be read together: %v", err) //nolint:errorlint // no longer permanent
	}
	if err != nil {
		return 0, err
	}
	for i, v := range batch {
		v.deliver(reading{kv: keyOf(resp.Responses[i].GetResponseRange()), rev: resp.Header.Revision, cluster: resp.Header.ClusterId, floor: floors[i]})
	}
	return resp.Header.RaftTerm, nil
}

// readBatch is below the 128 operations that etcd allows by default.
const readBatch = 100

// rest ends what is left of the watches if nobody uses the lease. A view that
// comes along meanwhile opens its watch again.
func (l *Lease) rest() {
	l.mu.Lock()
	idle := len(l.views) == 0
	l.mu.Unlock()
	if idle {
		l.watchers.close()
	}
}

// enlist notes that the candidate id lives, delist that it does not.
func (l *Lease) enlist(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.candidates[id] = struct{}{}
}

func (l *Lease) delist(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.candidates, id)
}

func (l *Lease) enlisted(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.candidates[id]
	return ok
}

// orphaned reports whether kv is on our lease, which we renew, and has the
// record of a candidate that does not live. A value that is no record is
// somebody's who has overwritten a term's, which then sees to it.
func (l *Lease) orphaned(kv *keyValue) bool {
	l.mu.Lock()
	gen := l.gen
	l.mu.Unlock()
	id := decodeRecord(kv.Value).Candidate
	return gen != nil && clientv3.LeaseID(kv.Lease) == gen.id && id != "" && !l.enlisted(id)
}

// contend lets one elector at a time contend for key, since all of ours together
// can win it only once. If it returns false another one is at it.
func (l *Lease) contend(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.contending[key]; ok {
		return false
	}
	l.contending[key] = struct{}{}
	return true
}

func (l *Lease) contended(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.contending, key)
}

// settle sees to what a campaign or term may have left behind, or may yet: a put
// whose answer never came can be applied long after its campaign has ended, and
// a shared lease would keep that key for ever. Alone on the lease, the elector
// gives up this generation; otherwise the lease owes the clean-up.
func (l *Lease) settle(gen *generation, key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.views) > 1 {
		l.oweLocked(gen, key)
		return
	}
	gen.revoke = true // the late put is refused: its lease does not exist
	gen.end()
}

// oweLocked starts the clean-up of key, which lasts until gen is over.
func (l *Lease) oweLocked(gen *generation, key string) {
	if gen == nil || gen.over.Err() != nil {
		return // renewed no longer, so whatever lands lasts a TTL at most
	}
	if v, ok := gen.owed[key]; ok {
		v.wake() // one candidate less lives
		return
	}
	if gen.owed == nil {
		gen.owed = make(map[string]*view)
	}
	v := newView(l.client, l.kv, key, l.watchers.fresh)
	v.timeout, v.every = l.request(), gen.ttl
	gen.owed[key] = v
	l.debts.Go(func() { l.sweep(gen, v) })
}

// sweep deletes whatever stands at key on gen's lease and belongs to no
// candidate that lives.
func (l *Lease) sweep(gen *generation, v *view) {
	defer func() {
		v.close()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(gen.owed, v.key) // a later debt may fare better
	}()
	var retry backoff
	for {
		kv := v.held
		if kv == nil || clientv3.LeaseID(kv.Lease) != gen.id || l.enlisted(decodeRecord(kv.Value).Candidate) {
			if v.next(gen.over) != nil {
				return
			}
			continue
		}
		if retry.wait(gen.over) != nil {
			return
		}
		rev, err := l.deleteKey(gen.over, leaderOf(v.key, kv).Fence)
		if err != nil {
			l.log.Warn("a key that was left behind could not be deleted", "election", v.key, "error", err)
			continue
		}
		l.log.Info("deleted a key that was left behind", "election", v.key, "epoch", kv.CreateRevision)
		retry = backoff{}
		v.gone(rev)
	}
}

// deleteKey deletes the key of fence, also if it was overwritten so that it has
// no lease, and would stand for ever. It leaves the key of any other term alone:
// after a careless restore that may have the same epoch, but not the same lease.
// A nil error means that no key of fence is left; rev is the revision at which it
// went, or 0 if it was gone already.
func (l *Lease) deleteKey(ctx context.Context, fence Fence) (rev int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.request())
	defer cancel()
	orphan := fence
	orphan.Lease = clientv3.NoLease
	del := []clientv3.Op{clientv3.OpDelete(fence.Key)}
	resp, err := l.kv.Txn(ctx).
		If(fence.guard()...).
		Then(del...).
		Else(clientv3.OpTxn(orphan.guard(), del, nil)).
		Commit()
	if err != nil || !resp.Succeeded && !resp.Responses[0].GetResponseTxn().Succeeded {
		return 0, err
	}
	return resp.Header.Revision, nil
}

// renewals is one stream of renewals. It has at most one request outstanding,
// because an answer does not say which request it answers: an attempt that got
// none in time leaves the stream useless.
type renewals struct {
	rpc    pb.LeaseClient
	stream pb.Lease_LeaseKeepAliveClient
	cancel context.CancelFunc
}

// renew sends one renewal and waits for its answer, until limit or ctx ends. One
// long-lived stream matters where passwords are used: each new one makes the
// client authenticate anew. A new one goes to the next endpoint.
func (r *renewals) renew(ctx context.Context, id clientv3.LeaseID, limit time.Duration) (ack *pb.LeaseKeepAliveResponse, err error) {
	sctx := ctx
	if r.stream == nil {
		sctx, r.cancel = context.WithCancel(clientv3.WithRequireLeader(context.WithoutCancel(ctx)))
	}
	expired := time.AfterFunc(limit, r.cancel)
	unhook := context.AfterFunc(ctx, r.cancel)
	defer func() {
		intime, alive := expired.Stop(), unhook()
		if err == nil && intime && alive {
			return
		}
		r.abandon()
		switch {
		case !alive:
			err = ctx.Err()
		case !intime:
			err = fmt.Errorf("no answer in %v: %w", limit, context.DeadlineExceeded)
		}
		ack = nil
	}()
	if r.stream == nil {
		if r.stream, err = r.rpc.LeaseKeepAlive(sctx); err != nil {
			return nil, rpctypes.Error(err)
		}
	}
	// After a failed Send the reason is what Recv returns.
	sendErr := r.stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)})
	ack, err = r.stream.Recv()
	if err == nil && sendErr != nil {
		err = sendErr
	}
	return ack, rpctypes.Error(err)
}

// abandon gives up the stream, with whatever may still come on it.
func (r *renewals) abandon() {
	if r.cancel != nil {
		r.cancel()
	}
	r.stream, r.cancel = nil, nil
}

func leaseText(id clientv3.LeaseID) string { return fmt.Sprintf("%x", uint64(id)) }

package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
)

// A world is the server, the machines and the operator of one run.
type world struct {
	*ledger
	t         *testing.T
	s         *etcdtest.Server
	hosts     []*host
	watchers  *etcdtest.Client // of the observers
	snapshot  string
	processes atomic.Int32 // ever started
	written   atomic.Int64
	bumps     int64 // of the revision, after restores
	quiet     atomic.Bool
	closing   atomic.Bool
	ops       sync.WaitGroup // what the operator does beside

	takeover, recovery time.Duration
}

func newWorld(t *testing.T, s *etcdtest.Server, p *plan, log io.Writer) *world {
	t.Helper()
	w := &world{t: t, s: s, ledger: newLedger(p, log)}
	share := 0.1
	if p.margin > 0 {
		share = float64(p.margin) / float64(p.ttl)
	}
	for i, m := range p.machines {
		w.hosts = append(w.hosts, &host{machine: m, w: w, number: i, clock: newClock(m), least: 1 - 0.8*share, linked: true})
	}
	return w
}

// calm reports whether the faults are over.
func (w *world) calm() bool { return w.quiet.Load() }

// over reports whether nothing new is to begin.
func (w *world) over() bool { return w.closing.Load() }

// pristine reports whether etcd was never restored.
func (w *world) pristine() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.restored.IsZero()
}

func (w *world) resigns(s *stay) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.resigned = true
}

func (w *world) works(s *stay, on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.working, s.returned = on, !on
}

// A version is one write that a guarded key has taken.
type version struct {
	revision int64
	epoch    tenure.Epoch
	lease    clientv3.LeaseID
	value    string
}

// write makes the n-th write of a term, through the term or with its fence alone.
func (w *world) write(s *stay, n int, own bool) {
	e := w.elections[s.c.election]
	fence := s.term.Fence()
	value := fmt.Sprintf("%d %x %d", fence.Epoch, int64(fence.Lease), w.written.Add(1))
	ctx, cancel := context.WithTimeout(context.Background(), w.plan.ttl)
	defer cancel()
	client := s.c.p.client.Client
	kv := fence.KV(client)
	if own {
		kv = s.term.KV(client)
	}
	w.wrote(s, value, pending)
	ended := s.term.Err()
	var err error
	switch n % 3 {
	case 0:
		_, err = kv.Put(ctx, e.data, value)
	case 1:
		_, err = kv.Txn(ctx).Then(clientv3.OpPut(e.data, value)).Commit()
	case 2: // a condition that fails
		_, err = kv.Txn(ctx).If(clientv3.Compare(clientv3.Version(e.data), "<", 0)).Else(clientv3.OpPut(e.data, value)).Commit()
	}
	switch {
	case err == nil:
		w.wrote(s, value, acked)
	case errors.Is(err, tenure.ErrTermEnded):
		w.wrote(s, value, unsent)
	case errors.Is(err, tenure.ErrFenced), errors.Is(err, tenure.ErrUnknownOutcome), ctx.Err() != nil:
	default:
		w.wrote(s, value, unsent)
	}
	if own && ended != nil && !errors.Is(err, tenure.ErrTermEnded) {
		w.wrongf("a write through epoch %d, which has ended, returned %v", fence.Epoch, err)
	}
	w.look()
}

// pass goes through the gate of the election, and stays inside for a while.
func (w *world) pass(s *stay, d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), w.plan.ttl)
	defer cancel()
	ctx, leave, err := w.elections[s.c.election].gate.Enter(ctx, s.term.Fence())
	if err != nil {
		return
	}
	defer leave()
	defer w.enter(s)()
	pass(ctx, d)
	if s.number%2 == 0 { // slow to hear that it is shut out
		time.Sleep(d / 2)
	}
}

// gather reads what the guarded keys have taken since it did so last.
func (w *world) gather() {
	for _, e := range w.elections {
		var after int64
		if n := len(e.versions); n > 0 {
			after = e.versions[n-1].revision
		}
		for _, kv := range w.s.Versions(e.data, after) {
			v := version{revision: kv.ModRevision, value: string(kv.Value)}
			if _, err := fmt.Sscanf(v.value, "%d %x", &v.epoch, &v.lease); err != nil {
				w.wrongf("%s has %q: %v", e.data, v.value, err)
			}
			e.versions = append(e.versions, v)
		}
	}
}

// run carries out the plan, lets the world come to rest, and judges.
func (w *world) run() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var looking sync.WaitGroup
	looking.Go(func() {
		for ctx.Err() == nil {
			pass(ctx, w.plan.ttl/40)
			w.look()
		}
	})
	w.watchers = w.s.Client(reconnectSoon)
	for i, e := range w.elections {
		looking.Go(func() { w.observe(ctx, i, e.key) })
	}

	for _, e := range w.plan.events {
		time.Sleep(time.Until(w.start.Add(e.at)))
		w.look()
		w.apply(e)
		w.look()
	}
	w.rest()

	w.closing.Store(true)
	for _, h := range w.hosts {
		if p := h.leave(); p != nil {
			looking.Go(p.shutdown)
		}
	}
	w.ops.Wait()
	end := time.Now()
	cancel()
	looking.Wait()
	w.logf("all have ended after %v", time.Since(end))
	time.Sleep(w.plan.ttl + 2*time.Second)
	if keys := w.s.Keys("/sim/"); len(keys) > 0 {
		w.wrongf("a key is left: %v", keys)
	}
	if n := w.s.Leases(); n > 0 {
		w.wrongf("%d leases are left", n)
	}
	w.gather()
	w.judge(true)
}

// observe checks what an observer is told.
func (w *world) observe(ctx context.Context, i int, key string) {
	var last tenure.Epoch
	for st, err := range tenure.Observe(ctx, w.watchers.Client, key) {
		epoch := st.Leader.Fence.Epoch
		switch {
		case err != nil:
			w.wrongf("Observe has ended: %v", err)
		case st.State == tenure.RolledBack:
			if w.pristine() {
				w.wrongf("Observe tells of a roll-back and etcd was not restored")
			}
			last = 0
		case epoch != 0 && epoch < last:
			w.wrongf("Observe tells of epoch %d of election %d after epoch %d", epoch, i, last)
		case epoch != 0:
			last = epoch
		}
	}
}

// rest ends all faults and checks that the world recovers: somebody leads soon,
// keeps what it has, and is replaced in time when it falls silent.
func (w *world) rest() {
	w.quiet.Store(true)
	if w.s.Etcd() == nil {
		w.s.Start()
	}
	for _, h := range w.hosts {
		h.heal()
	}
	w.watchers.Link.Heal()
	for i, e := range w.elections { // what nobody else may touch
		for range 6 { // the client may have to connect again first
			if kvs := w.s.Keys(e.key); len(kvs) == 0 || strings.HasPrefix(string(kvs[0].Value), "{") {
				break
			}
			w.remove(i)
		}
	}
	joined := 0
	for i, h := range w.hosts {
		if w.joined(i) {
			h.start()
			joined++
		}
	}
	w.logf("all is well")
	if joined == 0 {
		return
	}
	since := time.Now()
	for i := range w.elections {
		w.await(i, nil, 3*w.plan.ttl+10*time.Second)
		w.recovery = max(w.recovery, time.Since(since))
	}
	time.Sleep(6 * w.plan.ttl)
	if joined == 1 {
		return
	}
	for i := range w.elections {
		old := w.leader(i)
		if old == nil {
			w.wrongf("nobody leads election %d, in peace", i)
			continue
		}
		since := time.Now()
		h := old.c.p.m
		h.hurts(-1)
		w.logf("process %d falls silent", old.c.p.number)
		old.c.p.client.Link.Cut()
		w.await(i, old, w.plan.ttl+3*time.Second/2)
		w.takeover = max(w.takeover, time.Since(since))
		h.heal()
		time.Sleep(2 * w.plan.ttl)
	}
}

// await waits until somebody leads an election with another term than old.
func (w *world) await(election int, old *stay, within time.Duration) {
	for end := time.Now().Add(within); ; time.Sleep(10 * time.Millisecond) {
		w.look()
		if s := w.leader(election); s != nil && (old == nil || s.term.Epoch() > old.term.Epoch()) {
			return
		}
		if time.Now().After(end) {
			w.wrongf("nobody leads election %d after %v without a fault; etcd has %v", election, within, w.s.Keys(w.elections[election].key))
			return
		}
	}
}

// joined reports whether a machine takes part, as far as the plan was kept.
func (w *world) joined(machine int) bool {
	for _, e := range w.plan.events {
		if e.kind == join && e.machine == machine {
			return true
		}
	}
	return false
}

// target is the machine that an event is about.
func (w *world) target(e event) *host {
	if e.machine >= 0 {
		return w.hosts[e.machine]
	}
	if s := w.leader(-1 - e.machine); s != nil {
		return s.c.p.m
	}
	return w.hosts[e.n%len(w.hosts)]
}

// apply does what an event says.
func (w *world) apply(e event) {
	h := w.target(e)
	p := h.process()
	w.mu.Lock()
	w.logLocked("%s: machine %d, election %d, %d %s, %v, %v", e.kind, h.number, e.election, e.n, e.method, e.d, e.d2)
	w.faults[e.kind]++
	w.mu.Unlock()
	switch e.kind {
	case join:
		h.start()
	case healAll:
		for i, h := range w.hosts {
			if e.machine < 0 || i == e.machine {
				h.heal()
			}
		}
	case step:
		h.clock.change(func() { h.clock.wall = h.clock.wall.Add(e.d) })
		h.hurts(w.plan.ttl)
	case pace:
		h.clock.change(func() { h.clock.rate = float64(e.n) / 1e6 })
	case stop:
		w.s.Stop()
	case start:
		if w.s.Etcd() == nil {
			w.s.Start()
		}
		w.mu.Lock()
		w.down = time.Now()
		w.mu.Unlock()
	case snapshot:
		w.halt(e.d, func() { w.snapshot = w.s.Snapshot() })
	case restore, bump:
		w.restore(e)
	case remove, overwrite, usurp, revoke, compact, evict, force:
		if w.s.Etcd() != nil {
			w.operate(e)
		}
	case resign, announce, verify:
		w.ask(e)
	default:
		if p != nil {
			w.harmProcess(h, p, e)
		}
	}
}

// halt stops the server for a while, does f meanwhile, and starts it again.
func (w *world) halt(d time.Duration, f func()) {
	w.s.Stop()
	f()
	time.Sleep(d)
	w.s.Start()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = time.Now()
}

func (w *world) restore(e event) {
	if w.snapshot == "" {
		return
	}
	if w.s.Etcd() != nil {
		w.gather()
	}
	w.judge(false)
	w.halt(e.d, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.restored = time.Now()
		for _, el := range w.elections {
			el.versions, el.acked = nil, 0
			if e.kind == restore {
				el.highest = 0
			}
		}
		w.s.Restore(w.snapshot)
		if e.kind == bump {
			// Above every bump before, as operators have to.
			w.bumps++
			w.s.Bump(w.bumps * 1_000_000)
		}
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.restored = time.Now()
}

// operate does what an operator can do to a key.
func (w *world) operate(e event) {
	key := w.elections[e.election].key
	ctx, cancel := context.WithTimeout(context.Background(), w.plan.ttl)
	defer cancel()
	admin := w.s.Admin()
	kvs := w.s.Keys(key)
	if e.kind == compact {
		resp, err := admin.Get(ctx, key)
		w.gather() // up to a later revision
		if err == nil && resp.Header.Revision > 2 {
			_, err = admin.Compact(ctx, resp.Header.Revision-int64(e.n))
		}
		w.logf("compacted: %v", err)
		return
	}
	if len(kvs) == 0 {
		return
	}
	fence := tenure.Fence{Key: key, Epoch: tenure.Epoch(kvs[0].CreateRevision), Lease: clientv3.LeaseID(kvs[0].Lease)}
	same := clientv3.Compare(clientv3.CreateRevision(key), "=", kvs[0].CreateRevision)
	var err error
	switch e.kind {
	case remove:
		w.remove(e.election)
	case overwrite:
		w.harm(fence)
		_, err = admin.Txn(ctx).If(same).Then(clientv3.OpPut(key, "an operator's")).Commit()
	case usurp:
		w.harm(fence)
		var lease *clientv3.LeaseGrantResponse
		if lease, err = admin.Grant(ctx, int64(w.plan.ttl/time.Second)); err == nil {
			_, err = admin.Txn(ctx).If(same).Then(clientv3.OpPut(key, "another's", clientv3.WithLease(lease.ID))).Commit()
		}
	case revoke:
		w.mu.Lock()
		w.revoked[fence.Lease] = time.Now()
		w.mu.Unlock()
		_, err = admin.Revoke(ctx, fence.Lease)
	case evict, force:
		w.mu.Lock()
		w.evicted[fence] = true
		w.mu.Unlock()
		done := func() {}
		if e.kind == force {
			done = w.force(fence)
		}
		w.ops.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), w.plan.ttl)
			defer cancel()
			err := tenure.Evict(ctx, admin, fence, &tenure.EvictOptions{Force: e.kind == force, Patience: e.d})
			done()
			w.logf("evicted %v: %v", fence, err)
		})
	}
	w.logf("%s of %v: %v", e.kind, fence, err)
}

// remove deletes the key of an election, whosever it is.
func (w *world) remove(election int) {
	key := w.elections[election].key
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, kv := range w.s.Keys(key) {
		w.harm(tenure.Fence{Key: key, Epoch: tenure.Epoch(kv.CreateRevision), Lease: clientv3.LeaseID(kv.Lease)})
		if s := w.leader(election); s != nil && s.term.Epoch() == tenure.Epoch(kv.CreateRevision) {
			w.harm(s.term.Fence()) // though it was overwritten
		}
		_, err := w.s.Admin().Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(key), "=", kv.CreateRevision)).
			Then(clientv3.OpDelete(key)).Commit()
		w.logf("deleted %s at epoch %d: %v", key, kv.CreateRevision, err)
	}
}

// ask calls a method of whoever leads.
func (w *world) ask(e event) {
	s := w.leader(e.election)
	if s == nil {
		return
	}
	w.ops.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), w.plan.ttl)
		defer cancel()
		var err error
		switch e.kind {
		case resign:
			w.resigns(s)
			err = s.term.Resign()
		case announce:
			err = s.term.Announce(ctx, e.d.String(), nil)
		case verify:
			err = s.term.Verify(ctx)
		}
		w.logf("%s of epoch %d: %v", e.kind, s.term.Epoch(), err)
	})
}

// harmProcess does what an event says to a process or its network.
func (w *world) harmProcess(h *host, p *process, e event) {
	link := p.client.Link
	times := etcdtest.Times(e.n)
	rule := func(a etcdtest.Action) { h.rule(p, e.d, e.method, a, times) }
	switch e.kind {
	case cut, cutUp, cutDown, refuse:
		h.hurts(-1)
		map[kind]func(){cut: link.Cut, cutUp: link.CutUp, cutDown: link.CutDown, refuse: link.Refuse}[e.kind]()
	case delay:
		if e.d > 0 || e.d2 > 0 {
			h.hurts(-1)
		} else {
			h.well()
		}
		link.Delay(h.lag+e.d, h.lag+e.d2)
	case drop:
		h.hurts(w.plan.ttl)
		link.DropConnections()
	case heal:
		link.Heal()
		h.well()
	case resume:
		link.Resume()
		h.well()

	case delayed:
		rule(etcdtest.DelayRequest(e.d))
	case held:
		rule(etcdtest.HoldRequest())
	case lost:
		rule(etcdtest.LoseRequest())
	case failed:
		rule(etcdtest.FailRequest(etcdtest.Unavailable))
	case doubled:
		rule(etcdtest.DuplicateRequest())
	case retried:
		rule(etcdtest.RetryRequest())
	case late:
		rule(etcdtest.DelayAnswer(e.d))
	case stuck:
		rule(etcdtest.HoldAnswer())
	case gone:
		rule(etcdtest.LoseAnswer())
	case unheard:
		rule(etcdtest.DropAnswer(etcdtest.Unavailable))
	case replayed:
		// But not that a watch was created or cancelled, which etcd's client
		// would wait on for ever and no server says twice.
		h.rule(p, e.d, e.method, etcdtest.ReplayAnswer(), times,
			etcdtest.Match(func(m proto.Message) bool {
				r, ok := m.(*pb.WatchResponse)
				return !ok || !r.Created && !r.Canceled
			}))

	case pause:
		h.clock.pause(e.d)
		h.rule(p, e.d, "", etcdtest.HoldRequest())
		h.rule(p, e.d, "", etcdtest.HoldAnswer())
	case sleep:
		h.clock.sleep(e.d)
		// Woken a little later: the clocks must have moved on by then.
		h.rule(p, e.d+time.Millisecond, "", etcdtest.HoldRequest())
		h.rule(p, e.d+time.Millisecond, "", etcdtest.HoldAnswer())
	case hollow:
		h.rule(p, e.d, "LeaseKeepAlive", etcdtest.EditRequest(func(r *pb.LeaseKeepAliveRequest) { r.ID = 1 }))
		h.rule(p, e.d, "LeaseKeepAlive", etcdtest.EditAnswer(func(r *pb.LeaseKeepAliveResponse) {
			r.TTL, r.Header.RaftTerm = int64(w.plan.ttl/time.Second), r.Header.RaftTerm-1
		}))
	case bigger:
		h.rule(p, e.d, "LeaseKeepAlive", etcdtest.EditAnswer(func(r *pb.LeaseKeepAliveResponse) { r.TTL *= 3 }))

	case cancel:
		w.cancelCall(p, e.election)
	case cancelAt:
		r := p.client.Faults.Next(e.method, etcdtest.EditRequest(func(proto.Message) {}), etcdtest.Skip(e.n))
		time.AfterFunc(w.plan.ttl, r.Stop)
		w.ops.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), w.plan.ttl)
			defer cancel()
			select {
			case <-r.Fired():
				w.cancelCall(p, e.election)
			case <-ctx.Done():
			}
		})
	case crash:
		if p = h.leave(); p == nil {
			return
		}
		p.crash()
		w.logf("process %d has crashed", p.number)
		w.after(p, e.d)
	case shutdown:
		if p = h.leave(); p == nil {
			return
		}
		w.ops.Go(p.shutdown)
		w.after(p, e.d)
	default:
		panic("sim: an event of kind " + string(e.kind))
	}
}

// after starts the next process on a machine.
func (w *world) after(p *process, d time.Duration) { time.AfterFunc(d, p.m.start) }

// cancelCall cancels the call that a process makes for an election.
func (w *world) cancelCall(p *process, election int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := p.candidates[election]; c.cancel != nil {
		w.logLocked("%v is cancelled", c)
		c.cancel()
	}
}

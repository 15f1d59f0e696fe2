package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
)

// lane is where a fault strikes. Two faults at once strike in two lanes.
type lane int

const (
	onCandidates lane = iota
	onNetwork
	onMembers
	onKeys
)

// trouble is one kind of fault. It lasts as long as its function; its end is the
// end of the fault. It returns on what it was done.
type trouble struct {
	name string
	lane lane
	do   func(n *nemesis, ctx context.Context, r *rand.Rand) (target string, err error)
}

// troubles are all kinds of faults.
var troubles = []trouble{
	{"candidate stopped and continued", onCandidates, (*nemesis).stopCandidate},
	{"candidate killed and started", onCandidates, (*nemesis).killCandidate},
	{"candidate stutters", onCandidates, (*nemesis).stutterCandidate},

	{"partition, bytes come late", onNetwork, (*nemesis).partition},
	{"half-open, bytes are lost", onNetwork, (*nemesis).halfOpen},
	{"one way: no requests", onNetwork, (*nemesis).noRequests},
	{"one way: no answers", onNetwork, (*nemesis).noAnswers},
	{"slow", onNetwork, (*nemesis).slow},
	{"slow, then half-open", onNetwork, (*nemesis).slowThenHalfOpen},
	{"connections cut and refused", onNetwork, (*nemesis).cut},

	{"etcd leader stopped and continued", onMembers, (*nemesis).stopEtcdLeader},
	{"etcd leader stutters", onMembers, (*nemesis).stutterEtcdLeader},
	{"etcd member stopped and continued", onMembers, (*nemesis).stopMember},
	{"etcd leader killed and started", onMembers, (*nemesis).killEtcdLeader},
	{"etcd member killed and started", onMembers, (*nemesis).killMember},
	{"etcd loses its majority", onMembers, (*nemesis).loseMajority},
	{"rolling restart of etcd", onMembers, (*nemesis).rollingRestart},
	{"etcd leader moved", onMembers, (*nemesis).moveLeader},
	{"defragmentation", onMembers, (*nemesis).defragment},
	{restoreName, onMembers, (*nemesis).restore},

	{"compaction", onKeys, (*nemesis).compact},
	{"leader asked to go", onKeys, (*nemesis).evict},
	{"leader evicted by force", onKeys, (*nemesis).evictByForce},
	{"key deleted by hand", onKeys, (*nemesis).deleteKey},
	{"lease revoked by hand", onKeys, (*nemesis).revokeLease},
}

// restoreName is the one that comes alone: it needs to know that nothing else
// lets requests through.
const restoreName = "etcd restored, revisions bumped"

// ownLibraryOnly are faults that take this library's key away, or need its API.
var ownLibraryOnly = []string{"leader asked to go", "leader evicted by force", "key deleted by hand", "lease revoked by hand"}

// nemesis does harm to a harness. What it draws is decided by the seed; whom it
// meets, and what happens meanwhile, is not.
type nemesis struct {
	*harness
	rand *rand.Rand

	mu  sync.Mutex
	err error // that makes it pointless to go on
}

func newNemesis(h *harness) *nemesis {
	return &nemesis{harness: h, rand: rand.New(rand.NewPCG(h.seed, 0))}
}

// run does one or two faults at a time, and leaves everybody alone for a while
// now and then, until the time is over. All kinds have their turn before one has
// its second.
func (n *nemesis) run(ctx context.Context) error {
	end := time.Now().Add(n.length)
	if awaitLeader(ctx, n.seats, 0, recovery) == nil && ctx.Err() == nil {
		return fmt.Errorf("nobody leads in the first %v", recovery)
	}
	next := n.deck()
	for time.Now().Before(end) && ctx.Err() == nil && n.err == nil {
		first := next(func(trouble) bool { return true })
		var both sync.WaitGroup
		both.Go(n.doing(ctx, first))
		if n.rand.IntN(3) == 0 && first.name != restoreName {
			second := next(func(t trouble) bool { return t.lane != first.lane && t.name != restoreName })
			both.Go(n.doing(ctx, second))
		}
		both.Wait()
		if n.rand.IntN(2) == 0 && n.err == nil {
			n.rest(ctx)
		}
	}
	if n.err != nil {
		return n.err
	}
	n.rest(ctx)
	return nil
}

// deck returns a function that draws a kind of fault which fits.
func (n *nemesis) deck() func(fits func(trouble) bool) trouble {
	all := slices.DeleteFunc(slices.Clone(troubles), func(t trouble) bool {
		return len(n.only) > 0 && !slices.Contains(n.only, t.name) ||
			n.library != "tenure" && slices.Contains(ownLibraryOnly, t.name)
	})
	var cards []trouble
	return func(fits func(trouble) bool) trouble {
		for {
			if i := slices.IndexFunc(cards, fits); i >= 0 {
				t := cards[i]
				cards = slices.Delete(cards, i, i+1)
				return t
			}
			more := slices.Clone(all)
			n.rand.Shuffle(len(more), func(i, j int) { more[i], more[j] = more[j], more[i] })
			cards = append(cards, more...)
			if !slices.ContainsFunc(cards, fits) { // -only names those of one lane
				fits = func(trouble) bool { return true }
			}
		}
	}
}

// doing returns a function that does t, with chances of its own, so that what
// one fault draws does not depend on the pace of another.
func (n *nemesis) doing(ctx context.Context, t trouble) func() {
	r := rand.New(rand.NewPCG(n.rand.Uint64(), 0))
	return func() {
		e := event{Kind: fault, Key: t.name, From: now()}
		target, err := t.do(n, ctx, r)
		e.To, e.Process = now(), target
		if err != nil {
			e.Note = err.Error()
		}
		n.journal.add(e)
	}
}

// rest waits, with nothing in the way, until somebody leads, and a little longer.
func (n *nemesis) rest(ctx context.Context) {
	e := event{Kind: calm, From: now()}
	if awaitLeader(ctx, n.seats, e.From, recovery) == nil && ctx.Err() == nil {
		n.blame("nobody leads", "for %v after the last fault", recovery)
	}
	sleep(ctx, time.Duration(n.rand.Int64N(int64(n.ttl/2))))
	e.To = now()
	n.journal.add(e)
}

// fail makes the run end: what was broken cannot be mended.
func (n *nemesis) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err == nil {
		n.err = err
	}
}

// between draws a duration.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)))
}

// victim is the candidate that leads, as a rule, and else any.
func (n *nemesis) victim(r *rand.Rand) *seat {
	if s, _ := n.leader(); s != nil && r.IntN(10) < 7 {
		return s
	}
	return n.seats[r.IntN(len(n.seats))]
}

func (n *nemesis) stopCandidate(ctx context.Context, r *rand.Rand) (string, error) {
	s := n.victim(r)
	s.signal(syscall.SIGSTOP)
	defer s.signal(syscall.SIGCONT)
	sleep(ctx, between(r, n.ttl/4, 5*n.ttl/2))
	return s.name, nil
}

// stutterCandidate lets a candidate run for a moment at a time.
func (n *nemesis) stutterCandidate(ctx context.Context, r *rand.Rand) (string, error) {
	s := n.victim(r)
	defer s.signal(syscall.SIGCONT)
	for range 2 + r.IntN(5) {
		s.signal(syscall.SIGSTOP)
		sleep(ctx, between(r, n.ttl/20, n.ttl*6/10))
		s.signal(syscall.SIGCONT)
		sleep(ctx, between(r, time.Millisecond, 100*time.Millisecond))
	}
	return s.name, nil
}

func (n *nemesis) killCandidate(ctx context.Context, r *rand.Rand) (string, error) {
	s := n.victim(r)
	s.kill()
	sleep(ctx, between(r, 0, n.ttl/2))
	if err := n.seat(s); err != nil {
		n.fail(fmt.Errorf("start a candidate again: %w", err))
	}
	return s.name, nil
}

// change sets the weather between a candidate and the members, or one of them,
// for a while.
func (n *nemesis) change(ctx context.Context, r *rand.Rand, w weather, least, most time.Duration) (string, error) {
	s := n.victim(r)
	target, proxies := s.name, s.proxies
	if r.IntN(4) == 0 {
		i := r.IntN(len(proxies))
		target, proxies = fmt.Sprintf("%s to m%d", s.name, i), proxies[i:i+1]
	}
	for _, p := range proxies {
		p.set(w)
	}
	sleep(ctx, between(r, least, most))
	for _, p := range proxies {
		p.set(weather{})
	}
	return target, nil
}

func (n *nemesis) partition(ctx context.Context, r *rand.Rand) (string, error) {
	return n.change(ctx, r, weather{requests: late, answers: late}, n.ttl/4, 2*n.ttl)
}

func (n *nemesis) halfOpen(ctx context.Context, r *rand.Rand) (string, error) {
	return n.change(ctx, r, weather{requests: lose, answers: lose}, n.ttl/4, 2*n.ttl)
}

func (n *nemesis) noRequests(ctx context.Context, r *rand.Rand) (string, error) {
	return n.change(ctx, r, weather{requests: []flow{late, lose}[r.IntN(2)]}, n.ttl/4, 2*n.ttl)
}

func (n *nemesis) noAnswers(ctx context.Context, r *rand.Rand) (string, error) {
	return n.change(ctx, r, weather{answers: []flow{late, lose}[r.IntN(2)]}, n.ttl/4, 2*n.ttl)
}

func (n *nemesis) slow(ctx context.Context, r *rand.Rand) (string, error) {
	return n.change(ctx, r, weather{delay: between(r, n.ttl/50, n.ttl/4)}, n.ttl/2, 2*n.ttl)
}

// slowThenHalfOpen lets the last renewals take long, but not too long to count:
// who counts its time from the answers believes in it for too long.
func (n *nemesis) slowThenHalfOpen(ctx context.Context, r *rand.Rand) (string, error) {
	s := n.victim(r)
	weathers := []weather{{delay: between(r, n.ttl/30, n.ttl/13)}, {requests: lose, answers: lose}, {}}
	for i, length := range []time.Duration{between(r, n.ttl/2, n.ttl), between(r, n.ttl, 2*n.ttl), 0} {
		for _, p := range s.proxies {
			p.set(weathers[i])
		}
		sleep(ctx, length)
	}
	return s.name, nil
}

func (n *nemesis) cut(ctx context.Context, r *rand.Rand) (string, error) {
	return n.change(ctx, r, weather{refuse: true}, 10*time.Millisecond, 2*n.ttl)
}

// etcdLeader is the member that leads etcd, or any if that cannot be told.
func (n *nemesis) etcdLeader(ctx context.Context, r *rand.Rand) *member {
	if i := n.cluster.leader(ctx); i >= 0 {
		return n.cluster.members[i]
	}
	return n.anyMember(r)
}

func (n *nemesis) anyMember(r *rand.Rand) *member {
	return n.cluster.members[r.IntN(len(n.cluster.members))]
}

func (n *nemesis) stopFor(ctx context.Context, d time.Duration, members ...*member) (string, error) {
	names := ""
	from := now()
	for _, m := range members {
		names += " " + m.config.Name
		if err := m.signal(syscall.SIGSTOP); err != nil {
			return names[1:], err
		}
		defer func() {
			to := now()
			_ = m.signal(syscall.SIGCONT) // it runs: nothing else ends it
			n.journal.add(event{Kind: woken, Process: m.config.Name, From: from, To: to})
		}()
	}
	sleep(ctx, d)
	return names[1:], nil
}

func (n *nemesis) stopEtcdLeader(ctx context.Context, r *rand.Rand) (string, error) {
	return n.stopFor(ctx, between(r, 200*time.Millisecond, 5*time.Second), n.etcdLeader(ctx, r))
}

func (n *nemesis) stopMember(ctx context.Context, r *rand.Rand) (string, error) {
	return n.stopFor(ctx, between(r, 200*time.Millisecond, 5*time.Second), n.anyMember(r))
}

// stutterEtcdLeader stops etcd's leader for about an election timeout, several
// times: it wakes up with renewals that were sent to it meanwhile, and
// acknowledges them, before it hears that it leads no more.
func (n *nemesis) stutterEtcdLeader(ctx context.Context, r *rand.Rand) (string, error) {
	targets := ""
	for range 2 + r.IntN(3) {
		target, err := n.stopFor(ctx, between(r, 600*time.Millisecond, 2500*time.Millisecond), n.etcdLeader(ctx, r))
		if targets += " " + target; err != nil {
			return targets[1:], err
		}
		sleep(ctx, between(r, 10*time.Millisecond, 400*time.Millisecond))
	}
	return targets[1:], nil
}

func (n *nemesis) loseMajority(ctx context.Context, r *rand.Rand) (string, error) {
	lucky := r.IntN(3)
	return n.stopFor(ctx, between(r, n.ttl/4, 2*n.ttl), n.cluster.members[(lucky+1)%3], n.cluster.members[(lucky+2)%3])
}

// restart kills m and starts it again.
func (n *nemesis) restart(ctx context.Context, m *member, down time.Duration) (string, error) {
	m.kill()
	sleep(ctx, down)
	if err := m.start(); err != nil {
		n.fail(fmt.Errorf("start a member again: %w", err))
		return m.config.Name, err
	}
	if err := n.cluster.healthy(ctx, 2*recovery); err != nil && ctx.Err() == nil {
		n.fail(fmt.Errorf("after a restart of %s: %w", m.config.Name, err))
		return m.config.Name, err
	}
	return m.config.Name, nil
}

func (n *nemesis) killEtcdLeader(ctx context.Context, r *rand.Rand) (string, error) {
	return n.restart(ctx, n.etcdLeader(ctx, r), between(r, 0, n.ttl))
}

func (n *nemesis) killMember(ctx context.Context, r *rand.Rand) (string, error) {
	return n.restart(ctx, n.anyMember(r), between(r, 0, n.ttl))
}

func (n *nemesis) rollingRestart(ctx context.Context, r *rand.Rand) (string, error) {
	for _, i := range r.Perm(len(n.cluster.members)) {
		if target, err := n.restart(ctx, n.cluster.members[i], between(r, 0, time.Second)); err != nil {
			return target, err
		}
	}
	return "m0 m1 m2", nil
}

func (n *nemesis) moveLeader(ctx context.Context, r *rand.Rand) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, recovery/3)
	defer cancel()
	for range 1 + r.IntN(3) {
		i := n.cluster.leader(ctx)
		if i < 0 {
			return "m?", fmt.Errorf("etcd has no leader")
		}
		// Only the leader itself can hand over.
		client, err := newClient([]string{n.cluster.members[i].endpoint})
		if err != nil {
			return n.cluster.members[i].config.Name, err
		}
		_, err = client.MoveLeader(ctx, n.cluster.ids(ctx)[(i+1+r.IntN(2))%3])
		_ = client.Close()
		if err != nil {
			return n.cluster.members[i].config.Name, err
		}
		sleep(ctx, between(r, 0, time.Second))
	}
	return "m0 m1 m2", nil
}

func (n *nemesis) defragment(ctx context.Context, r *rand.Rand) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, recovery/3)
	defer cancel()
	m := n.anyMember(r)
	_, err := n.cluster.client.Defragment(ctx, m.endpoint)
	return m.config.Name, err
}

// compact forgets everything that the harness itself does not need any more, and
// so more than a candidate that is cut off may want to see.
func (n *nemesis) compact(ctx context.Context, _ *rand.Rand) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, recovery/3)
	defer cancel()
	for {
		n.harness.mu.Lock()
		rev := n.rev
		n.harness.mu.Unlock()
		_, err := n.cluster.client.Compact(ctx, rev, clientv3.WithCompactPhysical())
		if err == nil || ctx.Err() != nil {
			return fmt.Sprintf("revision %d", rev), err
		}
		sleep(ctx, 100*time.Millisecond) // there is nothing to forget yet, as after a restore
	}
}

// holder is who holds the key, and which seat that is.
func (n *nemesis) holder(ctx context.Context) (tenure.Leader, string, error) {
	leader, err := tenure.Lookup(ctx, n.cluster.client, election)
	return leader, leader.Identity, err
}

// evict asks the leader to go, in order: that is no excuse for anybody.
func (n *nemesis) evict(ctx context.Context, _ *rand.Rand) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, recovery/3)
	defer cancel()
	leader, name, err := n.holder(ctx)
	if err == nil {
		err = tenure.Evict(ctx, n.cluster.client, leader.Fence, nil)
	}
	return name, err
}

// meddle takes the key away from its holder. That some of its excuse is wide
// does no harm: it is one that the promise makes, too.
func (n *nemesis) meddle(ctx context.Context, how func(context.Context, tenure.Leader) error) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, recovery/3)
	defer cancel()
	leader, name, err := n.holder(ctx)
	if err != nil {
		return name, err
	}
	e := event{Kind: meddled, Epoch: int64(leader.Fence.Epoch), From: now()}
	err = how(ctx, leader)
	e.To = now()
	if err != nil {
		e.To += int64(recovery) // it may happen yet
	}
	n.journal.add(e)
	return name, err
}

func (n *nemesis) evictByForce(ctx context.Context, _ *rand.Rand) (string, error) {
	return n.meddle(ctx, func(ctx context.Context, l tenure.Leader) error {
		return tenure.Evict(ctx, n.cluster.client, l.Fence, &tenure.EvictOptions{Force: true, Patience: -1})
	})
}

func (n *nemesis) deleteKey(ctx context.Context, _ *rand.Rand) (string, error) {
	return n.meddle(ctx, func(ctx context.Context, l tenure.Leader) error {
		// Compared, so that it is this term that is excused.
		_, err := n.cluster.client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(l.Fence.Key), "=", int64(l.Fence.Epoch))).
			Then(clientv3.OpDelete(l.Fence.Key)).
			Commit()
		return err
	})
}

func (n *nemesis) revokeLease(ctx context.Context, _ *rand.Rand) (string, error) {
	return n.meddle(ctx, func(ctx context.Context, l tenure.Leader) error {
		_, err := n.cluster.client.Revoke(ctx, l.Fence.Lease)
		return err
	})
}

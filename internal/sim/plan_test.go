package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A plan is all that a seed decides: who takes part, on which clocks, and what
// is done to them when. It is complete before the first goroutine starts.
type plan struct {
	seed      uint64
	ttl       time.Duration
	margin    time.Duration // 0: the default
	elections int
	twins     bool // all candidates have the same identity
	machines  []machine
	events    []event // in order
}

// A machine is the host of one process at a time, which is a candidate in every
// election.
type machine struct {
	rate   float64       // of its clocks, by the server's
	step   time.Duration // of its wall clock, at the start
	beyond bool          // its clocks may leave what promise 1 assumes
	sleeps bool          // so its wall clock is not set back
	shared bool          // one lease for its candidates
	stop   time.Duration // StopTimeout
	lag    time.Duration // of its link, each way
}

// A kind is what an event does.
type kind string

// What a plan is made of. Those of one family are in a plan together or not.
const (
	join kind = "join" // start the machine's process, unless it runs

	cut      kind = "cut"
	cutUp    kind = "cut up"
	cutDown  kind = "cut down"
	delay    kind = "delay"
	drop     kind = "drop connections"
	refuse   kind = "refuse"
	heal     kind = "heal"
	resume   kind = "resume"
	healAll  kind = "heal all"
	delayed  kind = "delay request"
	held     kind = "hold request"
	lost     kind = "lose request"
	failed   kind = "fail request"
	doubled  kind = "duplicate request"
	retried  kind = "retry request"
	late     kind = "delay answer"
	stuck    kind = "hold answer"
	gone     kind = "lose answer"
	unheard  kind = "drop answer"
	replayed kind = "replay answer"

	pause  kind = "pause"          // of the process, between two of its requests
	hollow kind = "hollow renewal" // acknowledged by a deposed leader of etcd
	bigger kind = "falsified TTL"

	stop  kind = "stop server"
	start kind = "start server"

	step  kind = "step wall clock"
	sleep kind = "sleep"
	pace  kind = "change clock rate"

	remove    kind = "delete key"
	overwrite kind = "overwrite key"
	usurp     kind = "overwrite key on a lease"
	revoke    kind = "revoke lease"
	compact   kind = "compact"
	snapshot  kind = "snapshot"
	restore   kind = "restore"
	bump      kind = "restore and bump"

	evict    kind = "evict"
	force    kind = "evict by force"
	resign   kind = "resign"
	announce kind = "announce"
	verify   kind = "verify"
	cancel   kind = "cancel"
	cancelAt kind = "cancel at request"

	crash    kind = "crash"
	shutdown kind = "shut down"
)

// families are the faults that a seed switches on or off together, each with how
// often it is taken: a plan that does everything does nothing for long.
var families = [][]struct {
	kind
	weight int
}{
	{{cut, 3}, {cutUp, 3}, {cutDown, 3}, {delay, 4}, {drop, 2}, {refuse, 1}},
	{{delayed, 2}, {held, 2}, {lost, 1}, {failed, 1}, {doubled, 2}, {retried, 2}, {late, 2}, {stuck, 2}, {gone, 1}, {unheard, 2}, {replayed, 1}},
	{{pause, 6}},
	{{hollow, 5}, {bigger, 1}},
	{{stop, 2}},
	{{step, 3}, {sleep, 4}, {pace, 1}},
	{{remove, 3}, {overwrite, 2}, {usurp, 1}, {revoke, 3}, {compact, 2}, {force, 1}},
	{{restore, 1}, {bump, 1}},
	{{evict, 4}, {resign, 3}, {announce, 1}, {verify, 1}},
	{{cancel, 4}, {cancelAt, 6}},
	{{crash, 3}, {shutdown, 2}},
}

// leaderOf is the machine of whoever leads the election at that time.
func leaderOf(election int) int { return -1 - election }

// An event is one thing that is done.
type event struct {
	at       time.Duration // since the start; later if the one before took so long
	kind     kind
	machine  int // or leaderOf
	election int
	method   string
	n        int
	d, d2    time.Duration
}

func (e event) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%9.3f %s", e.at.Seconds(), e.kind)
	if e.machine < 0 {
		fmt.Fprintf(&b, ", leader of %d", -1-e.machine)
	} else {
		fmt.Fprintf(&b, ", machine %d", e.machine)
	}
	fmt.Fprintf(&b, ", election %d", e.election)
	if e.method != "" {
		fmt.Fprintf(&b, ", %d %s", e.n, e.method)
	}
	fmt.Fprintf(&b, ", %v, %v", e.d, e.d2)
	return b.String()
}

// newPlan draws the plan of a seed.
func newPlan(seed uint64) *plan {
	r := rand.New(rand.NewPCG(seed, 0))
	p := &plan{seed: seed, twins: r.IntN(6) == 0}
	p.ttl = []time.Duration{2, 3, 5, 10}[r.IntN(4)] * time.Second
	share := 0.1
	if r.IntN(2) == 0 {
		share = []float64{0.02, 0.05, 0.2, 0.4}[r.IntN(4)]
		p.margin = time.Duration(share * float64(p.ttl))
	}
	p.elections = []int{1, 1, 1, 2, 3}[r.IntN(5)]
	beyond := r.IntN(8) == 0
	lag := []time.Duration{0, 0, 100 * time.Microsecond, 5 * time.Millisecond}[r.IntN(4)]
	for range 1 + r.IntN(5) {
		m := machine{
			rate:   1 + share*(1.6*r.Float64()-0.8),
			step:   spread(r, time.Hour),
			beyond: beyond && r.IntN(2) == 0,
			sleeps: r.IntN(2) == 0,
			shared: r.IntN(3) == 0,
			stop:   []time.Duration{p.ttl / 2, time.Second, 30 * time.Second}[r.IntN(3)],
			lag:    lag,
		}
		if m.beyond {
			m.rate *= 0.5 + r.Float64()
		}
		p.machines = append(p.machines, m)
	}
	for i := range p.machines {
		p.events = append(p.events, event{kind: join, machine: i, at: time.Duration(r.Int64N(int64(p.ttl / 2)))})
	}
	p.draw(r, share)
	slices.SortStableFunc(p.events, func(a, b event) int { return int(a.at - b.at) })
	return p
}

// draw adds the faults.
func (p *plan) draw(r *rand.Rand, share float64) {
	var kinds []kind
	for _, family := range families {
		if r.IntN(3) == 0 {
			continue
		}
		for _, f := range family {
			kinds = append(kinds, slices.Repeat([]kind{f.kind}, f.weight)...)
		}
	}
	if len(kinds) == 0 {
		kinds = []kind{cut, resign}
	}
	gap := p.ttl / time.Duration(2+r.IntN(6))
	for at := p.ttl; at < 24*p.ttl; at += time.Duration(r.Int64N(int64(gap))) {
		switch r.IntN(40) {
		case 0: // All is well for a while.
			p.events = append(p.events, event{kind: healAll, at: at})
			at += time.Duration(r.Int64N(int64(3 * p.ttl)))
		case 1, 2:
			at = p.slowThenSilent(r, at)
		case 3:
			at = p.silentFromTheStart(r, at)
		case 4:
			if slices.Contains(kinds, restore) {
				at = p.carelessRestore(r, at)
			}
		default:
			at = p.one(r, kinds[r.IntN(len(kinds))], share, at)
		}
	}
}

func spread(r *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(r.Int64N(int64(2*d))) - d
}

// one adds an event of a kind, with what it needs before or after, and returns
// the time of the last.
func (p *plan) one(r *rand.Rand, k kind, share float64, at time.Duration) time.Duration {
	some := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
	e := event{at: at, kind: k, election: r.IntN(p.elections), machine: r.IntN(len(p.machines)), n: 1, d: some(p.ttl)}
	if r.IntN(2) == 0 {
		e.machine = leaderOf(e.election)
	}
	add := func(e event) { p.events = append(p.events, e) }
	switch k {
	case cut, cutUp, cutDown, refuse:
		e.d = some(2 * p.ttl)
		end := e
		end.at, end.kind = at+e.d, []kind{heal, resume}[r.IntN(2)]
		if r.IntN(8) > 0 {
			add(end)
		}
	case delay:
		e.d, e.d2 = some(p.ttl/8), some(p.ttl/4)
		end := e
		end.at, end.d, end.d2 = at+some(2*p.ttl), 0, 0
		add(end)
	case pause, hollow, bigger:
		e.d = some(2 * p.ttl)
	case sleep:
		if e.machine = p.sleeper(r); e.machine < 0 {
			return at
		}
		e.d = some(2 * p.ttl)
	case step:
		e.d = spread(r, []time.Duration{p.ttl, 2 * time.Hour}[r.IntN(2)])
		e.machine = r.IntN(len(p.machines))
		if m := p.machines[e.machine]; m.sleeps && !m.beyond {
			e.d = e.d.Abs()
		}
	case pace: // in millionths, within the margin
		e.machine = r.IntN(len(p.machines))
		e.n = int(1e6 * (1 + share*(1.6*r.Float64()-0.8)))
		if p.machines[e.machine].beyond {
			e.n = int(float64(e.n) * (0.5 + r.Float64()))
		}
	case stop:
		if r.IntN(3) > 0 {
			return at
		}
		e.d = some(2 * p.ttl)
		add(event{at: at + e.d, kind: start})
	case restore, bump:
		if r.IntN(6) > 0 {
			return at
		}
		add(event{at: at, kind: snapshot, d: some(time.Second)})
		e.at, e.d = at+some(6*p.ttl), some(p.ttl)
	case crash, shutdown:
		e.d = some(2 * p.ttl) // until it is started again, when it is known which
	case cancelAt:
		e.method, e.n = methods[r.IntN(len(methods))], r.IntN(4)
	case force:
		e.d = []time.Duration{-1, some(p.ttl)}[r.IntN(2)]
	case delayed, held, lost, failed, doubled, retried, late, stuck, gone, unheard, replayed:
		e.method, e.n = methods[r.IntN(len(methods))], 1+r.IntN(3)
		if k == replayed {
			e.method = []string{"LeaseKeepAlive", "Watch"}[r.IntN(2)]
		}
		if r.IntN(2) == 0 {
			e.d /= 6
		}
	}
	add(e)
	return at
}

// sleeper returns a machine that may sleep, or -1.
func (p *plan) sleeper(r *rand.Rand) int {
	for _, i := range r.Perm(len(p.machines)) {
		if p.machines[i].sleeps || p.machines[i].beyond {
			return i
		}
	}
	return -1
}

// methods are those that a candidate uses.
var methods = []string{"LeaseGrant", "LeaseKeepAlive", "LeaseKeepAlive", "LeaseRevoke", "Txn", "Txn", "Txn", "Range", "Watch"}

// slowThenSilent is what tempts a leader most to trust its lease for too long:
// its renewals are answered late, then not at all, while all others are well and
// take over as soon as they can.
func (p *plan) slowThenSilent(r *rand.Rand, at time.Duration) time.Duration {
	e := event{at: at, election: r.IntN(p.elections), n: 1}
	e.machine = leaderOf(e.election)
	e.kind = healAll
	p.events = append(p.events, e)
	e.kind, e.d2 = delay, p.ttl/24+time.Duration(r.Int64N(int64(p.ttl/9)))
	p.events = append(p.events, e)
	e.at += p.ttl + time.Duration(r.Int64N(int64(p.ttl)))
	e.kind, e.d2 = cut, 0
	p.events = append(p.events, e)
	end := e
	end.at, end.kind = e.at+p.ttl+time.Second, healAll
	p.events = append(p.events, end)
	return end.at
}

// silentFromTheStart cuts off a leader that has just begun, before any renewal:
// its lease was granted a moment ago to a process that had just started.
func (p *plan) silentFromTheStart(r *rand.Rand, at time.Duration) time.Duration {
	e := event{at: at, kind: crash, election: r.IntN(p.elections)}
	for i := range p.machines {
		e.machine = i
		e.d = []time.Duration{2 * p.ttl, 3 * p.ttl}[min(i, 1)] // the first is alone at first
		p.events = append(p.events, e)
	}
	e.at += 2*p.ttl + time.Duration(r.Int64N(int64(p.ttl/3)))
	e.kind, e.machine, e.d = cut, 0, 0
	p.events = append(p.events, e)
	end := e
	end.at, end.kind = e.at+2*p.ttl+time.Second, healAll
	p.events = append(p.events, end)
	return end.at
}

// carelessRestore makes epochs repeat: what happened between a snapshot and the
// first epoch after it happens again when that snapshot is restored plainly, so
// that another term, on another lease, gets the same epoch.
func (p *plan) carelessRestore(r *rand.Rand, at time.Duration) time.Duration {
	add := func(k kind, after, d time.Duration) {
		p.events = append(p.events, event{at: at + after, kind: k, d: d})
	}
	for i := range p.machines {
		p.events = append(p.events, event{at: at, kind: crash, machine: i, d: 4 * time.Second})
	}
	add(snapshot, 100*time.Millisecond, 100*time.Millisecond)
	add(revoke, 3*time.Second, 0)
	again := 5*time.Second + time.Duration(r.Int64N(int64(p.ttl)))
	add(restore, again, 100*time.Millisecond)
	add(revoke, again, 0)
	return at + again + 2*p.ttl
}

// keep drops all events but those, which are counted from 0: 3,5-9, all or none.
func (p *plan) keep(list string) error {
	switch list {
	case "all":
		return nil
	case "none":
		p.events = nil
		return nil
	}
	var kept []event
	for part := range strings.SplitSeq(list, ",") {
		a, b, isRange := strings.Cut(part, "-")
		from, err := strconv.Atoi(a)
		to := from
		if err == nil && isRange {
			to, err = strconv.Atoi(b)
		}
		if err != nil || from < 0 || to < from || to >= len(p.events) {
			return fmt.Errorf("-keep has %q: it must be numbers or ranges of events from 0 to %d, in order", part, len(p.events)-1)
		}
		kept = append(kept, p.events[from:to+1]...)
	}
	p.events = kept
	return nil
}

func (p *plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: TTL %v, margin %v (0: the default), %d elections, twins %v\n", p.seed, p.ttl, p.margin, p.elections, p.twins)
	for i, m := range p.machines {
		fmt.Fprintf(&b, "machine %d: %+v\n", i, m)
	}
	for i, e := range p.events {
		fmt.Fprintf(&b, "%4d %v\n", i, e)
	}
	return b.String()
}

// A shift is how one call of a candidate goes, and a task how one term of it
// does. A seed decides them by their number, whenever they come to pass.
type shift struct {
	how      int           // Run, Run, Campaign, TryCampaign
	before   time.Duration // idle
	patience time.Duration // until the call is cancelled, unless it has ended
}

type task struct {
	does   int           // what, of the deeds below
	length time.Duration // of doing it
	every  time.Duration // a write
	haunts time.Duration // how long somebody else goes on with the fence
}

const (
	obeys   = iota // until the context ends
	returns        // in the middle
	resigns        // in the middle
	lingers        // writing on for a while after the context has ended
	deeds
)

func (p *plan) rand(machine, election, n int) *rand.Rand {
	return rand.New(rand.NewPCG(p.seed, uint64(n)<<16|uint64(machine)<<8|uint64(election)|1<<60))
}

func (p *plan) shift(machine, election, n int) shift {
	r := p.rand(machine, election, 2*n)
	return shift{
		how:      r.IntN(4),
		before:   logSpread(r, time.Millisecond, p.ttl/4),
		patience: logSpread(r, p.ttl/100, 10*p.ttl),
	}
}

func (p *plan) task(machine, election, n int) task {
	r := p.rand(machine, election, 2*n+1)
	t := task{
		does:   r.IntN(deeds),
		length: logSpread(r, p.ttl/50, 2*p.ttl),
		every:  logSpread(r, p.ttl/50, p.ttl/5),
	}
	if r.IntN(3) == 0 {
		t.haunts = logSpread(r, p.ttl/10, 2*p.ttl)
	}
	return t
}

// logSpread draws a duration, of each order of magnitude as often.
func logSpread(r *rand.Rand, from, to time.Duration) time.Duration {
	n := 0
	for d := from; d < to; d *= 2 {
		n++
	}
	lo := from << r.IntN(n)
	return min(lo+time.Duration(r.Int64N(int64(lo))), to)
}

package tenure

import (
	"math/rand/v2"
	"time"
)

// lottery keeps a herd of candidates off etcd when a term ends. A transaction
// that loses costs etcd as much as one that wins, so with a hundred candidates
// not all should contend at once; with two or three, all should.
//
// Nobody tells a candidate how many others there are, so it learns: it contends
// at once with probability p, and otherwise waits for a moment in which one of
// the others will usually have won. Contending at once and losing means that
// there are more than enough of us: p sinks. Having waited and found the key
// still vacant means that there were too few: p doubles. It settles where one or
// two of us contend at once, and stays at 1 where there is only one candidate.
type lottery struct {
	p    float64
	calm bool          // some vacancy went unclaimed: from now on in small steps
	unit time.Duration // a transaction's time, learned
}

func newLottery() lottery { return lottery{p: 1, unit: 2 * time.Millisecond} }

// draw returns how long to wait before contending: 0, or time enough for one of
// those who did not wait, spread out by the number of those who do.
func (l *lottery) draw() time.Duration {
	if rand.Float64() < l.p {
		return 0
	}
	return 2*l.unit + rand.N(time.Duration(float64(l.unit)/l.p))
}

// lost is told that we contended at once and another one won.
func (l *lottery) lost() {
	if l.calm {
		l.p *= 0.8
	} else {
		l.p /= 2
	}
	l.p = max(l.p, 1e-4)
}

// unclaimed is told that we waited and nobody won.
func (l *lottery) unclaimed() {
	l.calm = true
	l.p = min(2*l.p, 1)
}

// took is told how long a contending transaction took.
func (l *lottery) took(d time.Duration) {
	l.unit = min(max((3*l.unit+d)/4, time.Millisecond), 50*time.Millisecond)
}

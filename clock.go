package tenure

import "time"

// instant is one reading of both clocks of this machine. The monotonic clock
// does not jump but stops while the machine sleeps; the wall clock goes on
// while it sleeps but can be set. Each limit is kept on both, and has passed as
// soon as either clock has reached it: so neither a sleep nor a step of the wall
// clock alone can prolong a term. A forward step can end one, which is the safe
// side. Set back across a sleep the wall clock hides the sleep, and in a virtual
// machine that was paused both clocks have stood still: nothing here can tell.
type instant struct {
	mono time.Time // carries a monotonic reading wherever the runtime has one
	wall time.Time // has none, so that comparisons use the wall clock
}

func readClocks() instant { return instantAt(time.Now()) }

func instantAt(t time.Time) instant { return instant{mono: t, wall: t.Round(0)} }

func (i instant) add(d time.Duration) instant {
	return instant{mono: i.mono.Add(d), wall: i.wall.Add(d)}
}

// before reports whether i is before limit on both clocks.
func (i instant) before(limit instant) bool {
	return i.mono.Before(limit.mono) && i.wall.Before(limit.wall)
}

// until is the time left until limit by the clock on which less is left.
func (i instant) until(limit instant) time.Duration {
	return min(limit.mono.Sub(i.mono), limit.wall.Sub(i.wall))
}

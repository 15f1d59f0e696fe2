package tenure

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// apart returns a reading of two clocks that differ from now by these.
func apart(now time.Time, mono, wall time.Duration) instant {
	return instant{mono: now.Add(mono), wall: now.Add(wall).Round(0)}
}

// L04, L05.
func TestLaterClockCounts(t *testing.T) {
	now := time.Now()
	limit := apart(now, 0, 0)
	for name, tt := range map[string]struct {
		mono, wall time.Duration
		left       time.Duration
	}{
		"BothBefore":                {-2, -1, 1},
		"WallFurtherBefore":         {-1, -time.Hour, 1},
		"AtTheLimit":                {0, 0, 0},
		"OnlyMonotonicAtTheLimit":   {0, -time.Hour, 0},
		"OnlyWallAtTheLimit":        {-time.Hour, 0, 0},
		"OnlyMonotonicPastTheLimit": {1, -time.Hour, -1},
		"OnlyWallPastTheLimit":      {-time.Hour, time.Hour, -time.Hour},
		"BothPast":                  {1, 2, -2},
	} {
		t.Run(name, func(t *testing.T) {
			i := apart(now, tt.mono, tt.wall)
			require.Equal(t, tt.left, i.until(limit))
			require.Equal(t, tt.left > 0, i.before(limit))
		})
	}
}

func TestInstantLaws(t *testing.T) {
	now := time.Now()
	random := func() time.Duration { return rand.N(2*time.Hour) - time.Hour }
	for range 10000 {
		i, limit, d := apart(now, random(), random()), apart(now, random(), random()), random()
		require.Equal(t, i.until(limit) > 0, i.before(limit), "%v before %v", i, limit)
		require.Equal(t, i.until(limit)+d, i.until(limit.add(d)), "%v until %v, %v later", i, limit, d)
		require.Equal(t, i.until(limit)-d, i.add(d).until(limit), "%v, %v later, until %v", i, d, limit)
		require.False(t, i.before(i))
	}
}

// A wall reading with a monotonic part would be compared by the monotonic clock,
// and a sleep of the machine would go unnoticed.
func TestInstantKeepsBothClocks(t *testing.T) {
	now := time.Now()
	for _, i := range []instant{instantAt(now), readClocks(), instantAt(now).add(time.Second)} {
		require.NotEqual(t, i.mono.Round(0), i.mono, "the monotonic reading is missing")
		require.Equal(t, i.wall.Round(0), i.wall, "the wall reading has a monotonic part")
		require.True(t, i.mono.Equal(i.wall), "the two were read at different times")
	}
	before := time.Now()
	i := readClocks()
	require.False(t, i.mono.Before(before))
	require.False(t, time.Now().Before(i.mono))

	// An instant that was stored and read again has a wall reading alone.
	bare := instantAt(now.Round(0))
	require.True(t, bare.before(instantAt(now).add(1)))
	require.False(t, bare.before(instantAt(now)))
}

// The validity is a law of the instant, whether or not anything has run since
// the limit passed.
func TestTermIsValidBeforeItsLimit(t *testing.T) {
	now := time.Now()
	limit := apart(now, 0, 0)
	term := &Term{gen: &generation{}}
	term.gen.limit.Store(&limit)
	require.True(t, term.validAt(apart(now, -1, -1)))
	require.False(t, term.validAt(apart(now, 0, -1)))
	require.False(t, term.validAt(apart(now, -1, 0)))

	// A frozen limit binds, also when renewals move the lease's on.
	frozen, later := limit.add(-time.Second), limit.add(time.Hour)
	term.frozen.Store(&frozen)
	term.gen.limit.Store(&later)
	require.True(t, term.validAt(frozen.add(-1)))
	require.False(t, term.validAt(frozen))

	term.frozen.Store(nil)
	require.True(t, term.validAt(limit))
	term.over.Store(true)
	require.False(t, term.validAt(apart(now, -time.Hour, -time.Hour)))
}

// L12, L17. However little is left, an attempt leaves time for another one.
func TestAttemptIsAFractionOfWhatIsLeft(t *testing.T) {
	now := apart(time.Now(), 0, 0)
	for _, ttl := range []time.Duration{time.Second, 3 * time.Second, time.Minute, maxTTL} {
		gen := &generation{ttl: ttl}
		for left := ttl; left > 20*time.Millisecond; left = left * 9 / 10 {
			limit := now.add(left)
			gen.limit.Store(&limit)
			require.LessOrEqual(t, attempt(gen, now), ttl/6)
			require.LessOrEqual(t, attempt(gen, now), left/2)
			require.GreaterOrEqual(t, attempt(gen, now), min(ttl/6, left/2))
		}
		for _, left := range []time.Duration{time.Millisecond, 0, -time.Hour} {
			limit := now.add(left)
			gen.limit.Store(&limit)
			require.Equal(t, 10*time.Millisecond, attempt(gen, now), "a request needs some time")
		}
	}
}

func TestBackoffLaws(t *testing.T) {
	steps := []time.Duration{0, 50, 100, 200, 400, 800, 1600, 2000, 2000, 2000}
	var lowest, highest [10]time.Duration
	for n := range 2000 {
		var b backoff
		for i, step := range steps {
			step *= time.Millisecond
			d := b.next()
			require.GreaterOrEqual(t, d, step/2)
			require.LessOrEqual(t, d, step*3/2)
			if n == 0 || d < lowest[i] {
				lowest[i] = d
			}
			highest[i] = max(highest[i], d)
		}
	}
	require.Zero(t, highest[0], "the first attempt waits")
	for i, step := range steps[1:] {
		step *= time.Millisecond
		require.Less(t, lowest[i+1], step*6/10, "no random part in step %d", i+1)
		require.Greater(t, highest[i+1], step*14/10, "no random part in step %d", i+1)
	}
}

func TestLotteryLaws(t *testing.T) {
	t.Run("AloneContendsAtOnce", func(t *testing.T) {
		l := newLottery()
		for range 1000 {
			require.Zero(t, l.draw())
			l.unclaimed()
		}
	})
	t.Run("BoundsHold", func(t *testing.T) {
		l := newLottery()
		for range 100000 {
			switch rand.N(4) {
			case 0:
				l.lost()
			case 1:
				l.unclaimed()
			case 2:
				l.took(rand.N(time.Minute))
			case 3:
				l.took(0)
			}
			require.GreaterOrEqual(t, l.p, 1e-4)
			require.LessOrEqual(t, l.p, 1.0)
			require.GreaterOrEqual(t, l.unit, time.Millisecond)
			require.LessOrEqual(t, l.unit, 50*time.Millisecond)
			d := l.draw()
			if d != 0 {
				require.GreaterOrEqual(t, d, 2*l.unit, "a loser overtakes those who contend at once")
				require.Less(t, d, 2*l.unit+time.Duration(float64(l.unit)/l.p)+1)
			}
		}
	})
	t.Run("ContendsAtOnceWithItsProbability", func(t *testing.T) {
		l := lottery{p: 0.25, unit: time.Millisecond}
		atOnce := 0
		for range 20000 {
			if l.draw() == 0 {
				atOnce++
			}
		}
		require.InDelta(t, 5000, atOnce, 500)
	})
	t.Run("LosingSinksAndVacancyRaises", func(t *testing.T) {
		l := newLottery()
		for range 3 {
			l.lost()
		}
		require.InDelta(t, 1.0/8, l.p, 1e-9)
		l.unclaimed()
		require.InDelta(t, 1.0/4, l.p, 1e-9)
		l.lost()
		require.InDelta(t, 1.0/5, l.p, 1e-9, "too big a step after the first vacancy")
	})
	// Candidates learn, from the outcome of each contest alone, that few of them
	// must contend at once, but not none.
	for _, n := range []int{2, 3, 10, 100, 1000} {
		t.Run(fmt.Sprintf("FewOf%dContendAtOnce", n), func(t *testing.T) {
			require.InDelta(t, 3, settles(n), 2.5)
		})
	}
}

// settles returns how many of n candidates contend at once on average, after a
// thousand contests. Who has held the election sits the next contest out.
func settles(n int) float64 {
	all := make([]lottery, n)
	for i := range all {
		all[i] = newLottery()
	}
	const contests, learning = 2000, 1000
	total, holder := 0, -1
	for contest := range contests {
		var first []int
		winner, shortest := -1, time.Duration(math.MaxInt64)
		for i := range all {
			if i == holder {
				continue
			}
			d := all[i].draw()
			if d == 0 {
				first = append(first, i)
			}
			if d < shortest {
				winner, shortest = i, d
			}
		}
		if len(first) == 0 {
			all[winner].unclaimed()
		} else {
			winner = first[rand.N(len(first))]
		}
		for _, i := range first {
			if i != winner {
				all[i].lost()
			}
		}
		if holder = winner; contest >= learning {
			total += len(first)
		}
	}
	return float64(total) / (contests - learning)
}

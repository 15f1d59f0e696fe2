package sim

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
)

func TestASeedDecidesThePlan(t *testing.T) {
	for seed := range uint64(200) {
		p := newPlan(seed)
		require.Equal(t, p, newPlan(seed))
		require.NotEqual(t, p.String(), newPlan(seed+1).String())
		require.NotEmpty(t, p.events)
		for i, e := range p.events[1:] {
			require.LessOrEqual(t, p.events[i].at, e.at)
		}
		// Promise 1 assumes that the wall clock is not set back where machines
		// sleep, and that clocks differ by less than the margin.
		share := 0.1
		if p.margin > 0 {
			share = p.margin.Seconds() / p.ttl.Seconds()
		}
		for _, e := range p.events {
			if e.machine < 0 || p.machines[e.machine].beyond {
				continue
			}
			m := p.machines[e.machine]
			require.Greater(t, m.rate, 1-share)
			switch e.kind {
			case step:
				require.False(t, m.sleeps && e.d < 0, e)
			case sleep:
				require.True(t, m.sleeps, e)
			case pace:
				require.Greater(t, float64(e.n)/1e6, 1-share)
			}
		}
	}
}

func TestKeepLeavesEventsOut(t *testing.T) {
	all := newPlan(1).events
	for list, want := range map[string][]event{
		"all": all, "none": nil, "3": all[3:4], "0,2-4": append(all[:1:1], all[2:5]...),
	} {
		p := newPlan(1)
		require.NoError(t, p.keep(list), list)
		require.Equal(t, want, p.events, list)
	}
	for _, list := range []string{"", "x", "-1", "4-3", "0,,1", "100000"} {
		require.ErrorContains(t, newPlan(1).keep(list), "from 0 to", list)
	}
}

// A process that stands still runs no timers, so only the clocks end its term.
func TestAPausedProcessIsStoppedByItsClocksAlone(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := newClock(machine{rate: 1})
		ended := make(chan time.Time, 1)
		opts := &tenure.Options{TTL: 2 * time.Second, Hooks: &tenure.Hooks{
			TermEnded: func(*tenure.Term, error) { ended <- time.Now() },
		}}
		setClocks(opts, c)
		client := s.Client()
		e, err := tenure.New(client.Client, "/sim/0", opts)
		require.NoError(t, err)
		term, err := e.Campaign(t.Context())
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		require.True(t, term.Valid(), "it is renewed")
		client.Link.Cut()
		c.pause(4 * time.Second)
		wake := time.Now().Add(4 * time.Second)
		time.Sleep(3 * time.Second)
		require.False(t, term.Valid())
		require.NoError(t, term.Context().Err(), "nobody has run to end it")
		require.False(t, etcdtest.Await(t, 10*time.Second, "the end", ended).Before(wake))
		require.ErrorIs(t, context.Cause(term.Context()), tenure.LeaseExpired)
		time.Sleep(time.Second)
		client.Link.Heal()
		require.NoError(t, term.Resign())

		// While the machine sleeps, the wall clock alone goes on.
		mono, wall := c.read()
		c.sleep(time.Hour)
		time.Sleep(time.Minute)
		m, w := c.read()
		require.Equal(t, mono, m)
		require.Equal(t, time.Minute, w.Sub(wall))
		c.wake()
		time.Sleep(time.Minute)
		m, w = c.read()
		require.Equal(t, time.Minute, m.Sub(mono))
		require.Equal(t, 2*time.Minute, w.Sub(wall))
	})
}

package main

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const ttl = 3 * time.Second

// at is an instant of a test's history.
func at(seconds float64) int64 { return int64(seconds * float64(time.Second)) }

// sound is a history of two terms in which all is as it should be: the first
// leader is stopped in the midst of a write, and continued after the second has
// begun.
func sound() history {
	return history{
		{Kind: valid, Process: "a-1", Epoch: 7, From: at(1), To: at(2)},
		{Kind: valid, Process: "a-1", Epoch: 7, From: at(1), To: at(3)},
		{Kind: valid, Process: "b-1", Epoch: 9, From: at(6.5), To: at(6.4)},
		{Kind: valid, Process: "b-1", Epoch: 9, From: at(6.5), To: at(9)},

		{Kind: write, Process: "a-1", Epoch: 7, Key: "r", Value: "7/a-1/1", From: at(1.1)},
		{Kind: write, Process: "a-1", Epoch: 7, Key: "r", Value: "7/a-1/1", From: at(1.1), To: at(1.2), Outcome: done},
		{Kind: stored, Key: "r", Value: "7/a-1/1", Revision: 8, From: at(1.15), To: at(1.15)},
		{Kind: leaseRead, Process: "a-1", Epoch: 7, Key: "r", Value: "7/a-1/1", From: at(2.9), To: at(2.95)},
		{Kind: write, Process: "a-1", Epoch: 7, Key: "r", Value: "7/a-1/2", From: at(3)},
		{Kind: write, Process: "a-1", Epoch: 7, Key: "r", Value: "7/a-1/2", From: at(3), To: at(8), Outcome: fenced},
		{Kind: write, Process: "a-1", Epoch: 7, Key: "r", Value: "7/a-1/3", From: at(8.1)},
		{Kind: write, Process: "a-1", Epoch: 7, Key: "r", Value: "7/a-1/3", From: at(8.1), To: at(8.2), Outcome: unknown},

		{Kind: read, Process: "b-1", Key: "r", Value: "7/a-1/1", From: at(6.5), To: at(6.6)},
		{Kind: write, Process: "b-1", Epoch: 9, Key: "r", Value: "9/b-1/1", From: at(6.7)},
		{Kind: write, Process: "b-1", Epoch: 9, Key: "r", Value: "9/b-1/1", From: at(6.7), To: at(6.9), Outcome: unknown},
		{Kind: stored, Key: "r", Value: "9/b-1/1", Revision: 10, From: at(7.5), To: at(7.5)},
		{Kind: read, Process: "c-1", Key: "r", Value: "9/b-1/1", From: at(7.1), To: at(7.2)},

		{Kind: insert, Process: "a-1", Epoch: 7, Value: "7/a-1/9", From: at(1.3), To: at(1.4), Outcome: done},
		{Kind: insert, Process: "a-1", Epoch: 7, Value: "7/a-1/10", From: at(2.9), To: at(8.3), Outcome: fenced},
		{Kind: insert, Process: "b-1", Epoch: 9, Value: "9/b-1/2", From: at(7.3), To: at(7.4), Outcome: done},
		{Kind: row, Value: "7/a-1/9", Revision: 1},
		{Kind: row, Value: "9/b-1/2", Revision: 2},

		{Kind: observed, Process: "observer", Epoch: 7, From: at(1)},
		{Kind: observed, Process: "observer", From: at(6)},
		{Kind: observed, Process: "observer", Epoch: 9, From: at(6.5)},
	}
}

func TestSoundHistoryPasses(t *testing.T) {
	require.Empty(t, sound().check(ttl))
}

// A check that cannot fail proves nothing: each history has one fault, which is
// found.
func TestEveryViolationIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		rule   string
		change func(history) history
	}{
		"TwoAtOnce": {ruleTwo, func(h history) history {
			return append(h, event{Kind: valid, Process: "a-1", Epoch: 7, From: at(1), To: at(6.6)})
		}},
		"TwoAtOnceThoughSeenOnce": {ruleTwo, func(h history) history {
			return append(h, event{Kind: valid, Process: "c-1", Epoch: 10, From: at(8.1), To: at(8)})
		}},
		"ExcusedForTooLong": {ruleTwo, func(h history) history {
			return append(h,
				event{Kind: meddled, Epoch: 7, From: at(3), To: at(3.1)},
				event{Kind: valid, Process: "a-1", Epoch: 7, From: at(1), To: at(6.6)})
		}},
		"ExcusedTooEarly": {ruleTwo, func(h history) history {
			return append(h,
				event{Kind: meddled, Epoch: 7, From: at(6.55), To: at(6.6)},
				event{Kind: valid, Process: "a-1", Epoch: 7, From: at(1), To: at(6.6)})
		}},
		"OneEpochForTwo": {"epochs do not rise", func(h history) history {
			return append(h, event{Kind: valid, Process: "c-1", Epoch: 9, From: at(10), To: at(11)})
		}},
		"EpochsFall": {"epochs do not rise", func(h history) history {
			return append(h, event{Kind: valid, Process: "c-1", Epoch: 8, From: at(10), To: at(11)})
		}},
		"LateWriteIsTaken": {ruleDeposed, func(h history) history {
			return append(h, event{Kind: stored, Key: "r", Value: "7/a-1/3", Revision: 11, From: at(8.15), To: at(8.15)})
		}},
		"LateWriteToAnotherRegisterIsTaken": {ruleDeposed, func(h history) history {
			return append(h, event{Kind: stored, Key: "s", Value: "7/a-1/3", Revision: 11, From: at(8.15), To: at(8.15)})
		}},
		"LateRowIsTaken": {ruleDeposed, func(h history) history {
			return append(h, event{Kind: row, Value: "7/a-1/11", Revision: 3})
		}},
		"WriteIsLost": {"an acknowledged write is lost", func(h history) history {
			return slices.DeleteFunc(h, func(e event) bool { return e.Kind == stored && e.Revision == 8 })
		}},
		"RowIsLost": {"an acknowledged write is lost", func(h history) history {
			return slices.DeleteFunc(h, func(e event) bool { return e.Kind == row && e.Revision == 1 })
		}},
		"RowIsDoubled": {"a row is doubled", func(h history) history {
			return append(h, event{Kind: row, Value: "9/b-1/2", Revision: 3})
		}},
		"RefusedRowIsThere": {"a refused write is there", func(h history) history {
			return append(h, event{Kind: row, Value: "7/a-1/10", Revision: 0})
		}},
		"UnsentWriteIsThere": {"a refused write is there", func(h history) history {
			return append(h,
				event{Kind: write, Process: "b-1", Epoch: 9, Key: "s", Value: "9/b-1/8", From: at(8)},
				event{Kind: write, Process: "b-1", Epoch: 9, Key: "s", Value: "9/b-1/8", From: at(8), To: at(8.1), Outcome: ended},
				event{Kind: stored, Key: "s", Value: "9/b-1/8", Revision: 11, From: at(8.1), To: at(8.1)})
		}},
		"StaleRead": {"not linearizable", func(h history) history {
			return append(h, event{Kind: read, Process: "c-1", Key: "r", Value: "7/a-1/1", From: at(7.6), To: at(7.7)})
		}},
		"StaleReadByTheClock": {"not linearizable", func(h history) history {
			return append(h, event{Kind: leaseRead, Process: "a-1", Epoch: 7, Key: "r", Value: "7/a-1/1", From: at(7.6), To: at(7.7)})
		}},
		"ReadFromNowhere": {"not linearizable", func(h history) history {
			return append(h, event{Kind: read, Process: "c-1", Key: "r", Value: "9/b-1/77", From: at(8), To: at(8.1)})
		}},
		"ReadBeforeTheWrite": {"not linearizable", func(h history) history {
			return append(h, event{Kind: read, Process: "c-1", Key: "r", Value: "9/b-1/1", From: at(6.1), To: at(6.2)})
		}},
		"WritesOutOfOrder": {"not linearizable", func(h history) history {
			// The lower epoch is acknowledged after the higher one was read.
			return append(h,
				event{Kind: write, Process: "a-1", Epoch: 7, Key: "r", Value: "7/a-1/5", From: at(8)},
				event{Kind: write, Process: "a-1", Epoch: 7, Key: "r", Value: "7/a-1/5", From: at(8), To: at(8.1), Outcome: done},
				event{Kind: stored, Key: "r", Value: "7/a-1/5", Revision: 9, From: at(8.1), To: at(8.1)})
		}},
		"ObserverGoesBack": {"an observer went back", func(h history) history {
			return append(h, event{Kind: observed, Process: "observer", Epoch: 7, From: at(9)})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			found := c.change(sound()).check(ttl)
			require.NotEmpty(t, found)
			require.True(t, slices.ContainsFunc(found, func(v violation) bool { return v.Rule == c.rule }), "%+v", found)
		})
	}
}

// Whoever lost its key by force may believe in it for a TTL, and so may what it
// reads by its clock.
func TestForceIsAnExcuse(t *testing.T) {
	h := append(sound(),
		event{Kind: meddled, Epoch: 9, From: at(9), To: at(9.1)},
		event{Kind: valid, Process: "c-1", Epoch: 12, From: at(9.2), To: at(13)},
		event{Kind: valid, Process: "b-1", Epoch: 9, From: at(6.5), To: at(9.5)},
		event{Kind: write, Process: "c-1", Epoch: 12, Key: "r", Value: "12/c-1/1", From: at(9.2)},
		event{Kind: write, Process: "c-1", Epoch: 12, Key: "r", Value: "12/c-1/1", From: at(9.2), To: at(9.3), Outcome: done},
		event{Kind: stored, Key: "r", Value: "12/c-1/1", Revision: 13, From: at(9.3), To: at(9.3)},
		event{Kind: leaseRead, Process: "b-1", Epoch: 9, Key: "r", Value: "9/b-1/1", From: at(9.4), To: at(9.45)},
	)
	require.Empty(t, h.check(ttl))
}

// A member of etcd that wakes may revoke a lease; one that was stopped for a
// moment has no reason to.
func TestRevocationOnWakingIsAnExcuse(t *testing.T) {
	two := func(stopped, woke float64) history {
		return append(sound(),
			event{Kind: woken, Process: "m0", From: at(stopped), To: at(woke)},
			event{Kind: observed, Process: "observer", From: at(9.1)},
			event{Kind: observed, Process: "observer", Epoch: 12, From: at(9.2)},
			event{Kind: valid, Process: "c-1", Epoch: 12, From: at(9.2), To: at(13)},
			event{Kind: valid, Process: "b-1", Epoch: 9, From: at(6.5), To: at(9.5)},
		)
	}
	require.Empty(t, two(4, 9).check(ttl))
	for name, h := range map[string]history{"stopped for a moment": two(8.9, 9), "woken long before": two(3, 8), "woken after": two(4, 9.15)} {
		found := h.check(ttl)
		require.Len(t, found, 1, name)
		require.Equal(t, ruleTwo, found[0].Rule, name)
	}
}

// A process that is killed leaves half a line, and a write that it had begun.
func TestHistoryOfAKilledProcess(t *testing.T) {
	dir := t.TempDir()
	j, err := newJournal(dir, "a-1")
	require.NoError(t, err)
	j.add(event{Kind: write, Epoch: 7, Key: "r", Value: "7/a-1/1", From: at(1)})
	require.NoError(t, j.close())
	f, err := os.OpenFile(filepath.Join(dir, "a-1.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = io.WriteString(f, `{"kind":"read","fro`)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	h, err := readHistory(dir)
	require.NoError(t, err)
	require.Equal(t, history{{Kind: write, Process: "a-1", Epoch: 7, Key: "r", Value: "7/a-1/1", From: at(1)}}, h)
	require.Empty(t, h.operations(), "nobody has seen it")
	h = append(h, event{Kind: stored, Key: "r", Value: "7/a-1/1", Revision: 9, From: at(5), To: at(5)})
	ops := h.operations()
	require.Len(t, ops, 1)
	require.Equal(t, at(5), ops[0].Return, "it was applied before the watch told of it")
}

// The control experiment fails if it finds nothing, the library if anything is
// found.
func TestVerdict(t *testing.T) {
	two, deposed := violation{Rule: ruleTwo}, violation{Rule: ruleDeposed}
	for _, c := range []struct {
		library string
		compare bool
		found   []violation
		good    bool
	}{
		{"tenure", false, nil, true},
		{"tenure", false, []violation{two}, false},
		{"concurrency", false, nil, false},
		{"concurrency", false, []violation{two}, false},
		{"concurrency", false, []violation{deposed}, false},
		{"concurrency", false, []violation{deposed, two}, true},
		{"concurrency", true, []violation{two}, true},
		{"concurrency", true, []violation{deposed}, false},
	} {
		r := &report{config: config{library: c.library, compare: c.compare}, violations: c.found}
		require.Equal(t, c.good, r.verdict() == "", "%+v", c)
	}
}

// The page is complete in itself and shows terms, faults and violations.
func TestPage(t *testing.T) {
	h := append(sound(), event{Kind: fault, Key: "slow", Process: "c1 to m2", From: at(2), To: at(4)})
	r := newReport(&harness{config: config{library: "tenure", candidates: 3}, started: at(0)}, h)
	r.violations = []violation{{Rule: ruleTwo, Text: "<both>", At: at(5)}}
	file := filepath.Join(t.TempDir(), "page.html")
	require.NoError(t, r.writePage(file))
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	text := string(page)
	require.Equal(t, 1, strings.Count(text, `class="network"`), "on the candidate's row alone")
	require.Equal(t, 2, strings.Count(text, `class="led"`))
	require.Contains(t, text, "slow: c1 to m2, 2.000 s")
	require.Contains(t, text, "&lt;both&gt;")
	require.NotContains(t, text, "http://", "nothing is loaded from anywhere")
	require.NotContains(t, text, "https://")
}

// pair is a connection through a proxy, and both of its ends.
func pair(t *testing.T) (p *proxy, client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	p, err = newProxy(l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(p.close)
	client, err = net.Dial("tcp", p.listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	server, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { server.Close() })
	return p, client, server
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
}

func receive(t *testing.T, c net.Conn, n int) string {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	buf := make([]byte, n)
	_, err := io.ReadFull(c, buf)
	require.NoError(t, err)
	return string(buf)
}

// silent asserts that nothing comes for a while: time itself is what is tested.
func silent(t *testing.T, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestProxyDeliversLate(t *testing.T) {
	p, client, server := pair(t)
	send(t, client, "one")
	require.Equal(t, "one", receive(t, server, 3))
	p.set(weather{requests: late})
	send(t, client, "two")
	silent(t, server)
	send(t, server, "answer")
	require.Equal(t, "answer", receive(t, client, 6), "the other way is open")
	p.set(weather{})
	require.Equal(t, "two", receive(t, server, 3))
}

func TestProxyLosesAndThenCloses(t *testing.T) {
	p, client, server := pair(t)
	p.set(weather{requests: lose, answers: lose})
	send(t, client, "one")
	silent(t, server)
	silent(t, client) // and is open
	p.set(weather{})
	require.NoError(t, client.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err := client.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestProxyRefuses(t *testing.T) {
	p, client, _ := pair(t)
	p.set(weather{refuse: true})
	for _, c := range []net.Conn{client, dial(t, p)} {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
		_, err := c.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	}
}

func TestProxyIsSlow(t *testing.T) {
	p, client, server := pair(t)
	p.set(weather{delay: 150 * time.Millisecond})
	begin := time.Now()
	send(t, client, "one")
	require.Equal(t, "one", receive(t, server, 3))
	require.GreaterOrEqual(t, time.Since(begin), 150*time.Millisecond)
}

func dial(t *testing.T, p *proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// Every kind of fault has its turn before one has its second, and what is drawn
// depends on the seed alone.
func TestDeck(t *testing.T) {
	draw := func(seed uint64) (names []string) {
		next := newNemesis(&harness{config: config{library: "tenure", seed: seed}}).deck()
		for range 3 * len(troubles) {
			names = append(names, next(func(trouble) bool { return true }).name)
		}
		return names
	}
	names := draw(1)
	for round := range slices.Chunk(names, len(troubles)) {
		require.Len(t, slices.Compact(slices.Sorted(slices.Values(round))), len(troubles))
	}
	require.Equal(t, names, draw(1))
	require.NotEqual(t, names, draw(2))

	next := newNemesis(&harness{config: config{library: "concurrency", seed: 1}}).deck()
	for range 3 * len(troubles) {
		require.NotContains(t, ownLibraryOnly, next(func(trouble) bool { return true }).name)
	}
	only := newNemesis(&harness{config: config{library: "tenure", seed: 1, only: []string{"slow"}}}).deck()
	require.Equal(t, "slow", only(func(t trouble) bool { return t.lane != onNetwork }).name, "for want of another")
}

package fencecheck

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure"
)

// memory is a log in memory, with one thing wrong with it.
type memory struct {
	fault string
	gate  *tenure.Gate

	mu     sync.Mutex
	values []string
	n      int
}

var errCut = errors.New("the connection is cut")

func (m *memory) Append(ctx context.Context, fence tenure.Fence, value string) error {
	switch m.fault {
	case "unguarded":

	case "check, then act":
		if err := m.gate.Seal(ctx, fence); err != nil {
			return err
		}

	case "refuses everything":
		return tenure.ErrFenced

	default:
		_, leave, err := m.gate.Enter(ctx, fence)
		if err != nil {
			if m.fault == "shows what it refuses" {
				m.append(value)
			}
			return err
		}
		defer leave()
	}
	if Between(ctx) {
		return errCut
	}
	m.append(value)
	return nil
}

func (m *memory) append(value string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n++
	odd := m.n%100 == 0
	if odd && m.fault == "loses" {
		return
	}
	m.values = append(m.values, value)
	if odd && m.fault == "doubles" {
		m.values = append(m.values, value)
	}
}

func (m *memory) Read(context.Context) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.values), nil
}

func (m *memory) Seal(ctx context.Context, fence tenure.Fence) error {
	if m.fault == "forgets seals" {
		return nil
	}
	return m.gate.Seal(ctx, fence)
}

func TestGuardedResourcePasses(t *testing.T) {
	h := Run(t, &memory{gate: tenure.NewGate(Key)}, Options{Cut: true})
	count := make(map[Outcome]int)
	for _, w := range h.Writes {
		count[w.Outcome]++
	}
	assert.GreaterOrEqual(t, count[Acknowledged], 10_000)
	assert.Greater(t, count[Refused], 100, "zombies have written")
	assert.Greater(t, count[Unknown], 10, "connections were cut")
	assert.Greater(t, h.Epochs, 20)
	assert.NotEmpty(t, h.Looks)
}

// A check that cannot fail shows nothing.
func TestEveryFaultIsNoticed(t *testing.T) {
	for fault, want := range map[string]string{
		"unguarded":             "order: ",
		"check, then act":       "order: ",
		"shows what it refuses": "visible: ",
		"loses":                 "lost: ",
		"doubles":               "doubled: ",
		"forgets seals":         "late: ",
	} {
		t.Run(fault, func(t *testing.T) {
			h, err := Drive(t.Context(), &memory{fault: fault, gate: tenure.NewGate(Key)}, Options{})
			require.NoError(t, err)
			require.ErrorContains(t, h.Check(), want, "%v", h)
		})
	}
}

func TestCheckTellsFaultsOfReads(t *testing.T) {
	fence := func(epoch tenure.Epoch) tenure.Fence { return tenure.Fence{Key: Key, Epoch: epoch, Lease: 1} }
	acked := Write{Fence: fence(1), Value: "1.1.0.0", Outcome: Acknowledged}
	for name, c := range map[string]struct {
		history History
		want    string
	}{
		"late after a read":  {History{Final: []string{"1.1.0.0", "2.1.0.1"}, Looks: []Look{{Values: []string{"2.1.0.1"}}}}, "late: 1.1.0.0"},
		"late after a seal":  {History{Final: []string{"1.1.0.0"}, Looks: []Look{{Sealed: 2}}}, "late: 1.1.0.0"},
		"missing":            {History{Writes: []Write{acked}, Final: []string{"1.1.0.0"}, Looks: []Look{{Answered: 1}}}, "missing: 1.1.0.0"},
		"gone":               {History{Looks: []Look{{Values: []string{"1.1.0.0"}}}}, "gone: 1.1.0.0"},
		"two leases":         {History{Final: []string{"1.1.0.0", "1.2.0.1"}}, "order: 1.2.0.1 stands after 1.1.0.0"},
		"refused wrongly":    {History{Writes: []Write{{Fence: fence(1), Value: "1.1.0.0", Outcome: Refused}}}, "wrongly: 1.1.0.0"},
		"a foreign value":    {History{Final: []string{"hello"}}, `"hello", which nobody wrote`},
		"a foreign value, 2": {History{Looks: []Look{{Values: []string{"hello"}}}}, `"hello", which nobody wrote`},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorContains(t, c.history.Check(), c.want)
		})
	}
	sound := History{
		Writes: []Write{acked, {Fence: fence(1), Value: "1.1.0.1", Outcome: Refused, Rival: true}, {Value: "1.1.0.2"}},
		Final:  []string{"1.1.0.0", "2.1.0.3"},
		Looks:  []Look{{Answered: 1, Values: []string{"1.1.0.0"}}, {Sealed: 2, Values: []string{"1.1.0.0"}}},
	}
	require.NoError(t, sound.Check())
}

// A resource that refuses everything never comes to the end of the run.
func TestRefusingEverythingIsNotASuccess(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	h, err := Drive(ctx, &counting{memory: memory{fault: "refuses everything"}, do: func() {
		if n++; n == 1000 {
			cancel()
		}
	}}, Options{Writers: 1})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, h.Check(), "wrongly: ")
}

type counting struct {
	memory
	do func()
}

func (c *counting) Append(ctx context.Context, fence tenure.Fence, value string) error {
	c.do()
	return c.memory.Append(ctx, fence, value)
}

func (c *counting) Seal(context.Context, tenure.Fence) error { return nil }

func TestRestartFailsTheRunIfItFails(t *testing.T) {
	down := errors.New("down")
	_, err := Drive(t.Context(), &memory{gate: tenure.NewGate(Key)}, Options{Restart: func() error { return down }})
	require.ErrorIs(t, err, down)
}

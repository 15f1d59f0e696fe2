package wire_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/wire"
)

// What is remembered is never taken for another fence, by several at once.
func TestLastIsOnlyASpeedUp(t *testing.T) {
	var format, parse wire.Last
	var users sync.WaitGroup
	for i := range 4 {
		users.Go(func() {
			for n := range 200 {
				fence := tenure.Fence{Key: "k", Epoch: tenure.Epoch(1 + (n+i)/3), Lease: 1}
				text, err := format.Format(fence)
				if err != nil || text != fence.String() {
					t.Errorf("Format(%v) = %q, %v", fence, text, err)
				}
				got, err := parse.Parse(text)
				if err != nil || got != fence {
					t.Errorf("Parse(%q) = %v, %v", text, got, err)
				}
			}
		})
	}
	users.Wait()
	_, err := format.Format(tenure.Fence{Key: "k"})
	require.Error(t, err)
	_, err = parse.Parse("0:1:k")
	require.Error(t, err)
}

func TestLastAllocatesNothingAgain(t *testing.T) {
	var format, parse wire.Last
	fence := tenure.Fence{Key: "/scheduler/leader", Epoch: 42, Lease: 1}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		text, err := format.Format(fence)
		if err != nil {
			t.Error(err)
		}
		if _, err := parse.Parse(text); err != nil {
			t.Error(err)
		}
	}))
}

func TestTheContextOfAFenceIsAsTheOneBelow(t *testing.T) {
	type private struct{}
	below, cancel := context.WithCancelCause(context.WithValue(t.Context(), private{}, 42))
	fence := tenure.Fence{Key: "k", Epoch: 1, Lease: 1}
	ctx := wire.NewContext(below, fence)
	above, stop := context.WithCancel(ctx)
	defer stop()
	require.Equal(t, 42, above.Value(private{}))
	got, ok := wire.FromContext(above)
	require.True(t, ok)
	require.Equal(t, fence, got)
	cancel(tenure.ErrFenced)
	<-above.Done()
	require.Equal(t, tenure.ErrFenced, context.Cause(above))
	require.Equal(t, tenure.ErrFenced, context.Cause(ctx))
}

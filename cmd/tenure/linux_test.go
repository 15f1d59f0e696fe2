package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure/internal/etcdtest"
)

// Killed without a word, it takes the command along.
func TestKilledWrapperTakesTheCommandAlong(t *testing.T) {
	c := etcdtest.StartCluster(t, 1)
	b := newBeats(t)
	cmd, _ := command(t, c, append([]string{"run", "-ttl", "2s", "--"}, b.script(`trap "" TERM;`)...)...)
	require.NoError(t, cmd.Start())
	b.await(t)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	won := rival(t, c)
	last := b.last(t)
	require.True(t, last.Before(won))
	time.Sleep(100 * time.Millisecond) // real processes: there is no other sign of silence
	require.Equal(t, last, b.last(t))
}

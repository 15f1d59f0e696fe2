package etcdtest

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A recorder is a test that may fail.
type recorder struct {
	testing.TB
	failure string
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failure = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// failure runs f as a test of its own and returns how it failed.
func failure(t *testing.T, f func(t testing.TB)) string {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r.failure
}

func TestEventually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		Eventually(t, time.Minute, "past 1 s", true, func() bool { return time.Since(start) >= time.Second })
		require.Equal(t, time.Second, time.Since(start))

		start = time.Now()
		got := failure(t, func(t testing.TB) {
			t.Helper()
			Eventually(t, time.Minute, "Answer()", 42, func() int { return 41 })
		})
		require.Equal(t, "Answer() = 41 after 1m0s, want 42", got)
		require.Equal(t, time.Minute, time.Since(start))
	})
}

func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := make(chan int, 1)
		c <- 42
		require.Equal(t, 42, Await(t, atOnce, "Answer", c))
		got := failure(t, func(t testing.TB) {
			t.Helper()
			Await(t, time.Minute, "Answer", c)
		})
		require.Equal(t, "Answer: nothing after 1m0s", got)
		close(c)
		require.Zero(t, Await(t, atOnce, "Answer", c))
	})
}

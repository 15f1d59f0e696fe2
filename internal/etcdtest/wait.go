package etcdtest

import (
	"testing"
	"time"
)

// Eventually calls get until it returns want, and fails the test if it has not
// within the given time. The failure names the call. It works inside a bubble,
// on the bubble's clock, and outside.
func Eventually[T comparable](t testing.TB, within time.Duration, call string, want T, get func() T) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(within)
	defer end.Stop()
	for {
		got := get()
		if got == want {
			return
		}
		select {
		case <-tick.C:

		case <-end.C:
			t.Fatalf("%s = %v after %v, want %v", call, got, within, want)
		}
	}
}

// Await returns what arrives on c, or the zero value if c is closed, and fails
// the test if neither happens within the given time. The failure names the call
// that the test waits for.
func Await[T any](t testing.TB, within time.Duration, call string, c <-chan T) T {
	t.Helper()
	end := time.NewTimer(within)
	defer end.Stop()
	var v T
	select {
	case v = <-c:

	case <-end.C:
		t.Fatalf("%s: nothing after %v", call, within)
	}
	return v
}

func must(t testing.TB, call string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s = %v, want no error", call, err)
	}
}

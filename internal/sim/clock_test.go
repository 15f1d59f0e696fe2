package sim

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"
)

// A clock is a machine's pair of clocks. Both run at one rate, which is not that
// of the bubble; the monotonic one stands still while the machine sleeps; the
// wall clock can be set.
type clock struct {
	mu    sync.Mutex
	rate  float64
	at    time.Time // of the last change, when the clocks showed what follows
	mono  time.Time
	wall  time.Time
	awake time.Time // the monotonic clock stands still before
	until time.Time // the process stands still before
}

// pause lets the process stand still for d from now on, as far as readings can.
func (c *clock) pause(d time.Duration) { c.change(func() { c.until = c.at.Add(d) }) }

// sleep stops the monotonic clock as well.
func (c *clock) sleep(d time.Duration) {
	c.change(func() { c.awake, c.until = c.at.Add(d), c.at.Add(d) })
}

// wake ends a pause and a sleep.
func (c *clock) wake() { c.sleep(0) }

// woken is when the process stands still no longer, or has stood still last.
func (c *clock) woken() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.until
}

// still are the functions of package tenure that a process which stands still
// does not get through. They hold no lock when they read the clocks, since a
// goroutine that waits with a lock stops the clock of the bubble. Without them,
// timers would end a term although nothing of its process runs.
var still = []string{".(*Lease).guard", ".(*Lease).keep", ".(*Lease).renew"}

// wait blocks while the process stands still, if the caller of whoever reads is
// one of those.
func (c *clock) wait() {
	for {
		c.mu.Lock()
		left := time.Until(c.until)
		c.mu.Unlock()
		if left <= 0 {
			return
		}
		pc, _, _, _ := runtime.Caller(2)
		name := runtime.FuncForPC(pc).Name()
		if !slices.ContainsFunc(still, func(f string) bool { return strings.HasSuffix(name, f) }) {
			return
		}
		time.Sleep(min(left, 50*time.Millisecond)) // it may be woken
	}
}

func newClock(m machine) *clock {
	now := time.Now()
	return &clock{rate: m.rate, at: now, awake: now, until: now, mono: now, wall: now.Round(0).Add(m.step)}
}

func (c *clock) read() (mono, wall time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.readLocked()
}

func (c *clock) readLocked() (mono, wall time.Time) {
	since := func(t time.Time) time.Duration { return time.Duration(float64(time.Since(t)) * c.rate) }
	mono, wall = c.mono, c.wall.Add(since(c.at))
	if awake := since(c.awake); awake > 0 {
		mono = mono.Add(min(awake, since(c.at)))
	}
	return mono, wall
}

// change changes the clocks from now on.
func (c *clock) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mono, c.wall = c.readLocked()
	c.at = time.Now()
	f()
}

// readings is package tenure's own type for a reading of both clocks.
type readings struct{ mono, wall time.Time }

// setClocks makes opts, a *tenure.Options or *tenure.LeaseOptions, read the
// clocks. The field is not exported, since no program has a use for it.
func setClocks(opts any, c *clock) {
	field := reflect.ValueOf(opts).Elem().FieldByName("clocks")
	if got := fmt.Sprintf("%v", field.Type()); got != "func() tenure.instant" {
		panic("sim: the clocks are read by a " + got)
	}
	var mine []string
	for _, t := range []reflect.Type{field.Type().Out(0), reflect.TypeFor[readings]()} {
		var layout string
		for f := range t.Fields() {
			layout += fmt.Sprint(f.Name, f.Type, f.Offset, " ")
		}
		mine = append(mine, layout)
	}
	if mine[0] != mine[1] {
		panic("sim: a reading of the clocks is made of " + mine[0])
	}
	*(*func() readings)(unsafe.Pointer(field.UnsafeAddr())) = func() readings {
		c.wait()
		mono, wall := c.read()
		return readings{mono: mono, wall: wall}
	}
}

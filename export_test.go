package tenure

import "time"

// SetClocks replaces the clocks of an elector's options, so that tests can hold
// the monotonic and the wall clock apart.
func (o *Options) SetClocks(read func() (mono, wall time.Time)) {
	o.clocks = func() instant {
		mono, wall := read()
		return instant{mono: mono, wall: wall}
	}
}

// SetClocks does the same for the options of a shared lease.
func (o *LeaseOptions) SetClocks(read func() (mono, wall time.Time)) {
	o.clocks = func() instant {
		mono, wall := read()
		return instant{mono: mono, wall: wall}
	}
}

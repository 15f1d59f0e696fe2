package tenure

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Defaults and bounds of the options.
const (
	defaultTTL         = 10 * time.Second
	defaultStopTimeout = 30 * time.Second
	minTTL             = time.Second
	maxTTL             = clientv3.MaxLeaseTTL * time.Second
	marginShare        = 10 // the margin is a tenth of the TTL unless set
	maxRecordBytes     = 64 << 10
)

// Options configure an [Elector]. A nil *Options and the zero value of each
// field mean the defaults. [New] copies them.
type Options struct {
	// Identity names this candidate for people: in the key's value, in logs, in
	// [Status]. It decides nothing. Default: the host name, the process id and
	// a random part.
	Identity string

	// Address is published with the leadership, for clients that look for the
	// leader. Default: none.
	Address string

	// Metadata is published like Address. Default: none. The whole record, as
	// JSON, may have 64 KiB; all of its text must be valid UTF-8.
	Metadata map[string]string

	// TTL is the time to live of the elector's own lease: how long etcd waits
	// for a renewal before it deletes the key. Default 10 s; at least 1 s, at
	// most 9,000,000,000 s; parts of a second are rounded up. etcd may grant
	// more than is asked (one and a half of its election timeouts, 2 s with
	// etcd's defaults, is its floor); what it grants counts, and [Status] shows
	// it. Must be 0 if Lease is set.
	TTL time.Duration

	// Margin is how long before etcd's own deadline a term ends by itself. It
	// has to cover the difference in rate of two machines' clocks over one TTL,
	// and gives the work time to stop. Default: a tenth of the granted TTL; at
	// least 1 ms, at most half of the TTL. Must be 0 if Lease is set.
	Margin time.Duration

	// Lease is shared with other electors of the process, so that one renewal
	// serves them all. It must have been made with the same client. Default: a
	// lease of its own.
	Lease *Lease

	// StopTimeout is how long the work may go on after its context has ended
	// while the lease could still be renewed. After that the term is no longer
	// renewed, Hooks.Overstayed is called, and nobody else can win before the
	// lease has run out. Default 30 s; at least 1 ms.
	StopTimeout time.Duration

	// ExitOnStopTimeout ends the process, with status 1, when StopTimeout has
	// passed: for work that cannot be stopped in any other way.
	ExitOnStopTimeout bool

	// MinEpoch is the highest epoch that the guarded resources are known to
	// have accepted. The elector refuses to lead with an epoch that is not
	// above it, and ends with [ErrRolledBack]. Default 0: it knows only the
	// epochs that it has seen itself.
	MinEpoch Epoch

	// Logger receives what an operator should know, with the keys election,
	// identity, epoch, lease, reason and error. Default: silent.
	Logger *slog.Logger

	// Hooks are told what happens. Default: nobody is.
	Hooks *Hooks

	clocks func() instant // both clocks; tests hold them apart
}

// LeaseOptions configure a [Lease] that several electors share. A nil
// *LeaseOptions and the zero value of each field mean the defaults, which are
// those of the fields of the same name in [Options].
type LeaseOptions struct {
	TTL    time.Duration
	Margin time.Duration
	Logger *slog.Logger
	Hooks  *Hooks // only Renewed is called

	clocks func() instant
}

// Hooks are called as things happen: in order, one at a time, and never on a
// goroutine that renews or watches, so a slow hook delays only later hooks. A
// nil field is not called. A hook must not call [Elector.Run], which waits for
// the hooks before it returns.
type Hooks struct {
	// TermStarted is called for each term, before the work begins or soon after.
	TermStarted func(term *Term)

	// TermEnded is called once for each term that started, when its validity
	// ends. The reason is in the cause: errors.Is(cause, tenure.LeaseExpired).
	TermEnded func(term *Term, cause error)

	// StateChanged is called whenever [Elector.Status] has another state or
	// another leader.
	StateChanged func(status Status)

	// Renewed is called after each attempt to renew the lease: with its latency
	// and nil if the renewal counts, with the reason if it does not.
	Renewed func(latency time.Duration, err error)

	// Expiring is called when a term's validity is running out because no
	// renewal has counted for a while: less than half is left of what was left
	// when a renewal was due, which is a quarter of the TTL or so. Once for each
	// such time.
	Expiring func(term *Term, left time.Duration)

	// Overstayed is called when the work of a term has gone on for StopTimeout
	// after its context ended.
	Overstayed func(term *Term)
}

// complete returns a copy of o with every default filled in.
func (o *Options) complete() Options {
	var c Options
	if o != nil {
		c = *o
	}
	if c.Identity == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		c.Identity = fmt.Sprintf("%s-%d-%s", strings.ToValidUTF8(host, "?"), os.Getpid(), rand.Text()[:8])
	}
	c.Metadata = maps.Clone(c.Metadata)
	if c.StopTimeout == 0 {
		c.StopTimeout = defaultStopTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Hooks == nil {
		c.Hooks = &Hooks{}
	}
	if c.clocks == nil {
		c.clocks = readClocks
	}
	return c
}

// validate reports every fault of completed options.
func (o *Options) validate(client *clientv3.Client) error {
	var faults []error
	if o.Lease != nil {
		if o.TTL != 0 {
			faults = append(faults, fmt.Errorf("tenure: Options.TTL is %v and Options.Lease is set: a shared lease has a TTL of its own, so TTL must be 0", o.TTL))
		}
		if o.Margin != 0 {
			faults = append(faults, fmt.Errorf("tenure: Options.Margin is %v and Options.Lease is set: a shared lease has a margin of its own, so Margin must be 0", o.Margin))
		}
		if o.Lease.client != client {
			faults = append(faults, errors.New("tenure: Options.Lease was made with another client than the elector"))
		}
	} else {
		faults = append(faults, validateTimes("Options", o.TTL, o.Margin)...)
	}
	if o.StopTimeout < time.Millisecond {
		faults = append(faults, fmt.Errorf("tenure: Options.StopTimeout is %v: it must be at least 1ms, or 0 for the default", o.StopTimeout))
	}
	if o.MinEpoch < 0 {
		faults = append(faults, fmt.Errorf("tenure: Options.MinEpoch is %d: it must not be negative", o.MinEpoch))
	}
	faults = append(faults, validateText("Options.", o.Identity, o.Address, o.Metadata)...)
	if n := len(newRecord(o).encode()); n > maxRecordBytes {
		faults = append(faults, fmt.Errorf("tenure: Options.Identity, Address and Metadata make a record of %d bytes: it must have at most %d", n, maxRecordBytes))
	}
	return errors.Join(faults...)
}

// validateTimes checks a TTL and a margin, either of which may be 0.
func validateTimes(owner string, ttl, margin time.Duration) (faults []error) {
	if ttl != 0 && (ttl < minTTL || ttl > maxTTL) {
		faults = append(faults, fmt.Errorf("tenure: %s.TTL is %v: it must be at least %v and at most %v, or 0 for %v", owner, ttl, minTTL, maxTTL, defaultTTL))
	}
	if ttl == 0 {
		ttl = defaultTTL
	}
	if margin != 0 && (margin < time.Millisecond || margin > ttl/2) {
		faults = append(faults, fmt.Errorf("tenure: %s.Margin is %v: it must be at least 1ms and at most half of %s.TTL, %v, or 0 for a tenth of it", owner, margin, owner, ttl))
	}
	return faults
}

// validateText checks what is published as JSON, which can hold nothing else.
func validateText(owner, identity, address string, metadata map[string]string) (faults []error) {
	check := func(field, text string) {
		if !utf8.ValidString(text) {
			faults = append(faults, fmt.Errorf("tenure: %s%s is %q: it must be valid UTF-8", owner, field, text))
		}
	}
	check("Identity", identity)
	check("Address", address)
	for _, name := range slices.Sorted(maps.Keys(metadata)) {
		check("Metadata", name)
		check(fmt.Sprintf("Metadata[%q]", name), metadata[name])
	}
	return faults
}

// record is the value of an election's key; docs/protocol.md describes it.
type record struct {
	Identity  string            `json:"identity"`
	Address   string            `json:"address,omitempty"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	Candidate string            `json:"candidate"`
	Acquired  time.Time         `json:"acquired"`
	Evict     bool              `json:"evict,omitempty"`
}

func newRecord(o *Options) record {
	return record{Identity: o.Identity, Address: o.Address, Metadata: o.Metadata, Candidate: rand.Text(), Acquired: time.Now().UTC()}
}

func (r record) encode() string {
	b, err := json.Marshal(r)
	if err != nil {
		panic("tenure: a record of strings cannot be encoded: " + err.Error())
	}
	return string(b)
}

// decodeRecord reads the value of a key. A value that is not a record is
// somebody else's: it has no candidate, so it is nobody's.
func decodeRecord(value []byte) record {
	var r record
	if json.Unmarshal(value, &r) != nil {
		return record{}
	}
	return r
}

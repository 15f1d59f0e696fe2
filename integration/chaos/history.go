package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// now reads the machine's monotonic clock, in nanoseconds. All processes of the
// machine read the same one; what time.Now carries is good only within its own
// process.
func now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("chaos: the monotonic clock cannot be read: " + err.Error())
	}
	return ts.Nano()
}

// kind is what an event tells of.
type kind string

const (
	// By candidates. A write has two events: one before it is sent, without an
	// outcome, and one with it.
	valid     kind = "valid"      // Epoch was valid from some instant before From until some instant after To
	write     kind = "write"      // Value was written to the register Key
	read      kind = "read"       // Value was read from the register Key, by asking etcd
	leaseRead kind = "lease read" // likewise, by asking the clock
	insert    kind = "insert"     // Value was inserted in the table
	over      kind = "over"       // the term ended, for the reason in Note

	// By the harness.
	fault    kind = "fault"    // Key was done to Process
	meddled  kind = "meddled"  // the key of Epoch was taken away by force
	woken    kind = "woken"    // the member Process was stopped at From and continued at To
	calm     kind = "calm"     // no fault was in force
	stored   kind = "stored"   // Value was put to Key at Revision, as a watch saw at To
	row      kind = "row"      // Value stands in the table, in the order of Revision
	observed kind = "observed" // an observer was told of Epoch; 0: vacant
)

// outcome is what the caller of a write was told.
type outcome string

const (
	done    outcome = "done"
	fenced  outcome = "fenced"
	ended   outcome = "ended"  // refused here, never sent
	failed  outcome = "failed" // certainly without effect
	unknown outcome = "unknown"
)

// event is one line of a history. Its times are those of now: what it tells of
// happened between From and To, unless its kind says otherwise.
type event struct {
	Kind     kind    `json:"kind"`
	Process  string  `json:"process,omitempty"`
	From     int64   `json:"from"`
	To       int64   `json:"to,omitempty"`
	Epoch    int64   `json:"epoch,omitempty"`
	Revision int64   `json:"revision,omitempty"`
	Key      string  `json:"key,omitempty"`
	Value    string  `json:"value,omitempty"`
	Outcome  outcome `json:"outcome,omitempty"`
	Note     string  `json:"note,omitempty"`
}

// journal is the history of one process: a file of JSON, a line an event. A line
// is handed to the kernel before add returns, so that no signal loses it.
type journal struct {
	process string
	echo    io.Writer // is given the events of validity, too; may be nil

	mu   sync.Mutex
	file *os.File
}

func newJournal(dir, process string) (*journal, error) {
	f, err := os.OpenFile(filepath.Join(dir, process+".jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &journal{process: process, file: f}, nil
}

// add appends e. A run without its history proves nothing, so it ends the process
// if it cannot.
func (j *journal) add(e event) {
	if e.Process == "" {
		e.Process = j.process
	}
	line, err := json.Marshal(e)
	if err != nil {
		panic("chaos: an event cannot be encoded: " + err.Error())
	}
	line = append(line, '\n')
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, err := j.file.Write(line); err != nil {
		panic("chaos: the history cannot be written: " + err.Error())
	}
	if j.echo != nil && e.Kind == valid {
		_, _ = j.echo.Write(line) // whose reader may have gone
	}
}

func (j *journal) close() error { return j.file.Close() }

// history is what all processes have written.
type history []event

// of returns the events of some kinds.
func (h history) of(kinds ...kind) history {
	var found history
	for _, e := range h {
		if slices.Contains(kinds, e.Kind) {
			found = append(found, e)
		}
	}
	return found
}

// readHistory reads every journal of a folder. A process that was killed may have
// left half a line at its end, which says nothing.
func readHistory(dir string) (history, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	var all history
	for _, name := range files {
		h, err := readJournal(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, h...)
	}
	slices.SortStableFunc(all, func(a, b event) int { return cmp.Compare(a.From, b.From) })
	return all, nil
}

func readJournal(name string) (history, error) {
	f, err := os.Open(name) //nolint:gosec // one of our own
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var h history
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return h, nil
		}
		if err != nil {
			return nil, err
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, err
		}
		h = append(h, e)
	}
}

// span is for how long a term was seen to be valid. If it was seen once only, lo
// is after hi, and it was valid at some instant between the two.
type span struct {
	process string
	epoch   int64
	lo, hi  int64
}

// meets reports whether two terms were valid at one instant, for certain.
func (s span) meets(o span) bool { return s.lo <= o.hi && o.lo <= s.hi }

// spans puts together what processes said of the validity of their terms, in
// the order in which the terms began.
func (h history) spans() []span {
	type id struct {
		process string
		epoch   int64
	}
	at := make(map[id]int)
	var all []span
	for _, e := range h.of(valid) {
		k := id{e.Process, e.Epoch}
		i, ok := at[k]
		if !ok {
			at[k] = len(all)
			all = append(all, span{process: e.Process, epoch: e.Epoch, lo: e.From, hi: e.To})
			continue
		}
		all[i].lo, all[i].hi = min(all[i].lo, e.From), max(all[i].hi, e.To)
	}
	slices.SortStableFunc(all, func(a, b span) int { return cmp.Compare(a.lo, b.lo) })
	return all
}

func seconds(ns int64) string { return fmt.Sprintf("%.3f s", time.Duration(ns).Seconds()) }

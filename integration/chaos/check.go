package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// violation is something that may not happen.
type violation struct {
	Rule string
	Text string
	At   int64
}

// The rules that the control experiment has to break.
const (
	ruleTwo     = "two leaders at once"
	ruleDeposed = "write accepted from a deposed leader"
)

// check holds a history against all that is promised. The TTL bounds for how
// long a holder whose key was taken away by force may believe in it.
func (h history) check(ttl time.Duration) (found []violation) {
	h = append(slices.Clip(h), h.revokedOnWaking(ttl)...)
	found = append(found, h.exclusive(ttl)...)
	found = append(found, h.rising()...)
	found = append(found, h.inOrder(stored, "the registers in etcd")...)
	found = append(found, h.inOrder(row, "the table")...)
	found = append(found, h.kept()...)
	found = append(found, h.observers()...)
	linear, _ := h.linearizable()
	return append(found, linear...)
}

// revokedOnWaking are the terms whose key went when a member of etcd had just
// woken. A leader of etcd that was stopped revokes, before it knows that it is
// none any more, what has expired by its own books, although it is renewed at its
// successor. etcd looks whether it was stalled since 3.5.13, but the tick that
// comes first after waking hides that. The promise excepts it.
func (h history) revokedOnWaking(ttl time.Duration) (taken []event) {
	last := make(map[string]int64)
	for _, e := range h.of(observed) {
		epoch := last[e.Process]
		last[e.Process] = e.Epoch
		if epoch == 0 || epoch == e.Epoch {
			continue
		}
		for _, w := range h.of(woken) {
			if w.To-w.From >= int64(ttl/2) && w.To <= e.From && e.From <= w.To+int64(time.Second) {
				taken = append(taken, event{Kind: meddled, Process: w.Process, Epoch: epoch, From: w.To, To: e.From})
			}
		}
	}
	return taken
}

// exclusive: no two terms are valid at one instant. If somebody took the key
// away by force, its holder is excused until its own limit, at most a TTL later.
func (h history) exclusive(ttl time.Duration) (found []violation) {
	all := h.spans()
	excused := func(s span, from, to int64) bool {
		return slices.ContainsFunc(h.of(meddled), func(e event) bool {
			return e.Epoch == s.epoch && e.From <= from && to <= e.To+int64(ttl)
		})
	}
	for i, a := range all {
		for _, b := range all[i+1:] {
			if b.lo > a.hi && b.lo > a.lo { // and so are those after it
				break
			}
			from, to := max(a.lo, b.lo), min(a.hi, b.hi)
			if !a.meets(b) || excused(a, from, to) || excused(b, from, to) {
				continue
			}
			found = append(found, violation{
				Rule: ruleTwo, At: from,
				Text: fmt.Sprintf("%s (epoch %d) and %s (epoch %d) for %s", a.process, a.epoch, b.process, b.epoch, seconds(max(to-from, 0))),
			})
		}
	}
	return found
}

// rising: each term's epoch is greater than that of every earlier one.
func (h history) rising() (found []violation) {
	var highest span
	for _, s := range h.spans() {
		if s.epoch <= highest.epoch {
			found = append(found, violation{
				Rule: "epochs do not rise", At: s.lo,
				Text: fmt.Sprintf("%s began epoch %d after %s had begun epoch %d", s.process, s.epoch, highest.process, highest.epoch),
			})
			continue
		}
		highest = s
	}
	return found
}

// inOrder: a resource accepts nothing of a lower epoch after a higher one.
func (h history) inOrder(k kind, where string) (found []violation) {
	events := slices.Clone(h.of(k))
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.Revision, b.Revision) })
	var highest int64
	for _, e := range events {
		epoch := epochOf(e.Value)
		if epoch < highest {
			found = append(found, violation{
				Rule: ruleDeposed, At: max(e.From, e.To),
				Text: fmt.Sprintf("%s took %q, as number %d, after epoch %d", where, e.Key+" "+e.Value, e.Revision, highest),
			})
		}
		highest = max(highest, epoch)
	}
	return found
}

// kept: what was acknowledged is there, and what was refused is not. A write to
// etcd that was fenced may be there: etcd's client sends a transaction again by
// itself, and the answer is to the last attempt. That it was in time then,
// inOrder shows.
func (h history) kept() (found []violation) {
	count := make(map[string]int)
	for _, e := range h.of(stored, row) {
		count[e.Value]++
	}
	for _, e := range h.of(write, insert) {
		n := count[e.Value]
		switch {
		case e.Outcome == done && n == 0:
			found = append(found, violation{"an acknowledged write is lost", fmt.Sprintf("%s: %s of %q", e.Process, e.Kind, e.Value), e.To})
		case e.Kind == insert && n > 1:
			found = append(found, violation{"a row is doubled", fmt.Sprintf("%s: %q", e.Process, e.Value), e.To})
		case (e.Outcome == ended || e.Outcome == failed || e.Outcome == fenced && e.Kind == insert) && n > 0:
			found = append(found, violation{"a refused write is there", fmt.Sprintf("%s: %s of %q was %s", e.Process, e.Kind, e.Value, e.Outcome), e.To})
		}
	}
	return found
}

// observers: an observer is never told of a lower epoch after a higher one.
func (h history) observers() (found []violation) {
	highest := make(map[string]int64)
	for _, e := range h.of(observed) {
		if e.Epoch != 0 && e.Epoch < highest[e.Process] {
			found = append(found, violation{"an observer went back", fmt.Sprintf("from epoch %d to %d", highest[e.Process], e.Epoch), e.From})
		}
		highest[e.Process] = max(highest[e.Process], e.Epoch)
	}
	return found
}

func epochOf(value string) int64 {
	text, _, _ := strings.Cut(value, "/")
	epoch, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic("chaos: a value without an epoch: " + value)
	}
	return epoch
}

// request of the model, and its state: a register that refuses a lower epoch
// than it has seen.
type (
	access struct {
		key   string
		write bool
		value string // written
	}
	content struct {
		epoch int64
		value string
	}
)

var model = porcupine.Model{
	Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
		byKey := make(map[string][]porcupine.Operation)
		for _, op := range all {
			key := op.Input.(access).key
			byKey[key] = append(byKey[key], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return content{} },
	Step: func(state, input, output any) (bool, any) {
		st, in := state.(content), input.(access)
		if !in.write {
			return output.(string) == st.value, st
		}
		epoch := epochOf(in.value)
		return epoch >= st.epoch, content{epoch, in.value}
	},
	DescribeOperation: func(input, output any) string {
		in := input.(access)
		if in.write {
			return "put " + in.value
		}
		return fmt.Sprintf("get: %v", output)
	},
}

// checkLimit is for how long linearizability may be looked for.
const checkLimit = 2 * time.Minute

// operations returns what was done to the registers. Of a write whose outcome is
// unknown the watch tells whether it was applied; if so, then before the watch
// told. If the watch missed one, the reads will not fit. What a leader whose key
// was taken away by force read by its clock afterwards is left out: that is what
// the promise excepts.
func (h history) operations() (ops []porcupine.Operation) {
	client := make(map[string]int)
	add := func(process string, input access, output any, from, to int64) {
		if _, ok := client[process]; !ok {
			client[process] = len(client)
		}
		ops = append(ops, porcupine.Operation{ClientId: client[process], Input: input, Call: from, Output: output, Return: to})
	}
	taken := make(map[int64]int64) // epoch: when its key was taken away
	for _, e := range h.of(meddled) {
		if at, ok := taken[e.Epoch]; !ok || e.From < at {
			taken[e.Epoch] = e.From
		}
	}
	seen := make(map[string]int64)
	for _, e := range h.of(stored) {
		if at, ok := seen[e.Value]; !ok || e.To < at {
			seen[e.Value] = e.To
		}
	}
	acknowledged := make(map[string]int64)
	for _, e := range h.of(write) {
		if e.Outcome == done {
			acknowledged[e.Value] = e.To
		}
	}
	for _, e := range h.of(write, read, leaseRead) {
		switch {
		case e.Kind == write:
			if e.Outcome != "" {
				continue // its first event counts, which is there in any case
			}
			to, ok := acknowledged[e.Value]
			if at, applied := seen[e.Value]; applied && (!ok || at < to) {
				to, ok = at, true
			}
			if ok {
				add(e.Process, access{key: e.Key, write: true, value: e.Value}, nil, e.From, max(to, e.From))
			}

		case e.Kind == leaseRead:
			if at, ok := taken[e.Epoch]; ok && e.To >= at {
				continue
			}
			fallthrough

		default:
			add(e.Process, access{key: e.Key}, e.Value, e.From, e.To)
		}
	}
	return ops
}

// linearizable: there is an order of all reads and writes in which each took
// effect between its call and its return, and each register behaves like one that
// refuses lower epochs. It returns the operations by register that have none.
func (h history) linearizable() (found []violation, broken [][]porcupine.Operation) {
	for _, part := range model.Partition(h.operations()) {
		key := part[0].Input.(access).key
		switch porcupine.CheckOperationsTimeout(model, part, checkLimit) {
		case porcupine.Illegal:
			found = append(found, violation{"not linearizable", fmt.Sprintf("%s, %d operations", key, len(part)), part[0].Call})
			broken = append(broken, part)
		case porcupine.Unknown:
			found = append(found, violation{"linearizability undecided", fmt.Sprintf("%s, %d operations, after %v", key, len(part), checkLimit), part[0].Call})
		}
	}
	return found, broken
}

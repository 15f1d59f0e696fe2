package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// attempts is how often a smaller plan is tried before it counts as passing: the
// schedule is not part of the seed.
const attempts = 3

// shrink drops events from the plan of a failed seed, in ever smaller pieces, for
// as long as it fails in the same way.
func shrink(ctx context.Context, binary string, o options, r report) {
	if r.Events == 0 { // of a process that has ended
		r.Events = events(ctx, binary, o, r.Seed)
	}
	w := &worker{binary: binary, out: o.out}
	defer w.stop()
	runs := 0
	fails := func(kept []int) bool {
		for range attempts {
			if runs >= o.shrink || ctx.Err() != nil {
				return false
			}
			runs++
			for _, line := range w.run(ctx, r.Seed, ranges(kept)).Wrong {
				if shape(line) == shape(r.Wrong[0]) {
					return true
				}
			}
		}
		return false
	}
	kept := make([]int, r.Events)
	for i := range kept {
		kept[i] = i
	}
	if !fails(kept) {
		fmt.Printf("seed %d has not failed again in %d attempts: its log is all there is\n", r.Seed, runs)
		return
	}
	for piece := len(kept) / 2; piece > 0; piece /= 2 {
		for at := 0; at < len(kept); {
			rest := append(append([]int(nil), kept[:at]...), kept[min(at+piece, len(kept)):]...)
			if fails(rest) {
				kept = rest
			} else {
				at += piece
			}
		}
	}
	// Once more, so that the log is that of the smallest plan.
	runs = 0
	for range attempts {
		if fails(kept) {
			break
		}
	}
	fmt.Printf("seed %d shrunk from %d events to %d, log in %s\n  again: %s\n", r.Seed, r.Events, len(kept), w.log(r.Seed), again(r.Seed, ranges(kept)))
}

// events is how many events the plan of a seed has.
func events(ctx context.Context, binary string, o options, seed uint64) int {
	w := &worker{binary: binary, out: o.out}
	defer w.stop()
	return w.run(ctx, seed, "none").Events
}

var number = regexp.MustCompile(`[0-9][0-9a-f.]*`)

// shape is what two failures of one kind have in common.
func shape(line string) string { return number.ReplaceAllString(line, "0") }

// ranges writes numbers in order as 0,4-7.
func ranges(numbers []int) string {
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		part := strconv.Itoa(numbers[i])
		if j > i {
			part += "-" + strconv.Itoa(numbers[j])
		}
		parts = append(parts, part)
		i = j + 1
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ",")
}

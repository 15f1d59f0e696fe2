// Command sim runs the simulation of internal/sim on many seeds, in several
// processes side by side, and shrinks what fails.
//
//	go run -C tools/sim . -for 1m           # seeds that nobody has tried
//	go run -C tools/sim . -seeds 300 -from 1
//	go run -C tools/sim . -mutants          # the library broken on purpose; words pick some
//
// It prints how many terms were simulated, how fast, and what was done to them.
// A seed that fails is printed with the command that runs it again and the file
// of its log; then events are dropped from its plan for as long as it still
// fails. The exit status is 1 if a seed failed or a mutant survived.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	faults, err := run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(2)
	}
	if faults > 0 {
		os.Exit(1)
	}
}

// options are those of the command line.
type options struct {
	seeds     int
	from      uint64
	lasts     time.Duration
	processes int
	out       string
	mutants   bool
	shrink    int
}

func run(ctx context.Context) (faults int, err error) {
	var o options
	flag.IntVar(&o.seeds, "seeds", 0, "how many seeds; 0: as many as the time allows, or 300 a mutant")
	flag.Uint64Var(&o.from, "from", 0, "the first seed, and the next ones follow; 0: a random one")
	flag.DurationVar(&o.lasts, "for", time.Minute, "how long, unless seeds are counted")
	flag.IntVar(&o.processes, "p", min(2, runtime.NumCPU()), "processes side by side")
	flag.StringVar(&o.out, "out", "../../.out/sim", "the folder of the test binary and the logs")
	flag.BoolVar(&o.mutants, "mutants", false, "count the seeds until each of the library's safety mutants is found")
	flag.IntVar(&o.shrink, "shrink", 200, "how many runs shrinking a failed seed may take")
	flag.Parse()
	if flag.NArg() > 0 && !o.mutants {
		return 0, fmt.Errorf("arguments %q, and only -mutants takes some", flag.Args())
	}
	if o.seeds < 0 || o.lasts < 0 || o.processes < 1 {
		return 0, fmt.Errorf("-seeds %d, -for %v, -p %d: none may be negative, and -p must be at least 1", o.seeds, o.lasts, o.processes)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		return 0, err
	}
	if _, err := os.Stat(filepath.Join(root, "internal", "sim")); err != nil {
		return 0, errors.New("run it in tools/sim, as go run -C does")
	}
	if o.out, err = filepath.Abs(o.out); err != nil {
		return 0, err
	}
	if err := os.MkdirAll(o.out, 0o750); err != nil {
		return 0, err
	}
	if o.from == 0 {
		o.from = 1 + rand.Uint64N(1e9)
	}
	if o.mutants {
		return tryMutants(ctx, root, o, flag.Args())
	}
	binary := filepath.Join(o.out, "sim.test")
	if out, err := build(ctx, root, binary); err != nil {
		return 0, fmt.Errorf("%w\n%s", err, out)
	}
	return simulate(ctx, binary, o)
}

// build compiles the simulation, with the flags that the go command takes.
func build(ctx context.Context, root, binary string, flags ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", append(append([]string{"test", "-c", "-o", binary}, flags...), "./internal/sim")...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// simulate runs seeds until there are enough of them, or time is over.
func simulate(ctx context.Context, binary string, o options) (failed int, err error) {
	started := time.Now()
	total := newTotal()
	var failures []report
	each(ctx, binary, o, func(r report) bool {
		total.add(r)
		if len(r.Wrong) > 0 {
			fmt.Printf("seed %d FAILED, log in %s\n", r.Seed, r.Log)
			for _, line := range r.Wrong[:min(len(r.Wrong), 5)] {
				fmt.Println("  " + line)
			}
			fmt.Printf("  again: %s\n", again(r.Seed, "all"))
			failures = append(failures, r)
		}
		return len(failures) < 10
	})
	total.print(time.Since(started), o.processes)
	for _, r := range failures[:min(len(failures), 3)] {
		shrink(ctx, binary, o, r)
	}
	return len(failures), ctx.Err()
}

// each runs seeds and hands their reports to f, one at a time, until that
// returns false, the options are satisfied or ctx ends.
func each(ctx context.Context, binary string, o options, f func(report) bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	end := time.Now().Add(o.lasts)
	var mu sync.Mutex
	next, enough := o.from, false
	take := func() (seed uint64, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if enough || ctx.Err() != nil || o.seeds > 0 && next >= o.from+uint64(o.seeds) || o.seeds == 0 && time.Now().After(end) {
			return 0, false
		}
		next++
		return next - 1, true
	}
	var wg sync.WaitGroup
	for range o.processes {
		wg.Go(func() {
			w := &worker{binary: binary, out: o.out}
			defer w.stop()
			for {
				seed, ok := take()
				if !ok {
					return
				}
				r := w.run(ctx, seed, "all")
				mu.Lock()
				if ctx.Err() == nil && !enough && !f(r) {
					enough = true
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

func again(seed uint64, keep string) string {
	return fmt.Sprintf("go test ./internal/sim -count=1 -run Simulation -v -seed=%d -keep=%s", seed, keep)
}

// A total sums up reports.
type total struct {
	seeds, terms       int
	faults             map[string]int
	takeover, recovery float64
}

func newTotal() *total { return &total{faults: make(map[string]int)} }

func (t *total) add(r report) {
	t.seeds++
	t.terms += r.Terms
	t.takeover, t.recovery = max(t.takeover, r.Takeover), max(t.recovery, r.Recovery)
	for kind, n := range r.Faults {
		t.faults[kind] += n
	}
}

func (t *total) print(took time.Duration, processes int) {
	all := 0
	var kinds []string
	for kind, n := range t.faults {
		all += n
		kinds = append(kinds, fmt.Sprintf("%7d  %s", n, kind))
	}
	// The most frequent first: the numbers are as wide as each other.
	for i := range kinds {
		for j := i + 1; j < len(kinds); j++ {
			if kinds[j] > kinds[i] {
				kinds[i], kinds[j] = kinds[j], kinds[i]
			}
		}
	}
	fmt.Printf("%d faults:\n%s\n", all, strings.Join(kinds, "\n"))
	fmt.Printf("%d seeds, %d terms in %.0f s: %.0f terms a second in %d processes\n", t.seeds, t.terms, took.Seconds(), float64(t.terms)/took.Seconds(), processes)
	fmt.Printf("worst takeover from a leader fallen silent: %.2f s; worst recovery when the faults end: %.2f s\n", t.takeover, t.recovery)
}

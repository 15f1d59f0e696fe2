// Command chaos lets real processes contend for one election while everything
// around them fails, and checks what they did.
//
//	go run ./chaos -for 10m              # the library
//	go run ./chaos -library concurrency  # the control experiment
//
// It starts a cluster of three etcd members, five candidates and their proxies:
// each member and each candidate is a process, this program started again. A
// nemesis stops, kills, cuts off and delays them; what it draws is decided by the
// seed, which is printed. The candidates write to registers in etcd and to a
// table of a database, guarded by their fences, go on with that after their terms
// have ended, and answer reads by their clocks alone. Each writes down what it
// does with the times of the machine's monotonic clock.
//
// The end of a run is a check of those histories:
//
//   - Two terms are never valid at one instant. (Whose key was taken away by force
//     is excused for at most a TTL.)
//   - Epochs rise, and neither etcd nor the table takes anything of a lower epoch
//     after a higher one.
//   - The registers are linearizable, reads by the clock included.
//   - Nothing acknowledged is lost, nothing refused is there.
//   - Somebody leads soon after the faults have stopped, every process campaigns
//     to the end, and no key and no lease is left.
//
// Exit status 1: a violation was found; the histories are kept. With -library
// concurrency it is the other way round: not to find two leaders at once is the
// failure, and so is, without -compare, not to find a write accepted from a
// deposed leader.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	for variable, part := range map[string]func(string) error{memberVar: runMember, candidateVar: runCandidate} {
		if text := os.Getenv(variable); text != "" {
			if err := part(text); err != nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n", variable, err)
				os.Exit(3)
			}
			return
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	switch {
	case errors.Is(err, errFound):
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(2)
	}
}

var errFound = errors.New("the run is not as it should be")

func parse() (config, error) {
	var c config
	var only string
	flag.DurationVar(&c.length, "for", 3*time.Minute, "how long the faults go on")
	flag.IntVar(&c.candidates, "candidates", 5, "processes that contend, from 2 to 9")
	flag.DurationVar(&c.ttl, "ttl", 3*time.Second, "of the leases: whole seconds, at least 2s")
	flag.Uint64Var(&c.seed, "seed", 0, "of the faults; default: a new one")
	flag.StringVar(&c.out, "out", "../.out/chaos", "folder for the report, and for the histories if they are kept")
	flag.StringVar(&c.library, "library", "tenure", "tenure or concurrency")
	flag.BoolVar(&c.compare, "compare", false, "with -library concurrency: compare the key's create revision in each write to etcd")
	flag.StringVar(&c.postgres, "postgres", "", "DSN of a database for the table, which is dropped first; default: a file of SQLite")
	flag.StringVar(&only, "only", "", "kinds of faults, separated by semicolons; default: all")
	flag.Parse()
	names := make([]string, len(troubles))
	for i, t := range troubles {
		names[i] = t.name
	}
	if only != "" {
		c.only = strings.Split(only, ";")
		for _, name := range c.only {
			if !slices.Contains(names, name) {
				return c, fmt.Errorf("-only: there is no fault %q; there are:\n  %s", name, strings.Join(names, "\n  "))
			}
		}
	}
	switch {
	case flag.NArg() > 0:
		return c, fmt.Errorf("unexpected argument %q", flag.Arg(0))
	case c.length < time.Second:
		return c, fmt.Errorf("-for is %v: it must be at least 1s", c.length)
	case c.candidates < 2 || c.candidates > 9:
		return c, fmt.Errorf("-candidates is %d: it must be from 2 to 9", c.candidates)
	case c.ttl < 2*time.Second || c.ttl%time.Second != 0:
		return c, fmt.Errorf("-ttl is %v: it must be whole seconds, at least 2s", c.ttl)
	case c.library != "tenure" && c.library != "concurrency":
		return c, fmt.Errorf("-library is %q: it must be tenure or concurrency", c.library)
	case c.compare && c.library != "concurrency":
		return c, errors.New("-compare is for -library concurrency")
	}
	if c.seed == 0 {
		c.seed = rand.Uint64N(1e9) + 1
	}
	return c, nil
}

func run(ctx context.Context) error {
	c, err := parse()
	if err != nil {
		return err
	}
	h := &harness{config: c, histories: filepath.Join(c.out, fmt.Sprintf("history-%d", c.seed))}
	if err := os.RemoveAll(h.histories); err != nil {
		return err
	}
	if err := os.MkdirAll(h.histories, 0o750); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(memory(), "chaos-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fmt.Printf("seed %d, %v, %s\n", c.seed, c.length, c.library)
	err = h.run(ctx, dir)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted; the histories are in %s", h.histories)
	case err != nil:
		return fmt.Errorf("%w; the histories are in %s", err, h.histories)
	}
	return h.judge()
}

// run does everything up to the end of the last process.
func (h *harness) run(ctx context.Context, dir string) error {
	defer h.close()
	if err := h.open(ctx, dir); err != nil {
		return err
	}
	looking, stop := context.WithCancel(ctx)
	var lookouts sync.WaitGroup
	defer lookouts.Wait()
	defer stop()
	lookouts.Go(func() { h.watch(looking) })
	if h.library == "tenure" {
		lookouts.Go(func() { h.observe(looking) })
	}
	if err := newNemesis(h).run(ctx); err != nil {
		return err
	}
	h.farewell(ctx)
	return h.collect(ctx)
}

// judge checks the histories and writes the report.
func (h *harness) judge() error {
	events, err := readHistory(h.histories)
	if err != nil {
		return err
	}
	r := newReport(h, events)
	r.violations = append(events.check(h.ttl), h.wrong...)
	slices.SortStableFunc(r.violations, func(a, b violation) int { return cmp.Compare(a.At, b.At) })
	r.print(os.Stdout)
	page := filepath.Join(h.out, "timeline.html")
	if h.library != "tenure" {
		page = filepath.Join(h.out, "timeline-control.html")
	}
	if err := r.writePage(page); err != nil {
		return err
	}
	fmt.Printf("\nwho led when: %s\n", page)
	bad := r.verdict()
	if bad == "" {
		fmt.Println("result: as it should be")
		return os.RemoveAll(h.histories)
	}
	if err := visualize(events, h.histories); err != nil {
		return err
	}
	fmt.Printf("result: FAILED: %s\nthe histories are in %s; the same faults again: -seed %d\n", bad, h.histories, h.seed)
	return errFound
}

// memory is a folder on a tmpfs, or else the usual one for temporary files.
func memory() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return os.TempDir()
}

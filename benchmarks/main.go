// Command benchmarks measures the library side by side with what a user would
// take instead, on one real cluster of three etcd members, in one run.
//
//	go run . -out results        # everything, in about half an hour
//	go run . -short              # what does not depend on the machine's speed
//	go run . -only handover,cut  # some sections
//
// It starts the cluster by itself: three processes of this program on loopback,
// with etcd's default timing, and their data in memory if there is a tmpfs. With
// -endpoints it uses another one.
//
// Absolute times say little on a busy machine, so every section runs its
// variants in turn, in an order drawn anew for each round, and gives medians and
// ratios. Exit status 1: a promise was broken that does not depend on speed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// config is what the sections are told.
type config struct {
	short   bool
	alone   bool
	cluster *cluster
	report  *report
}

// sections in the order of the report.
var sections = []struct {
	name string
	run  func(ctx context.Context, c *config) error
}{
	{"handover", handover},
	{"proposals", proposals},
	{"cut", cut},
	{"writes", writes},
	{"check", check},
	{"scale", scale},
	{"idle", idle},
	{"load", load},
}

func main() {
	if os.Getenv(memberEnv) != "" {
		if err := member(os.Getenv(memberEnv)); err != nil {
			fmt.Fprintln(os.Stderr, "etcd:", err)
			os.Exit(2)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	switch {
	case errors.Is(err, errBroken):
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "benchmarks:", err)
		os.Exit(2)
	}
}

var errBroken = errors.New("a promise was broken")

func run(ctx context.Context) error {
	var names []string
	for _, s := range sections {
		names = append(names, s.name)
	}
	short := flag.Bool("short", false, "fewer rounds: for the promises that do not depend on speed")
	only := flag.String("only", "", "run only these sections, of "+strings.Join(names, ","))
	endpoints := flag.String("endpoints", "", "client URLs of a cluster to use, separated by commas; default: one of our own")
	out := flag.String("out", "", "folder for results.md, results.json and the charts; default: only print")
	alone := flag.Bool("alone", false, "leave the peers out where a section does not need them: cut")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	wanted := names
	if *only != "" {
		wanted = strings.Split(*only, ",")
		for _, name := range wanted {
			if !slices.Contains(names, name) {
				return fmt.Errorf("-only: there is no section %q; there are %s", name, strings.Join(names, ", "))
			}
		}
	}
	c := &config{short: *short, alone: *alone, report: &report{Started: time.Now().UTC(), Machine: machine()}}
	if *endpoints != "" {
		c.cluster = &cluster{endpoints: strings.Split(*endpoints, ",")}
	} else {
		cl, err := startCluster(ctx)
		if err != nil {
			return fmt.Errorf("start etcd: %w", err)
		}
		defer cl.stop()
		c.cluster = cl
	}
	for _, s := range sections {
		if !slices.Contains(wanted, s.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "== %s\n", s.name)
		if err := s.run(ctx, c); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	c.report.Took = time.Since(c.report.Started).Round(time.Second).String()
	if err := c.report.write(os.Stdout, *out); err != nil {
		return err
	}
	if len(c.report.Broken) > 0 {
		return errBroken
	}
	return nil
}

func machine() string {
	model := "unknown processor"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%d x %s, %s/%s, %s", runtime.NumCPU(), model, runtime.GOOS, runtime.GOARCH, runtime.Version())
}

// memory is a folder on a tmpfs, or else the usual one for temporary files.
func memory() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return filepath.Clean(os.TempDir())
}

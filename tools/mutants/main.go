// Command mutants breaks the library on purpose, one line at a time, and checks
// that a test notices. It is how we know that the tests can fail.
//
//	go run -C tools/mutants .              # all of them
//	go run -C tools/mutants . margin fence # those whose name contains a word
//	go run -C tools/mutants . -check       # none, but say which no longer apply
//
// Each mutant of list.go is applied to a copy of the repository, compiled and
// tested with the test that has to turn red. A mutant survives if that test
// passes; one that no longer applies or compiles is a fault of the list. Either
// fails the command. The last line is the score.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

// A mutant is one deliberate fault.
type mutant struct {
	name     string // what is broken
	file     string // relative to the repository
	old, new string // old occurs exactly once
	test     string // the pattern for -run of the test that turns red
}

// cut stands for a test: the rounds of benchmarks/ in which the leader's client
// is cut off, against a cluster of real processes.
const cut = "benchmarks, section cut"

// testTimeout is generous: a mutant may well make a test hang.
const testTimeout = 2 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	check := flag.Bool("check", false, "try none, and say which no longer apply")
	flag.Parse()
	if *check {
		if err := checkList("../.."); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	survivors, err := run(ctx, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
	if survivors > 0 {
		os.Exit(1)
	}
}

func run(ctx context.Context, words []string) (faults int, err error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return 0, err
	}
	if _, err := os.Stat(filepath.Join(root, "elector.go")); err != nil {
		return 0, errors.New("run it in tools/mutants, as go run -C does")
	}
	dir, err := os.MkdirTemp("", "tenure-mutants-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if err := copyTree(root, dir); err != nil {
		return 0, err
	}
	tried := 0
	for _, m := range mutants {
		if !chosen(m, words) {
			continue
		}
		tried++
		start := time.Now()
		verdict, detail := m.try(ctx, dir)
		if ctx.Err() != nil {
			return faults, ctx.Err()
		}
		if verdict != "killed" {
			faults++
		}
		fmt.Printf("%-9s %5.1fs  %s (%s)\n", verdict, time.Since(start).Seconds(), m.name, m.test)
		if detail != "" {
			fmt.Println(detail)
		}
	}
	fmt.Printf("mutants killed: %d of %d\n", tried-faults, tried)
	return faults, nil
}

// checkList returns an error that names every mutant whose text to replace is
// not where it was.
func checkList(root string) error {
	var faults []error
	for _, m := range mutants {
		if _, err := m.source(root); err != nil {
			faults = append(faults, fmt.Errorf("mutant %q: %w", m.name, err))
		}
	}
	return errors.Join(faults...)
}

// source returns the file that m changes, as it is.
func (m mutant) source(root string) (string, error) {
	source, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		return "", fmt.Errorf("the text to replace occurs %d times in %s", n, m.file)
	}
	return string(source), nil
}

func chosen(m mutant, words []string) bool {
	for _, w := range words {
		if strings.Contains(m.name, w) {
			return true
		}
	}
	return len(words) == 0
}

// try applies m, runs its test and takes m back.
func (m mutant) try(ctx context.Context, dir string) (verdict, detail string) {
	path := filepath.Join(dir, m.file)
	source, err := m.source(dir)
	if err != nil {
		return "broken", err.Error()
	}
	if err := os.WriteFile(path, []byte(strings.Replace(source, m.old, m.new, 1)), 0o600); err != nil {
		return "broken", err.Error()
	}
	defer os.WriteFile(path, []byte(source), 0o600) //nolint:errcheck // the copy is thrown away

	if m.test == cut {
		return m.cut(ctx, dir)
	}
	binary := filepath.Join(dir, "mutant.test")
	out, err := command(ctx, dir, "go", "test", "-c", "-o", binary, "./"+filepath.Dir(m.file))
	if err != nil {
		return "broken", tail(out)
	}
	out, err = command(ctx, filepath.Join(dir, filepath.Dir(m.file)), binary, "-test.run", m.test, "-test.timeout", testTimeout.String(), "-test.count=1")
	switch {
	case err != nil:
		return "killed", ""
	case strings.Contains(out, "no tests to run"):
		return "broken", "no test matches " + m.test
	default:
		return "SURVIVED", ""
	}
}

// cut runs the rounds until two have led at once, or three times in vain.
func (m mutant) cut(ctx context.Context, dir string) (verdict, detail string) {
	for range 3 {
		out, err := command(ctx, filepath.Join(dir, "benchmarks"), "go", "run", ".", "-only", "cut", "-short", "-alone")
		switch {
		case strings.Contains(out, "two led at once"):
			return "killed", ""
		case err != nil:
			return "broken", tail(out)
		}
	}
	return "SURVIVED", ""
}

func command(ctx context.Context, dir, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, testTimeout+time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func tail(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// copyTree copies the root module and the benchmarks, which is all that is needed.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if rel != "." && rel != "benchmarks" && (strings.HasPrefix(d.Name(), ".") || exists(filepath.Join(path, "go.mod"))) {
				return fs.SkipDir // another module
			}
			return os.MkdirAll(filepath.Join(to, rel), 0o750)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), data, 0o600)
	})
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A report is what a simulated seed comes to.
type report struct {
	Seed     uint64
	Events   int // of the whole plan
	Terms    int
	Faults   map[string]int
	Takeover float64 // seconds
	Recovery float64
	Wrong    []string
	Log      string // the file
}

// recycle is how many seeds a process runs before another one takes its place.
const recycle = 300

// A worker is a process that simulates seeds, one after the other. A simulation
// that cannot end kills it, which fails that seed.
type worker struct {
	binary, out string

	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  *bufio.Scanner
	stderr bytes.Buffer
	seeds  int
}

func (w *worker) start(ctx context.Context) error {
	w.cmd = exec.CommandContext(ctx, w.binary, "-test.run=^TestSimulation$", "-test.cpu=1", "-test.timeout=0", "-serve", "-log="+w.out)
	w.cmd.Env = append(os.Environ(), "GOGC=400")
	w.stderr.Reset()
	w.cmd.Stderr = &w.stderr
	w.seeds = 0
	var err error
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	w.lines = bufio.NewScanner(out)
	w.lines.Buffer(nil, 16<<20)
	return w.cmd.Start()
}

func (w *worker) stop() {
	if w.cmd == nil {
		return
	}
	_ = w.in.Close()
	for w.lines.Scan() {
	}
	// Its status says that a seed has failed, which the report said before.
	_ = w.cmd.Wait()
	w.cmd = nil
}

// run simulates a seed with the events to keep of its plan.
func (w *worker) run(ctx context.Context, seed uint64, keep string) report {
	failed := func(format string, args ...any) report {
		return report{Seed: seed, Wrong: []string{fmt.Sprintf(format, args...)}, Log: w.log(seed)}
	}
	if w.seeds >= recycle {
		w.stop()
	}
	if w.cmd == nil {
		if err := w.start(ctx); err != nil {
			w.cmd = nil
			return failed("the process has not started: %v", err)
		}
	}
	w.seeds++
	if _, err := fmt.Fprintln(w.in, seed, keep); err == nil {
		for w.lines.Scan() {
			text, ok := strings.CutPrefix(w.lines.Text(), "report ")
			if !ok {
				continue
			}
			var r report
			if err := json.Unmarshal([]byte(text), &r); err != nil {
				return failed("the report cannot be read: %v", err)
			}
			if len(r.Wrong) == 0 {
				_ = os.Remove(r.Log)
			}
			return r
		}
	}
	w.stop()
	// The log ends where the simulation did; the stacks follow it.
	if f, err := os.OpenFile(w.log(seed), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600); err == nil {
		_, _ = f.Write(w.stderr.Bytes())
		_ = f.Close()
	}
	first, _, _ := strings.Cut(w.stderr.String(), "\n")
	return failed("the process has ended: %s", first)
}

func (w *worker) log(seed uint64) string {
	return filepath.Join(w.out, fmt.Sprintf("seed-%d.log", seed))
}

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/examples/internal/embedded"
)

// A process is a candidate that the director has started.
type process struct {
	name  string
	cmd   *exec.Cmd
	input io.Closer
}

// A told is an event of a candidate.
type told struct {
	event
	by *process
}

// A director starts the candidates, pauses one, and checks what was written.
type director struct {
	start  time.Time
	prefix string
	client *clientv3.Client
	events chan told
	states chan tenure.Status

	procs   []*process
	leader  *process // as the candidates have told
	epoch   tenure.Epoch
	since   time.Time
	terms   []string             // in order, for the summary
	writes  map[tenure.Epoch]int // acknowledged
	lastAt  map[tenure.Epoch]time.Time
	refused int
}

func direct(ctx context.Context, etcd *embedded.Endpoints, prefix string) error {
	if pause == nil {
		return errors.New("this system cannot pause a process (SIGSTOP), which the demo is about")
	}
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	endpoints, stop, err := etcd.Start(ctx)
	if err != nil {
		return err
	}
	defer stop()
	client, err := embedded.Client(endpoints)
	if err != nil {
		return err
	}
	defer client.Close()
	d := &director{
		start: time.Now(), prefix: prefix, client: client,
		events: make(chan told, 100), states: make(chan tenure.Status, 100), writes: make(map[tenure.Epoch]int), lastAt: make(map[tenure.Epoch]time.Time),
	}
	if prefix == "" {
		d.prefix = fmt.Sprintf("/tenure-demo/%d-%d", os.Getpid(), d.start.Unix())
	}
	history := client.Watch(ctx, d.prefix+"/counter")
	defer d.sweep()
	defer d.killAll()
	if err := d.play(ctx, endpoints); err != nil {
		return err
	}
	return d.check(ctx, history)
}

func (d *director) play(ctx context.Context, endpoints []string) error {
	d.say("", "The guarded resource is a counter in etcd. Each lease lasts %v; a term ends itself a tenth earlier.", ttl)
	for _, name := range []string{"ada", "ben", "cleo"} {
		if err := d.launch(ctx, name, endpoints); err != nil {
			return err
		}
	}
	go func() { // who only wants to know needs no candidate
		for status, err := range tenure.Observe(ctx, d.client, d.prefix+"/leader") {
			if err == nil {
				d.states <- status
			}
		}
	}()

	d.step("ACQUIRE", "three candidates, one key, one winner")
	if err := d.until(ctx, "a leader", func() bool { return d.leader != nil }); err != nil {
		return err
	}
	d.step("RENEW", "the leader counts, and renews its lease every %v", ttl/3)
	if err := d.wait(ctx, 3*time.Second); err != nil {
		return err
	}

	old, oldEpoch, paused := d.leader, d.epoch, time.Now()
	d.step("EXPIRE", "%s is paused, as by a long garbage collection: nothing in its process runs, not even its clock watch", old.name)
	if err := pause(old.cmd.Process); err != nil {
		return err
	}
	d.step("CONTEST", "etcd deletes the key when the lease has run out, and the followers contend")
	if err := d.until(ctx, "a take-over", func() bool { return d.epoch > oldEpoch }); err != nil {
		return err
	}
	d.say("", "%s took over %.1f s after the pause began, with epoch %d after %d", d.leader.name, time.Since(paused).Seconds(), d.epoch, oldEpoch)
	if err := d.wait(ctx, 2*time.Second); err != nil {
		return err
	}

	d.step("FENCE", "%s wakes up in the middle of its work, after %.1f s, and goes on to write", old.name, time.Since(paused).Seconds())
	if err := resume(old.cmd.Process); err != nil {
		return err
	}
	if err := d.until(ctx, "the refusals", func() bool { return d.refused >= 2 }); err != nil {
		return err
	}
	if err := d.wait(ctx, time.Second); err != nil {
		return err
	}

	leaving, last := d.leader, d.epoch
	d.step("RESUME", "%s is asked to go: it ends its work, then resigns, and another candidate resumes", leaving.name)
	if err := leaving.input.Close(); err != nil {
		return err
	}
	if err := d.until(ctx, "a hand-over", func() bool { return d.epoch > last }); err != nil {
		return err
	}
	d.say("", "%.1f ms from the last write of %s to the new term of %s", d.since.Sub(d.lastAt[last]).Seconds()*1000, leaving.name, d.leader.name)
	return d.wait(ctx, time.Second)
}

// launch starts a candidate: this program once more.
func (d *director) launch(ctx context.Context, name string, endpoints []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p := &process{name: name, cmd: exec.CommandContext(ctx, self, "-candidate", name, "-prefix", d.prefix, "-endpoints", strings.Join(endpoints, ","))}
	p.cmd.Stderr = os.Stderr
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	d.procs = append(d.procs, p)
	go func() {
		for in := bufio.NewScanner(out); in.Scan(); {
			var e event
			if json.Unmarshal(in.Bytes(), &e) == nil {
				d.events <- told{e, p}
			}
		}
	}()
	return nil
}

// wait prints what happens for a while.
func (d *director) wait(ctx context.Context, t time.Duration) error {
	timer := time.NewTimer(t)
	defer timer.Stop()
	over := false
	return d.follow(ctx, timer.C, &over, func() bool { return over })
}

// until prints what happens until cond holds.
func (d *director) until(ctx context.Context, what string, cond func() bool) error {
	if err := d.follow(ctx, nil, nil, cond); err != nil {
		return fmt.Errorf("waiting for %s: %w", what, err)
	}
	return nil
}

func (d *director) follow(ctx context.Context, timer <-chan time.Time, over *bool, cond func() bool) error {
	for !cond() {
		select {
		case <-ctx.Done():
			return ctx.Err()

		case <-timer:
			*over = true

		case e := <-d.events:
			d.hear(e)

		case s := <-d.states:
			switch s.State {
			case tenure.Led:
				d.say("observer", "the leader is %s, epoch %d", s.Leader.Identity, s.Leader.Fence.Epoch)
			default:
				d.say("observer", "%s", s.State)
			}
		}
	}
	return nil
}

// hear takes note of an event and prints it.
func (d *director) hear(e told) {
	switch e.Kind {
	case "leads":
		d.leader, d.epoch, d.since = e.by, e.Epoch, e.At
		d.terms = append(d.terms, e.by.name)
	case "wrote":
		d.writes[e.Epoch]++
		d.lastAt[e.Epoch] = e.At
		if d.writes[e.Epoch]%10 != 0 {
			return // ten a second would hide the rest
		}
		e.Text = "has counted to " + e.Text
	case "refused":
		d.refused++
	}
	at := fmt.Sprintf("%6.2fs", e.At.Sub(d.start).Seconds())
	if e.Epoch > 0 {
		e.Text = fmt.Sprintf("[epoch %d] %s", e.Epoch, e.Text)
	}
	fmt.Printf("%s  %-8s  %s\n", at, e.by.name, e.Text)
}

func (d *director) say(who, format string, args ...any) {
	fmt.Printf("%6.2fs  %-8s  %s\n", time.Since(d.start).Seconds(), who, fmt.Sprintf(format, args...))
}

func (d *director) step(name, format string, args ...any) {
	fmt.Printf("\n%s: %s\n", name, fmt.Sprintf(format, args...))
}

// check reads the counter's whole history from etcd and compares it with what
// the fence promises.
func (d *director) check(ctx context.Context, history clientv3.WatchChan) error {
	resp, err := d.client.Get(ctx, d.prefix+"/counter")
	if err != nil {
		return err
	}
	if len(resp.Kvs) == 0 {
		return errors.New("nobody has written anything")
	}
	final := resp.Kvs[0]
	gapless, n := true, 0
	for seen := int64(0); seen < final.ModRevision; {
		batch, ok := <-history
		if !ok || batch.Err() != nil {
			return fmt.Errorf("read the counter's history: %w", batch.Err())
		}
		for _, ev := range batch.Events {
			seen = ev.Kv.ModRevision
			n++
			if v, err := strconv.Atoi(string(ev.Kv.Value)); err != nil || v != n {
				gapless = false
			}
		}
	}
	acknowledged := 0
	for _, w := range d.writes {
		acknowledged += w
	}

	fmt.Printf("\nSUMMARY\n")
	ok := true
	report := func(good bool, format string, args ...any) {
		mark := "ok  "
		if !good {
			mark, ok = "FAIL", false
		}
		fmt.Printf("  %s  %s\n", mark, fmt.Sprintf(format, args...))
	}
	epochs := slices.Sorted(maps.Keys(d.writes))
	var terms []string
	for i, e := range epochs {
		terms = append(terms, fmt.Sprintf("%s (epoch %d, %d writes)", d.terms[i], e, d.writes[e]))
	}
	report(len(epochs) == 3, "three terms, each with a greater epoch: %s", strings.Join(terms, ", "))
	report(gapless, "the counter went from 1 to %d without a gap or a repetition", n)
	report(acknowledged == n || acknowledged == n-1, "%d of %d writes in etcd were acknowledged to their writers", acknowledged, n)
	report(d.refused == 2, "the old leader's %d attempts after its pause were refused", d.refused)
	if !ok {
		return errors.New("a check failed")
	}
	return nil
}

func (d *director) killAll() {
	for _, p := range d.procs {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

// sweep removes the demo's keys.
func (d *director) sweep() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, _ = d.client.Delete(ctx, d.prefix+"/", clientv3.WithPrefix())
}

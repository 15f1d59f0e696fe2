package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"time"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fenceenv"
)

// look is how often a command that was told to stop is looked at.
const look = 20 * time.Millisecond

func run(ctx context.Context, args []string, _ io.Writer) error {
	fs, e, key := flagSet("run")
	identity := fs.String("identity", "", "`name` of this candidate; default: host, process id and a random part")
	address := fs.String("address", "", "published with the leadership")
	ttl := fs.Duration("ttl", 0, "time to live of the lease; 0: 10s")
	margin := fs.Duration("margin", 0, "how long before the lease's end the term ends, half of which is the command's to stop after a loss; 0: a tenth of the TTL")
	stopTimeout := fs.Duration("stop-timeout", 30*time.Second, "from SIGTERM to SIGKILL, as long as the lease is renewed")
	once := fs.Bool("once", false, "do not campaign again after a loss")
	if err := parse(fs, args, key, -1); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return fmt.Errorf("%w: run needs a command after its flags", errUsage)
	}
	path, err := exec.LookPath(fs.Arg(0))
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	client, err := e.client()
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	elector, err := tenure.New(client, *key, &tenure.Options{Identity: *identity, Address: *address, TTL: *ttl, Margin: *margin})
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	for {
		term, err := elector.Campaign(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil // it was told to stop
			}
			return err
		}
		j := job{term: term, args: append([]string{path}, fs.Args()[1:]...), stopTimeout: *stopTimeout, grace: *margin / 2}
		if j.grace == 0 {
			j.grace = elector.Status().TTL / 20
		}
		ended, err := j.run(ctx)
		if resigned := term.Resign(); resigned != nil { // the group is gone
			_, _ = fmt.Fprintln(os.Stderr, prefixed(resigned))
		}
		switch {
		case ended, *once, !errors.Is(err, tenure.ErrTermEnded):
			return err
		case ctx.Err() != nil:
			return nil
		}
		_, _ = fmt.Fprintf(os.Stderr, "%s: campaigning again\n", prefixed(err))
	}
}

// job is the command of one term.
type job struct {
	term        *tenure.Term
	args        []string
	stopTimeout time.Duration
	grace       time.Duration // after the term's limit, and before the lease's end
}

// run runs the command until it ends by itself, until ctx ends or the term does.
// In the first case ended is true, and the error that of the command; in the
// second there is none; in the third it is the reason why the term has ended. The
// command's process group is gone when run returns.
func (j *job) run(ctx context.Context) (ended bool, err error) {
	env, err := fenceenv.Append(os.Environ(), j.term.Fence())
	if err != nil {
		return false, err
	}
	cmd := &exec.Cmd{Path: j.args[0], Args: j.args, Env: env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	prepare(cmd)
	started, exited, gone := make(chan error, 1), make(chan error, 1), make(chan struct{})
	go func() {
		// What makes the command die with us is bound to the thread that has
		// started it, so that thread has to live as long.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			exited <- cmd.Wait()
			close(gone)
		}
	}()
	if err := <-started; err != nil {
		return false, fmt.Errorf("start the command: %w", err)
	}
	defer clearGroup(cmd)

	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passedOn...)
	defer signal.Stop(signals)
	for {
		select {
		case err := <-exited:
			return true, statusOfCommand(err)

		case s := <-signals:
			_ = cmd.Process.Signal(s) // it may just have ended

		case <-ctx.Done():
			j.stop(cmd, gone)
			return false, nil

		case <-j.term.Context().Done():
			j.stop(cmd, gone)
			return false, context.Cause(j.term.Context())
		}
	}
}

// stop ends the command in time. No request stands between the clock and the kill.
func (j *job) stop(cmd *exec.Cmd, gone <-chan struct{}) {
	terminate(cmd)
	latest := time.Now().Add(j.stopTimeout)
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		select {
		case <-gone:
			return

		case now := <-tick.C:
			if now.After(latest) || j.late(now) {
				clearGroup(cmd)
				<-gone
				return
			}
		}
	}
}

// late reports whether another candidate can win before long. After an expiry that
// is when the lease runs out; whoever has deleted or replaced the key may have let
// one in already.
func (j *job) late(now time.Time) bool {
	switch err := j.term.Err(); {
	case err == nil:
		return false
	case errors.Is(err, tenure.LeaseExpired), errors.Is(err, tenure.RenewalRefused):
		return now.After(j.term.ValidUntil().Add(j.grace - look))
	default:
		return true
	}
}

// statusOfCommand is the error that makes tenure end as the command did.
func statusOfCommand(err error) error {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return err
	}
	if s, ok := signalOf(exit.ProcessState); ok {
		return exitStatus(128 + s)
	}
	return exitStatus(exit.ExitCode())
}

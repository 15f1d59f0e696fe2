//go:build darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd

package fencefile

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"
)

const supported = true

// lock waits until no other process holds the lock. The waiting flock of the
// system knows no context, so this one asks again and again.
func lock(ctx context.Context, file *os.File) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := flock(file, syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()

		case <-time.After(wait):
		}
	}
}

func unlock(file *os.File) error { return flock(file, syscall.LOCK_UN) }

// flock keeps the file from being closed, and its number from being used for
// another one, during the call.
func flock(file *os.File, how int) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var locked error
	if err := conn.Control(func(fd uintptr) { locked = syscall.Flock(int(fd), how) }); err != nil {
		return err
	}
	return locked
}

//go:build unix

package main

import (
	"os"
	"syscall"
)

func init() {
	pause = func(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }
	resume = func(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
}

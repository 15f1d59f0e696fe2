//go:build unix && !linux

package main

import "syscall"

// bind does nothing: this system cannot.
func bind(*syscall.SysProcAttr) {}

package main

import "syscall"

// bind makes the command die with the thread that has started it.
func bind(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

//go:build !unix

package main

import (
	"os"
	"os/exec"
)

// passedOn: there are no such signals here.
var passedOn []os.Signal

// prepare does nothing: there are no process groups here, so children of the
// command are on their own.
func prepare(*exec.Cmd) {}

// terminate kills the command: it cannot be asked.
func terminate(cmd *exec.Cmd) { _ = cmd.Process.Kill() }

func clearGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }

func signalOf(*os.ProcessState) (int, bool) { return 0, false }

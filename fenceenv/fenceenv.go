// Package fenceenv hands a fence to the programs that a leader starts, in
// environment variables:
//
//	TENURE_FENCE   the text form, as in 42:32698f2a0b7c5d03:/scheduler/leader
//	TENURE_KEY     the election's key, as in /scheduler/leader
//	TENURE_EPOCH   the epoch in decimal, from 1 to 2^63-1, as in 42
//	TENURE_LEASE   the lease id in lower-case hexadecimal, as in 32698f2a0b7c5d03
//
// TENURE_FENCE is the one that counts, and all that a program needs which passes
// the fence on; the others spare a shell script the taking apart. A program in Go
// asks [Fence].
//
// A fence is no leash: the program goes on when the term has ended, and only what
// checks its fence refuses it. To stop it as well, start it with
// [os/exec.CommandContext] and the context of the term's work, and give it no
// chance to outlive its parent where the system can do that (Pdeathsig on Linux).
package fenceenv

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/tenure-go/tenure"
)

const (
	fenceVar = "TENURE_FENCE"
	keyVar   = "TENURE_KEY"
	epochVar = "TENURE_EPOCH"
	leaseVar = "TENURE_LEASE"
)

// Append returns env, in the form of [os.Environ], with the variables of fence
// behind it, where they win over others of the same name:
//
//	cmd.Env, err = fenceenv.Append(os.Environ(), term.Fence())
//
// The error says that fence is not valid, or that its key has a zero byte, which
// no variable can hold.
func Append(env []string, fence tenure.Fence) ([]string, error) {
	text, err := fence.MarshalText()
	if err != nil {
		return nil, err
	}
	if strings.ContainsRune(fence.Key, 0) {
		return nil, fmt.Errorf("fenceenv: Fence.Key is %q: the environment holds no zero byte", fence.Key)
	}
	return append(env[:len(env):len(env)],
		fenceVar+"="+string(text),
		keyVar+"="+fence.Key,
		epochVar+"="+strconv.FormatInt(int64(fence.Epoch), 10),
		leaseVar+"="+strconv.FormatUint(uint64(fence.Lease), 16),
	), nil
}

// Fence returns the fence that this process was started with. The error says that
// TENURE_FENCE is missing or malformed; a process that must have a fence and has
// none does not guess.
func Fence() (tenure.Fence, error) {
	text, ok := os.LookupEnv(fenceVar)
	if !ok {
		return tenure.Fence{}, fmt.Errorf("fenceenv: %s is not set", fenceVar)
	}
	var fence tenure.Fence
	if err := fence.UnmarshalText([]byte(text)); err != nil {
		return tenure.Fence{}, fmt.Errorf("fenceenv: %s: %w", fenceVar, err)
	}
	return fence, nil
}

//go:build !(darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd)

package fencefile

import (
	"context"
	"errors"
	"os"
)

// supported keeps Open from handing out a Log that could not lock.
const supported = false

func lock(context.Context, *os.File) error { return errors.ErrUnsupported }

func unlock(*os.File) error { return errors.ErrUnsupported }

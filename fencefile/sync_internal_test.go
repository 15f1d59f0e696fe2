//go:build darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd

package fencefile

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure"
)

var late = tenure.Fence{Key: "k", Epoch: 2, Lease: 1}

// A disk that fails to sync once has perhaps dropped the data, and does not say
// so a second time.
func TestFailedSync(t *testing.T) {
	log, err := Open(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	defer log.Close()
	sync, failed := log.sync, errors.New("input/output error")
	log.sync = func() error { return failed }
	err = log.Append(t.Context(), late, []byte("perhaps"))
	require.ErrorIs(t, err, tenure.ErrUnknownOutcome)
	require.ErrorIs(t, err, failed)
	log.sync = sync
	require.ErrorIs(t, log.Append(t.Context(), late, []byte("x")), tenure.ErrUnknownOutcome)
	require.ErrorIs(t, log.Seal(t.Context(), late), tenure.ErrUnknownOutcome)
}

// What another process has written may not be on the disk yet, and a seal must
// not build on it.
func TestSealSyncsWhatOthersHaveWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	writer, err := Open(path)
	require.NoError(t, err)
	defer writer.Close()
	require.NoError(t, writer.Append(t.Context(), late, []byte("x")))

	log, err := Open(path)
	require.NoError(t, err)
	defer log.Close()
	syncs := 0
	log.sync = func() error { syncs++; return nil }
	require.NoError(t, log.Seal(t.Context(), late))
	require.Equal(t, 1, syncs)
	require.NoError(t, log.Do(t.Context(), late, func() error { return nil }))
	require.Equal(t, 1, syncs, "it is there now")
}

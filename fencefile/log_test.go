//go:build darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd

package fencefile_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fencefile"
)

// A process that is killed is this program, started with these variables.
const (
	childVar = "FENCEFILE_TEST_CHILD"
	pathVar  = "FENCEFILE_TEST_PATH"
)

func TestMain(m *testing.M) {
	if what := os.Getenv(childVar); what != "" {
		if err := child(what, os.Getenv(pathVar)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child tells on its standard output what it has done, until it is killed.
func child(what, path string) error {
	log, err := fencefile.Open(path)
	if err != nil {
		return err
	}
	ctx := context.Background()
	if what == "hold" {
		return log.Do(ctx, fence(1, 1), func() error {
			fmt.Println("held")
			select {}
		})
	}
	epoch, err := strconv.Atoi(what)
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		value := fmt.Sprintf("%d.%d.%s", epoch, i, strings.Repeat("x", i%7000))
		if err := log.Append(ctx, fence(epoch, 1), []byte(value)); err != nil {
			return err
		}
		fmt.Println(value)
	}
}

func fence(epoch, lease int) tenure.Fence {
	return tenure.Fence{Key: "/scheduler/leader", Epoch: tenure.Epoch(epoch), Lease: clientv3.LeaseID(lease)}
}

// folder is one where to sync takes no time, if there is one: these tests sync a
// thousand times, and what a disk does with that is not what they ask.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "fencefile") //nolint:usetesting // in memory
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func open(t testing.TB, path string) *fencefile.Log {
	t.Helper()
	log, err := fencefile.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, log.Close()) })
	return log
}

func fresh(t testing.TB) (*fencefile.Log, string) {
	t.Helper()
	path := filepath.Join(folder(t), "log")
	return open(t, path), path
}

// contents are the data of a log.
func contents(t testing.TB, log *fencefile.Log) []string {
	t.Helper()
	var all []string
	for r, err := range log.Records(t.Context()) {
		require.NoError(t, err)
		all = append(all, string(r.Data))
	}
	return all
}

func requireFenced(t testing.TB, err error, seen tenure.Fence) {
	t.Helper()
	require.ErrorIs(t, err, tenure.ErrFenced)
	leader, ok := tenure.LeaderOf(err)
	require.True(t, ok)
	require.Equal(t, seen, leader.Fence)
}

func TestLaw(t *testing.T) {
	ctx := t.Context()
	log, path := fresh(t)
	require.Empty(t, contents(t, log))
	require.NoError(t, log.Append(ctx, fence(5, 1), []byte("a\nb\x00")))
	require.NoError(t, log.Append(ctx, fence(5, 1), nil))
	other := open(t, path)
	requireFenced(t, other.Append(ctx, fence(4, 1), []byte("old")), fence(5, 1))
	requireFenced(t, other.Append(ctx, fence(5, 2), []byte("restored")), fence(5, 1))
	requireFenced(t, other.Do(ctx, fence(4, 1), func() error { t.Fatal("work of an old term"); return nil }), fence(5, 1))
	require.NoError(t, other.Seal(ctx, fence(1<<62, -1)))
	require.NoError(t, other.Seal(ctx, fence(1<<62, -1)))
	requireFenced(t, log.Append(ctx, fence(5, 1), []byte("late")), fence(1<<62, -1))
	requireFenced(t, log.Seal(ctx, fence(5, 1)), fence(1<<62, -1))
	require.NoError(t, log.Append(ctx, fence(1<<62, -1), []byte("new")))

	for want, err := range map[string]error{
		"Fence.Epoch is 0":         log.Append(ctx, fence(0, 1), nil),
		"Fence.Lease is 0":         log.Seal(ctx, fence(1, 0)),
		`a fence of "/other" at a`: log.Seal(ctx, tenure.Fence{Key: "/other", Epoch: 1 << 62, Lease: 1}),
		"16777217 bytes of data":   log.Append(ctx, fence(1<<62, -1), make([]byte, fencefile.MaxData+1)),
		"the line of a record has": open(t, filepath.Join(folder(t), "log")).Seal(ctx, tenure.Fence{Key: strings.Repeat("%", 30_000), Epoch: 1, Lease: 1}),
	} {
		require.ErrorContains(t, err, want)
		require.NotErrorIs(t, err, tenure.ErrFenced)
	}
	require.Equal(t, []string{"a\nb\x00", "", "new"}, contents(t, log))
	for r, err := range log.Records(ctx) {
		require.NoError(t, err)
		require.Equal(t, fence(5, 1), r.Fence)
		break
	}
	require.NoError(t, log.Append(ctx, fence(1<<62, -1), make([]byte, fencefile.MaxData)))
}

// A record that was not written to its end is none, wherever it ends and whatever
// the blocks hold that were not written. The next writer takes its place.
func TestTornTail(t *testing.T) {
	ctx := t.Context()
	log, path := fresh(t)
	require.NoError(t, log.Append(ctx, fence(1, 1), []byte("first")))
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, log.Append(ctx, fence(2, 1), append([]byte("second\n"), whole...)))
	both, err := os.ReadFile(path)
	require.NoError(t, err)

	clean, cleanPath := fresh(t)
	require.NoError(t, clean.Append(ctx, fence(1, 1), []byte("first")))
	require.NoError(t, clean.Append(ctx, fence(1, 1), []byte("third")))
	want, err := os.ReadFile(cleanPath)
	require.NoError(t, err)

	tails := [][]byte{[]byte("\n"), []byte("nonsense"), make([]byte, 100), []byte("\n\n3:1:/x 5 0\nabc"), bytes.Repeat([]byte{'x'}, 200_000)}
	for n := range len(both) - len(whole) {
		tail := bytes.Clone(both[len(whole):])
		tails = append(tails, tail[:n])
		zeros := bytes.Clone(tail)
		clear(zeros[n:])
		tails = append(tails, zeros, append(make([]byte, n+1), tail[n+1:]...))
	}
	for i, tail := range tails {
		path := filepath.Join(folder(t), "log")
		require.NoError(t, os.WriteFile(path, append(bytes.Clone(whole), tail...), 0o600))
		log := open(t, path)
		require.Equal(t, []string{"first"}, contents(t, log), "tail %d: %q", i, tail)
		require.NoError(t, log.Append(ctx, fence(1, 1), []byte("third")), "the torn epoch was never accepted")
		require.Equal(t, []string{"first", "third"}, contents(t, log))
		require.Equal(t, []string{"first", "third"}, contents(t, open(t, path)))
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, want, got, "nothing of tail %d is left", i)
	}
}

// A damaged record with a whole one behind it was once written to its end.
// Nothing may be cut off then.
func TestDamageIsNoTornTail(t *testing.T) {
	ctx := t.Context()
	log, path := fresh(t)
	require.NoError(t, log.Append(ctx, fence(1, 1), []byte("first")))
	info, err := os.Stat(path)
	require.NoError(t, err)
	first := int(info.Size())
	require.NoError(t, log.Append(ctx, fence(2, 1), bytes.Repeat([]byte("x"), 70_000)))
	require.NoError(t, log.Append(ctx, fence(3, 1), []byte("third")))
	sound, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, at := range []int{0, 1, 20, first - 1, first, first + 25, first + 30, first + 50_000} {
		damaged := bytes.Clone(sound)
		damaged[at] ^= 1
		broken := filepath.Join(folder(t), "log")
		require.NoError(t, os.WriteFile(broken, damaged, 0o600))
		require.ErrorIs(t, open(t, broken).Append(ctx, fence(4, 1), []byte("x")), fencefile.ErrCorrupt, "damaged at %d", at)
		for _, err := range open(t, broken).Records(ctx) {
			require.ErrorIs(t, err, fencefile.ErrCorrupt)
		}
		after, err := os.ReadFile(broken)
		require.NoError(t, err)
		require.Equal(t, damaged, after)
	}

	// Damage that comes while the log is open shows when it is read again.
	damaged := bytes.Clone(sound)
	damaged[first+100] ^= 1
	require.NoError(t, os.WriteFile(path, damaged, 0o600))
	var last error
	for _, err := range log.Records(ctx) {
		last = err
	}
	require.ErrorIs(t, last, fencefile.ErrCorrupt)
}

func TestFileMustStayItself(t *testing.T) {
	ctx := t.Context()
	log, path := fresh(t)
	require.NoError(t, log.Append(ctx, fence(1, 1), []byte("first")))
	require.NoError(t, os.Rename(path, path+".1"))
	require.ErrorContains(t, log.Append(ctx, fence(1, 1), nil), "the log is gone")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.ErrorContains(t, log.Append(ctx, fence(1, 1), nil), "has been replaced by another file")
	require.NoError(t, os.Rename(path+".1", path))
	require.NoError(t, log.Append(ctx, fence(1, 1), nil))
	require.NoError(t, os.Truncate(path, 10))
	require.ErrorIs(t, log.Append(ctx, fence(1, 1), nil), fencefile.ErrCorrupt)

	_, err := fencefile.Open(filepath.Join(folder(t), "no folder", "log"))
	require.ErrorIs(t, err, os.ErrNotExist)
	closed, err := fencefile.Open(path)
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	require.ErrorIs(t, closed.Seal(ctx, fence(1, 1)), os.ErrClosed)
}

// Whoever waits for the lock waits as long as its context, be it held by another
// Log or by this one.
func TestWaitingEndsWithTheContext(t *testing.T) {
	log, path := fresh(t)
	waiters := map[string]*fencefile.Log{"the same": log, "another": open(t, path)}
	failed := errors.New("from work")
	err := log.Do(t.Context(), fence(1, 1), func() error {
		for name, waiter := range waiters {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			require.ErrorIs(t, waiter.Append(ctx, fence(2, 1), nil), context.DeadlineExceeded, name)
			for _, err := range waiter.Records(ctx) {
				require.ErrorIs(t, err, context.DeadlineExceeded, name)
			}
			cancel()
		}
		return failed
	})
	require.Equal(t, failed, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, log.Append(ended, fence(2, 1), nil), context.Canceled)
	require.NoError(t, log.Append(t.Context(), fence(1, 1), []byte("nobody with a higher epoch came through")))
}

func TestConcurrentWriters(t *testing.T) {
	log, path := fresh(t)
	logs := []*fencefile.Log{log, open(t, path), open(t, path)}
	var group sync.WaitGroup
	var mu sync.Mutex
	want := make(map[string]bool)
	for i := range 12 {
		group.Go(func() {
			for n := range 20 {
				value := fmt.Sprintf("%d.%d", i, n)
				err := logs[i%len(logs)].Append(t.Context(), fence(1+n/5, 1), []byte(value))
				if errors.Is(err, tenure.ErrFenced) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				want[value] = true
				mu.Unlock()
			}
		})
	}
	group.Wait()
	last := tenure.Epoch(0)
	for r, err := range log.Records(t.Context()) {
		require.NoError(t, err)
		require.LessOrEqual(t, last, r.Fence.Epoch)
		last = r.Fence.Epoch
		require.True(t, want[string(r.Data)], "%q stands there and was not acknowledged", r.Data)
		delete(want, string(r.Data))
	}
	require.Empty(t, want, "acknowledged and not there")
}

func start(t *testing.T, what, path string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVar+"="+what, pathVar+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return cmd, bufio.NewScanner(out)
}

// The lock of a process ends with it, however it ends.
func TestKilledHolder(t *testing.T) {
	log, path := fresh(t)
	cmd, out := start(t, "hold", path)
	require.True(t, out.Scan())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, log.Seal(ctx, fence(2, 1)), context.DeadlineExceeded)
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.NoError(t, log.Seal(t.Context(), fence(2, 1)))
}

// What a killed process has acknowledged is there; what it has begun is there
// whole or not at all; and it shuts nobody out who comes later.
func TestKilledWriter(t *testing.T) {
	log, path := fresh(t)
	var want []string
	for round := 1; round <= 5; round++ {
		cmd, out := start(t, strconv.Itoa(round), path)
		for range round * 3 {
			require.True(t, out.Scan())
			want = append(want, out.Text())
		}
		require.NoError(t, cmd.Process.Kill())
		for out.Scan() {
			want = append(want, out.Text())
		}
		require.Error(t, cmd.Wait())
		got := contents(t, log)
		if len(got) == len(want)+1 { // written, and killed before it could tell
			want = append(want, got[len(want)])
		}
		require.Equal(t, want, got)
	}
	requireFenced(t, log.Append(t.Context(), fence(4, 1), nil), fence(5, 1))
}

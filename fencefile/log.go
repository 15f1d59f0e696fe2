package fencefile

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"

	"github.com/tenure-go/tenure"
)

// ErrCorrupt means that a record is damaged which was once whole, or that the
// file is no log. Nothing is written to such a file.
var ErrCorrupt = errors.New("fencefile: the log is corrupt")

// MaxData is how many bytes of data a record may have.
const MaxData = 16 << 20

// Log is an append-only file that is guarded by fences. It accepts the fence of
// its last record, and any of a higher epoch, which shuts out all lower ones; it
// refuses a lower epoch, and the same epoch on another lease, with
// [tenure.ErrFenced], and [tenure.LeaderOf] tells the fence that it has seen. A
// log is for one election, the first whose fence it sees.
//
// Methods that take a context wait for the lock of the file, which one process at
// a time can hold, until that context ends, and not longer; writing and syncing
// take as long as the disk does. The first call, and the first after another
// process has written, reads what it has not seen yet. All methods may be called
// concurrently.
//
// A Log is also a [tenure.GateMemory] for the gate of a service on this machine.
type Log struct {
	path string
	file *os.File
	sync func() error
	busy chan struct{} // holds one token for who may use what follows and the lock; flock knows no goroutines

	end    int64 // the records before it are whole
	synced int64 // and those before this are on the disk
	last   tenure.Fence
	broken error // closed; or a sync has failed, and nobody knows what the disk holds
}

var _ tenure.GateMemory = (*Log)(nil)

// Record is what one [Log.Append] has written.
type Record struct {
	Fence tenure.Fence
	Data  []byte
}

// Open opens the log at path, or creates an empty one that only this user may
// read. The folder must exist. It does not wait for the lock.
func Open(path string) (*Log, error) {
	if !supported {
		return nil, fmt.Errorf("fencefile: open %s: no flock on this system: %w", path, errors.ErrUnsupported)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("fencefile: %w", err)
	}
	// The records will be synced; so must be the name under which they are found.
	if err := syncFolder(filepath.Dir(path)); err != nil {
		return nil, errors.Join(fmt.Errorf("fencefile: sync the folder of %s: %w", path, err), file.Close())
	}
	return &Log{path: path, file: file, sync: file.Sync, busy: make(chan struct{}, 1)}, nil
}

func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// Append adds a record of data, of at most [MaxData] bytes, and returns when it
// is on the disk. On an error nothing was added, except that
// [tenure.ErrUnknownOutcome] says that the disk would not confirm it; the log then
// refuses all further work.
func (l *Log) Append(ctx context.Context, fence tenure.Fence, data []byte) error {
	if len(data) > MaxData {
		return fmt.Errorf("fencefile: %d bytes of data: a record has at most %d", len(data), MaxData)
	}
	return l.guarded(ctx, fence, func() error {
		return l.write(fence, data, false)
	})
}

// Seal shuts out every epoch below fence's, and returns when that is on the disk.
// To seal a fence again is allowed. The errors are those of [Log.Append].
func (l *Log) Seal(ctx context.Context, fence tenure.Fence) error {
	return l.guarded(ctx, fence, func() error { return l.seal(fence) })
}

// Do seals fence and then runs work while the lock is held, so that work of an
// older term neither runs beside it nor after it. It returns work's error as it
// is; the other errors are those of [Log.Append], and say that work did not run.
//
// work must have ended in all its effects when it returns, must not use l, and
// should be short, for everybody waits.
func (l *Log) Do(ctx context.Context, fence tenure.Fence, work func() error) error {
	return l.guarded(ctx, fence, func() error {
		if err := l.seal(fence); err != nil {
			return err
		}
		return work()
	})
}

// Records returns the records in their order, as they stand when the loop begins;
// later ones do not appear in it. An error ends the sequence: that of ctx, which
// bounds the wait for the lock and nothing else, [ErrCorrupt], or that of a read.
func (l *Log) Records(ctx context.Context) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		var end int64
		err := l.locked(ctx, func() error {
			end = l.end
			return nil
		})
		// What is before end never changes, so the lock is not needed to read it.
		for at := int64(0); at < end && err == nil; {
			var e entry
			if e, err = read(l.file, at, end); err != nil {
				if errors.Is(err, errNoRecord) {
					err = fmt.Errorf("%w: %s at offset %d", ErrCorrupt, l.path, at)
				}
				break
			}
			at += e.size
			if !e.seal && !yield(e.record, nil) {
				return
			}
		}
		if err != nil {
			yield(Record{}, err)
		}
	}
}

// Close closes the file. It waits for the call that holds the lock, and those
// that wait for it fail.
func (l *Log) Close() error {
	l.busy <- struct{}{}
	defer func() { <-l.busy }()
	l.broken = fmt.Errorf("fencefile: %s: %w", l.path, os.ErrClosed)
	return l.file.Close()
}

// guarded runs work under the lock if fence passes.
func (l *Log) guarded(ctx context.Context, fence tenure.Fence, work func() error) error {
	if err := fence.Validate(); err != nil {
		return err
	}
	return l.locked(ctx, func() error {
		switch {
		case l.last == fence, l.last.Epoch == 0:
		case l.last.Key != fence.Key:
			return fmt.Errorf("fencefile: a fence of %q at a log of %q", fence.Key, l.last.Key)
		case fence.Epoch <= l.last.Epoch:
			return tenure.FencedBy(l.last)
		}
		return work()
	})
}

// locked runs work while nobody else, in whatever process, uses the file, and
// when all that is in it has been read.
func (l *Log) locked(ctx context.Context, work func() error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()

	case l.busy <- struct{}{}:
	}
	defer func() { <-l.busy }()
	if l.broken != nil {
		return l.broken
	}
	if err := lock(ctx, l.file); err != nil {
		if ended := ctx.Err(); ended != nil && errors.Is(err, ended) {
			return err
		}
		return fmt.Errorf("fencefile: lock %s: %w", l.path, err)
	}
	defer func() {
		if still := unlock(l.file); still != nil {
			err = errors.Join(err, fmt.Errorf("fencefile: unlock %s: %w", l.path, still))
		}
	}()
	if err := l.same(); err != nil {
		return err
	}
	if err := l.catchUp(); err != nil {
		return err
	}
	return work()
}

// same returns an error if the file is no longer the one at the path: others would
// write to another one, which remembers nothing of us.
func (l *Log) same() error {
	ours, err := l.file.Stat()
	if err != nil {
		return fmt.Errorf("fencefile: %w", err)
	}
	theirs, err := os.Stat(l.path)
	if err != nil {
		return fmt.Errorf("fencefile: the log is gone: %w", err)
	}
	if !os.SameFile(ours, theirs) {
		return fmt.Errorf("fencefile: %s has been replaced by another file", l.path)
	}
	if ours.Size() < l.end {
		return fmt.Errorf("%w: %s was cut from %d bytes or more to %d", ErrCorrupt, l.path, l.end, ours.Size())
	}
	return nil
}

// catchUp reads the records that others have added.
func (l *Log) catchUp() error {
	info, err := l.file.Stat()
	if err != nil {
		return fmt.Errorf("fencefile: %w", err)
	}
	size := info.Size()
	for l.end < size {
		e, err := read(l.file, l.end, size)
		if errors.Is(err, errNoRecord) {
			return l.torn(size)
		}
		if err != nil {
			return err
		}
		l.end += e.size
		l.last = e.record.Fence
	}
	return nil
}

// torn returns an error unless what follows the last whole record is merely one
// that was not written to its end: nobody writes behind such a one.
func (l *Log) torn(size int64) error {
	behind, err := find(l.file, l.end, size)
	if err != nil {
		return err
	}
	if behind >= 0 {
		return fmt.Errorf("%w: %s at offset %d, with a whole record at offset %d", ErrCorrupt, l.path, l.end, behind)
	}
	return nil
}

// seal makes sure that the log's last fence is fence, and on the disk.
func (l *Log) seal(fence tenure.Fence) error {
	if l.last != fence {
		return l.write(fence, nil, true)
	}
	if l.synced == l.end {
		return nil
	}
	// Another process has written this, and may have died before it was synced.
	return l.flush(l.end)
}

// write adds one entry and syncs it.
func (l *Log) write(fence tenure.Fence, data []byte, seal bool) error {
	entry, err := encode(fence, data, seal, l.end)
	if err != nil {
		return err
	}
	if err := l.file.Truncate(l.end); err != nil { // what a crash has left
		return fmt.Errorf("fencefile: %w", err)
	}
	if _, err := l.file.WriteAt(entry, l.end); err != nil {
		return fmt.Errorf("fencefile: %w", err) // a part of an entry is none, and will be cut off
	}
	if err := l.flush(l.end + int64(len(entry))); err != nil {
		return err
	}
	l.last = fence
	return nil
}

// flush makes the file durable up to end.
func (l *Log) flush(end int64) error {
	if err := l.sync(); err != nil {
		// The system may have dropped what it could not write, and say so only
		// once: a later sync that succeeds would prove nothing.
		l.broken = fmt.Errorf("%w: sync %s: %w", tenure.ErrUnknownOutcome, l.path, err)
		return l.broken
	}
	l.end, l.synced = end, end
	return nil
}

// Package fencefile lets a file on a local disk refuse the writes of a leader
// that has been replaced: another process of the same machine, or an earlier term
// of this one.
//
// A [Log] is an append-only file of records, each with the fence of the term that
// wrote it. [Log.Append] locks the file, compares the fence with that of the last
// record, writes and syncs. [Log.Do] does other work under the same lock and the
// same check, such as replacing other files. [Log.Seal] takes note of a fence
// without a record of its own; a leader seals before it reads the state that it
// will build on.
//
// # The file
//
// One record after the other, each a line that begins with the text form of the
// fence, then its data, then a line feed:
//
//	42:32698f2a0b7c5d03:/scheduler/leader 5 1c2d3e4f
//	hello
//
// The 5 is the length of the data in bytes. The third word is the CRC-32C
// (Castagnoli), in hexadecimal with eight digits, of what stands before it in the
// line, without the space, followed by the data, with the record's offset in the
// file in decimal and a space in front of it all. A seal has a hyphen for a length
// and no data, nor the line feed behind them.
//
// A crash in the middle of a write leaves a record that is not whole at the end.
// Readers stop before it, and the next writer cuts it off: nobody was told that it
// was written. A damaged record with a whole one behind it is no such thing, but
// [ErrCorrupt].
//
// # Locking
//
// The lock is flock(2), on the file itself: advisory, released by the system when
// its process ends, however it ends. A process that is stopped while it holds the
// lock keeps it, and others wait until their contexts end: no successor writes
// beside a predecessor that is in the middle of a write.
//
// It works among the processes of one machine, on a local file system. Not on NFS,
// SMB or other network file systems, whose locks can be lost without notice. Where
// the system has no flock (Windows, Solaris, AIX), [Open] fails with
// [errors.ErrUnsupported].
//
// Do not rename, replace, truncate or copy back the file: its records are the
// memory. A Log whose file has been replaced refuses to write.
package fencefile

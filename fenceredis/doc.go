// Package fenceredis lets Redis refuse the writes of a leader that has been
// replaced.
//
// A [Gate] is one key in Redis that remembers the highest fence it has seen.
// [Gate.Do] checks a fence against it and runs a command in one step at the
// server, so nothing comes between the check and the write:
//
//	gate, err := fenceredis.New(client, "{orders}:fence")
//	...
//	err = gate.Do(ctx, term.Fence(), "HSET", "{orders}:42", "state", "paid").Err()
//
// A leader calls [Gate.Seal] before it reads the state that it will build on:
// until Redis has seen the new epoch, it accepts the old one. All writes that the
// gate shall guard must go through it, those of every program.
//
// # Keys
//
// The gate's key holds the text form of the highest [tenure.Fence], as a string
// that never expires. Programs in other languages can take part: see the source
// of the check, which is one short script. Nothing else may write to the key.
//
// In a cluster everything that one script touches lies in one hash slot. So the
// gate's key has a hash tag, as {orders} above, and every guarded key has the same
// tag. Where the gate's key has a tag, each key that [Gate.Do] can see and each
// that is given to [Gate.Run] is checked before anything is sent. A gate whose
// key has no tag is for a single server, and [New] refuses it for a cluster.
//
// # What is lost
//
// The gate remembers as long as Redis does:
//
//   - Replication is asynchronous. After a failover the new server may miss the
//     last writes, the newest epoch among them; it then accepts an older leader
//     until the new one writes again. A fence cannot mend what Redis has
//     acknowledged and lost. WAIT makes it less likely, and does not prevent it.
//   - Without a log on the disk (appendonly) a restart goes back to the last
//     snapshot, or to nothing. With appendfsync everysec, the default, it is about
//     a second after a power failure. Only appendfsync always keeps both the gate
//     and the data.
//   - A policy that evicts keys of any kind (maxmemory-policy allkeys-…) may evict
//     the gate's. noeviction and volatile-… do not, for the key never expires.
//   - FLUSHALL, and DEL of the gate's key, open the gate.
//
// # What is not covered
//
// The check is made by the server that runs the command. Pipelines, MULTI and
// WATCH cannot carry it: an error inside a transaction of Redis does not stop the
// rest. Several commands at once are a script, see [Gate.Run]. A script is not
// rolled back either: one that fails in the middle has written what it has
// written. Commands that Redis does not allow in scripts cannot be guarded;
// blocking ones do not block there.
package fenceredis

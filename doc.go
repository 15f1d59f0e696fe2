// Package tenure elects a single active instance among processes that share an
// etcd cluster, and makes sure that a process which was the leader cannot harm
// anything. It is for services in which only one instance may do the work: a
// scheduler loop, a queue's dispatcher, a migration.
//
// Start with [New] and [Elector.Run], and write through [Term.KV].
//
// # Overview
//
// An [Elector] creates a key in etcd, attached to a lease, in a transaction that
// succeeds only if the key does not exist. It renews the lease, and watches for
// the key's deletion to contend again. One unbroken hold of the key is a [Term].
// The key's create revision is the term's [Epoch]: strictly greater in each
// later term, whoever holds it.
//
// No lock service can keep two processes from believing at the same time that
// they lead: one of them may have been paused, cut off or wrong about the time
// since it last looked. So there are two answers. By its clocks a leader stops
// before anyone else can start; that is enough as long as the clocks run at
// about the same rate. And a [Fence], which every guarded write carries, lets
// the resource itself refuse a leader that has been replaced; that needs no
// assumption about time at all.
//
// Three things are authoritative, each for one question:
//
//	etcd's key       who leads
//	the local clocks when this process must stop
//	the fence        whether a write may still land
//
// # States
//
// The life of a term: acquire, renew, expire, contest, fence, resume.
//
//	       ┌───────────────────────────────────────────────┐
//	       │ campaigning                                   │
//	       │   read the key, watch it, keep a lease warm   │◄──────────────┐
//	       └──────┬────────────────────────────────────────┘               │
//	              │ key vacant, create-if-absent succeeds (acquire)        │
//	       ┌──────▼────────────────────────────────────────┐               │
//	┌─────►│ leading: term valid, context alive            │               │
//	│      └──┬──────────┬──────────────────────┬──────────┘               │
//	│ renewal │          │ Run's context ended, │ limit passed, key gone   │
//	│ counts  │          │ evicted, work        │ or replaced, fenced      │
//	└─────────┘          │ returned             │ (expire)                 │
//	              ┌──────▼────────┐      ┌──────▼───────────────┐          │
//	              │ stopping:     │ lost │ over: not valid,     │ work has │
//	              │ context ended,├─────►│ context ended,       │ returned │
//	              │ term valid    │      │ writes refused       ├──────────┤
//	              └──────┬────────┘      │ (fence)              │          │
//	                     │ work has      └──────────────────────┘          │
//	                     │ returned                                        │
//	              ┌──────▼────────┐  evicted: campaign again, later        │
//	              │ resigning:    ├────────────────────────────────────────┘
//	              │ key deleted   ├──► Run returns
//	              └───────────────┘
//
// # Trust window
//
// A term trusts itself until
//
//	valid until = (instant before the last counted renewal was sent) + granted TTL − margin
//
// The instant is taken before sending, because etcd may start its own clock as
// soon as the request arrives, however late its answer comes. The granted TTL
// counts and not the wished one, since etcd has a floor. The margin, a tenth of
// the TTL unless set, pays for two clocks that run at different rates, and gives
// the work time to stop. A renewal counts only once a linearizable read, sent
// after its acknowledgement, was answered in the same Raft term: a stalled or
// deposed leader of etcd goes on acknowledging renewals that are worth nothing.
//
// The limit is kept on the monotonic clock, which stops while the machine
// sleeps, and on the wall clock, which can be set; the term is over as soon as
// either has reached its limit. In a virtual machine that was paused both may have
// stood still: there only the fence protects. [Term.Valid] compares at the call.
// It takes no goroutine to notice that time has passed.
//
// # Fencing
//
// [Term.KV] commits every write in one transaction with the check that this very
// term still holds the key. [Fence.KV] does so in another process, and [Gate] in
// a process that owns a resource of its own. [NewGateWith] makes one that survives
// a restart; packages fencehttp and fencegrpc carry the fence to it, and package
// fencesql checks it in the transactions of a database. A resource learns of an
// epoch by the first write that carries it, so a new leader seals ([Gate.Seal])
// before it reads the state that it will build on.
//
// # Failure
//
// [Elector.Run] campaigns again after every loss. What ends a term is its
// [Reason], the cause of its context. Errors that a caller branches on are
// [ErrHeld], [ErrFenced], [ErrTermEnded], [ErrUnknownOutcome], [ErrNoLeader],
// [ErrRolledBack] and [ErrLeaseClosed]. An answer that never came is never taken
// for a success or a refusal.
//
// Not promised: that an effect on a resource without a gate never happens twice.
// Only the clocks protect it. Not promised either: any of this after a restore of
// an etcd snapshot that did not bump its revision, beyond what [Options.MinEpoch]
// and the memory of a [Gate] catch; nor the trust window on servers before
// 3.5.13 or behind etcd's gRPC proxy, where the fence still holds.
//
// # Concurrency
//
// All methods of all types may be called concurrently, except that an elector is
// in one campaign at a time. Every goroutine has an owner that waits for it, every
// request has a deadline, and nothing is logged, closed or configured through
// the caller's client.
package tenure

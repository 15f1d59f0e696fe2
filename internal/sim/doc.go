// Package sim simulates elections on a real etcd server, in the virtual time of a
// bubble of package etcdtest. A seed decides who takes part and what goes wrong;
// everything that must never happen is looked for all the time. The package
// holds tests alone. tools/sim runs them on many seeds in several processes, and
// shrinks what fails:
//
//	make sim FOR=10m
//	go test ./internal/sim -count=1 -run Simulation -v -seed=42 -keep=0-3,17
//
// # What a seed decides
//
// All of the plan, before anything runs: the TTL and the margin; one to three
// elections; one to five machines, each with clocks that run at a rate of their
// own, and a process that is a candidate in every election, on leases of its own
// or a shared one; the latency; and a list of timed events, which can be printed
// and from which events can be left out. Also what a candidate does in its n-th
// call (Run, Campaign, TryCampaign; when it is cancelled) and its n-th term (when
// it writes, whether it returns, resigns, obeys or goes on, and for how long
// somebody else goes on with its fence).
//
// Events cut and delay links; lose, fail, delay, hold, double and repeat requests
// and answers; stop the server and restore it from a snapshot, with and without
// a bump; step, slow and stop clocks; let processes stand still, crash and shut
// down; delete, overwrite, revoke, compact and evict as an operator does; cancel
// calls, also at a certain request; and acknowledge renewals as a deposed leader
// of etcd does, whose successor knows nothing of them. A seed leaves out about a
// third of these families.
//
// # What the scheduler decides
//
// The order of what happens at one instant, etcd's election wait, gRPC's back-off
// and the random parts of the library. So "the leader" of an event, and whether
// there is one, may differ between two runs of a seed: a failure that depends on
// that comes back in some of them only. Processes run on one core, which makes
// this rarer.
//
// # What is checked
//
//   - At most one term of an election is valid, asked at each beginning of a
//     term, around each event and write, and now and then. A term is excused if
//     others than its holder have ended it in etcd, and then only until its limit;
//     if its clocks are beyond the margin; and for a while around a restore.
//   - A term that was not valid never is again. Nor is one that has ended.
//   - Epochs grow, in an election and, restores or not, in an elector.
//   - The guarded key, version by version as etcd has it, never takes a write of
//     an older epoch or of the same epoch on another lease; has every write that
//     was acknowledged, and none that was refused before it was sent.
//   - A gate lets nobody in beside or after a newer term.
//   - No lease read misses what a later term has written.
//   - Each term ends once, for a reason that fits what was done to it; its work
//     has stopped if it is given up in order; and no work begins beside that of
//     an older term.
//   - A term whose work does not stop runs out.
//   - Observe never goes back without telling of a roll-back, and tells of none
//     unless there was a restore.
//   - When the faults end, somebody leads soon, and when a leader falls silent
//     then, somebody else does within the TTL and a second and a half.
//   - When all have gone, no key, no lease and no goroutine is left.
//
// # What it does not show
//
// There is one etcd member. Processes stand still as far as their requests, their
// renewals and the timer that ends their terms are concerned, and no further.
package sim

// Package etcdtest runs tests against real etcd servers and real etcd clients
// whose network and whose single requests can be made to fail. Only tests
// import it.
//
// # Two surroundings
//
// [Bubble] starts one server inside a [testing/synctest] bubble. Raft, leases,
// keep-alives, watches and gRPC all run on the bubble's clock, which jumps to
// the next timer whenever every goroutine waits: an hour of holding a lease
// passes in a fraction of a second, and a measured duration is exact. Whatever
// is about time is tested here.
//
// [StartCluster] starts several members in the test process on the real clock,
// for what only more than one member can do: a change of the Raft leader, a
// partition between members, a stopped member.
//
// # Two kinds of fault
//
// A [Client] comes with a [Link], the network between it and the servers, and
// with [Faults], which act on single messages. Both belong to that client
// alone, so that one contender can be cut off while others of the same server
// go on. Take a link when the connection is the point (half-open connections,
// latency, refused dials) and faults when one request or answer is (an answer
// lost after the server has applied it, a put that arrives late, a falsified
// TTL, a swallowed watch event). Faults act inside etcd's own retry layer:
// each attempt passes through them anew.
//
// # What stops the clock of a bubble
//
// The clock moves only while every goroutine of the bubble is durably blocked:
// in [time.Sleep], in [sync.Cond] or [sync.WaitGroup], or on channels made in
// the same bubble, those inside [net.Pipe] and [io.Pipe] included. These waits
// are not durable, and time stands still until they end:
//
//   - locking a [sync.Mutex] or [sync.RWMutex], or waiting for another call of
//     a [sync.Once] or [sync.OnceValue]. A goroutine that holds a mutex across
//     a call to etcd, a timer or a channel stops the clock for good as soon as
//     a second one wants that mutex;
//   - a channel made outside the bubble, be it one of several cases of a
//     select: in a package variable, an init function, before the call of
//     Bubble. A context made outside has such a channel, or else makes it
//     inside on first use, and then its end kills the process, as any use of a
//     channel from outside its bubble does. So use the inner t and its context;
//   - sockets, [os.Pipe], child processes and files. The server's own writes to
//     its files are not durable either, but short.
//
// A loop that never pauses, such as one that retries at once what fails at
// once, takes no time of the bubble and so never ends.
//
// The server's ticker never rests. A test that waits for something that never
// comes does not deadlock, the clock runs on instead. In all these cases the
// bubble panics after [RealLimit] and shows first what stops the clock. [Await]
// and [Eventually] fail such a test at once, since their limits are in the
// bubble's time.
//
// # What stays uncertain
//
// Time is virtual, chance is not. Raft's election wait, gRPC's back-off and
// the order in which goroutines run differ from run to run, so assert bounds
// where these take part. Work takes no time in a bubble: what a real machine
// does in a millisecond happens at one instant there, and what two goroutines
// do at one instant happens in any order.
package etcdtest

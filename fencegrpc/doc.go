// Package fencegrpc carries a fence over gRPC and checks it at the other end, so
// that a service refuses the calls of a leader that has been replaced.
//
// # Overview
//
// The client's interceptors attach the fence of a term to every call and turn a
// refusal into [tenure.ErrFenced]. The server's interceptors let a call in through
// a [tenure.Gate] for the whole time of its handler, that of a stream included:
//
//	fence := fencegrpc.FromTerm(term)
//	conn, err := grpc.NewClient(target,
//		grpc.WithUnaryInterceptor(fencegrpc.UnaryClientInterceptor(fence)),
//		grpc.WithStreamInterceptor(fencegrpc.StreamClientInterceptor(fence)))
//
//	server := grpc.NewServer(
//		grpc.UnaryInterceptor(fencegrpc.UnaryServerInterceptor(gate, nil)),
//		grpc.StreamInterceptor(fencegrpc.StreamServerInterceptor(gate, nil)))
//
// Both interceptors of a server share the gate, which must be the only door to
// what the handlers change. Where several processes serve one resource, their
// gates do not fence each other: let the handler compare [FromContext]'s fence in
// the transaction that writes.
//
// # Metadata
//
// The fence is the value of the metadata key tenure-fence, in its text form:
//
//	tenure-fence: 42:32698f2a0b7c5d03:/scheduler/leader
//
// that is, the epoch in decimal, the lease id in lower-case hexadecimal, both
// without leading zeros, and the key with URL escapes. A call with two values is
// refused, as is one with a value of more than 4 KiB.
//
// # Status
//
// A call that is not let in ends with a status that has a google.rpc.ErrorInfo of
// the domain "tenure" among its details:
//
//	FENCED            FAILED_PRECONDITION  a later term is known; the fence never passes again
//	FENCE_MISSING     INVALID_ARGUMENT     the call has no fence and needs one
//	FENCE_MALFORMED   INVALID_ARGUMENT     the value is not what is described above
//	OTHER_ELECTION    INVALID_ARGUMENT     the fence is of another election than the gate
//	GATE_UNAVAILABLE  UNAVAILABLE          the gate's memory cannot tell
//	INTERRUPTED       ABORTED              a later term came while the handler ran, and
//	                                       stopped it: the outcome is unknown
//
// FAILED_PRECONDITION is for what must not be tried again as it is. ABORTED and
// UNAVAILABLE, which clients often do try again, would be in vain for a fence that
// never passes again. The metadata of FENCED has the refused fence as "fence",
// which tells a refusal from one that the handler has passed on from another
// service, and the epoch of the later term as "epoch", but not its lease: nobody
// learns a fence that would pass by sending one that does not.
//
// # Who may send a fence
//
// A fence authenticates nobody. Whoever can call the service can send the fence
// that it saw elsewhere, and, where the gate believes what it sees, shut every
// leader out with an invented epoch. So authenticate the callers in an
// interceptor before these, or give the gate a [tenure.EtcdMemory], which at least
// believes no invention. A proxy at the edge deletes the key from calls that come
// from outside. What a handler received is not passed on by itself: incoming
// metadata does not go into its outgoing calls.
package fencegrpc

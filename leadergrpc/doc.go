// Package leadergrpc lets gRPC clients follow the leader: a name resolver whose
// targets are elections, and whose one address is always that of the leader now.
//
// # Overview
//
// Candidates publish the address of their gRPC server as [tenure.Options.Address],
// host:port as the clients reach it. A client names the election in place of a
// host, and passes the resolver in, which is registered nowhere else:
//
//	conn, err := grpc.NewClient(leadergrpc.Target("/scheduler/leader"),
//		grpc.WithResolvers(leadergrpc.NewBuilder(client, nil)),
//		grpc.WithTransportCredentials(creds))
//
// The resolver follows the election with [tenure.Observe]. A new term, or a new
// address in the same one ([tenure.Term.Announce]), is dialled as soon as the watch
// tells of it, and the connection to the leader before gets no more calls. Without
// calls for half an hour gRPC rests, and the resolver with it; the next call starts
// both again, from a linearizable read.
//
// # Targets
//
// A target is tenure:/// and then the whole key, with URL escapes. The third slash
// belongs to the target, so a key that begins with a slash has four in front of it:
//
//	tenure:////scheduler/leader   the election "/scheduler/leader"
//	tenure:///scheduler/leader    another one, "scheduler/leader"
//
// [Target] makes them. The elections are those of the etcd client that the resolver
// was made with, so a target has no host, no query and no fragment.
//
// # What a call meets
//
//	led           it goes to the leader
//	vacant        it fails, or waits for the next leader
//	unreachable   it goes to the last leader known, which is marked stale; if none
//	              is known, it fails, or waits
//	rolled back   it fails, or waits; what etcd says now follows at once
//
// A call waits, as long as its context lasts, if it has grpc.WaitForReady. Others
// fail at once with codes.Unavailable and a message that names the election and its
// state; so does every call if the leader's address is missing or no address, until
// the leader announces another. If following the key can never succeed, as without
// the permission to read it or with etcd's client closed, the last leader is
// dropped, since nothing would ever correct it, and all calls fail or wait in vain:
// only a new connection tries again.
//
// The messages are passed on by gRPC's own policy pick_first, its default. Others
// work, but say in their own words that there is no address. So does pick_first in
// the instant in which it lets go of a leader.
//
// An outage of etcd has no limit here, because the last leader may well lead on.
// [StatusOf] tells a balancer, or whoever wraps the [resolver.ClientConn], since
// when it lasts.
//
// # What is not promised
//
// That a call reaches the leader. A leader that has been replaced is dialled until
// the watch hears of it, and longer while etcd is unreachable from here. That is
// known sooner, and for certain, at the server and at the resource: a candidate
// refuses what it may not answer, and what it writes carries its fence
// ([tenure.Term.KV], package fencegrpc). It happens at the other end of a term too:
// the key is there, and others may see it, an instant before the winner knows.
//
// That a call which is under way comes back. gRPC lets it finish at the leader
// before; so a server ends its streams when the context of its term ends.
//
// Epochs never go back: [tenure.Observe] delivers none after a newer one, and each
// status replaces the one before. The exception is a restore of etcd to an older
// revision, where the newest epoch known is one that never was. Who insisted on it
// would wait, for days perhaps, and call nobody; so what was known is forgotten, as
// Observe does. The gates keep their memory, and refuse what they must.
//
// # Servers
//
// A candidate that does not lead answers codes.Unavailable, which says that nothing
// was done and that the same call may be made again:
//
//	term := elector.Term()
//	if term == nil || !term.Valid() {
//		return nil, status.Error(codes.Unavailable, "not leading")
//	}
//
// Not codes.FailedPrecondition, with which package fencegrpc refuses a fence that
// never passes again. A handler that answers from its own memory asks Valid after
// it has read, before it answers.
//
// # Retries
//
// A retry goes to the leader of then, so a service config closes the gap of an
// orderly hand-over:
//
//	{"methodConfig": [{"name": [{}], "waitForReady": true, "retryPolicy": {
//		"maxAttempts": 5, "initialBackoff": "0.05s", "maxBackoff": "1s",
//		"backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}]}
//
// gRPC reports a connection that broke with the same code, when the call may have
// been done. Name only methods that may be done twice.
//
// # TLS
//
// The name of an election is no name of a host, and no certificate is valid for it.
// Give all candidates a certificate for one name and set that with
// grpc.WithAuthority. Where each has one for its own host, [Options.Address] can
// name that; then whoever can write the election's key chooses which of your
// certificates the client accepts.
//
// # Concurrency
//
// A builder may be used for any number of connections at the same time. Each has
// one resolver, with one goroutine, which ends before its Close returns.
package leadergrpc

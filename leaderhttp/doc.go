// Package leaderhttp brings HTTP requests to the leader: handlers for the
// candidates, which pass on what only the leader may answer, and a RoundTripper
// for clients, which follows the leader by itself.
//
// # Overview
//
// Every candidate publishes its address ([tenure.Options.Address]) and serves the
// same handler behind [Proxy] or [Redirect]. The leader answers; the others hand
// the request on:
//
//	http.Handle("/", leaderhttp.Proxy(elector, app, nil))
//
// A client that can reach etcd needs neither. Its [Transport] sends what is
// addressed to the host "leader" to whoever leads, and waits through a vacancy:
//
//	transport, err := leaderhttp.NewTransport(client, "/app/leader", nil)
//	resp, err := (&http.Client{Transport: transport}).Get("http://leader/jobs")
//
// An address is host:port or a URL, http://host:port or https://host:port, and
// nothing more: no path, no user. A process that is no candidate can be a proxy
// all the same: an httputil.ReverseProxy with a [Transport].
//
// None of this is a fence. Who believes to lead is asked at the request; what it
// does for the request may come too late. Guard the writes ([TermFromContext] and
// [tenure.Term.KV], or package fencehttp).
//
// # The field
//
// What is sent for the leader says so, in a header field of its own with one
// String (RFC 9651) for each election: the epoch of the term that it is meant for,
// and the election's key with URL escapes, the slash's too.
//
//	Tenure-Leader: "42:%2Fscheduler%2Fleader"
//
// [Proxy] and [Transport] add it. A candidate that gets it for its own election
// answers by itself, if its term is valid and not older than that epoch, or
// refuses. It never hands such a request on, so that no request passes more than
// one candidate on its way, whatever they believe of each other. The refusal
// repeats the String in a Tenure-Leader field of the answer, which tells it from a
// 503 of the application, and says that nothing was done. An epoch that somebody
// invents gets that one request refused, and is not remembered.
//
// # Answers
//
// What could not be brought to the leader is answered with a problem document
// (RFC 9457), of media type application/problem+json. Its type is the tag below
// after "tag:github.com,2026:tenure-go/tenure/".
//
//	no-leader           503  nobody leads, or the leader is about to stop
//	leader-unknown      503  etcd was not heard yet, or the elector takes no part
//	not-leading         503  sent here for the leader, and this process does not
//	                         lead; or it would be redirected to where it came from
//	no-address          503  the leader publishes no address, or a malformed one
//	leader-unreachable  503  no connection to the leader
//	outcome-unknown     502  sent to the leader, and no answer came
//	mark-malformed      400  the field is not what is described above
//
// A 503 of these means that nothing was done, so that any request may be sent
// again; after a 502 only one that may be done twice. The document has the epoch
// of the last known term as its member epoch, if there is one. The address and the
// error are for [Options.Failed], and not for the client.
//
// # Retry-After
//
// It tells how long it can still take at most, as far as that is known here, in
// whole seconds, rounded up, and at least 1, the least that is not now:
//
//	nobody leads             1: the election is won within a moment
//	no connection            when that began + TTL − now: if the leader is gone, its
//	                         lease runs out by then
//	etcd does not answer     when it was heard last + TTL − now: by then a term that
//	                         is not renewed is over
//	not leading              1 if etcd answers, for it is known who does
//
// The TTL is what etcd granted to this candidate ([tenure.Status]), taken for
// the leader's. Where nothing is known, the field is missing; so it is with a
// leader without an address, which no lease ends.
package leaderhttp

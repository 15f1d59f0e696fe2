// Package fencehttp carries a fence over HTTP and checks it at the other end, so
// that a service refuses the requests of a leader that has been replaced.
//
// # Overview
//
// The client's [Transport] attaches the fence of a term to every request, and
// [Refused] tells a refusal from other answers. The server's [Handler] lets a
// request in through a [tenure.Gate] for the whole time of the handler behind it:
//
//	client := &http.Client{Transport: fencehttp.Transport(nil, fencehttp.FromTerm(term))}
//
//	http.Handle("/accounts/", fencehttp.Handler(gate, accounts, nil))
//
// The gate must be the only door to what the handler changes. Where several
// processes serve one resource, their gates do not fence each other: let the
// handler compare [FromContext]'s fence in the transaction that writes.
//
// # The field
//
// One header field, a structured field (RFC 9651) whose value is an Item, a
// String with the fence's text form in it:
//
//	Tenure-Fence: "42:32698f2a0b7c5d03:/scheduler/leader"
//
// that is, the epoch in decimal, the lease id in lower-case hexadecimal, both
// without leading zeros, and the key with URL escapes. Epoch and lease are not
// parameters with numbers of their own, because an Integer of RFC 9651 has at
// most 15 digits and an epoch up to 19; and because in one string they cannot be
// separated from each other or from their key by whoever stands between. The
// field has no parameters; a value that has some is refused, since a fence that
// was understood in part is no fence. So are a second field, and a value of more
// than 4 KiB.
//
// # Answers
//
// What is not let in is answered with a problem document (RFC 9457), of media
// type application/problem+json. Its type is the tag below after
// "tag:github.com,2026:tenure-go/tenure/".
//
//	fenced            412  a later term is known; the fence never passes again
//	fence-missing     400  the request has no fence and needs one
//	fence-malformed   400  the field is not what is described above
//	other-election    400  the fence is of another election than the gate
//	gate-unavailable  503  the gate cannot tell, or did not before the request's
//	                       context ended; with Retry-After
//
// A fence is a precondition that the client states, "while my term is the
// latest", and 412 says that such a one is false. 409 would invite the same
// client to resolve a conflict and to try again, which is in vain, and 403 is
// about who asks, which a fence says nothing of. The answer to a fenced request
// repeats the refused fence in its own Tenure-Fence field, which tells it from a
// 412 of the handler or of another service behind it, to a HEAD request as well.
// The document has the epoch of the later term as its member epoch, but not its
// lease: nobody learns a fence that would pass by sending one that does not.
//
// # Who may send a fence
//
// A fence authenticates nobody. Whoever can reach the handler can send the fence
// that it saw elsewhere, and, where the gate believes what it sees, shut every
// leader out with an invented epoch. So authenticate the senders before the
// handler, or give the gate a [tenure.EtcdMemory], which at least believes no
// invention. A proxy at the edge deletes the field from requests that come from
// outside, and sets its own, if any, after the hop-by-hop fields were removed;
// [Transport] below an httputil.ReverseProxy does both.
package fencehttp

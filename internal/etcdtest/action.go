package etcdtest

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Unavailable is what a client sees when its connection breaks under a call.
// Whether the server has applied the request is unknown from it. The etcd
// client repeats reads, grants and revokes by itself on this error, and never a
// Put, a Delete or a Txn. The errors of package rpctypes named ErrGRPC... serve
// as well.
var Unavailable = status.Error(codes.Unavailable, "error reading from server: EOF")

// An Action is what a rule does to a request or to an answer. A request is what
// a unary call sends, or one message that a stream sends; an answer is what a
// unary call returns when it succeeds, or one message that a stream receives.
// Errors of the server are passed on untouched.
type Action struct {
	answer bool // acts on answers, else on requests

	// No more than one of these is set.
	delay time.Duration
	hold  bool
	lost  bool
	err   error
	again again
	edit  func(any)
}

type again int

const (
	once again = iota
	retry
	duplicate
)

// DelayRequest sends the request after d. A request under way cannot be called
// back: it arrives even if the caller has given up by then, though not if its
// stream has ended. Later requests of the same stream wait behind it.
func DelayRequest(d time.Duration) Action { return Action{delay: d} }

// HoldRequest holds the request until [Rule.Release], and sends it then even if
// the caller has given up. One that is never released is never sent.
func HoldRequest() Action { return Action{hold: true} }

// LoseRequest never sends the request. The caller waits until its context ends.
func LoseRequest() Action { return Action{lost: true} }

// FailRequest fails the call with err, a status error, and sends nothing. A
// stream ends with err.
func FailRequest(err error) Action { return Action{err: err} }

// RetryRequest sends the request a second time after the first answer, and the
// caller gets the second answer: a blind retry after a lost answer. A stream
// sends the message twice.
func RetryRequest() Action { return Action{again: retry} }

// DuplicateRequest sends the request a second time after the first answer, and
// the caller gets the first answer. A stream sends the message twice.
func DuplicateRequest() Action { return Action{again: duplicate} }

// EditRequest runs f on a copy of the request, which is sent in its place. A
// request of another type than T panics.
func EditRequest[T any](f func(T)) Action { return Action{edit: func(m any) { f(m.(T)) }} }

// DelayAnswer delivers the answer after d. Later messages of the same stream
// wait behind it.
func DelayAnswer(d time.Duration) Action { return Action{answer: true, delay: d} }

// HoldAnswer holds the answer until [Rule.Release].
func HoldAnswer() Action { return Action{answer: true, hold: true} }

// LoseAnswer never delivers the answer. The caller of a unary call waits until
// its context ends; a stream goes on with the next message.
func LoseAnswer() Action { return Action{answer: true, lost: true} }

// DropAnswer delivers err, a status error, in place of the answer. The server
// has done what was asked. A stream ends with err.
func DropAnswer(err error) Action { return Action{answer: true, err: err} }

// EditAnswer runs f on the answer before it is delivered. An answer of another
// type than T panics.
func EditAnswer[T any](f func(T)) Action {
	return Action{answer: true, edit: func(m any) { f(m.(T)) }}
}

// ReplayAnswer delivers a stream's message twice. It leaves unary answers alone.
func ReplayAnswer() Action { return Action{answer: true, again: duplicate} }

package tenure

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/tenure-go/tenure/internal/code"
)

// Errors that a caller branches on. They come wrapped, so compare with
// [errors.Is].
var (
	// ErrHeld is returned by [Elector.TryCampaign] when another candidate holds
	// the election; [LeaderOf] tells which.
	ErrHeld = errors.New("tenure: the election is held")

	// ErrFenced means that a resource has refused the fence: the term is over
	// and another one may have begun. What was refused was not written.
	// [LeaderOf] tells who holds the election instead, where the resource knew.
	// It does not say that the writer's own condition failed; a transaction
	// reports that as it always does. [FencedBy] makes one.
	//
	// etcd's client repeats a write by itself when a server, or a proxy, answers
	// that its own time was over. If the repetition is fenced, the first attempt
	// may still have been applied, while the term held.
	ErrFenced = errors.New("tenure: fenced: the term has been replaced")

	// ErrTermEnded is what every [Reason] is: this process already knew that
	// its term was over, so nothing was sent.
	ErrTermEnded = errors.New("tenure: the term has ended")

	// ErrUnknownOutcome means that a write was sent and its answer is missing:
	// it may have happened, may not have, or may still happen. It is neither a
	// success nor a refusal; read the state to learn more, and repeat only what
	// may be done twice.
	ErrUnknownOutcome = errors.New("tenure: the outcome is unknown")

	// ErrNoLeader means that nobody holds the election at this moment.
	ErrNoLeader = errors.New("tenure: no leader")

	// ErrRolledBack means that etcd would hand out an epoch that is not above
	// [Options.MinEpoch] or above one that this elector has already seen, as it
	// does after a snapshot was restored without bumping its revision.
	ErrRolledBack = errors.New("tenure: etcd was rolled back")

	// ErrLeaseClosed ends the campaigns on a [Lease] that has been closed.
	ErrLeaseClosed = errors.New("tenure: the lease is closed")
)

// Reason tells why a term ended. It is an error, so that it can be the cause of
// the term's context: errors.Is(context.Cause(term.Context()), LeaseExpired)
// asks for one reason, and ErrTermEnded for any.
type Reason string

const (
	// LeaseExpired: the local limit passed with no renewal that counts, or etcd
	// no longer knows the lease.
	LeaseExpired Reason = "lease expired"
	// RenewalRefused: etcd will never again renew the lease for this client:
	// permission denied, wrong password, client closed.
	RenewalRefused Reason = "renewal refused"
	// KeyDeleted: somebody else deleted the key or revoked the lease.
	KeyDeleted Reason = "key deleted"
	// KeyReplaced: the key was created anew, or overwritten, by somebody else.
	KeyReplaced Reason = "key replaced"
	// Resigned: [Term.Resign] or [Lease.Close] was called.
	Resigned Reason = "resigned"
	// Evicted: [Evict] asked the holder to go.
	Evicted Reason = "evicted"
	// ContextEnded: the context given to [Elector.Run] ended. The cause of that
	// context is wrapped beside it.
	ContextEnded Reason = "context ended"
	// Fenced: a resource refused the term's fence.
	Fenced Reason = "fenced"
)

// Error implements error.
func (r Reason) Error() string { return "tenure: the term has ended: " + string(r) }

// Is makes every Reason an [ErrTermEnded].
func (r Reason) Is(target error) bool { return target == ErrTermEnded }

// because adds a detail to a reason.
func (r Reason) because(detail error) error {
	if detail == nil {
		return r
	}
	return fmt.Errorf("%w: %w", r, detail)
}

// reasonOf finds the reason in the cause of a term's end.
func reasonOf(cause error) Reason {
	r, _ := errors.AsType[Reason](cause)
	return r
}

// leaderError adds to ErrHeld or ErrFenced who holds the election.
type leaderError struct {
	err    error
	leader Leader
}

func (e *leaderError) Error() string {
	l := e.leader
	switch {
	case l.Fence.Epoch == 0:
		return fmt.Sprintf("%v: nobody holds %q", e.err, l.Fence.Key)
	case l.Identity == "":
		return fmt.Sprintf("%v: %q is at epoch %d", e.err, l.Fence.Key, l.Fence.Epoch)
	default:
		return fmt.Sprintf("%v: %q is held by %q at epoch %d", e.err, l.Fence.Key, l.Identity, l.Fence.Epoch)
	}
}

func (e *leaderError) Unwrap() error { return e.err }

// LeaderOf returns the leader that an [ErrHeld] or [ErrFenced] names, and
// whether it names one. An epoch of 0 says that nobody held the election.
func LeaderOf(err error) (Leader, bool) {
	if e, ok := errors.AsType[*leaderError](err); ok {
		return e.leader, true
	}
	return Leader{}, false
}

// ended is the error of a call whose ctx has ended, with what was in its way.
func ended(ctx context.Context, trouble error) error {
	if trouble == nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w; meanwhile: %w", ctx.Err(), trouble)
}

// permanent reports whether a request will fail in the same way for ever.
// Everything else heals, or may: lost quorum, expired tokens, a full database.
func permanent(client *clientv3.Client, err error) bool {
	switch c := code.Of(err); {
	case c == codes.PermissionDenied, c == codes.Unimplemented:
		return true
	case errors.Is(err, rpctypes.ErrAuthFailed), errors.Is(err, rpctypes.ErrUserEmpty):
		return true
	default:
		return client.Ctx().Err() != nil
	}
}

// ambiguous reports whether a write that failed with err may have been applied,
// or may still be. Only what the server refuses before it proposes, or while it
// applies without effect, is certain. Three traps: a full database answers "no
// space" also after it has applied the request; the client says that a resource
// is exhausted, too, when the answer is larger than it accepts; and the codes
// Canceled and DeadlineExceeded may come from the server, whatever our context
// says.
func ambiguous(err error) bool {
	switch code.Of(err) {
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented:
		return false
	case codes.ResourceExhausted:
		return !errors.Is(err, rpctypes.ErrTooManyRequests)
	default:
		return true
	}
}

package fencegrpc

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/wire"
)

// Options configure the server's interceptors. A nil *Options guards every call
// and tells nobody.
type Options struct {
	// Optional reports whether a call of fullMethod that has no fence is let in
	// all the same, past the gate. A call that has one goes through the gate in
	// any case. Default: none is.
	Optional func(ctx context.Context, fullMethod string) bool

	// Refused, if set, is told of each call that was not let in, and why: a
	// [tenure.ErrFenced], the error of the gate's memory or of the call's context,
	// or what is wrong with the fence. The status of the call says less. It is
	// called on the call's goroutine.
	Refused func(ctx context.Context, fullMethod string, err error)
}

// UnaryServerInterceptor lets calls in through gate, by the fence that they carry,
// and fails those that may not pass with a status, as the package comment says. A
// call waits while the work of an older term leaves, for as long as its context
// lasts.
//
// The call is inside the gate until its handler returns or panics. Its context is
// the gate's, with the fence in it for [FromContext]; when a later epoch comes, it
// ends with [tenure.ErrFenced] as its cause, and that epoch waits until the handler
// has returned. So a handler stops when its context ends, and starts nothing that
// goes on after it returns. If it returns an error then, the call fails as
// interrupted, whatever the error, since it may have done a part; an answer is
// passed on.
func UnaryServerInterceptor(gate *tenure.Gate, opts *Options) grpc.UnaryServerInterceptor {
	d := newDoor(gate, opts)
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		var reply any
		err := d.pass(ctx, info.FullMethod, func(ctx context.Context) (err error) {
			reply, err = handle(ctx, req)
			return err
		})
		return reply, err
	}
}

// StreamServerInterceptor is like [UnaryServerInterceptor] for streams: a stream is
// inside the gate until its handler returns, and its Context is the gate's. When
// that ends, RecvMsg and SendMsg return at once, even if they wait for a client
// that has been paused; the handler must not touch their message any more.
func StreamServerInterceptor(gate *tenure.Gate, opts *Options) grpc.StreamServerInterceptor {
	d := newDoor(gate, opts)
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		return d.pass(stream.Context(), info.FullMethod, func(ctx context.Context) error {
			if ctx == stream.Context() {
				return handle(srv, stream) // let in past the gate
			}
			return handle(srv, &serverStream{stream, ctx})
		})
	}
}

type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *serverStream) Context() context.Context { return s.ctx }

func (s *serverStream) RecvMsg(m any) error {
	return s.bounded(func() error { return s.ServerStream.RecvMsg(m) })
}

func (s *serverStream) SendMsg(m any) error {
	return s.bounded(func() error { return s.ServerStream.SendMsg(m) })
}

// bounded returns what op returns, or earlier when the context of the stream ends.
// The server's own stream cannot be ended from within its handler. So an op that
// waits is left behind, on a goroutine that ends with the stream, right after the
// handler has returned.
func (s *serverStream) bounded(op func() error) error {
	done := make(chan error, 1)
	go func() { done <- op() }()
	select {
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()

	case err := <-done:
		return err
	}
}

// door is a gate with its options.
type door struct {
	gate *tenure.Gate
	opts Options
	last wire.Last
}

func newDoor(gate *tenure.Gate, opts *Options) *door {
	d := &door{gate: gate}
	if opts != nil {
		d.opts = *opts
	}
	return d
}

// pass runs handle inside the gate, or returns why it may not run.
func (d *door) pass(ctx context.Context, method string, handle func(context.Context) error) error {
	fence, ok, err := get(metadata.ValueFromIncomingContext(ctx, MetadataKey), d.last.Parse)
	switch {
	case err != nil:
		return d.refuse(ctx, method, malformed, fence, err)
	case !ok && d.opts.Optional != nil && d.opts.Optional(ctx, method):
		return handle(ctx)
	case !ok:
		return d.refuse(ctx, method, missing, fence, fmt.Errorf("fencegrpc: there is no %s", MetadataKey))
	case fence.Key != d.gate.Key():
		return d.refuse(ctx, method, otherElection, fence, fmt.Errorf("fencegrpc: %s: a fence of %q at a gate of %q", MetadataKey, fence.Key, d.gate.Key()))
	}
	work, leave, err := d.gate.Enter(ctx, fence)
	switch {
	case err == nil:
	case errors.Is(err, tenure.ErrFenced):
		return d.refuse(ctx, method, fenced, fence, err)
	case ctx.Err() != nil:
		d.tell(ctx, method, err)
		return status.FromContextError(ctx.Err()).Err()
	default:
		return d.refuse(ctx, method, unavailable, fence, err)
	}
	defer leave()
	err = handle(wire.NewContext(work, fence))
	if err != nil && errors.Is(context.Cause(work), tenure.ErrFenced) {
		return interrupted.status(fence, context.Cause(work))
	}
	return err
}

const domain = "tenure"

// refusal is a way in which a call is not let in, or not to its end.
type refusal struct {
	reason  string
	code    codes.Code
	message string
}

var (
	fenced        = refusal{"FENCED", codes.FailedPrecondition, "the term has been replaced"}
	missing       = refusal{"FENCE_MISSING", codes.InvalidArgument, "a fence is required"}
	malformed     = refusal{"FENCE_MALFORMED", codes.InvalidArgument, "the fence is malformed"}
	otherElection = refusal{"OTHER_ELECTION", codes.InvalidArgument, "the fence is of another election"}
	unavailable   = refusal{"GATE_UNAVAILABLE", codes.Unavailable, "the fence cannot be checked now"}
	interrupted   = refusal{"INTERRUPTED", codes.Aborted, "the term was replaced while the call was handled: the outcome is unknown"}
)

func (d *door) tell(ctx context.Context, method string, err error) {
	if d.opts.Refused != nil {
		d.opts.Refused(ctx, method, err)
	}
}

func (d *door) refuse(ctx context.Context, method string, r refusal, fence tenure.Fence, err error) error {
	d.tell(ctx, method, err)
	return r.status(fence, err)
}

// status returns the status error of r. What is wrong with the client's own value
// it tells; what the gate or its memory said is none of the client's business, the
// later epoch aside.
func (r refusal) status(fence tenure.Fence, err error) error {
	info := &errdetails.ErrorInfo{Reason: r.reason, Domain: domain}
	message := "tenure: " + r.message
	switch r.code {
	case codes.InvalidArgument:
		message = err.Error()
	case fenced.code, interrupted.code:
		info.Metadata = map[string]string{"fence": fence.String()}
		if leader, ok := tenure.LeaderOf(err); ok && leader.Fence.Epoch > 0 {
			info.Metadata["epoch"] = strconv.FormatInt(int64(leader.Fence.Epoch), 10)
		}
	}
	st, err := status.New(r.code, message).WithDetails(info)
	if err != nil {
		panic(err) // the code is not OK and all text is ASCII
	}
	return st.Err()
}

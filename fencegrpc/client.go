package fencegrpc

import (
	"context"
	"strconv"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/wire"
)

// UnaryClientInterceptor attaches to every call the fence that fence returns at
// that moment, in place of one that the outgoing metadata has already. If fence
// returns an error, nothing is sent and the call fails with that error: with
// [FromTerm], [tenure.ErrTermEnded] once the term is over here. In another process
// than the leader's, fence returns what the leader has passed on.
//
// A call whose fence a gate has refused fails with a [tenure.ErrFenced]: nothing
// was done, and the term is over. [tenure.LeaderOf] tells the epoch of the later
// term, without its lease, where the status does. One that a later term has
// interrupted fails with a [tenure.ErrUnknownOutcome]. Both are status errors too,
// for [status.FromError]. Every other error is passed on as it came.
//
// fence must be safe for concurrent use.
func UnaryClientInterceptor(fence func() (tenure.Fence, error)) grpc.UnaryClientInterceptor {
	s := &source{fence: fence}
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		ctx, sent, err := s.attach(ctx)
		if err != nil {
			return err
		}
		return explain(invoke(ctx, method, req, reply, conn, opts...), sent)
	}
}

// StreamClientInterceptor is like [UnaryClientInterceptor] for streams. The fence
// is attached when a stream begins; give the stream the context of the term's work,
// so that it ends with it. As always, SendMsg reports that the server has ended
// the stream as io.EOF, and RecvMsg why.
func StreamClientInterceptor(fence func() (tenure.Fence, error)) grpc.StreamClientInterceptor {
	s := &source{fence: fence}
	return func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		ctx, sent, err := s.attach(ctx)
		if err != nil {
			return nil, err
		}
		stream, err := open(ctx, desc, conn, method, opts...)
		if err != nil {
			return nil, explain(err, sent)
		}
		return &clientStream{stream, sent}, nil
	}
}

// source is where a client's fences come from.
type source struct {
	fence func() (tenure.Fence, error)
	last  wire.Last
}

// attach returns ctx with the present fence in its outgoing metadata.
func (s *source) attach(ctx context.Context) (context.Context, tenure.Fence, error) {
	f, err := s.fence()
	if err != nil {
		return nil, tenure.Fence{}, err
	}
	md, ok := metadata.FromOutgoingContext(ctx) // a copy
	if !ok {
		md = make(metadata.MD, 1)
	}
	if err := set(md, f, s.last.Format); err != nil {
		return nil, tenure.Fence{}, err
	}
	return metadata.NewOutgoingContext(ctx, md), f, nil
}

type clientStream struct {
	grpc.ClientStream
	sent tenure.Fence
}

func (s *clientStream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	return md, explain(err, s.sent)
}

func (s *clientStream) SendMsg(m any) error { return explain(s.ClientStream.SendMsg(m), s.sent) }
func (s *clientStream) RecvMsg(m any) error { return explain(s.ClientStream.RecvMsg(m), s.sent) }

// explain adds to the error of a call that carried sent what it says about the
// fence.
func explain(err error, sent tenure.Fence) error {
	st, ok := status.FromError(err)
	if !ok || st.Code() != fenced.code && st.Code() != interrupted.code {
		return err
	}
	for _, detail := range st.Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if !ok || info.GetDomain() != domain || info.GetMetadata()["fence"] != sent.String() {
			continue
		}
		switch info.GetReason() {
		case fenced.reason:
			meaning := tenure.ErrFenced
			if epoch, bad := strconv.ParseInt(info.GetMetadata()["epoch"], 10, 64); bad == nil && epoch > 0 {
				meaning = tenure.FencedBy(tenure.Fence{Key: sent.Key, Epoch: tenure.Epoch(epoch)})
			}
			return &statusError{status: st, meaning: meaning}
		case interrupted.reason:
			return &statusError{status: st, meaning: tenure.ErrUnknownOutcome}
		}
	}
	return err
}

// statusError is a status error that says what the status means to a leader.
type statusError struct {
	status  *status.Status
	meaning error
}

func (e *statusError) Error() string              { return e.meaning.Error() + ": " + e.status.String() }
func (e *statusError) Unwrap() error              { return e.meaning }
func (e *statusError) GRPCStatus() *status.Status { return e.status }

package etcdtest

import (
	"context"
	"path"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A unary is one attempt of a unary call on its way through the faults.
type unary struct {
	f         *Faults
	method    string
	req, resp proto.Message
	opts      []grpc.CallOption
	send      func(ctx context.Context, req, resp any, opts ...grpc.CallOption) error
}

// unary stands between etcd's retry layer and the wire.
func (f *Faults) unary(ctx context.Context, method string, req, resp any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	// gRPC calls those at the end of the call, about its outcome, which is ours.
	var finish []grpc.OnFinishCallOption
	opts = slices.DeleteFunc(slices.Clone(opts), func(opt grpc.CallOption) bool {
		o, ok := opt.(grpc.OnFinishCallOption)
		if ok {
			finish = append(finish, o)
		}
		return ok
	})
	u := &unary{
		f:      f,
		method: path.Base(method),
		req:    req.(proto.Message),
		resp:   resp.(proto.Message),
		opts:   opts,
		send: func(ctx context.Context, req, resp any, opts ...grpc.CallOption) error {
			return invoke(ctx, method, req, resp, cc, opts...)
		},
	}
	f.record(Message{Method: u.method}, req)
	err := u.request(ctx)
	if err == nil {
		err = u.answer(ctx)
	}
	if err != nil {
		resp = nil
	}
	f.record(Message{Method: u.method, Answer: true, Err: err}, resp)
	for _, o := range finish {
		o.OnFinish(err)
	}
	return err
}

func (u *unary) request(ctx context.Context) error {
	a, r := u.f.claim(u.method, false, u.req, nil)
	switch {
	case r == nil:
		return u.send(ctx, u.req, u.resp, u.opts...)
	case a.lost:
		return u.f.wait(ctx, a, r)
	case a.err != nil:
		return a.err
	}

	req := proto.Clone(u.req)
	if a.edit != nil {
		a.edit(req)
	}
	switch {
	case a.delay > 0 || a.hold:
		return u.sendLate(ctx, req, a, r)
	case a.again == retry:
		_ = u.send(ctx, req, u.empty(), u.opts...)
		return u.send(ctx, req, u.resp, u.opts...)
	case a.again == duplicate:
		err := u.send(ctx, req, u.resp, u.opts...)
		_ = u.send(ctx, req, u.empty(), u.opts...)
		return err
	default:
		return u.send(ctx, req, u.resp, u.opts...)
	}
}

// sendLate sends the request in its own time. The caller may have gone by then,
// so nothing that belongs to it is touched: not its context, its answer, or the
// call options that write to its variables.
func (u *unary) sendLate(ctx context.Context, req proto.Message, a Action, r *Rule) error {
	resp := u.empty()
	done := make(chan error, 1)
	u.f.start(func() {
		if err := u.f.wait(context.Background(), a, r); err != nil {
			done <- err
			return
		}
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		defer context.AfterFunc(u.f.ctx, cancel)()
		done <- u.send(ctx, req, resp, inputs(u.opts)...)
	})
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()

	case <-u.f.ctx.Done():
		return status.FromContextError(u.f.ctx.Err()).Err()

	case err := <-done:
		if err == nil {
			proto.Merge(u.resp, resp)
		}
		return err
	}
}

func (u *unary) answer(ctx context.Context) error {
	a, r := u.f.claim(u.method, true, u.req, u.resp)
	if err := u.f.wait(ctx, a, r); err != nil {
		return err
	}
	if a.edit != nil {
		a.edit(u.resp)
	}
	return a.err
}

// empty returns an empty answer.
func (u *unary) empty() proto.Message { return u.resp.ProtoReflect().New().Interface() }

// inputs returns the options that do not write to variables of the caller.
func inputs(opts []grpc.CallOption) []grpc.CallOption {
	var in []grpc.CallOption
	for _, opt := range opts {
		switch opt.(type) {
		case grpc.HeaderCallOption, grpc.TrailerCallOption, grpc.PeerCallOption:
		default:
			in = append(in, opt)
		}
	}
	return in
}

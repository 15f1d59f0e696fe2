package etcdtest

import (
	"context"
	"path"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// A stream passes the messages of one gRPC stream through the faults.
type stream struct {
	grpc.ClientStream
	f      *Faults
	method string
	number int
	ctx    context.Context
	cancel context.CancelFunc

	// Owned by the sender.
	sent    chan struct{} // closed when the wire has all messages so far
	started func()        // closes first

	first chan struct{} // closed when the first message has been handed over

	// Owned by the receiver.
	replay proto.Message

	mu  sync.Mutex
	err error // why the faults ended the stream
}

// stream stands between etcd's retry layer and the wire.
func (f *Faults) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s := &stream{f: f, method: path.Base(method), sent: make(chan struct{}), first: make(chan struct{})}
	s.started = sync.OnceFunc(func() { close(s.first) })
	close(s.sent)
	s.ctx, s.cancel = context.WithCancel(ctx)
	// A stream that gRPC may still repeat by itself, on a server that is just
	// being restarted, holds its mutex while it waits for a connection. A sender
	// that waits for the mutex then stops a bubble's clock, which that connection
	// waits for. Without a buffer it may not repeat from its first message on,
	// and until then nobody receives.
	opts = append(slices.Clip(opts), grpc.MaxRetryRPCBufferSize(0))
	var err error
	if s.ClientStream, err = open(s.ctx, desc, cc, method, opts...); err != nil {
		s.cancel()
		return nil, err
	}
	f.mu.Lock()
	f.opened++
	s.number = f.opened
	f.streams[s] = struct{}{}
	f.mu.Unlock()
	context.AfterFunc(s.ctx, s.close)
	return s, nil
}

func (s *stream) close() {
	s.cancel()
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	delete(s.f.streams, s)
}

// end lets the receiver get err.
func (s *stream) end(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	s.mu.Unlock()
	s.close()
}

func (s *stream) ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// SendMsg returns at once, as gRPC's own does: a message that waits does so
// behind its back, and keeps its place.
func (s *stream) SendMsg(m any) error {
	defer s.started()
	s.f.record(Message{Method: s.method, Stream: s.number}, m)
	a, r := s.f.claim(s.method, false, m, nil)
	switch {
	case a.lost:
		return nil
	case a.err != nil:
		s.end(a.err)
		return nil
	}
	body := proto.Clone(m.(proto.Message))
	if a.edit != nil {
		a.edit(body)
	}
	send := func() error {
		err := s.ClientStream.SendMsg(body)
		if err == nil && a.again != once {
			err = s.ClientStream.SendMsg(body)
		}
		return err
	}
	if a.delay == 0 && !a.hold {
		select {
		case <-s.sent:
			return send()
		default:
		}
	}
	s.after(func() {
		if s.f.wait(s.ctx, a, r) == nil {
			_ = send()
		}
	})
	return nil
}

// CloseSend takes its place behind the messages that wait.
func (s *stream) CloseSend() error {
	select {
	case <-s.sent:
		return s.ClientStream.CloseSend()
	default:
	}
	s.after(func() { _ = s.ClientStream.CloseSend() })
	return nil
}

// after runs f when all earlier messages are on the wire.
func (s *stream) after(f func()) {
	before, sent := s.sent, make(chan struct{})
	s.sent = sent
	s.f.start(func() {
		defer close(sent)
		<-before
		f()
	})
}

// RecvMsg waits for the next message that the faults let through.
func (s *stream) RecvMsg(m any) error {
	err := s.receive(m.(proto.Message))
	if err != nil {
		s.close()
		m = nil
	}
	s.f.record(Message{Method: s.method, Stream: s.number, Answer: true, Err: err}, m)
	return err
}

func (s *stream) receive(m proto.Message) error {
	select {
	case <-s.first:
	case <-s.ctx.Done(): // gRPC says why
	}
	if s.replay != nil {
		proto.Reset(m)
		proto.Merge(m, s.replay)
		s.replay = nil
		return nil
	}
	for {
		err := s.ClientStream.RecvMsg(m)
		if ended := s.ended(); ended != nil {
			return ended
		}
		if err != nil {
			return err
		}
		a, r := s.f.claim(s.method, true, nil, m)
		if a.lost {
			continue
		}
		if err := s.f.wait(s.ctx, a, r); err != nil {
			if ended := s.ended(); ended != nil {
				return ended
			}
			return err
		}
		switch {
		case a.err != nil:
			s.end(a.err)
			return a.err
		case a.edit != nil:
			a.edit(m)
		case a.again != once:
			s.replay = proto.Clone(m)
		}
		return nil
	}
}

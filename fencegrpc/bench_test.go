package fencegrpc_test

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fencegrpc"
)

// A guarded call beside a plain one, and a message of a guarded stream beside one
// of a plain stream, each with its own server and client over loopback.
func BenchmarkCall(b *testing.B) {
	for _, kind := range []string{"Plain", "Guarded"} {
		var serverOpts []grpc.ServerOption
		dialOpts := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
		if kind == "Guarded" {
			gate, fence := tenure.NewGate(key), always(fenceOf(5))
			serverOpts = append(serverOpts,
				grpc.UnaryInterceptor(fencegrpc.UnaryServerInterceptor(gate, nil)),
				grpc.StreamInterceptor(fencegrpc.StreamServerInterceptor(gate, nil)))
			dialOpts = append(dialOpts,
				grpc.WithUnaryInterceptor(fencegrpc.UnaryClientInterceptor(fence)),
				grpc.WithStreamInterceptor(fencegrpc.StreamClientInterceptor(fence)))
		}
		server := grpc.NewServer(serverOpts...)
		pb.RegisterTestServiceServer(server, &service{
			unary: func(context.Context) error { return nil },
			duplex: func(s pb.TestService_FullDuplexCallServer) error {
				for {
					if _, err := s.Recv(); err != nil {
						return nil //nolint:nilerr // the client has had enough
					}
					if err := s.Send(&pb.StreamingOutputCallResponse{}); err != nil {
						return err
					}
				}
			},
		})
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		go func() { _ = server.Serve(listener) }()
		conn, err := grpc.NewClient(listener.Addr().String(), dialOpts...)
		if err != nil {
			b.Fatal(err)
		}
		client := pb.NewTestServiceClient(conn)
		b.Run(kind, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := unary(b.Context(), client); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(kind+"Parallel", func(b *testing.B) {
			b.SetParallelism(8)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := unary(b.Context(), client); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
		b.Run(kind+"StreamMessage", func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			stream, err := client.FullDuplexCall(ctx)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if err := stream.Send(&pb.StreamingOutputCallRequest{}); err != nil {
					b.Fatal(err)
				}
				if _, err := stream.Recv(); err != nil {
					b.Fatal(err)
				}
			}
		})
		_ = conn.Close()
		server.Stop()
	}
}

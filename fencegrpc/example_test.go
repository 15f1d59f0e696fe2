package fencegrpc_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fencegrpc"
	"github.com/tenure-go/tenure/tenuretest"
)

// A leader calls a service over gRPC. Once it has been replaced, the service
// refuses what it still sends, and the leader itself sends nothing more.
func Example() {
	// The service, in its own process. Both interceptors share the gate.
	gate := tenure.NewGate("/scheduler/leader")
	server := grpc.NewServer(
		grpc.UnaryInterceptor(fencegrpc.UnaryServerInterceptor(gate, nil)),
		grpc.StreamInterceptor(fencegrpc.StreamServerInterceptor(gate, nil)))
	pb.RegisterTestServiceServer(server, &service{unary: func(ctx context.Context) error {
		fence, _ := fencegrpc.FromContext(ctx)
		fmt.Println("written in epoch", fence.Epoch) // and stop when ctx ends
		return nil
	}})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	// The leader, in its own.
	election := tenuretest.NewElection("/scheduler/leader") // needs no etcd
	term := election.Grant(nil)
	fence := fencegrpc.FromTerm(term)
	conn, err := grpc.NewClient(listener.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(fencegrpc.UnaryClientInterceptor(fence)),
		grpc.WithStreamInterceptor(fencegrpc.StreamClientInterceptor(fence)))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	client := pb.NewTestServiceClient(conn)
	if _, err := client.EmptyCall(term.Context(), &pb.Empty{}); err != nil {
		log.Fatal(err)
	}

	// Another candidate takes over, and seals before it reads what it builds on.
	later := tenure.Fence{Key: "/scheduler/leader", Epoch: term.Epoch() + 1, Lease: 1}
	if err := gate.Seal(context.Background(), later); err != nil {
		log.Fatal(err)
	}
	_, err = client.EmptyCall(term.Context(), &pb.Empty{})
	leader, _ := tenure.LeaderOf(err)
	fmt.Println("refused:", errors.Is(err, tenure.ErrFenced), status.Code(err), "by epoch", leader.Fence.Epoch)

	election.End(tenure.LeaseExpired)
	_, err = client.EmptyCall(context.Background(), &pb.Empty{})
	fmt.Println("not sent:", errors.Is(err, tenure.LeaseExpired))
	_ = term.Resign()
	// Output:
	// written in epoch 1
	// refused: true FailedPrecondition by epoch 2
	// not sent: true
}

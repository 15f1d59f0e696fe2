// Command follow shows a gRPC client that always calls the leader, through a
// hand-over, and a service behind it that refuses the leader before. It needs no
// etcd of its own and ends after a moment.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/examples/internal/embedded"
	"github.com/tenure-go/tenure/fencegrpc"
	"github.com/tenure-go/tenure/leadergrpc"
)

const key = "/scheduler/leader"

var plaintext = grpc.WithTransportCredentials(insecure.NewCredentials())

func main() {
	calls := flag.Int("calls", 3, "calls before the hand-over, and after it")
	etcd := embedded.Flag()
	flag.Parse()
	if err := run(context.Background(), etcd, *calls); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, etcd *embedded.Endpoints, calls int) error {
	client, stop, err := etcd.Open(ctx)
	if err != nil {
		return err
	}
	defer stop()

	// What must not be harmed: a store, which lets calls in by their fence only.
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	guard := fencegrpc.UnaryServerInterceptor(tenure.NewGate(key), nil)
	defer serve(lis, &store{}, grpc.UnaryInterceptor(guard))()

	ctx, cancel := context.WithCancel(ctx)
	var candidates sync.WaitGroup
	defer candidates.Wait()
	defer cancel()
	for _, name := range []string{"node-1", "node-2"} {
		if err := start(ctx, &candidates, client, name, lis.Addr().String()); err != nil {
			return err
		}
	}

	// The client names the election in place of a host. Its calls may be done twice,
	// so it makes them again.
	conn, err := grpc.NewClient(leadergrpc.Target(key), plaintext,
		grpc.WithResolvers(leadergrpc.NewBuilder(client, nil)),
		grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "waitForReady": true, "retryPolicy": {
			"maxAttempts": 5, "initialBackoff": "0.05s", "maxBackoff": "1s",
			"backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`))
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := call(ctx, conn, calls); err != nil {
		return err
	}
	leader, err := tenure.Lookup(ctx, client, key)
	if err != nil {
		return err
	}
	fmt.Println(leader.Identity, "is asked to go")
	if err := tenure.Evict(ctx, client, leader.Fence, nil); err != nil {
		return err
	}
	if err := call(ctx, conn, calls); err != nil {
		return err
	}

	// What the leader before sends late is refused by the store.
	late, err := dialStore(lis.Addr().String(), func() (tenure.Fence, error) { return leader.Fence, nil })
	if err != nil {
		return err
	}
	defer late.Close()
	_, err = pb.NewTestServiceClient(late).EmptyCall(ctx, &pb.Empty{})
	if !errors.Is(err, tenure.ErrFenced) {
		return errors.Join(errors.New("the store has not refused a late write"), err)
	}
	fmt.Println("a late write of", leader.Identity, "is refused:", err)
	return nil
}

func call(ctx context.Context, conn *grpc.ClientConn, times int) error {
	for range times {
		answer, err := pb.NewTestServiceClient(conn).UnaryCall(ctx, &pb.SimpleRequest{})
		if err != nil {
			return err
		}
		fmt.Println("answered by", answer.ServerId)
	}
	return nil
}

// candidate serves gRPC, and answers only while it leads.
type candidate struct {
	pb.UnimplementedTestServiceServer
	name    string
	elector *tenure.Elector
	store   *grpc.ClientConn
}

// start lets a new candidate serve and campaign, on a goroutine of running, until
// ctx ends.
func start(ctx context.Context, running *sync.WaitGroup, client *clientv3.Client, name, store string) error {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	c := &candidate{name: name}
	c.elector, err = tenure.New(client, key, &tenure.Options{Identity: name, Address: lis.Addr().String()})
	if err != nil {
		return err
	}
	if c.store, err = dialStore(store, c.fence); err != nil {
		return err
	}
	running.Go(func() {
		defer c.store.Close()
		defer serve(lis, c)()
		err := c.elector.Run(ctx, func(ctx context.Context, _ *tenure.Term) error {
			fmt.Println(name, "leads")
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if ctx.Err() == nil {
			log.Print(name, " campaigns no more: ", err)
		}
	})
	return nil
}

// fence is sent with every call to the store; without one nothing is sent.
func (c *candidate) fence() (tenure.Fence, error) {
	if term := c.elector.Term(); term != nil && term.Valid() {
		return term.Fence(), nil
	}
	return tenure.Fence{}, status.Error(codes.Unavailable, c.name+" does not lead") // the client tries again
}

func (c *candidate) UnaryCall(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	_, err := pb.NewTestServiceClient(c.store).EmptyCall(ctx, &pb.Empty{})
	if errors.Is(err, tenure.ErrFenced) {
		err = status.Error(codes.Unavailable, c.name+" has been replaced") // nothing was written
	}
	return &pb.SimpleResponse{ServerId: c.name}, err
}

// store is what the leader writes to.
type store struct {
	pb.UnimplementedTestServiceServer
}

func (*store) EmptyCall(ctx context.Context, _ *pb.Empty) (*pb.Empty, error) {
	fence, _ := fencegrpc.FromContext(ctx)
	fmt.Println("  written in epoch", fence.Epoch)
	return &pb.Empty{}, nil
}

func dialStore(addr string, fence func() (tenure.Fence, error)) (*grpc.ClientConn, error) {
	return grpc.NewClient(addr, plaintext, grpc.WithUnaryInterceptor(fencegrpc.UnaryClientInterceptor(fence)))
}

func serve(lis net.Listener, service pb.TestServiceServer, opts ...grpc.ServerOption) (stop func()) {
	server := grpc.NewServer(opts...)
	pb.RegisterTestServiceServer(server, service)
	go func() { _ = server.Serve(lis) }()
	return server.Stop
}

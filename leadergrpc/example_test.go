package leadergrpc_test

import (
	"context"
	"errors"
	"log"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
	"github.com/tenure-go/tenure/leadergrpc"
)

// retries makes a call wait for a leader, and makes it again where a candidate has
// refused it.
const retries = `{"methodConfig": [{
	"name": [{"service": "grpc.testing.TestService"}],
	"waitForReady": true,
	"retryPolicy": {
		"maxAttempts": 5, "initialBackoff": "0.05s", "maxBackoff": "1s",
		"backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]
	}
}]}`

// dial returns a connection that follows the leader of the scheduler.
func dial(client *clientv3.Client, creds credentials.TransportCredentials) (*grpc.ClientConn, error) {
	return grpc.NewClient(leadergrpc.Target("/scheduler/leader"), // tenure:////scheduler/leader
		grpc.WithResolvers(leadergrpc.NewBuilder(client, nil)),
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultServiceConfig(retries))
}

// scheduler is the service of each candidate.
type scheduler struct {
	pb.UnimplementedTestServiceServer
	elector *tenure.Elector
	kv      clientv3.KV
}

func (s *scheduler) UnaryCall(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	term := s.elector.Term()
	if term == nil || !term.Valid() {
		return nil, status.Error(codes.Unavailable, "not leading") // nothing was done: try again
	}
	_, err := term.KV(s.kv).Put(ctx, "/scheduler/jobs/1", "queued")
	if errors.Is(err, tenure.ErrFenced) || errors.Is(err, tenure.ErrTermEnded) {
		return nil, status.Error(codes.Unavailable, "not leading any more") // nothing was written either
	}
	return &pb.SimpleResponse{}, err
}

func TestSchedulerRefusesWhileItDoesNotLead(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, server *etcdtest.Server) {
		c := server.Client()
		elector, err := tenure.New(c.Client, key, nil)
		require.NoError(t, err)
		s := &scheduler{elector: elector, kv: c.Client}
		call := func() error {
			_, err := s.UnaryCall(t.Context(), nil)
			return err
		}
		require.Equal(t, codes.Unavailable, status.Code(call()))
		term, err := elector.Campaign(t.Context())
		require.NoError(t, err)
		require.NoError(t, call())

		deaf := c.Faults.On("Watch", etcdtest.LoseAnswer())
		remove(t, server) // the leader has not heard of it, the fence has
		require.True(t, term.Valid())
		require.ErrorContains(t, call(), "not leading any more")
		require.Equal(t, codes.Unavailable, status.Code(call()))
		deaf.Stop()
		require.NoError(t, term.Resign())
		require.Equal(t, codes.Unavailable, status.Code(call()))
		require.Len(t, server.Keys("/scheduler/jobs/"), 1)
	})
}

func ExampleNewBuilder() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://127.0.0.1:2379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	conn, err := dial(client, insecure.NewCredentials())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close() // before the client
	if _, err := pb.NewTestServiceClient(conn).UnaryCall(context.Background(), &pb.SimpleRequest{}); err != nil {
		log.Fatal(err)
	}
}

// A candidate that serves gRPC beside its published address says where in its
// metadata.
func ExampleOptions() {
	opts := &leadergrpc.Options{Address: func(leader tenure.Leader) (resolver.Address, error) {
		return resolver.Address{Addr: leader.Metadata["grpc"]}, nil // empty: the calls fail, and say so
	}}
	_ = leadergrpc.NewBuilder(nil, opts)
}

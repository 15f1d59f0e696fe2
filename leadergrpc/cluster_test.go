package leadergrpc_test

import (
	"context"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
)

// caller calls all the time, until its context ends.
type caller struct {
	newest    atomic.Int64 // epoch that has answered
	calls     int
	failures  []error
	wentBack  bool
	completed chan struct{}
}

func keepCalling(ctx context.Context, service pb.TestServiceClient) *caller {
	c := &caller{completed: make(chan struct{})}
	go func() {
		defer close(c.completed)
		for {
			limited, cancel := context.WithTimeout(ctx, time.Minute)
			r, err := service.UnaryCall(limited, &pb.SimpleRequest{})
			cancel()
			if ctx.Err() != nil {
				return
			}
			c.calls++
			time.Sleep(time.Millisecond) // of a bubble, too; and leave the processors to the others
			if err != nil {
				c.failures = append(c.failures, err)
				continue
			}
			epoch, _ := strconv.ParseInt(r.GetUsername(), 10, 64)
			c.wentBack = c.wentBack || epoch < c.newest.Load()
			c.newest.Store(epoch)
		}
	}()
	return c
}

// TestClientsKeepCalling: three candidates, a cluster of three members, 20 orderly
// hand-overs and two members that stop meanwhile, the Raft leader one of them. Every
// new leader answers, none is followed by one before, and a call that fails does so
// with codes.Unavailable.
func TestClientsKeepCalling(t *testing.T) {
	const handOvers = 20
	c := etcdtest.StartCluster(t, 3)
	loopback := func() net.Listener {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		return lis
	}
	var nodes []*node
	for i := range 3 {
		lis := loopback()
		nodes = append(nodes, start(t, c.Client(), "node-"+strconv.Itoa(i), lis.Addr().String(), lis))
	}
	term := nextOf(t, nodes)

	retrying, err := dial(c.Client().Client, insecure.NewCredentials())
	require.NoError(t, err)
	t.Cleanup(func() { _ = retrying.Close() })

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	patient := keepCalling(ctx, pb.NewTestServiceClient(retrying))
	hasty := keepCalling(ctx, follow(t, c.Client(), nil, nil))
	stopped := -1
	for n := range handOvers + 1 {
		for name, client := range map[string]*caller{"patient": patient, "hasty": hasty} {
			// Or a later one: a busy machine may lose a lease.
			etcdtest.Eventually(t, time.Minute, name+": the epoch answers", true, func() bool {
				return client.newest.Load() >= int64(term.Epoch())
			})
		}
		switch n {
		case 6:
			stopped = c.Leader()
			c.Stop(stopped)
		case 12:
			c.Restart(stopped)
			stopped = (c.Leader() + 1) % 3
			c.Stop(stopped)
		case 18:
			c.Restart(stopped)
		case handOvers:
			continue
		}
		if err := term.Resign(); err != nil {
			require.ErrorIs(t, err, tenure.ErrUnknownOutcome) // while etcd has no leader
		}
		term = nextOf(t, nodes)
	}
	stop()
	<-patient.completed
	<-hasty.completed
	for _, client := range []*caller{patient, hasty} {
		require.False(t, client.wentBack)
		for _, err := range client.failures {
			require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		}
		t.Log(client.calls, "calls,", len(client.failures), "failed")
	}
}

// nextOf returns the next term that one of nodes wins.
func nextOf(t *testing.T, nodes []*node) *tenure.Term {
	t.Helper()
	limit := time.After(time.Minute)
	select {
	case term := <-nodes[0].terms:
		return term

	case term := <-nodes[1].terms:
		return term

	case term := <-nodes[2].terms:
		return term

	case <-limit:
		require.Fail(t, "nobody has won")
		return nil
	}
}

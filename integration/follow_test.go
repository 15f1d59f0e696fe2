package integration_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
	"github.com/tenure-go/tenure/leadergrpc"
	"github.com/tenure-go/tenure/leaderhttp"
)

// Clients keep calling while real processes hand over to each other and are
// killed, and members of etcd are restarted. They find each new leader, and no
// call that begins after a takeover was known is answered by a leader before it.

// replicaVar is the name of a replica, which is this program started again.
const replicaVar = "TENURE_TEST_REPLICA"

func shortBackoff() grpc.DialOption {
	return grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, MaxDelay: 200 * time.Millisecond},
		MinConnectTimeout: time.Second,
	})
}

// served makes the one write of a request, and returns the epoch that it was
// made in.
func served(ctx context.Context, client *clientv3.Client, term *tenure.Term) (int64, error) {
	_, err := term.KV(client).Put(ctx, "/served", os.Getenv(replicaVar))
	return int64(term.Epoch()), err
}

// replica serves HTTP and gRPC, and leads when it can, until its standard input
// ends.
func replica(ctx context.Context) error {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: strings.Split(os.Getenv(etcdVar), ","), Logger: zap.NewNop(), DialOptions: []grpc.DialOption{shortBackoff()},
	})
	if err != nil {
		return err
	}
	defer client.Close()
	var listeners [2]net.Listener
	for i := range listeners {
		if listeners[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
	}
	elector, err := tenure.New(client, election, &tenure.Options{
		Identity: os.Getenv(replicaVar), TTL: 3 * time.Second,
		Address: listeners[0].Addr().String(), Metadata: map[string]string{"grpc": listeners[1].Addr().String()},
	})
	if err != nil {
		return err
	}
	web := &http.Server{Handler: leaderhttp.Proxy(elector, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		term, _ := leaderhttp.TermFromContext(r.Context())
		epoch, err := served(r.Context(), client, term)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, epoch)
	}), nil)}
	defer serving(func() error { return web.Serve(listeners[0]) }, func() { _ = web.Close() })()
	calls := grpc.NewServer()
	calls.RegisterService(&grpc.ServiceDesc{ServiceName: "served", Methods: []grpc.MethodDesc{{
		MethodName: "Epoch",
		Handler: func(_ any, ctx context.Context, _ func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			term := elector.Term()
			if term == nil || !term.Valid() {
				return nil, status.Error(codes.Unavailable, "not leading") // nothing was done: try again
			}
			epoch, err := served(ctx, client, term)
			if err != nil {
				return nil, status.Error(codes.Unavailable, err.Error()) // and this may be done twice
			}
			return wrapperspb.Int64(epoch), nil
		},
	}}}, nil)
	defer serving(func() error { return calls.Serve(listeners[1]) }, calls.Stop)()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the test
		cancel()
	}()
	fmt.Println("ready")
	return elector.Run(ctx, func(ctx context.Context, _ *tenure.Term) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
}

func startReplica(t *testing.T, name, endpoints string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), replicaVar+"="+name, etcdVar+"="+endpoints)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	_, err := cmd.StdinPipe()
	require.NoError(t, err)
	output, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(output).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	return cmd
}

// news is what the test's own watch has told.
type news struct {
	mu     sync.Mutex
	leader tenure.Leader // the last one
	at     time.Time     // when it was told
}

func (n *news) last() (tenure.Leader, time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.leader, n.at
}

func (n *news) follow(ctx context.Context, client *clientv3.Client) {
	for st, err := range tenure.Observe(ctx, client, election) {
		if err != nil {
			return // ctx has ended
		}
		n.mu.Lock()
		if st.Leader.Fence.Epoch > n.leader.Fence.Epoch {
			n.leader, n.at = st.Leader, time.Now()
		}
		n.mu.Unlock()
	}
}

// caller calls the leader again and again.
type caller struct {
	name string
	call func(ctx context.Context) (int64, error)

	mu    sync.Mutex
	epoch tenure.Epoch // of the last answer
	waits []time.Duration
	fault error
}

func (c *caller) run(ctx context.Context, n *news) {
	for ctx.Err() == nil {
		known, _ := n.last()
		attempt, cancel := context.WithTimeout(ctx, limit)
		answer, err := c.call(attempt)
		cancel()
		if ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		switch epoch := tenure.Epoch(answer); {
		case err != nil:
			c.fault = errors.Join(c.fault, fmt.Errorf("%s: %w", c.name, err))
		case epoch < known.Fence.Epoch:
			c.fault = errors.Join(c.fault, fmt.Errorf("%s: answered in epoch %d, and %d was known before the call", c.name, epoch, known.Fence.Epoch))
		case epoch > c.epoch:
			wait := time.Duration(0) // if it was answered before the news were there
			if now, at := n.last(); now.Fence.Epoch == epoch {
				wait = time.Since(at)
			}
			c.waits = append(c.waits, wait)
			c.epoch = epoch
		}
		c.mu.Unlock()
		time.Sleep(2 * time.Millisecond) // leave something to others
	}
}

func (c *caller) state() (tenure.Epoch, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.epoch, c.fault
}

func TestClientsFollowTheLeader(t *testing.T) {
	cluster := etcdtest.StartCluster(t, 3)
	var urls []string
	for _, m := range cluster.Members {
		urls = append(urls, m.GRPCURL)
	}
	endpoints := strings.Join(urls, ",")
	replicas := make(map[string]*exec.Cmd)
	for _, name := range []string{"a", "b", "c"} {
		replicas[name] = startReplica(t, name, endpoints)
	}
	client := cluster.Client().Client
	n := new(news)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { n.follow(ctx, client) })

	transport, err := leaderhttp.NewTransport(client, election, nil)
	require.NoError(t, err)
	defer transport.Close()
	conn, err := grpc.NewClient(leadergrpc.Target(election),
		grpc.WithResolvers(leadergrpc.NewBuilder(client, &leadergrpc.Options{Address: func(l tenure.Leader) (resolver.Address, error) {
			return resolver.Address{Addr: l.Metadata["grpc"]}, nil
		}})),
		grpc.WithTransportCredentials(insecure.NewCredentials()), shortBackoff(),
		grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{"service": "served"}], "waitForReady": true}]}`))
	require.NoError(t, err)
	defer conn.Close()
	callers := []*caller{
		{name: "HTTP", call: func(ctx context.Context) (int64, error) { return callHTTP(ctx, &http.Client{Transport: transport}) }},
		{name: "gRPC", call: func(ctx context.Context) (int64, error) { return callGRPC(ctx, conn) }},
	}
	for _, c := range callers {
		running.Go(func() { c.run(ctx, n) })
	}
	// arrived waits until all callers were answered in an epoch above the given one.
	arrived := func(epoch tenure.Epoch) {
		t.Helper()
		require.Eventually(t, func() bool {
			for _, c := range callers {
				got, fault := c.state()
				require.NoError(t, fault)
				if got <= epoch {
					return false
				}
			}
			return true
		}, limit, 5*time.Millisecond, "nobody has answered in an epoch above %d", epoch)
	}
	// leads waits until somebody does.
	leads := func() (leader tenure.Leader) {
		t.Helper()
		require.Eventually(t, func() bool {
			var err error
			leader, err = tenure.Lookup(ctx, client, election)
			return err == nil
		}, limit, 5*time.Millisecond)
		return leader
	}
	arrived(0)
	for i := range 20 {
		leader := leads()
		err := tenure.Evict(ctx, client, leader.Fence, nil)
		if !errors.Is(err, tenure.ErrFenced) && !errors.Is(err, tenure.ErrNoLeader) { // it has gone by itself
			require.NoError(t, err)
		}
		arrived(leader.Fence.Epoch)
		switch i % 4 {
		case 1: // five crashes in all
			leader := leads()
			dead := replicas[leader.Identity]
			require.NoError(t, dead.Process.Kill())
			arrived(leader.Fence.Epoch)
			replicas[leader.Identity] = startReplica(t, leader.Identity, endpoints)

		case 3:
			if i/4 < 2 { // and two restarts of a member, that of etcd's leader first
				member := cluster.Leader()
				if i/4 == 1 {
					member = (member + 1) % 3
				}
				cluster.Stop(member)
				time.Sleep(time.Second)
				cluster.Restart(member)
			}
		}
	}
	cancel()
	running.Wait()
	for _, c := range callers {
		_, fault := c.state()
		require.NoError(t, fault)
		slices.Sort(c.waits)
		t.Logf("%s: %d takeovers, from the news of a takeover to the first answer in the new epoch: median %v, longest %v",
			c.name, len(c.waits), c.waits[len(c.waits)/2], c.waits[len(c.waits)-1])
	}
}

func callHTTP(ctx context.Context, client *http.Client) (int64, error) {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://leader/", nil)
		if err != nil {
			return 0, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err == nil && resp.StatusCode == http.StatusOK {
			return strconv.ParseInt(string(body), 10, 64)
		}
		// Refused by a leader that has just been replaced, or cut off in its answer.
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
}

func callGRPC(ctx context.Context, conn *grpc.ClientConn) (int64, error) {
	for {
		answer := new(wrapperspb.Int64Value)
		err := conn.Invoke(ctx, "/served/Epoch", new(emptypb.Empty), answer)
		if status.Code(err) != codes.Unavailable || ctx.Err() != nil {
			return answer.Value, err
		}
	}
}

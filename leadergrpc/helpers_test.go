package leadergrpc_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
	"github.com/tenure-go/tenure/leadergrpc"
)

// key is the election of the tests.
const key = "/scheduler/leader"

const (
	ttl     = 10 * time.Second       // of the candidates' leases
	latency = 150 * time.Millisecond // that etcd may take to tell a watch that begins in the past

	// healing is the longest that etcd's client takes to come back after an
	// outage: the back-off of gRPC.
	healing = 3 * time.Minute
)

// hosts are where the servers of a bubble listen, by host:port.
type hosts struct {
	far time.Duration // that a dial takes

	mu   sync.Mutex
	host map[string]*host
}

// host is a place to listen. It counts its connections.
type host struct {
	*bufconn.Listener
	dials atomic.Int32
	open  atomic.Int32
}

type conn struct {
	net.Conn
	closed func()
}

func (c *conn) Close() error {
	c.closed()
	return c.Conn.Close()
}

func (h *hosts) listen(addr string) *host {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.host == nil {
		h.host = make(map[string]*host)
	}
	h.host[addr] = &host{Listener: bufconn.Listen(1 << 16)}
	return h.host[addr]
}

// dial dials as TCP does: nobody there, refused.
func (h *hosts) dial(ctx context.Context, addr string) (net.Conn, error) {
	h.mu.Lock()
	there := h.host[addr]
	h.mu.Unlock()
	time.Sleep(h.far)
	if there == nil {
		return nil, fmt.Errorf("dial %s: nobody listens", addr)
	}
	there.dials.Add(1)
	c, err := there.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	there.open.Add(1)
	return &conn{c, sync.OnceFunc(func() { there.open.Add(-1) })}, nil
}

// node is a candidate with a gRPC server, which answers only while it leads.
type node struct {
	pb.UnimplementedTestServiceServer
	name    string
	client  *etcdtest.Client // the elector's
	elector *tenure.Elector
	server  *grpc.Server
	terms   chan *tenure.Term
	stop    func() // ends the campaigns, and waits
}

func (n *node) lead() (*tenure.Term, error) {
	if term := n.elector.Term(); term != nil && term.Valid() {
		return term, nil
	}
	return nil, status.Errorf(codes.Unavailable, "%s does not lead", n.name)
}

// UnaryCall answers with the name of the node and, as the user, its epoch.
func (n *node) UnaryCall(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	term, err := n.lead()
	if err != nil {
		return nil, err
	}
	return &pb.SimpleResponse{ServerId: n.name, Username: fmt.Sprint(term.Epoch())}, nil
}

// FullDuplexCall echoes, whoever leads.
func (n *node) FullDuplexCall(stream pb.TestService_FullDuplexCallServer) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return nil
		}
		if err := stream.Send(&pb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

// start lets a new node serve at lis and campaign until the test ends.
func start(t *testing.T, c *etcdtest.Client, name, address string, lis net.Listener, creds ...grpc.ServerOption) *node {
	t.Helper()
	n := &node{name: name, client: c, terms: make(chan *tenure.Term, 1000), server: grpc.NewServer(creds...)}
	pb.RegisterTestServiceServer(n.server, n)
	go func() { _ = n.server.Serve(lis) }()
	t.Cleanup(n.server.Stop)

	var err error
	n.elector, err = tenure.New(c.Client, key, &tenure.Options{Identity: name, Address: address, TTL: ttl})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = n.elector.Run(ctx, func(ctx context.Context, term *tenure.Term) error {
			n.terms <- term
			<-ctx.Done()
			return nil
		})
	}()
	n.stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(n.stop)
	return n
}

// won returns the next term of n.
func (n *node) won(t *testing.T, within time.Duration) *tenure.Term {
	t.Helper()
	return etcdtest.Await(t, within, "Run", n.terms)
}

// candidate starts a node at its own host, named like it, with the port 1.
func (h *hosts) candidate(t *testing.T, s *etcdtest.Server, name string) *node {
	t.Helper()
	return start(t, s.Client(), name, name+":1", h.listen(name+":1"))
}

// follower is a connection that follows the election.
type follower struct {
	pb.TestServiceClient
	conn   *grpc.ClientConn
	client *etcdtest.Client // the resolver's

	mu    sync.Mutex
	shown []tenure.Status // where the addresses come from that it was given
	given resolver.State  // the last state
	gifts int             // how many there were
	errs  []error         // that were reported
}

// follow makes one through dial; nil: over loopback.
func follow(t *testing.T, c *etcdtest.Client, dial func(context.Context, string) (net.Conn, error), opts *leadergrpc.Options, dialOpts ...grpc.DialOption) *follower {
	t.Helper()
	f := &follower{client: c}
	all := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithResolvers(&spying{leadergrpc.NewBuilder(c.Client, opts), f}),
	}
	if dial != nil {
		all = append(all, grpc.WithContextDialer(dial))
	}
	var err error
	f.conn, err = grpc.NewClient(leadergrpc.Target(key), append(all, dialOpts...)...)
	require.NoError(t, err)
	f.TestServiceClient = pb.NewTestServiceClient(f.conn)
	t.Cleanup(func() { _ = f.conn.Close() })
	return f
}

// call makes a call that may take a minute, and returns who answered.
func (f *follower) call(t *testing.T, opts ...grpc.CallOption) (string, error) {
	t.Helper()
	return f.callFor(t.Context(), time.Minute, opts...)
}

func (f *follower) callFor(ctx context.Context, limit time.Duration, opts ...grpc.CallOption) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r, err := f.UnaryCall(ctx, &pb.SimpleRequest{}, opts...)
	return r.GetServerId(), err
}

// reaches asserts that one call, without a retry, is answered by n.
func (f *follower) reaches(t *testing.T, n *node) {
	t.Helper()
	got, err := f.call(t)
	require.NoError(t, err)
	require.Equal(t, n.name, got)
}

// fails asserts that a call fails at once, with a message that has all of texts.
func (f *follower) fails(t *testing.T, texts ...string) {
	t.Helper()
	begun := time.Now()
	_, err := f.call(t)
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	for _, text := range texts {
		require.ErrorContains(t, err, text)
	}
	require.Zero(t, time.Since(begun))
}

// status is where the address comes from that f has; Idle: it has none.
func (f *follower) status() tenure.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	st, _ := leadergrpc.StatusOf(f.given)
	return st
}

// spying passes the states on to a follower's record too.
type spying struct {
	resolver.Builder
	f *follower
}

func (s *spying) Build(target resolver.Target, cc resolver.ClientConn, opts resolver.BuildOptions) (resolver.Resolver, error) {
	return s.Builder.Build(target, &spy{cc, s.f}, opts)
}

type spy struct {
	resolver.ClientConn
	f *follower
}

func (s *spy) UpdateState(state resolver.State) error {
	s.f.mu.Lock()
	s.f.given = state
	s.f.gifts++
	if st, ok := leadergrpc.StatusOf(state); ok {
		s.f.shown = append(s.f.shown, st)
	}
	s.f.mu.Unlock()
	return s.ClientConn.UpdateState(state)
}

func (s *spy) ReportError(err error) {
	s.f.mu.Lock()
	s.f.errs = append(s.f.errs, err)
	s.f.mu.Unlock()
	s.ClientConn.ReportError(err)
}

// settle waits until the watch has told of what has happened, and nothing in the
// bubble has anything to do about it.
func settle() {
	time.Sleep(latency)
	synctest.Wait()
}

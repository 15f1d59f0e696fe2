package etcdtest

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/tests/v3/framework/integration"
	"go.uber.org/goleak"
)

// A Cluster is a cluster of real etcd members in the test process, on the real
// clock. It ticks ten times as fast as etcd's default, so that an election takes
// 0.3 to 0.6 s and the smallest TTL of a lease is 1 s. Its methods fail the test
// when they cannot do what they say, and are meant for the test's own goroutine.
type Cluster struct {
	*integration.Cluster

	t     testing.TB
	admin *Client

	mu      sync.Mutex // clients dial while a learner joins
	sockets []string   // of the members' bridges
}

// quiet keeps the members' logs out of the test's.
type quiet struct{ testing.TB }

func (quiet) Log(...any)          {}
func (quiet) Logf(string, ...any) {}

// StartCluster starts a cluster whose members listen behind bridges, and stops
// it when t ends. The edits change its configuration. The working directory of
// the test becomes a temporary one. At the end no goroutine may be left that
// was not there before. A cluster does not run in parallel with any other test,
// and -short skips it.
func StartCluster(t testing.TB, size int, edits ...func(*integration.ClusterConfig)) *Cluster {
	t.Helper()
	silence(t)
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
	integration.BeforeTest(t, integration.WithoutGoLeakDetection(), integration.WithoutSkipInShort())
	// The framework's own 100 ms pass unheard on a busy machine, and the members
	// elect leaders without end. From 670 ms on the smallest TTL would be 2 s.
	integration.ElectionTicks = 30
	cfg := integration.ClusterConfig{
		Size:                  size,
		UseBridge:             true,
		GRPCKeepAliveMinTime:  embed.DefaultGRPCKeepAliveMinTime,
		GRPCKeepAliveInterval: embed.DefaultGRPCKeepAliveInterval,
		GRPCKeepAliveTimeout:  embed.DefaultGRPCKeepAliveTimeout,
	}
	for _, edit := range edits {
		edit(&cfg)
	}
	c := &Cluster{t: t, Cluster: integration.NewCluster(quiet{t}, &cfg)}
	t.Cleanup(func() {
		for i, m := range c.Members {
			c.kill(i)
			m.Client.Close()
		}
		c.Terminate(quiet{t})
	})
	for _, m := range c.Members {
		c.listens(m)
	}
	c.admin = c.Client()
	return c
}

// listens notes where a new member listens.
func (c *Cluster) listens(m *integration.Member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sockets = append(c.sockets, strings.TrimPrefix(m.GRPCURL, "unix://"))
}

// AddLearner adds a member without a vote, which refuses most requests, and
// returns it. Clients made from then on have it among their endpoints.
func (c *Cluster) AddLearner() int {
	c.t.Helper()
	c.AddAndLaunchLearnerMember(quiet{c.t})
	learner := len(c.Members) - 1
	c.listens(c.Members[learner])
	Eventually(c.t, 30*time.Second, "IsLearner()", true, c.Members[learner].Server.IsLearner)
	return learner
}

// Endpoint returns the endpoint of a member, for [At] and [Link.To].
func (c *Cluster) Endpoint(member int) string { return fmt.Sprintf("http://member%d:2379", member) }

// Client returns a new client of all members. The edits change its
// configuration. It hides the method of the embedded cluster; the client that
// a member has there is its field Client.
func (c *Cluster) Client(edits ...func(*clientv3.Config)) *Client {
	c.t.Helper()
	var all []string
	for i := range c.Members {
		all = append(all, c.Endpoint(i))
	}
	cl := newClient(c.t, all, c.dial, edits)
	c.t.Cleanup(func() { cl.Close() })
	return cl
}

func (c *Cluster) dial(ctx context.Context, addr string) (net.Conn, error) {
	c.mu.Lock()
	sockets := c.sockets
	c.mu.Unlock()
	for i, socket := range sockets {
		if c.Endpoint(i) == "http://"+addr {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}
	}
	return nil, fmt.Errorf("etcdtest: no member has the address %q", addr)
}

// Admin returns a client of all members, to act as an operator.
func (c *Cluster) Admin() *clientv3.Client { return c.admin.Client }

// Keys returns the keys with a prefix, in order, by a linearizable read.
func (c *Cluster) Keys(prefix string) []*mvccpb.KeyValue {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := c.Admin().Get(ctx, prefix, clientv3.WithPrefix())
	must(c.t, "Get()", err)
	return r.Kvs
}

// Leases returns how many leases one of the members knows.
func (c *Cluster) Leases() int {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := c.Admin().Leases(ctx)
	must(c.t, "Leases()", err)
	return len(r.Leases)
}

// Leader waits until a majority of the members follows one of them, and returns
// that one.
func (c *Cluster) Leader() int {
	c.t.Helper()
	leader := -1
	Eventually(c.t, 30*time.Second, "a majority of members follows one leader", true, func() bool {
		leader = c.leader()
		return leader >= 0
	})
	return leader
}

func (c *Cluster) leader() int {
	followers := make(map[uint64]int)
	for _, m := range c.Members {
		if running(m) {
			followers[m.Server.Lead()]++
		}
	}
	return slices.IndexFunc(c.Members, func(m *integration.Member) bool {
		return running(m) && followers[uint64(m.ID())] > len(c.Members)/2
	})
}

func running(m *integration.Member) bool {
	select {
	case <-m.StopNotify():
		return false
	default:
		return true
	}
}

// MoveLeader hands Raft's leadership to a member in an orderly way.
func (c *Cluster) MoveLeader(to int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	from := c.Leader()
	if from == to {
		return
	}
	must(c.t, "MoveLeader()", c.Members[from].Server.MoveLeader(ctx, uint64(c.Members[from].ID()), uint64(c.Members[to].ID())))
	c.Leader()
}

// Stop kills a member. Its connections break, and its data stay.
func (c *Cluster) Stop(member int) {
	c.kill(member)
	c.Members[member].Stop(quiet{c.t})
}

// kill breaks the connections of a member that would else be drained for 2 s.
func (c *Cluster) kill(member int) {
	if s := c.Members[member].GRPCServer; s != nil {
		s.Stop()
	}
}

// Restart starts a stopped member again.
func (c *Cluster) Restart(member int) {
	c.t.Helper()
	must(c.t, "Restart()", c.Members[member].Restart(quiet{c.t}))
}

// Partition cuts the Raft traffic between some members and all others. The
// clients of either side stay connected, and a member that still knows a leader
// on the other side goes on forwarding lease renewals to it.
func (c *Cluster) Partition(members ...int) {
	c.eachPair(members, func(a, b *integration.Member) { a.InjectPartition(quiet{c.t}, b) })
}

// Mend ends the partition between some members and all others.
func (c *Cluster) Mend(members ...int) {
	c.eachPair(members, func(a, b *integration.Member) { a.RecoverPartition(quiet{c.t}, b) })
}

func (c *Cluster) eachPair(members []int, f func(a, b *integration.Member)) {
	for _, i := range members {
		for j := range c.Members {
			if !slices.Contains(members, j) {
				f(c.Members[i], c.Members[j])
			}
		}
	}
}

package etcdtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/tests/v3/framework/integration"

	"github.com/tenure-go/tenure/internal/etcdtest"
)

func TestClusterCutsSingleClients(t *testing.T) {
	c := etcdtest.StartCluster(t, 3)
	at0 := etcdtest.At(c.Endpoint(0))
	a, b := c.Client(at0), c.Client(at0)
	put := func(c *etcdtest.Client, limit time.Duration) error {
		_, err := c.Put(within(t, limit), "k", "v")
		return err
	}
	require.NoError(t, put(a, 10*time.Second))
	require.NoError(t, put(b, 10*time.Second))

	a.Link.Cut()
	require.ErrorIs(t, put(a, 300*time.Millisecond), context.DeadlineExceeded)
	require.NoError(t, put(b, 10*time.Second))
	a.Link.Heal()
	etcdtest.Eventually(t, 10*time.Second, "Put after Heal", nil, func() error { return put(a, 10*time.Second) })

	all := c.Client()
	all.Link.To(c.Endpoint(0)).Refuse()
	for range 6 {
		require.NoError(t, put(all, 10*time.Second))
	}
	etcdtest.Eventually(t, 10*time.Second, "all members are dialled", true, func() bool {
		return all.Link.To(c.Endpoint(0)).Dials() > 0 && all.Link.To(c.Endpoint(1)).Dials() > 0 && all.Link.To(c.Endpoint(2)).Dials() > 0
	})

	rule := a.Faults.Next("Put", etcdtest.DropAnswer(etcdtest.Unavailable))
	before := c.Keys("k")[0].Version
	require.ErrorIs(t, put(a, 10*time.Second), etcdtest.Unavailable)
	require.Equal(t, before+1, c.Keys("k")[0].Version)
	etcdtest.Await(t, time.Second, "Fired", rule.Fired())

	lease, err := b.Grant(within(t, 10*time.Second), 1)
	require.NoError(t, err)
	require.EqualValues(t, 1, lease.TTL)
	etcdtest.Eventually(t, 10*time.Second, "Leases()", 0, c.Leases)
}

func TestClusterLeaderMoves(t *testing.T) {
	c := etcdtest.StartCluster(t, 3, func(cfg *integration.ClusterConfig) { cfg.MaxTxnOps = 2 })
	require.EqualValues(t, 2, c.Members[0].Server.Cfg.MaxTxnOps)
	old := c.Leader()
	to := (old + 1) % 3
	c.MoveLeader(to)
	require.Equal(t, to, c.Leader())

	c.Stop(to)
	next := c.Leader()
	require.NotEqual(t, to, next)
	_, err := c.Admin().Put(within(t, 10*time.Second), "k", "v")
	require.NoError(t, err)

	c.Restart(to)
	back := c.Client(etcdtest.At(c.Endpoint(to)))
	r, err := back.Get(within(t, 10*time.Second), "k")
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Count)
	c.MoveLeader(to)
}

func TestClusterPartition(t *testing.T) {
	c := etcdtest.StartCluster(t, 3)
	old := c.Leader()
	cut := c.Client(etcdtest.At(c.Endpoint(old)))
	_, err := cut.Put(within(t, 10*time.Second), "k", "1")
	require.NoError(t, err)

	c.Partition(old)
	etcdtest.Eventually(t, 10*time.Second, "another leads", true, func() bool { return c.Leader() != old })
	_, err = c.Client(etcdtest.At(c.Endpoint((old+1)%3))).Put(within(t, 10*time.Second), "k", "2")
	require.NoError(t, err)
	_, err = cut.Get(within(t, 300*time.Millisecond), "k")
	require.Error(t, err)
	r, err := cut.Get(within(t, 10*time.Second), "k", clientv3.WithSerializable())
	require.NoError(t, err)
	require.Equal(t, "1", string(r.Kvs[0].Value))

	c.Mend(old)
	r, err = cut.Get(within(t, 10*time.Second), "k")
	require.NoError(t, err)
	require.Equal(t, "2", string(r.Kvs[0].Value))

	c.Stop(old) // A member that is down does not disturb the end of the test.
}

func TestClusterLearner(t *testing.T) {
	c := etcdtest.StartCluster(t, 1)
	learner := c.AddLearner()
	require.Equal(t, 1, learner)
	_, err := c.Client(etcdtest.At(c.Endpoint(learner))).Put(within(t, 10*time.Second), "k", "v")
	require.ErrorContains(t, err, "not supported for learner")
}

package integration_test

import (
	"context"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fenceredis"
	"github.com/tenure-go/tenure/integration/internal/fencecheck"
	"github.com/tenure-go/tenure/integration/internal/servers"
)

const redisFence = "{r}:fence"

// redisAt is a client of the server at a socket.
func redisAt(t testing.TB, socket string) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: socket, ContextTimeoutEnabled: true})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

func redisGate(t testing.TB, client redis.UniversalClient) *fenceredis.Gate {
	t.Helper()
	gate, err := fenceredis.New(client, redisFence)
	require.NoError(t, err)
	return gate
}

func fenceWith(epoch tenure.Epoch, lease clientv3.LeaseID) tenure.Fence {
	return tenure.Fence{Key: election, Epoch: epoch, Lease: lease}
}

// redisLog is a list in Redis. Its check and its write are one step at the
// server, so what can come between is a cut connection.
type redisLog struct {
	gate *fenceredis.Gate
	*redis.Client
	link *link
}

func (r *redisLog) Append(ctx context.Context, fence tenure.Fence, value string) error {
	if fencecheck.Between(ctx) {
		r.link.cutNext.Store(true)
	}
	return r.gate.Do(ctx, fence, "RPUSH", "{r}:log", value).Err()
}

func (r *redisLog) Seal(ctx context.Context, fence tenure.Fence) error {
	return r.gate.Seal(ctx, fence)
}

func (r *redisLog) Read(ctx context.Context) ([]string, error) {
	return r.LRange(ctx, "{r}:log", 0, -1).Result()
}

func TestRedis(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	link := newLink(t, "unix", server.DSN)
	client := redisAt(t, link.path)
	h := fencecheck.Run(t, &redisLog{redisGate(t, client), client, link}, fencecheck.Options{Cut: true, Restart: server.Restart})
	require.Equal(t, 2, h.Restarts)
	require.Positive(t, link.cuts.Load(), "no answer was lost")
}

// The law of a gate, at the places where decimals and doubles have their edges.
func TestRedisComparesEpochsExactly(t *testing.T) {
	t.Parallel()
	client := redisAt(t, servers.Redis(t).DSN)
	gate := redisGate(t, client)
	const exact = 1 << 53 // beyond it, a double has no odd numbers
	for _, c := range []struct {
		seen, got tenure.Fence
		refused   bool
	}{
		{fenceWith(1, 1), fenceWith(1, 1), false},
		{fenceWith(1, 1), fenceWith(1, 2), true},
		{fenceWith(2, 1), fenceWith(1, 1), true},
		{fenceWith(9, 1), fenceWith(10, 1), false},
		{fenceWith(10, 1), fenceWith(9, 1), true},
		{fenceWith(99, 1), fenceWith(100, 1), false},
		{fenceWith(exact, 1), fenceWith(exact+1, 1), false},
		{fenceWith(exact+1, 1), fenceWith(exact, 1), true},
		{fenceWith(exact, -1), fenceWith(exact, 1), true},
		{fenceWith(math.MaxInt64-1, 1), fenceWith(math.MaxInt64, 1), false},
		{fenceWith(math.MaxInt64, 1), fenceWith(math.MaxInt64-1, 1), true},
		{fenceWith(math.MaxInt64, 1), fenceWith(1, 1), true},
	} {
		require.NoError(t, client.FlushDB(t.Context()).Err())
		require.NoError(t, gate.Seal(t.Context(), c.seen))
		err := gate.Do(t.Context(), c.got, "SET", "{r}:v", "1").Err()
		written := client.Exists(t.Context(), "{r}:v").Val() == 1
		if !c.refused {
			require.NoError(t, err, "%v after %v", c.got, c.seen)
			require.True(t, written)
			require.Equal(t, c.got.String(), client.Get(t.Context(), redisFence).Val())
			continue
		}
		require.ErrorIs(t, err, tenure.ErrFenced, "%v after %v", c.got, c.seen)
		require.False(t, written, "%v after %v", c.got, c.seen)
		leader, ok := tenure.LeaderOf(err)
		require.True(t, ok)
		require.Equal(t, c.seen, leader.Fence)
		require.ErrorIs(t, gate.Seal(t.Context(), c.got), tenure.ErrFenced)
		require.Equal(t, c.seen.String(), client.Get(t.Context(), redisFence).Val())
	}
	ttl, err := client.TTL(t.Context(), redisFence).Result()
	require.NoError(t, err)
	require.Equal(t, time.Duration(-1), ttl, "the gate's memory must not expire")
}

// A gate whose memory is another election's, or nonsense, lets nobody in.
func TestRedisGateOfAnotherElection(t *testing.T) {
	t.Parallel()
	client := redisAt(t, servers.Redis(t).DSN)
	gate := redisGate(t, client)
	refused := func(want string) {
		t.Helper()
		err := gate.Do(t.Context(), fenceWith(1<<60, 1), "SET", "{r}:v", "1").Err()
		require.ErrorContains(t, err, want)
		require.NotErrorIs(t, err, tenure.ErrFenced)
		require.NotErrorIs(t, err, tenure.ErrUnknownOutcome)
		require.ErrorContains(t, gate.Seal(t.Context(), fenceWith(1<<60, 1)), want)
		require.Zero(t, client.Exists(t.Context(), "{r}:v").Val())
	}
	require.NoError(t, gate.Seal(t.Context(), tenure.Fence{Key: "/it's \"an\" élection\n", Epoch: 1, Lease: 1}))
	refused(`a fence of "/scheduler/leader" at a gate of "/it's \"an\" élection\n"`)
	for _, nonsense := range []string{"", "nonsense", "01:1:/scheduler/leader", "-1:1:/scheduler/leader", "99999999999999999999:1:/scheduler/leader", ":1:/scheduler/leader", "1\n:1:x"} {
		require.NoError(t, client.Set(t.Context(), redisFence, nonsense, 0).Err())
		refused("fence")
	}
	require.NoError(t, client.Del(t.Context(), redisFence).Err())
	require.NoError(t, client.RPush(t.Context(), redisFence, "a list").Err())
	refused("WRONGTYPE")
}

// A guarded command answers what the command answers, errors included.
func TestRedisAnswersAreTheCommands(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: server.DSN, Protocol: 2, ContextTimeoutEnabled: true})
	defer client.Close()
	gate := redisGate(t, client)
	for _, args := range [][]any{
		{"SET", "{r}:s", "v"},
		{"GET", "{r}:s"},
		{"GET", "{r}:none"},
		{"SET", "{r}:s", []byte{0, 255, '\r', '\n'}, "GET"},
		{"STRLEN", "{r}:s"},
		{"INCRBY", "{r}:n", 41},
		{"INCRBYFLOAT", "{r}:n", "0.5"},
		{"HSET", "{r}:h", "a", 1, "b", 2.5},
		{"HMGET", "{r}:h", "a", "none", "b"},
		{"ZADD", "{r}:z", 1.5, "m"},
		{"ZSCORE", "{r}:z", "m"},
		{"XADD", "{r}:x", "1-1", "f", "v"},
		{"XRANGE", "{r}:x", "-", "+"},
		{"RENAME", "{r}:h", "{r}:i"},
		{"PUBLISH", "news", "none listens"},
		{"LPUSH", "{r}:s", "wrong type"},
		{"INCR", "{r}:h"},
		{"INCR", "{r}:s"},
		{"SET", "{r}:s"},
		{"NOSUCHCOMMAND", "{r}:s"},
		{"RENAME", "{r}:none", "{r}:s"},
	} {
		require.NoError(t, client.FlushDB(t.Context()).Err())
		require.NoError(t, client.MSet(t.Context(), "{r}:s", "s", "{r}:n", 1).Err())
		require.NoError(t, client.HSet(t.Context(), "{r}:h", "a", "1").Err())
		plain, plainErr := client.Do(t.Context(), args...).Result()
		require.NoError(t, client.FlushDB(t.Context()).Err())
		require.NoError(t, client.MSet(t.Context(), "{r}:s", "s", "{r}:n", 1).Err())
		require.NoError(t, client.HSet(t.Context(), "{r}:h", "a", "1").Err())
		guarded, err := gate.Do(t.Context(), fenceWith(1, 1), args...).Result()
		if args[0] == "NOSUCHCOMMAND" || len(args) == 2 && args[0] == "SET" {
			require.Error(t, plainErr)
			require.ErrorContains(t, err, "from script", "Redis words these differently in a script")
			continue
		}
		require.Equal(t, plainErr, err, "%v", args)
		require.Equal(t, plain, guarded, "%v", args)
	}
	require.ErrorContains(t, gate.Do(t.Context(), fenceWith(1, 1), "SUBSCRIBE", "{r}:s").Err(), "not allowed from script")
}

// What Do says about its limits.
func TestRedisLimits(t *testing.T) {
	t.Parallel()
	client := redisAt(t, servers.Redis(t).DSN)
	gate := redisGate(t, client)
	args := []any{"RPUSH", "{r}:l"}
	for len(args) < 7000 {
		args = append(args, len(args))
	}
	n, err := gate.Do(t.Context(), fenceWith(1, 1), args...).Int64()
	require.NoError(t, err)
	require.EqualValues(t, 6998, n)

	require.NoError(t, client.Set(t.Context(), "{r}:n", int64(1<<53), 0).Err())
	rounded, err := gate.Do(t.Context(), fenceWith(1, 1), "INCR", "{r}:n").Int64()
	require.NoError(t, err)
	require.EqualValues(t, 1<<53, rounded)
	require.Equal(t, "9007199254740993", client.Get(t.Context(), "{r}:n").Val(), "in the database it is exact")
}

func TestRedisScripts(t *testing.T) {
	t.Parallel()
	client := redisAt(t, servers.Redis(t).DSN)
	gate := redisGate(t, client)
	keys := []string{"{r}:a", "{r}:b"}
	transfer := fenceredis.NewScript(`
		redis.call('DECRBY', KEYS[1], ARGV[1])
		redis.call('INCRBY', KEYS[2], ARGV[1])
		return {#KEYS, #ARGV, ARGV[2]} -- and no more`)
	got, err := gate.Run(t.Context(), fenceWith(2, 1), transfer, keys, 5, "x").Result()
	require.NoError(t, err)
	require.Equal(t, []any{int64(2), int64(2), "x"}, got)
	require.Equal(t, []any{"-5", "5"}, client.MGet(t.Context(), keys...).Val())

	require.ErrorIs(t, gate.Run(t.Context(), fenceWith(1, 1), transfer, keys, 5).Err(), tenure.ErrFenced)
	require.Equal(t, []any{"-5", "5"}, client.MGet(t.Context(), keys...).Val())

	require.NoError(t, client.ScriptFlush(t.Context()).Err())
	require.NoError(t, gate.Run(t.Context(), fenceWith(2, 1), transfer, keys, 5).Err(), "Redis has forgotten the script")
	require.Equal(t, []any{"-10", "10"}, client.MGet(t.Context(), keys...).Val())

	faulty := fenceredis.NewScript("redis.call('SET', KEYS[1], 'written')\n\nredis.call('LPUSH', KEYS[1], 'x')")
	err = gate.Run(t.Context(), fenceWith(2, 1), faulty, keys[:1]).Err()
	require.ErrorContains(t, err, "WRONGTYPE")
	require.ErrorContains(t, err, "user_script:3", "lines are counted from the caller's first")
	require.NotErrorIs(t, err, tenure.ErrUnknownOutcome)
	require.Equal(t, "written", client.Get(t.Context(), keys[0]).Val(), "Redis takes nothing back")
}

// go-redis would send it again after a lost answer, three times unless told
// otherwise. A command that was applied would be applied again.
func TestRedisLostAnswer(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	link := newLink(t, "unix", server.DSN)
	client := redisAt(t, link.path)
	gate := redisGate(t, client)
	require.NoError(t, gate.Do(t.Context(), fenceWith(1, 1), "INCR", "{r}:n").Err())

	link.cutNext.Store(true)
	err := gate.Do(t.Context(), fenceWith(1, 1), "INCR", "{r}:n").Err()
	require.ErrorIs(t, err, tenure.ErrUnknownOutcome)
	require.NotErrorIs(t, err, tenure.ErrFenced)
	require.EqualValues(t, 1, link.cuts.Load())
	require.Equal(t, "2", client.Get(t.Context(), "{r}:n").Val(), "applied once")

	link.cutNext.Store(true)
	require.NoError(t, client.Incr(t.Context(), "{r}:n").Err())
	require.Equal(t, "4", client.Get(t.Context(), "{r}:n").Val(), "this is what it guards against")

	// An answer that does not come in time.
	held := redisAt(t, server.DSN)
	require.NoError(t, held.ClientPause(t.Context(), time.Second).Err())
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = gate.Do(ctx, fenceWith(1, 1), "INCR", "{r}:n").Err()
	require.ErrorIs(t, err, tenure.ErrUnknownOutcome)

	require.NoError(t, server.Stop())
	err = gate.Do(t.Context(), fenceWith(1, 1), "INCR", "{r}:n").Err()
	require.Error(t, err)
	require.NoError(t, server.Start())
	require.NoError(t, gate.Seal(t.Context(), fenceWith(1, 1)))
	require.ErrorIs(t, gate.Seal(t.Context(), fenceWith(1, 2)), tenure.ErrFenced, "a restart has made it forget")
}

// One member that owns all slots is a cluster to its client and to the scripts
// that it runs.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	client := startRedisCluster(t)
	gate := redisGate(t, client)
	require.NoError(t, gate.Do(t.Context(), fenceWith(5, 1), "MSET", "{r}:a", 1, "{r}:b", 2).Err())
	require.NoError(t, gate.Do(t.Context(), fenceWith(6, 1), "RENAME", "{r}:a", "{r}:c").Err())
	require.ErrorIs(t, gate.Do(t.Context(), fenceWith(5, 1), "DEL", "{r}:b", "{r}:c").Err(), tenure.ErrFenced)
	require.Equal(t, []any{"2", "1"}, client.MGet(t.Context(), "{r}:b", "{r}:c").Val())
	require.ErrorContains(t, gate.Do(t.Context(), fenceWith(6, 1), "RENAME", "{r}:b", "{s}:b").Err(), "hash tag")

	require.NoError(t, client.ForEachMaster(t.Context(), func(ctx context.Context, c *redis.Client) error {
		return c.ScriptFlush(ctx).Err()
	}))
	require.NoError(t, gate.Do(t.Context(), fenceWith(6, 1), "INCR", "{r}:b").Err())

	other, err := fenceredis.New(client, "{r}:another fence")
	require.NoError(t, err)
	require.NoError(t, other.Seal(t.Context(), fenceWith(5, 1)), "a gate of its own")
}

func startRedisCluster(t *testing.T) *redis.ClusterClient {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		servers.Redis(t) // skips, or fails where it must be there
		t.Fatal(err)
	}
	port, bus := freePort(t), freePort(t)
	cmd := exec.Command(path, "--bind", "127.0.0.1", "--port", port, "--cluster-port", bus, "--dir", t.TempDir(),
		"--save", "", "--cluster-enabled", "yes")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Kill())
		require.Error(t, cmd.Wait()) // killed
	})
	addr := net.JoinHostPort("127.0.0.1", port)
	one := redis.NewClient(&redis.Options{Addr: addr})
	defer one.Close()
	eventually(t, func() error { return one.Ping(t.Context()).Err() })
	require.NoError(t, one.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, ContextTimeoutEnabled: true})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	eventually(t, func() error { return client.Set(t.Context(), "ready", 1, 0).Err() })
	return client
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	return port
}

// eventually waits until what another process does has happened.
func eventually(t testing.TB, done func() error) {
	t.Helper()
	var err error
	require.Eventually(t, func() bool { err = done(); return err == nil }, 20*time.Second, 5*time.Millisecond, "%v", &err)
}

// link is a unix socket in front of a server. On demand it hangs up when the next
// answer comes, so that the server has done what its client never hears of.
type link struct {
	path    string
	cutNext atomic.Bool
	cuts    atomic.Int64
	pipes   sync.WaitGroup
}

func newLink(t testing.TB, network, server string) *link {
	t.Helper()
	dir, err := os.MkdirTemp("", "link") //nolint:usetesting // too long for a socket
	require.NoError(t, err)
	k := &link{path: filepath.Join(dir, "s")}
	listener, err := net.Listen("unix", k.path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	k.pipes.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			k.pipes.Go(func() { k.pipe(ctx, client, network, server) })
		}
	})
	t.Cleanup(func() {
		cancel()
		require.NoError(t, listener.Close())
		k.pipes.Wait()
		require.NoError(t, os.RemoveAll(dir))
	})
	return k
}

// pipe carries one connection until either end or ctx is done with it.
func (k *link) pipe(ctx context.Context, client net.Conn, network, path string) {
	defer client.Close()
	server, err := net.Dial(network, path)
	if err != nil {
		return // the server is away, and so is the link
	}
	defer server.Close()
	stop := context.AfterFunc(ctx, func() { client.Close(); server.Close() })
	defer stop()
	k.pipes.Go(func() {
		_, _ = io.Copy(server, client) // it ends with either connection
		server.Close()
	})
	answer := make([]byte, 64<<10)
	for {
		n, err := server.Read(answer)
		if err != nil {
			return
		}
		if k.cutNext.CompareAndSwap(true, false) {
			k.cuts.Add(1)
			return
		}
		if _, err := client.Write(answer[:n]); err != nil {
			return
		}
	}
}

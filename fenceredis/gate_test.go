package fenceredis_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fenceredis"
)

// What only a server can show is in the module integration.

var (
	fence   = tenure.Fence{Key: "/scheduler/leader", Epoch: 42, Lease: 7}
	errDial = errors.New("somebody has dialled")
)

// unreachable is a client that cannot connect: what is refused here was refused
// before anything was sent, and what was not fails with errDial.
func unreachable(t *testing.T) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{
		Dialer: func(_ context.Context, network, _ string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: network, Err: errDial}
		},
		DialerRetries: 1,
	})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

func TestNewRefusesWhatCannotKeepAGate(t *testing.T) {
	client := unreachable(t)
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer cluster.Close()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()

	for want, c := range map[string]struct {
		client redis.UniversalClient
		key    string
	}{
		"the client is nil":           {nil, "{orders}:fence"},
		"the gate's key is empty":     {client, ""},
		"a Ring cannot keep a gate":   {ring, "{orders}:fence"},
		`"orders:fence" has no hash`:  {cluster, "orders:fence"},
		`"{}orders:fence" has no has`: {cluster, "{}orders:fence"},
	} {
		_, err := fenceredis.New(c.client, c.key)
		require.ErrorContains(t, err, want)
	}
	for _, c := range []struct {
		client redis.UniversalClient
		key    string
	}{{client, "orders:fence"}, {client, "{orders}:fence"}, {cluster, "{orders}:fence"}} {
		_, err := fenceredis.New(c.client, c.key)
		require.NoError(t, err)
	}
}

func TestRefusedBeforeAnythingIsSent(t *testing.T) {
	gate, err := fenceredis.New(unreachable(t), "{orders}:fence")
	require.NoError(t, err)
	script := fenceredis.NewScript("return 1")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	ctx := t.Context()

	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"NoKey":         {gate.Seal(ctx, tenure.Fence{Epoch: 1, Lease: 1}), "Fence.Key is empty"},
		"ZeroFence":     {gate.Do(ctx, tenure.Fence{}, "SET", "{orders}:1", "v").Err(), "Fence."},
		"NegativeEpoch": {gate.Do(ctx, tenure.Fence{Key: "k", Epoch: math.MinInt64, Lease: 1}, "SET", "{orders}:1", "v").Err(), "Fence.Epoch is -9223372036854775808"},
		"OtherTag":      {gate.Do(ctx, fence, "SET", "{bills}:1", "v").Err(), `the key "{bills}:1" does not have the hash tag {orders} of the gate's key "{orders}:fence"`},
		"NoTag":         {gate.Do(ctx, fence, "RENAME", "{orders}:1", "orders:1").Err(), `the key "orders:1" does not have`},
		"OtherTagOfRun": {gate.Run(ctx, fence, script, []string{"{orders}:1", "{order}:1"}).Err(), `the key "{order}:1" does not have`},
		"OwnKey":        {gate.Do(ctx, fence, "DEL", "{orders}:1", "{orders}:fence").Err(), `a guarded write to "{orders}:fence"`},
		"OwnKeyOfRun":   {gate.Run(ctx, fence, script, []string{"{orders}:fence"}).Err(), `a guarded write to "{orders}:fence"`},
		"Flush":         {gate.Do(ctx, fence, "FLUSHDB").Err(), "FLUSHDB"},
		"NoCommand":     {gate.Do(ctx, fence).Err(), "there is no command"},
		"TooMany":       {gate.Do(ctx, fence, append([]any{"RPUSH", "{orders}:1"}, make([]any, 6999)...)...).Err(), "7001 arguments"},
		"EndedContext":  {gate.Do(ended, fence, "SET", "{orders}:1", "v").Err(), context.Canceled.Error()},
	} {
		require.ErrorContains(t, c.err, c.want, name)
		require.NotErrorIs(t, c.err, errDial, name)
		require.NotErrorIs(t, c.err, tenure.ErrUnknownOutcome, name)
		require.NotErrorIs(t, c.err, tenure.ErrFenced, name)
	}
}

// A gate without a tag is for one server, where any key will do.
func TestKeysWithoutTags(t *testing.T) {
	gate, err := fenceredis.New(unreachable(t), "orders:fence")
	require.NoError(t, err)
	require.ErrorIs(t, gate.Do(t.Context(), fence, "SET", "{bills}:1", "v").Err(), errDial)
	require.ErrorContains(t, gate.Do(t.Context(), fence, "SET", "orders:fence", "v").Err(), "a guarded write to")
}

// What was never sent has no unknown outcome.
func TestNoConnection(t *testing.T) {
	client := unreachable(t)
	gate, err := fenceredis.New(client, "{orders}:fence")
	require.NoError(t, err)
	err = gate.Do(t.Context(), fence, "SET", "{orders}:1", "v").Err()
	require.ErrorIs(t, err, errDial)
	require.NotErrorIs(t, err, tenure.ErrUnknownOutcome)

	closed := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	require.NoError(t, closed.Close())
	gate, err = fenceredis.New(closed, "{orders}:fence")
	require.NoError(t, err)
	err = gate.Seal(t.Context(), fence)
	require.ErrorIs(t, err, redis.ErrClosed)
	require.NotErrorIs(t, err, tenure.ErrUnknownOutcome)
}

// The command that comes back is the caller's, for logs.
func TestCommandIsTheCallers(t *testing.T) {
	gate, err := fenceredis.New(unreachable(t), "{orders}:fence")
	require.NoError(t, err)
	cmd := gate.Do(t.Context(), fence, "SET", "{orders}:1", "v")
	require.Equal(t, []any{"SET", "{orders}:1", "v"}, cmd.Args())
}

func ExampleGate_Do() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", ContextTimeoutEnabled: true})
	defer client.Close()
	gate, err := fenceredis.New(client, "{orders}:fence")
	if err != nil {
		panic(err)
	}
	_ = func(term *tenure.Term) error {
		if err := gate.Seal(ctx, term.Fence()); err != nil { // before reading what to build on
			return err
		}
		state, err := client.HGet(ctx, "{orders}:42", "state").Result()
		if err != nil {
			return err
		}
		return gate.Do(ctx, term.Fence(), "HSET", "{orders}:42", "state", state+", paid").Err()
	}
}

func ExampleGate_Run() {
	credit := fenceredis.NewScript(`
		redis.call('XADD', KEYS[2], '*', 'amount', ARGV[1])
		return redis.call('HINCRBY', KEYS[1], 'balance', ARGV[1])`)

	_ = func(ctx context.Context, gate *fenceredis.Gate, term *tenure.Term) error {
		balance, err := gate.Run(ctx, term.Fence(), credit, []string{"{orders}:42", "{orders}:log"}, 5).Int64()
		if err != nil {
			return err
		}
		fmt.Println("balance:", balance)
		return nil
	}
}

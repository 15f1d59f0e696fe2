package leadergrpc_test

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/resolver"

	"github.com/tenure-go/tenure/internal/etcdtest"
	"github.com/tenure-go/tenure/leadergrpc"
)

// silent is a connection that wants to know nothing.
type silent struct{ resolver.ClientConn }

func (silent) UpdateState(resolver.State) error { return nil }
func (silent) ReportError(error)                {}

// build builds a resolver of target, which is parsed as gRPC does, and closes it.
func build(t *testing.T, target string) error {
	t.Helper()
	u, err := url.Parse(target)
	require.NoError(t, err)
	b := leadergrpc.NewBuilder(nil, nil)
	require.Equal(t, b.Scheme(), u.Scheme)
	r, err := b.Build(resolver.Target{URL: *u}, silent{}, resolver.BuildOptions{})
	if err == nil {
		r.ResolveNow(resolver.ResolveNowOptions{})
		r.Close()
	}
	return err
}

// TestTargets: what is no target is refused, with what it must be.
func TestTargets(t *testing.T) {
	for key, target := range map[string]string{
		"scheduler":         "tenure:///scheduler",
		"/scheduler/leader": "tenure:////scheduler/leader",
		"scheduler/leader":  "tenure:///scheduler/leader",
		"//":                "tenure://///",
		"a?b#c d%":          "tenure:///a%3Fb%23c%20d%25",
	} {
		require.Equal(t, target, leadergrpc.Target(key))
		require.NoError(t, build(t, target))
	}
	require.NoError(t, build(t, "tenure:///%2Fscheduler%2Fleader"))

	for _, target := range []string{
		"tenure:", "tenure:///", "tenure://", "tenure:scheduler", "tenure://scheduler", "tenure://scheduler/leader",
		"tenure://user@/scheduler", "tenure:///scheduler?", "tenure:///scheduler?a=b", "tenure:///scheduler#a",
		leadergrpc.Target(""),
	} {
		err := build(t, target)
		require.ErrorContains(t, err, "it must be tenure:/// and the key of an election", target)
	}
}

// TestABadTargetIsToldByTheCalls: gRPC builds the resolver with the first of them.
func TestABadTargetIsToldByTheCalls(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		conn, err := grpc.NewClient("tenure://scheduler/leader",
			grpc.WithResolvers(leadergrpc.NewBuilder(s.Client().Client, nil)),
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		defer conn.Close()
		f := &follower{TestServiceClient: pb.NewTestServiceClient(conn), conn: conn}
		f.fails(t, `the target is "tenure://scheduler/leader": it must be`)
	})
}

// FuzzTarget: every key comes back from its target.
func FuzzTarget(f *testing.F) {
	for _, key := range []string{"a", "/scheduler/leader", "//", "?", "#", "%2F", " ", "\x00", "\xff", "..", "ö", ":1"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if key == "" {
			t.Skip("it has no target")
		}
		u, err := url.Parse(leadergrpc.Target(key))
		require.NoError(t, err)
		got, err := leadergrpc.KeyOf(resolver.Target{URL: *u})
		require.NoError(t, err)
		require.Equal(t, key, got)
	})
}

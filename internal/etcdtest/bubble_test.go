package etcdtest_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/config"

	"github.com/tenure-go/tenure/internal/etcdtest"
)

// tick is the precision with which a lease expires: etcd looks twice a second.
const tick = 500 * time.Millisecond

func TestLeaseLivesAndDiesOnTheBubblesClock(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		session, err := concurrency.NewSession(c.Client, concurrency.WithTTL(10))
		require.NoError(t, err)
		_, err = c.Put(t.Context(), "k", "v", clientv3.WithLease(session.Lease()))
		require.NoError(t, err)

		start := time.Now()
		time.Sleep(time.Hour)
		require.Equal(t, time.Hour, time.Since(start))
		require.Len(t, s.Keys("k"), 1)
		require.Equal(t, 1, s.Leases())

		session.Orphan()
		time.Sleep(10*time.Second + 2*tick)
		require.Empty(t, s.Keys("k"))
		require.Zero(t, s.Leases())
	})
}

func TestWatchDoesNotStopTheClock(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		events := s.Client().Watch(t.Context(), "k")
		time.Sleep(time.Minute)
		_, err := s.Admin().Put(t.Context(), "k", "v")
		require.NoError(t, err)
		require.Len(t, etcdtest.Await(t, time.Second, "Watch", events).Events, 1)
	})
}

func TestRestartKeepsData(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		_, err := c.Put(t.Context(), "k", "v")
		require.NoError(t, err)

		s.Stop()
		require.Nil(t, s.Etcd())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.Get(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		s.Start()

		start := time.Now()
		s.Restart(4 * time.Second)
		require.GreaterOrEqual(t, time.Since(start), 4*time.Second)
		require.Less(t, time.Since(start), 7*time.Second)
		r, err := c.Get(t.Context(), "k")
		require.NoError(t, err)
		require.EqualValues(t, 1, r.Count)
	})
}

func TestRestoreRewindsAndBumpDoesNot(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		put := func() int64 {
			r, err := s.Admin().Put(t.Context(), "k", "v")
			require.NoError(t, err)
			return r.Header.Revision
		}
		put()
		s.Stop()
		snapshot := s.Snapshot()
		s.Start()
		second := put()

		s.Stop()
		s.Restore(snapshot)
		s.Start()
		require.Equal(t, second, put(), "a plain restore repeats the revision")

		s.Stop()
		s.Restore(snapshot)
		s.Bump(1000)
		s.Start()
		require.Equal(t, second-1, s.Keys("k")[0].ModRevision)
		_, err := s.Admin().Get(t.Context(), "k", clientv3.WithRev(second-1))
		require.ErrorIs(t, err, rpctypes.ErrCompacted)
		require.Equal(t, second+1000, put())
	})
}

func TestVersionsTellsTheHistoryOfAKey(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		require.Empty(t, s.Versions("k", 0))
		var revisions []int64
		for _, v := range []string{"a", "b", "c", "d"} {
			_, err := s.Admin().Put(t.Context(), "other", v)
			require.NoError(t, err)
			resp, err := s.Admin().Put(t.Context(), "k", v)
			require.NoError(t, err)
			revisions = append(revisions, resp.Header.Revision)
		}
		values := func(after int64) (all string) {
			for _, kv := range s.Versions("k", after) {
				all += string(kv.Value)
			}
			return all
		}
		require.Equal(t, "abcd", values(0))
		require.Equal(t, "cd", values(revisions[1]))
		require.Empty(t, values(revisions[3]))
		_, err := s.Admin().Compact(t.Context(), revisions[2])
		require.NoError(t, err)
		require.Equal(t, "cd", values(0), "the others are compacted")
	})
}

func TestOptions(t *testing.T) {
	opts := &etcdtest.ServerOptions{
		TickMs:            10,
		ElectionMs:        100,
		MaxTxnOps:         2,
		QuotaBackendBytes: 1, // No room at all.
		Config:            func(c *config.ServerConfig) { c.MaxRequestBytes = 1000 },
	}
	etcdtest.BubbleWith(t, opts, func(t *testing.T, s *etcdtest.Server) {
		require.EqualValues(t, 1000, s.Etcd().Cfg.MaxRequestBytes)
		c := s.Client()

		get := clientv3.OpGet("k")
		_, err := c.Txn(t.Context()).Then(get, get).Commit()
		require.NoError(t, err)
		_, err = c.Txn(t.Context()).Then(get, get, get).Commit()
		require.ErrorIs(t, err, rpctypes.ErrTooManyOps)
		_, err = c.Put(t.Context(), "k", "v")
		require.ErrorIs(t, err, rpctypes.ErrNoSpace)
	})
	opts.QuotaBackendBytes = 0
	etcdtest.BubbleWith(t, opts, func(t *testing.T, s *etcdtest.Server) {
		r, err := s.Admin().Grant(t.Context(), 1)
		require.NoError(t, err)
		require.EqualValues(t, 1, r.TTL)
	})
}

func TestAuth(t *testing.T) {
	opts := &etcdtest.ServerOptions{Auth: true, TokenTTL: 10 * time.Second}
	etcdtest.BubbleWith(t, opts, func(t *testing.T, s *etcdtest.Server) {
		s.AddUser("app", "secret", clientv3.PermissionType(clientv3.PermReadWrite), "/app/")
		c := s.Client(etcdtest.As("app", "secret"))
		_, err := c.Put(t.Context(), "/app/k", "v")
		require.NoError(t, err)
		_, err = c.Put(t.Context(), "/other/k", "v")
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		require.Len(t, s.Keys("/"), 1)
		require.Zero(t, s.Leases())

		before := c.Faults.Count("Authenticate")
		time.Sleep(time.Minute)
		_, err = c.Put(t.Context(), "/app/k", "v")
		require.NoError(t, err)
		require.Greater(t, c.Faults.Count("Authenticate"), before, "the token has expired")
	})
}

// In the tests below the test binary runs itself, since what they show is a
// test that fails.

func TestFailureEndsTheBubble(t *testing.T) {
	if inChild(t) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			a, b := s.Client(), s.Client()
			a.Watch(t.Context(), "k")
			a.Faults.Next("Put", etcdtest.HoldRequest())
			go func() { _, _ = a.Put(t.Context(), "k", "v") }()
			go func() { _, _ = b.Put(t.Context(), "k", "v") }()
			b.Link.Cut()
			time.Sleep(time.Second)
			t.Fatal("on purpose")
		})
	}
	out := failingChild(t)
	require.Contains(t, out, "on purpose")
	require.NotContains(t, out, "panic")
}

func TestEndlessWaitPanics(t *testing.T) {
	if inChild(t) {
		etcdtest.RealLimit = time.Second
		etcdtest.Bubble(t, func(*testing.T, *etcdtest.Server) { <-make(chan int) })
	}
	require.Contains(t, failingChild(t), "TestEndlessWaitPanics has not ended after 1s")
}

func TestStoppedClockNamesTheCulprit(t *testing.T) {
	if inChild(t) {
		etcdtest.RealLimit = time.Second
		etcdtest.Bubble(t, func(*testing.T, *etcdtest.Server) {
			var mu sync.Mutex
			mu.Lock()
			go time.AfterFunc(time.Second, mu.Unlock)
			mu.Lock()
		})
	}
	_, stacks, _ := strings.Cut(failingChild(t), "has not ended after")
	first, _, _ := strings.Cut(stacks, "(durable)")
	require.Contains(t, first, "sync.Mutex.Lock")
}

const child = "ETCDTEST_CHILD"

func inChild(t *testing.T) bool {
	t.Helper()
	return os.Getenv(child) == t.Name()
}

func failingChild(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=20s")
	cmd.Env = append(os.Environ(), child+"="+t.Name())
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	require.True(t, errors.As(err, &exit), "%v", err)
	require.NotContains(t, string(out), "test timed out")
	return string(out)
}

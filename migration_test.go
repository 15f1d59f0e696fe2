package tenure_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
)

func both(ctx context.Context, old *concurrency.Election, elector *tenure.Elector, lost <-chan struct{}, work func(context.Context, *tenure.Term) error) error {
	if err := old.Campaign(ctx, "both"); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() { _ = old.Resign(context.WithoutCancel(ctx)) }() // after the new one is given up
	var watching sync.WaitGroup
	watching.Go(func() { // the old session's end ends the new term's work, too
		defer cancel()
		select {
		case <-lost:

		case <-ctx.Done():
		}
	})
	err := elector.Run(ctx, work)
	cancel()
	watching.Wait()
	return err
}

// A fleet of three changes over from another library, one instance at a time and
// each three times, and there is never more than one at work.
func TestChangingOverARunningFleet(t *testing.T) {
	const prefix, size = "/old/leader", 3
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var working, terms atomic.Int32
		work := func(ctx context.Context, _ *tenure.Term) error {
			assert.EqualValues(t, 1, working.Add(1), "at work at the same time")
			terms.Add(1)
			<-ctx.Done()
			time.Sleep(time.Second)
			working.Add(-1)
			return ctx.Err()
		}
		releases := map[string]func(ctx context.Context) error{
			"old": func(ctx context.Context) error {
				session, err := concurrency.NewSession(s.Client().Client, concurrency.WithTTL(10))
				if err != nil {
					return err
				}
				defer session.Close()
				old := concurrency.NewElection(session, prefix)
				if err := old.Campaign(ctx, "old"); err != nil {
					return err
				}
				defer old.Resign(context.WithoutCancel(ctx)) //nolint:errcheck // the session's end does it, too
				return work(ctx, nil)
			},
			"both": func(ctx context.Context) error {
				c := s.Client()
				session, err := concurrency.NewSession(c.Client, concurrency.WithTTL(10))
				if err != nil {
					return err
				}
				defer session.Close()
				elector, err := tenure.New(c.Client, key, nil)
				if err != nil {
					return err
				}
				return both(ctx, concurrency.NewElection(session, prefix), elector, session.Done(), work)
			},
			"new": func(ctx context.Context) error {
				elector, err := tenure.New(s.Client().Client, key, nil)
				if err != nil {
					return err
				}
				return elector.Run(ctx, work)
			},
		}
		type instance struct {
			stop context.CancelFunc
			done chan error
		}
		start := func(release string) instance {
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- releases[release](ctx) }()
			return instance{cancel, done}
		}
		stop := func(i instance) {
			i.stop()
			require.ErrorIs(t, etcdtest.Await(t, time.Minute, "instance", i.done), context.Canceled)
		}
		var fleet [size]instance
		for i := range fleet {
			fleet[i] = start("old")
		}
		for _, release := range []string{"both", "new", "both", "old"} {
			for i := range fleet {
				time.Sleep(20 * time.Second)
				stop(fleet[i])
				fleet[i] = start(release)
			}
		}
		time.Sleep(20 * time.Second)
		for _, i := range fleet {
			stop(i)
		}
		require.Zero(t, working.Load())
		require.GreaterOrEqual(t, terms.Load(), int32(5), "one, and one more for each change, which stops the leader of then")
	})
}

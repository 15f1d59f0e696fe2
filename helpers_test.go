package tenure_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
)

// key is the election of most tests.
const key = "/scheduler/leader"

// newElector returns an elector on the client for the election key.
func newElector(t *testing.T, c *etcdtest.Client, opts *tenure.Options) *tenure.Elector {
	t.Helper()
	e, err := tenure.New(c.Client, key, opts)
	require.NoError(t, err)
	return e
}

// lead campaigns and returns the term, which is resigned when the test ends.
func lead(t *testing.T, e *tenure.Elector) *tenure.Term {
	t.Helper()
	term, err := e.Campaign(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = term.Resign() })
	return term
}

// startRun calls e.Run on a goroutine of its own. Its error arrives on the
// channel.
func startRun(ctx context.Context, e *tenure.Elector, work func(context.Context, *tenure.Term) error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx, work) }()
	return done
}

// untilTold is work that stops as soon as it is told to.
func untilTold(ctx context.Context, _ *tenure.Term) error {
	<-ctx.Done()
	return nil
}

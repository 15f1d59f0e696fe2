package tenuretest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/tenuretest"
)

// The loop of a user under test: called once per term, stopped by each loss.
func TestRunIsCalledAgainAfterEveryLoss(t *testing.T) {
	for _, reason := range []tenure.Reason{tenure.LeaseExpired, tenure.RenewalRefused, tenure.KeyDeleted, tenure.KeyReplaced, tenure.Fenced, tenure.Evicted} {
		t.Run(string(reason), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				election := tenuretest.NewElection("/x")
				elector, err := election.Elector(nil)
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				var epochs []tenure.Epoch
				var causes []error
				done := make(chan error, 1)
				go func() {
					done <- elector.Run(ctx, func(ctx context.Context, term *tenure.Term) error {
						epochs = append(epochs, term.Epoch())
						<-ctx.Done()
						causes = append(causes, context.Cause(ctx))
						return nil
					})
				}()
				synctest.Wait()
				require.NotNil(t, elector.Term())
				assert.Equal(t, tenure.Leading, elector.Status().State)
				require.True(t, election.End(reason))
				synctest.Wait()
				require.NotNil(t, elector.Term(), "campaigns again")
				cancel()
				require.Equal(t, context.Canceled, <-done)
				assert.Equal(t, []tenure.Epoch{1, 2}, epochs)
				require.Len(t, causes, 2)
				assert.ErrorIs(t, causes[0], reason)
				assert.ErrorIs(t, causes[1], tenure.ContextEnded)
				assert.Nil(t, elector.Term())
				assert.False(t, election.End(reason), "nobody is left")
			})
		})
	}
}

func TestGrantedTermIsARealOne(t *testing.T) {
	election := tenuretest.NewElection("/x")
	term := election.Grant(&tenure.Options{Identity: "a", MinEpoch: 41})
	assert.Equal(t, tenure.Epoch(42), term.Epoch())
	assert.True(t, term.Valid())
	assert.NoError(t, term.Verify(t.Context()))
	assert.NoError(t, term.Fence().Validate())

	other, err := election.Elector(nil)
	require.NoError(t, err)
	_, err = other.TryCampaign(t.Context())
	require.ErrorIs(t, err, tenure.ErrHeld)
	leader, ok := tenure.LeaderOf(err)
	require.True(t, ok)
	assert.Equal(t, "a", leader.Identity)

	require.NoError(t, term.Announce(t.Context(), "10.0.0.1:1", nil))
	_, err = other.TryCampaign(t.Context())
	leader, _ = tenure.LeaderOf(err)
	assert.Equal(t, "10.0.0.1:1", leader.Address)

	require.True(t, election.End(tenure.LeaseExpired))
	assert.False(t, term.Valid())
	assert.ErrorIs(t, term.Err(), tenure.LeaseExpired)
	assert.ErrorIs(t, term.Err(), tenure.ErrTermEnded)
	assert.ErrorIs(t, term.Verify(t.Context()), tenure.LeaseExpired)
	assert.NoError(t, term.Resign())
	next, err := other.TryCampaign(t.Context())
	require.NoError(t, err)
	assert.Equal(t, tenure.Epoch(43), next.Epoch())
	require.True(t, election.End(tenure.Resigned))
	assert.ErrorIs(t, next.Err(), tenure.Resigned)
}

// An eviction leaves the term valid until its holder has stopped.
func TestEvictedTermStaysValidUntilItsWorkReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		election := tenuretest.NewElection("/x")
		a, err := election.Elector(&tenure.Options{Identity: "a"})
		require.NoError(t, err)
		b, err := election.Elector(&tenure.Options{Identity: "b"})
		require.NoError(t, err)
		first, err := a.Campaign(t.Context())
		require.NoError(t, err)
		won := make(chan *tenure.Term, 1)
		go func() {
			term, err := b.Campaign(context.Background())
			assert.NoError(t, err)
			won <- term
		}()
		election.End(tenure.Evicted)
		time.Sleep(time.Second)
		assert.ErrorIs(t, context.Cause(first.Context()), tenure.Evicted)
		assert.True(t, first.Valid())
		assert.Empty(t, won)
		require.NoError(t, first.Resign())
		second := <-won
		assert.Greater(t, second.Epoch(), first.Epoch())
		require.NoError(t, second.Resign())
	})
}

func TestBadOptionsAreRefused(t *testing.T) {
	_, err := tenuretest.NewElection("/x").Elector(&tenure.Options{StopTimeout: -1})
	require.ErrorContains(t, err, "Options.StopTimeout")
	assert.Panics(t, func() { tenuretest.NewElection("/x").Grant(&tenure.Options{StopTimeout: -1}) })
}

func ExampleElection() {
	election := tenuretest.NewElection("/scheduler/leader")
	elector, err := election.Elector(nil)
	if err != nil {
		panic(err)
	}
	// The code under test: it must stop when the term is lost.
	loop := func(ctx context.Context, term *tenure.Term) error {
		<-ctx.Done()
		if errors.Is(context.Cause(ctx), tenure.LeaseExpired) {
			return nil
		}
		return context.Cause(ctx)
	}
	term, err := elector.Campaign(context.Background())
	if err != nil {
		panic(err)
	}
	election.End(tenure.LeaseExpired)
	err = loop(term.Context(), term)
	fmt.Println(err == nil, term.Valid())
	_ = term.Resign()
	// Output: true false
}

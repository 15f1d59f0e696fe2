// Package tenuretest helps to test code that uses package tenure without an
// etcd: electors that need none, and real terms that the test ends with the
// reason it wants to see handled.
//
// A scheduler loop under test gets an [Election]'s elector in place of one from
// tenure.New, or a [Election.Grant] where it takes a term:
//
//	election := tenuretest.NewElection("/scheduler/leader")
//	elector, err := election.Elector(nil)
//	// in one goroutine: elector.Run(ctx, loop)
//	election.End(tenure.LeaseExpired) // the loop must stop, and is called again
//
// What is tested this way is the user's code. It says nothing about etcd: an
// election in memory has no network, no clock that matters and no faults. Works
// inside a testing/synctest bubble.
package tenuretest

import (
	"context"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/seam"
)

// Election is an election in the memory of this process. Its terms last until
// they are ended; their epochs count up from 1, or from [tenure.Options.MinEpoch].
// All methods may be called concurrently.
type Election struct {
	key  string
	seam seam.Election
}

// NewElection returns an election of key that nobody holds.
func NewElection(key string) *Election {
	return &Election{key: key, seam: seam.NewElection(key)}
}

// Elector returns a candidate, with opts as for tenure.New; several compete. Its
// Run, Campaign and TryCampaign win as soon as nobody holds the election. TTL and
// Margin have no effect. It returns an error for options that tenure.New refuses,
// and for a shared lease, which would need an etcd.
func (e *Election) Elector(opts *tenure.Options) (*tenure.Elector, error) {
	elector, err := e.seam.Elector(opts)
	if err != nil {
		return nil, err
	}
	return elector.(*tenure.Elector), nil
}

// Grant returns a term of a new candidate. It panics if the election is held, or
// if opts are not valid. The test calls [tenure.Term.Resign] at the end, or lets
// the code under test do so.
func (e *Election) Grant(opts *tenure.Options) *tenure.Term {
	elector, err := e.Elector(opts)
	if err != nil {
		panic("tenuretest: " + err.Error())
	}
	term, err := elector.TryCampaign(context.Background())
	if err != nil {
		panic("tenuretest: " + err.Error())
	}
	return term
}

// End ends the present term for the given reason and reports whether there was a
// term. For a loss ([tenure.LeaseExpired], [tenure.RenewalRefused],
// [tenure.KeyDeleted], [tenure.KeyReplaced], [tenure.Fenced]) the term is invalid
// when End returns. For a request to let go ([tenure.Evicted],
// [tenure.ContextEnded]) its context ends, and the term stays valid until its
// holder has resigned, as Elector.Run does when the work has returned.
// [tenure.Resigned] resigns for the holder.
func (e *Election) End(reason tenure.Reason) bool { return e.seam.End(reason) }

// Package seam is the door through which package tenuretest reaches into package
// tenure. It exists so that what only tests need is not part of tenure's API.
package seam

// Election is an election in the memory of this process. Its methods deal in
// the types of package tenure, which this package cannot import.
type Election interface {
	// Elector takes a *tenure.Options and returns a *tenure.Elector.
	Elector(opts any) (elector any, err error)
	// End ends the present term with a tenure.Reason, and reports whether there
	// was one.
	End(reason error) bool
}

// NewElection is set by package tenure.
var NewElection func(key string) Election

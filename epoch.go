package tenure

// Epoch is the number of a [Term]: the revision at which etcd created the
// election's key. etcd's revision only grows, so each later term of an election
// has a strictly greater epoch, whoever holds it. No term has the epoch 0, and
// nothing accepts it: to etcd a key that does not exist has the create revision
// 0, so a guard that asked for it would pass while nobody leads.
//
// One thing makes epochs repeat: restoring an etcd snapshot without bumping its
// revision. [Options.MinEpoch] and [Gate] are there for that.
type Epoch int64

// order is the law of a resource that has accepted have and is shown got:
// negative if got must be refused, 0 if it is the same term, positive if it is
// a later one, which from now on shuts have out. The same epoch on another
// lease is not the same term: only a careless restore of etcd produces it, and
// then nobody can tell which of the two came first.
func order(have, got Fence) int {
	switch {
	case got.Epoch > have.Epoch:
		return 1
	case got.Epoch == have.Epoch && got.Lease == have.Lease:
		return 0
	default:
		return -1
	}
}

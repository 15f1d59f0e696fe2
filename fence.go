package tenure

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Fence is what a write of a term carries, so that the resource can refuse it
// once the term has been replaced. It is a plain value: comparable, with a text
// form, made to be sent to other processes that write on the leader's behalf.
// It comes from [Term.Fence], or for another process's term from [Lookup]; none
// exists for a mere candidate. The zero Fence is not valid and everything
// refuses it.
//
// For keys in the same etcd use [Term.KV], or [Fence.KV] in another process; for
// a resource with a process of its own, [Gate].
type Fence struct {
	Key   string           // the election's key, in full
	Epoch Epoch            // the term's number
	Lease clientv3.LeaseID // tells terms apart whose epochs a restore made equal
}

// Validate returns an error that names the field if f cannot be the fence of a
// term: an empty key, an epoch below 1, or no lease.
func (f Fence) Validate() error {
	switch {
	case f.Key == "":
		return errors.New("tenure: Fence.Key is empty")
	case f.Epoch < 1:
		return fmt.Errorf("tenure: Fence.Epoch is %d: it must be at least 1", f.Epoch)
	case f.Lease == 0:
		return errors.New("tenure: Fence.Lease is 0: every term has a lease")
	}
	return nil
}

// String returns the text form: epoch in decimal, lease id in hexadecimal and
// key with URL escapes, separated by colons, as in 42:32698f2a0b7c5d03:/scheduler/leader.
// It is made of printable ASCII without spaces or quotes.
func (f Fence) String() string {
	return fmt.Sprintf("%d:%x:%s", int64(f.Epoch), uint64(f.Lease), (&url.URL{Path: f.Key}).EscapedPath())
}

// MarshalText implements [encoding.TextMarshaler]. A fence that is not valid has
// no text form that could be mistaken for one.
func (f Fence) MarshalText() ([]byte, error) {
	if err := f.Validate(); err != nil {
		return nil, err
	}
	return []byte(f.String()), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler]. On an error f is
// unchanged.
func (f *Fence) UnmarshalText(text []byte) error {
	parts := strings.SplitN(string(text), ":", 3)
	if len(parts) != 3 {
		return fmt.Errorf("tenure: the fence %q is not of the form epoch:lease:key", text)
	}
	epoch, err := strconv.ParseInt(parts[0], 10, 64)
	if err != nil {
		return fmt.Errorf("tenure: the fence %q has no epoch: %w", text, err)
	}
	lease, err := strconv.ParseUint(parts[1], 16, 64)
	if err != nil {
		return fmt.Errorf("tenure: the fence %q has no lease: %w", text, err)
	}
	key, err := url.PathUnescape(parts[2])
	if err != nil {
		return fmt.Errorf("tenure: the fence %q has no key: %w", text, err)
	}
	g := Fence{Key: key, Epoch: Epoch(epoch), Lease: clientv3.LeaseID(lease)}
	if err := g.Validate(); err != nil {
		return err
	}
	*f = g
	return nil
}

// guard is the condition under which this very term holds the election.
func (f Fence) guard() []clientv3.Cmp {
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(f.Key), "=", int64(f.Epoch)),
		clientv3.Compare(clientv3.LeaseValue(f.Key), "=", f.Lease),
	}
}

package fencegrpc

import (
	"context"
	"fmt"

	"google.golang.org/grpc/metadata"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/wire"
)

// MetadataKey is the key of the value that carries the fence.
const MetadataKey = "tenure-fence"

// Set makes fence the fence of md, in place of what md has. It returns an error,
// and leaves md as it is, if fence is not valid or its key is too long to be sent.
func Set(md metadata.MD, fence tenure.Fence) error {
	return set(md, fence, wire.Format)
}

func set(md metadata.MD, fence tenure.Fence, format func(tenure.Fence) (string, error)) error {
	text, err := format(fence)
	if err != nil {
		return err
	}
	md.Set(MetadataKey, text)
	return nil
}

// Get returns the fence of md, and whether md has one. An error says what is wrong
// with the one that it has.
func Get(md metadata.MD) (fence tenure.Fence, ok bool, err error) {
	return get(md.Get(MetadataKey), wire.Parse)
}

func get(values []string, parse func(string) (tenure.Fence, error)) (fence tenure.Fence, ok bool, err error) {
	switch len(values) {
	case 0:
		return tenure.Fence{}, false, nil
	case 1:
		fence, err = parse(values[0])
	default:
		err = fmt.Errorf("there are %d values: there must be one", len(values))
	}
	if err != nil {
		return tenure.Fence{}, false, fmt.Errorf("fencegrpc: %s: %w", MetadataKey, err)
	}
	return fence, true, nil
}

// FromContext returns the fence of the call that is being handled, from the
// context that the server's interceptors give; false if the call was let in
// without one. A context that package fencehttp gives has it as well.
func FromContext(ctx context.Context) (tenure.Fence, bool) { return wire.FromContext(ctx) }

// FromTerm returns the fence of term for the client's interceptors, as long as the
// term is valid here, and afterwards an [tenure.ErrTermEnded] with the reason.
func FromTerm(term *tenure.Term) func() (tenure.Fence, error) { return wire.FromTerm(term) }

// Package wire reads and writes the text form of a fence as packages fencehttp
// and fencegrpc send it. It is strict where package tenure is lenient: each term
// has one spelling, up to the escapes in its key.
package wire

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/tenure-go/tenure"
)

// maxText is how long the text form of a fence may be on the wire: proxies
// commonly refuse a header line of more than 8 KiB.
const maxText = 4 << 10

// Format returns the text form of fence.
func Format(fence tenure.Fence) (string, error) {
	text, err := fence.MarshalText()
	if err != nil {
		return "", err
	}
	if len(text) > maxText {
		return "", fmt.Errorf("tenure: the text form of the fence takes %d bytes: it must be at most %d to be sent, so Fence.Key is too long", len(text), maxText)
	}
	return string(text), nil
}

// Parse returns the fence whose text form is text: visible ASCII without quotes
// and backslashes, with an epoch and a lease that have no sign, no leading zero
// and no capital letter.
func Parse(text string) (tenure.Fence, error) {
	if len(text) > maxText {
		return tenure.Fence{}, fmt.Errorf("tenure: the fence takes %d bytes: it must be at most %d", len(text), maxText)
	}
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c >= 0x7f || c == '"' || c == '\\' {
			return tenure.Fence{}, fmt.Errorf("tenure: the fence %q has the byte %q, which needs an escape", text, c)
		}
	}
	var fence tenure.Fence
	if err := fence.UnmarshalText([]byte(text)); err != nil {
		return tenure.Fence{}, err
	}
	if numbers := fmt.Sprintf("%d:%x:", int64(fence.Epoch), uint64(fence.Lease)); !strings.HasPrefix(text, numbers) {
		return tenure.Fence{}, fmt.Errorf("tenure: the fence %q must begin with %q", text, numbers)
	}
	return fence, nil
}

// Last remembers the last fence that it has read or written, which at one end of
// a wire is the same for a whole term. Use one for either. It is safe for
// concurrent use, and the zero Last is ready.
type Last struct{ pair atomic.Pointer[pair] }

type pair struct {
	fence tenure.Fence
	text  string
}

// Format is like the function Format.
func (l *Last) Format(fence tenure.Fence) (string, error) {
	if p := l.pair.Load(); p != nil && p.fence == fence {
		return p.text, nil
	}
	text, err := Format(fence)
	if err == nil {
		l.pair.Store(&pair{fence, text})
	}
	return text, err
}

// Parse is like the function Parse.
func (l *Last) Parse(text string) (tenure.Fence, error) {
	if p := l.pair.Load(); p != nil && p.text == text {
		return p.fence, nil
	}
	fence, err := Parse(text)
	if err == nil {
		l.pair.Store(&pair{fence, strings.Clone(text)}) // not all that text is a part of
	}
	return fence, err
}

// FromTerm is what both packages export under this name.
func FromTerm(term *tenure.Term) func() (tenure.Fence, error) {
	return func() (tenure.Fence, error) {
		if err := term.Err(); err != nil {
			return tenure.Fence{}, err
		}
		return term.Fence(), nil
	}
}

type contextKey struct{}

// fenced is a context with a fence, in one allocation.
type fenced struct {
	context.Context
	fence tenure.Fence
}

func (c *fenced) Value(key any) any {
	if key == (contextKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// NewContext returns a context from which FromContext returns fence.
func NewContext(ctx context.Context, fence tenure.Fence) context.Context {
	return &fenced{ctx, fence}
}

// FromContext returns the fence that NewContext has put in.
func FromContext(ctx context.Context) (tenure.Fence, bool) {
	if c, ok := ctx.Value(contextKey{}).(*fenced); ok {
		return c.fence, true
	}
	return tenure.Fence{}, false
}

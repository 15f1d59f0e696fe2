package fencehttp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/wire"
)

// Header is the name of the field that carries the fence.
const Header = "Tenure-Fence"

// Set makes fence the fence of h, in place of what h has. It returns an error,
// and leaves h as it is, if fence is not valid or its key is too long for a
// header.
func Set(h http.Header, fence tenure.Fence) error {
	return set(h, fence, wire.Format)
}

func set(h http.Header, fence tenure.Fence, format func(tenure.Fence) (string, error)) error {
	text, err := format(fence)
	if err != nil {
		return err
	}
	h[Header] = []string{`"` + text + `"`}
	return nil
}

// Get returns the fence of h, and whether h has one. An error says what is wrong
// with the one that it has.
func Get(h http.Header) (fence tenure.Fence, ok bool, err error) { return get(h, wire.Parse) }

func get(h http.Header, parse func(string) (tenure.Fence, error)) (fence tenure.Fence, ok bool, err error) {
	values := h[Header]
	switch len(values) {
	case 0:
		return tenure.Fence{}, false, nil
	case 1:
		var text string
		if text, err = unquote(values[0]); err == nil {
			fence, err = parse(text)
		}
	default:
		err = fmt.Errorf("there are %d fields: there must be one", len(values))
	}
	if err != nil {
		return tenure.Fence{}, false, fmt.Errorf("fencehttp: %s: %w", Header, err)
	}
	return fence, true, nil
}

var errNoString = errors.New("the value is not one String, such as \"42:32698f2a0b7c5d03:/scheduler/leader\" with its quotes")

// unquote returns the text in a String. It knows no escapes, which the text form
// never needs: parse refuses what they are made of.
func unquote(value string) (string, error) {
	value = strings.Trim(value, " ") // RFC 9651, section 4.2
	if len(value) < 2 || value[0] != '"' || value[len(value)-1] != '"' {
		return "", errNoString
	}
	return value[1 : len(value)-1], nil
}

// FromContext returns the fence of the request that is being handled, from the
// context that [Handler] gives it; false if the request was let in without one.
// A context that package fencegrpc gives has it as well.
func FromContext(ctx context.Context) (tenure.Fence, bool) { return wire.FromContext(ctx) }

// FromTerm returns the fence of term for [Transport], as long as the term is
// valid here, and afterwards an [tenure.ErrTermEnded] with the reason.
func FromTerm(term *tenure.Term) func() (tenure.Fence, error) { return wire.FromTerm(term) }

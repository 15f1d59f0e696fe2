package leaderhttp

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/tenure-go/tenure"
)

// Header is the name of the field that marks what is sent for a leader.
const Header = "Tenure-Leader"

// mark returns the String for a term, which has neither quotes nor commas inside.
func mark(fence tenure.Fence) string {
	return `"` + strconv.FormatInt(int64(fence.Epoch), 10) + ":" + url.PathEscape(fence.Key) + `"`
}

// find returns the String of h that is for the election of key, and its epoch. It
// returns "" if there is none. Intermediaries may have joined several fields.
func find(h http.Header, key string) (text string, epoch tenure.Epoch, err error) {
	for _, field := range h[Header] {
		for item := range strings.SplitSeq(field, ",") {
			item = strings.Trim(item, " \t")
			fence, err := parse(item)
			if err != nil {
				return "", 0, err
			}
			if fence.Key != key {
				continue
			}
			if text != "" {
				return "", 0, fmt.Errorf("leaderhttp: %s has two Strings for %q", Header, key)
			}
			text, epoch = item, fence.Epoch
		}
	}
	return text, epoch, nil
}

func parse(item string) (tenure.Fence, error) {
	malformed := func(why string) (tenure.Fence, error) {
		return tenure.Fence{}, fmt.Errorf("leaderhttp: %s: %q %s: it must be a String such as \"42:%%2Fscheduler%%2Fleader\" with its quotes", Header, item, why)
	}
	if len(item) < 2 || item[0] != '"' || item[len(item)-1] != '"' {
		return malformed("has no quotes")
	}
	number, escaped, ok := strings.Cut(item[1:len(item)-1], ":")
	epoch, err := strconv.ParseInt(number, 10, 64)
	if !ok || err != nil || epoch < 1 {
		return malformed("has no epoch")
	}
	key, err := url.PathUnescape(escaped)
	if err != nil || key == "" {
		return malformed("has no key")
	}
	fence := tenure.Fence{Key: key, Epoch: tenure.Epoch(epoch)}
	if mark(fence) != item {
		return malformed("is not spelled as it must be")
	}
	return fence, nil
}

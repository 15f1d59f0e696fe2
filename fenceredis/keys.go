package fenceredis

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// hashed is the part of a key that decides its slot in a cluster: what stands
// between the first { and the next }, if anything does; else the whole key.
func hashed(key string) string {
	_, after, found := strings.Cut(key, "{")
	if !found {
		return key
	}
	tag, _, found := strings.Cut(after, "}")
	if !found || tag == "" {
		return key
	}
	return tag
}

// where tells which arguments of a command are keys, as Redis's own table does.
type where struct {
	first, last, step int // a negative last counts from the end
	count             int // the argument that tells how many keys follow it; 0: none does
}

// elsewhere lists the commands that write, may run in a script, and have other
// keys than their first argument.
var elsewhere = func() map[string]where {
	table := make(map[string]where)
	for at, names := range map[where]string{
		{}:                                     "publish",
		{first: 1, last: -1, step: 1}:          "del unlink touch pfmerge sunionstore sinterstore sdiffstore",
		{first: 1, last: -1, step: 2}:          "mset msetnx",
		{first: 1, last: 2, step: 1}:           "rename renamenx copy lmove blmove rpoplpush brpoplpush smove zrangestore geosearchstore",
		{first: 2, last: -1, step: 1}:          "bitop",
		{first: 2, last: 2, step: 1}:           "xgroup",
		{first: 1, last: 1, step: 1, count: 2}: "zunionstore zinterstore zdiffstore",
		{count: 1}:                             "lmpop zmpop",
	} {
		for name := range strings.FieldsSeq(names) {
			table[name] = at
		}
	}
	return table
}()

// keysOf returns the keys among the arguments of a command, or an error for one
// that cannot be guarded.
func keysOf(args []any) ([]string, error) {
	if len(args) == 0 {
		return nil, errors.New("fenceredis: there is no command")
	}
	name := strings.ToLower(text(args[0]))
	switch name {
	case "flushall", "flushdb", "swapdb":
		return nil, fmt.Errorf("fenceredis: %s would take the gate's memory away", strings.ToUpper(name))
	}
	at, ok := elsewhere[name]
	if !ok {
		at = where{first: 1, last: 1, step: 1}
	}
	if at.last < 0 {
		at.last += len(args)
	}
	var keys []string
	if at.first > 0 {
		for i := at.first; i <= at.last && i < len(args); i += at.step {
			keys = append(keys, text(args[i]))
		}
	}
	if at.count > 0 && at.count < len(args) {
		rest := args[at.count+1:]
		n, err := strconv.Atoi(text(args[at.count]))
		if err != nil || n < 1 || n > len(rest) {
			return nil, fmt.Errorf("fenceredis: %s with %q keys, of which there are at most %d", strings.ToUpper(name), text(args[at.count]), len(rest))
		}
		for _, key := range rest[:n] {
			keys = append(keys, text(key))
		}
	}
	return keys, nil
}

// text is an argument as it is sent.
func text(arg any) string {
	if b, ok := arg.([]byte); ok {
		return string(b)
	}
	return fmt.Sprint(arg)
}

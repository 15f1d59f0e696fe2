package fenceredis

import (
	"crypto/sha1"
	"encoding/hex"
	"strings"
)

// Script is a Lua script with the check of a fence in front of it.
type Script struct {
	source string
	hash   string
}

// NewScript returns source, a script for Redis, with the check in front. Make it
// once: Redis keeps every script that it has seen. Line numbers in its errors are
// those of source. A source that begins with a line of flags (#!lua) is not
// possible; Redis refuses it.
func NewScript(source string) *Script {
	source = strings.ReplaceAll(guard, "\n", " ") + source
	sum := sha1.Sum([]byte(source)) // by which Redis names its scripts
	return &Script{source: source, hash: hex.EncodeToString(sum[:])}
}

// guard ends the script with an error unless the fence in ARGV[1] is the one seen
// last at KEYS[1] or a later one, and then takes both away from the script behind.
//
// A number in Lua is a double, too coarse for an epoch beyond 2^53, so epochs are
// compared as the decimals that they are, without leading zeros: the longer one
// is the greater, and of two equally long ones the one that sorts later. What is
// not a fence has no election and thus another one than ours.
const guard = `do
local mine, seen = ARGV[1], redis.call('GET', KEYS[1])
if seen ~= mine then
if seen then
local a, key = string.match(mine, '^([1-9]%d*):%x+:(.+)$')
local b, other = string.match(seen, '^([1-9]%d*):%x+:(.+)$')
if key ~= other or #a < #b or (#a == #b and a <= b) then return {err = '` + refused + ` ' .. seen} end
end
redis.call('SET', KEYS[1], mine)
end
table.remove(KEYS, 1)
table.remove(ARGV, 1)
end
`

// refused begins the answer of the guard, and of nothing else.
const refused = "TENUREFENCED"

// maxArgs is below what Lua's unpack takes, 8,000 less what its stack holds.
const maxArgs = 7000

var (
	// pcall and not call, so that an error comes as the command has made it.
	command = NewScript(`return redis.pcall(unpack(ARGV))`)
	seal    = NewScript(`return 1`)
)

// request is the command that runs s, by its hash or its source.
func (s *Script) request(name, which string, keys []string, args []any) []any {
	request := make([]any, 0, 3+len(keys)+len(args))
	request = append(request, name, which, len(keys))
	for _, key := range keys {
		request = append(request, key)
	}
	return append(request, args...)
}

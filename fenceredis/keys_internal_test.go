package fenceredis

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The examples of Redis's own specification, and its corners.
func TestHashTag(t *testing.T) {
	for key, want := range map[string]string{
		"{user1000}.following": "user1000",
		"foo{}{bar}":           "foo{}{bar}", // an empty first tag means none
		"foo{{bar}}zap":        "{bar",
		"foo{bar}{zap}":        "bar",
		"foo{bar":              "foo{bar",
		"foo}bar{":             "foo}bar{",
		"}{a}":                 "a",
		"plain":                "plain",
		"":                     "",
	} {
		require.Equal(t, want, hashed(key), "key %q", key)
	}
}

func TestKeysOfACommand(t *testing.T) {
	for _, c := range []struct {
		args []any
		want []string
	}{
		{[]any{"SET", "a", "v"}, []string{"a"}},
		{[]any{[]byte("hset"), []byte("a"), "f", 1}, []string{"a"}},
		{[]any{"JSON.SET", "a", "$", "{}"}, []string{"a"}},
		{[]any{"INCR", 7}, []string{"7"}},
		{[]any{"PING"}, nil},
		{[]any{"publish", "channel", "v"}, nil},
		{[]any{"Del", "a", "b", "c"}, []string{"a", "b", "c"}},
		{[]any{"MSET", "a", "1", "b", "2"}, []string{"a", "b"}},
		{[]any{"rename", "a", "b"}, []string{"a", "b"}},
		{[]any{"lmove", "a", "b", "LEFT", "RIGHT"}, []string{"a", "b"}},
		{[]any{"bitop", "AND", "a", "b", "c"}, []string{"a", "b", "c"}},
		{[]any{"xgroup", "CREATE", "a", "group", "$"}, []string{"a"}},
		{[]any{"zunionstore", "a", 2, "b", "c", "WEIGHTS", 1, 2}, []string{"a", "b", "c"}},
		{[]any{"lmpop", "2", "a", "b", "LEFT"}, []string{"a", "b"}},
		{[]any{"rename", "a"}, []string{"a"}}, // Redis says what is missing
		{[]any{"zunionstore", "a"}, []string{"a"}},
	} {
		got, err := keysOf(c.args)
		require.NoError(t, err, "%v", c.args)
		require.Equal(t, c.want, got, "%v", c.args)
	}
	for want, args := range map[string][]any{
		"there is no command":                                     nil,
		"FLUSHALL would take the gate's memory away":              {"FlushAll"},
		"FLUSHDB would take":                                      {"flushdb", "async"},
		"SWAPDB would take":                                       {"swapdb", 0, 1},
		`ZUNIONSTORE with "3" keys, of which there are at most 2`: {"zunionstore", "a", 3, "b", "c"},
		`LMPOP with "0" keys`:                                     {"lmpop", 0, "a"},
		`LMPOP with "many" keys`:                                  {"lmpop", "many", "a"},
	} {
		_, err := keysOf(args)
		require.ErrorContains(t, err, want)
	}
}

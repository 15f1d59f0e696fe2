package tenure

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// A value that is no record of ours, or only half of one, is nobody's.
func TestWhatIsNoRecordHasNoCandidate(t *testing.T) {
	for _, value := range []string{
		"", "null", "[]", "42", `"x"`, "node-1", "\xff\xfe", "{", `{"candidate":7}`, `{"candidate":"x"`, `{"candidate":"x"} {}`,
		`{"candidate":"x","acquired":"yesterday"}`, `{"candidate":"x","metadata":{"a":1}}`, `{"candidate":"x","evict":"yes"}`,
	} {
		require.Equal(t, record{}, decodeRecord([]byte(value)), "%s", value)
	}
	require.Equal(t, record{Candidate: "x", Evict: true}, decodeRecord([]byte(`{"candidate":"x","evict":true,"more":[1,{}]}`)), "a later version may add fields")
}

// What another program has put at the key must never be taken for ours, nor stop
// anybody who reads it. Ours is what carries our candidate id, which is never
// empty.
func FuzzDecodeRecord(f *testing.F) {
	ours := newRecord(&Options{Identity: "a", Address: "10.0.0.1:80", Metadata: map[string]string{"k": "v"}})
	f.Add([]byte(ours.encode()))
	for _, value := range []string{
		"", "{}", "null", "[]", "42", `"x"`, "node-1", "\xff\xfe", `{"candidate":7}`, `{"candidate":"x","acquired":"yesterday"}`,
		`{"candidate":"x","metadata":{"a":1}}`, `{"candidate":"x"} {}`, `{"candidate":"x","evict":true,"more":[1,{}]}`, `{"CANDIDATE":"x"}`,
	} {
		f.Add([]byte(value))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		r := decodeRecord(value)
		if !json.Valid(value) {
			require.Equal(t, record{}, r, "what is no JSON is nobody's")
		}
		leader := leaderOf("k", &mvccpb.KeyValue{Value: value, CreateRevision: 7, ModRevision: 8, Lease: 9})
		require.Equal(t, Fence{Key: "k", Epoch: 7, Lease: 9}, leader.Fence, "the fence is etcd's, whatever the value")
		require.EqualValues(t, 8, leader.Revision)
		require.Equal(t, r.Identity, leader.Identity)

		// An announcement and an eviction write again what they have read.
		again := decodeRecord([]byte(r.encode()))
		require.True(t, r.Acquired.Equal(again.Acquired))
		r.Acquired, again.Acquired = time.Time{}, time.Time{}
		if len(r.Metadata) == 0 {
			r.Metadata, again.Metadata = nil, nil
		}
		require.Equal(t, r, again)
	})
}

func FuzzEncodeRecord(f *testing.F) {
	f.Add("node-1", "10.0.0.1:80", "zone", "b")
	f.Add("", "", "", "")
	f.Add("\xff", "<&>\u2028", "\"", "\\\x00")
	f.Fuzz(func(t *testing.T, identity, address, name, value string) {
		r := newRecord(&Options{Identity: identity, Address: address, Metadata: map[string]string{name: value}})
		got := decodeRecord([]byte(r.encode()))
		require.Equal(t, r.Candidate, got.Candidate)
		require.NotEmpty(t, got.Candidate)
		require.True(t, r.Acquired.Equal(got.Acquired))
		// JSON has no place for bytes that are not UTF-8.
		text := func(s string) string { return string([]rune(s)) }
		require.Equal(t, text(identity), got.Identity)
		require.Equal(t, text(address), got.Address)
		require.Equal(t, map[string]string{text(name): text(value)}, got.Metadata)
	})
}

package fencehttp_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fencehttp"
	"github.com/tenure-go/tenure/tenuretest"
)

// key is the election of the tests.
const key = "/scheduler/leader"

// fenceOf is the fence of a term of the tests' election.
func fenceOf(epoch tenure.Epoch) tenure.Fence {
	return tenure.Fence{Key: key, Epoch: epoch, Lease: 0x64}
}

// always is a source of one fence.
func always(fence tenure.Fence) func() (tenure.Fence, error) {
	return func() (tenure.Fence, error) { return fence, nil }
}

// Programs in other languages read and write the field, so it must not change.
func TestTheFieldIsAString(t *testing.T) {
	for name, tt := range map[string]struct {
		fence tenure.Fence
		field string
	}{
		"Usual":    {tenure.Fence{Key: "/scheduler/leader", Epoch: 42, Lease: 0x32698f2a0b7c5d03}, `"42:32698f2a0b7c5d03:/scheduler/leader"`},
		"Largest":  {tenure.Fence{Key: "k", Epoch: 1<<63 - 1, Lease: -1}, `"9223372036854775807:ffffffffffffffff:k"`},
		"Hostile":  {tenure.Fence{Key: "\"\\\r\nEvil: 1\x00\xff", Epoch: 1, Lease: 1}, `"1:1:%22%5C%0D%0AEvil:%201%00%FF"`},
		"List":     {tenure.Fence{Key: `a";b=1, "c`, Epoch: 1, Lease: 1}, `"1:1:a%22;b=1,%20%22c"`},
		"Longest":  {tenure.Fence{Key: strings.Repeat("k", 4092), Epoch: 1, Lease: 1}, `"1:1:` + strings.Repeat("k", 4092) + `"`},
		"Colons":   {tenure.Fence{Key: ":", Epoch: 1, Lease: 1}, `"1:1::"`},
		"NotASCII": {tenure.Fence{Key: "世", Epoch: 1, Lease: 1}, `"1:1:%E4%B8%96"`},
	} {
		t.Run(name, func(t *testing.T) {
			h := http.Header{fencehttp.Header: {"one", "two"}}
			require.NoError(t, fencehttp.Set(h, tt.fence))
			require.Equal(t, http.Header{"Tenure-Fence": {tt.field}}, h)
			got, ok, err := fencehttp.Get(h)
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, tt.fence, got)
		})
	}
	_, ok, err := fencehttp.Get(http.Header{})
	require.NoError(t, err)
	require.False(t, ok)
}

func TestWhatIsNoFenceIsNotSent(t *testing.T) {
	for name, tt := range map[string]struct {
		fence tenure.Fence
		says  string
	}{
		"Zero":    {tenure.Fence{}, "Fence.Key is empty"},
		"NoEpoch": {tenure.Fence{Key: "k", Lease: 1}, "Fence.Epoch is 0"},
		"TooLong": {tenure.Fence{Key: strings.Repeat("k", 4093), Epoch: 1, Lease: 1}, "takes 4097 bytes: it must be at most 4096"},
		"Escapes": {tenure.Fence{Key: strings.Repeat(" ", 2000), Epoch: 1, Lease: 1}, "takes 6004 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			h := http.Header{fencehttp.Header: {"before"}}
			require.ErrorContains(t, fencehttp.Set(h, tt.fence), tt.says)
			require.Equal(t, "before", h.Get(fencehttp.Header))
		})
	}
}

// malformed are fields that carry no fence, with what the error says of them.
var malformed = map[string]struct{ field, says string }{
	"Empty":            {``, "not one String"},
	"OneQuote":         {`"`, "not one String"},
	"EmptyString":      {`""`, "epoch:lease:key"},
	"NoQuotes":         {`42:1:k`, "not one String"},
	"QuoteAtEnd":       {`42:1:k"`, "not one String"},
	"QuoteAtBegin":     {`"42:1:k`, "not one String"},
	"SingleQuotes":     {`'42:1:k'`, "not one String"},
	"Token":            {`fence`, "not one String"},
	"Integer":          {`42`, "not one String"},
	"Bytes":            {`:NDI6MTpr:`, "not one String"},
	"Boolean":          {`?1`, "not one String"},
	"DisplayString":    {`%"42:1:k"`, "not one String"},
	"InnerList":        {`("42:1:k")`, "not one String"},
	"List":             {`"42:1:k", "43:1:k"`, "needs an escape"},
	"ListWithoutSpace": {`"42:1:k","43:1:k"`, "needs an escape"},
	"Parameter":        {`"42:1:k";a`, "not one String"},
	"ParameterString":  {`"42:1:k";a="b"`, "needs an escape"},
	"TabBefore":        {"\t\"42:1:k\"", "not one String"},
	"Comment":          {`"42:1:k" (c)`, "not one String"},
	"EscapedQuote":     {`"42:1:\""`, "needs an escape"},
	"EscapedBackslash": {`"42:1:\\"`, "needs an escape"},
	"SpaceInside":      {`"42:1: k"`, "needs an escape"},
	"SpaceFirst":       {`" 42:1:k"`, "needs an escape"},
	"Newline":          {"\"42:1:k\n\"", "needs an escape"},
	"Null":             {"\"42:1:k\x00\"", "needs an escape"},
	"Delete":           {"\"42:1:k\x7f\"", "needs an escape"},
	"NotASCII":         {`"42:1:ü"`, "needs an escape"},
	"NotUTF8":          {"\"42:1:\xff\"", "needs an escape"},
	"NoSeparator":      {`"42"`, "epoch:lease:key"},
	"NoKey":            {`"42:1"`, "epoch:lease:key"},
	"EmptyKey":         {`"42:1:"`, "Fence.Key is empty"},
	"EmptyEpoch":       {`":1:k"`, "no epoch"},
	"EpochZero":        {`"0:1:k"`, "Fence.Epoch is 0"},
	"EpochNegative":    {`"-42:1:k"`, "Fence.Epoch is -42"},
	"EpochPlus":        {`"+42:1:k"`, `must begin with "42:1:"`},
	"EpochZeros":       {`"0042:1:k"`, `must begin with "42:1:"`},
	"EpochMinusZero":   {`"-0:1:k"`, "Fence.Epoch is 0"},
	"EpochHex":         {`"0x2a:1:k"`, "no epoch"},
	"EpochUnderscore":  {`"4_2:1:k"`, "no epoch"},
	"EpochDecimal":     {`"42.0:1:k"`, "no epoch"},
	"EpochExponent":    {`"4e1:1:k"`, "no epoch"},
	"EpochTooLarge":    {`"9223372036854775808:1:k"`, "out of range"},
	"EpochHuge":        {`"` + strings.Repeat("9", 1000) + `:1:k"`, "out of range"},
	"LeaseZero":        {`"42:0:k"`, "Fence.Lease is 0"},
	"EmptyLease":       {`"42::k"`, "no lease"},
	"LeaseNegative":    {`"42:-1:k"`, "no lease"},
	"LeaseCapitals":    {`"42:FF:k"`, `must begin with "42:ff:"`},
	"LeaseZeros":       {`"42:01:k"`, `must begin with "42:1:"`},
	"LeasePrefix":      {`"42:0x1:k"`, "no lease"},
	"LeaseTooLarge":    {`"42:10000000000000000:k"`, "out of range"},
	"BrokenEscape":     {`"42:1:a%2"`, "no key"},
	"EscapeNoHex":      {`"42:1:a%zz"`, "no key"},
	"TooLong":          {`"1:1:` + strings.Repeat("k", 4093) + `"`, "takes 4097 bytes: it must be at most 4096"},
	"Huge":             {`"1:1:` + strings.Repeat("k", 100_000) + `"`, "takes 100004 bytes"},
}

func TestGetRefusesWhatIsNoFence(t *testing.T) {
	for name, tt := range malformed {
		t.Run(name, func(t *testing.T) {
			got, ok, err := fencehttp.Get(http.Header{fencehttp.Header: {tt.field}})
			require.ErrorContains(t, err, tt.says)
			require.ErrorContains(t, err, "fencehttp: Tenure-Fence: ")
			require.False(t, ok)
			require.Zero(t, got)
		})
	}
	for name, fields := range map[string][]string{
		"Two": {`"42:1:k"`, `"43:1:k"`}, "TheSameTwice": {`"42:1:k"`, `"42:1:k"`}, "SecondEmpty": {`"42:1:k"`, ``},
	} {
		t.Run(name, func(t *testing.T) {
			_, ok, err := fencehttp.Get(http.Header{fencehttp.Header: fields})
			require.ErrorContains(t, err, "there are 2 fields: there must be one")
			require.False(t, ok)
		})
	}
	// Spaces around a structured field are none of its own.
	got, _, err := fencehttp.Get(http.Header{fencehttp.Header: {`  "42:1:k" `}})
	require.NoError(t, err)
	require.Equal(t, tenure.Fence{Key: "k", Epoch: 42, Lease: 1}, got)
}

// Whatever arrives is refused with a reason, or is one valid fence in the one
// spelling that its epoch and lease have.
func FuzzGet(f *testing.F) {
	for _, tt := range malformed {
		f.Add(tt.field)
	}
	f.Add(`"42:32698f2a0b7c5d03:/scheduler/leader"`)
	f.Add(` "1:1:%25%20" `)
	f.Fuzz(func(t *testing.T, field string) {
		fence, ok, err := fencehttp.Get(http.Header{fencehttp.Header: {field}})
		require.Equal(t, err == nil, ok)
		if err != nil {
			require.Zero(t, fence)
			return
		}
		require.NoError(t, fence.Validate())
		require.Contains(t, field, fmt.Sprintf(`"%d:%x:`, fence.Epoch, uint64(fence.Lease)))
		h := make(http.Header)
		if err := fencehttp.Set(h, fence); err != nil {
			require.ErrorContains(t, err, "must be at most") // it came with fewer escapes
			return
		}
		again, _, err := fencehttp.Get(h)
		require.NoError(t, err)
		require.Equal(t, fence, again)
	})
}

// Every fence survives the way through the field, which is a String of RFC 9651,
// or is refused on this side.
func FuzzSet(f *testing.F) {
	f.Add("/scheduler/leader", int64(42), int64(0x32698f2a0b7c5d03))
	f.Add("\"\\\r\n\xff", int64(1), int64(-1))
	f.Add("", int64(0), int64(0))
	f.Fuzz(func(t *testing.T, key string, epoch, lease int64) {
		fence := tenure.Fence{Key: key, Epoch: tenure.Epoch(epoch), Lease: clientv3.LeaseID(lease)}
		h := make(http.Header)
		if err := fencehttp.Set(h, fence); err != nil {
			require.True(t, fence.Validate() != nil || len(fence.String()) > 4096, "%v", err)
			require.Empty(t, h)
			return
		}
		field := h.Get(fencehttp.Header)
		for _, c := range field[1 : len(field)-1] {
			require.True(t, c > ' ' && c < 0x7f && c != '"' && c != '\\', "%q", field)
		}
		got, ok, err := fencehttp.Get(h)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, fence, got)
	})
}

func TestFromTermEndsWithTheTerm(t *testing.T) {
	election := tenuretest.NewElection(key)
	term := election.Grant(nil)
	source := fencehttp.FromTerm(term)
	fence, err := source()
	require.NoError(t, err)
	require.Equal(t, term.Fence(), fence)

	election.End(tenure.LeaseExpired)
	fence, err = source()
	require.ErrorIs(t, err, tenure.ErrTermEnded)
	require.ErrorIs(t, err, tenure.LeaseExpired)
	require.Zero(t, fence)
	require.NoError(t, term.Resign())
}

package tenure_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
)

// Every fence survives the way through its text form, and no other value has one.
func FuzzFence(f *testing.F) {
	f.Add("/scheduler/leader", int64(42), int64(0x32698f2a0b7c5d03))
	f.Add("a:b%2F \n\xff*", int64(1), int64(-1))
	f.Add("", int64(0), int64(0))
	f.Fuzz(func(t *testing.T, key string, epoch, lease int64) {
		fence := tenure.Fence{Key: key, Epoch: tenure.Epoch(epoch), Lease: clientv3.LeaseID(lease)}
		text, err := fence.MarshalText()
		valid := key != "" && epoch > 0 && lease != 0
		require.Equal(t, valid, err == nil, "MarshalText() = %v", err)
		require.Equal(t, valid, fence.Validate() == nil)
		if !valid {
			require.Error(t, new(tenure.Fence).UnmarshalText([]byte(fence.String())))
			return
		}
		for _, c := range text {
			require.True(t, c > ' ' && c < 0x7f && c != '"' && c != '\'', "%q has the byte %q, which needs quoting somewhere", text, c)
		}
		var got tenure.Fence
		require.NoError(t, got.UnmarshalText(text))
		require.Equal(t, fence, got)

		inJSON, err := json.Marshal(map[tenure.Fence]*tenure.Fence{fence: &fence})
		require.NoError(t, err)
		var back map[tenure.Fence]*tenure.Fence
		require.NoError(t, json.Unmarshal(inJSON, &back))
		require.Equal(t, map[tenure.Fence]*tenure.Fence{fence: &fence}, back)
	})
}

// Whatever arrives is refused with a reason, or is a valid fence.
func FuzzFenceText(f *testing.F) {
	for _, text := range []string{
		"42:32698f2a0b7c5d03:/scheduler/leader", "1:1::", "1:1:%25%zz", "-1:1:k", "+1:1:k", "1:ffffffffffffffff:k",
		"9223372036854775808:1:k", "1:10000000000000000:k", "::", "", "1:0:k", "0:1:k", "1:1:", "\x00",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		before := tenure.Fence{Key: "before", Epoch: 1, Lease: 1}
		fence := before
		if err := fence.UnmarshalText([]byte(text)); err != nil {
			require.Equal(t, before, fence)
			require.True(t, strings.HasPrefix(err.Error(), "tenure: "), "%v", err)
			return
		}
		require.NoError(t, fence.Validate())
		var again tenure.Fence
		require.NoError(t, again.UnmarshalText([]byte(fence.String())))
		require.Equal(t, fence, again)
	})
}

// New refuses exactly what the documentation of the options rules out, and names
// every field that is at fault.
func FuzzOptions(f *testing.F) {
	f.Add(int64(0), int64(0), int64(0), int64(0), "", 0, false)
	f.Add(int64(time.Second), int64(time.Second/2), int64(time.Millisecond), int64(1), "a", 10, false)
	f.Add(int64(time.Second-1), int64(time.Second/2+1), int64(time.Millisecond-1), int64(-1), "\xff", 64<<10, true)
	f.Add(int64(9e18), int64(-1), int64(-1), int64(1<<62), "a", 65000, true)
	for _, times := range [][2]time.Duration{ // each bound, from both sides
		{time.Second - 1, 0},
		{9_000_000_000 * time.Second, 0},
		{9_000_000_000*time.Second + 1, 0},
		{time.Second, time.Millisecond},
		{time.Second, time.Millisecond - 1},
		{time.Second, time.Second/2 + 1},
		{0, 5 * time.Second},
		{0, 5*time.Second + 1},
		{3 * time.Second, -1},
	} {
		f.Add(int64(times[0]), int64(times[1]), int64(0), int64(0), "", 0, false)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}})
	require.NoError(f, err)
	f.Cleanup(func() { _ = client.Close() })
	shared, err := tenure.NewLease(client, nil)
	require.NoError(f, err)

	f.Fuzz(func(t *testing.T, ttl, margin, stop, epoch int64, identity string, address int, share bool) {
		address = min(max(address, 0), 128<<10)
		opts := tenure.Options{
			Identity: identity, Address: strings.Repeat("x", address), TTL: time.Duration(ttl), Margin: time.Duration(margin),
			StopTimeout: time.Duration(stop), MinEpoch: tenure.Epoch(epoch),
		}
		between := func(v, low, high time.Duration) bool { return v == 0 || low <= v && v <= high }
		wished := opts.TTL
		if wished == 0 {
			wished = 10 * time.Second
		}
		faults := map[string]bool{
			"Options.TTL is":         !between(opts.TTL, time.Second, 9_000_000_000*time.Second),
			"Options.Margin is":      !between(opts.Margin, time.Millisecond, wished/2),
			"Options.StopTimeout is": !between(opts.StopTimeout, time.Millisecond, 1<<63-1),
			"Options.MinEpoch is":    epoch < 0,
			"Options.Identity is":    !utf8.ValidString(identity),
		}
		if share {
			opts.Lease = shared
			faults["Options.TTL is"], faults["Options.Margin is"] = ttl != 0, margin != 0
		}
		// What is around the two strings takes about a hundred bytes, and a byte of
		// the identity at most six.
		switch {
		case address+6*len(identity)+500 <= 64<<10:
			faults["Options.Identity, Address"] = false
		case address+len(identity) > 64<<10:
			faults["Options.Identity, Address"] = true
		}
		_, err := tenure.New(client, key, &opts)
		wrong := false
		for text, fault := range faults {
			wrong = wrong || fault
			if fault {
				require.ErrorContains(t, err, text)
			} else if err != nil {
				require.NotContains(t, err.Error(), text)
			}
		}
		if _, sure := faults["Options.Identity, Address"]; sure {
			require.Equal(t, wrong, err != nil, "New(%+v) = %v", opts, err)
		}
		if share {
			return
		}
		_, err = tenure.NewLease(client, &tenure.LeaseOptions{TTL: opts.TTL, Margin: opts.Margin})
		require.Equal(t, faults["Options.TTL is"] || faults["Options.Margin is"], err != nil, "NewLease(%v, %v) = %v", opts.TTL, opts.Margin, err)
	})
}

package fenceenv_test

import (
	"context"
	"math"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fenceenv"
)

func TestProgramHasTheFence(t *testing.T) {
	t.Setenv("TENURE_EPOCH", "1") // of a fence that we were started with ourselves
	fence := tenure.Fence{Key: "/a key/with\n=%C3", Epoch: math.MaxInt64, Lease: -1}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `printf '%s|' "$TENURE_FENCE" "$TENURE_KEY" "$TENURE_EPOCH" "$TENURE_LEASE"`)
	var err error
	cmd.Env, err = fenceenv.Append(os.Environ(), fence)
	require.NoError(t, err)
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Equal(t, fence.String()+"|/a key/with\n=%C3|9223372036854775807|ffffffffffffffff|", string(out))

	t.Setenv("TENURE_FENCE", fence.String())
	got, err := fenceenv.Fence()
	require.NoError(t, err)
	require.Equal(t, fence, got)
}

func TestAppendLeavesItsArgumentAlone(t *testing.T) {
	env := append(make([]string, 0, 10), "A=1")
	one, err := fenceenv.Append(env, tenure.Fence{Key: "one", Epoch: 1, Lease: 1})
	require.NoError(t, err)
	_, err = fenceenv.Append(env, tenure.Fence{Key: "two", Epoch: 2, Lease: 2})
	require.NoError(t, err)
	require.Equal(t, []string{"A=1", "TENURE_FENCE=1:1:one", "TENURE_KEY=one", "TENURE_EPOCH=1", "TENURE_LEASE=1"}, one)
}

func TestNoFence(t *testing.T) {
	_, err := fenceenv.Append(nil, tenure.Fence{})
	require.ErrorContains(t, err, "Fence.")
	_, err = fenceenv.Append(nil, tenure.Fence{Key: "a\x00b", Epoch: 1, Lease: 1})
	require.ErrorContains(t, err, `"a\x00b"`)

	t.Setenv("TENURE_FENCE", "") // restores what was there
	require.NoError(t, os.Unsetenv("TENURE_FENCE"))
	_, err = fenceenv.Fence()
	require.ErrorContains(t, err, "TENURE_FENCE is not set")
	for _, text := range []string{"", "42", "0:1:key", "-1:1:key", "9223372036854775808:1:key", "1:0:key", "1:1:"} {
		t.Setenv("TENURE_FENCE", text)
		_, err = fenceenv.Fence()
		require.ErrorContains(t, err, "TENURE_FENCE", "%q", text)
	}
}

func ExampleAppend() {
	_ = func(ctx context.Context, term *tenure.Term) error {
		cmd := exec.CommandContext(ctx, "export-report", "--all")
		var err error
		if cmd.Env, err = fenceenv.Append(os.Environ(), term.Fence()); err != nil {
			return err
		}
		return cmd.Run()
	}
}

package servers

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestServersStartAndRestart(t *testing.T) {
	for name, start := range map[string]func(testing.TB) *Server{
		"PostgreSQL": PostgreSQL, "MariaDB": MariaDB, "Redis": Redis,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			require.NoError(t, s.ready(t.Context()))
			first := s.cmd.Process.Pid
			require.NoError(t, s.Restart())
			require.NoError(t, s.ready(t.Context()))
			assert.NotEqual(t, first, s.cmd.Process.Pid)
			require.NoError(t, s.Stop())
			require.Error(t, s.ready(t.Context()))
			require.NoError(t, s.Start())
		})
	}
}

// skipper notes how a test was ended.
type skipper struct {
	testing.TB
	skipped, failed string
}

func (s *skipper) Helper()                        {}
func (s *skipper) Skipf(format string, _ ...any)  { s.skipped = format }
func (s *skipper) Fatalf(format string, _ ...any) { s.failed = format }

func TestMissingServerSkipsLoudlyOrFails(t *testing.T) {
	t.Setenv("TENURE_REQUIRE_SERVERS", "")
	s := &skipper{TB: t}
	find(s, "a server", "no-such-program")
	assert.Contains(t, s.skipped, "NOT TESTED")
	assert.Empty(t, s.failed)

	t.Setenv("TENURE_REQUIRE_SERVERS", "1")
	s = &skipper{TB: t}
	find(s, "a server", "no-such-program")
	assert.Empty(t, s.skipped)
	assert.Contains(t, s.failed, "TENURE_REQUIRE_SERVERS")
}

func TestServerThatEndsAtOnceIsAnError(t *testing.T) {
	s := prepare(t, "")
	s.args = []string{"/bin/sh", "-c", "echo no such luck; exit 1"}
	s.ready = func(context.Context) error { return os.ErrNotExist }
	require.ErrorContains(t, s.Start(), "no such luck")
	require.FileExists(t, filepath.Join(s.dir, "log"))
}

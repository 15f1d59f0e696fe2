package tenure_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
	"github.com/tenure-go/tenure/tenuretest"
)

// The snippets of the documents stand here, so that they are compiled and run.

// quickstart is the README's first screen.
func quickstart(ctx context.Context, client *clientv3.Client, nextJob func(context.Context) (string, error)) error {
	elector, err := tenure.New(client, "/scheduler/leader", &tenure.Options{TTL: 10 * time.Second, Logger: slog.Default()})
	if err != nil {
		return err
	}
	// Run calls the function once per term, and again after every loss, until ctx ends.
	return elector.Run(ctx, func(ctx context.Context, term *tenure.Term) error {
		kv := term.KV(client) // a clientv3.KV whose every write carries the fence
		for {
			job, err := nextJob(ctx) // ctx ends when the term does
			if err != nil {
				return err
			}
			if _, err := kv.Put(ctx, job, "done"); err != nil {
				return err // we were replaced: Run campaigns again; else it ends with this error
			}
		}
	})
}

func TestQuickstartWorks(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		err := quickstart(ctx, s.Client().Client, func(ctx context.Context) (string, error) {
			if n++; n > 3 {
				cancel()
				return "", ctx.Err()
			}
			return fmt.Sprintf("/jobs/%d", n), nil
		})
		require.Equal(t, context.Canceled, err)
		assert.Len(t, s.Keys("/jobs/"), 3)
		assert.Empty(t, s.Keys(key))
	})
}

type registry struct {
	mu     sync.Mutex
	values map[string]string
}

func (r *registry) lookup(term *tenure.Term, name string) (string, error) {
	r.mu.Lock()
	value := r.values[name] // 1. read the state
	r.mu.Unlock()
	if !term.Valid() { // 2. then ask
		return "", term.Err()
	}
	return value, nil // 3. then answer
}

// A read is refused once the term is over, and answered before.
func TestLeaseReadIsRefusedAfterTheTerm(t *testing.T) {
	election := tenuretest.NewElection(key)
	term := election.Grant(nil)
	r := &registry{values: map[string]string{"a": "1"}}
	value, err := r.lookup(term, "a")
	require.NoError(t, err)
	assert.Equal(t, "1", value)
	election.End(tenure.LeaseExpired)
	_, err = r.lookup(term, "a")
	require.ErrorIs(t, err, tenure.LeaseExpired)
	require.NoError(t, term.Resign())
}

func charge(ctx context.Context, term *tenure.Term, bill func(context.Context) error) error {
	ctx, cancel := context.WithDeadline(ctx, term.ValidUntil())
	defer cancel()
	if !term.Valid() {
		return term.Err()
	}
	return bill(ctx) // an effect without a gate: only the clock protects it
}

func TestEffectIsRefusedAfterTheTerm(t *testing.T) {
	election := tenuretest.NewElection(key)
	term := election.Grant(nil)
	calls := 0
	bill := func(context.Context) error { calls++; return nil }
	require.NoError(t, charge(t.Context(), term, bill))
	election.End(tenure.KeyDeleted)
	require.ErrorIs(t, charge(t.Context(), term, bill), tenure.KeyDeleted)
	assert.Equal(t, 1, calls)
	require.NoError(t, term.Resign())
}

func config(endpoints []string) clientv3.Config {
	cfg := clientv3.Config{
		Endpoints:            endpoints, // all members: a failed attempt goes to another one
		DialTimeout:          3 * time.Second,
		DialKeepAliveTime:    10 * time.Second, // notice a dead connection
		DialKeepAliveTimeout: 3 * time.Second,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			// gRPC's own pause between two dials grows to two minutes. A server that was away for four seconds
			// can then cost a lease of ten.
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 3 * time.Second,
		})},
	}
	return cfg
}

func TestRecommendedConfigurationConnects(t *testing.T) {
	client, err := clientv3.New(config([]string{"http://127.0.0.1:1"}))
	require.NoError(t, err)
	require.NoError(t, client.Close())
}

// Every Go snippet of the documents stands, line by line, in a file that the
// compiler sees; every make target and file that they name exists.
func TestDocumentsAreTrue(t *testing.T) {
	var sources strings.Builder
	for _, pattern := range []string{"*_test.go", "examples/*/*.go", "tenuretest/*.go", "fence*/*_test.go", "leader*/*_test.go", "statushttp/*_test.go"} {
		names, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, name := range names {
			data, err := os.ReadFile(name)
			require.NoError(t, err)
			sources.WriteString(unindent(string(data)))
		}
	}
	makefile, err := os.ReadFile("Makefile")
	require.NoError(t, err)
	documents, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	documents = append(documents, "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
	snippet := regexp.MustCompile("(?s)```go\n(.*?)```")
	target := regexp.MustCompile("`?make ([a-z-]+)")
	link := regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	test := regexp.MustCompile("`((?:Test|Fuzz)[A-Z][A-Za-z]+)`")
	for _, name := range documents {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, m := range test.FindAllStringSubmatch(string(data), -1) {
			assert.Contains(t, sources.String(), "func "+m[1]+"(", "%s: a test that does not exist", name)
		}
		for _, m := range snippet.FindAllStringSubmatch(string(data), -1) {
			assert.Contains(t, sources.String(), unindent(m[1]), "%s: a snippet that no Go file has", name)
		}
		for _, m := range target.FindAllStringSubmatch(string(data), -1) {
			if strings.HasPrefix(m[0], "`") {
				assert.Regexp(t, "(?m)^"+m[1]+":", string(makefile), "%s: make %s", name, m[1])
			}
		}
		for _, m := range link.FindAllStringSubmatch(string(data), -1) {
			_, err := os.Stat(filepath.Join(filepath.Dir(name), m[1]))
			assert.NoError(t, err, "%s links to %s", name, m[1])
		}
	}
}

// unindent removes the indentation of each line.
func unindent(text string) string {
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		lines[i] = strings.TrimLeft(l, "\t")
	}
	return strings.Join(lines, "\n")
}

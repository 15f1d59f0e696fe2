package tenure_test

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
)

const maxTTL = clientv3.MaxLeaseTTL * time.Second

// L25, S14. Each bound from both sides. An error names the field, its value and
// the bound.
func TestOptionsAreCheckedAtTheirBounds(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		lease := newLease(t, c, nil)
		foreign := newLease(t, s.Client(), nil)
		for _, tt := range []struct {
			name string
			opts tenure.Options
			want string // "" is valid; of "a|b", both are in the error
		}{
			{"Zero", tenure.Options{}, ""},
			{"TTLAtLeast", tenure.Options{TTL: time.Second}, ""},
			{"TTLBelow", tenure.Options{TTL: time.Second - 1}, "Options.TTL is 999.999999ms|at least 1s"},
			{"TTLNegative", tenure.Options{TTL: -time.Second}, "Options.TTL is -1s|at least 1s"},
			{"TTLAtMost", tenure.Options{TTL: maxTTL}, ""},
			{"TTLAbove", tenure.Options{TTL: maxTTL + 1}, "Options.TTL is 2500000h0m0.000000001s|at most 2500000h0m0s"},
			{"MarginAtLeast", tenure.Options{Margin: time.Millisecond}, ""},
			{"MarginBelow", tenure.Options{Margin: time.Millisecond - 1}, "Options.Margin is 999.999µs|at least 1ms"},
			{"MarginNegative", tenure.Options{Margin: -1}, "Options.Margin is -1ns|at least 1ms"},
			{"MarginAtMost", tenure.Options{TTL: 3 * time.Second, Margin: 1500 * time.Millisecond}, ""},
			{"MarginAbove", tenure.Options{TTL: 3 * time.Second, Margin: 1500*time.Millisecond + 1}, "Options.Margin is 1.500000001s|at most half of Options.TTL, 3s"},
			{"MarginAtMostOfDefault", tenure.Options{Margin: 5 * time.Second}, ""},
			{"MarginAboveOfDefault", tenure.Options{Margin: 5*time.Second + 1}, "Options.Margin is 5.000000001s|at most half of Options.TTL, 10s"},
			{"StopTimeoutAtLeast", tenure.Options{StopTimeout: time.Millisecond}, ""},
			{"StopTimeoutBelow", tenure.Options{StopTimeout: time.Millisecond - 1}, "Options.StopTimeout is 999.999µs|at least 1ms"},
			{"StopTimeoutNegative", tenure.Options{StopTimeout: -1}, "Options.StopTimeout is -1ns|at least 1ms"},
			{"StopTimeoutLong", tenure.Options{StopTimeout: 1<<63 - 1}, ""},
			{"MinEpochNegative", tenure.Options{MinEpoch: -1}, "Options.MinEpoch is -1|not be negative"},
			{"MinEpochLargest", tenure.Options{MinEpoch: 1<<63 - 1}, ""},
			{"Lease", tenure.Options{Lease: lease}, ""},
			{"LeaseAndTTL", tenure.Options{Lease: lease, TTL: 10 * time.Second}, "Options.TTL is 10s|Options.Lease is set|must be 0"},
			{"LeaseAndMargin", tenure.Options{Lease: lease, Margin: time.Second}, "Options.Margin is 1s|Options.Lease is set|must be 0"},
			{"LeaseOfAnotherClient", tenure.Options{Lease: foreign}, "Options.Lease was made with another client"},
		} {
			_, err := tenure.New(c.Client, key, &tt.opts)
			checkFault(t, tt.name, err, tt.want)
			if tt.opts.Lease == nil && tt.opts.StopTimeout == 0 && tt.opts.MinEpoch == 0 {
				_, err := tenure.NewLease(c.Client, &tenure.LeaseOptions{TTL: tt.opts.TTL, Margin: tt.opts.Margin})
				checkFault(t, "Lease"+tt.name, err, strings.ReplaceAll(tt.want, "Options.", "LeaseOptions."))
			}
		}
		require.Empty(t, c.Faults.Log(""), "New and NewLease send nothing")
	})
}

func checkFault(t *testing.T, name string, err error, want string) {
	t.Helper()
	if want == "" {
		require.NoError(t, err, name)
		return
	}
	require.Error(t, err, name)
	for part := range strings.SplitSeq(want, "|") {
		require.ErrorContains(t, err, part, name)
	}
	require.True(t, strings.HasPrefix(err.Error(), "tenure: "), err.Error())
}

func TestEveryFaultIsReportedAtOnce(t *testing.T) {
	_, err := tenure.New(nil, "", &tenure.Options{
		TTL: -1, Margin: -1, StopTimeout: -1, MinEpoch: -1, Address: strings.Repeat("x", 64<<10),
	})
	requireFaults(t, err, "the client is nil", "the key is empty", "Options.TTL is", "Options.Margin is",
		"Options.StopTimeout is", "Options.MinEpoch is", "Options.Identity, Address and Metadata make")
	_, err = tenure.New(nil, "", &tenure.Options{
		Identity: "\xff", Address: "\xff", Metadata: map[string]string{"\xff": "", "zone": "\xff"},
	})
	requireFaults(t, err, "the client is nil", "the key is empty", "Options.Identity is", "Options.Address is",
		`Options.Metadata is "\xff": it must be valid UTF-8`, `Options.Metadata["zone"] is "\xff": it must be valid UTF-8`)
	_, err = tenure.NewLease(nil, &tenure.LeaseOptions{TTL: -1, Margin: -1})
	requireFaults(t, err, "the client is nil", "LeaseOptions.TTL is", "LeaseOptions.Margin is")
}

// requireFaults wants one line for each fault.
func requireFaults(t *testing.T, err error, faults ...string) {
	t.Helper()
	require.Error(t, err)
	for _, fault := range faults {
		require.Equal(t, 1, strings.Count(err.Error(), "tenure: "+fault), "%s in %v", fault, err)
	}
	require.Len(t, strings.Split(err.Error(), "\n"), len(faults))
}

func TestNilOptionsAreValid(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		e := newElector(t, c, nil)
		term := lead(t, e)
		require.Equal(t, 10*time.Second, e.Status().TTL)
		require.Equal(t, 9*time.Second, time.Until(term.ValidUntil()), "the margin is a tenth")
		l := newLease(t, c, nil)
		other, err := tenure.New(c.Client, "/other", &tenure.Options{Lease: l})
		require.NoError(t, err)
		require.Equal(t, 9*time.Second, time.Until(lead(t, other).ValidUntil()))
	})
}

// The extremes are not only accepted: they work.
func TestExtremeOptionsLead(t *testing.T) {
	for name, tt := range map[string]struct {
		opts    tenure.Options
		granted time.Duration
		valid   time.Duration
	}{
		"SmallestTTL":    {tenure.Options{TTL: time.Second}, 2 * time.Second, 1800 * time.Millisecond},
		"PartOfASecond":  {tenure.Options{TTL: 2*time.Second + 1}, 3 * time.Second, 2700 * time.Millisecond},
		"LargestTTL":     {tenure.Options{TTL: maxTTL}, maxTTL, maxTTL - maxTTL/10},
		"SmallestMargin": {tenure.Options{Margin: time.Millisecond}, 10 * time.Second, 9999 * time.Millisecond},
		"LargestMargin":  {tenure.Options{TTL: 3 * time.Second, Margin: 1500 * time.Millisecond}, 3 * time.Second, 1500 * time.Millisecond},
		"LongStop":       {tenure.Options{StopTimeout: 1<<63 - 1}, 10 * time.Second, 9 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				e := newElector(t, s.Client(), &tt.opts)
				term := lead(t, e)
				require.Equal(t, tt.granted, e.Status().TTL)
				require.Equal(t, tt.valid, time.Until(term.ValidUntil()))
				time.Sleep(time.Minute)
				require.True(t, term.Valid())
				require.NoError(t, term.Resign())
				require.Empty(t, s.Keys(key))
				require.Zero(t, s.Leases())
			})
		})
	}
}

// A client inside the server's own process has no connection to renew on.
func TestClientWithoutConnectionIsRefused(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		inside := v3client.New(s.Etcd())
		defer inside.Close()
		for _, client := range []*clientv3.Client{nil, {}, inside} {
			_, err := tenure.New(client, key, nil)
			require.ErrorContains(t, err, "has no connection")
			_, err = tenure.NewLease(client, nil)
			require.ErrorContains(t, err, "has no connection")
		}
	})
}

// published is the record at the election's key.
func published(t *testing.T, s *etcdtest.Server) map[string]any {
	t.Helper()
	kvs := s.Keys(key)
	require.Len(t, kvs, 1)
	var record map[string]any
	require.NoError(t, json.Unmarshal(kvs[0].Value, &record))
	return record
}

// The caller may use its options again.
func TestOptionsAreCopied(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		metadata := map[string]string{"zone": "a"}
		opts := &tenure.Options{Identity: "one", Address: "10.0.0.1:1", Metadata: metadata, TTL: 5 * time.Second}
		given := *opts
		e := newElector(t, s.Client(), opts)
		require.Equal(t, given, *opts, "the caller's options are not completed")
		metadata["zone"] = "b"
		metadata["more"] = "c"
		opts.Identity, opts.Address, opts.TTL, opts.StopTimeout = "two", "10.0.0.2:2", -1, -1
		term := lead(t, e)
		record := published(t, s)
		require.Equal(t, "one", record["identity"])
		require.Equal(t, "10.0.0.1:1", record["address"])
		require.Equal(t, map[string]any{"zone": "a"}, record["metadata"])
		require.Equal(t, 5*time.Second, e.Status().TTL)

		require.ErrorContains(t, term.Announce(t.Context(), "\xff", nil), `Address is "\xff": it must be valid UTF-8`)
		require.Equal(t, record, published(t, s))

		// So may who announces.
		metadata = map[string]string{"zone": "d"}
		require.NoError(t, term.Announce(t.Context(), "", metadata))
		metadata["zone"] = "e"
		time.Sleep(time.Minute)
		require.Equal(t, map[string]any{"zone": "d"}, published(t, s)["metadata"])
	})
}

// A18. Two processes on one host tell each other apart by it.
func TestDefaultIdentityIsUnique(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		host, err := os.Hostname()
		require.NoError(t, err)
		seen := make(map[string]bool)
		for range 10 {
			term, err := newElector(t, c, nil).Campaign(t.Context())
			require.NoError(t, err)
			identity := published(t, s)["identity"].(string)
			require.True(t, strings.HasPrefix(identity, host+"-"+strconv.Itoa(os.Getpid())+"-"), identity)
			require.False(t, seen[identity], identity)
			seen[identity] = true
			require.NoError(t, term.Resign())
		}
	})
}

// The record tells when it was written, and that varies in length by 10 bytes.
func TestRecordIsBounded(t *testing.T) {
	const limit = 64 << 10
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		opts := &tenure.Options{Identity: "i", Address: "a", Metadata: map[string]string{"k": "v"}}
		lead(t, newElector(t, c, opts))
		room := limit - len(s.Keys(key)[0].Value)
		for field, grow := range map[string]func(o *tenure.Options, n int){
			"Identity": func(o *tenure.Options, n int) { o.Identity += strings.Repeat("x", n) },
			"Address":  func(o *tenure.Options, n int) { o.Address += strings.Repeat("x", n) },
			"Metadata": func(o *tenure.Options, n int) {
				o.Metadata = maps.Clone(o.Metadata)
				o.Metadata["k"] += strings.Repeat("x", n)
			},
		} {
			over := *opts
			grow(&over, room+11)
			_, err := tenure.New(c.Client, "/other", &over)
			require.ErrorContains(t, err, "it must have at most 65536", field)
			fits := *opts
			grow(&fits, room-10)
			e, err := tenure.New(c.Client, "/other", &fits)
			require.NoError(t, err, field)
			term, err := e.Campaign(context.Background())
			require.NoError(t, err, field)
			require.NoError(t, term.Resign())
		}
	})
}

package metrics_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
	"github.com/tenure-go/tenure/metrics"
)

const key = "/scheduler/leader"

// read returns the samples of a registry, as name{label=value,...}; a histogram
// is its count and its sum.
func read(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	samples := make(map[string]float64)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				if l.GetName() != "election" {
					labels = append(labels, l.GetName()+"="+l.GetValue())
				} else {
					require.Equal(t, key, l.GetValue())
				}
			}
			slices.Sort(labels)
			name := strings.TrimPrefix(family.GetName(), "tenure_")
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			switch {
			case m.GetHistogram() != nil:
				samples[name+"_count"] = float64(m.GetHistogram().GetSampleCount())
				samples[name+"_sum"] = m.GetHistogram().GetSampleSum()
			case m.GetCounter() != nil:
				samples[name] = m.GetCounter().GetValue()
			default:
				samples[name] = m.GetGauge().GetValue()
			}
		}
	}
	return samples
}

// watched is an elector with a collector, run by a work that ends when told.
func watched(t *testing.T, c *etcdtest.Client, next *tenure.Hooks) (*prometheus.Registry, *metrics.Collector, chan *tenure.Term) {
	t.Helper()
	collector := metrics.New()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector)
	e, err := tenure.New(c.Client, key, &tenure.Options{TTL: 6 * time.Second, Hooks: collector.Hooks(key, next)})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	terms, done := make(chan *tenure.Term, 10), make(chan error, 1)
	go func() {
		done <- e.Run(ctx, func(ctx context.Context, term *tenure.Term) error {
			terms <- term
			<-ctx.Done()
			time.Sleep(2 * time.Second) // it stops in its own time
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return registry, collector, terms
}

func TestLifeOfATerm(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		registry, _, terms := watched(t, c, nil)
		term := etcdtest.Await(t, 5*time.Second, "work", terms)
		time.Sleep(time.Second)
		got := read(t, registry)
		require.InEpsilon(t, 1, got["leading"], 0)
		require.InEpsilon(t, float64(term.Epoch()), got["epoch"], 0)
		require.InDelta(t, 4.4, got["validity_seconds"], 0.01)
		require.InEpsilon(t, 1, got["state{state=leading}"], 0)
		require.Zero(t, got["state{state=idle}"])
		require.InEpsilon(t, 1, got["terms_started_total"], 0)
		require.InEpsilon(t, 1, got["contests_total{outcome=won}"], 0)
		require.Zero(t, got["contests_total{outcome=lost}"])
		require.NotContains(t, got, "stop_seconds_count")

		// It is asked to go: a vacancy of no time, another term of ours.
		require.NoError(t, tenure.Evict(t.Context(), s.Admin(), term.Fence(), nil))
		next := etcdtest.Await(t, 10*time.Second, "work", terms)
		require.Greater(t, next.Epoch(), term.Epoch())
		synctest.Wait()
		got = read(t, registry)
		require.InEpsilon(t, 1, got["terms_ended_total{reason=evicted}"], 0)
		require.InEpsilon(t, 1, got["stop_seconds_count"], 0)
		require.InDelta(t, 2, got["stop_seconds_sum"], 0.01)
		require.InDelta(t, 2, got["vacancy_seconds_total"], 0.1, "nobody else was there for a third of the TTL")
		require.InEpsilon(t, 2, got["terms_started_total"], 0)

		// Cut off, it stops to lead by the clock, whoever has noticed.
		c.Link.Cut()
		time.Sleep(5300 * time.Millisecond)
		require.False(t, next.Valid())
		got = read(t, registry)
		require.Zero(t, got["leading"])
		require.Zero(t, got["validity_seconds"])
		require.InEpsilon(t, float64(next.Epoch()), got["epoch"], 0)
		time.Sleep(5 * time.Second)
		got = read(t, registry)
		require.InEpsilon(t, 1, got["terms_ended_total{reason=lease expired}"], 0)
		require.InEpsilon(t, 1, got["stop_seconds_count"], 0, "a loss is no orderly stop")
		require.NotZero(t, got["renewal_failures_total{code=DeadlineExceeded}"])
		require.NotZero(t, got["renewal_seconds{counted=false}_count"])
		require.InEpsilon(t, 1, got["expiring_total"], 0)
		require.InEpsilon(t, 1, got["state{state=unreachable}"], 0)
		c.Link.Heal()
		etcdtest.Await(t, 20*time.Second, "work", terms)
		time.Sleep(10 * time.Second)
		require.NotZero(t, read(t, registry)["renewal_seconds{counted=true}_count"])
	})
}

// A contest is lost to who begins a term, and not to who is found there.
func TestContestsAreCountedByOutcome(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		lead := func(identity string) *tenure.Term {
			e, err := tenure.New(s.Client().Client, key, &tenure.Options{Identity: identity, TTL: 6 * time.Second})
			require.NoError(t, err)
			term, err := e.Campaign(t.Context())
			require.NoError(t, err)
			return term
		}
		first := lead("first")
		registry, _, terms := watched(t, s.Client(), nil)
		time.Sleep(time.Second)
		require.Zero(t, read(t, registry)["contests_total{outcome=lost}"])

		require.NoError(t, first.Resign())
		term := etcdtest.Await(t, 5*time.Second, "work", terms)
		next := make(chan *tenure.Term, 1)
		go func() { next <- lead("second") }()
		require.NoError(t, tenure.Evict(t.Context(), s.Admin(), term.Fence(), nil))
		second := etcdtest.Await(t, 10*time.Second, "second", next)
		time.Sleep(time.Second)
		got := read(t, registry)
		require.InEpsilon(t, 1, got["contests_total{outcome=won}"], 0)
		require.InEpsilon(t, 1, got["contests_total{outcome=lost}"], 0)
		require.NoError(t, second.Resign())
	})
}

// A vacancy is counted while it lasts, too.
func TestVacancyIsCountedWhileItLasts(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, _ *etcdtest.Server) {
		collector := metrics.New()
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(collector)
		hooks := collector.Hooks(key, nil)
		hooks.StateChanged(tenure.Status{State: tenure.Vacant})
		time.Sleep(time.Minute)
		require.InDelta(t, 60, read(t, registry)["vacancy_seconds_total"], 0.01)
		time.Sleep(time.Minute)
		hooks.StateChanged(tenure.Status{State: tenure.Led})
		time.Sleep(time.Minute)
		require.InDelta(t, 120, read(t, registry)["vacancy_seconds_total"], 0.01)
	})
}

func TestWritesAreCountedByOutcome(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		registry, collector, terms := watched(t, c, nil)
		term := etcdtest.Await(t, 5*time.Second, "work", terms)
		local := collector.KV(key, term.KV(c.Client))
		remote := collector.KV(key, term.Fence().KV(s.Client().Client))
		ctx := t.Context()
		_, err := local.Put(ctx, "a", "1")
		require.NoError(t, err)
		_, err = remote.Delete(ctx, "a")
		require.NoError(t, err)
		_, err = local.Do(ctx, clientv3.OpPut("a", "2"))
		require.NoError(t, err)
		resp, err := local.Txn(ctx).If(clientv3.Compare(clientv3.Version("a"), "=", 9)).Then(clientv3.OpDelete("a")).Else(clientv3.OpGet("a")).Commit()
		require.NoError(t, err)
		require.False(t, resp.Succeeded)
		got, err := local.Get(ctx, "a")
		require.NoError(t, err)
		require.Len(t, got.Kvs, 1)
		_, err = local.Do(ctx, clientv3.OpGet("a"))
		require.NoError(t, err)
		_, err = local.Put(ctx, "", "no key")
		require.Error(t, err)
		c.Faults.Next("Txn", etcdtest.DropAnswer(etcdtest.Unavailable))
		_, err = local.Put(ctx, "a", "3")
		require.ErrorIs(t, err, tenure.ErrUnknownOutcome)

		_, err = s.Admin().Delete(ctx, key)
		require.NoError(t, err)
		_, err = remote.Put(ctx, "a", "4")
		require.ErrorIs(t, err, tenure.ErrFenced)
		etcdtest.Await(t, time.Second, "Context", term.Context().Done())
		_, err = local.Put(ctx, "a", "4")
		require.ErrorIs(t, err, tenure.ErrTermEnded)

		samples := read(t, registry)
		for outcome, want := range map[string]float64{"accepted": 4, "fenced": 1, "ended": 1, "unknown": 1, "failed": 1} {
			require.InEpsilon(t, want, samples[fmt.Sprintf("writes_total{outcome=%s}", outcome)], 0, outcome)
		}
	})
}

// The hooks of the caller are called, every one of them.
func TestHooksOfTheCallerAreCalled(t *testing.T) {
	var calls atomic.Int32
	next := &tenure.Hooks{
		TermStarted:  func(*tenure.Term) { calls.Add(1) },
		TermEnded:    func(*tenure.Term, error) { calls.Add(1) },
		StateChanged: func(tenure.Status) { calls.Add(1) },
		Renewed:      func(time.Duration, error) { calls.Add(1) },
		Expiring:     func(*tenure.Term, time.Duration) { calls.Add(1) },
		Overstayed:   func(*tenure.Term) { calls.Add(1) },
	}
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		collector := metrics.New()
		e, err := tenure.New(s.Client().Client, key, nil)
		require.NoError(t, err)
		term, err := e.Campaign(t.Context())
		require.NoError(t, err)
		for _, hooks := range []*tenure.Hooks{collector.Hooks(key, next), collector.Hooks(key, nil)} {
			hooks.TermStarted(term)
			hooks.StateChanged(e.Status())
			hooks.Renewed(time.Millisecond, nil)
			hooks.Expiring(term, time.Second)
			hooks.Overstayed(term)
			hooks.TermEnded(term, tenure.Resigned)
		}
		collector.LeaseHooks("shared").Renewed(time.Millisecond, context.DeadlineExceeded)
		require.EqualValues(t, 6, calls.Load())
		require.NoError(t, term.Resign())
	})
}

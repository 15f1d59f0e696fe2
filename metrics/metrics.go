// Package metrics is a collector of Prometheus for electors: who leads, since
// when, for how long it is still safe, and why it ended.
//
//	collector := metrics.New()
//	prometheus.MustRegister(collector)
//	elector, err := tenure.New(client, key, &tenure.Options{Hooks: collector.Hooks(key, nil)})
//
// Gauges are computed from the clocks when they are collected, as [tenure.Term.Valid]
// is, so a process that was paused does not report that it leads. What other
// processes report was true when they were asked; see the alert rules in
// docs/alerts.yaml for what that means to "two leaders".
package metrics

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/code"
)

// Collector is a [prometheus.Collector]. It learns through hooks and through the
// KVs that it wraps. All methods may be called concurrently.
type Collector struct {
	leading, epoch, validity, state *prometheus.Desc

	renewals   *prometheus.HistogramVec
	failures   *prometheus.CounterVec
	contests   *prometheus.CounterVec
	started    *prometheus.CounterVec
	ended      *prometheus.CounterVec
	stopping   *prometheus.HistogramVec
	expiring   *prometheus.CounterVec
	overstayed *prometheus.CounterVec
	vacancy    *prometheus.CounterVec
	writes     *prometheus.CounterVec

	mu        sync.Mutex
	elections map[string]*election
}

// election is what the collector knows of one.
type election struct {
	term   *tenure.Term // the last one of ours; nil before the first
	told   time.Time    // when its work was told to stop; zero: not yet
	status tenure.Status
	vacant time.Time    // since when it is; zero: it is not
	leader tenure.Epoch // of the last term of anybody that was counted
}

// New returns a collector that knows no election yet.
func New() *Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("tenure_"+name, help, append([]string{"election"}, labels...), nil)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tenure", Name: name, Help: help}, append([]string{"election"}, labels...))
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "tenure", Name: name, Help: help, Buckets: buckets}, append([]string{"election"}, labels...))
	}
	return &Collector{
		leading:  desc("leading", "Whether this process holds the election, by its own clocks."),
		epoch:    desc("epoch", "The epoch of the last term that this process knows of, whoever's."),
		validity: desc("validity_seconds", "How long this process's term is still valid without another renewal; 0 without a term."),
		state:    desc("state", "1 for the state that the elector is in.", "state"),

		renewals: histogram("renewal_seconds", "How long attempts to renew the lease took, by whether they count.",
			[]float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5}, "counted"),
		failures:   counter("renewal_failures_total", "Attempts to renew the lease that do not count, by gRPC code.", "code"),
		contests:   counter("contests_total", "Terms of anybody that began while this process took part, by outcome for it: won, lost.", "outcome"),
		started:    counter("terms_started_total", "Terms of this process."),
		ended:      counter("terms_ended_total", "Terms of this process that have ended, by reason.", "reason"),
		stopping:   histogram("stop_seconds", "How long the work took to stop in order, from the end of its context to the end of the term.", []float64{.01, .1, .5, 1, 2, 5, 10, 30, 60}),
		expiring:   counter("expiring_total", "How often the validity of a term was running out."),
		overstayed: counter("overstayed_total", "How often work went on for StopTimeout after its context had ended."),
		vacancy:    counter("vacancy_seconds_total", "For how long this process saw that nobody held the election."),
		writes:     counter("writes_total", "Guarded requests, transactions that only read among them, by outcome: accepted, fenced, ended, unknown, failed.", "outcome"),

		elections: make(map[string]*election),
	}
}

// Hooks returns hooks for the elector of one election, under whatever name it
// shall have in the label "election". The hooks of next, which may be nil, are
// called after the collector's own. Electors of one name in one process would
// overwrite each other's gauges.
func (c *Collector) Hooks(name string, next *tenure.Hooks) *tenure.Hooks {
	if next == nil {
		next = &tenure.Hooks{}
	}
	c.mu.Lock()
	c.elections[name] = &election{}
	c.mu.Unlock()
	// What has not happened yet is 0, and not absent.
	c.contests.WithLabelValues(name, "won")
	c.contests.WithLabelValues(name, "lost")
	c.started.WithLabelValues(name)
	c.expiring.WithLabelValues(name)
	c.overstayed.WithLabelValues(name)
	c.vacancy.WithLabelValues(name)
	return &tenure.Hooks{
		TermStarted: func(term *tenure.Term) {
			c.termStarted(name, term)
			call(next.TermStarted, term)
		},
		TermEnded: func(term *tenure.Term, cause error) {
			c.termEnded(name, term, cause)
			if next.TermEnded != nil {
				next.TermEnded(term, cause)
			}
		},
		StateChanged: func(st tenure.Status) {
			c.stateChanged(name, st)
			call(next.StateChanged, st)
		},
		Renewed: func(latency time.Duration, err error) {
			c.renewed(name, latency, err)
			if next.Renewed != nil {
				next.Renewed(latency, err)
			}
		},
		Expiring: func(term *tenure.Term, left time.Duration) {
			c.expiring.WithLabelValues(name).Inc()
			if next.Expiring != nil {
				next.Expiring(term, left)
			}
		},
		Overstayed: func(term *tenure.Term) {
			c.overstayed.WithLabelValues(name).Inc()
			call(next.Overstayed, term)
		},
	}
}

// LeaseHooks returns hooks for a [tenure.Lease] that several electors share, which
// makes the renewals, under a name for the label "election".
func (c *Collector) LeaseHooks(name string) *tenure.Hooks {
	return &tenure.Hooks{Renewed: func(latency time.Duration, err error) { c.renewed(name, latency, err) }}
}

func (c *Collector) renewed(name string, latency time.Duration, err error) {
	counted := "true"
	if err != nil {
		counted = "false"
		c.failures.WithLabelValues(name, code.Of(err).String()).Inc()
	}
	c.renewals.WithLabelValues(name, counted).Observe(latency.Seconds())
}

func call[T any](hook func(T), arg T) {
	if hook != nil {
		hook(arg)
	}
}

func (c *Collector) termStarted(name string, term *tenure.Term) {
	c.started.WithLabelValues(name).Inc()
	c.mu.Lock()
	e := c.elections[name]
	e.term, e.told = term, time.Time{}
	c.mu.Unlock()
	context.AfterFunc(term.Context(), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if e.term == term && e.told.IsZero() {
			e.told = time.Now()
		}
	})
}

func (c *Collector) termEnded(name string, term *tenure.Term, cause error) {
	reason, _ := errors.AsType[tenure.Reason](cause)
	c.ended.WithLabelValues(name, string(reason)).Inc()
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.elections[name]
	switch reason {
	case tenure.Resigned, tenure.Evicted, tenure.ContextEnded:
		if e.term == term && !e.told.IsZero() {
			c.stopping.WithLabelValues(name).Observe(time.Since(e.told).Seconds())
		}
	}
}

func (c *Collector) stateChanged(name string, st tenure.Status) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.elections[name]
	c.decidedLocked(name, e, st)
	e.status = st
	c.settleLocked(name, e, now)
	if st.State == tenure.Vacant {
		e.vacant = now
	}
}

// decidedLocked counts a contest that has found its winner. The leader whom a
// candidate finds when it comes has won none against it.
func (c *Collector) decidedLocked(name string, e *election, st tenure.Status) {
	epoch := st.Leader.Fence.Epoch
	if epoch <= e.leader || st.State != tenure.Led && st.State != tenure.Leading {
		return
	}
	e.leader = epoch
	switch {
	case st.State == tenure.Leading:
		c.contests.WithLabelValues(name, "won").Inc()
	case e.status.State != tenure.Idle:
		c.contests.WithLabelValues(name, "lost").Inc()
	}
}

// settleLocked counts the vacancy so far.
func (c *Collector) settleLocked(name string, e *election, now time.Time) {
	if !e.vacant.IsZero() {
		c.vacancy.WithLabelValues(name).Add(now.Sub(e.vacant).Seconds())
		e.vacant = time.Time{}
	}
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.leading, c.epoch, c.validity, c.state} {
		ch <- d
	}
	for _, v := range c.vectors() {
		v.Describe(ch)
	}
}

// Collect implements [prometheus.Collector]. It never blocks on etcd.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	c.mu.Lock()
	now := time.Now()
	for name, e := range c.elections {
		var leading, left float64
		epoch := e.status.Leader.Fence.Epoch
		if t := e.term; t != nil {
			epoch = max(epoch, t.Epoch())
			if t.Valid() {
				leading, left = 1, t.ValidUntil().Sub(now).Seconds()
			}
		}
		gauge(c.leading, leading, name)
		gauge(c.validity, max(left, 0), name)
		gauge(c.epoch, float64(epoch), name)
		for st := tenure.Idle; st <= tenure.RolledBack; st++ {
			v := 0.0
			if st == e.status.State {
				v = 1
			}
			gauge(c.state, v, name, st.String())
		}
		if !e.vacant.IsZero() {
			c.settleLocked(name, e, now)
			e.vacant = now
		}
	}
	c.mu.Unlock()
	for _, v := range c.vectors() {
		v.Collect(ch)
	}
}

func (c *Collector) vectors() []prometheus.Collector {
	return []prometheus.Collector{
		c.renewals, c.failures, c.contests, c.started, c.ended, c.stopping, c.expiring, c.overstayed, c.vacancy, c.writes,
	}
}

// KV returns kv, which [tenure.Term.KV] or [tenure.Fence.KV] has made, with its
// writes counted by outcome under the name of an election.
func (c *Collector) KV(name string, kv clientv3.KV) clientv3.KV {
	return &countingKV{KV: kv, count: func(err error) {
		outcome := "accepted"
		switch {
		case err == nil:
		case errors.Is(err, tenure.ErrFenced):
			outcome = "fenced"
		case errors.Is(err, tenure.ErrTermEnded):
			outcome = "ended"
		case errors.Is(err, tenure.ErrUnknownOutcome):
			outcome = "unknown"
		default:
			outcome = "failed"
		}
		c.writes.WithLabelValues(name, outcome).Inc()
	}}
}

// countingKV embeds the KV that it counts for: that one is the guard, and decides
// about methods that a later client adds.
type countingKV struct {
	clientv3.KV

	count func(err error)
}

func (k *countingKV) Put(ctx context.Context, key, val string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	resp, err := k.KV.Put(ctx, key, val, opts...)
	k.count(err)
	return resp, err
}

func (k *countingKV) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	resp, err := k.KV.Delete(ctx, key, opts...)
	k.count(err)
	return resp, err
}

func (k *countingKV) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	resp, err := k.KV.Do(ctx, op)
	if !op.IsGet() {
		k.count(err)
	}
	return resp, err
}

func (k *countingKV) Txn(ctx context.Context) clientv3.Txn {
	return &countingTxn{Txn: k.KV.Txn(ctx), count: k.count}
}

type countingTxn struct {
	clientv3.Txn

	count func(err error)
}

func (t *countingTxn) If(cmps ...clientv3.Cmp) clientv3.Txn {
	t.Txn = t.Txn.If(cmps...)
	return t
}

func (t *countingTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Then(ops...)
	return t
}

func (t *countingTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Else(ops...)
	return t
}

func (t *countingTxn) Commit() (*clientv3.TxnResponse, error) {
	resp, err := t.Txn.Commit()
	t.count(err)
	return resp, err
}

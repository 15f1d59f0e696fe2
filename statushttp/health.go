package statushttp

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/tenure-go/tenure"
)

// Live returns a liveness probe: 503 says that the process is better restarted.
//
//   - 503 if the work of a term has overstayed: it went on for
//     [tenure.Options.StopTimeout] after its context had ended. It stays so until
//     another term starts here, also if the work returns at last.
//   - 503 if the elector takes part and has not heard of etcd for longer than
//     patience: its lease is older than that, be it that etcd is away, that the
//     client is stuck, or that nothing renews.
//   - 200 otherwise: leading, following, vacant, and idle, too, since a process
//     that has not begun, or has ended its Run, is not helped by a restart here.
//
// A patience of 0 is without end, and a patience of less than the TTL and a few
// seconds would restart a process for what heals by itself. Mind that a restart
// mends nothing but a client that is stuck: in an outage of etcd every candidate
// would be restarted again and again, and when etcd is back, those that are held
// back for having failed so often are not there to lead. So give it minutes.
//
// A leader that is cut off is 200 at first: it has ended its term by itself and
// stops its work. If it cannot, it has overstayed.
func (m *Monitor) Live(elector *tenure.Elector, patience time.Duration) http.Handler {
	return probe(func() (string, bool) {
		m.mu.Lock()
		overstayed := m.overstayed
		m.mu.Unlock()
		st := elector.Status()
		switch silence := time.Since(st.Seen); {
		case overstayed:
			return "the work of a term has not stopped in time", false
		case patience > 0 && st.State != tenure.Idle && silence > patience:
			return fmt.Sprintf("etcd has not been heard for %v", silence.Round(time.Second)), false
		}
		return st.State.String(), true
	})
}

// Leading returns a readiness probe that says "I lead", so that requests come to
// the leader alone.
//
//   - 200 if the elector's term is valid at this moment, by the clock, and its
//     context has not ended.
//   - 503 otherwise: idle, following, vacant, unreachable, stopping, overstayed,
//     cut off for so long that the term is over.
//
// What asks a probe every few seconds learns of a new leader that much later, and
// sends requests to the last one meanwhile, so those still need package leaderhttp
// or a fence. And of a set of candidates only one is ever ready: a rolling update
// that waits for the new ones to be ready waits for ever, unless it may take the
// leader away first. For both reasons [Monitor.Able] with package leaderhttp is
// the better choice, where it can be had.
func (m *Monitor) Leading(elector *tenure.Elector) http.Handler {
	return probe(func() (string, bool) {
		term := elector.Term()
		switch {
		case term == nil:
			return "not leading: " + elector.Status().State.String(), false
		case term.Context().Err() != nil:
			return fmt.Sprintf("stopping: %v", context.Cause(term.Context())), false
		}
		return fmt.Sprintf("leading, epoch %d", term.Epoch()), true
	})
}

// Able returns a readiness probe that says "I am able to lead": whether this
// process would win if the election were vacant now.
//
//   - 200 if the elector leads, or takes part, etcd answers and its lease is
//     granted: leading and following, vacant, stopping in order.
//   - 503 otherwise: idle, unreachable, rolled back, overstayed, or without a
//     lease, as a leader that was cut off is.
//
// All candidates are ready as a rule, so that a rolling update waits for each of
// them to be a warm standby before it stops the next. In an outage of etcd none of
// them is, and what depends on their being ready gets no answer at all, not even
// one that needs no leader. Where that matters, use [Monitor.Live].
func (m *Monitor) Able(elector *tenure.Elector) http.Handler {
	return probe(func() (string, bool) {
		m.mu.Lock()
		overstayed := m.overstayed
		m.mu.Unlock()
		term, st := elector.Term(), elector.Status()
		switch {
		case overstayed:
			return "the work of a term has not stopped in time", false
		case term != nil:
			return "leading", true
		case st.State != tenure.Vacant && st.State != tenure.Led:
			return st.State.String(), false
		case st.TTL == 0:
			return "no lease", false
		}
		return st.State.String(), true
	})
}

// probe answers with one line, and 200 or 503.
func probe(ask func() (why string, ok bool)) http.Handler {
	return reading(func(w http.ResponseWriter, _ *http.Request) {
		why, ok := ask()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, why+"\n") // a client that has gone needs no answer
	})
}

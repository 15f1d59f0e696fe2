package statushttp_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
	"github.com/tenure-go/tenure/statushttp"
)

const patience = time.Minute

// probes are the answers of the three, and of a liveness probe that has all the
// patience in the world.
type probes struct{ live, forever, able, leading bool }

func (n *candidate) probe(t testing.TB) (got probes) {
	t.Helper()
	ask := func(h http.Handler) bool {
		resp := get(h, "*/*")
		require.Contains(t, []int{200, 503}, resp.StatusCode)
		why := read(t, resp)
		require.True(t, strings.HasSuffix(why, "\n") && len(why) > 3, why)
		require.Equal(t, "text/plain; charset=utf-8", resp.Header.Get("Content-Type"))
		require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
		return resp.StatusCode == 200
	}
	return probes{
		live: ask(n.Live(n.elector, patience)), forever: ask(n.Live(n.elector, 0)),
		able: ask(n.Able(n.elector)), leading: ask(n.Leading(n.elector)),
	}
}

var (
	leads    = probes{live: true, forever: true, able: true, leading: true}
	standby  = probes{live: true, forever: true, able: true}
	no       = probes{live: true, forever: true}
	restart  = probes{forever: true}
	hopeless = probes{}
)

func TestProbesOfALeaderAndAStandby(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		first := run(t, s.Client(), "first", tenure.Options{})
		require.Equal(t, no, first.probe(t), "nothing was heard yet")
		first.is(t, tenure.Leading)
		require.Equal(t, leads, first.probe(t))
		second := run(t, s.Client(), "second", tenure.Options{})
		second.is(t, tenure.Led)
		etcdtest.Eventually(t, limit, "TTL", 6*time.Second, func() time.Duration { return second.elector.Status().TTL })
		require.Equal(t, standby, second.probe(t))
		time.Sleep(2 * patience)
		require.Equal(t, leads, first.probe(t))
		require.Equal(t, standby, second.probe(t))

		// Stopping in order: the next requests go elsewhere.
		first.slow.Store(int64(5 * time.Second))
		stopped := make(chan struct{})
		go func() {
			first.stop()
			close(stopped)
		}()
		synctest.Wait()
		require.Equal(t, standby, first.probe(t))
		require.Equal(t, standby, second.probe(t))
		etcdtest.Await(t, limit, "Run", stopped)
		second.is(t, tenure.Leading)
		require.Equal(t, no, first.probe(t), "idle")
		require.Equal(t, leads, second.probe(t))
	})
}

func TestProbesInAVacancy(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		n := run(t, s.Client(), "n", tenure.Options{})
		n.is(t, tenure.Leading)
		require.NoError(t, tenure.Evict(t.Context(), s.Admin(), n.elector.Term().Fence(), nil))
		n.is(t, tenure.Vacant)
		etcdtest.Eventually(t, limit, "TTL", 6*time.Second, func() time.Duration { return n.elector.Status().TTL })
		require.Equal(t, standby, n.probe(t))
	})
}

// A leader that is cut off stops to lead by its clock, is no candidate, and is
// restarted only when patience has run out.
func TestProbesOfWhoIsCutOff(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		first, second := run(t, s.Client(), "first", tenure.Options{}), (*candidate)(nil)
		first.is(t, tenure.Leading)
		second = run(t, s.Client(), "second", tenure.Options{})
		second.is(t, tenure.Led)
		time.Sleep(time.Minute)
		cut := time.Now()
		first.Link.Cut()
		second.Link.Cut()
		time.Sleep(3 * time.Second)
		require.Equal(t, leads, first.probe(t), "its term is valid")
		time.Sleep(3 * time.Second)
		require.Equal(t, no, first.probe(t))
		etcdtest.Eventually(t, limit, "able", no, func() probes { return second.probe(t) })
		time.Sleep(time.Until(cut.Add(patience - 3*time.Second)))
		require.Equal(t, no, first.probe(t))
		require.Equal(t, no, second.probe(t))
		time.Sleep(time.Until(cut.Add(patience)) + time.Millisecond)
		require.Equal(t, restart, first.probe(t))
		require.Equal(t, restart, second.probe(t))
		first.Link.Heal()
		second.Link.Heal()
		first.isOneOf(t, tenure.Leading, tenure.Led)
		require.True(t, first.probe(t).live)
		require.True(t, first.probe(t).able)
	})
}

func (n *candidate) isOneOf(t testing.TB, want ...tenure.State) {
	t.Helper()
	etcdtest.Eventually(t, time.Minute, "State", true, func() bool {
		st := n.elector.Status()
		return st.TTL > 0 && (st.State == want[0] || st.State == want[1])
	})
}

// Work that cannot be stopped is a case for a restart, until another term of this
// process shows that it has stopped.
func TestProbesOfWorkThatOverstays(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		n := run(t, s.Client(), "n", tenure.Options{StopTimeout: 10 * time.Second})
		n.is(t, tenure.Leading)
		n.slow.Store(int64(10 * time.Minute))
		go func() { _ = tenure.Evict(t.Context(), s.Admin(), n.elector.Term().Fence(), nil) }()
		time.Sleep(9 * time.Second)
		require.Equal(t, standby, n.probe(t))
		time.Sleep(2 * time.Second)
		require.Equal(t, hopeless, n.probe(t))
		time.Sleep(9 * time.Minute)
		require.Equal(t, hopeless, n.probe(t))
		n.slow.Store(0)
		etcdtest.Eventually(t, time.Hour, "Term()", true, func() bool { return n.elector.Term() != nil })
		synctest.Wait()
		require.Equal(t, leads, n.probe(t))
	})
}

// A probe only reads.
func TestProbesAnswerGetAndHead(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		m := statushttp.New("")
		e, err := tenure.New(s.Client().Client, key, nil)
		require.NoError(t, err)
		for _, h := range []http.Handler{m.Live(e, 0), m.Able(e), m.Leading(e)} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil))
			require.Equal(t, http.StatusMethodNotAllowed, w.Code)
			require.Equal(t, "GET, HEAD", w.Header().Get("Allow"))
			w = httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodHead, "/", nil))
			require.NotEqual(t, http.StatusMethodNotAllowed, w.Code)
		}
	})
}

package statushttp_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
	"github.com/tenure-go/tenure/statushttp"
	"github.com/tenure-go/tenure/tenuretest"
)

const (
	key   = "/app/leader"
	limit = 30 * time.Second
)

func get(h http.Handler, accept string) *http.Response {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func read(t testing.TB, resp *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(body)
}

// status is the JSON as far as tests branch on it.
type status struct {
	State      string
	Seen       *time.Time
	TTL        float64 `json:"ttl_seconds"`
	Error      string
	Overstayed bool
	Leader     *struct {
		Identity string
		Epoch    int64
	}
	Term *struct {
		Epoch    int64
		Left     float64 `json:"left_seconds"`
		Stopping bool
	}
	Renewals []struct {
		At      time.Time
		Latency float64 `json:"latency_seconds"`
		Counted bool
		Error   string
	}
	Terms []struct {
		Epoch   int64
		Started time.Time
		Ended   *time.Time
		Reason  string
		Cause   string
	}
	Changes []struct {
		State    string
		Identity string
		Epoch    int64
	}
	Refusals struct {
		Count int64
		Last  *time.Time
	}
}

func statusOf(t testing.TB, h http.Handler) (s status) {
	t.Helper()
	resp := get(h, "*/*")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, "application/json", resp.Header.Get("Content-Type"))
	require.NoError(t, json.Unmarshal([]byte(read(t, resp)), &s))
	return s
}

// candidate runs an elector with a monitor. Its work ends after its context, by as
// much as it is told to.
type candidate struct {
	*etcdtest.Client
	*statushttp.Monitor

	elector *tenure.Elector
	slow    atomic.Int64
	stop    func()
}

func run(t testing.TB, c *etcdtest.Client, identity string, opts tenure.Options) *candidate {
	t.Helper()
	n := &candidate{Client: c, Monitor: statushttp.New(identity)}
	opts.Identity, opts.TTL, opts.Hooks = identity, 6*time.Second, n.Hooks(nil)
	var err error
	n.elector, err = tenure.New(c.Client, key, &opts)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- n.elector.Run(ctx, func(ctx context.Context, _ *tenure.Term) error {
			<-ctx.Done()
			time.Sleep(time.Duration(n.slow.Load()))
			return nil
		})
	}()
	n.stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(n.stop)
	return n
}

// is waits for a state.
func (n *candidate) is(t testing.TB, want tenure.State) {
	t.Helper()
	etcdtest.Eventually(t, time.Minute, "State", want, func() tenure.State { return n.elector.Status().State })
	synctest.Wait() // for the hooks
}

// The JSON is a contract: it stays what it is, to the letter.
func TestJSONIsStable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		election := tenuretest.NewElection(key)
		m := statushttp.New("node-1")
		hooks := m.Hooks(nil)
		e, err := election.Elector(&tenure.Options{Identity: "node-1", Hooks: hooks})
		require.NoError(t, err)
		page := m.Page(e)
		require.JSONEq(t, `{"time": "2000-01-01T00:00:00Z", "identity": "node-1", "election": "/app/leader", "state": "idle", "since": "2000-01-01T00:00:00Z",
			"seen": null, "ttl_seconds": 0, "overstayed": false, "leader": null, "term": null,
			"renewals": [], "terms": [], "changes": [], "refusals": {"count": 0, "last": null}}`, read(t, get(page, "application/json")))

		first, err := e.Campaign(t.Context())
		require.NoError(t, err)
		synctest.Wait()
		time.Sleep(time.Second)
		election.End(tenure.Fenced)
		require.NoError(t, first.Resign())
		synctest.Wait()
		time.Sleep(time.Second)
		other := election.Grant(&tenure.Options{Identity: "node-2", Address: "10.0.0.2:80", Metadata: map[string]string{"zone": "b"}})
		_, err = e.TryCampaign(t.Context())
		require.ErrorIs(t, err, tenure.ErrHeld)
		hooks.Renewed(1500*time.Microsecond, nil)
		hooks.Renewed(time.Second, errors.New("no answer"))
		synctest.Wait()

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx, func(context.Context, *tenure.Term) error { return nil }) }()
		synctest.Wait()
		require.Equal(t, `{
  "time": "2000-01-01T00:00:02Z",
  "identity": "node-1",
  "election": "/app/leader",
  "state": "led",
  "since": "2000-01-01T00:00:02Z",
  "seen": "2000-01-01T00:00:02Z",
  "ttl_seconds": 0,
  "overstayed": false,
  "leader": {
    "identity": "node-2",
    "address": "10.0.0.2:80",
    "metadata": {
      "zone": "b"
    },
    "epoch": 2,
    "acquired": "2000-01-01T00:00:02Z",
    "evicting": false
  },
  "term": null,
  "renewals": [
    {
      "at": "2000-01-01T00:00:02Z",
      "latency_seconds": 1,
      "counted": false,
      "error": "no answer"
    },
    {
      "at": "2000-01-01T00:00:02Z",
      "latency_seconds": 0.0015,
      "counted": true
    }
  ],
  "terms": [
    {
      "epoch": 1,
      "started": "2000-01-01T00:00:00Z",
      "ended": "2000-01-01T00:00:01Z",
      "reason": "fenced"
    }
  ],
  "changes": [
    {
      "at": "2000-01-01T00:00:02Z",
      "state": "led",
      "identity": "node-2",
      "epoch": 2
    },
    {
      "at": "2000-01-01T00:00:02Z",
      "state": "idle"
    },
    {
      "at": "2000-01-01T00:00:02Z",
      "state": "led",
      "identity": "node-2",
      "epoch": 2
    },
    {
      "at": "2000-01-01T00:00:01Z",
      "state": "idle"
    },
    {
      "at": "2000-01-01T00:00:00Z",
      "state": "leading",
      "identity": "node-1",
      "epoch": 1
    }
  ],
  "refusals": {
    "count": 1,
    "last": "2000-01-01T00:00:01Z"
  }
}
`, read(t, get(page, "application/json")))
		cancel()
		<-done
		require.NoError(t, other.Resign())
	})
}

// The state, the time that is left, renewals and terms are those of the elector.
func TestPageFollowsTheElector(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		n := run(t, s.Client(), "node-1", tenure.Options{})
		page := n.Page(n.elector)
		n.is(t, tenure.Leading)
		time.Sleep(time.Second)
		got := statusOf(t, page)
		require.Equal(t, "leading", got.State)
		require.Equal(t, "node-1", got.Leader.Identity)
		require.Equal(t, int64(n.elector.Term().Epoch()), got.Term.Epoch)
		require.InDelta(t, 4.4, got.Term.Left, 0.05)
		require.InDelta(t, 6, got.TTL, 0)
		require.Empty(t, got.Renewals)
		require.Len(t, got.Terms, 1)
		require.Nil(t, got.Terms[0].Ended)
		time.Sleep(time.Minute)
		got = statusOf(t, page)
		require.Len(t, got.Renewals, 10)
		require.True(t, got.Renewals[0].Counted)
		require.True(t, got.Renewals[0].At.After(got.Renewals[1].At))
		require.WithinDuration(t, time.Now(), got.Renewals[0].At, 2*time.Second)

		// Twelve terms are ended on purpose: ten are kept.
		for range 12 {
			n.is(t, tenure.Leading)
			require.NoError(t, tenure.Evict(t.Context(), s.Admin(), n.elector.Term().Fence(), nil))
		}
		n.is(t, tenure.Leading)
		got = statusOf(t, page)
		require.Len(t, got.Terms, 10)
		require.Equal(t, got.Term.Epoch, got.Terms[0].Epoch)
		require.Nil(t, got.Terms[0].Ended)
		for i, term := range got.Terms[1:] {
			require.Equal(t, "evicted", term.Reason)
			require.Less(t, term.Epoch, got.Terms[i].Epoch)
		}
		require.Len(t, got.Changes, 10)
		require.Equal(t, "leading", got.Changes[0].State)
		require.Zero(t, got.Refusals.Count)

		// A write that is fenced ends a term; others are told.
		last := n.elector.Term()
		_, err := s.Admin().Delete(t.Context(), key)
		require.NoError(t, err)
		etcdtest.Await(t, limit, "Done", last.Context().Done())
		n.Refused(fmt.Errorf("at the gate: %w", tenure.ErrFenced))
		n.Refused(context.Canceled)
		n.is(t, tenure.Leading)
		got = statusOf(t, page)
		require.EqualValues(t, 1, got.Refusals.Count)
		require.NotNil(t, got.Refusals.Last)
		require.Equal(t, "key deleted", got.Terms[1].Reason)

		// Cut off.
		n.Link.Cut()
		time.Sleep(time.Minute)
		got = statusOf(t, page)
		require.Equal(t, "unreachable", got.State)
		require.Nil(t, got.Term)
		require.NotEmpty(t, got.Error)
		require.Equal(t, "lease expired", got.Terms[0].Reason)
		require.False(t, got.Renewals[0].Counted)
		require.NotEmpty(t, got.Renewals[0].Error)
		require.Zero(t, got.TTL)
	})
}

var policyStyle = regexp.MustCompile(`style-src 'sha256-([^']+)'`)

// What others have published is text on the page, whatever it looks like.
func TestPageEscapesWhatOthersPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		evil := `"'><script>alert(1)</script><img src=x onerror=alert(2)>{{.}}`
		election := tenuretest.NewElection(evil)
		term := election.Grant(&tenure.Options{Identity: evil, Address: "javascript:" + evil, Metadata: map[string]string{evil: evil}})
		defer func() { require.NoError(t, term.Resign()) }()
		m := statushttp.New(evil)
		hooks := m.Hooks(nil)
		e, err := election.Elector(&tenure.Options{Hooks: hooks})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx, func(context.Context, *tenure.Term) error { return nil }) }()
		defer func() {
			cancel()
			<-done
		}()
		synctest.Wait()
		hooks.Renewed(time.Second, errors.New(evil))
		hooks.TermStarted(term)
		hooks.TermEnded(term, fmt.Errorf("%w: %s", tenure.Fenced, evil))

		resp := get(m.Page(e), "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8")
		require.Equal(t, "text/html; charset=utf-8", resp.Header.Get("Content-Type"))
		body := read(t, resp)
		lower := strings.ToLower(body)
		for _, no := range []string{"<script", "<img", "<a ", "href", "src=", "@import", "url("} {
			require.NotContains(t, strings.ReplaceAll(lower, strings.ToLower(html.EscapeString(evil)), ""), no)
		}
		require.Equal(t, 10, strings.Count(html.UnescapeString(body), evil), "title, heading, this process, leader, address, name and value, cause of the end, failed renewal, change")
		style, _, _ := strings.Cut(body[strings.Index(body, "<style>")+len("<style>"):], "</style>")
		sum := sha256.Sum256([]byte(style))
		policy := resp.Header.Get("Content-Security-Policy")
		require.Equal(t, base64.StdEncoding.EncodeToString(sum[:]), policyStyle.FindStringSubmatch(policy)[1])
		require.True(t, strings.HasPrefix(policy, "default-src 'none'; "))
		for _, yes := range []string{`<meta name="viewport"`, `<meta http-equiv="refresh" content="2">`, `<div id="state" class="led">led</div>`, "lease"} {
			require.Contains(t, body, yes)
		}
		require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
		require.Equal(t, "nosniff", resp.Header.Get("X-Content-Type-Options"))
		require.Equal(t, "Accept", resp.Header.Get("Vary"))

		// It only reads.
		for method, want := range map[string]int{http.MethodHead: 200, http.MethodPost: 405, http.MethodDelete: 405} {
			w := httptest.NewRecorder()
			m.Page(e).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, "/", nil))
			require.Equal(t, want, w.Code)
		}
	})
}

// The page has all there is, in every state.
func TestPageShowsEveryState(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		n := run(t, s.Client(), "node-1", tenure.Options{StopTimeout: time.Second})
		shows := func(parts ...string) {
			t.Helper()
			body := read(t, get(n.Page(n.elector), "text/html"))
			require.True(t, strings.HasSuffix(body, "</html>\n"), "it was cut off")
			for _, part := range parts {
				require.Contains(t, body, part)
			}
		}
		shows(`>idle</div>`, `<dd id="leader">nobody</dd>`, `<dd id="ttl">no lease</dd>`, "none yet")
		n.is(t, tenure.Leading)
		shows(`>leading</div>`, `<dd id="leader">node-1</dd>`, fmt.Sprintf(`<dd id="epoch">%d</dd>`, n.elector.Term().Epoch()), `<dd id="left">5.`, `<dd id="ttl">6s</dd>`)
		n.slow.Store(int64(3 * time.Second))
		go func() { _ = tenure.Evict(t.Context(), s.Admin(), n.elector.Term().Fence(), nil) }()
		time.Sleep(500 * time.Millisecond)
		shows(`>leading, stopping</div>`, "asked to go")
		time.Sleep(time.Second)
		shows(`id="overstayed"`)
		n.slow.Store(0)
		n.Link.Cut()
		n.is(t, tenure.Unreachable)
		shows(`class="unreachable"`, `id="error"`, `<span class="bad">no: `)
		n.stop()
		synctest.Wait()
		shows(`>idle</div>`, ">evicted</td>")
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
	term := tenuretest.NewElection(key).Grant(nil)
	defer func() { require.NoError(t, term.Resign()) }()
	hooks := statushttp.New("").Hooks(next)
	hooks.TermStarted(term)
	hooks.StateChanged(tenure.Status{})
	hooks.Renewed(time.Millisecond, nil)
	hooks.Expiring(term, time.Second)
	hooks.Overstayed(term)
	hooks.TermEnded(term, tenure.Resigned)
	require.EqualValues(t, 6, calls.Load())
}

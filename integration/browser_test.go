package integration_test

import (
	"context"
	"flag"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/integration/internal/servers"
	"github.com/tenure-go/tenure/statushttp"
)

var picture = flag.String("picture", "", "write a picture of the status page to this file")

// The page in a real browser, without JavaScript and as wide as a telephone: it
// shows the new leader by itself during a hand-over.
func TestStatusPageInABrowser(t *testing.T) {
	t.Parallel()
	path := servers.Chromium(t)
	etcd := servers.StartEtcd(t)
	first := runCandidate(t, etcd, "node-1")
	require.Eventually(t, func() bool { return first.elector.Term() != nil }, limit, 10*time.Millisecond)
	second := runCandidate(t, etcd, "node-2")
	status := httptest.NewServer(second.monitor.Page(second.elector))
	defer status.Close()

	ctx, cancel := chromedp.NewExecAllocator(t.Context(), append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WindowSize(400, 900),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))...)
	defer cancel()
	ctx, cancel = chromedp.NewContext(ctx)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()

	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate("about:blank")))
	_, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	require.NoError(t, err)
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate(status.URL)))
	require.Equal(t, "led", shows(ctx, t, "state", "led"))
	require.Equal(t, "node-1", shows(ctx, t, "leader", "node-1"))
	requireFits(ctx, t)

	first.stop()
	require.Equal(t, "node-2", shows(ctx, t, "leader", "node-2"), "nobody has loaded the page again")
	require.Equal(t, "leading", shows(ctx, t, "state", "leading"))
	requireFits(ctx, t)
	if *picture != "" {
		require.NoError(t, chromedp.Do(ctx, chromedp.Sleep(10*time.Second)))
		png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(*picture, png, 0o600))
	}
}

// shows waits until the page shows a text in an element, and returns what it
// shows in the end.
func shows(ctx context.Context, t *testing.T, id, want string) (text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		got, err := chromedp.Run(attempt, chromedp.Text("#"+id))
		text = strings.TrimSpace(got)
		return err == nil && text == want // an error: it is loading
	}, time.Minute, 100*time.Millisecond, "%s", want)
	return text
}

// requireFits asks that nobody has to scroll sideways.
func requireFits(ctx context.Context, t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		layout, err := chromedp.Call(attempt, page.GetLayoutMetrics, cdp.Empty{})
		return err == nil && layout.CSSContentSize.Width <= float64(layout.CSSLayoutViewport.ClientWidth)
	}, time.Minute, 100*time.Millisecond)
}

// runningCandidate is one in this process, which runs until it is stopped.
type runningCandidate struct {
	elector *tenure.Elector
	monitor *statushttp.Monitor
	stop    func()
}

func runCandidate(t *testing.T, etcd *servers.Etcd, name string) *runningCandidate {
	t.Helper()
	client := etcdClient(t, clientv3.Config{Endpoints: []string{etcd.Endpoint}})
	c := &runningCandidate{monitor: statushttp.New(name)}
	var err error
	c.elector, err = tenure.New(client, election, &tenure.Options{
		Identity: name, Address: name + ".example.org:8443", TTL: 3 * time.Second, Hooks: c.monitor.Hooks(nil),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	c.stop = serving(func() error {
		return c.elector.Run(ctx, func(ctx context.Context, _ *tenure.Term) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
	}, cancel)
	t.Cleanup(c.stop)
	return c
}

package metrics_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure/metrics"
)

// described returns the labels of each metric, by its name.
func described() map[string][]string {
	descs := make(chan *prometheus.Desc, 100)
	metrics.New().Describe(descs)
	close(descs)
	desc := regexp.MustCompile(`fqName: "([a-z_]+)".*variableLabels: \{([a-z_,]*)\}`)
	labels := make(map[string][]string)
	for d := range descs {
		m := desc.FindStringSubmatch(d.String())
		labels[m[1]] = strings.Split(m[2], ",")
	}
	return labels
}

var (
	metric   = regexp.MustCompile(`tenure_[a-z_]+`)
	matchers = regexp.MustCompile(`\{([^{}]*)\}`)
	matcher  = regexp.MustCompile(`([a-z_]+)\s*[=!]`)
	by       = regexp.MustCompile(`by \(([^)]*)\)`)
	value    = regexp.MustCompile(`"[^"]*"`)
)

// requireKnown checks that an expression asks for metrics that exist, by labels
// that they have. A misspelt one would be an empty panel, or a silent alert.
func requireKnown(t *testing.T, labels map[string][]string, expr string) {
	t.Helper()
	names := metric.FindAllString(expr, -1)
	require.NotEmpty(t, names, expr)
	known := []string{"instance", "le"}
	for _, name := range names {
		base := name
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			base = strings.TrimSuffix(base, suffix)
		}
		require.Contains(t, labels, base, expr)
		known = append(known, labels[base]...)
	}
	var used []string
	for _, m := range matchers.FindAllStringSubmatch(expr, -1) {
		for _, l := range matcher.FindAllStringSubmatch(value.ReplaceAllString(m[1], ""), -1) {
			used = append(used, l[1])
		}
	}
	for _, m := range by.FindAllStringSubmatch(expr, -1) {
		for l := range strings.SplitSeq(m[1], ",") {
			used = append(used, strings.TrimSpace(l))
		}
	}
	for _, l := range used {
		assert.True(t, slices.Contains(known, l), "%q: no metric in it has the label %q", expr, l)
	}
}

func TestDashboardAsksForWhatThereIs(t *testing.T) {
	data, err := os.ReadFile("../docs/dashboard.json")
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(data, &dashboard))
	require.NotEmpty(t, dashboard.Panels)
	labels, shown, ids := described(), make(map[string]bool), make(map[int]bool)
	for _, p := range dashboard.Panels {
		require.NotEmpty(t, p.Targets, p.Title)
		require.False(t, ids[p.ID], "two panels have the id %d", p.ID)
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		ids[p.ID] = true
		for _, target := range p.Targets {
			requireKnown(t, labels, target.Expr)
			for _, name := range metric.FindAllString(target.Expr, -1) {
				shown[strings.TrimSuffix(name, "_bucket")] = true
			}
		}
	}
	for name := range labels {
		if name != "tenure_state" && name != "tenure_terms_started_total" { // which the epoch and the reasons tell
			assert.True(t, shown[name], "no panel shows %s", name)
		}
	}
}

func TestAlertsAskForWhatThereIs(t *testing.T) {
	data, err := os.ReadFile("../docs/alerts.yaml")
	require.NoError(t, err)
	exprs := regexp.MustCompile(`(?m)^\s+expr: (.+)$`).FindAllStringSubmatch(string(data), -1)
	require.Len(t, exprs, strings.Count(string(data), "- alert:"))
	for _, m := range exprs {
		requireKnown(t, described(), m[1])
	}
}

package main

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/anishathalye/porcupine"
)

// report is what a run has shown.
type report struct {
	config
	events     history
	begin, end int64
	spans      []span
	violations []violation
}

func newReport(h *harness, events history) *report {
	r := &report{config: h.config, events: events, begin: h.started, spans: events.spans()}
	for _, e := range events {
		r.end = max(r.end, e.From, e.To)
	}
	return r
}

// verdict says what is wrong with the run, or nothing. The control experiment has
// to find what it was made for.
func (r *report) verdict() string {
	if r.library == "tenure" {
		if len(r.violations) > 0 {
			return fmt.Sprintf("%d violations", len(r.violations))
		}
		return ""
	}
	rules := []string{ruleTwo, ruleDeposed}
	if r.compare {
		rules = rules[:1] // what is left is the table, and chance
	}
	for _, rule := range rules {
		if !slices.ContainsFunc(r.violations, func(v violation) bool { return v.Rule == rule }) {
			return fmt.Sprintf("the control experiment has found nothing of: %s", rule)
		}
	}
	return ""
}

// gaps are the times between the last sight of one term and the first of the
// next, in which nobody could be seen to lead.
func (r *report) gaps() (gaps []time.Duration) {
	for i := 1; i < len(r.spans); i++ {
		gaps = append(gaps, max(time.Duration(r.spans[i].lo-r.spans[i-1].hi), 0))
	}
	return gaps
}

// recoveries are the times from the end of the last fault until somebody led,
// each time that all was calm.
func (r *report) recoveries() (times []time.Duration) {
	for _, e := range r.events.of(calm) {
		best := int64(-1)
		for _, s := range r.spans {
			if s.hi >= e.From {
				wait := max(s.lo-e.From, 0)
				if best < 0 || wait < best {
					best = wait
				}
			}
		}
		if best >= 0 {
			times = append(times, time.Duration(best))
		}
	}
	return times
}

func statistics(times []time.Duration) string {
	if len(times) == 0 {
		return "none"
	}
	times = slices.Sorted(slices.Values(times))
	return fmt.Sprintf("%d, median %.3f s, worst %.3f s", len(times), times[len(times)/2].Seconds(), times[len(times)-1].Seconds())
}

// line is one of a table.
type line struct{ Name, Value string }

func (r *report) summary() []line {
	processes := make(map[string]bool)
	changes := 0
	for i, s := range r.spans {
		processes[s.process] = true
		if i > 0 && s.process != r.spans[i-1].process {
			changes++
		}
	}
	lines := []line{
		{"seed", fmt.Sprint(r.seed)},
		{"length", time.Duration(r.end - r.begin).Round(time.Second).String()},
		{"terms", fmt.Sprintf("%d, of %d processes", len(r.spans), len(processes))},
		{"takeovers by another process", fmt.Sprint(changes)},
		{"nobody led between two terms", statistics(r.gaps())},
		{"from the end of the faults to a leader", statistics(r.recoveries())},
		{"terms by what ended them", counts(r.events.of(over), func(e event) string { return e.Note })},
		{"writes to etcd", counts(r.outcomes(write, ""), func(e event) string { return string(e.Outcome) })},
		{"  after the end of their term", counts(r.outcomes(write, "late"), func(e event) string { return string(e.Outcome) })},
		{"inserts in the table", counts(r.outcomes(insert, ""), func(e event) string { return string(e.Outcome) })},
		{"  after the end of their term", counts(r.outcomes(insert, "late"), func(e event) string { return string(e.Outcome) })},
		{"reads by the clock / by asking etcd", fmt.Sprintf("%d / %d", len(r.events.of(leaseRead)), len(r.events.of(read)))},
		{"found in etcd / in the table", fmt.Sprintf("%d / %d", len(r.events.of(stored)), len(r.events.of(row)))},
	}
	lines = slices.DeleteFunc(lines, func(l line) bool { return l.Value == "" }) // the other library has no such thing
	return append(lines, line{"violations", cmp.Or(counts(r.violations, func(v violation) string { return v.Rule }), "none")})
}

func (r *report) outcomes(k kind, note string) history {
	return slices.DeleteFunc(r.events.of(k), func(e event) bool { return e.Outcome == "" || e.Note != note })
}

// counts says how many there are of each name, the most frequent first.
func counts[E any](all []E, of func(E) string) string {
	n := make(map[string]int)
	for _, e := range all {
		n[of(e)]++
	}
	names := slices.SortedFunc(maps.Keys(n), func(a, b string) int { return cmp.Or(n[b]-n[a], strings.Compare(a, b)) })
	for i, name := range names {
		names[i] = fmt.Sprintf("%d %s", n[name], name)
	}
	return strings.Join(names, ", ")
}

// faultLine is one kind of fault.
type faultLine struct {
	Name            string
	Times, Refused  int
	Lasted, Longest time.Duration
}

// faults counts what was done. Refused is how often etcd, troubled already, did
// not do it.
func (r *report) faults() []faultLine {
	var lines []faultLine
	for _, t := range troubles {
		l := faultLine{Name: t.name}
		for _, e := range r.events.of(fault) {
			if e.Key != t.name {
				continue
			}
			if e.Note != "" {
				l.Refused++
				continue
			}
			l.Times++
			d := time.Duration(e.To - e.From)
			l.Lasted += d
			l.Longest = max(l.Longest, d)
		}
		if l.Times+l.Refused > 0 {
			lines = append(lines, l)
		}
	}
	return lines
}

// shown is how many violations are written out.
const shown = 20

func (r *report) print(w io.Writer) {
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "fault\ttimes\trefused\tin all\tlongest")
	total := 0
	for _, l := range r.faults() {
		fmt.Fprintf(t, "%s\t%d\t%d\t%.1f s\t%.1f s\n", l.Name, l.Times, l.Refused, l.Lasted.Seconds(), l.Longest.Seconds())
		total += l.Times
	}
	fmt.Fprintf(t, "all\t%d\n\n", total)
	for _, l := range r.summary() {
		fmt.Fprintf(t, "%s\t%s\n", l.Name, l.Value)
	}
	t.Flush()
	for i, v := range r.violations {
		if i == shown {
			fmt.Fprintf(w, "... and %d more\n", len(r.violations)-shown)
			break
		}
		fmt.Fprintf(w, "%s at %s: %s\n", v.Rule, seconds(v.At-r.begin), v.Text)
	}
}

//go:embed page.tmpl
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// bar is a stretch of time in a row of the page; its numbers are of the drawing.
type bar struct {
	X, Y, W float64
	Class   string
	Title   string
}

type band struct {
	Label  string
	Height int
	Rows   []struct {
		Y    int
		Name string
	}
	Ticks []bar
	Bars  []bar
}

const (
	pageWidth  = 1200.0
	rowHeight  = 18
	labelWidth = 90
)

// writePage draws who led when, with the faults.
func (r *report) writePage(name string) error {
	f, err := os.Create(name) //nolint:gosec // where the caller wants it
	if err != nil {
		return err
	}
	data := map[string]any{
		"Library": r.library, "Summary": r.summary(), "Faults": r.faults(), "Bands": r.bands(),
		"Violations": r.violations[:min(len(r.violations), shown)], "Width": pageWidth + labelWidth + 25, "Label": labelWidth,
	}
	if err := page.Execute(f, data); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// bands cuts the run into pieces that fit a page's width.
func (r *report) bands() (bands []band) {
	var rows []string
	for i := range r.candidates {
		rows = append(rows, fmt.Sprintf("c%d", i))
	}
	rows = append(rows, "m0", "m1", "m2", "keys")
	width := int64(time.Minute)
	for from := r.begin; from < r.end; from += width {
		to := from + width
		b := band{Label: time.Duration(from - r.begin).String(), Height: (len(rows)+1)*rowHeight + 4}
		y := make(map[string]float64)
		for i, name := range rows {
			y[name] = float64(i * rowHeight)
			b.Rows = append(b.Rows, struct {
				Y    int
				Name string
			}{i*rowHeight + 13, name})
		}
		place := func(row, class, title string, lo, hi int64) {
			if hi < from || lo > to {
				return
			}
			lo, hi = max(lo, from), min(hi, to)
			x := func(t int64) float64 { return labelWidth + pageWidth*float64(t-from)/float64(width) }
			b.Bars = append(b.Bars, bar{X: x(lo), Y: y[row], W: max(x(hi)-x(lo), 1.5), Class: class, Title: title})
		}
		for s := int64(0); s <= 60; s += 10 {
			x := labelWidth + pageWidth*float64(s)/60
			b.Ticks = append(b.Ticks, bar{X: x, Title: fmt.Sprintf("%d s", int64(time.Duration(from-r.begin).Seconds())+s)})
		}
		for _, e := range r.events.of(fault) {
			title := fmt.Sprintf("%s: %s, %s", e.Key, e.Process, seconds(e.To-e.From))
			if e.Note != "" {
				title += " (refused: " + e.Note + ")"
			}
			hit := false
			for _, row := range rows {
				if row != "keys" && strings.Contains(e.Process, row) && r.laneOf(e.Key) != onKeys {
					place(row, r.classOf(e.Key), title, e.From, e.To)
					hit = true
					if r.laneOf(e.Key) == onNetwork {
						break // the candidate, not the member
					}
				}
			}
			if !hit {
				place("keys", "keys", title, e.From, e.To)
			}
		}
		for _, s := range r.spans {
			row, _, _ := strings.Cut(s.process, "-")
			place(row, "led", fmt.Sprintf("%s led, epoch %d, %s", s.process, s.epoch, seconds(max(s.hi-s.lo, 0))), s.lo, max(s.hi, s.lo))
		}
		for _, v := range r.violations {
			place("keys", "wrong", v.Rule+": "+v.Text, v.At, v.At)
		}
		bands = append(bands, b)
	}
	return bands
}

func (r *report) laneOf(name string) lane {
	for _, t := range troubles {
		if t.name == name {
			return t.lane
		}
	}
	return onKeys
}

func (r *report) classOf(name string) string {
	return map[lane]string{onCandidates: "process", onNetwork: "network", onMembers: "member", onKeys: "keys"}[r.laneOf(name)]
}

// visualize draws the registers that are not linearizable.
func visualize(events history, dir string) error {
	_, broken := events.linearizable()
	for i, part := range broken {
		_, info := porcupine.CheckOperationsVerbose(model, part, checkLimit)
		if err := porcupine.VisualizePath(model, info, filepath.Join(dir, fmt.Sprintf("register-%d.html", i))); err != nil {
			return err
		}
	}
	return nil
}

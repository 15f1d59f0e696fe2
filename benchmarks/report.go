package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// report is what a run has found.
type report struct {
	Started  time.Time
	Took     string
	Machine  string
	Sections []*table
	Broken   []string // promises
}

// table is one section: each row a variant in some setting.
type table struct {
	Name    string // of the file of its chart
	Title   string
	Note    string   // how it was measured
	Columns []string // after the first, which is the row's name
	Rows    []row
	chart   func(t *table) string
}

type row struct {
	Name  string
	Cells []string
	Value float64 // for the chart
	Group string  // of bars
}

func (r *report) add(t *table) { r.Sections = append(r.Sections, t) }

// broken notes a promise that does not depend on the machine's speed.
func (r *report) broken(format string, args ...any) {
	r.Broken = append(r.Broken, fmt.Sprintf(format, args...))
	fmt.Fprintf(os.Stderr, "BROKEN: "+format+"\n", args...)
}

func (r *report) write(w io.Writer, folder string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s, %s.\n", r.Started.Format(time.DateOnly), r.Machine, r.Took)
	for _, t := range r.Sections {
		fmt.Fprintf(&b, "\n## %s\n\n", t.Title)
		if folder != "" && t.chart != nil {
			fmt.Fprintf(&b, "![%s](%s.svg)\n\n", t.Title, t.Name)
		}
		fmt.Fprintf(&b, "| | %s |\n|%s\n", strings.Join(t.Columns, " | "), strings.Repeat(" --- |", len(t.Columns)+1))
		for _, row := range t.Rows {
			fmt.Fprintf(&b, "| %s | %s |\n", row.Name, strings.Join(row.Cells, " | "))
		}
		if t.Note != "" {
			fmt.Fprintf(&b, "\n%s\n", t.Note)
		}
	}
	if len(r.Broken) > 0 {
		fmt.Fprintf(&b, "\n## Broken promises\n\n- %s\n", strings.Join(r.Broken, "\n- "))
	}
	if _, err := io.WriteString(w, b.String()); err != nil || folder == "" {
		return err
	}
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	files := map[string]string{"results.md": b.String(), "results.json": string(text) + "\n"}
	for _, t := range r.Sections {
		if t.chart != nil {
			files[t.Name+".svg"] = t.chart(t)
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// sample is a set of measured values.
type sample []float64

func (s *sample) add(d time.Duration) { *s = append(*s, d.Seconds()) }

// at returns the value below which the share q of the sample lies.
func (s sample) at(q float64) float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func (s sample) median() float64 { return s.at(0.5) }

// cells are the median and the 10th and 90th percentiles, as times.
func (s sample) cells() []string {
	return []string{span(s.median()), span(s.at(0.1)), span(s.at(0.9))}
}

// span prints seconds with three digits that matter.
func span(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "-"
	case a >= 1:
		return fmt.Sprintf("%.2f s", v)
	case a >= 1e-3:
		return fmt.Sprintf("%.3g ms", v*1e3)
	case a >= 1e-6:
		return fmt.Sprintf("%.3g µs", v*1e6)
	default:
		return fmt.Sprintf("%.3g ns", v*1e9)
	}
}

func ratio(a, b float64) string {
	if b == 0 || math.IsNaN(a) || math.IsNaN(b) {
		return "-"
	}
	return fmt.Sprintf("%.2f", a/b)
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// bars draws the rows' values as bars, those of one group beside each other.
func bars(unit func(float64) string) func(t *table) string {
	return func(t *table) string {
		const width, left, line = 760, 300, 22
		top := 0.0
		for _, r := range t.Rows {
			top = max(top, r.Value)
		}
		colours := map[bool]string{true: "#1f6feb", false: "#8b949e"}
		var b strings.Builder
		height := 50 + line*len(t.Rows)
		fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="13">`+"\n", width, height)
		fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="#ffffff"/><text x="8" y="22" font-size="15">%s</text>`+"\n", escape(t.Title))
		for i, r := range t.Rows {
			y := 40 + i*line
			w := 1.0
			if top > 0 {
				w = max(1, r.Value/top*(width-left-110))
			}
			fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`, left-8, y+14, escape(r.Name))
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, left, y, w, line-5, colours[strings.HasPrefix(r.Name, ours)])
			fmt.Fprintf(&b, `<text x="%.1f" y="%d">%s</text>`+"\n", left+w+6, y+14, escape(unit(r.Value)))
		}
		b.WriteString("</svg>\n")
		return b.String()
	}
}

func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(s)
}

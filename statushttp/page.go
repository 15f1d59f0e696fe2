package statushttp

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"html/template"
	"net/http"
	"strings"
	"time"

	"github.com/tenure-go/tenure"
)

//go:embed page.html
var page string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"clock": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000 UTC") },
	"short": func(t time.Time) string { return t.UTC().Format("01-02 15:04:05") },
	"seconds": func(s float64) string {
		return time.Duration(s * float64(time.Second)).Round(10 * time.Microsecond).String()
	},
}).Parse(page))

// policy allows the page its own style and nothing else, wherever it came from.
var policy = func() string {
	_, style, _ := strings.Cut(page, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}()

// Page returns a handler of the status of elector: an HTML page to who accepts
// text/html, as browsers do, and JSON as the package comment describes to everybody
// else. It answers GET and HEAD, never blocks on etcd, and has no part that is
// loaded from elsewhere or needs JavaScript.
//
// It shows what the candidates publish of themselves, and the errors of etcd's
// client. That is for operators: put it where others cannot reach it.
func (m *Monitor) Page(elector *tenure.Elector) http.Handler {
	return reading(func(w http.ResponseWriter, r *http.Request) {
		status := m.status(elector)
		var body bytes.Buffer
		var err error
		w.Header().Set("Vary", "Accept")
		if strings.Contains(strings.ToLower(strings.Join(r.Header["Accept"], ",")), "text/html") {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			w.Header().Set("Content-Security-Policy", policy)
			w.Header().Set("Referrer-Policy", "no-referrer")
			err = pageTemplate.Execute(&body, status)
		} else {
			w.Header().Set("Content-Type", "application/json")
			encoder := json.NewEncoder(&body)
			encoder.SetIndent("", "  ")
			err = encoder.Encode(status)
		}
		if err != nil {
			panic(err) // of strings, numbers and times, into memory
		}
		_, _ = w.Write(body.Bytes()) // a client that has gone needs no answer
	})
}

// reading lets f answer GET and HEAD, afresh each time.
func reading(f http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
			return
		}
		f(w, r)
	})
}

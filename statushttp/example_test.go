package statushttp_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/statushttp"
	"github.com/tenure-go/tenure/tenuretest"
)

// The page and the probes of a process that leads.
func Example() {
	election := tenuretest.NewElection("/jobs/leader") // in memory; else tenure.New with a client
	monitor := statushttp.New("node-1")
	elector, err := election.Elector(&tenure.Options{Identity: "node-1", Hooks: monitor.Hooks(nil)})
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/status", monitor.Page(elector))
	mux.Handle("/livez", monitor.Live(elector, 5*time.Minute))
	mux.Handle("/readyz", monitor.Able(elector))
	mux.Handle("/leaderz", monitor.Leading(elector))

	ask := func(path string) {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		body, _ := io.ReadAll(w.Body)
		fmt.Printf("%s: %d %s", path, w.Code, body)
	}
	ask("/leaderz")
	term, err := elector.Campaign(context.Background())
	if err != nil {
		panic(err)
	}
	ask("/livez")
	ask("/readyz")
	ask("/leaderz")
	if err := term.Resign(); err != nil {
		panic(err)
	}
	// Output:
	// /leaderz: 503 not leading: idle
	// /livez: 200 leading
	// /readyz: 200 leading
	// /leaderz: 200 leading, epoch 1
}

package leaderhttp_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
	"github.com/tenure-go/tenure/leaderhttp"
	"github.com/tenure-go/tenure/tenuretest"
)

// Each candidate serves the same handler. Whoever is asked, the leader answers.
func ExampleProxy() {
	election := tenuretest.NewElection("/jobs/leader") // in memory; else tenure.New with a client
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	var urls []string
	var electors []*tenure.Elector
	for range 2 {
		mux := http.NewServeMux()
		server := httptest.NewServer(mux)
		defer server.Close()
		elector, err := election.Elector(&tenure.Options{Address: server.URL})
		if err != nil {
			panic(err)
		}
		app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			term, _ := leaderhttp.TermFromContext(r.Context())
			fmt.Fprintf(w, "%s in epoch %d", r.URL.Path, term.Epoch())
		})
		mux.Handle("/", leaderhttp.Proxy(elector, app, nil))
		go func() {
			_ = elector.Run(ctx, func(ctx context.Context, _ *tenure.Term) error {
				<-ctx.Done()
				return nil
			})
		}()
		for elector.Status().State == tenure.Idle {
			time.Sleep(time.Millisecond)
		}
		urls, electors = append(urls, server.URL), append(electors, elector)
	}
	for i, url := range urls {
		resp, err := http.Get(url + "/jobs")
		if err != nil {
			panic(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		fmt.Printf("asked who is %v: %s\n", electors[i].Status().State, body)
	}
	// Output:
	// asked who is leading: /jobs in epoch 1
	// asked who is led: /jobs in epoch 1
}

// jobs asks the leader, whoever that is, for as long as ctx lasts.
func jobs(ctx context.Context, client *clientv3.Client, base http.RoundTripper) (string, error) {
	transport, err := leaderhttp.NewTransport(client, "/app/leader", &leaderhttp.TransportOptions{Base: base})
	if err != nil {
		return "", err
	}
	defer transport.Close()
	api := &http.Client{Transport: transport} // one for the life of the process
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://leader/jobs", nil)
	if err != nil {
		return "", err
	}
	resp, err := api.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// guarded is a handler whose writes carry the fence.
func guarded(client *clientv3.Client) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		term, _ := leaderhttp.TermFromContext(r.Context())
		_, err := term.KV(client).Put(r.Context(), "/app"+r.URL.Path, "done")
		if err != nil {
			http.Error(w, "not done", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "done")
	})
}

// The snippets of the documents work.
func TestSnippets(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		n := newNetwork(t)
		c := s.Client()
		e := elector(t, c, "lead:80", 6*time.Second)
		n.serve("lead:80", leaderhttp.Proxy(e, guarded(c.Client), nil))
		got := make(chan string, 1)
		base := n.transport()
		go func() {
			body, err := jobs(t.Context(), s.Client().Client, base)
			require.NoError(t, err)
			got <- body
		}()
		synctest.Wait()
		run(t, e)
		require.Equal(t, "done", etcdtest.Await(t, limit, "jobs", got))
		require.Len(t, s.Keys("/app/jobs"), 1)
	})
}

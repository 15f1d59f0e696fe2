package fencehttp_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fencehttp"
)

// A guarded request beside a plain one, each with its own server and client over
// loopback. In parallel, both share the machine with as many others.
func BenchmarkRequest(b *testing.B) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "done")
	})
	for _, kind := range []string{"Plain", "Guarded"} {
		client, handler := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}, http.Handler(h)
		if kind == "Guarded" {
			client.Transport = fencehttp.Transport(client.Transport, always(fenceOf(5)))
			handler = fencehttp.Handler(tenure.NewGate(key), h, nil)
		}
		server := httptest.NewServer(handler)
		request := func() error {
			resp, err := client.Post(server.URL, "text/plain", strings.NewReader("job 1 is done"))
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			_, err = io.Copy(io.Discard, resp.Body)
			return err
		}
		b.Run(kind, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := request(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(kind+"Parallel", func(b *testing.B) {
			b.SetParallelism(8)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := request(); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
		client.CloseIdleConnections()
		server.Close()
	}
}

package fencehttp_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fencehttp"
	"github.com/tenure-go/tenure/tenuretest"
)

// A leader writes to a service over HTTP. Once it has been replaced, the service
// refuses what it still sends, and the leader itself sends nothing more.
func Example() {
	// The service, in its own process.
	gate := tenure.NewGate("/scheduler/leader")
	service := httptest.NewServer(fencehttp.Handler(gate, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fence, _ := fencehttp.FromContext(r.Context())
		_, _ = fmt.Fprintf(w, "written in epoch %d", fence.Epoch) // and stop when r.Context() ends
	}), nil))
	defer service.Close()

	// The leader, in its own.
	write := func(client *http.Client) error {
		resp, err := client.Post(service.URL, "text/plain", strings.NewReader("job 1 is done"))
		if err != nil {
			return err // tenure.ErrTermEnded if the term was over before: nothing was sent
		}
		defer resp.Body.Close()
		if err := fencehttp.Refused(resp); err != nil {
			return err // tenure.ErrFenced: a later term has begun
		}
		fmt.Println(resp.Status)
		return nil
	}
	election := tenuretest.NewElection("/scheduler/leader") // needs no etcd
	term := election.Grant(nil)
	client := &http.Client{Transport: fencehttp.Transport(nil, fencehttp.FromTerm(term))}
	if err := write(client); err != nil {
		log.Fatal(err)
	}

	// Another candidate takes over, and seals before it reads what it builds on.
	later := tenure.Fence{Key: "/scheduler/leader", Epoch: term.Epoch() + 1, Lease: 1}
	if err := gate.Seal(context.Background(), later); err != nil {
		log.Fatal(err)
	}
	err := write(client)
	leader, _ := tenure.LeaderOf(err)
	fmt.Println("refused:", errors.Is(err, tenure.ErrFenced), "by epoch", leader.Fence.Epoch)

	election.End(tenure.LeaseExpired)
	fmt.Println("not sent:", errors.Is(write(client), tenure.LeaseExpired))
	_ = term.Resign()
	// Output:
	// 200 OK
	// refused: true by epoch 2
	// not sent: true
}

// Who only reads needs no fence, and the service logs what it refuses.
func ExampleHandler() {
	gate := tenure.NewGate("/scheduler/leader")
	h := fencehttp.Handler(gate, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, "the jobs")
	}), &fencehttp.Options{
		Optional: fencehttp.Reading,
		Refused:  func(r *http.Request, err error) { fmt.Println("refused:", r.Method, err) },
	})
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, "/jobs", nil))
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// 200 the jobs
	// refused: POST fencehttp: there is no field Tenure-Fence
	// 400 {"type":"tag:github.com,2026:tenure-go/tenure/fence-missing","title":"A fence is required","status":400,"detail":"fencehttp: there is no field Tenure-Fence"}
}

// A worker writes on the leader's behalf, with the fence that came with its job.
func ExampleTransport() {
	var fence tenure.Fence
	if err := fence.UnmarshalText([]byte("42:32698f2a0b7c5d03:/scheduler/leader")); err != nil {
		log.Fatal(err)
	}
	service := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println(fencehttp.Header+":", r.Header.Get(fencehttp.Header))
	}))
	defer service.Close()

	client := &http.Client{Transport: fencehttp.Transport(nil, func() (tenure.Fence, error) { return fence, nil })}
	resp, err := client.Post(service.URL, "text/plain", strings.NewReader("42"))
	if err != nil {
		log.Fatal(err)
	}
	_ = resp.Body.Close()
	// Output:
	// Tenure-Fence: "42:32698f2a0b7c5d03:/scheduler/leader"
}

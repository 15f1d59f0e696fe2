package fencehttp_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fencehttp"
	"github.com/tenure-go/tenure/tenuretest"
)

// roundTripper is a function that is one.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// body is one that tells whether it was closed.
type body struct {
	io.Reader
	closed int
}

func (b *body) Close() error {
	b.closed++
	return nil
}

func TestTransportLeavesTheRequestAsItIs(t *testing.T) {
	sent := errors.New("sent")
	for name, header := range map[string]http.Header{
		"None":      nil,
		"Some":      {"Accept": {"text/plain"}},
		"OfOutside": {"Accept": {"text/plain"}, fencehttp.Header: {`"99:1:k"`, "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			req := httptest.NewRequest(http.MethodPost, "http://a/b", nil)
			req.Header = header
			b := &body{Reader: strings.NewReader("hello")}
			req.Body = b
			before := header.Clone()
			transport := fencehttp.Transport(roundTripper(func(r *http.Request) (*http.Response, error) {
				require.Equal(t, []string{`"5:64:/scheduler/leader"`}, r.Header[fencehttp.Header])
				require.Equal(t, header.Get("Accept"), r.Header.Get("Accept"))
				require.Equal(t, req.URL, r.URL)
				require.Equal(t, req.Context(), r.Context())
				got, err := io.ReadAll(r.Body)
				require.NoError(t, err)
				require.Equal(t, "hello", string(got))
				return nil, sent
			}), always(fenceOf(5)))
			_, err := transport.RoundTrip(req)
			require.Equal(t, sent, err)
			require.Equal(t, before, req.Header)
			require.Zero(t, b.closed, "that is for the one that sends")
		})
	}
}

// F13. Once the term is over here, nothing is sent.
func TestTransportSendsNothingWithoutAFence(t *testing.T) {
	election := tenuretest.NewElection(key)
	term := election.Grant(nil)
	requests := 0
	client := &http.Client{Transport: fencehttp.Transport(roundTripper(func(r *http.Request) (*http.Response, error) {
		requests++
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
	}), fencehttp.FromTerm(term))}
	resp, err := client.Get("http://a/b")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())

	election.End(tenure.LeaseExpired)
	b := &body{Reader: strings.NewReader("hello")}
	_, err = client.Post("http://a/b", "text/plain", b)
	require.ErrorIs(t, err, tenure.ErrTermEnded)
	require.ErrorIs(t, err, tenure.LeaseExpired)
	_, err = client.Get("http://a/b") // without a body
	require.ErrorIs(t, err, tenure.ErrTermEnded)
	require.Equal(t, 1, b.closed)
	require.Equal(t, 1, requests)
	require.NoError(t, term.Resign())

	client.Transport = fencehttp.Transport(nil, always(tenure.Fence{}))
	_, err = client.Post("http://a/b", "text/plain", b)
	require.ErrorContains(t, err, "Fence.Key is empty")
	require.Equal(t, 2, b.closed)
}

// idle is a transport that tells whether it was asked to close what is idle.
type idle struct {
	http.RoundTripper
	closed bool
}

func (i *idle) CloseIdleConnections() { i.closed = true }

func TestTransportClosesIdleConnections(t *testing.T) {
	base := new(idle)
	client := &http.Client{Transport: fencehttp.Transport(base, always(fenceOf(5)))}
	client.CloseIdleConnections()
	require.True(t, base.closed)
	client.Transport = fencehttp.Transport(roundTripper(nil), always(fenceOf(5)))
	client.CloseIdleConnections()
}

// answer is what a client got.
func answer(status int, field, body string, sent ...string) *http.Response {
	resp := &http.Response{StatusCode: status, Header: make(http.Header), Body: io.NopCloser(strings.NewReader(body))}
	resp.Request = httptest.NewRequest(http.MethodPost, "http://user:secret@a/b", nil)
	resp.Request.Header[fencehttp.Header] = sent
	if field != "" {
		resp.Header.Set(fencehttp.Header, field)
	}
	return resp
}

func TestRefusedIsOnlyWhatRefusesTheVeryFence(t *testing.T) {
	const ours, others = `"5:64:/scheduler/leader"`, `"4:64:/scheduler/leader"`
	const document = `{"type":"tag:github.com,2026:tenure-go/tenure/fenced","status":412,"epoch":9007199254740993}`
	epochOf := func(err error) tenure.Epoch {
		leader, _ := tenure.LeaderOf(err)
		return leader.Fence.Epoch
	}
	for name, tt := range map[string]struct {
		resp  *http.Response
		epoch tenure.Epoch
	}{
		"Usual":        {answer(412, ours, document, ours), 9007199254740993},
		"NoBody":       {answer(412, ours, "", ours), 0}, // to a HEAD request
		"AnotherBody":  {answer(412, ours, "<html>", ours), 0},
		"NoEpoch":      {answer(412, ours, `{"epoch":"six"}`, ours), 0},
		"Negative":     {answer(412, ours, `{"epoch":-6}`, ours), 0},
		"EndlessWords": {answer(412, ours, strings.Repeat(" ", 1<<20)+document, ours), 0},
	} {
		t.Run(name, func(t *testing.T) {
			want, err := io.ReadAll(tt.resp.Body)
			require.NoError(t, err)
			tt.resp.Body = io.NopCloser(strings.NewReader(string(want)))
			err = fencehttp.Refused(tt.resp)
			require.ErrorIs(t, err, tenure.ErrFenced)
			require.Equal(t, tt.epoch, epochOf(err))
			require.NotContains(t, err.Error(), "secret")
			got, err := io.ReadAll(tt.resp.Body)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got), "the body was lost")
		})
	}
	for name, resp := range map[string]*http.Response{
		"Success":         answer(200, ours, document, ours),
		"AnotherStatus":   answer(409, ours, document, ours),
		"OfTheHandler":    answer(412, "", document, ours),
		"OfAnotherFence":  answer(412, others, document, ours), // passed on from a service behind
		"NoFenceSent":     answer(412, ours, document),
		"Malformed":       answer(412, "x", document, "x"),
		"TwoSent":         answer(412, ours, document, ours, ours),
		"UnknownRequest":  {StatusCode: 412, Header: http.Header{fencehttp.Header: {ours}}, Body: http.NoBody},
		"ServiceIsNotYet": answer(503, ours, document, ours),
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, fencehttp.Refused(resp))
		})
	}
}

func TestRefusedKeepsTheErrorOfABodyThatBreaks(t *testing.T) {
	broken := errors.New("broken")
	resp := answer(412, `"5:64:/scheduler/leader"`, "", `"5:64:/scheduler/leader"`)
	b := &body{Reader: io.MultiReader(strings.NewReader(`{"epoch":`), roundTripReader{broken})}
	resp.Body = b
	require.ErrorIs(t, fencehttp.Refused(resp), tenure.ErrFenced)
	got, err := io.ReadAll(resp.Body)
	require.Equal(t, `{"epoch":`, string(got))
	require.Equal(t, broken, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 1, b.closed)
}

type roundTripReader struct{ err error }

func (r roundTripReader) Read([]byte) (int, error) { return 0, r.err }

// A proxy that writes with a fence of its own lets no fence from outside through,
// nor lets an outsider take the field away by calling it hop-by-hop.
func TestAProxyReplacesTheFenceOfAnOutsider(t *testing.T) {
	seen := make(chan []string, 1)
	service := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header[fencehttp.Header] }))
	defer service.Close()
	target, err := url.Parse(service.URL)
	require.NoError(t, err)
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: fencehttp.Transport(nil, always(fenceOf(5))),
	})
	defer proxy.Close()
	for name, header := range map[string]http.Header{
		"Nothing":  {},
		"Invented": {fencehttp.Header: {`"99:1:/scheduler/leader"`}},
		"Two":      {fencehttp.Header: {`"99:1:/scheduler/leader"`, `"98:1:/scheduler/leader"`}},
		"HopByHop": {fencehttp.Header: {`"99:1:/scheduler/leader"`}, "Connection": {fencehttp.Header}},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, proxy.URL, nil)
			require.NoError(t, err)
			req.Header = header
			resp, err := http.DefaultClient.Do(req)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, []string{`"5:64:/scheduler/leader"`}, <-seen)
		})
	}
}

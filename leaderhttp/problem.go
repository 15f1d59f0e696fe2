package leaderhttp

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/tenure-go/tenure"
)

// problem is a problem document of RFC 9457.
type problem struct {
	Type   string       `json:"type"`
	Title  string       `json:"title"`
	Status int          `json:"status"`
	Detail string       `json:"detail,omitempty"`
	Epoch  tenure.Epoch `json:"epoch,omitempty"` // of the last known term
}

const tag = "tag:github.com,2026:tenure-go/tenure/"

var (
	noLeader    = problem{Type: tag + "no-leader", Title: "Nobody leads at this moment", Status: http.StatusServiceUnavailable}
	unknown     = problem{Type: tag + "leader-unknown", Title: "It is not known who leads", Status: http.StatusServiceUnavailable}
	notLeading  = problem{Type: tag + "not-leading", Title: "This process does not lead", Status: http.StatusServiceUnavailable}
	noAddress   = problem{Type: tag + "no-address", Title: "The leader publishes no usable address", Status: http.StatusServiceUnavailable}
	unreachable = problem{Type: tag + "leader-unreachable", Title: "The leader cannot be reached", Status: http.StatusServiceUnavailable}
	lostOutcome = problem{Type: tag + "outcome-unknown", Title: "The leader's answer is missing", Status: http.StatusBadGateway}
	malformed   = problem{Type: tag + "mark-malformed", Title: "The field " + Header + " is malformed", Status: http.StatusBadRequest}
)

// write answers with p. A wait of 0 is none that is known.
func (p problem) write(w http.ResponseWriter, wait time.Duration) {
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and numbers
	}
	if wait > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((wait+time.Second-1)/time.Second), 10))
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // a client that has gone needs no answer
}

// soon is the shortest wait that Retry-After can tell.
const soon = time.Second

// left is how long a lease can last that was alive at since, at most.
func left(st tenure.Status, since time.Time) time.Duration {
	if st.TTL == 0 {
		return soon
	}
	return max(time.Until(since.Add(st.TTL)), soon)
}

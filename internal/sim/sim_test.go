package sim

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure/internal/etcdtest"
)

var (
	seedFlag  = flag.Int64("seed", -1, "the seed of the only run; default: the first few")
	keepFlag  = flag.String("keep", "all", "the events of the plan to keep, such as 0,4-7")
	serveFlag = flag.Bool("serve", false, "run the seeds that come from standard input, for tools/sim")
	logFlag   = flag.String("log", "", "the folder for the logs of failed runs")
)

// A report is what a run tells tools/sim, as one line of JSON.
type report struct {
	Seed     uint64
	Events   int
	Terms    int
	Faults   map[string]int
	Takeover float64 // seconds
	Recovery float64
	Wrong    []string
	Log      string // the file
}

// simulate runs the plan of a seed.
func simulate(t *testing.T, seed uint64, keep string) report {
	t.Helper()
	etcdtest.RealLimit = time.Minute
	p := newPlan(seed)
	r := report{Seed: seed, Events: len(p.events), Faults: make(map[string]int)}
	require.NoError(t, p.keep(keep))
	log := io.Discard
	if *logFlag != "" {
		r.Log = filepath.Join(*logFlag, fmt.Sprintf("seed-%d.log", seed))
		f, err := os.Create(r.Log)
		require.NoError(t, err)
		defer f.Close()
		log = f
	}
	fmt.Fprintln(log, p)
	var w *world
	t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			w = newWorld(t, s, p, log)
			w.run()
		})
	})
	if w == nil {
		return r
	}
	r.Terms, r.Wrong, r.Takeover, r.Recovery = w.terms, w.wrong, w.takeover.Seconds(), w.recovery.Seconds()
	for k, n := range w.faults {
		r.Faults[string(k)] = n
	}
	return r
}

func TestSimulation(t *testing.T) {
	if *serveFlag {
		serve(t)
		return
	}
	seeds := []uint64{1, 2, 3, 4}
	if *seedFlag >= 0 {
		seeds = []uint64{uint64(*seedFlag)}
	}
	for _, seed := range seeds {
		start := time.Now()
		r := simulate(t, seed, *keepFlag)
		t.Logf("seed %d: %d events, %d terms in %v, takeover %v, recovery %v", seed, r.Events, r.Terms, time.Since(start), r.Takeover, r.Recovery)
		for _, line := range r.Wrong {
			t.Error(line)
		}
	}
}

// serve runs what it is told to: a seed and a list of events a line.
func serve(t *testing.T) {
	t.Helper()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var seed uint64
		var keep string
		_, err := fmt.Sscan(in.Text(), &seed, &keep)
		require.NoError(t, err)
		line, err := json.Marshal(simulate(t, seed, keep))
		require.NoError(t, err)
		fmt.Printf("report %s\n", line)
	}
}

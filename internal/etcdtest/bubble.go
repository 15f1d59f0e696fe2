package etcdtest

import (
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	_ "unsafe" // for go:linkname

	"go.etcd.io/etcd/server/v3/storage/wal"
	"google.golang.org/grpc/grpclog"
)

// RealLimit bounds the real time that a bubble takes. A fake day of an idle
// server takes some 4 s, and several times as much under the race detector.
var RealLimit = 2 * time.Minute

// grace is the time of the bubble between the end of the test's context and
// that of the clients.
const grace = time.Minute

// valCtxCh is the Done channel of all watch contexts in clientv3. It is made
// once, outside any bubble, where waiting on it stops the clock, and it is
// never closed. Each bubble puts its own in its place.
//
//go:linkname valCtxCh go.etcd.io/etcd/client/v3.valCtxCh
var valCtxCh chan struct{}

// setValCtxCh is not for the race detector: whoever has read the variable in an
// earlier bubble has ended by now, which the detector does not always see.
//
//go:norace
func setValCtxCh(c chan struct{}) { valCtxCh = c }

func init() {
	// A server allocates two segments in advance, of 64 MB each by default.
	wal.SegmentSizeBytes = 1 << 20

	// Connections break on purpose here.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
}

// Bubble runs f inside a synctest bubble with a server that is ready. The inner
// t belongs to the bubble: its Context and Cleanup are to be used, its Run,
// Parallel and Deadline are not.
//
// When f returns or fails, the context of t ends, then its cleanups run in the
// usual order. A minute of the bubble's time later, so that what has heard of
// the end of the context can still leave in order, clients and server are
// closed. A goroutine that is still there then panics the bubble, with its
// stack, unless it ends without waiting for a timer.
//
// A bubble does not run in parallel with any other test.
func Bubble(t *testing.T, f func(t *testing.T, s *Server)) {
	t.Helper()
	BubbleWith(t, nil, f)
}

// BubbleWith is Bubble with options for the server. They may be nil.
func BubbleWith(t *testing.T, opts *ServerOptions, f func(t *testing.T, s *Server)) {
	t.Helper()
	silence(t)
	name := t.Name()
	defer time.AfterFunc(RealLimit, func() {
		panic(fmt.Sprintf("etcdtest: the bubble of %s has not ended after %v\n\n%s", name, RealLimit, stacks()))
	}).Stop()
	defer setValCtxCh(valCtxCh)

	synctest.Test(t, func(t *testing.T) {
		setValCtxCh(make(chan struct{}))
		s := &Server{t: t, dir: filepath.Join(t.TempDir(), "data")}
		if opts != nil {
			s.opts = *opts
		}
		t.Cleanup(s.close)
		s.Start()
		s.admin = s.Client()
		if s.opts.Auth {
			s.enableAuth()
		}
		f(t, s)
	})
}

// silence keeps clients without a logger of their own from writing to standard
// error, and t from running in parallel.
func silence(t testing.TB) {
	t.Helper()
	t.Setenv("ETCD_CLIENT_DEBUG", "fatal")
}

// stacks returns the stacks of all goroutines in bubbles, those first that stop
// the clock. If only the test and synctest itself are left among them, the test
// waits for something that never comes.
func stacks() string {
	buf := make([]byte, 8<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var stopping, durable []string
	for s := range strings.SplitSeq(string(buf), "\n\n") {
		head, _, _ := strings.Cut(s, "\n")
		switch {
		case !strings.Contains(head, "synctest bubble"):
		case strings.Contains(head, "(durable)"):
			durable = append(durable, s)
		default:
			stopping = append(stopping, s)
		}
	}
	return strings.Join(append(stopping, durable...), "\n\n")
}

package integration_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fencefile"
	"github.com/tenure-go/tenure/fencegrpc"
	"github.com/tenure-go/tenure/fencehttp"
	"github.com/tenure-go/tenure/integration/internal/fencecheck"
	"github.com/tenure-go/tenure/integration/internal/servers"
)

// Files

// fileLogs are what several processes of one machine have open: one log.
type fileLogs struct {
	logs []*fencefile.Log
	next atomic.Int64
}

func openLogs(t *testing.T, n int) *fileLogs {
	t.Helper()
	path := filepath.Join(memoryFolder(t), "log")
	f := &fileLogs{}
	for range n {
		log, err := fencefile.Open(path)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, log.Close()) })
		f.logs = append(f.logs, log)
	}
	return f
}

// memoryFolder is a folder where to sync takes no time, if there is one: ten
// thousand records are ten thousand syncs, and what a disk does with them is not
// what is asked here.
func memoryFolder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "tenure") //nolint:usetesting // in memory
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func (f *fileLogs) any() *fencefile.Log {
	return f.logs[f.next.Add(1)%int64(len(f.logs))]
}

func (f *fileLogs) Append(ctx context.Context, fence tenure.Fence, value string) error {
	fencecheck.Between(ctx)
	return f.any().Append(ctx, fence, []byte(value))
}

func (f *fileLogs) Seal(ctx context.Context, fence tenure.Fence) error {
	return f.any().Seal(ctx, fence)
}

func (f *fileLogs) Read(ctx context.Context) ([]string, error) {
	var values []string
	for r, err := range f.any().Records(ctx) {
		if err != nil {
			return nil, err
		}
		values = append(values, string(r.Data))
	}
	return values, nil
}

func TestFileLog(t *testing.T) {
	t.Parallel()
	fencecheck.Run(t, openLogs(t, 2), fencecheck.Options{Writers: 8})
}

// fileWork writes another file under the lock of a log, with a pause between the
// check and the write.
type fileWork struct {
	*fileLogs
	path string
	bare bool // a check, and the write when the lock has gone
}

func (f *fileWork) Append(ctx context.Context, fence tenure.Fence, value string) error {
	write := func() error {
		fencecheck.Between(ctx)
		file, err := os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = file.WriteString(value + "\n")
		return errors.Join(err, file.Close())
	}
	if f.bare {
		if err := f.any().Seal(ctx, fence); err != nil {
			return err
		}
		return write()
	}
	return f.any().Do(ctx, fence, write)
}

func (f *fileWork) Read(context.Context) ([]string, error) {
	data, err := os.ReadFile(f.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(data)), err
}

func TestFileWork(t *testing.T) {
	t.Parallel()
	fencecheck.Run(t, &fileWork{fileLogs: openLogs(t, 3), path: filepath.Join(t.TempDir(), "values")}, fencecheck.Options{})
}

// The check finds what it looks for: a seal that does not hold the lock while the
// work is done is no fence.
func TestFileWorkWithoutTheLock(t *testing.T) {
	t.Parallel()
	f := &fileWork{fileLogs: openLogs(t, 3), path: filepath.Join(t.TempDir(), "values"), bare: true}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	h, err := fencecheck.Drive(ctx, f, fencecheck.Options{Writes: 5000})
	require.NoError(t, err)
	require.ErrorContains(t, h.Check(), "order")
}

// etcd

// etcdLog is a key for each value. A term here is the run's term there: its epoch
// is the revision at which a key was created, and its lease is granted there.
type etcdLog struct {
	client *clientv3.Client
	link   *link

	mu     sync.Mutex
	terms  map[tenure.Fence]tenure.Fence
	latest tenure.Fence // the highest of the run that has been elected
}

// elect returns the fence in etcd of a term of the run, and makes it the term that
// holds the election if it is later than all before.
func (e *etcdLog) elect(ctx context.Context, fence tenure.Fence) (tenure.Fence, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if actual, ok := e.terms[fence]; ok {
		return actual, nil
	}
	actual := tenure.Fence{Key: fencecheck.Key, Epoch: 1, Lease: 1} // never elected: its turn was missed
	switch {
	case fence.Epoch == e.latest.Epoch: // what a careless restore produces
		actual = e.terms[e.latest]
		actual.Lease++

	case fence.Epoch > e.latest.Epoch:
		lease, err := e.client.Grant(ctx, 600)
		if err != nil {
			return actual, err
		}
		// Two steps, as in life: the key is gone before it comes again.
		if _, err := e.client.Delete(ctx, fencecheck.Key); err != nil {
			return actual, err
		}
		if _, err := e.client.Put(ctx, fencecheck.Key, "{}", clientv3.WithLease(lease.ID)); err != nil {
			return actual, err
		}
		leader, err := e.client.Get(ctx, fencecheck.Key)
		if err != nil {
			return actual, err
		}
		actual = tenure.Fence{Key: fencecheck.Key, Epoch: tenure.Epoch(leader.Kvs[0].CreateRevision), Lease: lease.ID}
		e.latest = fence
	}
	e.terms[fence] = actual
	return actual, nil
}

func (e *etcdLog) Append(ctx context.Context, fence tenure.Fence, value string) error {
	actual, err := e.elect(ctx, fence)
	if err != nil {
		return err
	}
	if fencecheck.Between(ctx) {
		e.link.cutNext.Store(true)
	}
	kv := actual.KV(e.client)
	if len(value)%2 == 0 {
		_, err = kv.Put(ctx, "/log/"+value, "")
		return err
	}
	_, err = kv.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision("/log/"+value), "=", 0)).
		Then(clientv3.OpPut("/log/"+value, "")).
		Else(clientv3.OpPut("/log/0.0.0.0", "the user's own condition never fails here")).
		Commit()
	return err
}

func (e *etcdLog) Seal(ctx context.Context, fence tenure.Fence) error {
	_, err := e.elect(ctx, fence)
	return err
}

func (e *etcdLog) Read(ctx context.Context) ([]string, error) {
	resp, err := e.client.Get(ctx, "/log/", clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortAscend))
	if err != nil {
		return nil, err
	}
	values := make([]string, len(resp.Kvs))
	for i, kv := range resp.Kvs {
		values[i] = strings.TrimPrefix(string(kv.Key), "/log/")
	}
	return values, nil
}

func etcdClient(t testing.TB, config clientv3.Config) *clientv3.Client {
	t.Helper()
	config.Logger = zap.NewNop()
	client, err := clientv3.New(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

func TestEtcd(t *testing.T) {
	t.Parallel()
	server := servers.StartEtcd(t)
	k := newLink(t, "tcp", strings.TrimPrefix(server.Endpoint, "http://"))
	client := etcdClient(t, clientv3.Config{
		Endpoints: []string{server.Endpoint},
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", k.path)
		}), grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.6, MaxDelay: 100 * time.Millisecond}, MinConnectTimeout: time.Second})},
	})
	e := &etcdLog{client: client, link: k, terms: make(map[tenure.Fence]tenure.Fence)}
	h := fencecheck.Run(t, e, fencecheck.Options{Cut: true, Restart: server.Restart})
	require.Equal(t, 2, h.Restarts)
	require.Positive(t, k.cuts.Load(), "no answer was lost")
}

// HTTP and gRPC

// register is a log in the memory of a service behind a gate. What the gate
// remembers is in a file, so a service that is started again remembers it.
type register struct {
	memory tenure.GateMemory

	mu     sync.Mutex
	values []string

	calls sync.Map // the context of an Append, by the value: where the faults are
	stop  func()
	addr  string
	serve func(net.Listener, *tenure.Gate) (stop func())
}

var errLost = errors.New("the answer is lost")

// write is what the handlers do. Its error loses the answer.
func (r *register) write(ctx context.Context, value string) error {
	call, ok := r.calls.Load(value)
	cut := ok && fencecheck.Between(call.(context.Context))
	if len(value)%2 == 0 && ctx.Err() != nil { // a handler that stops; the others are waited for
		return ctx.Err()
	}
	r.mu.Lock()
	r.values = append(r.values, value)
	r.mu.Unlock()
	if cut {
		return errLost
	}
	return nil
}

func (r *register) Read(context.Context) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.values...), nil
}

// start serves on the address that it has had, with a gate that is new.
func (r *register) start() error {
	listener, err := net.Listen("tcp", r.addr)
	if err != nil {
		return err
	}
	if r.stop == nil {
		r.addr = listener.Addr().String() // others read it from now on
	}
	r.stop = r.serve(listener, tenure.NewGateWith(fencecheck.Key, r.memory))
	return nil
}

func (r *register) restart() error {
	r.stop()
	return r.start()
}

func newRegister(t *testing.T, serve func(*register, net.Listener, *tenure.Gate) (stop func())) *register {
	t.Helper()
	r := &register{memory: openLogs(t, 1).logs[0], addr: "127.0.0.1:0"}
	r.serve = func(l net.Listener, g *tenure.Gate) func() { return serve(r, l, g) }
	require.NoError(t, r.start())
	t.Cleanup(func() { r.stop() })
	return r
}

type fenceKey struct{}

// carried is the fence of one Append, for a client that all of them share.
func carried(ctx context.Context) (tenure.Fence, error) {
	fence, ok := ctx.Value(fenceKey{}).(tenure.Fence)
	if !ok {
		return fence, errors.New("no fence in the context")
	}
	return fence, nil
}

type httpLog struct {
	*register
	client *http.Client
}

func (r *httpLog) Append(ctx context.Context, fence tenure.Fence, value string) error {
	r.calls.Store(value, ctx)
	defer r.calls.Delete(value)
	return r.post(ctx, fence, "/append?"+value)
}

func (r *httpLog) Seal(ctx context.Context, fence tenure.Fence) error {
	return r.post(ctx, fence, "/seal")
}

func (r *httpLog) post(ctx context.Context, fence tenure.Fence, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.addr+path, nil)
	if err != nil {
		return err
	}
	return send(r.client, req, fence)
}

// send makes a request under fence, and returns what its answer says.
func send(client *http.Client, req *http.Request, fence tenure.Fence) error {
	if err := fencehttp.Set(req.Header, fence); err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := fencehttp.Refused(resp); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// serveHTTP serves a register. stop cuts all connections, and returns when the
// handlers have ended: those of a process that is killed end with it.
func serveHTTP(r *register, l net.Listener, gate *tenure.Gate) (stop func()) {
	var inside sync.WaitGroup
	mux := http.NewServeMux()
	mux.HandleFunc("POST /seal", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /append", func(_ http.ResponseWriter, req *http.Request) {
		if err := r.write(req.Context(), req.URL.RawQuery); err != nil {
			panic(http.ErrAbortHandler)
		}
	})
	guarded := fencehttp.Handler(gate, mux, nil)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		inside.Add(1)
		defer inside.Done()
		guarded.ServeHTTP(w, req)
	})}
	stopServing := serving(func() error { return server.Serve(l) }, func() { server.Close() })
	return func() {
		stopServing()
		inside.Wait()
	}
}

// serving runs serve until stop has told it to end, and waits for that.
func serving(serve func() error, tell func()) (stop func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = serve() // says that it was told to
	}()
	return func() {
		tell()
		<-ended
	}
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	r := newRegister(t, serveHTTP)
	transport := &http.Transport{MaxIdleConnsPerHost: 32}
	defer transport.CloseIdleConnections()
	h := fencecheck.Run(t, &httpLog{r, &http.Client{Transport: transport}}, fencecheck.Options{Cut: true, Restart: r.restart})
	require.Equal(t, 2, h.Restarts)
}

type grpcLog struct {
	*register
	conn *grpc.ClientConn
}

func (r *grpcLog) Append(ctx context.Context, fence tenure.Fence, value string) error {
	r.calls.Store(value, ctx)
	defer r.calls.Delete(value)
	ctx = context.WithValue(ctx, fenceKey{}, fence)
	return r.conn.Invoke(ctx, "/log/Append", wrapperspb.String(value), new(emptypb.Empty))
}

func (r *grpcLog) Seal(ctx context.Context, fence tenure.Fence) error {
	ctx = context.WithValue(ctx, fenceKey{}, fence)
	return r.conn.Invoke(ctx, "/log/Append", wrapperspb.String(""), new(emptypb.Empty))
}

func serveGRPC(r *register, l net.Listener, gate *tenure.Gate) (stop func()) {
	server := grpc.NewServer(grpc.WaitForHandlers(true), grpc.UnaryInterceptor(fencegrpc.UnaryServerInterceptor(gate, nil)))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "log",
		Methods: []grpc.MethodDesc{{
			MethodName: "Append",
			Handler: func(_ any, ctx context.Context, decode func(any) error, through grpc.UnaryServerInterceptor) (any, error) {
				value := new(wrapperspb.StringValue)
				if err := decode(value); err != nil {
					return nil, err
				}
				return through(ctx, value, &grpc.UnaryServerInfo{FullMethod: "/log/Append"}, func(ctx context.Context, _ any) (any, error) {
					if value.Value == "" {
						return new(emptypb.Empty), nil
					}
					return new(emptypb.Empty), r.write(ctx, value.Value)
				})
			},
		}},
	}, nil)
	return serving(func() error { return server.Serve(l) }, server.Stop)
}

func TestGRPC(t *testing.T) {
	t.Parallel()
	r := newRegister(t, serveGRPC)
	// The fence of each call is in its context, which an interceptor of the caller knows and the library's does not.
	conn, err := grpc.NewClient(r.addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			one := fencegrpc.UnaryClientInterceptor(func() (tenure.Fence, error) { return carried(ctx) })
			return one(ctx, method, req, reply, cc, invoke, opts...)
		}))
	require.NoError(t, err)
	defer conn.Close()
	h := fencecheck.Run(t, &grpcLog{r, conn}, fencecheck.Options{Cut: true, Restart: r.restart})
	require.Equal(t, 2, h.Restarts)
}

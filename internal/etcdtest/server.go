package etcdtest

import (
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"
)

// Endpoint is the endpoint of the server in a bubble. Any other leads there
// too, so that a client can be given several, each with its own link; see [At]
// and [Link.To].
const Endpoint = "http://etcd:2379"

// ServerOptions change the server of a bubble. The zero value means etcd's
// defaults, without authentication.
type ServerOptions struct {
	// Auth enables authentication, with the user root and the password root.
	Auth bool

	// TokenTTL is the time after which an unused token of a user expires, in
	// whole seconds. The default is 300 s.
	TokenTTL time.Duration

	// TickMs and ElectionMs are Raft's heartbeat and election timeout. The
	// smallest TTL of a lease is 1.5 times ElectionMs, rounded up to a second.
	// The defaults are 100 and 1000.
	TickMs, ElectionMs uint

	// MaxTxnOps is the largest number of operations in a transaction. The
	// default is 128.
	MaxTxnOps uint

	// QuotaBackendBytes is the size above which the server refuses to grow. The
	// default is 64 MiB.
	QuotaBackendBytes int64

	// Config changes anything else just before the server is made.
	Config func(*config.ServerConfig)
}

// A Server is a real etcd server of one member, without sockets, in a bubble.
// Its methods fail the test when they cannot do what they say, and belong to
// the goroutine of the test, save Client, Admin, Etcd, Keys and Leases.
type Server struct {
	t     *testing.T
	opts  ServerOptions
	dir   string
	admin *Client

	mu      sync.Mutex
	etcd    *etcdserver.EtcdServer // nil while stopped, like the next two
	grpc    *grpc.Server
	lis     *bufconn.Listener
	clients []*Client
}

// Start starts the server on the data it had, and returns when it is ready,
// which takes up to 2 s of the bubble's time for a random election timeout.
func (s *Server) Start() {
	s.t.Helper()
	s.mustBeStopped()
	etcd, err := etcdserver.NewServer(s.config())
	must(s.t, "etcdserver.NewServer()", err)
	etcd.Start()
	<-etcd.ReadyNotify()

	s.mu.Lock()
	defer s.mu.Unlock()
	lis := bufconn.Listen(1 << 20)
	serving := v3rpc.Server(etcd, nil, nil,
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: embed.DefaultGRPCKeepAliveMinTime}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time:    embed.DefaultGRPCKeepAliveInterval,
			Timeout: embed.DefaultGRPCKeepAliveTimeout,
		}))
	go func() { _ = serving.Serve(lis) }()
	s.etcd, s.grpc, s.lis = etcd, serving, lis
}

// Stop kills the server. Its connections break and dials are refused, like
// those to a dead process on a living host. To let a host vanish, cut the links
// first. Stopping a stopped server does nothing.
func (s *Server) Stop() {
	s.mu.Lock()
	etcd, serving := s.etcd, s.grpc
	s.etcd, s.grpc, s.lis = nil, nil, nil
	s.mu.Unlock()
	if etcd != nil {
		serving.Stop()
		etcd.HardStop()
	}
}

// Restart stops the server and starts it again after down.
func (s *Server) Restart(down time.Duration) {
	s.t.Helper()
	s.Stop()
	time.Sleep(down)
	s.Start()
}

// Snapshot copies the data of the stopped server and returns the folder.
func (s *Server) Snapshot() string {
	s.t.Helper()
	s.mustBeStopped()
	dir := filepath.Join(s.t.TempDir(), "snapshot")
	must(s.t, "os.CopyFS()", os.CopyFS(dir, os.DirFS(s.dir)))
	return dir
}

// Restore replaces the data of the stopped server by those of a snapshot, which
// stays as it is. The server's revision goes back, and its cluster and member
// keep their numbers, as after a plain restore of a backup.
func (s *Server) Restore(snapshot string) {
	s.t.Helper()
	s.mustBeStopped()
	must(s.t, "os.RemoveAll()", os.RemoveAll(s.dir))
	must(s.t, "os.CopyFS()", os.CopyFS(s.dir, os.DirFS(snapshot)))
}

// Bump raises the revision of the stopped server and marks all before as
// compacted, as etcdutl's snapshot restore does with --bump-revision and
// --mark-compacted. Keys keep their own revisions.
func (s *Server) Bump(revisions int64) {
	s.t.Helper()
	s.mustBeStopped()
	db := backend.NewDefaultBackend(zap.NewNop(), datadir.ToBackendFileName(s.dir))
	defer db.Close()
	tx := db.BatchTx()
	tx.LockOutsideApply()
	defer tx.Unlock()

	var last mvcc.Revision
	err := tx.UnsafeForEach(schema.Key, func(k, _ []byte) error {
		last = mvcc.BytesToRev(k)
		return nil
	})
	must(s.t, "UnsafeForEach(schema.Key)", err)
	last.Main += revisions
	tx.UnsafePut(schema.Key, mvcc.RevToBytes(last, mvcc.NewRevBytes()), nil)
	mvcc.UnsafeSetScheduledCompact(tx, last.Main)
}

// Etcd returns the running server, or nil.
func (s *Server) Etcd() *etcdserver.EtcdServer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.etcd
}

// Client returns a new client of the server. The edits change its configuration.
func (s *Server) Client(edits ...func(*clientv3.Config)) *Client {
	s.t.Helper()
	c := newClient(s.t, []string{Endpoint}, s.dial, edits)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients = append(s.clients, c)
	return c
}

// Admin returns a client with all rights, to act as an operator.
func (s *Server) Admin() *clientv3.Client { return s.admin.Client }

// Keys returns the keys with a prefix, in order, as the running server has
// applied them. It makes no request and is not touched by any fault.
func (s *Server) Keys(prefix string) []*mvccpb.KeyValue {
	s.t.Helper()
	key, end := []byte(prefix), []byte(clientv3.GetPrefixRangeEnd(prefix))
	if prefix == "" {
		key, end = []byte{0}, []byte{} // From the first key on.
	}
	r, err := s.mustRun().KV().Range(context.Background(), key, end, mvcc.RangeOptions{})
	must(s.t, "KV().Range()", err)
	return r.KVs
}

// Versions returns the versions of a key since its creation that are newer than
// the revision after and not compacted, the oldest first, likewise.
func (s *Server) Versions(key string, after int64) []*mvccpb.KeyValue {
	s.t.Helper()
	kv := s.mustRun().KV()
	var versions []*mvccpb.KeyValue
	for at := int64(0); ; { // 0: the newest
		r, err := kv.Range(context.Background(), []byte(key), nil, mvcc.RangeOptions{Rev: at})
		if errors.Is(err, mvcc.ErrCompacted) {
			break
		}
		must(s.t, "KV().Range()", err)
		if len(r.KVs) == 0 || r.KVs[0].ModRevision <= after {
			break
		}
		versions = append(versions, r.KVs[0])
		if at = r.KVs[0].ModRevision - 1; r.KVs[0].Version == 1 {
			break
		}
	}
	slices.Reverse(versions)
	return versions
}

// Leases returns how many leases the running server has, likewise.
func (s *Server) Leases() int {
	s.t.Helper()
	etcd := s.mustRun()
	r, err := etcd.LeaseLeases(etcd.AuthStore().WithRoot(context.Background()), &pb.LeaseLeasesRequest{})
	must(s.t, "LeaseLeases()", err)
	return len(r.Leases)
}

// AddUser adds a user who may do what the permission says with the keys under
// a prefix, by a role of the same name. More can be granted through Admin.
func (s *Server) AddUser(name, password string, permission clientv3.PermissionType, prefix string) {
	s.t.Helper()
	s.addUser(name, password)
	_, err := s.admin.RoleGrantPermission(s.t.Context(), name, prefix, clientv3.GetPrefixRangeEnd(prefix), permission)
	must(s.t, "RoleGrantPermission()", err)
}

func (s *Server) addUser(name, password string) {
	s.t.Helper()
	_, err := s.admin.RoleAdd(s.t.Context(), name)
	must(s.t, "RoleAdd()", err)
	_, err = s.admin.UserAdd(s.t.Context(), name, password)
	must(s.t, "UserAdd()", err)
	_, err = s.admin.UserGrantRole(s.t.Context(), name, name)
	must(s.t, "UserGrantRole()", err)
}

func (s *Server) enableAuth() {
	s.t.Helper()
	s.addUser("root", "root")
	_, err := s.admin.AuthEnable(s.t.Context())
	must(s.t, "AuthEnable()", err)
	s.admin.Close()
	s.admin = s.Client(As("root", "root"))
}

func (s *Server) dial(ctx context.Context, _ string) (net.Conn, error) {
	s.mu.Lock()
	lis := s.lis
	s.mu.Unlock()
	if lis == nil {
		return nil, &net.OpError{Op: "dial", Net: "etcdtest", Err: syscall.ECONNREFUSED}
	}
	return lis.DialContext(ctx)
}

// close ends everything that could keep the clock moving.
func (s *Server) close() {
	time.Sleep(grace)
	for _, c := range s.clients {
		c.Close()
	}
	s.Stop()
}

func (s *Server) mustBeStopped() {
	s.t.Helper()
	if s.Etcd() != nil {
		s.t.Fatal("etcdtest: the server runs, but the call wants it stopped")
	}
}

func (s *Server) mustRun() *etcdserver.EtcdServer {
	s.t.Helper()
	etcd := s.Etcd()
	if etcd == nil {
		s.t.Fatal("etcdtest: the server is stopped, but the call wants it running")
	}
	return etcd
}

func (s *Server) config() config.ServerConfig {
	def := embed.NewConfig()
	urls := types.MustNewURLs([]string{"http://127.0.0.1:1"}) // Nobody listens or dials there.
	tick := cmp.Or(s.opts.TickMs, def.TickMs)
	cfg := config.ServerConfig{
		Name:                        def.Name,
		DataDir:                     s.dir,
		ClientURLs:                  urls,
		PeerURLs:                    urls,
		InitialPeerURLsMap:          types.URLsMap{def.Name: urls},
		InitialClusterToken:         def.InitialClusterToken,
		NewCluster:                  true,
		PreVote:                     def.PreVote,
		StrictReconfigCheck:         def.StrictReconfigCheck,
		TickMs:                      tick,
		ElectionTicks:               int(cmp.Or(s.opts.ElectionMs, def.ElectionMs) / tick),
		InitialElectionTickAdvance:  def.InitialElectionTickAdvance,
		SnapshotCount:               def.SnapshotCount,
		SnapshotCatchUpEntries:      def.SnapshotCatchUpEntries,
		MaxTxnOps:                   cmp.Or(s.opts.MaxTxnOps, def.MaxTxnOps),
		MaxRequestBytes:             def.MaxRequestBytes,
		MaxConcurrentStreams:        def.MaxConcurrentStreams,
		AuthToken:                   def.AuthToken,
		BcryptCost:                  4, // The least, since the clock stands still meanwhile.
		TokenTTL:                    cmp.Or(uint(s.opts.TokenTTL/time.Second), def.AuthTokenTTL),
		QuotaBackendBytes:           cmp.Or(s.opts.QuotaBackendBytes, 64<<20),
		CompactionBatchLimit:        def.CompactionBatchLimit,
		CompactionSleepInterval:     def.CompactionSleepInterval,
		WarningApplyDuration:        def.WarningApplyDuration,
		WarningUnaryRequestDuration: def.WarningUnaryRequestDuration,
		WatchProgressNotifyInterval: def.WatchProgressNotifyInterval,
		DowngradeCheckTime:          def.DowngradeCheckTime,
		ServerFeatureGate:           def.ServerFeatureGate,
		UnsafeNoFsync:               true,
		Logger:                      zap.NewNop(),
	}
	if s.opts.Config != nil {
		s.opts.Config(&cfg)
	}
	return cfg
}

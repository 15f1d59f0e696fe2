package servers

import (
	"context"
	"net"
	"net/url"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Etcd is a server inside the test's process, on a port of 127.0.0.1, so that it
// is never missing.
type Etcd struct {
	Endpoint string

	config *embed.Config
	server *embed.Etcd
}

// StartEtcd starts a server that grants leases of one second. It ends with the
// test.
func StartEtcd(t testing.TB) *Etcd {
	t.Helper()
	config := embed.NewConfig()
	config.Dir = t.TempDir()
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	config.UnsafeNoFsync = true
	config.TickMs, config.ElectionMs = 50, 500
	client, peer := freeURL(t), freeURL(t)
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	e := &Etcd{Endpoint: client.String(), config: config}
	if err := e.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.server.Close() })
	return e
}

// Restart stops the server and starts it again on the same data. It returns when
// it is ready.
func (e *Etcd) Restart() error {
	e.server.Close()
	return e.start()
}

func (e *Etcd) start() error {
	server, err := embed.StartEtcd(e.config)
	if err != nil {
		return err
	}
	e.server = server
	select {
	case <-server.Server.ReadyNotify():
		return nil

	case err := <-server.Err():
		return err

	case <-time.After(startLimit):
		return context.DeadlineExceeded
	}
}

func freeURL(t testing.TB) url.URL {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return url.URL{Scheme: "http", Host: l.Addr().String()}
}

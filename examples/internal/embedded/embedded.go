// Package embedded runs an etcd server inside the process of an example, so that
// the examples need nothing installed.
package embedded

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Endpoints is the flag -endpoints: an etcd that exists already. It is defined
// when Flag is called.
type Endpoints struct{ given string }

// Flag defines -endpoints.
func Flag() *Endpoints {
	var e Endpoints
	flag.StringVar(&e.given, "endpoints", "", "comma-separated `endpoints` of an etcd to use; empty: an embedded one")
	return &e
}

// Embedded reports whether Start starts a server.
func (e *Endpoints) Embedded() bool { return e.given == "" }

// Start returns the endpoints that were given, or starts a server. stop ends
// that server and removes its data.
func (e *Endpoints) Start(ctx context.Context) (endpoints []string, stop func(), err error) {
	if e.given != "" {
		return strings.Split(e.given, ","), func() {}, nil
	}
	dir, err := os.MkdirTemp("", "tenure-example-")
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir)
		}
	}()
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.UnsafeNoFsync = true // the data live as long as the example
	cfg.TickMs, cfg.ElectionMs = 50, 500
	client, err := freeURL()
	if err != nil {
		return nil, nil, err
	}
	peer, err := freeURL()
	if err != nil {
		return nil, nil, err
	}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("start etcd: %w", err)
	}
	stop = func() {
		server.Close()
		_ = os.RemoveAll(dir)
	}
	select {
	case <-server.Server.ReadyNotify():
		return []string{client.String()}, stop, nil

	case err = <-server.Err():
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(15 * time.Second):
		err = errors.New("not ready in 15 s")
	}
	stop()
	return nil, nil, fmt.Errorf("start etcd: %w", err)
}

// Open returns a client of what Start returns. stop closes it and ends the server.
func (e *Endpoints) Open(ctx context.Context) (client *clientv3.Client, stop func(), err error) {
	endpoints, end, err := e.Start(ctx)
	if err != nil {
		return nil, nil, err
	}
	if client, err = Client(endpoints); err != nil {
		end()
		return nil, nil, err
	}
	return client, func() {
		_ = client.Close()
		end()
	}, nil
}

// Client returns a client that writes no log lines between those of the example.
func Client(endpoints []string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop(), DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second})
}

func freeURL() (url.URL, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return url.URL{}, err
	}
	defer l.Close()
	return url.URL{Scheme: "http", Host: l.Addr().String()}, nil
}

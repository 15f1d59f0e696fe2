package etcdtest

import (
	"context"
	"net"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// A Client is a real etcd client with its own network and its own faults. It is
// closed when its test ends.
type Client struct {
	*clientv3.Client

	// Link is the network between the client and the servers.
	Link *Link

	// Faults act on the client's single requests and answers.
	Faults *Faults

	once sync.Once
}

// As returns an edit of a client's configuration that sets its credentials.
func As(user, password string) func(*clientv3.Config) {
	return func(cfg *clientv3.Config) { cfg.Username, cfg.Password = user, password }
}

// At returns an edit of a client's configuration that sets its endpoints.
func At(endpoints ...string) func(*clientv3.Config) {
	return func(cfg *clientv3.Config) { cfg.Endpoints = endpoints }
}

// newClient makes a client that reaches an endpoint's address through dial.
func newClient(t testing.TB, endpoints []string, dial func(ctx context.Context, addr string) (net.Conn, error), edits []func(*clientv3.Config)) *Client {
	t.Helper()
	c := &Client{Link: newLink(), Faults: newFaults()}
	cfg := clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()}
	for _, edit := range edits {
		edit(&cfg)
	}
	cfg.DialOptions = append([]grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return c.Link.dial(ctx, addr, func(ctx context.Context) (net.Conn, error) { return dial(ctx, addr) })
		}),
		grpc.WithChainUnaryInterceptor(c.Faults.unary),
		grpc.WithChainStreamInterceptor(c.Faults.stream),
	}, cfg.DialOptions...)

	var err error
	c.Client, err = clientv3.New(cfg)
	must(t, "clientv3.New()", err)
	return c
}

// Close closes the client, lets go what its faults hold without sending it, and
// breaks its connections. Only the first call does anything.
func (c *Client) Close() error {
	var err error
	c.once.Do(func() {
		c.Faults.close()
		err = c.Client.Close()
		c.Link.close()
		c.Faults.late.Wait()
	})
	return err
}

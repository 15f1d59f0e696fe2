package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// memberEnv makes this program an etcd member; its value is a memberConfig.
const memberEnv = "TENURE_BENCHMARKS_MEMBER"

type memberConfig struct {
	Name, Dir, Client, Peer, Initial string
}

// member runs one member of the cluster until its standard input ends, as it
// does when the program that has started it dies.
func member(text string) error {
	var m memberConfig
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return err
	}
	client, err := url.Parse(m.Client)
	if err != nil {
		return err
	}
	peer, err := url.Parse(m.Peer)
	if err != nil {
		return err
	}
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir, cfg.InitialCluster = m.Name, m.Dir, m.Initial
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.UnsafeNoFsync = true
	cfg.QuotaBackendBytes = 4 << 30
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	return <-e.Err()
}

// cluster is the etcd under the benchmarks.
type cluster struct {
	endpoints []string
	dir       string
	members   []*exec.Cmd
	stdin     []io.Closer
	keys      atomic.Int64
}

func startCluster(ctx context.Context) (*cluster, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(memory(), "tenure-benchmarks-")
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir}
	var configs []memberConfig
	var initial []string
	for i := range 3 {
		ports, err := freePorts(2)
		if err != nil {
			c.stop()
			return nil, err
		}
		m := memberConfig{
			Name: fmt.Sprintf("m%d", i), Dir: filepath.Join(dir, fmt.Sprintf("m%d", i)),
			Client: "http://127.0.0.1:" + ports[0], Peer: "http://127.0.0.1:" + ports[1],
		}
		configs = append(configs, m)
		initial = append(initial, m.Name+"="+m.Peer)
		c.endpoints = append(c.endpoints, m.Client)
	}
	for _, m := range configs {
		m.Initial = strings.Join(initial, ",")
		text, err := json.Marshal(m)
		if err != nil {
			c.stop()
			return nil, err
		}
		cmd := exec.Command(self) //nolint:gosec,noctx // this very program; stop ends it
		cmd.Env = append(os.Environ(), memberEnv+"="+string(text))
		cmd.Stderr = os.Stderr
		stdin, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			c.stop()
			return nil, err
		}
		c.members, c.stdin = append(c.members, cmd), append(c.stdin, stdin)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, endpoint := range c.endpoints {
		if err := healthy(ctx, endpoint); err != nil {
			c.stop()
			return nil, err
		}
	}
	return c, nil
}

func healthy(ctx context.Context, endpoint string) error {
	for {
		body, err := get(ctx, endpoint+"/health")
		if err == nil && strings.Contains(body, `"health":"true"`) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)

		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (c *cluster) stop() {
	for i, cmd := range c.members {
		_ = c.stdin[i].Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	_ = os.RemoveAll(c.dir)
}

func freePorts(n int) (ports []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed at once
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }() // all of them at the end, so that they differ
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	return ports, nil
}

// key returns the key of an election that nobody has used.
func (c *cluster) key(section string) string {
	return fmt.Sprintf("/benchmarks/%d/%s/%d", os.Getpid(), section, c.keys.Add(1))
}

// client returns a client of all members, or of the given endpoints. Its
// back-off is short, as the documents recommend.
func (c *cluster) client(endpoints []string, opts ...grpc.DialOption) (*clientv3.Client, error) {
	if endpoints == nil {
		endpoints = c.endpoints
	}
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, DialTimeout: 5 * time.Second, Logger: zap.NewNop(), DialOptions: opts,
	})
}

// metric sums the counters of a name, and with all of the labels, over all
// members.
func (c *cluster) metric(ctx context.Context, name string, labels ...string) (float64, error) {
	var sum float64
	for _, endpoint := range c.endpoints {
		v, err := metricOf(ctx, endpoint, name, labels...)
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum, nil
}

func metricOf(ctx context.Context, endpoint, name string, labels ...string) (sum float64, err error) {
	body, err := get(ctx, endpoint+"/metrics")
	if err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(strings.NewReader(body))
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), name)
		if !ok || rest[0] != '{' && rest[0] != ' ' || !containsAll(rest, labels) {
			continue
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum, lines.Err()
}

func containsAll(s string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(s, part) {
			return false
		}
	}
	return true
}

func get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

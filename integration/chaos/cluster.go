package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// memberVar makes this program an etcd member; its value is a memberConfig.
const memberVar = "TENURE_CHAOS_MEMBER"

type memberConfig struct {
	Name, Dir, Client, Peer, Initial string
}

// runMember runs one member until its standard input ends, as it does when the
// harness dies.
func runMember(text string) error {
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
	// The kernel outlives whatever is done to the process.
	cfg.UnsafeNoFsync = true
	// So that a member which was away is sent a snapshot now and then.
	cfg.SnapshotCount, cfg.SnapshotCatchUpEntries = 1000, 500
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

// process is a child of the harness.
type process struct {
	*exec.Cmd
	stdin io.WriteCloser
	ended chan struct{} // closed when it has been waited for
}

// start starts this program again, in the part that a variable of the
// environment gives it.
func start(variable string, config any, stdout io.Writer) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self) //nolint:gosec,noctx // this very program; kill ends it
	cmd.Env = append(os.Environ(), variable+"="+string(text))
	cmd.Stdout, cmd.Stderr = stdout, os.Stderr
	// The second of two ways in which a child ends with the harness: one that is
	// stopped does not read its input. A group of its own: an interrupt at the
	// terminal is for the harness.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{Cmd: cmd, stdin: stdin, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		_ = cmd.Wait() // killed, as a rule; ProcessState tells
	}()
	return p, nil
}

// kill ends the process at once, whether it is stopped or not, and waits for it.
func (p *process) kill() {
	_ = p.Process.Kill() // it may have ended
	<-p.ended
}

// member is one of the cluster.
type member struct {
	config   memberConfig
	endpoint string

	mu sync.Mutex
	*process
}

func (m *member) start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, err := start(memberVar, m.config, nil)
	if err != nil {
		return err
	}
	m.process = p
	return nil
}

func (m *member) signal(s os.Signal) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.Process.Signal(s)
}

func (m *member) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.process.kill()
}

// cluster is an etcd of three processes on loopback, with etcd's own timing.
type cluster struct {
	members []*member
	client  *clientv3.Client // past the proxies
}

func startCluster(ctx context.Context, dir string) (*cluster, error) {
	ports, err := freePorts(6)
	if err != nil {
		return nil, err
	}
	c := new(cluster)
	var initial, endpoints []string
	for i := range 3 {
		m := &member{config: memberConfig{
			Name: fmt.Sprintf("m%d", i), Dir: filepath.Join(dir, fmt.Sprintf("m%d", i)),
			Client: fmt.Sprintf("http://127.0.0.1:%d", ports[2*i]), Peer: fmt.Sprintf("http://127.0.0.1:%d", ports[2*i+1]),
		}}
		m.endpoint = m.config.Client
		c.members = append(c.members, m)
		initial = append(initial, m.config.Name+"="+m.config.Peer)
		endpoints = append(endpoints, m.endpoint)
	}
	for _, m := range c.members {
		m.config.Initial = strings.Join(initial, ",")
		if err := m.start(); err != nil {
			c.stop()
			return nil, err
		}
	}
	if err := c.healthy(ctx, 30*time.Second); err != nil {
		c.stop()
		return nil, err
	}
	if c.client, err = newClient(endpoints); err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

// newClient returns a client with the settings that the documents recommend.
func newClient(endpoints []string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, DialTimeout: 3 * time.Second, Logger: zap.NewNop(),
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 3 * time.Second,
		})},
	})
}

// healthy waits until every member says that it is.
func (c *cluster) healthy(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for _, m := range c.members {
		for !healthy(ctx, m.endpoint) {
			select {
			case <-ctx.Done():
				return fmt.Errorf("the member %s is not healthy after %v", m.config.Name, limit)

			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	return nil
}

func healthy(ctx context.Context, endpoint string) bool {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint+"/health", http.NoBody)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return err == nil && strings.Contains(string(body), `"health":"true"`)
}

// leader returns the index of Raft's leader, as far as a member tells, or -1.
func (c *cluster) leader(ctx context.Context) int {
	for _, m := range c.members {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		status, err := c.client.Status(ctx, m.endpoint)
		cancel()
		if err != nil || status.Leader == 0 {
			continue
		}
		for i, id := range c.ids(ctx) {
			if id == status.Leader {
				return i
			}
		}
	}
	return -1
}

// ids returns the id of each member, or 0 for one that does not answer.
func (c *cluster) ids(ctx context.Context) []uint64 {
	ids := make([]uint64, len(c.members))
	var all sync.WaitGroup
	for i, m := range c.members {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			if status, err := c.client.Status(ctx, m.endpoint); err == nil {
				ids[i] = status.Header.MemberId
			}
		})
	}
	all.Wait()
	return ids
}

func (c *cluster) stop() {
	if c.client != nil {
		_ = c.client.Close()
	}
	for _, m := range c.members {
		if m.process != nil {
			m.kill()
		}
	}
}

// freePorts returns n ports on which nobody listens. They lie below those that
// the kernel gives to connections, so that nobody takes one while its member is
// down.
func freePorts(n int) (ports []int, err error) {
	for tries := 0; len(ports) < n; tries++ {
		if tries > 1000 {
			return nil, errors.New("no free ports between 20000 and 32000")
		}
		port := 20000 + rand.IntN(12000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)) //nolint:noctx // closed at once
		if err != nil {
			continue
		}
		defer l.Close() // all of them at the end, so that they differ
		ports = append(ports, port)
	}
	return ports, nil
}

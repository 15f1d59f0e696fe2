package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

// revisionBump is what the documents tell operators to give to a restore.
const revisionBump = 1_000_000_000

// restore replaces etcd by what a snapshot of it holds, with bumped revisions.
// No request of a candidate arrives between the snapshot and the end, so nothing
// that was acknowledged may be missing, and nobody is excused for anything.
func (n *nemesis) restore(ctx context.Context, r *rand.Rand) (target string, err error) {
	target = "m0 m1 m2"
	n.weather(weather{refuse: true})
	defer n.weather(weather{})
	sleep(ctx, between(r, 200*time.Millisecond, time.Second))
	file := filepath.Join(filepath.Dir(n.cluster.members[0].config.Dir), "snapshot.db")
	if err := n.save(ctx, n.anyMember(r), file); err != nil {
		return target, err // etcd is as it was
	}
	defer os.Remove(file)
	n.pauseWatch(true)
	defer n.pauseWatch(false)
	if err := n.replace(ctx, file); err != nil {
		if ctx.Err() == nil {
			n.fail(err)
		}
		return target, err
	}
	return target, nil
}

// weather sets that of every candidate.
func (h *harness) weather(w weather) {
	for _, s := range h.seats {
		for _, p := range s.proxies {
			p.set(w)
		}
	}
}

// save writes a snapshot of m that has all that was acknowledged, once the
// watch of the registers has come there, too.
func (n *nemesis) save(ctx context.Context, m *member, file string) error {
	ctx, cancel := context.WithTimeout(ctx, recovery)
	defer cancel()
	config := clientv3.Config{Endpoints: []string{m.endpoint}, Logger: zap.NewNop()}
	client, err := clientv3.New(config)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := n.caughtUp(ctx, client); err != nil {
		return err
	}
	_, err = snapshot.NewV3(zap.NewNop()).Save(ctx, config, file)
	return err
}

// replace kills every member, gives each the data of the snapshot, and starts
// them again.
func (n *nemesis) replace(ctx context.Context, file string) error {
	for _, m := range n.cluster.members {
		m.kill()
		if err := os.RemoveAll(m.config.Dir); err != nil {
			return err
		}
		err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
			SnapshotPath: file, Name: m.config.Name, OutputDataDir: m.config.Dir, PeerURLs: []string{m.config.Peer},
			InitialCluster: m.config.Initial, InitialClusterToken: "etcd-cluster", RevisionBump: revisionBump, MarkCompacted: true,
		})
		if err != nil {
			return fmt.Errorf("restore %s: %w", m.config.Name, err)
		}
	}
	for _, m := range n.cluster.members {
		if err := m.start(); err != nil {
			return err
		}
	}
	if err := n.cluster.healthy(ctx, 2*recovery); err != nil {
		return fmt.Errorf("after a restore: %w", err)
	}
	return n.jump(ctx)
}

// pauseWatch has the watch of the registers wait, since what it was to see next
// is gone.
func (h *harness) pauseWatch(yes bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.paused = yes
}

// jump lets the watch of the registers go on after a restore. They must be what
// they were.
func (h *harness) jump(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, recovery)
	defer cancel()
	resp, err := h.cluster.client.Get(ctx, registers, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(resp.Kvs) != len(h.last) || h.behind(resp) {
		return errors.New("the restored registers are not what they were")
	}
	h.rev = resp.Header.Revision
	return nil
}

// behind reports whether the watch has not seen what resp holds.
func (h *harness) behind(resp *clientv3.GetResponse) bool {
	for _, kv := range resp.Kvs {
		if h.last[string(kv.Key)] != string(kv.Value) {
			return true
		}
	}
	return false
}

// caughtUp waits until the watch of the registers has seen all that client has.
func (h *harness) caughtUp(ctx context.Context, client *clientv3.Client) error {
	resp, err := client.Get(ctx, registers, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	behind := func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.behind(resp)
	}
	for end := time.Now().Add(recovery); behind(); sleep(ctx, 20*time.Millisecond) {
		if time.Now().After(end) || ctx.Err() != nil {
			return errors.New("the watch does not come to the end of the registers")
		}
	}
	return nil
}

package etcdtest

import (
	"context"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The directions of a link, as indices.
const (
	up   = iota // from the client to the server
	down        // from the server to the client
)

// A Link is the network between one client and its servers. It is in order at
// first, and each method changes it for the connections that exist as well as
// for those to come, unless it says otherwise. All methods may be called
// concurrently.
//
// A cut leaves connections half-open, as a pulled cable does: nothing arrives,
// nothing fails, and neither side hears of the other's closing. Dials wait,
// those of gRPC for 20 s at first. The two ends of a cut are [Link.Heal], after
// which connections that lost something are reset, and [Link.Resume], after
// which everything arrives late.
//
// A client hears of a reset a moment later. A call made at once may still go
// out on the broken connection, and fail with the code Unavailable.
type Link struct {
	*network
	ends map[string]*Link // to single endpoints; nil in those

	// Guarded by mu, like ends.
	cut    [2]bool
	delay  [2]time.Duration
	refuse bool
	dials  int
}

// A network is what a link shares with those to its single endpoints.
type network struct {
	pumps sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every change
	conns   map[*conn]struct{}
	closed  bool
}

func newLink() *Link {
	n := &network{changed: make(chan struct{}), conns: make(map[*conn]struct{})}
	return &Link{network: n, ends: make(map[string]*Link)}
}

// To returns the part of the link that leads to one endpoint. What passes
// between the client and that endpoint passes through the part and the whole:
// it is stopped if either is cut, and delayed by the sum of both.
func (l *Link) To(endpoint string) *Link {
	l.mu.Lock()
	defer l.mu.Unlock()
	endpoint = strings.TrimPrefix(endpoint, "http://")
	if l.ends[endpoint] == nil {
		l.ends[endpoint] = &Link{network: l.network}
	}
	return l.ends[endpoint]
}

// Cut stops both directions.
func (l *Link) Cut() { l.change(func() { l.cut = [2]bool{true, true} }) }

// CutUp stops what the client sends. Answers to what the server already has
// still arrive.
func (l *Link) CutUp() { l.change(func() { l.cut[up] = true }) }

// CutDown stops what the server sends. Requests still arrive and take effect.
func (l *Link) CutDown() { l.change(func() { l.cut[down] = true }) }

// Refuse makes dials fail at once, as those to a closed port do. Existing
// connections go on.
func (l *Link) Refuse() { l.change(func() { l.refuse = true }) }

// Delay lets everything sent from now on arrive later, by one duration for
// each direction. A dial takes both. Zero ends the delay.
func (l *Link) Delay(toServer, toClient time.Duration) {
	l.change(func() { l.delay = [2]time.Duration{toServer, toClient} })
}

// DropConnections resets all connections at both ends. New ones can be made.
func (l *Link) DropConnections() {
	l.change(func() {
		for c := range l.conns {
			if c.uses(l) {
				c.killLocked()
			}
		}
	})
}

// Heal ends a cut and a refusal. What was sent meanwhile is lost for ever, so
// the connections it was sent on are reset and the client dials again. This is
// what happens after a break that outlasts the patience of either side or the
// memory of a firewall. Connections that were idle live on.
func (l *Link) Heal() {
	l.change(func() {
		for c := range l.conns {
			for d := range c.way {
				if c.uses(l) && l.cut[d] && len(c.way[d].queue) > 0 {
					c.killLocked()
				}
			}
		}
		l.cut, l.refuse = [2]bool{}, false
	})
}

// Resume ends a cut and a refusal. What was sent meanwhile arrives now, in
// order and on the same connections. This is what TCP makes of a short break,
// where it sends again what was not acknowledged.
func (l *Link) Resume() { l.change(func() { l.cut, l.refuse = [2]bool{}, false }) }

// Dials returns how often the client has dialled, successfully or not.
func (l *Link) Dials() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dials
}

func (l *Link) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	l.wakeLocked()
}

// close breaks all connections, fails further dials and waits for the pumps.
func (l *Link) close() {
	l.change(func() {
		l.closed = true
		for c := range l.conns {
			c.killLocked()
		}
	})
	l.pumps.Wait()
}

// dial connects through the link, with next to reach the server.
func (l *Link) dial(ctx context.Context, endpoint string, next func(context.Context) (net.Conn, error)) (net.Conn, error) {
	c := &conn{network: l.network, path: [2]*Link{l, l.To(endpoint)}}
	if err := c.handshake(ctx); err != nil {
		return nil, &net.OpError{Op: "dial", Net: "etcdtest", Err: err}
	}
	server, err := next(ctx)
	if err != nil {
		return nil, err
	}
	c.Conn = server

	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		server.Close()
		return nil, net.ErrClosed
	}
	l.conns[c] = struct{}{}
	l.pumps.Go(c.pumpUp)
	l.pumps.Go(c.pumpDown)
	return c, nil
}

// handshake waits as a dial does: while a direction is cut, and for a round trip.
func (c *conn) handshake(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.path {
		l.dials++
	}
	var at time.Time // of the server's answer, zero while it is out of reach
	for {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case c.closed:
			return net.ErrClosed
		case c.path[0].refuse || c.path[1].refuse:
			return syscall.ECONNREFUSED
		case c.cutLocked(up) || c.cutLocked(down):
			at = time.Time{}
		case at.IsZero():
			at = time.Now().Add(c.delayLocked(up) + c.delayLocked(down))
			continue
		case !time.Now().Before(at):
			return nil
		}
		c.waitLocked(at, ctx.Done())
	}
}

// waitLocked unlocks mu until something changes, the instant at is reached,
// unless it is zero, or done is closed.
func (n *network) waitLocked(at time.Time, done <-chan struct{}) {
	changed := n.changed
	n.mu.Unlock()
	defer n.mu.Lock()
	var timeout <-chan time.Time
	if !at.IsZero() {
		timer := time.NewTimer(time.Until(at))
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-changed:

	case <-timeout:

	case <-done:
	}
}

func (n *network) wakeLocked() {
	close(n.changed)
	n.changed = make(chan struct{})
}

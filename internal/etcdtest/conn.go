package etcdtest

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// A conn is the client's end of a connection through a link. The embedded Conn
// leads on to the server; two pumps carry the bytes between it and the queues.
type conn struct {
	net.Conn
	*network
	path [2]*Link // the whole, and the part to the endpoint

	// Guarded by mu.
	way      [2]way
	left     bool // the client has closed its end
	dead     bool // both ends are reset
	deadline time.Time
}

// A way is one direction of a connection.
type way struct {
	queue []segment
	ended bool
}

// A segment is under way until due. One without data ends the direction.
type segment struct {
	due  time.Time
	data []byte
}

func (c *conn) uses(l *Link) bool { return c.path[0] == l || c.path[1] == l }

func (c *conn) cutLocked(d int) bool { return c.path[0].cut[d] || c.path[1].cut[d] }

func (c *conn) delayLocked(d int) time.Duration { return c.path[0].delay[d] + c.path[1].delay[d] }

// killLocked resets the connection at both ends, even through a cut.
func (c *conn) killLocked() {
	c.dead = true
	c.Conn.Close()
	delete(c.conns, c)
	c.wakeLocked()
}

// put sends p, or the end of the direction if p is empty.
func (c *conn) put(d int, p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &c.way[d]
	switch {
	case c.dead:
		return syscall.ECONNRESET
	case w.ended:
		return net.ErrClosed
	}
	w.ended = len(p) == 0
	w.queue = append(w.queue, segment{time.Now().Add(c.delayLocked(d)), append([]byte(nil), p...)})
	c.wakeLocked()
	return nil
}

// take waits for what was put and is due, and copies as much of it as fits.
func (c *conn) take(d int, p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &c.way[d]
	for {
		now := time.Now()
		var at time.Time
		if d == down {
			at = c.deadline
		}
		switch {
		case d == down && c.left:
			return 0, net.ErrClosed
		case c.dead:
			return 0, syscall.ECONNRESET
		case !at.IsZero() && !now.Before(at):
			return 0, os.ErrDeadlineExceeded
		}
		if len(w.queue) > 0 && !c.cutLocked(d) {
			first := &w.queue[0]
			switch {
			case first.due.After(now):
				if at.IsZero() || first.due.Before(at) {
					at = first.due
				}
			case len(first.data) == 0:
				return 0, io.EOF
			default:
				n := copy(p, first.data)
				if first.data = first.data[n:]; len(first.data) == 0 {
					w.queue = w.queue[1:]
				}
				return n, nil
			}
		}
		c.waitLocked(at, nil)
	}
}

func (c *conn) pumpUp() {
	p := make([]byte, 32<<10)
	for {
		n, err := c.take(up, p)
		if err != nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.killLocked()
			return
		}
		_, _ = c.Conn.Write(p[:n]) // pumpDown sees why, if it fails.
	}
}

func (c *conn) pumpDown() {
	p := make([]byte, 32<<10)
	for {
		n, err := c.Conn.Read(p)
		if n > 0 {
			_ = c.put(down, p[:n]) // It fails when nobody reads any more.
		}
		if err != nil {
			_ = c.put(down, nil)
			return
		}
	}
}

// Read waits for bytes from the server.
func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	return c.take(down, p)
}

// Write never blocks.
func (c *conn) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := c.put(up, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close ends the client's side at once. The server hears of it through the link.
func (c *conn) Close() error {
	c.mu.Lock()
	c.left = true
	c.mu.Unlock()
	if err := c.put(up, nil); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		return err
	}
	return nil
}

// SetReadDeadline bounds Read. gRPC relies on it to close a silent connection.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	c.wakeLocked()
	return nil
}

// SetWriteDeadline does nothing, since Write never blocks.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline is SetReadDeadline.
func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

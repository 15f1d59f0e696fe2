package main

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// proxy stands between a client and a member. It can delay what the member
// answers, and cut the client off: bytes vanish, connections stay open, as behind
// a firewall that has forgotten them.
type proxy struct {
	listener net.Listener
	target   string
	delay    atomic.Int64 // of answers
	cut      atomic.Bool

	mu    sync.Mutex
	conns []net.Conn
	done  sync.WaitGroup
}

func newProxy(target string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // close ends it
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: l, target: target}
	p.done.Go(p.accept)
	return p, nil
}

func (p *proxy) endpoint() string { return "http://" + p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target) //nolint:noctx // loopback
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		p.done.Go(func() { p.pass(server, client, false) })
		p.done.Go(func() { p.pass(client, server, true) })
	}
}

// pass copies from one side to the other; a chunk keeps its distance to the one
// before, however long the delay.
func (p *proxy) pass(to, from net.Conn, answers bool) {
	type chunk struct {
		data []byte
		due  time.Time
	}
	chunks := make(chan chunk, 10000)
	p.done.Go(func() {
		for c := range chunks {
			time.Sleep(time.Until(c.due))
			if p.cut.Load() {
				continue
			}
			if _, err := to.Write(c.data); err != nil {
				_ = from.Close()
			}
		}
	})
	defer close(chunks)
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && !p.cut.Load() {
			due := time.Now()
			if answers {
				due = due.Add(time.Duration(p.delay.Load()))
			}
			chunks <- chunk{append([]byte(nil), buf[:n]...), due}
		}
		if err != nil {
			if errors.Is(err, io.EOF) && !p.cut.Load() {
				_ = to.Close()
			}
			return
		}
	}
}

func (p *proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	for _, conn := range p.conns {
		_ = conn.Close()
	}
	p.mu.Unlock()
	p.done.Wait()
}

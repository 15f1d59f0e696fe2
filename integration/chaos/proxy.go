package main

import (
	"net"
	"sync"
	"time"
)

// flow is what a proxy does with the bytes of one direction.
type flow int

const (
	pass flow = iota
	late      // keep them, and deliver them when it is over, as TCP does after a partition
	lose      // drop them; the connection stays open and can never be used again
)

// weather is the state of a proxy.
type weather struct {
	requests, answers flow
	delay             time.Duration // of either direction
	refuse            bool          // no connections
}

// proxy stands between one candidate and one member.
type proxy struct {
	listener net.Listener
	target   string

	mu      sync.Mutex
	now     weather
	changed chan struct{} // closed and replaced when now changes
	links   map[*link]struct{}
	closed  bool

	pumps sync.WaitGroup
}

// link is one connection through a proxy.
type link struct {
	client, server net.Conn
	lost           bool // bytes; guarded by proxy.mu
}

func (l *link) close() {
	_ = l.client.Close()
	_ = l.server.Close()
}

func newProxy(target string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // close ends it
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: l, target: target, changed: make(chan struct{}), links: make(map[*link]struct{})}
	p.pumps.Go(p.accept)
	return p, nil
}

func (p *proxy) endpoint() string { return "http://" + p.listener.Addr().String() }

// set changes the weather. Connections that have lost bytes end as soon as bytes
// pass again: what follows would make no sense to the other side.
func (p *proxy) set(w weather) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = w
	close(p.changed)
	p.changed = make(chan struct{})
	for l := range p.links {
		if w.refuse || l.lost && w.requests != lose && w.answers != lose {
			l.close()
		}
	}
}

func (p *proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	close(p.changed)
	p.changed = make(chan struct{})
	for l := range p.links {
		l.close()
	}
	p.mu.Unlock()
	p.pumps.Wait()
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		if !p.open(client) {
			_ = client.Close()
		}
	}
}

// open connects client to the member. A connection to a member that is stopped
// opens: the kernel accepts it.
func (p *proxy) open(client net.Conn) bool {
	server, err := net.DialTimeout("tcp", p.target, time.Second)
	if err != nil {
		return false
	}
	l := &link{client: client, server: server}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now.refuse || p.closed {
		_ = server.Close()
		return false
	}
	p.links[l] = struct{}{}
	requests := func(w weather) flow { return w.requests }
	answers := func(w weather) flow { return w.answers }
	var both sync.WaitGroup
	both.Add(2)
	p.pumps.Go(func() { defer both.Done(); p.pump(l, server, client, requests) })
	p.pumps.Go(func() { defer both.Done(); p.pump(l, client, server, answers) })
	p.pumps.Go(func() {
		both.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.links, l)
	})
	return true
}

// pump copies from one side to the other. A chunk keeps its distance to the one
// before, however long the delay.
func (p *proxy) pump(l *link, to, from net.Conn, of func(weather) flow) {
	type chunk struct {
		data []byte
		due  time.Time
	}
	chunks := make(chan chunk, 4096)
	p.pumps.Go(func() {
		defer to.Close()
		for c := range chunks {
			time.Sleep(time.Until(c.due))
			if !p.deliver(l, of) {
				continue
			}
			if _, err := to.Write(c.data); err != nil {
				_ = from.Close()
			}
		}
	})
	defer close(chunks)
	for {
		buf := make([]byte, 32<<10)
		n, err := from.Read(buf)
		if n > 0 {
			p.mu.Lock()
			delay := p.now.delay
			p.mu.Unlock()
			chunks <- chunk{buf[:n], time.Now().Add(delay)}
		}
		if err != nil {
			return
		}
	}
}

// deliver waits while bytes are held, and reports whether they are to be passed
// on.
func (p *proxy) deliver(l *link, of func(weather) flow) bool {
	p.mu.Lock()
	for of(p.now) == late && !p.closed {
		changed := p.changed
		p.mu.Unlock()
		<-changed
		p.mu.Lock()
	}
	defer p.mu.Unlock()
	if of(p.now) == lose {
		l.lost = true
	}
	return !l.lost && !p.closed
}

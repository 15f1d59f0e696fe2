package tenure

import "sync"

// queue runs functions in order, one at a time, on a goroutine that exists only
// while there is something to run. The zero value is empty.
type queue struct {
	mu      sync.Mutex
	pending []func()
	running bool
	wg      sync.WaitGroup
}

func (q *queue) add(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pending = append(q.pending, f)
	if !q.running {
		q.running = true
		q.wg.Go(q.run)
	}
}

func (q *queue) run() {
	for {
		q.mu.Lock()
		if len(q.pending) == 0 {
			q.running = false
			q.mu.Unlock()
			return
		}
		f := q.pending[0]
		q.pending = q.pending[1:]
		q.mu.Unlock()
		f()
	}
}

// wait blocks until everything added so far has run.
func (q *queue) wait() { <-q.drained() }

// drained returns a channel that is closed when everything added so far has run.
func (q *queue) drained() <-chan struct{} {
	done := make(chan struct{})
	q.add(func() { close(done) })
	return done
}

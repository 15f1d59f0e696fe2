package main

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fencesql"
)

// config is what a run is told.
type config struct {
	length     time.Duration
	candidates int
	ttl        time.Duration
	seed       uint64
	out        string
	library    string
	compare    bool
	postgres   string
	only       []string
}

// harness starts everything, keeps the histories that no candidate can, and
// ends everything.
type harness struct {
	config
	histories string // folder
	driver    string
	dsn       string

	cluster *cluster
	db      *sql.DB
	seats   []*seat
	journal *journal

	started int64
	lookers sync.WaitGroup

	mu     sync.Mutex
	rev    int64             // up to which the watch of the registers has come
	paused bool              // the watch waits
	last   map[string]string // by register, as the watch saw it
	wrong  []violation       // that are seen at once
}

// seat is a place for one candidate after the other, behind proxies of its own.
type seat struct {
	name    string
	proxies []*proxy

	mu     sync.Mutex
	proc   *process
	number int   // of the process, from 1
	epoch  int64 // the last that it was seen to lead with,
	at     int64 // and until when
	leaves bool  // it was asked to, or killed
}

// led returns the epoch that the seat was last seen to lead with, and until when.
func (s *seat) led() (epoch, at int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch, s.at
}

func (h *harness) blame(rule, format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wrong = append(h.wrong, violation{Rule: rule, Text: fmt.Sprintf(format, args...), At: now()})
}

// open starts etcd, the table and the candidates. Whatever it returns, close must
// be called.
func (h *harness) open(ctx context.Context, dir string) (err error) {
	h.last = make(map[string]string)
	h.driver, h.dsn = "pgx", h.postgres
	if h.postgres == "" {
		h.driver = "sqlite"
		h.dsn = "file:" + filepath.Join(dir, "table.db") + "?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"
	}
	if h.journal, err = newJournal(h.histories, "harness"); err != nil {
		return err
	}
	if err := h.openTable(ctx); err != nil {
		return fmt.Errorf("prepare the table: %w", err)
	}
	if h.cluster, err = startCluster(ctx, dir); err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	for i := range h.candidates {
		s := &seat{name: fmt.Sprintf("c%d", i)}
		h.seats = append(h.seats, s)
		for _, m := range h.cluster.members {
			p, err := newProxy(m.endpoint[len("http://"):])
			if err != nil {
				return err
			}
			s.proxies = append(s.proxies, p)
		}
		if err := h.seat(s); err != nil {
			return fmt.Errorf("start a candidate: %w", err)
		}
	}
	h.started = now()
	return nil
}

func (h *harness) openTable(ctx context.Context) (err error) {
	if h.db, err = sql.Open(h.driver, h.dsn); err != nil {
		return err
	}
	serial := "INTEGER PRIMARY KEY AUTOINCREMENT"
	if h.driver == "pgx" {
		serial = "BIGSERIAL PRIMARY KEY"
	}
	for _, statement := range []string{
		"DROP TABLE IF EXISTS entries",
		"DROP TABLE IF EXISTS " + fencesql.DefaultTable,
		"CREATE TABLE entries (id " + serial + ", value VARCHAR(100) NOT NULL, epoch BIGINT NOT NULL)",
	} {
		if _, err := h.db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	table, err := fencesql.New(dialectOf(h.driver))
	if err != nil {
		return err
	}
	return table.Create(ctx, h.db)
}

// seat starts the next candidate of s.
func (h *harness) seat(s *seat) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.number++
	name := fmt.Sprintf("%s-%d", s.name, s.number)
	c := candidateConfig{
		Name: name, TTL: h.ttl, Dir: h.histories, Driver: h.driver, DSN: h.dsn,
		Library: h.library, Compare: h.compare, Seed: h.seed + uint64(s.number)<<32 + uint64(s.name[1])<<56,
	}
	for _, p := range s.proxies {
		c.Endpoints = append(c.Endpoints, p.endpoint())
	}
	output, input, err := os.Pipe()
	if err != nil {
		return err
	}
	proc, err := start(candidateVar, c, input)
	_ = input.Close() // the candidate has its own
	if err != nil {
		_ = output.Close()
		return err
	}
	s.proc, s.leaves = proc, false
	h.lookers.Go(func() { s.listen(output) })
	h.lookers.Go(func() {
		<-proc.ended
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.leaves {
			h.blame("a candidate has ended by itself", "%s: %v", name, proc.ProcessState)
		}
	})
	return nil
}

// listen follows what the candidate says of its validity.
func (s *seat) listen(output io.ReadCloser) {
	defer output.Close()
	for lines := bufio.NewScanner(output); lines.Scan(); {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue // half a line, of one that was killed
		}
		s.mu.Lock()
		s.epoch, s.at = e.Epoch, max(e.From, e.To)
		s.mu.Unlock()
	}
}

// signal sends s to the candidate, if there is one.
func (s *seat) signal(sig os.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.proc.Process.Signal(sig)
}

// kill ends the candidate at once.
func (s *seat) kill() {
	s.mu.Lock()
	s.leaves = true
	proc := s.proc
	s.mu.Unlock()
	if proc != nil {
		proc.kill()
	}
}

// leave asks the candidate to let go and to end, and waits until it has.
func (s *seat) leave(limit time.Duration) error {
	s.mu.Lock()
	s.leaves = true
	proc := s.proc
	s.mu.Unlock()
	_ = proc.stdin.Close()
	select {
	case <-proc.ended:
		if !proc.ProcessState.Success() {
			return errors.New(proc.ProcessState.String())
		}
		return nil

	case <-time.After(limit):
		return fmt.Errorf("it has not ended after %v", limit)
	}
}

func (h *harness) close() {
	for _, s := range h.seats {
		s.kill()
	}
	h.lookers.Wait()
	for _, s := range h.seats {
		for _, p := range s.proxies {
			p.close()
		}
	}
	if h.cluster != nil {
		h.cluster.stop()
	}
	if h.db != nil {
		_ = h.db.Close()
	}
	if h.journal != nil {
		_ = h.journal.close()
	}
}

// watch writes down what is put to the registers, from the first revision on
// and without a gap, until ctx ends.
func (h *harness) watch(ctx context.Context) {
	for ctx.Err() == nil {
		wctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
		h.mu.Lock()
		from, paused := h.rev+1, h.paused
		h.mu.Unlock()
		if paused {
			cancel()
			sleep(ctx, 50*time.Millisecond)
			continue
		}
		for resp := range h.cluster.client.Watch(wctx, registers, clientv3.WithPrefix(), clientv3.WithRev(from), clientv3.WithProgressNotify()) {
			if resp.CompactRevision != 0 && !h.jumps(from) {
				h.blame("the harness is at fault", "the watch of the registers needed revision %d, and %d was compacted", from, resp.CompactRevision)
				cancel()
				return
			}
			if resp.Err() != nil {
				break
			}
			seen := now()
			h.mu.Lock()
			for _, e := range resp.Events {
				key, value := string(e.Kv.Key), string(e.Kv.Value)
				h.journal.add(event{Kind: stored, From: seen, To: seen, Key: key, Value: value, Revision: e.Kv.ModRevision})
				h.last[key] = value
				h.rev = max(h.rev, e.Kv.ModRevision)
			}
			h.mu.Unlock()
		}
		cancel()
		sleep(ctx, 50*time.Millisecond)
	}
}

// jumps reports whether a restore has made the revision from obsolete.
func (h *harness) jumps(from int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.paused || h.rev >= from+revisionBump/2
}

// observe writes down what an observer is told.
func (h *harness) observe(ctx context.Context) {
	for status, err := range tenure.Observe(ctx, h.cluster.client, election) {
		if err != nil {
			h.blame("an observer has given up", "%v", err)
			return
		}
		t := now()
		e := event{Kind: observed, Process: "observer", From: t, To: t, Note: status.State.String()}
		if status.State == tenure.Led {
			e.Epoch = int64(status.Leader.Fence.Epoch)
		}
		h.journal.add(e)
	}
}

// leader returns the seat that was seen to lead last, and the epoch, or nil if
// nobody was lately.
func (h *harness) leader() (*seat, int64) {
	var who *seat
	var epoch, at int64
	for _, s := range h.seats {
		if e, t := s.led(); t > at {
			who, epoch, at = s, e, t
		}
	}
	if now()-at > int64(h.ttl) {
		return nil, 0
	}
	return who, epoch
}

// awaitLeader waits until a candidate among seats is seen to lead after the
// instant since.
func awaitLeader(ctx context.Context, seats []*seat, since int64, limit time.Duration) *seat {
	for end := time.Now().Add(limit); time.Now().Before(end) && ctx.Err() == nil; sleep(ctx, 10*time.Millisecond) {
		for _, s := range seats {
			if _, at := s.led(); at > since {
				return s
			}
		}
	}
	return nil
}

// recovery is within what time somebody must lead once nothing is in the way:
// two leases, an etcd that has to find a leader and its members, and a machine
// that has other things to do.
const recovery = 30 * time.Second

// farewell has the leader let go and end, whoever it is, until nobody is left.
// So it shows that every process still campaigns, whatever it has been through,
// and that nothing is left when they have gone.
func (h *harness) farewell(ctx context.Context) {
	rest := append([]*seat(nil), h.seats...)
	for len(rest) > 0 && ctx.Err() == nil {
		since := now()
		s := awaitLeader(ctx, rest, since, recovery)
		if s == nil {
			if ctx.Err() == nil {
				for _, s := range rest {
					h.blame("a candidate does not campaign any more", "%s-%d, in the %v in which nobody else did", s.name, s.number, recovery)
				}
			}
			return
		}
		if err := s.leave(recovery); err != nil {
			h.blame("a candidate does not leave in order", "%s-%d: %v", s.name, s.number, err)
		}
		for i := range rest {
			if rest[i] == s {
				rest = append(rest[:i], rest[i+1:]...)
				break
			}
		}
	}
	h.settled(ctx)
}

// settled checks that no key is left, and no lease for longer than its TTL: those
// of candidates that were killed run out.
func (h *harness) settled(ctx context.Context) {
	end := time.Now().Add(h.ttl + recovery)
	for {
		keys, err := h.cluster.client.Get(ctx, election, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		var leases *clientv3.LeaseLeasesResponse
		if err == nil {
			leases, err = h.cluster.client.Leases(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && len(keys.Kvs) == 0 && len(leases.Leases) == 0:
			return
		case time.Now().After(end) && err == nil:
			h.blame("something is left behind", "%d keys, %d leases", len(keys.Kvs), len(leases.Leases))
			return
		case time.Now().After(end):
			h.blame("the harness is at fault", "what is left cannot be read: %v", err)
			return
		}
		sleep(ctx, 50*time.Millisecond)
	}
}

// collect waits until the watch has come to the end of the registers, and writes
// down the table.
func (h *harness) collect(ctx context.Context) error {
	if err := h.caughtUp(ctx, h.cluster.client); err != nil {
		return err
	}
	rows, err := h.db.QueryContext(ctx, "SELECT id, value FROM entries ORDER BY id")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		e := event{Kind: row, From: now()}
		if err := rows.Scan(&e.Revision, &e.Value); err != nil {
			return err
		}
		h.journal.add(e)
	}
	return rows.Err()
}

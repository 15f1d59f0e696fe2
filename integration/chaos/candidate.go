package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	clientv3 "go.etcd.io/etcd/client/v3"
	_ "modernc.org/sqlite"

	"github.com/tenure-go/tenure/fencesql"
)

// candidateVar makes this program a candidate; its value is a candidateConfig.
const candidateVar = "TENURE_CHAOS_CANDIDATE"

const (
	election  = "/chaos/leader"
	registers = "/chaos/register/"
	// registerCount spreads the writes: the time to check a register grows
	// faster than its history.
	registerCount = 24
	resource      = "entries"
)

func register(r *rand.Rand) string { return fmt.Sprintf("%s%02d", registers, r.IntN(registerCount)) }

type candidateConfig struct {
	Name      string // of the process, unlike that of any other
	Endpoints []string
	TTL       time.Duration
	Dir       string // of the histories
	Driver    string
	DSN       string
	Library   string
	Compare   bool
	Seed      uint64
}

// hold is a term as the harness sees it, whichever library it comes from.
type hold struct {
	epoch int64
	work  context.Context // ends when the work must stop
	valid func() bool

	put      func(ctx context.Context, key, value string) outcome
	putLate  func(ctx context.Context, key, value string) outcome // asks no clock; nil: none is sent late
	check    func(ctx context.Context, tx *sql.Tx) error
	seal     func(ctx context.Context) error
	isFenced func(error) bool
}

// candidate is one process that wants to lead.
type candidate struct {
	candidateConfig
	journal *journal
	client  *clientv3.Client
	db      *sql.DB
	table   *fencesql.Table

	held   atomic.Pointer[hold]
	serial atomic.Int64 // of the values that it has written
	late   sync.WaitGroup
}

// runCandidate takes part until its standard input ends. Then it stops its work,
// lets go and returns.
func runCandidate(text string) error {
	var config candidateConfig
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return err
	}
	journal, err := newJournal(config.Dir, config.Name)
	if err != nil {
		return err
	}
	journal.echo = os.Stdout
	client, err := newClient(config.Endpoints)
	if err != nil {
		return err
	}
	defer client.Close()
	db, err := sql.Open(config.Driver, config.DSN)
	if err != nil {
		return err
	}
	defer db.Close()
	table, err := fencesql.New(dialectOf(config.Driver))
	if err != nil {
		return err
	}
	c := &candidate{candidateConfig: config, journal: journal, client: client, db: db, table: table}
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		leave()
	}()
	// The look-outs go on while the candidate lets go.
	looking, stop := context.WithCancel(context.Background())
	var lookouts sync.WaitGroup
	lookouts.Go(func() { c.lookOut(looking) })
	lookouts.Go(func() { c.readOn(looking) })
	switch config.Library {
	case "tenure":
		err = c.tenure(ctx)
	case "concurrency":
		c.concurrency(ctx)
	default:
		err = fmt.Errorf("there is no library %q", config.Library)
	}
	c.late.Wait()
	stop()
	lookouts.Wait()
	return errors.Join(err, journal.close())
}

func dialectOf(driver string) fencesql.Dialect {
	if driver == "pgx" {
		return fencesql.PostgreSQL
	}
	return fencesql.SQLite
}

// lookOut asks all the time whether the term is valid. Each answer was true at
// some instant between question and answer, so that a process that is stopped
// in between claims nothing for the time in which it was.
func (c *candidate) lookOut(ctx context.Context) {
	const often, every = time.Millisecond, 25 * time.Millisecond
	var claim event // not yet written
	var written int64
	flush := func() {
		if claim.Epoch != 0 {
			c.journal.add(claim)
			written = now()
		}
	}
	for ctx.Err() == nil {
		h := c.held.Load()
		asked := now()
		yes := h != nil && h.valid()
		answered := now()
		switch {
		case !yes:
			flush()
			claim = event{}
		case claim.Epoch != h.epoch:
			flush()
			claim = event{Kind: valid, Epoch: h.epoch, From: answered, To: asked}
			flush()
		default:
			claim.To = asked
			if answered-written > int64(every) {
				flush()
			}
		}
		time.Sleep(often)
	}
	flush()
}

// readOn asks etcd for what the leader has written, leader or not.
func (c *candidate) readOn(ctx context.Context) {
	r := rand.New(rand.NewPCG(c.Seed, 1))
	for ctx.Err() == nil {
		c.read(ctx, register(r))
		sleep(ctx, time.Duration(100+r.IntN(200))*time.Millisecond)
	}
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// request bounds one request. It is not derived from the context of the work: a
// careless program's requests are under way when its term ends.
const request = 2 * time.Second

// read asks etcd for one register. Without an answer it has nothing to tell.
func (c *candidate) read(ctx context.Context, key string) {
	ctx, cancel := context.WithTimeout(ctx, request)
	defer cancel()
	e := event{Kind: read, Key: key, From: now()}
	resp, err := c.client.Get(ctx, key)
	if err != nil {
		return
	}
	e.To = now()
	if len(resp.Kvs) > 0 {
		e.Value = string(resp.Kvs[0].Value)
	}
	c.journal.add(e)
}

// load reads all registers, as a new leader must.
func (c *candidate) load(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, request)
	defer cancel()
	from := now()
	resp, err := c.client.Get(ctx, registers, clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	to := now()
	values := make(map[string]string, registerCount)
	for _, kv := range resp.Kvs {
		values[string(kv.Key)] = string(kv.Value)
		c.journal.add(event{Kind: read, Key: string(kv.Key), Value: string(kv.Value), From: from, To: to})
	}
	return values, nil
}

func (c *candidate) value(h *hold) string {
	return fmt.Sprintf("%d/%s/%d", h.epoch, c.Name, c.serial.Add(1))
}

func (c *candidate) write(h *hold, put func(context.Context, string, string) outcome, key, note string) (string, outcome) {
	ctx, cancel := context.WithTimeout(context.Background(), request)
	defer cancel()
	e := event{Kind: write, Epoch: h.epoch, Key: key, Value: c.value(h), Note: note, From: now()}
	c.journal.add(e)
	e.Outcome = put(ctx, key, e.Value)
	e.To = now()
	c.journal.add(e)
	return e.Value, e.Outcome
}

// insert adds a row in a transaction that checks the fence first.
func (c *candidate) insert(h *hold, note string) outcome {
	ctx, cancel := context.WithTimeout(context.Background(), 4*request)
	defer cancel()
	e := event{Kind: insert, Epoch: h.epoch, Value: c.value(h), Note: note, From: now()}
	e.Outcome = func() outcome {
		tx, err := c.db.BeginTx(ctx, nil)
		if err != nil {
			return failed
		}
		defer func() { _ = tx.Rollback() }() // after a commit it says so
		if h.check != nil {
			if err := h.check(ctx, tx); err != nil {
				if h.isFenced(err) {
					return fenced
				}
				return failed
			}
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO entries (value, epoch) VALUES ($1, $2)", e.Value, h.epoch); err != nil {
			return failed
		}
		if err := tx.Commit(); err != nil {
			return unknown
		}
		return done
	}()
	e.To = now()
	c.journal.add(e)
	return e.Outcome
}

// lead is the work of a term: it reads what its predecessors wrote, then writes,
// and answers from its own memory, until the work's context ends or a write
// fails. It keeps no watch on the term beyond that.
func (c *candidate) lead(h *hold, r *rand.Rand) {
	c.held.Store(h)
	work := h.work
	if r.IntN(4) == 0 { // a short term, for more of them
		var cancel context.CancelFunc
		work, cancel = context.WithTimeout(work, time.Duration(500+r.IntN(4000))*time.Millisecond)
		defer cancel()
	}
	if h.seal != nil {
		if err := h.seal(work); err != nil {
			return
		}
	}
	memory, err := c.load(work)
	if err != nil {
		return
	}
	trusted := true
	for work.Err() == nil {
		key := register(r)
		switch n := r.IntN(100); {
		case n < 40:
			value, out := c.write(h, h.put, key, "")
			switch out {
			case done:
				memory[key] = value
			case unknown:
				// It may still land, and then the memory is not what etcd has.
				trusted = false
				if r.IntN(2) == 0 {
					return
				}
			default:
				return
			}

		case n < 80:
			if !trusted {
				break
			}
			e := event{Kind: leaseRead, Epoch: h.epoch, Key: key, From: now()}
			e.Value = memory[key]
			if !h.valid() {
				return
			}
			e.To = now()
			c.journal.add(e)

		case n < 90:
			if c.insert(h, "") == fenced {
				return
			}

		default:
			c.read(work, key)
		}
		sleep(work, time.Duration(1+r.IntN(15))*time.Millisecond)
	}
}

// haunt writes on after the end of a term, with its fence and without a look at
// any clock, as requests do that were delayed.
func (c *candidate) haunt(h *hold, r *rand.Rand) {
	for end := time.Now().Add(time.Duration(r.Int64N(int64(2 * c.TTL)))); time.Now().Before(end); {
		if r.IntN(4) == 0 {
			c.insert(h, "late")
		} else {
			c.write(h, h.putLate, register(r), "late")
		}
		sleep(context.Background(), time.Duration(5+r.IntN(100))*time.Millisecond)
	}
}

func (c *candidate) rand(n uint64) *rand.Rand { return rand.New(rand.NewPCG(c.Seed, n)) }

package main

import (
	"context"
	"fmt"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/tenure-go/tenure"
)

// A contender takes part in one election. Its methods are called one at a time,
// but for leads.
type contender interface {
	campaign(ctx context.Context) error // until it leads
	resign(ctx context.Context) error
	leads() bool // at this moment, as far as it knows
	close() error
}

// A variant is a way to elect a leader.
type variant struct {
	name string
	open func(client *clientv3.Client, key string, ttl int) (contender, error)
}

const ours = "tenure"

var variants = []variant{
	{ours, openTenure},
	{"concurrency.Election", openElection},
	{"concurrency.Mutex", openMutex},
}

// tenureContender takes part with [tenure.Elector.Run], as most programs do. Its
// lease lives as long as it does, as the peers' sessions do.
type tenureContender struct {
	elector *tenure.Elector
	term    atomic.Pointer[tenure.Term]
	terms   chan *tenure.Term
	release chan chan error
	stop    context.CancelFunc
	done    chan error
}

func openTenure(client *clientv3.Client, key string, ttl int) (contender, error) {
	e, err := tenure.New(client, key, &tenure.Options{TTL: seconds(ttl)})
	if err != nil {
		return nil, err
	}
	return &tenureContender{elector: e, terms: make(chan *tenure.Term), release: make(chan chan error)}, nil
}

func (c *tenureContender) lead(ctx context.Context, term *tenure.Term) error {
	c.term.Store(term)
	select {
	case c.terms <- term:

	case <-ctx.Done():
		return nil
	}
	select {
	case resigned := <-c.release:
		resigned <- term.Resign()

	case <-ctx.Done():
	}
	return nil
}

func (c *tenureContender) campaign(ctx context.Context) error {
	if c.done == nil {
		c.done = make(chan error, 1)
		var running context.Context
		running, c.stop = context.WithCancel(context.Background())
		go func() { c.done <- c.elector.Run(running, c.lead) }()
	}
	select {
	case <-c.terms:
		return nil

	case err := <-c.done:
		c.done <- err
		return err

	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *tenureContender) resign(ctx context.Context) error {
	resigned := make(chan error, 1)
	select {
	case c.release <- resigned:
		return <-resigned

	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *tenureContender) leads() bool {
	term := c.term.Load()
	return term != nil && term.Valid()
}

func (c *tenureContender) close() error {
	if c.done == nil {
		return nil
	}
	c.stop()
	return <-c.done
}

// session is what the peers share.
type session struct {
	*concurrency.Session
	held atomic.Bool
}

func openSession(client *clientv3.Client, ttl int) (*session, error) {
	s, err := concurrency.NewSession(client, concurrency.WithTTL(ttl))
	if err != nil {
		return nil, err
	}
	return &session{Session: s}, nil
}

func (s *session) leads() bool {
	select {
	case <-s.Done():
		return false
	default:
		return s.held.Load()
	}
}

func (s *session) close() error { return s.Close() }

type electionContender struct {
	*session
	election *concurrency.Election
}

func openElection(client *clientv3.Client, key string, ttl int) (contender, error) {
	s, err := openSession(client, ttl)
	if err != nil {
		return nil, err
	}
	return &electionContender{session: s, election: concurrency.NewElection(s.Session, key)}, nil
}

func (c *electionContender) campaign(ctx context.Context) error {
	err := c.election.Campaign(ctx, fmt.Sprintf("%x", c.Lease()))
	c.held.Store(err == nil)
	return err
}

func (c *electionContender) resign(ctx context.Context) error {
	c.held.Store(false)
	return c.election.Resign(ctx)
}

type mutexContender struct {
	*session
	mutex *concurrency.Mutex
}

func openMutex(client *clientv3.Client, key string, ttl int) (contender, error) {
	s, err := openSession(client, ttl)
	if err != nil {
		return nil, err
	}
	return &mutexContender{session: s, mutex: concurrency.NewMutex(s.Session, key)}, nil
}

func (c *mutexContender) campaign(ctx context.Context) error {
	err := c.mutex.Lock(ctx)
	c.held.Store(err == nil)
	return err
}

func (c *mutexContender) resign(ctx context.Context) error {
	c.held.Store(false)
	return c.mutex.Unlock(ctx)
}

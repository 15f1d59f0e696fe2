package main

import (
	"context"
	"database/sql"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/tenure-go/tenure"
)

// tenure takes part by this library until ctx ends.
func (c *candidate) tenure(ctx context.Context) error {
	elector, err := tenure.New(c.client, election, &tenure.Options{
		Identity: c.Name, TTL: c.TTL,
		Hooks: &tenure.Hooks{TermEnded: func(term *tenure.Term, cause error) {
			t := now()
			reason, _ := errors.AsType[tenure.Reason](cause)
			c.journal.add(event{Kind: over, Epoch: int64(term.Epoch()), From: t, To: t, Note: string(reason)})
		}},
	})
	if err != nil {
		return err
	}
	n := uint64(100)
	for ctx.Err() == nil {
		err := elector.Run(ctx, func(ctx context.Context, term *tenure.Term) error {
			fence := term.Fence()
			h := &hold{
				epoch: int64(term.Epoch()), work: ctx, valid: term.Valid,
				put:      putFenced(term.KV(c.client)),
				putLate:  putFenced(fence.KV(c.client)),
				check:    func(ctx context.Context, tx *sql.Tx) error { return c.table.Check(ctx, tx, resource, fence) },
				seal:     func(ctx context.Context) error { return c.table.Seal(ctx, c.db, resource, fence) },
				isFenced: func(err error) bool { return errors.Is(err, tenure.ErrFenced) },
			}
			n += 2
			c.lead(h, c.rand(n))
			late := c.rand(n + 1)
			c.late.Go(func() { c.haunt(h, late) })
			return nil
		})
		if err != nil && ctx.Err() == nil {
			return err // it cannot heal, says Run
		}
	}
	return nil
}

func putFenced(kv clientv3.KV) func(context.Context, string, string) outcome {
	return func(ctx context.Context, key, value string) outcome {
		_, err := kv.Put(ctx, key, value)
		switch {
		case err == nil:
			return done
		case errors.Is(err, tenure.ErrUnknownOutcome):
			return unknown
		case errors.Is(err, tenure.ErrFenced):
			return fenced
		case errors.Is(err, tenure.ErrTermEnded):
			return ended
		default:
			return failed
		}
	}
}

// concurrency takes part by etcd's own package, used with care: the campaign and
// the work end with the session, and who has won asks once more whether it still
// has one. By option each write compares the key's create revision.
func (c *candidate) concurrency(ctx context.Context) {
	for n := uint64(100); ctx.Err() == nil; n++ {
		session, err := concurrency.NewSession(c.client, concurrency.WithTTL(int(c.TTL/time.Second)), concurrency.WithContext(ctx))
		if err != nil {
			sleep(ctx, 200*time.Millisecond)
			continue
		}
		c.hold(ctx, session, n)
		session.Orphan()
	}
}

// hold wins and leads on session until it ends, or ctx does, or a term has ended
// for another reason.
func (c *candidate) hold(ctx context.Context, session *concurrency.Session, n uint64) {
	work, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		<-session.Done() // which Orphan closes
		cancel()
	}()
	alive := func() bool {
		select {
		case <-session.Done():
			return false

		default:
			return true
		}
	}
	e := concurrency.NewElection(session, election)
	if err := e.Campaign(work, c.Name); err != nil || !alive() {
		return
	}
	key, epoch := e.Key(), e.Rev()
	h := &hold{epoch: epoch, work: work, valid: alive, isFenced: func(error) bool { return false }}
	h.put = func(ctx context.Context, k, value string) outcome {
		var guard []clientv3.Cmp
		if c.Compare {
			guard = append(guard, clientv3.Compare(clientv3.CreateRevision(key), "=", epoch))
		}
		resp, err := c.client.Txn(ctx).If(guard...).Then(clientv3.OpPut(k, value)).Commit()
		switch {
		case err != nil:
			return unknown
		case !resp.Succeeded:
			return fenced
		default:
			return done
		}
	}
	c.lead(h, c.rand(n))
	c.held.Store(nil) // before it lets go
	rctx, stop := context.WithTimeout(context.Background(), request)
	defer stop()
	_ = e.Resign(rctx) // else the lease runs out
}

package tenure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// KV returns kv with every write guarded by f: it is applied in one transaction
// with the check that this very term still holds the election, or not at all.
// That needs no clock. The result may be used concurrently, as kv may.
//
//   - Put, Delete and the same through Do are guarded flat. [ErrFenced] says
//     that the guard failed and what was refused was not written.
//   - A transaction is nested inside the guard: its Else runs only if the guard
//     holds, and its response is what it would have been without one. The guard
//     takes 2 of the operations that etcd allows in a transaction, which are 128
//     by default, so 126 remain; the error of a larger one says so.
//   - Get, GetStream and Do of a get pass unguarded.
//   - Refused with an error, and never sent: Compact, and writes to a range that
//     includes the election's key.
//   - A write whose answer is missing returns [ErrUnknownOutcome].
//
// Writing needs the permission to read the election's key. kv must reach the
// election's key under its full name: a namespaced kv would look for the guard
// elsewhere, and everything would be refused. To write below a prefix, wrap the
// result instead: namespace.NewKV(fence.KV(client), prefix).
func (f Fence) KV(kv clientv3.KV) clientv3.KV {
	return newGuardedKV(f, kv, f.Validate, func() {})
}

func newGuardedKV(f Fence, kv clientv3.KV, before func() error, fenced func()) *guardedKV {
	return &guardedKV{fence: f, kv: kv, before: before, fenced: fenced, guard: f.guard(), look: clientv3.OpGet(f.Key)}
}

// guardedKV does not embed the KV that it guards: a method that a later client
// adds to the interface would then pass unguarded. It embeds a nil interface
// instead, so such a method panics until it has been thought about here.
type guardedKV struct {
	clientv3.KV

	fence  Fence
	kv     clientv3.KV
	before func() error // asked before anything is written
	fenced func()       // told when the guard has failed

	guard []clientv3.Cmp // made once; the client copies them
	look  clientv3.Op    // at who holds the election instead
}

func (g *guardedKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return g.kv.Get(ctx, key, opts...)
}

func (g *guardedKV) GetStream(ctx context.Context, key string, opts ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	return g.kv.GetStream(ctx, key, opts...)
}

func (g *guardedKV) Put(ctx context.Context, key, val string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	resp, err := g.Do(ctx, clientv3.OpPut(key, val, opts...))
	return resp.Put(), err
}

func (g *guardedKV) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	resp, err := g.Do(ctx, clientv3.OpDelete(key, opts...))
	return resp.Del(), err
}

func (g *guardedKV) Compact(context.Context, int64, ...clientv3.CompactOption) (*clientv3.CompactResponse, error) {
	return nil, errors.New("tenure: Compact cannot be guarded by a fence; use the client itself")
}

func (g *guardedKV) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	switch {
	case op.IsGet():
		return g.kv.Do(ctx, op)

	case op.IsTxn():
		cmps, then, orElse := op.Txn()
		resp, err := g.Txn(ctx).If(cmps...).Then(then...).Else(orElse...).Commit()
		if err != nil {
			return clientv3.OpResponse{}, err
		}
		return resp.OpResponse(), nil

	case op.IsPut():
		resp, err := g.write(ctx, op)
		if err != nil {
			return clientv3.OpResponse{}, err
		}
		put := (*clientv3.PutResponse)(resp.Responses[0].GetResponsePut())
		put.Header = resp.Header
		return put.OpResponse(), nil

	case op.IsDelete():
		resp, err := g.write(ctx, op)
		if err != nil {
			return clientv3.OpResponse{}, err
		}
		del := (*clientv3.DeleteResponse)(resp.Responses[0].GetResponseDeleteRange())
		del.Header = resp.Header
		return del.OpResponse(), nil

	default:
		return clientv3.OpResponse{}, errors.New("tenure: an operation of an unknown kind cannot be guarded by a fence")
	}
}

// write commits one operation under the guard.
func (g *guardedKV) write(ctx context.Context, op clientv3.Op) (*clientv3.TxnResponse, error) {
	if err := g.before(); err != nil {
		return nil, err
	}
	if err := g.reserved(op); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err // nothing was sent, so the outcome is known
	}
	resp, err := g.kv.Txn(ctx).If(g.guard...).Then(op).Else(g.look).Commit()
	if err != nil {
		return nil, g.explain(op, err)
	}
	if !resp.Succeeded {
		g.fenced()
		leader := leaderOf(g.fence.Key, keyOf(resp.Responses[0].GetResponseRange()))
		return nil, &leaderError{err: ErrFenced, leader: leader}
	}
	return resp, nil
}

// explain tells a refusal from an unknown outcome.
func (g *guardedKV) explain(op clientv3.Op, err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrTooManyOps) && op.IsTxn():
		return fmt.Errorf("tenure: the transaction is too large: etcd counts %d operations and the fence needs 2 more, which exceeds etcd's --max-txn-ops (128 by default); nothing was written: %w", countOps(op), err)
	case ambiguous(err):
		return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
	default:
		return err
	}
}

// countOps counts the operations of a transaction as etcd does: the longest of
// its three lists, and those of the largest transaction within.
func countOps(op clientv3.Op) int {
	if !op.IsTxn() {
		return 0
	}
	cmps, then, orElse := op.Txn()
	within := 0
	for _, op := range slices.Concat(then, orElse) {
		within = max(within, countOps(op))
	}
	return max(len(cmps), len(then), len(orElse)) + within
}

// reserved refuses writes that could change the election's key: the term would
// break the very thing that proves it.
func (g *guardedKV) reserved(op clientv3.Op) error {
	if op.IsTxn() {
		_, then, orElse := op.Txn()
		for _, ops := range [][]clientv3.Op{then, orElse} {
			for _, op := range ops {
				if err := g.reserved(op); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if op.IsGet() {
		return nil
	}
	first, end := string(op.KeyBytes()), string(op.RangeBytes())
	hit := first == g.fence.Key
	if end != "" { // a range of one key has no end; "\x00" means: to the last key
		hit = first <= g.fence.Key && (end == "\x00" || g.fence.Key < end)
	}
	if hit {
		return fmt.Errorf("tenure: a guarded write to %q would change the election's key %q", first, g.fence.Key)
	}
	return nil
}

func (g *guardedKV) Txn(ctx context.Context) clientv3.Txn { return &guardedTxn{g: g, ctx: ctx} }

// guardedTxn collects a transaction as the client's own does, panics included,
// and commits it nested inside the guard.
type guardedTxn struct {
	g   *guardedKV
	ctx context.Context

	mu                      sync.Mutex
	cmps                    []clientv3.Cmp
	then, orElse            []clientv3.Op
	hasIf, hasThen, hasElse bool
}

func (t *guardedTxn) If(cmps ...clientv3.Cmp) clientv3.Txn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hasIf || t.hasThen || t.hasElse {
		panic("tenure: If must be called once, before Then and Else")
	}
	t.hasIf = true
	for i := range cmps {
		t.cmps = append(t.cmps, cmps[i].Clone())
	}
	return t
}

func (t *guardedTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hasThen || t.hasElse {
		panic("tenure: Then must be called once, before Else")
	}
	t.hasThen = true
	t.then = append(t.then, ops...)
	return t
}

func (t *guardedTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hasElse {
		panic("tenure: Else must be called once")
	}
	t.hasElse = true
	t.orElse = append(t.orElse, ops...)
	return t
}

func (t *guardedTxn) Commit() (*clientv3.TxnResponse, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	resp, err := t.g.write(t.ctx, clientv3.OpTxn(t.cmps, t.then, t.orElse))
	if err != nil {
		return nil, err
	}
	nested := (*clientv3.TxnResponse)(resp.Responses[0].GetResponseTxn())
	nested.Header = resp.Header
	return nested, nil
}

// keyOf is the key that a read of one key has found, or nil.
func keyOf(resp *pb.RangeResponse) *keyValue {
	if len(resp.GetKvs()) == 0 {
		return nil
	}
	return resp.Kvs[0]
}

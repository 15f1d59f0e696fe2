package tenure_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
)

// values returns the keys with a prefix and their values.
func values(s *etcdtest.Server, prefix string) map[string]string {
	m := make(map[string]string)
	for _, kv := range s.Keys(prefix) {
		m[string(kv.Key)] = string(kv.Value)
	}
	return m
}

// answer is what a call of a KV has returned.
type answer struct {
	call string
	resp proto.Message // nil for an error
	err  string
}

// leaseForData is a lease that a script of calls uses, chosen by the test so that
// two servers know the same one.
const leaseForData = 0x7e57

// script makes calls of every kind, one after the other, on state that the
// earlier ones have left.
func script(ctx context.Context, kv clientv3.KV) (answers []answer) {
	record := func(call string, resp proto.Message, err error) {
		a := answer{call: call}
		if err != nil {
			a.err = err.Error()
		} else {
			a.resp = resp
		}
		answers = append(answers, a)
	}
	put := func(key, val string, opts ...clientv3.OpOption) {
		resp, err := kv.Put(ctx, key, val, opts...)
		record(fmt.Sprintf("Put %q %d options", key, len(opts)), (*pb.PutResponse)(resp), err)
	}
	get := func(key string, opts ...clientv3.OpOption) {
		resp, err := kv.Get(ctx, key, opts...)
		record(fmt.Sprintf("Get %q %d options", key, len(opts)), (*pb.RangeResponse)(resp), err)
		stream, err := kv.GetStream(ctx, key, opts...)
		if err == nil {
			resp, err = clientv3.GetStreamToGetResponse(stream)
		}
		record(fmt.Sprintf("GetStream %q %d options", key, len(opts)), (*pb.RangeResponse)(resp), err)
	}
	del := func(key string, opts ...clientv3.OpOption) {
		resp, err := kv.Delete(ctx, key, opts...)
		record(fmt.Sprintf("Delete %q %d options", key, len(opts)), (*pb.DeleteRangeResponse)(resp), err)
	}
	txn := func(call string, cmps []clientv3.Cmp, then, orElse []clientv3.Op) {
		resp, err := kv.Txn(ctx).If(cmps...).Then(then...).Else(orElse...).Commit()
		record("Txn "+call, (*pb.TxnResponse)(resp), err)
	}
	do := func(call string, op clientv3.Op) {
		resp, err := kv.Do(ctx, op)
		var m proto.Message
		switch {
		case resp.Put() != nil:
			m = (*pb.PutResponse)(resp.Put())
		case resp.Get() != nil:
			m = (*pb.RangeResponse)(resp.Get())
		case resp.Del() != nil:
			m = (*pb.DeleteRangeResponse)(resp.Del())
		case resp.Txn() != nil:
			m = (*pb.TxnResponse)(resp.Txn())
		}
		record("Do "+call, m, err)
	}
	const a, b, c, none = "/data/a", "/data/b", "/data/c", "/data/none"
	exists := func(key string) clientv3.Cmp { return clientv3.Compare(clientv3.CreateRevision(key), ">", 0) }
	ops := func(ops ...clientv3.Op) []clientv3.Op { return ops }
	cmps := func(cmps ...clientv3.Cmp) []clientv3.Cmp { return cmps }

	put(a, "1")
	put(a, "2", clientv3.WithPrevKV())
	put(b, "1", clientv3.WithPrevKV())
	put(b, "2", clientv3.WithLease(leaseForData))
	put(b, "3", clientv3.WithIgnoreLease(), clientv3.WithPrevKV())
	put(b, "", clientv3.WithIgnoreValue())
	get("/data/", clientv3.WithPrefix())
	get("/data/", clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	get("/data/", clientv3.WithPrefix(), clientv3.WithCountOnly(), clientv3.WithSerializable())
	get(a, clientv3.WithRev(2))
	get(none)
	del(none)
	del(a)
	del(b, clientv3.WithPrevKV())
	for _, key := range []string{a, b, c} {
		put(key, "again")
	}
	del(b, clientv3.WithRange("/data/d"), clientv3.WithPrevKV())
	del("/data/", clientv3.WithPrefix())

	// What etcd refuses, it must refuse in the same words.
	put("", "1")
	put(none, "1", clientv3.WithLease(0xdead))
	put(none, "1", clientv3.WithIgnoreLease())
	put(none, "1", clientv3.WithIgnoreValue())
	del("")
	get("")
	get(a, clientv3.WithRev(1_000_000))
	do("put with an unknown lease", clientv3.OpPut(none, "1", clientv3.WithLease(0xdead)))
	txn("with a key put twice", nil, ops(clientv3.OpPut(a, "1"), clientv3.OpPut(a, "2")), nil)
	txn("with a read in the future", nil, ops(clientv3.OpPut(a, "1"), clientv3.OpGet(a, clientv3.WithRev(1_000_000))), nil)
	txn("with an empty key", cmps(exists("")), nil, nil)

	do("put", clientv3.OpPut(a, "1"))
	do("put with the previous", clientv3.OpPut(a, "2", clientv3.WithPrevKV()))
	do("get", clientv3.OpGet("/data/", clientv3.WithPrefix()))
	do("delete", clientv3.OpDelete(a, clientv3.WithPrevKV()))
	do("delete of nothing", clientv3.OpDelete(a, clientv3.WithPrevKV()))
	do("txn", clientv3.OpTxn(cmps(exists(a)), nil, ops(clientv3.OpPut(a, "1"), clientv3.OpGet(a))))
	do("txn of reads", clientv3.OpTxn(nil, ops(clientv3.OpGet(a), clientv3.OpGet(none)), nil))
	do("empty txn", clientv3.OpTxn(nil, nil, nil))

	txn("empty", nil, nil, nil)
	txn("that compares only", cmps(exists(none)), nil, nil)
	txn("of reads", cmps(exists(a)), ops(clientv3.OpGet(a)), ops(clientv3.OpGet(b)))
	txn("with Then", cmps(exists(a)), ops(clientv3.OpPut(a, "then", clientv3.WithPrevKV()), clientv3.OpGet(a), clientv3.OpDelete(b)), nil)
	txn("with Else", cmps(exists(none)), ops(clientv3.OpPut(none, "then")), ops(clientv3.OpPut(b, "else"), clientv3.OpPut(c, "else")))
	txn("with one key in both branches", cmps(exists(a)), ops(clientv3.OpPut(a, "1")), ops(clientv3.OpPut(a, "2")))
	txn("that puts or deletes one key", cmps(exists(a)), ops(clientv3.OpPut(a, "1")), ops(clientv3.OpDelete("/data/", clientv3.WithPrefix())))
	txn("that compares ranges", cmps(clientv3.Compare(clientv3.Version("/data/"), ">", 0).WithPrefix(), exists(b).WithRange("/data/d")), ops(clientv3.OpGet(a)), nil)
	txn("that compares everything", cmps(
		clientv3.Compare(clientv3.Value(b), "=", "else"), clientv3.Compare(clientv3.ModRevision(b), "<", 1000),
		clientv3.Compare(clientv3.LeaseValue(b), "=", 0), clientv3.Compare(clientv3.Version(b), "!=", 0),
	), ops(clientv3.OpDelete("/data/", clientv3.WithPrefix(), clientv3.WithPrevKV())), nil)
	nested := clientv3.OpTxn(cmps(exists(a)), ops(clientv3.OpPut(a, "then")), ops(
		clientv3.OpPut(a, "else"), clientv3.OpTxn(cmps(exists(none)), nil, ops(clientv3.OpPut(b, "deep", clientv3.WithPrevKV()), clientv3.OpGet("/data/", clientv3.WithPrefix()))),
	))
	txn("nested, not there yet", nil, ops(clientv3.OpPut(c, "1"), nested, clientv3.OpGet(c)), nil)
	txn("nested, there", cmps(exists(none)), nil, ops(nested, clientv3.OpDelete(none)))
	do("nested txn", clientv3.OpTxn(nil, ops(nested, clientv3.OpTxn(nil, nil, nil)), nil))

	// What the caller does to a compare after If has got it does not count.
	cmp := exists(a)
	open := kv.Txn(ctx).If(cmp)
	cmp.WithKeyBytes([]byte(none))
	resp, err := open.Then(clientv3.OpGet(a)).Commit()
	record("Txn with a compare that is used again", (*pb.TxnResponse)(resp), err)
	get("/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend), clientv3.WithRange("/data0"))
	return answers
}

// Two servers with the same history get the same calls, one through the guard.
func TestGuardedAnswersAreThePlainOnes(t *testing.T) {
	run := func(t *testing.T, guard func(kv clientv3.KV, term *tenure.Term) clientv3.KV) (answers []answer, count func(string) int) {
		t.Helper()
		etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
			term := lead(t, newElector(t, s.Client(), nil))
			c := s.Client()
			_, err := pb.NewLeaseClient(c.ActiveConnection()).LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: leaseForData, TTL: 60})
			require.NoError(t, err)
			answers, count = script(t.Context(), guard(c, term)), c.Faults.Count
		})
		return answers, count
	}
	plain, _ := run(t, func(kv clientv3.KV, _ *tenure.Term) clientv3.KV { return kv })
	for name, guard := range map[string]func(clientv3.KV, *tenure.Term) clientv3.KV{
		"OfAFence": func(kv clientv3.KV, term *tenure.Term) clientv3.KV { return term.Fence().KV(kv) },
		"OfATerm":  func(kv clientv3.KV, term *tenure.Term) clientv3.KV { return term.KV(kv) },
		"OfBoth":   func(kv clientv3.KV, term *tenure.Term) clientv3.KV { return term.Fence().KV(term.KV(kv)) },
	} {
		t.Run(name, func(t *testing.T) {
			guarded, count := run(t, guard)
			require.Len(t, guarded, len(plain))
			refused := 0
			for i, want := range plain {
				got := guarded[i]
				require.Equal(t, want.call, got.call)
				assert.Equal(t, want.err, got.err, "%s", want.call)
				if want.err != "" {
					refused++
					continue
				}
				assert.True(t, proto.Equal(want.resp, got.resp), "%s\nplain:   %v\nguarded: %v", want.call, want.resp, got.resp)
			}
			assert.Equal(t, 14, refused, "the calls that etcd refuses")
			assert.Zero(t, count("Put"), "a Put went unguarded")
			assert.Zero(t, count("DeleteRange"), "a Delete went unguarded")
		})
	}
}

// F03, F04. "Fenced" and "your condition does not hold" are told apart, and the
// user's Else, which often writes, never runs unless the guard holds.
func TestGuardAndConditionGiveFourOutcomes(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		term := lead(t, newElector(t, s.Client(), nil))
		good, stale := term.Fence(), term.Fence()
		stale.Epoch--
		worker := s.Client()
		_, err := worker.Put(t.Context(), "/data/there", "")
		require.NoError(t, err)
		for _, tt := range []struct {
			fence     tenure.Fence
			condition string
			fenced    bool
			succeeded bool
			written   string
		}{
			{fence: good, condition: "/data/there", succeeded: true, written: "then"},
			{fence: good, condition: "/data/missing", succeeded: false, written: "else"},
			{fence: stale, condition: "/data/there", fenced: true},
			{fence: stale, condition: "/data/missing", fenced: true},
		} {
			call := fmt.Sprintf("fence %v, if %s exists", tt.fence, tt.condition)
			kv := tt.fence.KV(worker)
			cmp := clientv3.Compare(clientv3.CreateRevision(tt.condition), ">", 0)
			then, orElse := clientv3.OpPut("/out/x", "then"), clientv3.OpPut("/out/x", "else")
			for way, commit := range map[string]func() (*clientv3.TxnResponse, error){
				"Txn": func() (*clientv3.TxnResponse, error) {
					return kv.Txn(t.Context()).If(cmp).Then(then).Else(orElse).Commit()
				},
				"Do": func() (*clientv3.TxnResponse, error) {
					resp, err := kv.Do(t.Context(), clientv3.OpTxn([]clientv3.Cmp{cmp}, []clientv3.Op{then}, []clientv3.Op{orElse}))
					return resp.Txn(), err
				},
			} {
				resp, err := commit()
				if tt.fenced {
					require.ErrorIs(t, err, tenure.ErrFenced, "%s %s", way, call)
					require.Nil(t, resp)
					require.Empty(t, s.Keys("/out/"), "%s %s: a branch ran", way, call)
					continue
				}
				require.NoError(t, err, "%s %s", way, call)
				require.Equal(t, tt.succeeded, resp.Succeeded, "%s %s", way, call)
				require.Equal(t, map[string]string{"/out/x": tt.written}, values(s, "/out/"), "%s %s", way, call)
				_, err = worker.Delete(t.Context(), "/out/x")
				require.NoError(t, err)
			}
		}
	})
}

// calls are all that a KV offers to write one key.
var calls = map[string]func(ctx context.Context, kv clientv3.KV, key string) error{
	"Put": func(ctx context.Context, kv clientv3.KV, key string) error {
		resp, err := kv.Put(ctx, key, "x")
		return nilOrError(resp, err)
	},
	"Delete": func(ctx context.Context, kv clientv3.KV, key string) error {
		resp, err := kv.Delete(ctx, key)
		return nilOrError(resp, err)
	},
	"DoPut": func(ctx context.Context, kv clientv3.KV, key string) error {
		resp, err := kv.Do(ctx, clientv3.OpPut(key, "x"))
		return nilOrError(resp.Put(), err)
	},
	"DoDelete": func(ctx context.Context, kv clientv3.KV, key string) error {
		resp, err := kv.Do(ctx, clientv3.OpDelete(key))
		return nilOrError(resp.Del(), err)
	},
	"DoTxn": func(ctx context.Context, kv clientv3.KV, key string) error {
		resp, err := kv.Do(ctx, clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut(key, "x")}, nil))
		return nilOrError(resp.Txn(), err)
	},
	"Txn": func(ctx context.Context, kv clientv3.KV, key string) error {
		resp, err := kv.Txn(ctx).Then(clientv3.OpPut(key, "x")).Commit()
		return nilOrError(resp, err)
	},
	"TxnElse": func(ctx context.Context, kv clientv3.KV, key string) error {
		never := clientv3.Compare(clientv3.CreateRevision(key), "<", 0)
		resp, err := kv.Txn(ctx).If(never).Else(clientv3.OpPut(key, "x")).Commit()
		return nilOrError(resp, err)
	},
	"TxnNested": func(ctx context.Context, kv clientv3.KV, key string) error {
		resp, err := kv.Txn(ctx).Then(clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut(key, "x")}, nil)).Commit()
		return nilOrError(resp, err)
	},
}

// nilOrError returns err, and complains of an answer that is neither or both.
func nilOrError[T any](resp *T, err error) error {
	if (resp == nil) != (err != nil) {
		return fmt.Errorf("the call has returned %v and %w", resp, err)
	}
	return err
}

func TestErrFencedNamesThePresentHolder(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		first := lead(t, newElector(t, s.Client(), &tenure.Options{Identity: "first"}))
		worker := s.Client()
		_, err := worker.Put(t.Context(), "/data/a", "untouched")
		require.NoError(t, err)
		require.NoError(t, first.Resign())
		check := func(want tenure.Leader, text string) {
			t.Helper()
			for name, call := range calls {
				err := call(t.Context(), first.Fence().KV(worker), "/data/a")
				require.ErrorIs(t, err, tenure.ErrFenced, name)
				require.NotErrorIs(t, err, tenure.ErrTermEnded, name)
				require.NotErrorIs(t, err, tenure.ErrUnknownOutcome, name)
				require.ErrorContains(t, err, text, name)
				leader, ok := tenure.LeaderOf(err)
				require.True(t, ok, name)
				require.Equal(t, want, leader, name)
			}
			require.Equal(t, map[string]string{"/data/a": "untouched"}, values(s, "/data/"))
		}
		check(tenure.Leader{Fence: tenure.Fence{Key: key}}, "nobody holds")

		second := lead(t, newElector(t, s.Client(), &tenure.Options{
			Identity: "second", Address: "10.0.0.2:80", Metadata: map[string]string{"zone": "b"},
		}))
		leader, err := tenure.Lookup(t.Context(), worker.Client, key)
		require.NoError(t, err)
		require.Equal(t, second.Fence(), leader.Fence)
		require.Equal(t, "10.0.0.2:80", leader.Address)
		check(leader, `held by "second"`)
	})
}

// F02. To etcd a key that does not exist has the create revision 0, so a fence
// of epoch 0 would pass whenever nobody leads.
func TestAnInvalidFenceSendsNothing(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		for name, fence := range map[string]tenure.Fence{
			"Zero":          {},
			"NoKey":         {Epoch: 1, Lease: 1},
			"EpochZero":     {Key: key, Lease: 1},
			"EpochNegative": {Key: key, Epoch: -1, Lease: 1},
			"NoLease":       {Key: key, Epoch: 1},
			"OnlyKey":       {Key: key},
		} {
			for way, call := range calls {
				err := call(t.Context(), fence.KV(c), "/data/a")
				require.ErrorContains(t, err, "tenure: Fence.", "%s %s", name, way)
				require.NotErrorIs(t, err, tenure.ErrFenced, "%s %s", name, way)
				require.Equal(t, fence.Validate(), err, "%s %s", name, way)
			}
		}
		require.Zero(t, c.Faults.Count(""))
		require.Empty(t, s.Keys("/"))
	})
}

func TestCompactIsRefused(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		term := lead(t, newElector(t, s.Client(), nil))
		c := s.Client()
		for _, kv := range []clientv3.KV{term.KV(c), term.Fence().KV(c)} {
			resp, err := kv.Compact(t.Context(), 1, clientv3.WithCompactPhysical())
			require.ErrorContains(t, err, "Compact cannot be guarded")
			require.Nil(t, resp)
		}
		require.Zero(t, c.Faults.Count(""))
		require.True(t, term.Valid())
	})
}

// A term that could change its own key would break what proves it.
func TestWritesThatCoverTheElectionsKeyAreRefused(t *testing.T) {
	put, del := clientv3.OpPut, clientv3.OpDelete
	always := []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision("/data/none"), "=", 0)}
	txn := func(then, orElse []clientv3.Op) clientv3.Op { return clientv3.OpTxn(always, then, orElse) }
	ops := func(ops ...clientv3.Op) []clientv3.Op { return ops }
	refused := map[string]clientv3.Op{
		"Put":                 put(key, "x"),
		"PutIgnoringLease":    put(key, "x", clientv3.WithIgnoreLease()),
		"Delete":              del(key),
		"DeleteWithPrefix":    del("/scheduler/", clientv3.WithPrefix()),
		"DeleteItsOwnPrefix":  del(key, clientv3.WithPrefix()),
		"DeleteEmptyPrefix":   del("", clientv3.WithPrefix()),
		"DeleteWithFromKey":   del("/a", clientv3.WithFromKey()),
		"DeleteFromKeyItself": del(key, clientv3.WithFromKey()),
		"DeleteAll":           del("", clientv3.WithFromKey()),
		"DeleteRange":         del("/s", clientv3.WithRange("/t")),
		"DeleteRangeFromIt":   del(key, clientv3.WithRange(key+"\x00")),
		"DeleteRangeUpToNext": del("/a", clientv3.WithRange(key+"\x00")),
		"InThen":              txn(ops(put("/data/a", "x"), put(key, "x")), nil),
		"InElse":              txn(ops(put("/data/a", "x")), ops(del(key))),
		"InThenNested":        txn(ops(txn(ops(txn(ops(del("/", clientv3.WithPrefix())), nil)), nil)), nil),
		"InElseNested":        txn(nil, ops(txn(nil, ops(txn(nil, ops(put(key, "x"))))))),
		"InElseOfThenNested":  txn(ops(txn(ops(put("/data/a", "x")), ops(put(key, "x")))), nil),
	}
	passes := map[string]clientv3.Op{
		"PutBelow":              put(key+"/x", "x"),
		"PutBeside":             put("/scheduler/leade", "x"),
		"DeleteBeside":          del("/scheduler/leaders"),
		"DeletePrefixBelow":     del(key+"/", clientv3.WithPrefix()),
		"DeletePrefixBeside":    del("/scheduler/l/", clientv3.WithPrefix()),
		"DeleteRangeUpToIt":     del("/a", clientv3.WithRange(key)),
		"DeleteRangeAfterIt":    del(key+"\x00", clientv3.WithRange("/z")),
		"DeleteFromKeyAfterIt":  del(key+"\x00", clientv3.WithFromKey()),
		"DeleteEmptyRangeOverI": del("/z", clientv3.WithRange("/a")),
		"DeleteEmptyRangeAtIt":  del(key, clientv3.WithRange("/a")),
		"GetIt":                 clientv3.OpGet(key),
		"GetAll":                clientv3.OpGet("", clientv3.WithPrefix()),
		"GetItInTxn":            txn(ops(clientv3.OpGet(key), put("/data/a", "x")), ops(clientv3.OpGet("/", clientv3.WithPrefix()))),
		"CompareIt": clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Version(key), ">", 0)},
			ops(put("/data/a", "x")), nil),
	}
	// call goes the way of the methods rather than of Do, where there is one.
	call := func(ctx context.Context, kv clientv3.KV, op clientv3.Op) error {
		var err error
		switch {
		case op.IsPut() && !op.IsTxn() && len(op.RangeBytes()) == 0:
			_, err = kv.Put(ctx, string(op.KeyBytes()), string(op.ValueBytes()))
		case op.IsDelete() && len(op.RangeBytes()) == 0:
			_, err = kv.Delete(ctx, string(op.KeyBytes()))
		case op.IsDelete():
			_, err = kv.Delete(ctx, string(op.KeyBytes()), clientv3.WithRange(string(op.RangeBytes())))
		case op.IsTxn():
			cmps, then, orElse := op.Txn()
			_, err = kv.Txn(ctx).If(cmps...).Then(then...).Else(orElse...).Commit()
		default:
			_, err = kv.Get(ctx, string(op.KeyBytes()), clientv3.WithRange(string(op.RangeBytes())))
		}
		return err
	}
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		term := lead(t, newElector(t, s.Client(), nil))
		c := s.Client()
		kv := term.KV(c)
		_, err := kv.Put(t.Context(), "/data/a", "1")
		require.NoError(t, err)
		before, keys := c.Faults.Count(""), values(s, "/")
		for name, op := range refused {
			_, err := kv.Do(t.Context(), op)
			require.ErrorContains(t, err, "would change the election's key", name)
			require.ErrorContains(t, err, fmt.Sprintf("%q", key), name)
			require.ErrorContains(t, call(t.Context(), kv, op), "would change the election's key", name)
		}
		require.Equal(t, before, c.Faults.Count(""), "something was sent")
		require.Equal(t, keys, values(s, "/"))
		for name, op := range passes {
			_, err := kv.Do(t.Context(), op)
			require.NoError(t, err, name)
			require.NoError(t, call(t.Context(), kv, op), name)
		}
		require.NoError(t, term.Verify(t.Context()))
	})
}

// A method that a later client adds to KV would go through the embedded
// interface, unguarded if that were the caller's. It is nil, so that such a
// method panics; here it is noticed before anybody calls it.
func TestEveryMethodOfKVIsDeclaredOnTheGuard(t *testing.T) {
	wanted := reflect.TypeFor[clientv3.KV]()
	inner := clientv3.NewKVFromKVClient(nil, nil)
	for name, kv := range map[string]clientv3.KV{"Fence.KV": tenure.Fence{}.KV(inner), "Term.KV": new(tenure.Term).KV(inner)} {
		guard := reflect.TypeOf(kv)
		for i := range wanted.NumMethod() {
			m, ok := guard.MethodByName(wanted.Method(i).Name)
			require.True(t, ok)
			file, _ := runtime.FuncForPC(m.Func.Pointer()).FileLine(m.Func.Pointer())
			assert.True(t, strings.HasSuffix(file, "kv.go"), "%s: the method %s of clientv3.KV is promoted (%s), not guarded", name, m.Name, file)
		}
		// And what such a method would reach is not the caller's KV.
		for i := range guard.Elem().NumField() {
			if f := guard.Elem().Field(i); f.Anonymous {
				assert.True(t, reflect.ValueOf(kv).Elem().Field(i).IsNil(), "%s embeds a %s that is not nil", name, f.Type)
			}
		}
	}
}

// F08. The guard takes 2 of the operations that etcd allows.
func TestTransactionsOverTheServersLimitAreExplained(t *testing.T) {
	puts := func(n int) (ops []clientv3.Op) {
		for i := range n {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("/data/%d", i), "x"))
		}
		return ops
	}
	cmps := func(n int) (cmps []clientv3.Cmp) {
		for i := range n {
			cmps = append(cmps, clientv3.Compare(clientv3.CreateRevision(fmt.Sprintf("/none/%d", i)), "=", 0))
		}
		return cmps
	}
	shapes := map[string]func(n int) clientv3.Op{
		"Then": func(n int) clientv3.Op { return clientv3.OpTxn(nil, puts(n), nil) },
		"Else": func(n int) clientv3.Op {
			return clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Version("/none"), ">", 0)}, nil, puts(n))
		},
		"If": func(n int) clientv3.Op { return clientv3.OpTxn(cmps(n), puts(1), nil) },
		"Nested": func(n int) clientv3.Op {
			return clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpTxn(nil, puts(n-1), nil)}, nil)
		},
		"NestedDeeper": func(n int) clientv3.Op {
			return clientv3.OpTxn(nil, nil, []clientv3.Op{clientv3.OpGet("/none"), clientv3.OpTxn(cmps(3), nil, []clientv3.Op{clientv3.OpTxn(nil, puts(n-5), nil)})})
		},
	}
	for name, tt := range map[string]struct{ limit, fits int }{
		"Default": {0, 126},
		"Larger":  {200, 198},
	} {
		t.Run(name, func(t *testing.T) {
			etcdtest.BubbleWith(t, &etcdtest.ServerOptions{MaxTxnOps: uint(tt.limit)}, func(t *testing.T, s *etcdtest.Server) {
				term := lead(t, newElector(t, s.Client(), nil))
				c := s.Client()
				kv := term.KV(c)
				for shape, op := range shapes {
					for _, n := range []int{tt.fits - 1, tt.fits} {
						_, err := kv.Do(t.Context(), op(n))
						require.NoError(t, err, "%s %d", shape, n)
					}
					_, err := c.Delete(t.Context(), "/data/", clientv3.WithPrefix())
					require.NoError(t, err)
					for _, n := range []int{tt.fits + 1, tt.fits + 2} {
						_, err := c.Do(t.Context(), op(n))
						require.NoError(t, err, "%s %d: without a guard it fits", shape, n)
						_, err = c.Delete(t.Context(), "/data/", clientv3.WithPrefix())
						require.NoError(t, err)
						_, err = kv.Do(t.Context(), op(n))
						require.ErrorContains(t, err, fmt.Sprintf("etcd counts %d operations and the fence needs 2 more", n), shape)
						require.ErrorContains(t, err, "--max-txn-ops", shape)
						require.ErrorIs(t, err, rpctypes.ErrTooManyOps, shape)
						require.NotErrorIs(t, err, tenure.ErrUnknownOutcome, shape)
						require.Empty(t, s.Keys("/data/"), shape)
					}
				}
				require.True(t, term.Valid())
			})
		})
	}
}

// F12, E02, E05. The request was applied, its answer was not delivered.
func TestAMissingAnswerIsAnUnknownOutcome(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error // what the client is told instead
		code codes.Code
	}{
		"BrokenConnection": {etcdtest.Unavailable, codes.Unavailable},
		"Timeout":          {rpctypes.ErrGRPCTimeout, codes.Unavailable},
		"LeaderFailed":     {rpctypes.ErrGRPCTimeoutDueToLeaderFail, codes.Unavailable},
		"LeaderChanged":    {rpctypes.ErrGRPCLeaderChanged, codes.Unavailable},
		"Stopped":          {rpctypes.ErrGRPCStopped, codes.Unavailable},
		"ServerCanceled":   {rpctypes.ErrGRPCCanceled, codes.Canceled},
		"NoSpace":          {rpctypes.ErrGRPCNoSpace, codes.ResourceExhausted},
		"AnswerTooLarge":   {status.Error(codes.ResourceExhausted, "grpc: received message larger than max (5 vs. 4)"), codes.ResourceExhausted},
		"Internal":         {status.Error(codes.Internal, "stream terminated by RST_STREAM"), codes.Internal},
		"Unknown":          {status.Error(codes.Unknown, "raft proposal dropped"), codes.Unknown},
		"Aborted":          {status.Error(codes.Aborted, ""), codes.Aborted},
	} {
		t.Run(name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				term := lead(t, newElector(t, s.Client(), nil))
				c := s.Client()
				for way, call := range calls {
					revision := s.Etcd().KV().Rev()
					// Every answer: etcd's client repeats a write that the server
					// calls cancelled, a hundred times.
					drop := c.Faults.On("Txn", etcdtest.DropAnswer(tt.err))
					err := call(t.Context(), term.KV(c), "/data/"+way)
					drop.Stop()
					require.ErrorIs(t, err, tenure.ErrUnknownOutcome, way)
					require.NotErrorIs(t, err, tenure.ErrFenced, way)
					require.NotErrorIs(t, err, tenure.ErrTermEnded, way)
					require.NotErrorIs(t, err, context.Canceled, "%s: our context has not ended", way)
					_, named := tenure.LeaderOf(err)
					require.False(t, named, way)

					// The cause is there for those who know etcd.
					var etcdErr rpctypes.EtcdError
					if errors.As(err, &etcdErr) {
						require.Equal(t, tt.code, etcdErr.Code(), way)
					} else {
						require.Equal(t, tt.code, status.Code(err), way)
					}
					if !strings.Contains(way, "Delete") {
						require.Greater(t, s.Etcd().KV().Rev(), revision, "%s: it has happened", way)
					}
				}
				require.True(t, term.Valid(), "nothing was said about the term")
			})
		})
	}
}

// F12. A client that limits what it receives learns nothing from an answer that
// is larger, although the server has done what was asked.
func TestAnAnswerLargerThanTheClientAcceptsIsAnUnknownOutcome(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		term := lead(t, newElector(t, s.Client(), nil))
		_, err := s.Admin().Put(t.Context(), "/data/large", strings.Repeat("x", 5000))
		require.NoError(t, err)
		c := s.Client(func(cfg *clientv3.Config) { cfg.MaxCallRecvMsgSize = 4096 })
		_, err = term.KV(c).Txn(t.Context()).Then(clientv3.OpPut("/data/a", "1"), clientv3.OpGet("/data/large")).Commit()
		require.Len(t, s.Keys("/data/a"), 1, "it was not applied, so this shows nothing")
		require.ErrorIs(t, err, tenure.ErrUnknownOutcome)
	})
}

// F12, E02. Our own context ended while the answer was under way.
func TestAContextThatEndsMeanwhileIsAnUnknownOutcome(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		term := lead(t, newElector(t, s.Client(), nil))
		c := s.Client()
		c.Faults.On("Txn", etcdtest.LoseAnswer())
		for way, call := range calls {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			err := call(ctx, term.KV(c), "/data/"+way)
			cancel()
			require.ErrorIs(t, err, tenure.ErrUnknownOutcome, way)
			require.ErrorIs(t, err, context.DeadlineExceeded, way)
		}
		require.Len(t, s.Keys("/data/"), len(calls)-2, "all but the two deletes have happened")

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := term.KV(c).Put(ctx, "/data/a", "1")
		require.ErrorIs(t, err, tenure.ErrUnknownOutcome)
		require.ErrorIs(t, err, context.Canceled)

		// A read changes nothing, so it has no outcome to be unknown.
		c.Faults.On("Range", etcdtest.LoseAnswer())
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = term.KV(c).Get(ctx, "/data/a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, tenure.ErrUnknownOutcome)
	})
}

// E01. These are told apart by etcd's own error type; the gRPC status of them all
// is "unknown". The words and the state are the plain client's, as
// TestGuardedAnswersAreThePlainOnes shows.
func TestWhatEtcdRefusesIsNoUnknownOutcome(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		term := lead(t, newElector(t, s.Client(), nil))
		c := s.Client()
		kv := term.KV(c)
		_, err := c.Put(t.Context(), "/data/a", "1")
		require.NoError(t, err)
		before := values(s, "/data/")
		for name, tt := range map[string]struct {
			op   clientv3.Op
			want error
		}{
			"LeaseNotFound": {clientv3.OpPut("/data/a", "2", clientv3.WithLease(0xdead)), rpctypes.ErrLeaseNotFound},
			"DuplicateKey":  {clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("/data/a", "2"), clientv3.OpDelete("/data/a")}, nil), rpctypes.ErrDuplicateKey},
			"EmptyKey":      {clientv3.OpPut("", "2"), rpctypes.ErrEmptyKey},
			"KeyNotFound":   {clientv3.OpPut("/data/b", "", clientv3.WithIgnoreValue()), rpctypes.ErrKeyNotFound},
			"ValueProvided": {clientv3.OpPut("/data/a", "2", clientv3.WithIgnoreValue()), rpctypes.ErrValueProvided},
			"TooLarge":      {clientv3.OpPut("/data/a", strings.Repeat("x", 1800<<10)), rpctypes.ErrRequestTooLarge},
			"FutureRevision": {
				clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("/data/a", "2"), clientv3.OpGet("/data/a", clientv3.WithRev(1_000_000))}, nil),
				rpctypes.ErrFutureRev,
			},
		} {
			_, err := kv.Do(t.Context(), tt.op)
			require.ErrorIs(t, err, tt.want, name)
			require.Equal(t, tt.want, err, "%s: the plain client's error", name)
		}
		for _, refusal := range []error{
			rpctypes.ErrGRPCRequestTooManyRequests, rpctypes.ErrGRPCPermissionDenied, rpctypes.ErrGRPCInvalidAuthMgmt,
			rpctypes.ErrGRPCCompacted, status.Error(codes.FailedPrecondition, ""), status.Error(codes.Unimplemented, ""), status.Error(codes.Unauthenticated, ""),
		} {
			c.Faults.Next("Txn", etcdtest.FailRequest(refusal))
			_, err := kv.Put(t.Context(), "/data/a", "2")
			require.Equal(t, rpctypes.Error(refusal), err)
		}
		require.Equal(t, before, values(s, "/data/"))
		require.True(t, term.Valid())
	})
}

func TestAContextThatHasEndedSendsNothing(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		term := lead(t, newElector(t, s.Client(), nil))
		c := s.Client()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for _, kv := range []clientv3.KV{term.KV(c), term.Fence().KV(c)} {
			for way, call := range calls {
				require.Equal(t, context.Canceled, call(ctx, kv, "/data/a"), "%s: the outcome is known", way)
			}
		}
		require.Zero(t, c.Faults.Count(""))
	})
}

// F13. The renewals hang, so the term ends here while the key still stands there,
// and etcd would still accept its fence.
func TestTermKVRefusesAfterALocalLoss(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c, worker := s.Client(), s.Client()
		term := lead(t, newElector(t, c, nil))
		kv := term.KV(worker)
		c.Faults.On("LeaseKeepAlive", etcdtest.LoseRequest())
		time.Sleep(time.Until(term.ValidUntil()) - time.Millisecond)
		_, err := kv.Put(t.Context(), "/data/a", "at the last moment")
		require.NoError(t, err)
		sent := worker.Faults.Count("")
		time.Sleep(time.Millisecond)

		for way, call := range calls {
			err := call(t.Context(), kv, "/data/a")
			require.ErrorIs(t, err, tenure.ErrTermEnded, way)
			require.ErrorIs(t, err, tenure.LeaseExpired, way)
			require.NotErrorIs(t, err, tenure.ErrFenced, way)
			require.NotErrorIs(t, err, tenure.ErrUnknownOutcome, way)
		}
		require.Equal(t, sent, worker.Faults.Count(""), "something was sent")
		resp, err := kv.Get(t.Context(), "/data/a")
		require.NoError(t, err, "reading needs no term")
		require.Equal(t, "at the last moment", string(resp.Kvs[0].Value))

		require.Len(t, s.Keys(key), 1, "the key is gone, so this shows nothing")
		_, err = term.Fence().KV(worker).Put(t.Context(), "/data/a", "2")
		require.NoError(t, err, "the fence alone knows no clock")
	})
}

// While the work stops in order the term is still held, and what it has begun it
// may finish.
func TestTermKVWorksWhileTheWorkDrains(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		ctx, cancel := context.WithCancel(t.Context())
		var kv clientv3.KV
		var first, last error
		done := startRun(ctx, newElector(t, c, nil), func(ctx context.Context, term *tenure.Term) error {
			kv = term.KV(c)
			cancel()
			<-ctx.Done()
			_, first = kv.Put(context.WithoutCancel(ctx), "/data/first", "")
			time.Sleep(25 * time.Second) // more than the TTL, less than StopTimeout
			_, last = kv.Put(context.WithoutCancel(ctx), "/data/last", "")
			return nil
		})
		require.ErrorIs(t, etcdtest.Await(t, time.Minute, "Run", done), context.Canceled)
		require.NoError(t, first)
		require.NoError(t, last)
		require.Len(t, s.Keys("/data/"), 2)
		_, err := kv.Put(t.Context(), "/data/late", "")
		require.ErrorIs(t, err, tenure.ErrTermEnded)
		require.Len(t, s.Keys("/data/"), 2)
	})
}

// The watch is deaf, and no renewal is due: the write is the first to tell.
func TestAFencedWriteEndsTheTerm(t *testing.T) {
	for way, call := range calls {
		t.Run(way, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				term := lead(t, newElector(t, c, nil))
				c.Faults.On("Watch", etcdtest.LoseAnswer())
				_, err := s.Admin().Delete(t.Context(), key)
				require.NoError(t, err)
				require.True(t, term.Valid())

				// The fence alone belongs to no term of this process.
				worker := s.Client()
				require.ErrorIs(t, call(t.Context(), term.Fence().KV(worker), "/data/a"), tenure.ErrFenced)
				require.True(t, term.Valid())

				require.ErrorIs(t, call(t.Context(), term.KV(worker), "/data/a"), tenure.ErrFenced)
				require.False(t, term.Valid())
				require.Equal(t, tenure.Fenced, context.Cause(term.Context()))
				require.Equal(t, tenure.Fenced, term.Err())

				sent := worker.Faults.Count("")
				require.ErrorIs(t, call(t.Context(), term.KV(worker), "/data/a"), tenure.Fenced)
				require.Equal(t, sent, worker.Faults.Count(""))
				require.Empty(t, s.Keys("/data/"))
			})
		})
	}
}

// F14. The wrapper goes around the guard.
func TestANamespaceAroundTheGuardWorks(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		term := lead(t, newElector(t, s.Client(), nil))
		c := s.Client()
		kv := namespace.NewKV(term.KV(c), "/data/")
		for way, call := range calls {
			require.NoError(t, call(t.Context(), kv, way))
		}
		require.Len(t, s.Keys("/data/"), len(calls)-2)
		put, err := kv.Put(t.Context(), "Put", "y", clientv3.WithPrevKV())
		require.NoError(t, err)
		require.Equal(t, "Put", string(put.PrevKv.Key))
		txn, err := kv.Txn(t.Context()).
			If(clientv3.Compare(clientv3.Value("Put"), "=", "y")).
			Then(clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpGet("Put")}, nil)).
			Commit()
		require.NoError(t, err)
		require.True(t, txn.Succeeded)
		require.Equal(t, "Put", string(txn.Responses[0].GetResponseTxn().Responses[0].GetResponseRange().Kvs[0].Key))
		del, err := kv.Delete(t.Context(), "", clientv3.WithPrefix(), clientv3.WithPrevKV())
		require.NoError(t, err)
		require.Len(t, del.PrevKvs, len(calls)-2)
		require.Empty(t, s.Keys("/data/"))

		// A namespace may contain the election's key. It is not less reserved.
		around := namespace.NewKV(term.KV(c), "/scheduler/")
		_, err = around.Put(t.Context(), "leader", "x")
		require.ErrorContains(t, err, "would change the election's key")
		_, err = around.Delete(t.Context(), "", clientv3.WithPrefix())
		require.ErrorContains(t, err, "would change the election's key")

		require.NoError(t, term.Resign())
		_, err = namespace.NewKV(term.Fence().KV(c), "/data/").Put(t.Context(), "a", "1")
		require.ErrorIs(t, err, tenure.ErrFenced)
		require.Empty(t, s.Keys("/data/"))
	})
}

// F14. The other way around the guard looks at a key that is not the election's.
// Then everything is refused, even if somebody has put a key there.
func TestANamespaceInsideTheGuardFailsClosed(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		term := lead(t, newElector(t, s.Client(), nil))
		c := s.Client()
		kv := term.Fence().KV(namespace.NewKV(c, "/data"))
		for range 2 {
			for way, call := range calls {
				require.ErrorIs(t, call(t.Context(), kv, "/a"), tenure.ErrFenced, way)
			}
			require.Empty(t, s.Keys("/data/a"))
			_, err := s.Admin().Put(t.Context(), "/data"+key, string(s.Keys(key)[0].Value), clientv3.WithLease(term.Fence().Lease))
			require.NoError(t, err)
		}
	})
}

// F15.
func TestGuardedKeysOutliveTheTerm(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		term := lead(t, newElector(t, c, nil))
		for way, call := range calls {
			require.NoError(t, call(t.Context(), term.KV(c), "/data/"+way))
		}
		for _, kv := range s.Keys("/data/") {
			require.Zero(t, kv.Lease, "%s", kv.Key)
		}
		before := values(s, "/data/")
		c.Link.Cut()
		time.Sleep(time.Minute)
		require.ErrorIs(t, term.Err(), tenure.LeaseExpired)
		require.Empty(t, s.Keys(key))
		require.Equal(t, before, values(s, "/data/"))
	})
}

// F09. A compare needs the permission to read, so a writer who may not read the
// election's key can write nothing through the fence.
func TestTheGuardNeedsToReadTheElectionsKey(t *testing.T) {
	etcdtest.BubbleWith(t, &etcdtest.ServerOptions{Auth: true}, func(t *testing.T, s *etcdtest.Server) {
		s.AddUser("leader", "pw", clientv3.PermissionType(clientv3.PermReadWrite), key)
		s.AddUser("worker", "pw", clientv3.PermissionType(clientv3.PermWrite), "/data/")
		s.AddUser("reader", "pw", clientv3.PermissionType(clientv3.PermRead), "/")
		term := lead(t, newElector(t, s.Client(etcdtest.As("leader", "pw")), nil))
		worker, reader := s.Client(etcdtest.As("worker", "pw")), s.Client(etcdtest.As("reader", "pw"))

		denied := func(c *etcdtest.Client) {
			t.Helper()
			for way, call := range calls {
				err := call(t.Context(), term.KV(c), "/data/a")
				require.Equal(t, rpctypes.ErrPermissionDenied, err, way)
			}
			require.Empty(t, s.Keys("/data/"))
			require.True(t, term.Valid(), "a permission says nothing about the term")
		}
		denied(worker)
		denied(reader)
		_, err := s.Admin().RoleGrantPermission(t.Context(), "worker", key, "", clientv3.PermissionType(clientv3.PermRead))
		require.NoError(t, err)
		for way, call := range calls {
			if way == "TxnElse" { // its own compare needs to read the data
				continue
			}
			require.NoError(t, call(t.Context(), term.KV(worker), "/data/"+way), way)
		}
		require.NotEmpty(t, s.Keys("/data/"))

		// Nothing more than that: the worker cannot take the election.
		_, err = worker.Put(t.Context(), key, "x")
		require.Equal(t, rpctypes.ErrPermissionDenied, err)
	})
}

// The leader sends its fence along with the job, and another process writes under
// it with a client of its own.
func TestAFenceWorksInAnotherProcess(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		term := lead(t, newElector(t, s.Client(), nil))
		sent, err := term.Fence().MarshalText()
		require.NoError(t, err)

		var received tenure.Fence
		require.NoError(t, received.UnmarshalText(sent))
		require.Equal(t, term.Fence(), received)
		kv := received.KV(s.Client())
		_, err = kv.Put(t.Context(), "/data/a", "1")
		require.NoError(t, err)
		require.NoError(t, term.Resign())
		_, err = kv.Put(t.Context(), "/data/a", "2")
		require.ErrorIs(t, err, tenure.ErrFenced)
		require.Equal(t, map[string]string{"/data/a": "1"}, values(s, "/data/"))
	})
}

func TestMisuseOfATxnPanicsAsTheClientDoes(t *testing.T) {
	step := map[byte]func(clientv3.Txn) clientv3.Txn{
		'i': func(txn clientv3.Txn) clientv3.Txn { return txn.If() },
		't': func(txn clientv3.Txn) clientv3.Txn { return txn.Then() },
		'e': func(txn clientv3.Txn) clientv3.Txn { return txn.Else() },
	}
	// panics reports whether one of the steps does.
	panics := func(txn clientv3.Txn, steps string) (value any) {
		defer func() { value = recover() }()
		for i := range steps {
			txn = step[steps[i]](txn)
		}
		return nil
	}
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		kv := tenure.Fence{Key: key, Epoch: 1, Lease: 1}.KV(c)
		sequences := []string{""}
		for range 3 {
			for _, sequence := range sequences {
				for letter := range step {
					sequences = append(sequences, sequence+string(letter))
				}
			}
		}
		misused := make(map[string]bool)
		for _, sequence := range sequences {
			want := panics(c.Txn(t.Context()), sequence)
			got := panics(kv.Txn(t.Context()), sequence)
			require.Equal(t, want != nil, got != nil, "steps %q: the client panics with %v, the guard with %v", sequence, want, got)
			if got != nil {
				require.Contains(t, got, "tenure: ", "steps %q", sequence)
				misused[sequence] = true
			}
		}
		for _, sequence := range []string{"ii", "tt", "ee", "ti", "ei", "et", "itt"} {
			require.True(t, misused[sequence], "steps %q", sequence)
		}
		require.PanicsWithValue(t, "Unknown op", func() { _, _ = c.Do(t.Context(), clientv3.Op{}) })
		_, err := kv.Do(t.Context(), clientv3.Op{})
		require.ErrorContains(t, err, "unknown kind")
	})
}

// otherEndpoints returns the endpoints of all members of a cluster but one.
func otherEndpoints(cluster *etcdtest.Cluster, member int) (others []string) {
	for i := range cluster.Members {
		if i != member {
			others = append(others, cluster.Endpoint(i))
		}
	}
	return others
}

// F11. A member that has lost the others knows only what was. Reads through the
// guard are the client's, linearizable unless asked to be otherwise, so a new
// leader does not build on an old state.
func TestReadsThroughTheGuardAreNotStale(t *testing.T) {
	cluster := etcdtest.StartCluster(t, 3)
	lagging := (cluster.Leader() + 1) % 3
	c, at := cluster.Client(etcdtest.At(otherEndpoints(cluster, lagging)...)), cluster.Client(etcdtest.At(cluster.Endpoint(lagging)))
	term := lead(t, newElector(t, c, nil))
	kv := term.KV(at)
	read := func(opts ...clientv3.OpOption) string {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		resp, err := kv.Get(ctx, "/data/a", opts...)
		if err != nil {
			return "an error"
		}
		if len(resp.Kvs) == 0 {
			return "nothing"
		}
		return string(resp.Kvs[0].Value)
	}
	_, err := term.KV(c).Put(t.Context(), "/data/a", "old")
	require.NoError(t, err)
	etcdtest.Eventually(t, 10*time.Second, "Get(WithSerializable)", "old", func() string { return read(clientv3.WithSerializable()) })

	cluster.Partition(lagging)
	_, err = c.Put(t.Context(), "/data/a", "new")
	require.NoError(t, err)
	require.Equal(t, "old", read(clientv3.WithSerializable()), "the member does not lag, so this shows nothing")
	require.Equal(t, "an error", read())
	cluster.Mend(lagging)
	etcdtest.Eventually(t, 30*time.Second, "Get()", "new", func() string { return read() })
}

// F05, F12. The member that leads etcd is cut off with the leader's client. What
// the leader writes there is never applied, although it may be in that member's
// log, and must not come back when the member does.
func TestAWriteToAnIsolatedMemberNeverLands(t *testing.T) {
	cluster := etcdtest.StartCluster(t, 3)
	isolated := cluster.Leader()
	at := cluster.Client(etcdtest.At(cluster.Endpoint(isolated)))
	first := lead(t, newElector(t, at, &tenure.Options{TTL: 2 * time.Second}))
	_, err := first.KV(at).Put(t.Context(), "/data/a", "first")
	require.NoError(t, err)

	cluster.Partition(isolated)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = first.Fence().KV(at).Put(ctx, "/data/a", "late")
	require.ErrorIs(t, err, tenure.ErrUnknownOutcome)

	c := cluster.Client(etcdtest.At(otherEndpoints(cluster, isolated)...))
	second := lead(t, newElector(t, c, nil))
	require.Greater(t, second.Epoch(), first.Epoch())
	require.False(t, first.Valid())
	_, err = second.Fence().KV(c).Put(t.Context(), "/data/a", "second")
	require.NoError(t, err)

	cluster.Mend(isolated)
	for member := range 3 {
		kv := first.Fence().KV(cluster.Client(etcdtest.At(cluster.Endpoint(member))))
		fenced := func() bool {
			wctx, wcancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer wcancel()
			_, err := kv.Put(wctx, "/data/a", "late")
			require.Error(t, err)
			return errors.Is(err, tenure.ErrFenced)
		}
		etcdtest.Eventually(t, 30*time.Second, "Put() is fenced", true, fenced)
		require.Equal(t, "second", string(cluster.Keys("/data/a")[0].Value))
	}
}

// A fence is of the election, not of etcd's leader: it holds while the members
// change places.
func TestAFenceHoldsThroughChangesOfEtcdsLeader(t *testing.T) {
	cluster := etcdtest.StartCluster(t, 3)
	c := cluster.Client()
	term := lead(t, newElector(t, c, &tenure.Options{TTL: 30 * time.Second}))
	written := func(value string) func() bool {
		return func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := term.KV(c).Put(ctx, "/data/a", value)
			require.NotErrorIs(t, err, tenure.ErrFenced)
			require.NotErrorIs(t, err, tenure.ErrTermEnded)
			if err != nil {
				require.ErrorIs(t, err, tenure.ErrUnknownOutcome)
			}
			return err == nil
		}
	}
	cluster.MoveLeader((cluster.Leader() + 1) % 3)
	etcdtest.Eventually(t, 30*time.Second, "Put() after etcd's leader has moved", true, written("1"))
	stopped := cluster.Leader()
	cluster.Stop(stopped)
	etcdtest.Eventually(t, 30*time.Second, "Put() after etcd's leader has stopped", true, written("2"))
	cluster.Restart(stopped)
	etcdtest.Eventually(t, 30*time.Second, "Put() after it is back", true, written("3"))
	require.Equal(t, "3", string(cluster.Keys("/data/a")[0].Value))
	require.Equal(t, int64(term.Epoch()), cluster.Keys(key)[0].CreateRevision)
}

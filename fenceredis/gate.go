package fenceredis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/tenure-go/tenure"
)

// Gate is the check in Redis. It accepts the fence it has seen last, and any of a
// higher epoch, which it then remembers; it refuses a lower epoch, and the same
// epoch on another lease, with [tenure.ErrFenced]. A gate is for one election, the
// first whose fence it sees, and refuses the fences of others with an error.
//
// A Gate keeps no state of its own: two with one key, in whatever processes, are
// one gate. It is also a [tenure.GateMemory] for the gate of a service. All
// methods may be called concurrently.
//
// # Deadlines
//
// By its own default go-redis does not end a request when ctx ends, but after its
// ReadTimeout, three seconds. Set ContextTimeoutEnabled in its options to have
// both.
type Gate struct {
	client redis.UniversalClient
	key    string
	tag    string // what every key must be tagged with; "" for a single server
}

var _ tenure.GateMemory = (*Gate)(nil)

// New returns the gate that remembers in key. It sends nothing.
//
// The key must have a hash tag if client is for a cluster. A [redis.Ring] is
// refused: when a server of it is away, its keys move to others, which know of no
// fence.
func New(client redis.UniversalClient, key string) (*Gate, error) {
	if client == nil {
		return nil, errors.New("fenceredis: the client is nil")
	}
	if key == "" {
		return nil, errors.New("fenceredis: the gate's key is empty")
	}
	g := &Gate{client: client, key: key}
	if tag := hashed(key); tag != key {
		g.tag = tag
	}
	switch client.(type) {
	case *redis.Ring:
		return nil, errors.New("fenceredis: a Ring cannot keep a gate: it moves keys to servers that know of no fence")

	case *redis.ClusterClient:
		if g.tag == "" {
			return nil, fmt.Errorf("fenceredis: the gate's key %q has no hash tag, which a cluster needs, as in {orders}:fence", key)
		}
	}
	return g, nil
}

// Do checks fence and runs one command, such as "SET", key, value, in one step.
// The arguments are those of [redis.Client.Do].
//
// The command's error comes as it is, [redis.Nil] included. Otherwise the error is
//
//   - [tenure.ErrFenced]: the gate has refused the fence and nothing was written;
//     [tenure.LeaderOf] tells the fence that the gate has seen.
//   - [tenure.ErrUnknownOutcome]: the answer is missing. The command was sent once
//     at the most: the client's MaxRetries does not apply to it.
//   - A description of a fence that is not valid or belongs to another election,
//     or of a key that has not the gate's hash tag; or the error of ctx, or of a
//     connection that could not be made. Nothing was sent.
//
// Do sees the keys of Redis's own commands, those after STORE in SORT and
// GEORADIUS aside. A command of a module is taken to have one key, as its first
// argument; give others to [Gate.Run] with their keys. FLUSHALL, FLUSHDB and
// SWAPDB, which would take the gate's memory away, are refused, and so is any
// command on the gate's own key.
//
// The answer passes through Lua, as that of any script: it has the form of
// protocol version 2, and integers beyond 2^53 lose their last digits in the
// answer, though not in the database.
func (g *Gate) Do(ctx context.Context, fence tenure.Fence, args ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, args...)
	keys, err := keysOf(args)
	if err != nil {
		cmd.SetErr(err)
		return cmd
	}
	return g.run(ctx, cmd, fence, command, keys, args)
}

// Run checks fence and runs script, if it passes, in one step. It is for several
// commands at once, and for those that depend on what is there:
//
//	var credit = fenceredis.NewScript(`
//		redis.call('XADD', KEYS[2], '*', 'amount', ARGV[1])
//		return redis.call('HINCRBY', KEYS[1], 'balance', ARGV[1])`)
//
//	balance, err := gate.Run(ctx, fence, credit, []string{"{orders}:42", "{orders}:log"}, 5).Int64()
//
// The script sees keys and args as KEYS and ARGV, as always. It must not touch
// the gate's key. Everything else is as for [Gate.Do].
func (g *Gate) Run(ctx context.Context, fence tenure.Fence, script *Script, keys []string, args ...any) *redis.Cmd {
	return g.run(ctx, redis.NewCmd(ctx, script.request("evalsha", script.hash, keys, args)...), fence, script, keys, args)
}

// Seal shuts out every epoch below fence's, and writes nothing else. A new leader
// seals before it reads the state that it will build on. The errors are those of
// [Gate.Do]. To seal a fence again is allowed, also after an unknown outcome.
func (g *Gate) Seal(ctx context.Context, fence tenure.Fence) error {
	return g.run(ctx, redis.NewCmd(ctx), fence, seal, nil, nil).Err()
}

// run fills cmd with the answer.
func (g *Gate) run(ctx context.Context, cmd *redis.Cmd, fence tenure.Fence, script *Script, keys []string, args []any) *redis.Cmd {
	value, err := g.call(ctx, fence, script, keys, args)
	cmd.SetVal(value)
	cmd.SetErr(err)
	return cmd
}

func (g *Gate) call(ctx context.Context, fence tenure.Fence, script *Script, keys []string, args []any) (any, error) {
	text, err := fence.MarshalText()
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if err := g.check(key); err != nil {
			return nil, err
		}
	}
	if len(args) > maxArgs {
		return nil, fmt.Errorf("fenceredis: %d arguments: the server's Lua takes at most %d", len(args), maxArgs)
	}
	if err := ctx.Err(); err != nil {
		return nil, err // nothing was sent, so the outcome is known
	}
	keys = append([]string{g.key}, keys...)
	args = append([]any{text}, args...)
	value, err := g.send(ctx, script.request("evalsha", script.hash, keys, args))
	if redis.HasErrorPrefix(err, "NOSCRIPT") { // the server has been restarted, or has never seen it
		value, err = g.send(ctx, script.request("eval", script.source, keys, args))
	}
	return value, g.explain(fence, err)
}

// check returns an error if key is not one that this gate can guard.
func (g *Gate) check(key string) error {
	switch {
	case key == g.key:
		return fmt.Errorf("fenceredis: a guarded write to %q would change the gate's own memory", key)
	case g.tag != "" && hashed(key) != g.tag:
		return fmt.Errorf("fenceredis: the key %q does not have the hash tag {%s} of the gate's key %q", key, g.tag, g.key)
	}
	return nil
}

// once is a command that go-redis never sends a second time by itself. After a
// lost answer it would, and a command that was applied would be applied again.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

func (g *Gate) send(ctx context.Context, request []any) (any, error) {
	cmd := once{redis.NewCmd(ctx, request...)}
	cmd.SetFirstKeyPos(3)
	if err := g.client.Process(ctx, cmd); err != nil {
		return nil, err
	}
	return cmd.Result()
}

// explain tells a refusal, an answer and an unknown outcome apart.
func (g *Gate) explain(fence tenure.Fence, err error) error {
	if err == nil {
		return nil
	}
	reply, answered := errors.AsType[redis.Error](err)
	switch {
	case answered:
		word, text, _ := strings.Cut(reply.Error(), " ")
		if word != refused {
			return err
		}
		var seen tenure.Fence
		if err := seen.UnmarshalText([]byte(text)); err != nil {
			return fmt.Errorf("fenceredis: the gate's key %q does not hold a fence: %w", g.key, err)
		}
		if seen.String() != text { // as 042:…, which the script does not take for a fence
			return fmt.Errorf("fenceredis: the gate's key %q holds %q, which is not the text form of a fence", g.key, text)
		}
		if seen.Key != fence.Key {
			return fmt.Errorf("fenceredis: a fence of %q at a gate of %q", fence.Key, seen.Key)
		}
		return tenure.FencedBy(seen)

	case unsent(err):
		return err

	default:
		return fmt.Errorf("%w: %w", tenure.ErrUnknownOutcome, err)
	}
}

// unsent reports whether err says that there was no connection to send on. An
// ended context is not among these: it may have ended the wait for the answer.
func unsent(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return true
	}
	return errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) || errors.Is(err, redis.ErrClosed)
}

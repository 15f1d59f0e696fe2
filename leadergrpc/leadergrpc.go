package leadergrpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/resolver"

	"github.com/tenure-go/tenure"
)

// Scheme is the scheme of the targets.
const Scheme = "tenure"

// Target returns the target of the election of key: tenure:/// and the key, with
// URL escapes. Every key but the empty one has a target.
func Target(key string) string {
	return (&url.URL{Scheme: Scheme, Path: "/" + key}).String()
}

// keyOf is the inverse of [Target].
func keyOf(target resolver.Target) (string, error) {
	u := target.URL
	key, ok := strings.CutPrefix(u.Path, "/")
	if !ok || key == "" || u.Host != "" || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return "", fmt.Errorf("leadergrpc: the target is %q: it must be %s:/// and the key of an election, with URL escapes, and nothing else", u.String(), Scheme)
	}
	return key, nil
}

// Options configure a builder. A nil *Options and the zero value of each field mean
// the defaults.
type Options struct {
	// Address tells how the gRPC server of leader is reached: by another port, by
	// a field of the metadata, under a ServerName. An error, or an address without
	// Addr, fails the calls until the leader announces something else. It is called
	// on the resolver's goroutine, for each change of the leader's record and each
	// outage of etcd that begins or ends, and holds up what comes next until it
	// returns. The connection stays as long as the address is equal to the one
	// before, its attributes included. If the builder serves several connections,
	// Address must be safe for concurrent use.
	//
	// Default: Leader.Address, which must be host:port or unix:path. A host that
	// is missing or unspecified, as in ":8443" and "0.0.0.0:8443", is an error: it
	// says where the leader listens, and a client would reach its own machine.
	Address func(leader tenure.Leader) (resolver.Address, error)
}

// NewBuilder returns a builder of resolvers that follow elections of client's etcd,
// for grpc.WithResolvers, or for [resolver.Register] at the start of a program.
// Connections use client, and none closes it: close it after them. A nil client is
// reported by the calls, like all that makes following an election impossible.
func NewBuilder(client *clientv3.Client, opts *Options) resolver.Builder {
	b := &builder{client: client, address: addressOf}
	if opts != nil && opts.Address != nil {
		b.address = opts.Address
	}
	return b
}

type builder struct {
	client  *clientv3.Client
	address func(tenure.Leader) (resolver.Address, error)
}

func (b *builder) Scheme() string { return Scheme }

func (b *builder) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	key, err := keyOf(target)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &leaderResolver{key: key, address: b.address, cc: cc, cancel: cancel, done: make(chan struct{})}
	go r.follow(ctx, b.client)
	return r, nil
}

// leaderResolver keeps one connection informed. Its goroutine owns all that is not
// set by Build, and is waited for by Close.
type leaderResolver struct {
	key     string
	address func(tenure.Leader) (resolver.Address, error)
	cc      resolver.ClientConn
	cancel  context.CancelFunc
	done    chan struct{}

	given bool // cc has an address
}

// ResolveNow does nothing: the watch tells of a new leader before anybody could
// ask, and Observe itself reads the key now and then, in case the watch is deaf.
func (r *leaderResolver) ResolveNow(resolver.ResolveNowOptions) {}

// Close ends the watch and returns when the goroutine has ended.
func (r *leaderResolver) Close() {
	r.cancel()
	<-r.done
}

// follow shows cc each status of the election until ctx ends, or until there will
// never be another one.
func (r *leaderResolver) follow(ctx context.Context, client *clientv3.Client) {
	defer close(r.done)
	for st, err := range tenure.Observe(ctx, client, r.key) {
		if err != nil {
			// The last leader would be called for ever, whoever leads.
			r.withdraw(fmt.Errorf("leadergrpc: the election %q cannot be followed any more: %w", r.key, err))
			return
		}
		r.show(st)
	}
}

// show makes cc follow st.
func (r *leaderResolver) show(st tenure.Status) {
	switch {
	case st.State == tenure.Led, st.State == tenure.Unreachable && st.Leader.Fence.Epoch != 0:
	case st.State == tenure.Unreachable:
		r.withdraw(fmt.Errorf("leadergrpc: the election %q is unreachable since %s, and no leader is known: %w", r.key, st.Since.Format(time.RFC3339), st.Err))
		return
	default:
		r.withdraw(fmt.Errorf("leadergrpc: the election %q is %v", r.key, st.State))
		return
	}
	addr, err := r.address(st.Leader)
	if err == nil && addr.Addr == "" {
		err = errors.New("it has no address")
	}
	if err != nil {
		r.withdraw(fmt.Errorf("leadergrpc: the leader of %q, %q in epoch %d, cannot be called: %w", r.key, st.Leader.Identity, st.Leader.Fence.Epoch, err))
		return
	}
	// The fence makes each term's address another one, so that a new term is dialled
	// anew. A connection of the term before to the same host and port may be half
	// open, or lead to a machine that has gone.
	addr.Attributes = addr.Attributes.WithValue(fenceKey{}, st.Leader.Fence)
	r.given = true
	r.update(resolver.State{
		Addresses:  []resolver.Address{addr},
		Attributes: attributes.New(statusKey{}, known{st}),
	})
}

// withdraw takes the address away that cc has, if it has one, and with it the
// connection. It leaves calls with err.
func (r *leaderResolver) withdraw(err error) {
	// As long as pick_first has an address, it ignores an error. But if it has none
	// it must not be told so: a call may be waiting for the first news, and would
	// fail with that in place of err.
	if r.given {
		r.given = false
		r.update(resolver.State{})
	}
	r.cc.ReportError(err)
}

// update ignores that a policy wants another state: when there is one it is shown.
// Without an address it always does.
func (r *leaderResolver) update(s resolver.State) { _ = r.cc.UpdateState(s) }

// addressOf is the default of Options.Address.
func addressOf(leader tenure.Leader) (resolver.Address, error) {
	addr := leader.Address
	if addr == "" {
		return resolver.Address{}, errors.New("it publishes no address")
	}
	if path, ok := strings.CutPrefix(addr, "unix:"); ok && path != "" {
		return resolver.Address{Addr: addr}, nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return resolver.Address{}, fmt.Errorf("it publishes the address %q: it must be host:port or unix:path", addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return resolver.Address{}, fmt.Errorf("it publishes the address %q: the port must be a number from 1 to 65535", addr)
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		return resolver.Address{}, fmt.Errorf("it publishes the address %q: it must name a host that others can reach", addr)
	}
	return resolver.Address{Addr: addr}, nil
}

// StatusOf returns the status of the election from which the address of state
// comes, and false if it has none or is not of this package's resolver. A leader
// whose status is [tenure.Unreachable] is stale: it is the last one known, and Seen
// says when etcd was heard. A balancer finds the state in what it is updated with,
// others by wrapping the [resolver.ClientConn] that is passed to Build.
func StatusOf(state resolver.State) (tenure.Status, bool) {
	k, ok := state.Attributes.Value(statusKey{}).(known)
	return k.Status, ok
}

type (
	statusKey struct{} // of a state
	fenceKey  struct{} // of an address
)

// known is a status as the value of an attribute. Those are compared, which a
// status, having a map, must not be.
type known struct{ tenure.Status }

// Equal reports whether o is of the same state and the same record.
func (k known) Equal(o any) bool {
	other, ok := o.(known)
	return ok && k.State == other.State && k.Leader.Fence == other.Leader.Fence && k.Leader.Revision == other.Leader.Revision
}

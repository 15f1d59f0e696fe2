package tenure_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/url"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/tenuretest"
)

// A service campaigns, works for as long as it leads, and writes with the fence
// of its term.
func Example() {
	ctx := context.Background()
	client, stop := startEtcd() // stands for the client that the service has
	defer stop()

	elector, err := tenure.New(client, "/scheduler/leader", &tenure.Options{TTL: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	// Run calls the function once per term, and again after every loss, until ctx ends.
	err = elector.Run(ctx, func(ctx context.Context, term *tenure.Term) error {
		kv := term.KV(client) // a clientv3.KV whose every write carries the fence
		for _, job := range []string{"/jobs/1", "/jobs/2"} {
			// ctx ends when the term does.
			if _, err := kv.Put(ctx, job, "done"); err != nil {
				return err // tenure.ErrFenced once we are replaced: Run campaigns again
			}
			fmt.Println(job, "done")
		}
		return nil // nothing is left to do: Run resigns and returns
	})
	fmt.Println("Run:", err)
	// Output:
	// /jobs/1 done
	// /jobs/2 done
	// Run: <nil>
}

// Campaign is for those who arrange their work themselves. The context bounds
// the campaign; the term has a context of its own.
func ExampleElector_Campaign() {
	client, stop := startEtcd()
	defer stop()

	elector, err := tenure.New(client, "/migration", nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	term, err := elector.Campaign(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_, err = term.KV(client).Put(term.Context(), "/schema/version", "7")
	fmt.Println("migrated:", err == nil)

	// When the work has stopped, and always.
	if err := term.Resign(); err != nil {
		log.Print(err) // the key expires by itself
	}
	fmt.Println("reason:", context.Cause(term.Context()))
	// Output:
	// migrated: true
	// reason: tenure: the term has ended: resigned
}

// TryCampaign does not wait: a periodic job runs on whichever instance is first,
// and the others skip it.
func ExampleElector_TryCampaign() {
	ctx := context.Background()
	client, stop := startEtcd()
	defer stop()

	report := func(node string) *tenure.Term {
		elector, err := tenure.New(client, "/report", &tenure.Options{Identity: node})
		if err != nil {
			log.Fatal(err)
		}
		term, err := elector.TryCampaign(ctx)
		if errors.Is(err, tenure.ErrHeld) {
			leader, _ := tenure.LeaderOf(err)
			fmt.Println(node, "skips:", leader.Identity, "is at it")
			return nil
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(node, "reports")
		return term
	}
	term := report("node-1")
	report("node-2")
	_ = term.Resign()
	// Output:
	// node-1 reports
	// node-2 skips: node-1 is at it
}

// A leader hands its fence to workers in other processes, as text. What they
// write is refused once the leader has been replaced, whether they know it or
// not.
func ExampleFence_KV() {
	ctx := context.Background()
	client, stop := startEtcd()
	defer stop()
	elector, err := tenure.New(client, "/scheduler/leader", nil)
	if err != nil {
		log.Fatal(err)
	}
	term, err := elector.Campaign(ctx)
	if err != nil {
		log.Fatal(err)
	}
	text, err := term.Fence().MarshalText() // into a header, a queue, a job's row
	if err != nil {
		log.Fatal(err)
	}

	// In the worker's process:
	work := func(result string) error {
		var fence tenure.Fence
		if err := fence.UnmarshalText(text); err != nil {
			return err
		}
		_, err := fence.KV(client).Put(ctx, "/jobs/1/result", result)
		return err
	}
	fmt.Println("written:", work("42") == nil)
	_ = term.Resign()
	fmt.Println("refused:", errors.Is(work("41"), tenure.ErrFenced))
	// Output:
	// written: true
	// refused: true
}

// A process that owns a resource of its own lets work in through a gate. Work of
// a later term shuts out the work of all earlier ones, and begins when the last
// of them has left.
func ExampleGate() {
	election := tenuretest.NewElection("/scheduler/leader") // needs no etcd
	old := election.Grant(nil)
	election.End(tenure.LeaseExpired)
	_ = old.Resign()
	term := election.Grant(nil)

	gate := tenure.NewGate("/scheduler/leader")
	ctx, leave, err := gate.Enter(context.Background(), old.Fence()) // late, but the gate cannot know
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		defer leave()
		<-ctx.Done() // the work stops
		fmt.Println("old work:", context.Cause(ctx))
	}()

	// A new leader seals before it reads the state that it will build on.
	if err := gate.Seal(context.Background(), term.Fence()); err != nil {
		log.Fatal(err)
	}
	fmt.Println("sealed")
	_, _, err = gate.Enter(context.Background(), old.Fence())
	fmt.Println("shut out:", errors.Is(err, tenure.ErrFenced))
	_ = term.Resign()
	// Output:
	// old work: tenure: fenced: the term has been replaced: "/scheduler/leader" is at epoch 2
	// sealed
	// shut out: true
}

// A client that talks to the leader follows the election without taking part.
func ExampleObserve() {
	client, stop := startEtcd()
	defer stop()
	elector, err := tenure.New(client, "/api/leader", &tenure.Options{Address: "10.0.0.7:8443"})
	if err != nil {
		log.Fatal(err)
	}

	var term *tenure.Term
	for status, err := range tenure.Observe(context.Background(), client, "/api/leader") {
		if err != nil {
			log.Fatal(err) // can never succeed
		}
		switch status.State {
		case tenure.Vacant:
			fmt.Println("nobody leads")
			if term != nil {
				return
			}
			if term, err = elector.Campaign(context.Background()); err != nil { // for something to happen
				log.Fatal(err)
			}
		case tenure.Led:
			fmt.Println("send requests to", status.Leader.Address)
			_ = term.Resign()
		default:
			fmt.Println(status.State, "since", status.Since)
		}
	}
	// Output:
	// nobody leads
	// send requests to 10.0.0.7:8443
	// nobody leads
}

// An operator sends the leader away before its machine is taken down. The leader
// stops its work first and then resigns, and lets another candidate win.
func ExampleEvict() {
	ctx, cancel := context.WithCancel(context.Background())
	client, stop := startEtcd()
	defer stop()
	elector, err := tenure.New(client, "/scheduler/leader", &tenure.Options{Identity: "node-1"})
	if err != nil {
		log.Fatal(err)
	}
	leading, done := make(chan struct{}), make(chan error)
	go func() {
		done <- elector.Run(ctx, func(ctx context.Context, term *tenure.Term) error {
			close(leading)
			<-ctx.Done()
			fmt.Println("the work stops:", context.Cause(ctx))
			return nil
		})
	}()
	<-leading

	leader, err := tenure.Lookup(ctx, client, "/scheduler/leader")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("evict", leader.Identity)
	if err := tenure.Evict(ctx, client, leader.Fence, nil); err != nil {
		log.Fatal(err)
	}
	fmt.Println("gone")
	cancel() // before it wins again, being alone
	<-done
	// Output:
	// evict node-1
	// the work stops: tenure: the term has ended: evicted
	// gone
}

// A leader may answer from its own state without asking etcd, in this order:
// read the state, then ask whether the term is valid, then answer. A term that
// is valid after the read was so during the read, and nobody else has written
// meanwhile.
func ExampleTerm_Valid() {
	election := tenuretest.NewElection("/registry/leader") // needs no etcd
	term := election.Grant(nil)

	state := map[string]string{"colour": "blue"}
	read := func(name string) (string, error) {
		answer := state[name]
		if !term.Valid() {
			return "", term.Err()
		}
		return answer, nil
	}
	fmt.Println(read("colour"))
	election.End(tenure.LeaseExpired)
	_, err := read("colour")
	fmt.Println(err)
	_ = term.Resign()
	// Output:
	// blue <nil>
	// tenure: the term has ended: lease expired
}

// A process that takes part in many elections shares one lease among them, so
// that they cost etcd one renewal.
func ExampleLease() {
	ctx := context.Background()
	client, stop := startEtcd()
	defer stop()

	lease, err := tenure.NewLease(client, &tenure.LeaseOptions{TTL: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	var terms []*tenure.Term
	for shard := range 3 {
		elector, err := tenure.New(client, fmt.Sprintf("/shards/%d/leader", shard), &tenure.Options{Lease: lease})
		if err != nil {
			log.Fatal(err)
		}
		term, err := elector.Campaign(ctx)
		if err != nil {
			log.Fatal(err)
		}
		terms = append(terms, term)
	}
	fmt.Println("one lease:", terms[0].Fence().Lease == terms[2].Fence().Lease)

	for _, term := range terms {
		_ = term.Resign()
	}
	fmt.Println("closed:", lease.Close(ctx))
	// Output:
	// one lease: true
	// closed: <nil>
}

// What an operator should know goes to a logger, and what the program should
// know to hooks.
func ExampleOptions() {
	client, stop := startEtcd()
	defer stop()

	opts := &tenure.Options{
		Identity: "node-1",
		Address:  "10.0.0.7:8443",
		Metadata: map[string]string{"zone": "b"},
		TTL:      10 * time.Second,
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Hooks: &tenure.Hooks{
			TermStarted: func(term *tenure.Term) { fmt.Println("leading") },
			TermEnded:   func(_ *tenure.Term, cause error) { fmt.Println("no longer leading:", cause) },
			Expiring:    func(_ *tenure.Term, left time.Duration) { fmt.Println("etcd is slow,", left, "left") },
		},
	}
	elector, err := tenure.New(client, "/scheduler/leader", opts)
	if err != nil {
		log.Fatal(err)
	}
	err = elector.Run(context.Background(), func(context.Context, *tenure.Term) error { return nil })
	fmt.Println("Run:", err)

	// All faults of the options are reported at once.
	_, err = tenure.New(client, "/scheduler/leader", &tenure.Options{StopTimeout: -time.Second, MinEpoch: -1})
	fmt.Println(err)
	// Output:
	// leading
	// no longer leading: tenure: the term has ended: resigned
	// Run: <nil>
	// tenure: Options.StopTimeout is -1s: it must be at least 1ms, or 0 for the default
	// tenure: Options.MinEpoch is -1: it must not be negative
}

// startEtcd starts an etcd of one member in the process and returns a client of
// it. Neither of them logs.
func startEtcd() (client *clientv3.Client, stop func()) {
	dir, err := os.MkdirTemp("", "tenure-example-")
	if err != nil {
		log.Fatal(err)
	}
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.UnsafeNoFsync = true
	cfg.TickMs, cfg.ElectionMs = 10, 100
	anyPort := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = anyPort, anyPort
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = anyPort, anyPort
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		log.Fatal(err)
	}
	<-server.Server.ReadyNotify()
	client, err = clientv3.New(clientv3.Config{Endpoints: []string{server.Clients[0].Addr().String()}, Logger: zap.NewNop()})
	if err != nil {
		log.Fatal(err)
	}
	return client, func() {
		_ = client.Close()
		server.Close()
		_ = os.RemoveAll(dir)
	}
}

package tenure_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/tenure-go/tenure"
)

// A gate that asks etcd lets only the present leader in, after a restart as well,
// and believes no epoch that somebody made up.
func ExampleNewGateWith() {
	ctx := context.Background()
	client, stop := startEtcd() // stands for the client that the service has
	defer stop()
	elector, err := tenure.New(client, "/scheduler/leader", nil)
	if err != nil {
		log.Fatal(err)
	}
	term, err := elector.Campaign(ctx)
	if err != nil {
		log.Fatal(err)
	}

	// In the process of the resource:
	gate := tenure.NewGateWith("/scheduler/leader", tenure.EtcdMemory(client))
	invented := tenure.Fence{Key: "/scheduler/leader", Epoch: 1 << 62, Lease: 1}
	fmt.Println("invented:", errors.Is(gate.Seal(ctx, invented), tenure.ErrFenced))
	fmt.Println("leader:", gate.Seal(ctx, term.Fence()))

	_ = term.Resign()
	gate = tenure.NewGateWith("/scheduler/leader", tenure.EtcdMemory(client)) // the service restarts
	fmt.Println("late:", errors.Is(gate.Seal(ctx, term.Fence()), tenure.ErrFenced))
	// Output:
	// invented: true
	// leader: <nil>
	// late: true
}

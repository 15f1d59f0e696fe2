package integration_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure/fencesql"
	"github.com/tenure-go/tenure/integration/internal/servers"
)

// BenchmarkGuardedTransactions compares transactions that check a fence, all of
// one term, with the same ones that do not. Plain and guarded stretches take
// turns within one run, so that the machine's moods meet both. The ratio is the
// throughput of the guarded to that of the plain; the check is one round trip
// more, so it depends on how many the transaction makes, and on what a commit
// costs: the server of the tests does not wait for its disk, a durable one does.
//
//	go test -run '^$' -bench GuardedTransactions -benchtime 10000x .
func BenchmarkGuardedTransactions(b *testing.B) {
	server := servers.PostgreSQL(b)
	d := &database{
		dialect: fencesql.PostgreSQL, driver: "pgx", dsn: server.DSN, server: server,
		serial: "id bigserial PRIMARY KEY",
	}
	for _, durable := range []string{"off", "on"} {
		db := d.open(b)
		for _, statement := range []string{"ALTER SYSTEM SET fsync = " + durable, "SELECT pg_reload_conf()"} {
			_, err := db.ExecContext(b.Context(), statement)
			require.NoError(b, err)
		}
		for _, writers := range []int{1, 16} {
			for _, inserts := range []int{1, 5} {
				b.Run(fmt.Sprintf("PostgreSQL/fsync=%s/writers=%d/inserts=%d", durable, writers, inserts), func(b *testing.B) {
					compare(b, d.fresh(b, db), writers, inserts)
				})
			}
		}
	}
}

func compare(b *testing.B, l *table, writers, inserts int) {
	b.Helper()
	const stretches = 10
	require.NoError(b, l.Seal(b.Context(), fenceOf(5)))
	each := max(b.N/writers/stretches, 1)
	run := func(guarded bool) time.Duration {
		start := time.Now()
		var all sync.WaitGroup
		for range writers {
			all.Go(func() {
				for range each {
					if err := l.transact(b.Context(), guarded, inserts); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		return time.Since(start)
	}
	run(true) // connections and statements are there before anybody is measured
	run(false)
	b.ResetTimer()
	var with, without time.Duration
	for range stretches {
		with += run(true)
		without += run(false)
	}
	b.ReportMetric(without.Seconds()/with.Seconds(), "guarded/plain")
	b.ReportMetric(float64(stretches*writers*each)/with.Seconds(), "guarded/s")
	b.ReportMetric(0, "ns/op")
}

func (l *table) transact(ctx context.Context, guarded bool, inserts int) error {
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it says so
	if guarded {
		if err := l.Check(ctx, tx, resource, fenceOf(5)); err != nil {
			return err
		}
	}
	for range inserts {
		if _, err := tx.ExecContext(ctx, "INSERT INTO entries (value) VALUES ('x')"); err != nil {
			return err
		}
	}
	return tx.Commit()
}

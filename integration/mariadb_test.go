package integration_test

import (
	"database/sql"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/integration/internal/fencecheck"
)

// MariaDB since 11.8 fails a transaction under REPEATABLE READ, its default, that
// locks a row which has changed since its snapshot. Older versions have the
// setting too.
func TestMariaDBWithSnapshotIsolation(t *testing.T) {
	d := mariadb(t)
	_, err := d.open(t).ExecContext(t.Context(), "SET GLOBAL innodb_snapshot_isolation = ON")
	if err != nil {
		t.Skipf("NOT TESTED, because this version has no such setting: %v", err)
	}
	// The setting is for connections that are made from now on.
	db := d.open(t)

	t.Run("SealsByManySucceed", func(t *testing.T) {
		l := d.fresh(t, db)
		for epoch := range tenure.Epoch(20) {
			var all sync.WaitGroup
			errs := make([]error, 8)
			for i := range errs {
				all.Go(func() { errs[i] = l.Seal(t.Context(), fenceOf(epoch+1)) })
			}
			all.Wait()
			require.NoError(t, errors.Join(errs...), "epoch %d", epoch+1)
		}
	})
	t.Run("FirstUseByManySucceedsAtReadCommitted", func(t *testing.T) {
		l := d.fresh(t, db)
		l.level = sql.LevelReadCommitted
		firstUseDoesNotDeadlock(t, l)
	})
	t.Run("HistoryIsFenced", func(t *testing.T) {
		fencecheck.Run(t, d.fresh(t, db), fencecheck.Options{Writes: 2000, Cut: true})
	})
	t.Run("OldSnapshotIsAnError", func(t *testing.T) {
		l := d.fresh(t, db)
		require.NoError(t, l.Seal(t.Context(), fenceOf(5)))
		tx := l.beginAt(t, sql.LevelRepeatableRead)
		var n int
		require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT count(*) FROM entries").Scan(&n))
		require.NoError(t, l.Seal(t.Context(), fenceOf(6)))
		require.ErrorContains(t, l.Check(t.Context(), tx, resource, fenceOf(5)), "changed since last read")
		require.ErrorIs(t, tx.Commit(), sql.ErrTxDone)
		requireFenced(t, l.Append(t.Context(), fenceOf(5), "again"), fenceOf(6))
	})
}

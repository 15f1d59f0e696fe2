package integration_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	_ "modernc.org/sqlite"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fencesql"
	"github.com/tenure-go/tenure/integration/internal/fencecheck"
	"github.com/tenure-go/tenure/integration/internal/servers"
)

const (
	election = "/scheduler/leader"
	resource = "orders"
	// limit is how long anything that does not hang may take.
	limit = 30 * time.Second
)

// database is one that fencesql can guard, and what differs between them.
type database struct {
	dialect fencesql.Dialect
	driver  string
	dsn     string
	server  *servers.Server // nil for SQLite, which has none

	serial string // the column that numbers rows
	cut    string // ends one's own connection
	// waiting counts those who wait for a lock; "" where nobody can tell.
	waiting string
	levels  []sql.IsolationLevel
}

func postgres(t *testing.T) *database {
	t.Helper()
	s := servers.PostgreSQL(t)
	return &database{
		dialect: fencesql.PostgreSQL, driver: "pgx", dsn: s.DSN, server: s,
		serial:  "id bigserial PRIMARY KEY",
		cut:     "SELECT pg_terminate_backend(pg_backend_pid())",
		waiting: "SELECT count(*) FROM pg_locks WHERE NOT granted",
		levels:  []sql.IsolationLevel{sql.LevelReadUncommitted, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable},
	}
}

func mariadb(t *testing.T) *database {
	t.Helper()
	s := servers.MariaDB(t)
	return &database{
		dialect: fencesql.MySQL, driver: "mysql", dsn: s.DSN, server: s,
		serial:  "id bigint AUTO_INCREMENT PRIMARY KEY",
		cut:     "KILL CONNECTION_ID()",
		waiting: "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
		levels:  []sql.IsolationLevel{sql.LevelReadUncommitted, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable},
	}
}

func sqlite(t *testing.T) *database {
	t.Helper()
	return &database{
		dialect: fencesql.SQLite, driver: "sqlite",
		dsn:    "file:" + filepath.Join(t.TempDir(), "db") + "?_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)",
		serial: "id INTEGER PRIMARY KEY AUTOINCREMENT",
		levels: []sql.IsolationLevel{sql.LevelDefault},
	}
}

func (d *database) open(t testing.TB) *sql.DB {
	t.Helper()
	return d.openAt(t, d.dsn)
}

func (d *database) openAt(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(d.driver, dsn)
	require.NoError(t, err)
	return limited(t, db)
}

// halting is open with a call before each statement.
func (d *database) halting(t testing.TB, before func()) *sql.DB {
	t.Helper()
	plain := d.open(t)
	return limited(t, sql.OpenDB(halting{driver: plain.Driver(), dsn: d.dsn, before: before}))
}

// limited keeps the connections of db few, and closes them in the end.
func limited(t testing.TB, db *sql.DB) *sql.DB {
	t.Helper()
	db.SetMaxOpenConns(24)
	db.SetMaxIdleConns(24)
	t.Cleanup(func() { _ = db.Close() }) // its error is that of a connection whose server was restarted
	return db
}

// fresh returns the tables of one test, empty.
func (d *database) fresh(t testing.TB, db *sql.DB) *table {
	t.Helper()
	fences, err := fencesql.New(d.dialect)
	require.NoError(t, err)
	for _, name := range []string{fencesql.DefaultTable, "entries"} {
		_, err = db.ExecContext(t.Context(), "DROP TABLE IF EXISTS "+name)
		require.NoError(t, err)
	}
	require.NoError(t, fences.Create(t.Context(), db))
	_, err = db.ExecContext(t.Context(), "CREATE TABLE entries ("+d.serial+", value varchar(64) NOT NULL)")
	require.NoError(t, err)
	return &table{Table: fences, database: d, db: db}
}

// table is a log in SQL, beside the table of fences.
type table struct {
	*fencesql.Table
	*database
	db    *sql.DB
	level sql.IsolationLevel
	guard string // what is wrong with the guard; "" for nothing
}

func (l *table) unguarded(how string) *table {
	l.guard = how
	return l
}

// The driver tells the standard error of every connection that is cut.
func init() {
	if err := mysql.SetLogger(log.New(io.Discard, "", 0)); err != nil {
		panic(err)
	}
}

var errCut = errors.New("the connection was cut")

// Append implements [fencecheck.Resource]. Having cut its connection it goes on
// as if nothing had happened, and claims success if the database does.
func (l *table) Append(ctx context.Context, fence tenure.Fence, value string) error {
	if l.guard == "check in another transaction" {
		if err := l.Table.Seal(ctx, l.db, resource, fence); err != nil {
			return err
		}
	}
	tx, err := l.db.BeginTx(ctx, &sql.TxOptions{Isolation: l.level})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it says so
	if l.guard == "" {
		if err := l.Check(ctx, tx, resource, fence); err != nil {
			return err
		}
	}
	if fencecheck.Between(ctx) {
		if l.database.cut == "" {
			return errCut
		}
		_, err = tx.ExecContext(ctx, l.database.cut)
		_ = err // that of a connection that is gone; the commit has the last word
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO entries (value) VALUES ('"+value+"')"); err != nil {
		return err
	}
	return tx.Commit()
}

func (l *table) Read(ctx context.Context) ([]string, error) {
	rows, err := l.db.QueryContext(ctx, "SELECT value FROM entries ORDER BY id")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var values []string
	for rows.Next() {
		var value string
		if err := rows.Scan(&value); err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	return values, rows.Err()
}

func (l *table) Seal(ctx context.Context, fence tenure.Fence) error {
	return l.Table.Seal(ctx, l.db, resource, fence)
}

func (l *table) begin(t testing.TB) *sql.Tx {
	t.Helper()
	return l.beginAt(t, l.level)
}

func (l *table) beginAt(t testing.TB, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx, err := l.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
	require.NoError(t, err)
	return tx
}

// put writes a value in tx, whether it may or not.
func put(t testing.TB, tx *sql.Tx, value string) {
	t.Helper()
	_, err := tx.ExecContext(t.Context(), "INSERT INTO entries (value) VALUES ('"+value+"')")
	require.NoError(t, err)
}

func (l *table) values(t testing.TB) []string {
	t.Helper()
	values, err := l.Read(t.Context())
	require.NoError(t, err)
	return values
}

// await waits until that many wait for a lock.
func (l *table) await(t testing.TB, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		var got int
		require.NoError(t, l.db.QueryRowContext(t.Context(), l.waiting).Scan(&got))
		return got == n
	}, limit, 150*time.Millisecond, "%d waiting", n) // MariaDB's answer stays the same for who asks within 0.1 s
}

func fenceOf(epoch tenure.Epoch) tenure.Fence {
	return tenure.Fence{Key: election, Epoch: epoch, Lease: clientv3.LeaseID(epoch + 100)}
}

func requireFenced(t testing.TB, err error, have tenure.Fence) {
	t.Helper()
	require.ErrorIs(t, err, tenure.ErrFenced)
	leader, ok := tenure.LeaderOf(err)
	require.True(t, ok, "LeaderOf(%v)", err)
	require.Equal(t, have, leader.Fence)
}

// going runs f on a goroutine of its own and returns where its error will be.
func going(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

func receive(t testing.TB, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err

	case <-time.After(limit):
		require.Fail(t, "still waiting", "after %v", limit)
		return nil
	}
}

func TestPostgreSQL(t *testing.T) { suite(t, postgres(t)) }
func TestMariaDB(t *testing.T)    { suite(t, mariadb(t)) }
func TestSQLite(t *testing.T)     { suite(t, sqlite(t)) }

// suite is what every database has to show.
func suite(t *testing.T, d *database) {
	t.Helper()
	for _, property := range []struct {
		name string
		test func(*testing.T, *table)
	}{
		{"HistoryIsFenced", historyIsFenced},
		{"HistoryOfShortTermsIsFenced", historyOfShortTermsIsFenced},
		{"FenceBroughtMeanwhileIsLocked", fenceBroughtMeanwhileIsLocked},
		{"HistoryIsFencedAtEveryIsolationLevel", historyIsFencedAtEveryLevel},
		{"HistoryShowsWhatIsNotGuarded", historyShowsWhatIsNotGuarded},
		{"FirstUseByManyDoesNotDeadlock", firstUseDoesNotDeadlock},
		{"OneTermRunsSideBySide", oneTermRunsSideBySide},
		{"NewerWaitsForOlderAndShutsItOut", newerWaitsForOlder},
		{"RolledBackTermHasNotHappened", rolledBackTermHasNotHappened},
		{"IgnoredErrorCannotCommit", ignoredErrorCannotCommit},
		{"OldSnapshotCannotCommit", oldSnapshotCannotCommit},
		{"RefusalTellsWho", refusalTellsWho},
		{"CheckedTransactionReadsWhatOlderOnesWrote", readsAreFresh},
		{"ExtremesArePreserved", extremesArePreserved},
		{"NamesAreTakenAsTheyAre", namesAreTakenAsTheyAre},
		{"CreateByManyAndNotOverAnother", createByMany},
		{"MemoryOfAGateSurvives", memorySurvives},
		{"RestartedServerRemembers", restartedServerRemembers},
	} {
		t.Run(property.name, func(t *testing.T) { property.test(t, d.fresh(t, d.open(t))) })
	}
}

func historyIsFenced(t *testing.T, l *table) {
	t.Helper()
	o := fencecheck.Options{Cut: true}
	if l.server != nil {
		o.Restart = l.server.Restart
	}
	h := fencecheck.Run(t, l, o)
	assert.Greater(t, h.Epochs, 20)
}

// Most transactions meet others that bring their term or the next one, and each
// may be held up before every statement. So between two statements of a check
// the row changes, as it hardly ever does otherwise.
func historyOfShortTermsIsFenced(t *testing.T, all *table) {
	t.Helper()
	l := *all
	l.db = all.halting(t, func() {
		if rand.IntN(3) == 0 {
			time.Sleep(rand.N(3 * time.Millisecond))
		}
	})
	fencecheck.Run(t, &l, fencecheck.Options{Writes: 2000, Spell: 8})
}

// Another transaction brings the same fence before each statement of a check in
// turn. Whoever is let in has a lock all the same: a newer term waits for it.
func fenceBroughtMeanwhileIsLocked(t *testing.T, all *table) {
	t.Helper()
	if all.dialect == fencesql.SQLite {
		t.Skip("SQLite has one writer at a time, from the first statement on")
	}
	for turn := 1; ; turn++ {
		l := all.fresh(t, all.db)
		require.NoError(t, l.Seal(t.Context(), fenceOf(4)))
		said := 0
		db := l.halting(t, func() {
			if said++; said == turn {
				// If the check has the lock by now, the seal waits for its end in vain.
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				_ = l.Seal(ctx, fenceOf(5))
			}
		})
		tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		require.NoError(t, err)
		require.NoError(t, l.Check(t.Context(), tx, resource, fenceOf(5)))
		if said < turn {
			require.NoError(t, tx.Rollback())
			require.Greater(t, turn, 2)
			return
		}
		newer := going(func() error { return l.Seal(t.Context(), fenceOf(6)) })
		l.await(t, 1)
		require.NoError(t, tx.Commit())
		require.NoError(t, receive(t, newer))
	}
}

// At the levels with snapshots PostgreSQL answers some with a serialization
// failure, and those that bring a term with an error; the history counts them as
// unknown and finds that they left nothing.
func historyIsFencedAtEveryLevel(t *testing.T, all *table) {
	t.Helper()
	for _, level := range all.levels {
		l := all.fresh(t, all.db)
		l.level = level
		t.Log(level)
		fencecheck.Run(t, l, fencecheck.Options{Writes: 1000, Cut: true})
	}
}

// The check can fail: on a table that nobody guards, and on one that is checked
// in a transaction other than the one that writes.
func historyShowsWhatIsNotGuarded(t *testing.T, l *table) {
	t.Helper()
	for _, guard := range []string{"none", "check in another transaction"} {
		var found error
		for range 10 { // chance decides; once is enough
			h, err := fencecheck.Drive(t.Context(), l.fresh(t, l.db).unguarded(guard), fencecheck.Options{Writes: 2000})
			require.NoError(t, err)
			if found = h.Check(); found != nil {
				break
			}
		}
		require.Error(t, found, guard)
		require.Regexp(t, "^(order|late): ", found.Error(), guard)
	}
}

// Several transactions bring the same new epoch at once, to a resource that has
// none and to one that has an older one. All of them get in.
func firstUseDoesNotDeadlock(t *testing.T, l *table) {
	t.Helper()
	const many = 8
	for round := range 20 {
		name := fmt.Sprintf("resource %d", round/2)
		fence := fenceOf(tenure.Epoch(1 + round%2))
		ready := make(chan struct{})
		var running sync.WaitGroup
		errs := make([]error, many)
		for i := range many {
			tx := l.begin(t)
			running.Go(func() {
				<-ready
				if errs[i] = l.Check(t.Context(), tx, name, fence); errs[i] != nil {
					return
				}
				if _, errs[i] = tx.ExecContext(t.Context(), "INSERT INTO entries (value) VALUES ('x')"); errs[i] == nil {
					errs[i] = tx.Commit()
				}
			})
		}
		close(ready)
		running.Wait()
		require.NoError(t, errors.Join(errs...), "round %d", round)
	}
	require.Len(t, l.values(t), 20*many)
}

func oneTermRunsSideBySide(t *testing.T, all *table) {
	t.Helper()
	if all.dialect == fencesql.SQLite {
		t.Skip("SQLite has one writer at a time")
	}
	for _, sealed := range []bool{true, false} {
		l := all.fresh(t, all.db)
		if sealed {
			require.NoError(t, l.Seal(t.Context(), fenceOf(5)))
		} else {
			require.NoError(t, l.Append(t.Context(), fenceOf(5), "first"))
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		var open []*sql.Tx
		for i := range 8 { // each is inside while the others are
			tx := l.begin(t)
			require.NoError(t, l.Check(ctx, tx, resource, fenceOf(5)), "transaction %d", i)
			put(t, tx, fmt.Sprint(i))
			open = append(open, tx)
		}
		for _, tx := range open {
			require.NoError(t, tx.Commit())
		}
		require.NoError(t, l.Seal(ctx, fenceOf(5)), "of a term that is there")
	}
}

func newerWaitsForOlder(t *testing.T, l *table) {
	t.Helper()
	require.NoError(t, l.Seal(t.Context(), fenceOf(5)))
	older := l.begin(t)
	require.NoError(t, l.Check(t.Context(), older, resource, fenceOf(5)))
	put(t, older, "older")

	if l.dialect == fencesql.SQLite {
		impatient := l.openAt(t, strings.Replace(l.dsn, "busy_timeout(20000)", "busy_timeout(0)", 1))
		require.ErrorContains(t, l.Table.Seal(t.Context(), impatient, resource, fenceOf(6)), "locked")
		require.NoError(t, older.Commit())
		require.NoError(t, l.Table.Seal(t.Context(), impatient, resource, fenceOf(6)))
		requireFenced(t, l.Append(t.Context(), fenceOf(5), "late"), fenceOf(6))
		return
	}

	newer := l.begin(t)
	brought := going(func() error { return l.Check(t.Context(), newer, resource, fenceOf(6)) })
	l.await(t, 1)
	// One of the old term that comes now must not slip past: zombies that write without a gap would hold the new term
	// off for ever.
	late := going(func() error { return l.Append(t.Context(), fenceOf(5), "late") })
	l.await(t, 2)
	select {
	case err := <-brought:
		require.Fail(t, "the newer did not wait", "%v", err)
	default:
	}
	put(t, older, "older still")
	require.NoError(t, older.Commit())
	require.NoError(t, receive(t, brought))
	l.await(t, 1)
	put(t, newer, "newer")
	require.NoError(t, newer.Commit())
	requireFenced(t, receive(t, late), fenceOf(6))
	require.Equal(t, []string{"older", "older still", "newer"}, l.values(t))
}

func rolledBackTermHasNotHappened(t *testing.T, l *table) {
	t.Helper()
	tx := l.begin(t) // there is no row yet
	require.NoError(t, l.Check(t.Context(), tx, resource, fenceOf(9)))
	require.NoError(t, tx.Rollback())
	require.NoError(t, l.Append(t.Context(), fenceOf(5), "5"))
	tx = l.begin(t)
	require.NoError(t, l.Check(t.Context(), tx, resource, fenceOf(9)))
	require.NoError(t, tx.Rollback())
	require.NoError(t, l.Append(t.Context(), fenceOf(5), "5 again"))
}

// Whatever Check returns an error for, what was written before and after cannot
// be committed.
func ignoredErrorCannotCommit(t *testing.T, l *table) {
	t.Helper()
	require.NoError(t, l.Seal(t.Context(), fenceOf(5)))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, check := range map[string]func(*sql.Tx) error{
		"older":         func(tx *sql.Tx) error { return l.Check(t.Context(), tx, resource, fenceOf(4)) },
		"not valid":     func(tx *sql.Tx) error { return l.Check(t.Context(), tx, resource, tenure.Fence{}) },
		"no name":       func(tx *sql.Tx) error { return l.Check(t.Context(), tx, "", fenceOf(5)) },
		"context ended": func(tx *sql.Tx) error { return l.Check(ended, tx, resource, fenceOf(5)) },
		"another election": func(tx *sql.Tx) error {
			return l.Check(t.Context(), tx, resource, tenure.Fence{Key: "/x", Epoch: 9, Lease: 9})
		},
		"after a savepoint": func(tx *sql.Tx) error {
			_, err := tx.ExecContext(t.Context(), "SAVEPOINT s")
			require.NoError(t, err)
			err = l.Check(t.Context(), tx, resource, fenceOf(4))
			_, undo := tx.ExecContext(t.Context(), "ROLLBACK TO SAVEPOINT s")
			require.Error(t, undo)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			tx := l.begin(t)
			put(t, tx, "before")
			require.Error(t, check(tx))
			_, err := tx.ExecContext(t.Context(), "INSERT INTO entries (value) VALUES ('after')")
			require.ErrorIs(t, err, sql.ErrTxDone)
			require.ErrorIs(t, tx.Commit(), sql.ErrTxDone)
			require.Empty(t, l.values(t))
		})
	}
	require.NoError(t, l.Append(t.Context(), fenceOf(5), "5"), "the connections go on being of use")
}

// A transaction that began, and has read, before a newer term was sealed.
func oldSnapshotCannotCommit(t *testing.T, all *table) {
	t.Helper()
	for _, level := range all.levels {
		l := all.fresh(t, all.db)
		require.NoError(t, l.Seal(t.Context(), fenceOf(5)))
		tx := l.beginAt(t, level)
		var n int
		require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT count(*) FROM entries").Scan(&n))
		require.NoError(t, l.Seal(t.Context(), fenceOf(6)))
		err := l.Check(t.Context(), tx, resource, fenceOf(5))
		require.Error(t, err, level)
		snapshot := level == sql.LevelRepeatableRead || level == sql.LevelSerializable
		if l.dialect == fencesql.MySQL || l.dialect == fencesql.PostgreSQL && !snapshot {
			requireFenced(t, err, fenceOf(6))
		}
		require.ErrorIs(t, tx.Commit(), sql.ErrTxDone)
	}
}

func refusalTellsWho(t *testing.T, l *table) {
	t.Helper()
	require.NoError(t, l.Append(t.Context(), fenceOf(5), "5"))
	requireFenced(t, l.Append(t.Context(), fenceOf(4), "4"), fenceOf(5))
	requireFenced(t, l.Seal(t.Context(), fenceOf(4)), fenceOf(5))
	twin := fenceOf(5)
	twin.Lease++
	requireFenced(t, l.Append(t.Context(), twin, "5 on another lease"), fenceOf(5))

	err := l.Seal(t.Context(), tenure.Fence{Key: "/other", Epoch: 9, Lease: 9})
	require.ErrorContains(t, err, `"/other"`)
	require.ErrorContains(t, err, `"`+election+`"`)
	require.NotErrorIs(t, err, tenure.ErrFenced, "a mistake in the configuration, not the end of a term")
	require.Equal(t, []string{"5"}, l.values(t))
}

// A transaction that waited for an older one sees what that has written, as far
// as its level lets it know; where it cannot, it is refused or has to seal first.
func readsAreFresh(t *testing.T, all *table) {
	t.Helper()
	if all.dialect == fencesql.SQLite {
		t.Skip("nobody waits inside a transaction on SQLite")
	}
	for _, level := range all.levels {
		l := all.fresh(t, all.db)
		require.NoError(t, l.Seal(t.Context(), fenceOf(5)))
		older := l.begin(t)
		require.NoError(t, l.Check(t.Context(), older, resource, fenceOf(5)))
		snapshot := level == sql.LevelRepeatableRead || level == sql.LevelSerializable
		if snapshot && l.dialect == fencesql.PostgreSQL {
			tx := l.beginAt(t, level)
			err := l.Check(t.Context(), tx, resource, fenceOf(6))
			require.ErrorContains(t, err, "call Seal first")
			require.NotErrorIs(t, err, tenure.ErrFenced)
			require.ErrorIs(t, tx.Commit(), sql.ErrTxDone)
		}
		var brought <-chan error
		newer := l.beginAt(t, level)
		if snapshot {
			brought = going(func() error { return l.Seal(t.Context(), fenceOf(6)) })
		} else {
			brought = going(func() error { return l.Check(t.Context(), newer, resource, fenceOf(6)) })
		}
		l.await(t, 1)
		put(t, older, "older")
		require.NoError(t, older.Commit())
		require.NoError(t, receive(t, brought))
		if snapshot {
			require.NoError(t, l.Check(t.Context(), newer, resource, fenceOf(6)))
		}
		var n int
		require.NoError(t, newer.QueryRowContext(t.Context(), "SELECT count(*) FROM entries").Scan(&n))
		require.Equal(t, 1, n, level)
		require.NoError(t, newer.Commit())
	}
}

func extremesArePreserved(t *testing.T, l *table) {
	t.Helper()
	low := tenure.Fence{Key: election, Epoch: 1, Lease: -1 << 63}
	high := tenure.Fence{Key: election, Epoch: 1<<63 - 1, Lease: 1<<63 - 1}
	require.NoError(t, l.Append(t.Context(), low, "low"))
	require.NoError(t, l.Append(t.Context(), low, "low again"))
	require.NoError(t, l.Append(t.Context(), high, "high"))
	require.NoError(t, l.Append(t.Context(), high, "high again"))
	requireFenced(t, l.Append(t.Context(), low, "low"), high)
}

func namesAreTakenAsTheyAre(t *testing.T, l *table) {
	t.Helper()
	// To a database some of these are the same, or end a string, or are a parameter.
	names := []string{
		"a", "A", "a ", " a", "á", "a\u0301", `a'b`, `a"b`, "a`b", `a\`, `\'; DROP TABLE entries; --`, "a?b", "$1", ":a", "@a", "%", "a\nb", "日本", "🔒",
		strings.Repeat("x", 255),
	}
	odd := []string{fencesql.DefaultTable, `fen"ces`, "fen`ces", "fen'ces", "FENCES", "fen ces", "fen.ces", "fen?ces", "fen$1", "fen--ces", "日本"}
	for _, name := range odd {
		fences, err := fencesql.New(l.dialect, name)
		require.NoError(t, err)
		require.NoError(t, fences.Create(t.Context(), l.db), name)
		for i, resource := range names {
			fence := tenure.Fence{Key: resource, Epoch: tenure.Epoch(10 + i), Lease: 7}
			require.NoError(t, fences.Seal(t.Context(), l.db, resource, fence), "table %q, resource %q", name, resource)
		}
		for i, resource := range names {
			fence := tenure.Fence{Key: resource, Epoch: tenure.Epoch(9 + i), Lease: 7}
			have := fence
			have.Epoch++
			requireFenced(t, fences.Seal(t.Context(), l.db, resource, fence), have)
		}
		if name != fencesql.DefaultTable {
			quote := map[fencesql.Dialect]string{fencesql.MySQL: "`"}[l.dialect]
			if quote == "" {
				quote = `"`
			}
			var n int
			quoted := quote + strings.ReplaceAll(name, quote, quote+quote) + quote
			require.NoError(t, l.db.QueryRowContext(t.Context(), "SELECT count(*) FROM "+quoted).Scan(&n))
			require.Equal(t, len(names), n)
			_, err = l.db.ExecContext(t.Context(), "DROP TABLE "+quoted)
			require.NoError(t, err)
		}
	}
	require.Empty(t, l.values(t), "the other table is there")
}

func createByMany(t *testing.T, l *table) {
	t.Helper()
	for i := range 5 {
		fences, err := fencesql.New(l.dialect, fmt.Sprintf("fences%d", i))
		require.NoError(t, err)
		var running sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			running.Go(func() { errs[i] = fences.Create(t.Context(), l.db) })
		}
		running.Wait()
		require.NoError(t, errors.Join(errs...))
		_, err = l.db.ExecContext(t.Context(), fences.DDL())
		require.NoError(t, err, "the same statement for a tool")
	}
	other, err := fencesql.New(l.dialect, "entries")
	require.NoError(t, err)
	require.ErrorContains(t, other.Create(t.Context(), l.db), "is another table")
}

func memorySurvives(t *testing.T, l *table) {
	t.Helper()
	memory := l.Memory(l.db)
	require.NoError(t, memory.Seal(t.Context(), fenceOf(5)))
	require.NoError(t, memory.Seal(t.Context(), fenceOf(5)))
	if l.server != nil {
		require.NoError(t, l.server.Restart())
	}
	again := l.Memory(l.open(t))
	requireFenced(t, again.Seal(t.Context(), fenceOf(4)), fenceOf(5))
	require.NoError(t, again.Seal(t.Context(), fenceOf(5)))
	require.NoError(t, again.Seal(t.Context(), fenceOf(6)))
	requireFenced(t, again.Seal(t.Context(), fenceOf(5)), fenceOf(6))
	other := tenure.Fence{Key: "/other", Epoch: 1, Lease: 1}
	require.NoError(t, again.Seal(t.Context(), other), "each election has a row of its own")
}

func restartedServerRemembers(t *testing.T, l *table) {
	t.Helper()
	if l.server == nil {
		t.Skip("SQLite has no server")
	}
	require.NoError(t, l.Seal(t.Context(), fenceOf(5)))
	inside := l.begin(t)
	require.NoError(t, l.Check(t.Context(), inside, resource, fenceOf(5)))
	put(t, inside, "in flight")
	bringing := l.begin(t)
	brought := going(func() error { return l.Check(t.Context(), bringing, resource, fenceOf(6)) })
	l.await(t, 1)

	require.NoError(t, l.server.Restart())
	require.Error(t, receive(t, brought))
	require.Error(t, bringing.Commit())
	require.Error(t, inside.Commit())
	l.db = l.open(t)
	require.Empty(t, l.values(t))
	requireFenced(t, l.Append(t.Context(), fenceOf(4), "4"), fenceOf(5))
	require.NoError(t, l.Append(t.Context(), fenceOf(5), "5"))
	require.NoError(t, l.Append(t.Context(), fenceOf(6), "6"))
}

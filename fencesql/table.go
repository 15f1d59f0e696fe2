package fencesql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"unicode/utf8"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
)

// DefaultTable is the name of the table unless [New] is given another.
const DefaultTable = "tenure_fences"

// maxName is how many bytes the name of a resource or an election may have.
const maxName = 255

// Table is where a database keeps the highest fence that each resource has
// accepted: one row a resource. A resource is whatever the writes of one
// election build on together, under a name of your choice.
//
// New makes one; it does not touch the database. A Table does not change, and
// its methods may be called concurrently.
type Table struct {
	dialect Dialect
	name    string // quoted
	sql     statements
}

// New returns the table of the given name in a database of the given dialect.
// The name may be preceded by a schema; without one the table is
// [DefaultTable]. Parts of the name are quoted, and may contain any character
// that the database allows. The error describes every fault at once.
func New(dialect Dialect, name ...string) (*Table, error) {
	var faults []error
	statementsOf := map[Dialect]func(string) statements{PostgreSQL: postgres, MySQL: mysql, SQLite: sqlite}[dialect]
	if statementsOf == nil {
		faults = append(faults, fmt.Errorf("fencesql: dialect is %d: it must be PostgreSQL, MySQL or SQLite", int(dialect)))
	}
	if len(name) == 0 {
		name = []string{DefaultTable}
	}
	if len(name) > 2 {
		faults = append(faults, fmt.Errorf("fencesql: name has %d parts, %q: it must be a table, or a schema and a table", len(name), name))
	}
	quoted := make([]string, len(name))
	for i, part := range name {
		if err := dialect.checkIdentifier(part); err != nil {
			faults = append(faults, fmt.Errorf("fencesql: name %q %w", part, err))
		}
		quoted[i] = dialect.quote(part)
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	t := &Table{dialect: dialect, name: strings.Join(quoted, ".")}
	t.sql = statementsOf(t.name)
	return t, nil
}

// DDL returns the statement that creates the table unless it exists, for tools
// that migrate schemas. It has no semicolon at its end.
func (t *Table) DDL() string { return t.sql.create }

// Create creates the table unless it exists, and returns an error if one of
// that name exists and is not ours. It may be called by many at once.
func (t *Table) Create(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, t.sql.create)
	if err != nil && ctx.Err() == nil {
		// PostgreSQL lets two create the same table and then finds the name
		// taken. Now it is there for the second attempt to see.
		_, err = db.ExecContext(ctx, t.sql.create)
	}
	if err != nil {
		return fmt.Errorf("fencesql: create %s: %w", t.name, err)
	}
	rows, err := db.QueryContext(ctx, `SELECT resource, election, epoch, lease FROM `+t.name+` WHERE epoch < 0`)
	if err != nil {
		return fmt.Errorf("fencesql: %s is another table: %w", t.name, err)
	}
	return errors.Join(rows.Close(), rows.Err())
}

// Check lets tx commit only as a transaction of fence: while the resource has
// not accepted a later term. Call it in every transaction that writes to the
// resource, before the first read that it relies on.
//
//   - If the resource has accepted this fence before, Check takes a share lock
//     until tx ends, in one statement (on MySQL in two). Transactions of one term
//     run side by side. Check waits only for a transaction that brings a newer
//     term, or that was the first of this one.
//   - If fence is of a later term, tx brings it. Check waits for the
//     transactions of older terms to end and shuts out others from this moment;
//     older ones that come meanwhile wait for tx to end. If tx is rolled back,
//     nothing has happened.
//   - If fence is of an older term, or of the same epoch on another lease, the
//     error is [tenure.ErrFenced], and [tenure.LeaderOf] tells which fence the
//     resource has accepted.
//
// SQLite has no share locks: there, Check makes tx the one writer until it ends.
//
// On every error Check has rolled tx back, so that a caller that goes on cannot
// commit what it has written, before the call or after: Commit returns
// [sql.ErrTxDone]. Errors besides ErrFenced are those of the database (a
// deadlock, a serialization failure, a lock timeout: the transaction may be
// repeated), that of ctx, a fence that is not valid, and a fence of another
// election than the one that the resource knows.
//
// Transactions that check several resources should do so in the same order, as
// with all locks. The lock lasts as long as the transaction: Check after a
// savepoint is undone by a rollback to it, and a statement that commits
// implicitly, such as DDL on MySQL, ends the protection.
//
// The promise holds at all isolation levels, with these limits. Under REPEATABLE
// READ and SERIALIZABLE a transaction sees a snapshot that may be older than the
// last write of the term before, if it brings the new term itself; PostgreSQL
// refuses to bring one there, MySQL does not tell its level. So a new leader
// calls [Table.Seal] first.
func (t *Table) Check(ctx context.Context, tx *sql.Tx, resource string, fence tenure.Fence) error {
	err := t.check(ctx, tx, resource, fence)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("fencesql: resource %q: %w", resource, err)
	if undo := tx.Rollback(); undo != nil && !errors.Is(undo, sql.ErrTxDone) {
		// The connection is gone, or its driver is about to drop it. In either
		// case the database rolls back, and tx is done.
		err = fmt.Errorf("%w; rollback: %w", err, undo)
	}
	return err
}

func (t *Table) check(ctx context.Context, tx *sql.Tx, resource string, fence tenure.Fence) error {
	if err := fence.Validate(); err != nil {
		return err
	}
	if err := errors.Join(checkName("the resource's name", resource), checkName("Fence.Key", fence.Key)); err != nil {
		return err
	}
	if shared, err := t.share(ctx, tx, resource, fence); shared || err != nil {
		return err
	}
	return t.raise(ctx, tx, resource, fence)
}

// share locks the row together with others of its term if it holds fence, and
// reports whether it has. If it has not, it holds no lock, and the row is of an
// older term or there is none.
func (t *Table) share(ctx context.Context, tx *sql.Tx, resource string, fence tenure.Fence) (bool, error) {
	var have tenure.Fence
	var err error
	switch t.dialect {
	case SQLite:
		return false, nil

	case PostgreSQL:
		have, err = t.sharePostgreSQL(ctx, tx, resource, fence)

	case MySQL:
		have, err = row(ctx, tx, t.sql.read, resource)
		if err == nil && have == fence {
			have, err = row(ctx, tx, t.sql.share, resource) // which is the latest state
		}
	}
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return false, nil
	case err != nil:
		return false, err
	}
	return have == fence, judge(have, fence)
}

// sharePostgreSQL returns the row locked if it holds fence, and otherwise as it
// was read, without a lock.
func (t *Table) sharePostgreSQL(ctx context.Context, tx *sql.Tx, resource string, fence tenure.Fence) (tenure.Fence, error) {
	for {
		have, err := row(ctx, tx, t.sql.share, resource, int64(fence.Epoch), int64(fence.Lease), t.number(resource))
		if !errors.Is(err, sql.ErrNoRows) {
			return have, err
		}
		// Whoever is refused must be so now: one that has waited for the row while
		// it changed owns a share of the turnstile, and could not go through it.
		have, err = row(ctx, tx, t.sql.read, resource)
		if err != nil || have != fence {
			return have, err
		}
		// Another transaction has brought the fence between the two statements. To
		// have read it is not to have locked it: ask again. Epochs only rise, so
		// the second time the row is locked, or of a later term.
	}
}

// raise makes the row hold fence. At the first use of a new epoch several come
// here at once; none of them holds a lock on the row yet.
func (t *Table) raise(ctx context.Context, tx *sql.Tx, resource string, fence tenure.Fence) error {
	if t.sql.level != "" {
		var level string
		if err := tx.QueryRowContext(ctx, t.sql.level).Scan(&level); err != nil {
			return err
		}
		if level != "read committed" && level != "read uncommitted" { // which are one to PostgreSQL
			return fmt.Errorf("a transaction at isolation level %q cannot bring epoch %d: its snapshot may be older than the last write of the term before; call Seal first", level, fence.Epoch)
		}
	}
	if t.sql.turnstile != "" {
		if _, err := tx.ExecContext(ctx, t.sql.turnstile, t.number(resource)); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, t.sql.insert, resource, fence.Key, int64(fence.Epoch), int64(fence.Lease)); err != nil {
		return err
	}
	have, err := row(ctx, tx, t.sql.lock, resource)
	if err != nil {
		return err
	}
	if refusal := judge(have, fence); refusal != nil || have == fence {
		return refusal
	}
	_, err = tx.ExecContext(ctx, t.sql.update, int64(fence.Epoch), int64(fence.Lease), resource)
	return err
}

// Seal makes the resource accept fence, in a transaction of its own, under the
// rules of [Table.Check]. It waits until the transactions of older terms have
// ended: from its return on, what they have written is all that they will ever
// write. A new leader seals before it reads the state that it will build on.
//
// On an error other than [tenure.ErrUnknownOutcome] nothing has changed. With
// that one the resource may have been sealed; call Seal again.
func (t *Table) Seal(ctx context.Context, db *sql.DB, resource string, fence tenure.Fence) error {
	options := &sql.TxOptions{}
	if t.dialect != SQLite {
		// Whatever the default is: a level with a snapshot fails when another one
		// seals at the same time, on PostgreSQL and on newer versions of MariaDB.
		options.Isolation = sql.LevelReadCommitted
	}
	tx, err := db.BeginTx(ctx, options)
	if err != nil {
		return fmt.Errorf("fencesql: resource %q: %w", resource, err)
	}
	if err := t.Check(ctx, tx, resource, fence); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("fencesql: resource %q: %w: %w", resource, tenure.ErrUnknownOutcome, err)
	}
	return nil
}

// Memory keeps the highest epoch that a gate has seen in the table, under the
// election's key as the name of the resource.
func (t *Table) Memory(db *sql.DB) tenure.GateMemory { return memory{table: t, db: db} }

type memory struct {
	table *Table
	db    *sql.DB
}

func (m memory) Seal(ctx context.Context, fence tenure.Fence) error {
	return m.table.Seal(ctx, m.db, fence.Key, fence)
}

// row returns the fence in the one row of a query.
func row(ctx context.Context, tx *sql.Tx, query string, args ...any) (tenure.Fence, error) {
	var epoch, lease int64
	var election string
	err := tx.QueryRowContext(ctx, query, args...).Scan(&epoch, &lease, &election)
	return tenure.Fence{Key: election, Epoch: tenure.Epoch(epoch), Lease: clientv3.LeaseID(lease)}, err
}

// judge returns the refusal of fence by a resource that has accepted have.
func judge(have, fence tenure.Fence) error {
	switch {
	case have == fence:
		return nil
	case have.Key != fence.Key:
		return fmt.Errorf("a fence of %q at a resource of %q", fence.Key, have.Key)
	case fence.Epoch <= have.Epoch:
		return tenure.FencedBy(have)
	}
	return nil
}

// checkName returns what is wrong with a value that becomes part of a row. What
// a database would cut short is refused: two names could become one.
func checkName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%s is empty", what)
	case len(name) > maxName:
		return fmt.Errorf("%s has %d bytes: at most %d are allowed", what, len(name), maxName)
	case !utf8.ValidString(name):
		return fmt.Errorf("%s %q is not valid UTF-8", what, name)
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("%s %q contains the character NUL", what, name)
	}
	return nil
}

// number is what the turnstile of a resource is called.
func (t *Table) number(resource string) int64 {
	h := fnv.New64a()
	h.Write([]byte(t.name))
	h.Write([]byte{0})
	h.Write([]byte(resource))
	return int64(h.Sum64())
}

package fencesql

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Dialect is the kind of database.
type Dialect int

// The dialects that [New] accepts.
const (
	PostgreSQL Dialect = iota + 1
	MySQL              // and MariaDB, with tables of InnoDB
	SQLite
)

// String returns the name of d.
func (d Dialect) String() string {
	switch d {
	case PostgreSQL:
		return "PostgreSQL"
	case MySQL:
		return "MySQL"
	case SQLite:
		return "SQLite"
	default:
		return fmt.Sprintf("Dialect(%d)", int(d))
	}
}

// statements are what a dialect has to say. A statement that it does not need
// is empty. The row is selected as epoch, lease and election.
type statements struct {
	create string

	// share selects and share-locks the row. On PostgreSQL it does so only if
	// the row holds the fence, and takes resource, epoch, lease and the
	// turnstile's number; elsewhere read has to find that out first, and it
	// takes the resource. Two who share a lock and both want it for themselves
	// would wait for each other.
	share string
	// read selects the row without a lock.
	read string
	// level selects the isolation level of the transaction.
	level string
	// turnstile lets the caller in alone, in the order of arrival.
	turnstile string
	// insert adds a row with the fence unless there is one, and on SQLite locks
	// the database for writing in any case.
	insert string
	// lock selects the row in its latest state and locks it exclusively.
	lock string
	// update raises the row, which is locked.
	update string
}

// On PostgreSQL those who share a row lock let others join in, past somebody who
// waits for the row: zombies that write without a gap could hold off a new term
// for ever. An advisory lock is given in the order of arrival, so it serves as a
// turnstile before the row. The row lock alone is what makes the fence safe.
func postgres(table string) statements {
	return statements{
		create: `CREATE TABLE IF NOT EXISTS ` + table + ` (
	resource text COLLATE "C" PRIMARY KEY,
	election text NOT NULL,
	epoch bigint NOT NULL,
	lease bigint NOT NULL
)`,
		share: `SELECT epoch, lease, election FROM ` + table + ` WHERE resource = $1 AND` +
			` CASE WHEN epoch = $2 AND lease = $3 THEN pg_advisory_xact_lock_shared($4) IS NOT NULL ELSE false END FOR SHARE`,
		read:      `SELECT epoch, lease, election FROM ` + table + ` WHERE resource = $1`,
		level:     `SELECT current_setting('transaction_isolation')`,
		turnstile: `SELECT pg_advisory_xact_lock($1)`,
		insert: `INSERT INTO ` + table + ` (resource, election, epoch, lease) VALUES ($1, $2, $3, $4)` +
			` ON CONFLICT (resource) DO NOTHING`,
		lock:   `SELECT epoch, lease, election FROM ` + table + ` WHERE resource = $1 FOR UPDATE`,
		update: `UPDATE ` + table + ` SET epoch = $1, lease = $2 WHERE resource = $3`,
	}
}

// InnoDB keeps the lock of a row that a condition then rejects, and a subquery in
// a locking statement locks as well at some levels, so the row is read first. Its
// locks are given in the order of arrival. Strings would compare without regard
// to case and trailing spaces. An insert that meets a row locks it exclusively
// if it is to update it, and shared otherwise.
func mysql(table string) statements {
	return statements{
		create: `CREATE TABLE IF NOT EXISTS ` + table + ` (
	resource varbinary(255) NOT NULL PRIMARY KEY,
	election varbinary(255) NOT NULL,
	epoch bigint NOT NULL,
	lease bigint NOT NULL
) ENGINE=InnoDB`,
		share: `SELECT epoch, lease, election FROM ` + table + ` WHERE resource = ? LOCK IN SHARE MODE`,
		read:  `SELECT epoch, lease, election FROM ` + table + ` WHERE resource = ?`,
		insert: `INSERT INTO ` + table + ` (resource, election, epoch, lease) VALUES (?, ?, ?, ?)` +
			` ON DUPLICATE KEY UPDATE resource = resource`,
		lock:   `SELECT epoch, lease, election FROM ` + table + ` WHERE resource = ? FOR UPDATE`,
		update: `UPDATE ` + table + ` SET epoch = ?, lease = ? WHERE resource = ?`,
	}
}

// SQLite has one writer at a time. A transaction that has read, and writes after
// another one has committed, fails; so the first statement is one that writes.
func sqlite(table string) statements {
	return statements{
		create: `CREATE TABLE IF NOT EXISTS ` + table + ` (
	resource TEXT NOT NULL PRIMARY KEY,
	election TEXT NOT NULL,
	epoch INTEGER NOT NULL,
	lease INTEGER NOT NULL
)`,
		insert: `INSERT INTO ` + table + ` (resource, election, epoch, lease) VALUES (?, ?, ?, ?)` +
			` ON CONFLICT (resource) DO NOTHING`,
		lock:   `SELECT epoch, lease, election FROM ` + table + ` WHERE resource = ?`,
		update: `UPDATE ` + table + ` SET epoch = ?, lease = ? WHERE resource = ?`,
	}
}

// quote returns the identifier part as d writes it.
func (d Dialect) quote(part string) string {
	if d == MySQL {
		return "`" + strings.ReplaceAll(part, "`", "``") + "`"
	}
	return `"` + strings.ReplaceAll(part, `"`, `""`) + `"`
}

// checkIdentifier returns what is wrong with part as an identifier of d. What a
// database would cut short is refused: two names could become one.
func (d Dialect) checkIdentifier(part string) error {
	switch {
	case part == "":
		return errors.New("is empty")
	case !utf8.ValidString(part):
		return errors.New("is not valid UTF-8")
	case strings.ContainsRune(part, 0):
		return errors.New("contains the character NUL")
	case d == PostgreSQL && len(part) > 63:
		return fmt.Errorf("has %d bytes: PostgreSQL allows 63", len(part))
	case d == MySQL && utf8.RuneCountInString(part) > 64:
		return fmt.Errorf("has %d characters: MySQL allows 64", utf8.RuneCountInString(part))
	case d == MySQL && strings.HasSuffix(part, " "):
		return errors.New("ends with a space: MySQL does not allow that")
	case d == MySQL && strings.ContainsFunc(part, func(r rune) bool { return r > 0xFFFF }):
		return errors.New("contains a character above U+FFFF: MySQL does not allow that")
	}
	return nil
}

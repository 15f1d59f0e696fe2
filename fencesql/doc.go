// Package fencesql lets a SQL database refuse the transactions of a leader that
// has been replaced. It is for services whose leader writes to PostgreSQL, MySQL
// or MariaDB, or SQLite through database/sql, with any driver.
//
// Start with [New] and [Table.Create]; then call [Table.Seal] at the beginning of
// a term, and [Table.Check] in every transaction:
//
//	tx, err := db.BeginTx(ctx, nil)
//	if err != nil {
//		return err
//	}
//	defer tx.Rollback()
//	if err := fences.Check(ctx, tx, "orders", term.Fence()); err != nil {
//		return err // tenure.ErrFenced once we are replaced
//	}
//	if _, err := tx.ExecContext(ctx, "UPDATE orders SET state = 'sent' WHERE id = 7"); err != nil {
//		return err
//	}
//	return tx.Commit()
//
// # Fencing
//
// The table has one row a resource, with the highest epoch that it has accepted
// and the lease of that term. A transaction of the same term share-locks the row
// until it ends; one of a newer term locks it exclusively and raises it. So the
// database itself orders the transactions by their epochs: it commits none of an
// older term once one of a newer term has been committed, however long the older
// one was paused between its check and its commit. That needs no clock. It needs
// that every transaction which writes to the resource checks, and that the
// database keeps what it has committed.
//
// A leader that is stopped in the middle of a transaction keeps its lock, and a
// newer term waits for it. Give the database a limit for idle transactions:
// idle_in_transaction_session_timeout on PostgreSQL, idle_transaction_timeout on
// MariaDB. SQLite has none: do nothing slow between Check and Commit.
package fencesql

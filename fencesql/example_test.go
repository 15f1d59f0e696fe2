package fencesql_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fencesql"
)

// The table is created once, by the program or by whatever migrates schemas.
func Example() {
	fences, err := fencesql.New(fencesql.SQLite)
	if err != nil {
		panic(err)
	}
	fmt.Println(fences.DDL())
	// Output:
	// CREATE TABLE IF NOT EXISTS "tenure_fences" (
	// 	resource TEXT NOT NULL PRIMARY KEY,
	// 	election TEXT NOT NULL,
	// 	epoch INTEGER NOT NULL,
	// 	lease INTEGER NOT NULL
	// )
}

// The work of a term, as Run calls it: it seals, reads what it builds on, and
// then checks in each transaction.
func ExampleTable_Check() {
	work := func(ctx context.Context, term *tenure.Term, db *sql.DB, fences *fencesql.Table) error {
		// From here on no older term writes. So what is read next is final.
		if err := fences.Seal(ctx, db, "orders", term.Fence()); err != nil {
			return err
		}
		var next int64
		if err := db.QueryRowContext(ctx, "SELECT min(id) FROM orders WHERE state = 'new'").Scan(&next); err != nil {
			return err
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() //nolint:errcheck // after a commit it says so
		if err := fences.Check(ctx, tx, "orders", term.Fence()); err != nil {
			return err // tenure.ErrFenced once we are replaced
		}
		if _, err := tx.ExecContext(ctx, "UPDATE orders SET state = 'sent' WHERE id = $1", next); err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = work // it needs a database
}

// Command outbox shows a relay that publishes the rows of an outbox table in their
// order, and is fenced where it matters: a row is marked as sent in a transaction
// that first checks the fence. Here it is SQLite; PostgreSQL and MySQL differ in
// the dialect only.
//
// A relay that is replaced between publishing and marking publishes a row twice,
// as every outbox does; the receiver recognises it by its id. What the fence adds
// is that an old relay never marks anything again, so no row is lost.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/examples/internal/embedded"
	"github.com/tenure-go/tenure/fencesql"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	client, stop, err := embedded.Flag().Open(ctx)
	if err != nil {
		return err
	}
	defer stop()
	dir, err := os.MkdirTemp("", "tenure-outbox-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r, err := open(ctx, filepath.Join(dir, "db"))
	if err != nil {
		return err
	}
	defer r.db.Close()
	elector, err := tenure.New(client, "/outbox/leader", &tenure.Options{TTL: 5 * time.Second})
	if err != nil {
		return err
	}
	var first *tenure.Term
	for range 2 { // two terms; the second one goes on where the first has stopped
		err = elector.Run(ctx, func(ctx context.Context, term *tenure.Term) error {
			if first == nil {
				first = term
			}
			return r.relay(ctx, term, 2)
		})
		if err != nil {
			return err
		}
	}
	err = r.mark(ctx, first.Fence(), 5) // as a relay would that was paused all the while
	if !errors.Is(err, tenure.ErrFenced) {
		return fmt.Errorf("the first term was not refused: %w", err)
	}
	fmt.Println("the first term wakes up:", err)
	return nil
}

type relay struct {
	db     *sql.DB
	fences *fencesql.Table
}

func open(ctx context.Context, path string) (*relay, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
	if err != nil {
		return nil, err
	}
	fences, err := fencesql.New(fencesql.SQLite)
	if err != nil {
		return nil, err
	}
	for _, statement := range []string{
		fences.DDL(),
		"CREATE TABLE outbox (id INTEGER PRIMARY KEY, event TEXT NOT NULL, sent BOOLEAN NOT NULL DEFAULT FALSE)",
		"INSERT INTO outbox (event) VALUES ('created'), ('paid'), ('packed'), ('sent'), ('delivered')",
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return nil, err
		}
	}
	return &relay{db: db, fences: fences}, nil
}

// relay publishes some rows, in the order of their ids.
func (r *relay) relay(ctx context.Context, term *tenure.Term, rows int) error {
	// From here on no older term marks a row. So what is read next is final.
	if err := r.fences.Seal(ctx, r.db, "outbox", term.Fence()); err != nil {
		return err
	}
	for range rows {
		var id int64
		var event string
		err := r.db.QueryRowContext(ctx, "SELECT id, event FROM outbox WHERE NOT sent ORDER BY id LIMIT 1").Scan(&id, &event)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Printf("epoch %d publishes %d, %s\n", term.Epoch(), id, event)
		if err := r.mark(ctx, term.Fence(), id); err != nil {
			return err // tenure.ErrFenced once we are replaced: Run campaigns again
		}
	}
	return nil
}

// mark says that a row was published.
func (r *relay) mark(ctx context.Context, fence tenure.Fence, id int64) error {
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it says so
	if err := r.fences.Check(ctx, tx, "outbox", fence); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE outbox SET sent = TRUE WHERE id = ?", id); err != nil {
		return err
	}
	return tx.Commit()
}

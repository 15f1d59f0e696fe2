package fencesql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fencesql"
)

// What the databases make of the statements is shown in integration/, against
// real ones.

var dialects = []fencesql.Dialect{fencesql.PostgreSQL, fencesql.MySQL, fencesql.SQLite}

func fenceOf(epoch tenure.Epoch) tenure.Fence {
	return tenure.Fence{Key: "/leader", Epoch: epoch, Lease: clientv3.LeaseID(epoch + 100)}
}

func TestNamesAreQuoted(t *testing.T) {
	for _, c := range []struct {
		dialect fencesql.Dialect
		name    []string
		want    string
	}{
		{fencesql.PostgreSQL, nil, `"tenure_fences"`},
		{fencesql.PostgreSQL, []string{"app", "fences"}, `"app"."fences"`},
		{fencesql.PostgreSQL, []string{`a"b`}, `"a""b"`},
		{fencesql.PostgreSQL, []string{`x"; DROP TABLE orders; --`}, `"x""; DROP TABLE orders; --"`},
		{fencesql.PostgreSQL, []string{"a.b`c"}, "\"a.b`c\""},
		{fencesql.PostgreSQL, []string{strings.Repeat("x", 63)}, `"` + strings.Repeat("x", 63) + `"`},
		{fencesql.MySQL, nil, "`tenure_fences`"},
		{fencesql.MySQL, []string{"app", "a`b\"c"}, "`app`.`a``b\"c`"},
		{fencesql.MySQL, []string{strings.Repeat("ä", 64)}, "`" + strings.Repeat("ä", 64) + "`"},
		{fencesql.SQLite, []string{"main", `a"b`}, `"main"."a""b"`},
		{fencesql.SQLite, []string{strings.Repeat("x", 1000)}, `"` + strings.Repeat("x", 1000) + `"`},
	} {
		table, err := fencesql.New(c.dialect, c.name...)
		require.NoError(t, err)
		assert.Contains(t, table.DDL(), "CREATE TABLE IF NOT EXISTS "+c.want+" (", c.dialect)
	}
}

func TestFaultsAreReportedAtOnce(t *testing.T) {
	for _, c := range []struct {
		dialect fencesql.Dialect
		name    []string
		want    []string
	}{
		{0, []string{""}, []string{"dialect is 0", `name "" is empty`}},
		{4, nil, []string{"dialect is 4"}},
		{fencesql.PostgreSQL, []string{"a", "b", "c"}, []string{"3 parts"}},
		{fencesql.PostgreSQL, []string{"", "a\x00b"}, []string{"is empty", "NUL"}},
		{fencesql.PostgreSQL, []string{strings.Repeat("x", 64)}, []string{"64 bytes", "allows 63"}},
		{fencesql.MySQL, []string{strings.Repeat("ä", 65), "x "}, []string{"65 characters", "allows 64", "ends with a space"}},
		{fencesql.MySQL, []string{"🔒"}, []string{"above U+FFFF"}},
		{fencesql.SQLite, []string{"\xff"}, []string{"not valid UTF-8"}},
	} {
		table, err := fencesql.New(c.dialect, c.name...)
		require.Nil(t, table)
		for _, want := range c.want {
			require.ErrorContains(t, err, want, "%v %q", c.dialect, c.name)
		}
	}
}

func TestDialectsHaveNames(t *testing.T) {
	assert.Equal(t, "PostgreSQL MySQL SQLite Dialect(7)",
		dialects[0].String()+" "+dialects[1].String()+" "+dialects[2].String()+" "+fencesql.Dialect(7).String())
}

// What cannot be a row is refused before anything is sent, and the transaction
// is over all the same.
func TestBadArgumentsSendNothingAndEndTheTransaction(t *testing.T) {
	key := func(key string) tenure.Fence { return tenure.Fence{Key: key, Epoch: 1, Lease: 1} }
	for _, c := range []struct {
		resource string
		fence    tenure.Fence
		want     string
	}{
		{"orders", tenure.Fence{}, "Fence.Key is empty"},
		{"orders", tenure.Fence{Key: "/leader", Lease: 1}, "Fence.Epoch is 0"},
		{"orders", tenure.Fence{Key: "/leader", Epoch: 1}, "Fence.Lease is 0"},
		{"", fenceOf(1), "resource's name is empty"},
		{strings.Repeat("x", 256), fenceOf(1), "256 bytes: at most 255"},
		{"a\x00", fenceOf(1), "NUL"},
		{"\xff", fenceOf(1), "not valid UTF-8"},
		{"orders", key(strings.Repeat("x", 256)), "Fence.Key has 256 bytes"},
		{"orders", key("a\x00"), "Fence.Key"},
		{"orders", key("\xff"), "Fence.Key"},
	} {
		for _, dialect := range dialects {
			table, err := fencesql.New(dialect)
			require.NoError(t, err)
			fake := new(fake)
			db := sql.OpenDB(fake)
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			require.ErrorContains(t, table.Check(t.Context(), tx, c.resource, c.fence), c.want)
			require.ErrorIs(t, tx.Commit(), sql.ErrTxDone)
			require.ErrorContains(t, table.Seal(t.Context(), db, c.resource, c.fence), c.want)
			require.Equal(t, []string{"BEGIN", "ROLLBACK", "BEGIN", "ROLLBACK"}, fake.said)
			require.NoError(t, db.Close())
		}
	}
}

// A refusal is told apart from an answer that is missing.
func TestSealTellsWhatItKnows(t *testing.T) {
	down := errors.New("down")
	for _, dialect := range dialects {
		table, err := fencesql.New(dialect)
		require.NoError(t, err)
		have := []driver.Value{int64(5), int64(105), "/leader"}

		err = table.Seal(t.Context(), sql.OpenDB(&fake{row: have}), "orders", fenceOf(5))
		require.NoError(t, err)

		err = table.Seal(t.Context(), sql.OpenDB(&fake{row: have, commit: down}), "orders", fenceOf(5))
		require.ErrorIs(t, err, tenure.ErrUnknownOutcome)
		require.ErrorIs(t, err, down)

		err = table.Seal(t.Context(), sql.OpenDB(&fake{row: have, rollback: down}), "orders", fenceOf(4))
		require.ErrorIs(t, err, tenure.ErrFenced)
		require.ErrorIs(t, err, down, "the rollback's trouble is told as well")
		require.NotErrorIs(t, err, tenure.ErrUnknownOutcome)

		err = table.Seal(t.Context(), sql.OpenDB(&fake{begin: down}), "orders", fenceOf(5))
		require.ErrorIs(t, err, down)
		require.NotErrorIs(t, err, tenure.ErrUnknownOutcome)
	}
}

// F05. Another transaction brings the fence, and commits, between the statement
// that would have locked the row and the one that looks why it has not. Who is let in
// has a lock all the same.
func TestFenceBroughtMeanwhileIsLocked(t *testing.T) {
	table, err := fencesql.New(fencesql.PostgreSQL)
	require.NoError(t, err)
	held := func(f tenure.Fence) []driver.Value { return []driver.Value{int64(f.Epoch), int64(f.Lease), f.Key} }

	for _, c := range []struct {
		name string
		last tenure.Fence // what the row holds in the end
		want error
		said int
	}{
		{"and stays", fenceOf(5), nil, 3},
		{"and is outdone", fenceOf(6), tenure.ErrFenced, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			var asked []string
			fake := &fake{answer: func(query string) []driver.Value {
				asked = append(asked, query)
				locks := strings.HasSuffix(query, "FOR SHARE")
				require.Equal(t, len(asked)%2 == 1, locks, "%d: %s", len(asked), query)
				switch {
				case len(asked) == 2:
					return held(fenceOf(5))
				case len(asked) == 3 && c.last == fenceOf(5), len(asked) == 4:
					return held(c.last)
				default:
					return nil
				}
			}}
			db := sql.OpenDB(fake)
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			require.ErrorIs(t, table.Check(t.Context(), tx, "orders", fenceOf(5)), c.want)
			require.Len(t, asked, c.said)
			require.NoError(t, db.Close())
		})
	}
}

// fake is a database with one row, in the shape of the fences' table. It notes
// what was said to it.
type fake struct {
	row                     []driver.Value
	answer                  func(query string) []driver.Value // instead of row; nil for row
	begin, commit, rollback error
	said                    []string
}

func (f *fake) Connect(context.Context) (driver.Conn, error) { return f, nil }
func (f *fake) Driver() driver.Driver                        { return nil }
func (f *fake) Prepare(string) (driver.Stmt, error)          { return nil, driver.ErrSkip }
func (f *fake) Close() error                                 { return nil }
func (f *fake) Begin() (driver.Tx, error)                    { return nil, driver.ErrSkip }

func (f *fake) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	f.said = append(f.said, "BEGIN")
	return f, f.begin
}

func (f *fake) ExecContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	f.said = append(f.said, query)
	return driver.RowsAffected(0), nil
}

func (f *fake) QueryContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	f.said = append(f.said, query)
	if f.answer != nil {
		return &fakeRows{row: f.answer(query)}, nil
	}
	return &fakeRows{row: f.row}, nil
}

func (f *fake) Commit() error {
	f.said = append(f.said, "COMMIT")
	return f.commit
}

func (f *fake) Rollback() error {
	f.said = append(f.said, "ROLLBACK")
	return f.rollback
}

type fakeRows struct{ row []driver.Value }

func (r *fakeRows) Columns() []string { return []string{"epoch", "lease", "election"} }
func (r *fakeRows) Close() error      { return nil }

func (r *fakeRows) Next(dest []driver.Value) error {
	if r.row == nil {
		return io.EOF
	}
	copy(dest, r.row)
	r.row = nil
	return nil
}

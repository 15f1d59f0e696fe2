package integration_test

import (
	"context"
	"database/sql/driver"
)

// halting connects to a database through connections that call a function before
// each statement.
type halting struct {
	driver driver.Driver
	dsn    string
	before func()
}

func (h halting) Driver() driver.Driver { return h.driver }

func (h halting) Connect(context.Context) (driver.Conn, error) {
	conn, err := h.driver.Open(h.dsn)
	if err != nil {
		return nil, err
	}
	return &haltingConn{conn.(fullConn), h.before}, nil
}

// fullConn is what the connections of all our drivers offer, and database/sql
// asks for.
type fullConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ExecerContext
	driver.QueryerContext
	driver.SessionResetter
}

type haltingConn struct {
	fullConn
	before func()
}

func (c *haltingConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.before()
	return c.fullConn.ExecContext(ctx, query, args)
}

func (c *haltingConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	c.before()
	return c.fullConn.QueryContext(ctx, query, args)
}

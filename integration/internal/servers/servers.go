// Package servers starts throw-away servers for tests, each in a folder of its
// own: databases over a unix socket, etcd on a port of 127.0.0.1. They end with
// the test.
//
// A server whose program is missing skips the test, with the reason; with
// TENURE_REQUIRE_SERVERS=1 in the environment it fails the test instead, so that
// a missing step of an installation cannot hide.
//
// All of them survive a crash of the server, as they would in production: what
// they have acknowledged has been handed to the operating system. They do not
// wait for the disk.
package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
)

const (
	startLimit = 30 * time.Second
	probeLimit = time.Second
)

// Server is one running instance.
type Server struct {
	// DSN is where a driver finds it: for pgx, go-sql-driver/mysql, or the path
	// of the socket for Redis.
	DSN string

	dir     string
	args    []string
	crash   syscall.Signal
	account *syscall.Credential
	ready   func(context.Context) error

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
}

// PostgreSQL starts a server with the database and superuser postgres, or skips.
func PostgreSQL(t testing.TB) *Server {
	t.Helper()
	bin := pgFolder()
	initdb := find(t, "PostgreSQL", filepath.Join(bin, "initdb"))
	s := prepare(t, "postgres")
	s.run(t, initdb, "-D", s.path("data"), "--no-sync", "-A", "trust", "-U", "postgres", "--locale=C", "-E", "UTF8")
	// Not on the command line, where no ALTER SYSTEM could change it.
	conf, err := os.OpenFile(s.path("data/postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = conf.WriteString("fsync = off\n")
		err = errors.Join(err, conf.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	s.DSN = "host=" + s.dir + " user=postgres database=postgres"
	s.args = []string{
		filepath.Join(bin, "postgres"), "-D", s.path("data"),
		"-c", "listen_addresses=", "-c", "unix_socket_directories=" + s.dir, "-c", "full_page_writes=off",
	}
	// The postmaster crashes in this way together with its children: a kill would leave them, and they the data locked.
	s.crash = syscall.SIGQUIT
	s.ready = func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, s.DSN)
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	}
	return s.begin(t)
}

// MariaDB starts a server with the database test and the user root, or skips.
// Append parameters to the DSN with a question mark.
func MariaDB(t testing.TB) *Server {
	t.Helper()
	install := find(t, "MariaDB", "mariadb-install-db")
	server := find(t, "MariaDB", "mariadbd", "/usr/sbin/mariadbd")
	s := prepare(t, "mysql")
	s.run(t, install, "--no-defaults", "--datadir="+s.path("data"), "--tmpdir="+s.dir, "--auth-root-authentication-method=normal", "--skip-test-db")
	s.DSN = "root@unix(" + s.path("s") + ")/test"
	s.args = []string{
		server, "--no-defaults", "--datadir=" + s.path("data"), "--tmpdir=" + s.dir, "--skip-networking", "--socket=" + s.path("s"),
		"--pid-file=" + s.path("pid"), "--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=32M", "--skip-log-bin",
	}
	s.crash = syscall.SIGKILL
	s.ready = func(ctx context.Context) error {
		config := mysql.NewConfig()
		config.Net, config.Addr, config.User = "unix", s.path("s"), "root"
		connector, err := mysql.NewConnector(config)
		if err != nil {
			return err
		}
		conn, err := connector.Connect(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		statement, err := conn.Prepare("CREATE DATABASE IF NOT EXISTS test")
		if err != nil {
			return err
		}
		defer statement.Close()
		//lint:ignore SA1019 the deprecated form is the one that every driver has
		_, err = statement.Exec(nil) //nolint:staticcheck // as the line before says
		return err
	}
	return s.begin(t)
}

// Redis starts a server that writes its log before it answers, or skips. Its DSN
// is the path of the socket.
func Redis(t testing.TB) *Server {
	t.Helper()
	server := find(t, "Redis", "redis-server")
	s := prepare(t, "")
	s.DSN = s.path("s")
	s.args = []string{
		server, "--port", "0", "--unixsocket", s.DSN, "--dir", s.dir, "--save", "", "--appendonly", "yes", "--appendfsync", "no",
	}
	s.crash = syscall.SIGKILL
	s.ready = func(ctx context.Context) error { return pingRedis(ctx, s.DSN) }
	return s.begin(t)
}

// Restart crashes the server and starts it again. It returns when it is ready.
// Connections are lost, and what was in flight with them.
func (s *Server) Restart() error {
	if err := s.Stop(); err != nil {
		return err
	}
	return s.Start()
}

// Stop crashes the server and waits until it is gone.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.cmd.Process.Signal(s.crash); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-s.done:
		return nil

	case <-time.After(startLimit):
		return fmt.Errorf("%s is still there %v after the signal %v", s.args[0], startLimit, s.crash)
	}
}

// Start starts a server that was stopped, and returns when it is ready.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	log, err := os.OpenFile(s.path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd = s.command(s.args[0], s.args[1:]...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		return err
	}
	cmd, done := s.cmd, make(chan struct{})
	s.done = done
	go func() { // ends with the process, which the clean-up ends
		defer close(done)
		_ = cmd.Wait() // it was told to crash
	}()
	limit := time.Now().Add(startLimit)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), probeLimit)
		err := s.ready(ctx)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-done:
			return fmt.Errorf("%s has ended: %s", s.args[0], s.tail())

		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(limit) {
			return fmt.Errorf("%s is not ready after %v: %w: %s", s.args[0], startLimit, err, s.tail())
		}
	}
}

func (s *Server) begin(t testing.TB) *Server {
	t.Helper()
	err := s.Start()
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *Server) path(name string) string { return filepath.Join(s.dir, name) }

// tail is the end of the server's log.
func (s *Server) tail() string {
	data, err := os.ReadFile(s.path("log"))
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-2000):])
}

// command is a program that runs as the server's account, inside its folder, and
// dies with us.
func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.account, Pdeathsig: s.crash}
	return cmd
}

func (s *Server) run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := s.command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// prepare makes the folder. Servers refuse to run as root, so root gives it to
// the account that the package has made. Its name is short, because the path of
// a socket must be.
func prepare(t testing.TB, account string) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "srv") //nolint:usetesting // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	s := &Server{dir: dir}
	if account == "" || os.Geteuid() != 0 {
		return s
	}
	u, err := user.Lookup(account)
	if err != nil {
		missing(t, fmt.Sprintf("the account %q: %v", account, err))
	}
	uid, gid := mustID(t, u.Uid), mustID(t, u.Gid)
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	s.account = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return s
}

func mustID(t testing.TB, id string) int {
	t.Helper()
	n, err := strconv.Atoi(id)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// pgFolder is where Debian and others keep the server programs of PostgreSQL,
// off the path, one folder a version; the newest, or "".
func pgFolder() string {
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path)
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // the pattern is well formed
	version := func(path string) int {
		n, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		if err != nil {
			return 0
		}
		return n
	}
	slices.SortFunc(found, func(a, b string) int { return version(a) - version(b) })
	if len(found) == 0 {
		return ""
	}
	return filepath.Dir(found[len(found)-1])
}

// find returns the first of the programs that is there.
func find(t testing.TB, server string, programs ...string) string {
	t.Helper()
	for _, program := range programs {
		if path, err := exec.LookPath(program); err == nil {
			return path
		}
	}
	missing(t, fmt.Sprintf("%s: no program %v", server, programs))
	return ""
}

// missing skips the test, or fails it where everything has to be there.
func missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("TENURE_REQUIRE_SERVERS") == "1" {
		t.Fatalf("missing, and TENURE_REQUIRE_SERVERS=1: %s", what)
		return
	}
	t.Skipf("NOT TESTED, because missing: %s", what)
}

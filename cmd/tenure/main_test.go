//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
)

const (
	key   = "/jobs/leader"
	limit = 20 * time.Second // for what may take its time on a busy machine
	asEnv = "TENURE_TEST_AS_COMMAND"
)

// This program, started again by a test, is the command line itself.
func TestMain(m *testing.M) {
	if os.Getenv(asEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

// command is tenure in a process of its own.
func command(t *testing.T, c *etcdtest.Cluster, args ...string) (cmd *exec.Cmd, out *bytes.Buffer) {
	t.Helper()
	cmd = exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asEnv+"=1", "ETCDCTL_ENDPOINTS="+c.Members[0].GRPCURL, "TENURE_KEY="+key)
	out = new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = time.Second // what it leaves behind may hold the output
	return cmd, out
}

// start starts it, and sees to it that it ends with the test.
func start(t *testing.T, c *etcdtest.Cluster, args ...string) (cmd *exec.Cmd, out *bytes.Buffer) {
	t.Helper()
	cmd, out = command(t, c, args...)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, out
}

func exitOf(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	etcdtest.Await(t, limit, "exit", done)
	return cmd.ProcessState.ExitCode()
}

// beats is a file to which commands append the time while they are there.
type beats string

// script appends to the file every 20 ms, whatever happens, for as long as it lives.
func (b beats) script(more string) []string {
	return []string{"sh", "-c", more + ` while :; do date +%s%N >> ` + string(b) + `; sleep 0.02; done`}
}

// last is when somebody has appended last; zero if nobody has.
func (b beats) last(t *testing.T) time.Time {
	t.Helper()
	data, err := os.ReadFile(string(b))
	if os.IsNotExist(err) {
		return time.Time{}
	}
	require.NoError(t, err)
	var last int64
	for line := range strings.Lines(string(data)) {
		if n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64); err == nil {
			last = max(last, n)
		}
	}
	return time.Unix(0, last)
}

func (b beats) await(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return !b.last(t).IsZero() }, limit, 10*time.Millisecond, "the command has not started")
}

func newBeats(t *testing.T) beats {
	t.Helper()
	return beats(filepath.Join(t.TempDir(), "beats"))
}

// rival campaigns for the same key, and returns when it has won.
func rival(t *testing.T, c *etcdtest.Cluster) time.Time {
	t.Helper()
	e, err := tenure.New(c.Admin(), key, &tenure.Options{TTL: 2 * time.Second})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	term, err := e.Campaign(ctx)
	require.NoError(t, err)
	won := time.Now()
	t.Cleanup(func() { _ = term.Resign() })
	return won
}

func TestCommandRunsWithItsFenceAndGivesItsStatus(t *testing.T) {
	c := etcdtest.StartCluster(t, 1)
	for script, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -9 $$": 137, "exec >&- 2>&-; exit 3": 3} {
		cmd, out := start(t, c, "run", "-ttl", "2s", "--", "sh", "-c", script)
		require.Equal(t, want, exitOf(t, cmd), "%s: %s", script, out)
		require.Empty(t, c.Keys(key), "given up at once")
	}
	cmd, out := start(t, c, "run", "-identity", "me", "--", "sh", "-c", `echo "$TENURE_FENCE $TENURE_KEY $TENURE_EPOCH"`)
	require.Zero(t, exitOf(t, cmd), out)
	words := strings.Fields(out.String())
	require.Len(t, words, 3, out)
	var fence tenure.Fence
	require.NoError(t, fence.UnmarshalText([]byte(words[0])))
	require.Equal(t, key, words[1])
	require.Equal(t, fmt.Sprint(int64(fence.Epoch)), words[2])
}

// Cut off from etcd, tenure ends a command that does not want to end, and all that
// it has started, before anybody else can lead.
func TestEtcdOutOfReachEndsTheGroupInTime(t *testing.T) {
	c := etcdtest.StartCluster(t, 3)
	b := newBeats(t)
	// The command and its child ignore SIGTERM.
	inner := strings.Join(b.script(`trap "" TERM;`)[2:], " ")
	_, out := start(t, c, "run", "-ttl", "3s", "--", "sh", "-c", `trap "" TERM; sh -c '`+inner+`' & wait; wait`)
	b.await(t)
	c.Members[0].Bridge().Blackhole()
	defer c.Members[0].Bridge().Unblackhole()
	won := rival(t, c)
	last := b.last(t)
	require.True(t, last.Before(won), "a beat %v after the rival has won: %s", last.Sub(won), out)
	time.Sleep(100 * time.Millisecond) // real processes: there is no other sign of silence
	require.Equal(t, last, b.last(t))
}

// Told to stop, it lets the command stop in order, renews meanwhile, and gives the
// election up only when the whole group is gone.
func TestStopIsOrderly(t *testing.T) {
	c := etcdtest.StartCluster(t, 1)
	b := newBeats(t)
	marks := filepath.Join(t.TempDir(), "marks")
	cmd, out := start(t, c, append([]string{"run", "-ttl", "2s", "-stop-timeout", "20s", "--"},
		b.script(`trap "echo term >> `+marks+`; sleep 3; echo done >> `+marks+`; exit 5" TERM; (trap "" TERM; `+strings.Join(b.script("")[2:], " ")+`) &`)...)...)
	b.await(t)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	won := rival(t, c)
	require.Zero(t, exitOf(t, cmd), out)
	data, err := os.ReadFile(marks)
	require.NoError(t, err, out)
	require.Equal(t, "term\ndone\n", string(data), "it had longer than a TTL to stop")
	require.True(t, b.last(t).Before(won), "the background job was there after the hand-over")
}

func TestStopTimeoutKills(t *testing.T) {
	c := etcdtest.StartCluster(t, 1)
	b := newBeats(t)
	cmd, out := start(t, c, append([]string{"run", "-ttl", "2s", "-stop-timeout", "500ms", "--"}, b.script(`trap "" TERM;`)...)...)
	b.await(t)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.Zero(t, exitOf(t, cmd), out)
	require.Empty(t, c.Keys(key))
}

func TestSignalsArePassedOn(t *testing.T) {
	c := etcdtest.StartCluster(t, 1)
	b := newBeats(t)
	cmd, out := start(t, c, append([]string{"run", "--"}, b.script(`trap "exit 42" USR1;`)...)...)
	b.await(t)
	require.NoError(t, cmd.Process.Signal(syscall.SIGUSR1))
	require.Equal(t, 42, exitOf(t, cmd), out)
}

// A loss that is no expiry: the key is gone at once, and so is the command. Then
// it campaigns again, unless told not to.
func TestLossCampaignsAgainUnlessOnce(t *testing.T) {
	c := etcdtest.StartCluster(t, 1)
	b := newBeats(t)
	start(t, c, append([]string{"run", "-ttl", "2s", "--"}, b.script(`echo $TENURE_EPOCH >> `+string(b)+`.epochs;`)...)...)
	b.await(t)
	_, err := c.Admin().Delete(t.Context(), key)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		data, _ := os.ReadFile(string(b) + ".epochs")
		return bytes.Count(data, []byte("\n")) == 2
	}, limit, 20*time.Millisecond)

	other := newBeats(t)
	cmd, out := command(t, c, append([]string{"run", "-once", "-key", "/other", "--"}, other.script("")...)...)
	require.NoError(t, cmd.Start())
	other.await(t)
	_, err = c.Admin().Delete(t.Context(), "/other")
	require.NoError(t, err)
	require.Equal(t, statusFenced, exitOf(t, cmd), out)
	require.Contains(t, out.String(), "key deleted")
}

// Asked to go, it lets the command stop in order, and campaigns again or, with
// -once, says why it has ended.
func TestEvictedWrapperCampaignsAgainUnlessOnce(t *testing.T) {
	c := etcdtest.StartCluster(t, 1)
	b := newBeats(t)
	start(t, c, append([]string{"run", "-ttl", "2s", "--"}, b.script(`echo $TENURE_EPOCH >> `+string(b)+`.epochs;`)...)...)
	b.await(t)
	cmd, out := start(t, c, "evict")
	require.Zero(t, exitOf(t, cmd), out)
	require.Eventually(t, func() bool {
		data, _ := os.ReadFile(string(b) + ".epochs")
		return bytes.Count(data, []byte("\n")) == 2
	}, limit, 20*time.Millisecond, "it has not started the command again")

	other := newBeats(t)
	once, out := start(t, c, append([]string{"run", "-once", "-key", "/other", "--"}, other.script("")...)...)
	other.await(t)
	cmd, answer := start(t, c, "evict", "-key", "/other")
	require.Zero(t, exitOf(t, cmd), answer)
	require.Equal(t, statusFenced, exitOf(t, once), out)
	require.Contains(t, out.String(), "evicted")
}

func TestEvictStatusWatchPutDel(t *testing.T) {
	c := etcdtest.StartCluster(t, 1)
	cmd, out := start(t, c, "status")
	require.Equal(t, statusNoLeader, exitOf(t, cmd), out)

	watch, _ := command(t, c, "watch", "-json")
	watch.Stdout = nil
	pipe, err := watch.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, watch.Start())
	lines := make(chan string, 100)
	go func() {
		for s := bufio.NewScanner(pipe); s.Scan(); {
			lines <- s.Text()
		}
		close(lines)
	}()
	require.Contains(t, etcdtest.Await(t, limit, "line", lines), `"state":"vacant"`)

	b := newBeats(t)
	start(t, c, append([]string{"run", "-identity", "me", "-address", "10.0.0.1:1", "--"}, b.script("")...)...)
	b.await(t)
	line := etcdtest.Await(t, limit, "line", lines)
	require.Contains(t, line, `"state":"led"`)
	require.Contains(t, line, `"identity":"me"`)
	cmd, out = start(t, c, "status")
	require.Zero(t, exitOf(t, cmd), out)
	require.Contains(t, out.String(), `led by "me", fence `)
	leader, err := tenure.Lookup(t.Context(), c.Admin(), key)
	require.NoError(t, err)
	fence := leader.Fence.String()

	cmd, out = start(t, c, "put", "-fence", fence, "/data/a", "1")
	require.Zero(t, exitOf(t, cmd), out)
	require.Len(t, c.Keys("/data/"), 1)
	cmd, out = start(t, c, "evict")
	require.Zero(t, exitOf(t, cmd), out)
	require.Contains(t, out.String(), `"me" has gone`)
	for _, args := range [][]string{{"put", "-fence", fence, "/data/a", "2"}, {"del", "-fence", fence, "/data/a"}} {
		cmd, out = start(t, c, args...)
		require.Equal(t, statusFenced, exitOf(t, cmd), out)
	}
	kvs := c.Keys("/data/")
	require.Len(t, kvs, 1)
	require.Equal(t, "1", string(kvs[0].Value))

	require.NoError(t, watch.Process.Signal(syscall.SIGTERM))
	for range lines { // its end
	}
	require.NoError(t, watch.Wait())
}

func TestWrongUsage(t *testing.T) {
	for want, args := range map[string][]string{
		"tenure run|status":         {},
		"tenure run|status|":        {"lead"},
		"-key is empty":             {"status", "-key", ""},
		"run needs a command":       {"run", "-key", "/x"},
		"0 arguments after":         {"status", "-key", "/x", "more"},
		"Options.TTL is 1ms":        {"run", "-key", "/x", "-ttl", "1ms", "--", "true"},
		"-fence: tenure: the fence": {"put", "-fence", "42", "a", "b"},
		"not defined":               {"watch", "-nosuch"},
		"no-such-program":           {"run", "-key", "/x", "--", "no-such-program"},
	} {
		err := dispatch(t.Context(), args, new(bytes.Buffer))
		require.ErrorContains(t, err, want)
		var stderr bytes.Buffer
		require.Equal(t, statusUsage, statusOf(err, &stderr))
		require.NotEmpty(t, stderr.String())
	}
}

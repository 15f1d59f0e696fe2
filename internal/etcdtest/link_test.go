package etcdtest

import (
	"context"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/test/bufconn"
)

// atOnce is how long something takes that only goroutines do: the clock of a
// bubble moves when none of them has anything left to do.
const atOnce = time.Nanosecond

// A line is a link with a listener at its far end.
type line struct {
	*Link
	t   *testing.T
	lis *bufconn.Listener
}

// withLine runs f in a bubble without etcd.
func withLine(t *testing.T, f func(t *testing.T, l line)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := line{newLink(), t, bufconn.Listen(1 << 10)}
		t.Cleanup(func() {
			l.close()
			l.lis.Close()
		})
		f(t, l)
	})
}

func (l line) connect(ctx context.Context, endpoint string) (net.Conn, error) {
	return l.dial(ctx, endpoint, l.lis.DialContext)
}

// pair returns both ends of a new connection.
func (l line) pair(endpoint string) (client, server net.Conn) {
	l.t.Helper()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := l.lis.Accept()
		accepted <- c
	}()
	client, err := l.connect(l.t.Context(), endpoint)
	require.NoError(l.t, err)
	return client, <-accepted
}

// received is what an end of a connection gets.
type received struct {
	text string
	err  error
	at   time.Time
}

// read receives from an end until an error.
func read(c net.Conn) <-chan received {
	all := make(chan received, 100)
	go func() {
		p := make([]byte, 100)
		for {
			n, err := c.Read(p)
			all <- received{string(p[:n]), err, time.Now()}
			if err != nil {
				return
			}
		}
	}()
	return all
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	n, err := c.Write([]byte(text))
	require.NoError(t, err)
	require.Equal(t, len(text), n)
}

// texts is what has been received without an error up to now.
func texts(all <-chan received) string {
	synctest.Wait()
	var s string
	for {
		select {
		case r := <-all:
			s += r.text
		default:
			return s
		}
	}
}

func TestLinkCarriesBothWays(t *testing.T) {
	withLine(t, func(t *testing.T, l line) {
		client, server := l.pair("a")
		atClient, atServer := read(client), read(server)
		send(t, client, "to the server")
		send(t, server, "to the client")
		require.Equal(t, "to the server", texts(atServer))
		require.Equal(t, "to the client", texts(atClient))

		require.NoError(t, server.Close())
		require.Equal(t, io.EOF, Await(t, atOnce, "Read", atClient).err)
	})
}

func TestLinkReadsInPieces(t *testing.T) {
	withLine(t, func(t *testing.T, l line) {
		client, server := l.pair("a")
		send(t, server, "abc")
		p := make([]byte, 2)
		n, err := client.Read(p)
		require.NoError(t, err)
		require.Equal(t, "ab", string(p[:n]))
		n, err = client.Read(p)
		require.NoError(t, err)
		require.Equal(t, "c", string(p[:n]))
	})
}

func TestDelayIsLatencyNotRate(t *testing.T) {
	withLine(t, func(t *testing.T, l line) {
		l.Delay(300*time.Millisecond, 700*time.Millisecond)
		start := time.Now()
		client, server := l.pair("a")
		require.Equal(t, time.Second, time.Since(start), "a dial takes a round trip")

		atClient, atServer := read(client), read(server)
		start = time.Now()
		send(t, client, "1")
		time.Sleep(100 * time.Millisecond)
		send(t, client, "2")
		send(t, server, "3")
		for _, want := range []struct {
			at   <-chan received
			text string
			took time.Duration
		}{
			{atServer, "1", 300 * time.Millisecond},
			{atServer, "2", 400 * time.Millisecond},
			{atClient, "3", 800 * time.Millisecond},
		} {
			got := Await(t, time.Minute, "Read", want.at)
			require.Equal(t, want.text, got.text)
			require.Equal(t, want.took, got.at.Sub(start))
		}

		l.Delay(0, 0)
		send(t, client, "4")
		require.Equal(t, "4", texts(atServer))
	})
}

func TestCutIsHalfOpen(t *testing.T) {
	tests := map[string]struct {
		cut                func(*Link)
		reachesServer      bool
		reachesClient      bool
		clientHearsOfClose bool
	}{
		"Cut":     {cut: (*Link).Cut},
		"CutUp":   {cut: (*Link).CutUp, reachesClient: true, clientHearsOfClose: true},
		"CutDown": {cut: (*Link).CutDown, reachesServer: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			withLine(t, func(t *testing.T, l line) {
				client, server := l.pair("a")
				atClient, atServer := read(client), read(server)
				tt.cut(l.Link)
				send(t, client, "x")
				send(t, server, "x")
				time.Sleep(time.Hour)
				require.Equal(t, tt.reachesServer, texts(atServer) == "x")
				require.Equal(t, tt.reachesClient, texts(atClient) == "x")

				server.Close()
				synctest.Wait()
				require.Equal(t, tt.clientHearsOfClose, len(atClient) == 1)
			})
		})
	}
}

func TestServerDoesNotHearOfACloseThroughACut(t *testing.T) {
	withLine(t, func(t *testing.T, l line) {
		client, server := l.pair("a")
		atClient, atServer := read(client), read(server)
		l.Cut()
		require.NoError(t, client.Close())
		require.ErrorIs(t, Await(t, atOnce, "Read", atClient).err, net.ErrClosed)
		time.Sleep(time.Hour)
		require.Empty(t, atServer)
		l.Heal()
		require.Error(t, Await(t, atOnce, "Read", atServer).err)
	})
}

func TestHealResetsWhatLostBytes(t *testing.T) {
	withLine(t, func(t *testing.T, l line) {
		busy, busyServer := l.pair("a")
		idle, idleServer := l.pair("a")
		atBusy, atBusyServer := read(busy), read(busyServer)
		atIdleServer := read(idleServer)
		l.Cut()
		send(t, busy, "lost")
		time.Sleep(time.Second)
		l.Heal()

		require.ErrorIs(t, Await(t, atOnce, "Read", atBusy).err, syscall.ECONNRESET)
		got := Await(t, atOnce, "Read", atBusyServer)
		require.Empty(t, got.text)
		require.Error(t, got.err)
		_, err := busy.Write([]byte("x"))
		require.ErrorIs(t, err, syscall.ECONNRESET)

		send(t, idle, "kept")
		require.Equal(t, "kept", texts(atIdleServer))
		l.pair("a")
	})
}

func TestResumeDeliversLateInOrder(t *testing.T) {
	withLine(t, func(t *testing.T, l line) {
		client, server := l.pair("a")
		atClient, atServer := read(client), read(server)
		l.Cut()
		send(t, client, "1")
		send(t, client, "2")
		send(t, server, "3")
		time.Sleep(time.Minute)
		require.Empty(t, texts(atClient)+texts(atServer))
		l.Resume()
		require.Equal(t, "12", texts(atServer))
		require.Equal(t, "3", texts(atClient))
	})
}

func TestDropConnectionsAllowsNewOnes(t *testing.T) {
	withLine(t, func(t *testing.T, l line) {
		client, server := l.pair("a")
		atClient, atServer := read(client), read(server)
		l.DropConnections()
		require.ErrorIs(t, Await(t, atOnce, "Read", atClient).err, syscall.ECONNRESET)
		require.Error(t, Await(t, atOnce, "Read", atServer).err)

		client, server = l.pair("a")
		send(t, client, "x")
		require.Equal(t, "x", texts(read(server)))
		require.Equal(t, 2, l.Dials())
	})
}

func TestRefuseFailsDialsOnly(t *testing.T) {
	withLine(t, func(t *testing.T, l line) {
		client, server := l.pair("a")
		l.Refuse()
		start := time.Now()
		_, err := l.connect(t.Context(), "a")
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.Zero(t, time.Since(start))
		send(t, client, "x")
		require.Equal(t, "x", texts(read(server)))

		l.Heal()
		l.pair("a")
	})
}

func TestDialWaitsOutACut(t *testing.T) {
	withLine(t, func(t *testing.T, l line) {
		l.CutDown()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		start := time.Now()
		_, err := l.connect(ctx, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 20*time.Second, time.Since(start))

		time.AfterFunc(time.Second, l.Heal)
		start = time.Now()
		l.pair("a")
		require.Equal(t, time.Second, time.Since(start))
	})
}

func TestLinkToOneEndpoint(t *testing.T) {
	withLine(t, func(t *testing.T, l line) {
		a, aServer := l.pair("a")
		b, bServer := l.pair("b")
		atA, atB := read(aServer), read(bServer)
		l.Delay(time.Second, 0)
		l.To("a").Delay(time.Second, 0)
		start := time.Now()
		send(t, a, "x")
		send(t, b, "x")
		require.Equal(t, time.Second, Await(t, time.Minute, "Read", atB).at.Sub(start))
		require.Equal(t, 2*time.Second, Await(t, time.Minute, "Read", atA).at.Sub(start))

		l.Delay(0, 0)
		l.To("a").Delay(0, 0)
		l.To("a").Cut()
		l.Heal() // Heals what is cut as a whole, and leaves the single link alone.
		send(t, a, "x")
		send(t, b, "x")
		require.Empty(t, texts(atA))
		require.Equal(t, "x", texts(atB))
		l.To("a").Heal()
		require.Error(t, Await(t, atOnce, "Read", atA).err)
		require.Equal(t, 1, l.To("b").Dials())
	})
}

func TestReadDeadlineEndsAReadThroughACut(t *testing.T) {
	withLine(t, func(t *testing.T, l line) {
		client, _ := l.pair("a")
		l.Cut()
		require.NoError(t, client.SetReadDeadline(time.Now().Add(time.Second)))
		start := time.Now()
		_, err := client.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, time.Second, time.Since(start))
	})
}

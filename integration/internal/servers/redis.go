package servers

import (
	"context"
	"fmt"
	"net"
	"strings"
)

// pingRedis asks for the answer that a server gives once it has read its log.
func pingRedis(ctx context.Context, socket string) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	answer := make([]byte, 64)
	n, err := conn.Read(answer)
	if err != nil {
		return err
	}
	if got := string(answer[:n]); !strings.HasPrefix(got, "+PONG") {
		return fmt.Errorf("redis answers %q", got)
	}
	return nil
}

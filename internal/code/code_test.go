package code_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tenure-go/tenure/internal/code"
)

func TestOf(t *testing.T) {
	for want, errs := range map[codes.Code][]error{
		codes.OK:               {nil},
		codes.PermissionDenied: {rpctypes.ErrPermissionDenied, rpctypes.ErrGRPCPermissionDenied},
		codes.NotFound:         {rpctypes.ErrLeaseNotFound},
		codes.DeadlineExceeded: {context.DeadlineExceeded},
		codes.Canceled:         {context.Canceled},
		codes.Unavailable:      {status.Error(codes.Unavailable, "away")},
		codes.Unknown:          {errors.New("something else")},
	} {
		for _, err := range errs {
			require.Equal(t, want, code.Of(err), "%v", err)
			if err != nil {
				require.Equal(t, want, code.Of(fmt.Errorf("read: %w", err)), "%v, wrapped", err)
			}
		}
	}
}

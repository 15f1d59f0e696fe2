package tenure

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tenure-go/tenure/internal/code"
)

// What an error of etcd says about a request.
type verdict int

const (
	refused  verdict = iota // a write was not applied; another attempt may succeed
	unknown                 // a write may have been applied, or may still be
	hopeless                // not applied, and no attempt ever will be
)

// etcdErrors are all errors of package rpctypes, as a server sends them.
var etcdErrors = map[string]struct {
	err     error
	verdict verdict
}{
	// E05. The proposal may be under way, or may have been applied.
	"ErrGRPCNoLeader":                   {rpctypes.ErrGRPCNoLeader, unknown},
	"ErrGRPCLeaderChanged":              {rpctypes.ErrGRPCLeaderChanged, unknown},
	"ErrGRPCStopped":                    {rpctypes.ErrGRPCStopped, unknown},
	"ErrGRPCTimeout":                    {rpctypes.ErrGRPCTimeout, unknown},
	"ErrGRPCTimeoutDueToLeaderFail":     {rpctypes.ErrGRPCTimeoutDueToLeaderFail, unknown},
	"ErrGRPCTimeoutDueToConnectionLost": {rpctypes.ErrGRPCTimeoutDueToConnectionLost, unknown},
	"ErrGRPCTimeoutWaitAppliedIndex":    {rpctypes.ErrGRPCTimeoutWaitAppliedIndex, unknown},
	"ErrGRPCUnhealthy":                  {rpctypes.ErrGRPCUnhealthy, unknown},
	"ErrGRPCCorrupt":                    {rpctypes.ErrGRPCCorrupt, unknown},
	// E02. The server's, whatever our context says.
	"ErrGRPCCanceled":         {rpctypes.ErrGRPCCanceled, unknown},
	"ErrGRPCDeadlineExceeded": {rpctypes.ErrGRPCDeadlineExceeded, unknown},
	"ErrGRPCWatchCanceled":    {rpctypes.ErrGRPCWatchCanceled, unknown},
	// A11. Also after it was applied.
	"ErrGRPCNoSpace": {rpctypes.ErrGRPCNoSpace, unknown},

	"ErrGRPCPermissionDenied": {rpctypes.ErrGRPCPermissionDenied, hopeless},
	"ErrGRPCAuthFailed":       {rpctypes.ErrGRPCAuthFailed, hopeless},
	"ErrGRPCUserEmpty":        {rpctypes.ErrGRPCUserEmpty, hopeless},

	// E06. The client's token is renewed.
	"ErrGRPCInvalidAuthToken": {rpctypes.ErrGRPCInvalidAuthToken, refused},
	"ErrGRPCAuthOldRevision":  {rpctypes.ErrGRPCAuthOldRevision, refused},
	// A06, A16, L28. A new lease, another endpoint, a pause.
	"ErrGRPCLeaseNotFound":          {rpctypes.ErrGRPCLeaseNotFound, refused},
	"ErrGRPCNotSupportedForLearner": {rpctypes.ErrGRPCNotSupportedForLearner, refused},
	"ErrGRPCRequestTooManyRequests": {rpctypes.ErrGRPCRequestTooManyRequests, refused},

	"ErrGRPCEmptyKey":                      {rpctypes.ErrGRPCEmptyKey, refused},
	"ErrGRPCKeyNotFound":                   {rpctypes.ErrGRPCKeyNotFound, refused},
	"ErrGRPCValueProvided":                 {rpctypes.ErrGRPCValueProvided, refused},
	"ErrGRPCLeaseProvided":                 {rpctypes.ErrGRPCLeaseProvided, refused},
	"ErrGRPCTooManyOps":                    {rpctypes.ErrGRPCTooManyOps, refused},
	"ErrGRPCDuplicateKey":                  {rpctypes.ErrGRPCDuplicateKey, refused},
	"ErrGRPCInvalidClientAPIVersion":       {rpctypes.ErrGRPCInvalidClientAPIVersion, refused},
	"ErrGRPCInvalidSortOption":             {rpctypes.ErrGRPCInvalidSortOption, refused},
	"ErrGRPCCompacted":                     {rpctypes.ErrGRPCCompacted, refused},
	"ErrGRPCFutureRev":                     {rpctypes.ErrGRPCFutureRev, refused},
	"ErrGRPCLeaseExist":                    {rpctypes.ErrGRPCLeaseExist, refused},
	"ErrGRPCLeaseTTLTooLarge":              {rpctypes.ErrGRPCLeaseTTLTooLarge, refused},
	"ErrGRPCMemberExist":                   {rpctypes.ErrGRPCMemberExist, refused},
	"ErrGRPCPeerURLExist":                  {rpctypes.ErrGRPCPeerURLExist, refused},
	"ErrGRPCMemberNotEnoughStarted":        {rpctypes.ErrGRPCMemberNotEnoughStarted, refused},
	"ErrGRPCMemberBadURLs":                 {rpctypes.ErrGRPCMemberBadURLs, refused},
	"ErrGRPCMemberNotFound":                {rpctypes.ErrGRPCMemberNotFound, refused},
	"ErrGRPCMemberNotLearner":              {rpctypes.ErrGRPCMemberNotLearner, refused},
	"ErrGRPCLearnerNotReady":               {rpctypes.ErrGRPCLearnerNotReady, refused},
	"ErrGRPCTooManyLearners":               {rpctypes.ErrGRPCTooManyLearners, refused},
	"ErrGRPCClusterIDMismatch":             {rpctypes.ErrGRPCClusterIDMismatch, refused},
	"ErrGRPCClusterIdMismatch":             {rpctypes.ErrGRPCClusterIDMismatch, refused}, // its former name
	"ErrGRPCRequestTooLarge":               {rpctypes.ErrGRPCRequestTooLarge, refused},
	"ErrGRPCRootUserNotExist":              {rpctypes.ErrGRPCRootUserNotExist, refused},
	"ErrGRPCRootRoleNotExist":              {rpctypes.ErrGRPCRootRoleNotExist, refused},
	"ErrGRPCUserAlreadyExist":              {rpctypes.ErrGRPCUserAlreadyExist, refused},
	"ErrGRPCUserNotFound":                  {rpctypes.ErrGRPCUserNotFound, refused},
	"ErrGRPCRoleAlreadyExist":              {rpctypes.ErrGRPCRoleAlreadyExist, refused},
	"ErrGRPCRoleNotFound":                  {rpctypes.ErrGRPCRoleNotFound, refused},
	"ErrGRPCRoleEmpty":                     {rpctypes.ErrGRPCRoleEmpty, refused},
	"ErrGRPCPermissionNotGiven":            {rpctypes.ErrGRPCPermissionNotGiven, refused},
	"ErrGRPCRoleNotGranted":                {rpctypes.ErrGRPCRoleNotGranted, refused},
	"ErrGRPCPermissionNotGranted":          {rpctypes.ErrGRPCPermissionNotGranted, refused},
	"ErrGRPCAuthNotEnabled":                {rpctypes.ErrGRPCAuthNotEnabled, refused},
	"ErrGRPCInvalidAuthMgmt":               {rpctypes.ErrGRPCInvalidAuthMgmt, refused},
	"ErrGRPCNotLeader":                     {rpctypes.ErrGRPCNotLeader, refused},
	"ErrGRPCNotCapable":                    {rpctypes.ErrGRPCNotCapable, refused},
	"ErrGRPCBadLeaderTransferee":           {rpctypes.ErrGRPCBadLeaderTransferee, refused},
	"ErrGRPCWrongDowngradeVersionFormat":   {rpctypes.ErrGRPCWrongDowngradeVersionFormat, refused},
	"ErrGRPCInvalidDowngradeTargetVersion": {rpctypes.ErrGRPCInvalidDowngradeTargetVersion, refused},
	"ErrGRPCClusterVersionUnavailable":     {rpctypes.ErrGRPCClusterVersionUnavailable, refused},
	"ErrGRPCDowngradeInProcess":            {rpctypes.ErrGRPCDowngradeInProcess, refused},
	"ErrGRPCNoInflightDowngrade":           {rpctypes.ErrGRPCNoInflightDowngrade, refused},
}

// E01 to E06. Each error, as the client hands it out and wrapped as it is here.
func TestErrorsOfEtcdAreClassified(t *testing.T) {
	client := clientv3.NewCtxClient(t.Context())
	check := func(t *testing.T, err error, wantCode codes.Code, want verdict) {
		t.Helper()
		for _, err := range []error{err, fmt.Errorf("read: %w", err)} {
			require.Equal(t, wantCode, code.Of(err), "code.Of")
			require.Equal(t, want == hopeless, permanent(client, err), "permanent")
			require.Equal(t, want == unknown, ambiguous(err), "ambiguous")
		}
	}
	for name, tt := range etcdErrors {
		t.Run(name, func(t *testing.T) { check(t, rpctypes.Error(tt.err), status.Code(tt.err), tt.verdict) })
	}
	for name, tt := range map[string]struct {
		err     error
		code    codes.Code
		verdict verdict
	}{
		"OurContextCanceled": {context.Canceled, codes.Canceled, unknown},
		"OurContextDeadline": {context.DeadlineExceeded, codes.DeadlineExceeded, unknown},
		"ConnectionBroken":   {status.Error(codes.Unavailable, "error reading from server: EOF"), codes.Unavailable, unknown},
		"StreamReset":        {status.Error(codes.Internal, "stream terminated by RST_STREAM"), codes.Internal, unknown},
		// E03. The server has no gRPC code for it.
		"NotPrimaryLessor": {status.Error(codes.Unknown, "lease: not a primary lessor"), codes.Unknown, unknown},
		// The client refuses the answer, after the server has done what it answers.
		"AnswerTooLarge":  {status.Error(codes.ResourceExhausted, "grpc: received message larger than max"), codes.ResourceExhausted, unknown},
		"NoLeaseServer":   {status.Error(codes.Unimplemented, "unknown service etcdserverpb.Lease"), codes.Unimplemented, hopeless},
		"ForbiddenByGate": {status.Error(codes.PermissionDenied, "unexpected HTTP status code 403"), codes.PermissionDenied, hopeless},
		"NoErrorOfEtcd":   {errors.New("no such host"), codes.Unknown, unknown},
	} {
		t.Run(name, func(t *testing.T) { check(t, tt.err, tt.code, tt.verdict) })
	}
	t.Run("NothingHealsForClosedClient", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		closed := clientv3.NewCtxClient(ctx)
		err := rpctypes.Error(rpctypes.ErrGRPCTimeout)
		require.False(t, permanent(closed, err))
		cancel()
		require.True(t, permanent(closed, err))
	})
}

// A new release of etcd may bring an error that somebody has to think about.
func TestClassificationKnowsEveryErrorOfEtcd(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{range .GoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}`, "go.etcd.io/etcd/api/v3/v3rpc/rpctypes").Output()
	require.NoError(t, err)
	var found int
	for _, file := range strings.Fields(string(out)) {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok {
				for _, name := range spec.Names {
					if strings.HasPrefix(name.Name, "ErrGRPC") {
						found++
						require.Contains(t, etcdErrors, name.Name)
					}
				}
			}
			return true
		})
	}
	require.Len(t, etcdErrors, found)
}

func TestEveryReasonIsTermEnded(t *testing.T) {
	reasons := []Reason{LeaseExpired, RenewalRefused, KeyDeleted, KeyReplaced, Resigned, Evicted, ContextEnded, Fenced}
	detail := errors.New("detail")
	for i, reason := range reasons {
		for _, err := range []error{reason, reason.because(detail), fmt.Errorf("put: %w", reason.because(detail))} {
			require.ErrorIs(t, err, ErrTermEnded)
			require.Equal(t, reason, reasonOf(err))
			require.ErrorContains(t, err, "tenure: the term has ended: "+string(reason))
			for j, other := range reasons {
				require.Equal(t, i == j, errors.Is(err, other), "errors.Is(%v, %v)", err, other)
			}
			for _, other := range []error{ErrHeld, ErrFenced, ErrUnknownOutcome, ErrNoLeader, ErrRolledBack, ErrLeaseClosed} {
				require.NotErrorIs(t, err, other)
			}
		}
		require.NotErrorIs(t, reason, detail)
		require.ErrorIs(t, reason.because(detail), detail)
		require.Equal(t, error(reason), reason.because(nil))
	}
	require.Empty(t, reasonOf(nil))
	require.Empty(t, reasonOf(ErrTermEnded), "it names none")
	require.NotErrorIs(t, ErrTermEnded, LeaseExpired)
}

func TestLeaderOfNamesTheLeader(t *testing.T) {
	fence := Fence{Key: "/x", Epoch: 7, Lease: 1}
	for want, leader := range map[string]Leader{
		`the election is held: "/x" is held by "node-1" at epoch 7`: {Fence: fence, Identity: "node-1"},
		`the election is held: "/x" is at epoch 7`:                  {Fence: fence},
		`the election is held: nobody holds "/x"`:                   {Fence: Fence{Key: "/x"}},
	} {
		err := fmt.Errorf("put: %w", &leaderError{err: ErrHeld, leader: leader})
		require.ErrorIs(t, err, ErrHeld)
		require.NotErrorIs(t, err, ErrFenced)
		require.ErrorContains(t, err, want)
		got, ok := LeaderOf(err)
		require.True(t, ok)
		require.Equal(t, leader, got)
	}
	for _, err := range []error{nil, ErrHeld, ErrFenced, LeaseExpired} {
		got, ok := LeaderOf(err)
		require.False(t, ok)
		require.Zero(t, got)
	}
}

func TestSentinelsAreDistinctAndNameThePackage(t *testing.T) {
	sentinels := []error{ErrHeld, ErrFenced, ErrTermEnded, ErrUnknownOutcome, ErrNoLeader, ErrRolledBack, ErrLeaseClosed}
	for i, a := range sentinels {
		require.True(t, strings.HasPrefix(a.Error(), "tenure: "), "%v", a)
		for j, b := range sentinels {
			require.Equal(t, i == j, errors.Is(a, b), "errors.Is(%v, %v)", a, b)
		}
	}
}

// The error of the context stays recognisable.
func TestEndedKeepsBothErrors(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("a cause is for those who ask for it"))
	require.Equal(t, context.Canceled, ended(ctx, nil))
	err := ended(ctx, rpctypes.ErrNoLeader)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, rpctypes.ErrNoLeader)
	require.EqualError(t, err, "context canceled; meanwhile: etcdserver: no leader")
}

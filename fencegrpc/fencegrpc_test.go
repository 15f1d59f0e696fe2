package fencegrpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fencegrpc"
	"github.com/tenure-go/tenure/internal/etcdtest"
	"github.com/tenure-go/tenure/tenuretest"
)

// key is the election of the tests.
const key = "/scheduler/leader"

// limit bounds what should take no time.
const limit = 30 * time.Second

// fenceOf is the fence of a term of the tests' election.
func fenceOf(epoch tenure.Epoch) tenure.Fence {
	return tenure.Fence{Key: key, Epoch: epoch, Lease: 0x64}
}

// always is a source of one fence.
func always(fence tenure.Fence) func() (tenure.Fence, error) {
	return func() (tenure.Fence, error) { return fence, nil }
}

// memory is a gate's memory made of a function.
type memory func(context.Context, tenure.Fence) error

func (m memory) Seal(ctx context.Context, fence tenure.Fence) error { return m(ctx, fence) }

// service is a server's implementation made of functions.
type service struct {
	pb.UnimplementedTestServiceServer
	unary  func(context.Context) error
	duplex func(pb.TestService_FullDuplexCallServer) error
}

func (s *service) EmptyCall(ctx context.Context, _ *pb.Empty) (*pb.Empty, error) {
	return &pb.Empty{}, s.unary(ctx)
}

func (s *service) FullDuplexCall(stream pb.TestService_FullDuplexCallServer) error {
	return s.duplex(stream)
}

// serve serves s behind gate, and returns a dialer of clients that send what
// fence returns with every call; nil: none.
func serve(t testing.TB, s *service, gate *tenure.Gate, opts *fencegrpc.Options) (dial func(fence func() (tenure.Fence, error)) pb.TestServiceClient) {
	t.Helper()
	server := grpc.NewServer(
		grpc.UnaryInterceptor(fencegrpc.UnaryServerInterceptor(gate, opts)),
		grpc.StreamInterceptor(fencegrpc.StreamServerInterceptor(gate, opts)))
	pb.RegisterTestServiceServer(server, s)
	listener := bufconn.Listen(1 << 16)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, <-served)
	})
	return func(fence func() (tenure.Fence, error)) pb.TestServiceClient {
		dialOpts := []grpc.DialOption{
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		}
		if fence != nil {
			dialOpts = append(dialOpts,
				grpc.WithUnaryInterceptor(fencegrpc.UnaryClientInterceptor(fence)),
				grpc.WithStreamInterceptor(fencegrpc.StreamClientInterceptor(fence)))
		}
		conn, err := grpc.NewClient("passthrough:///service", dialOpts...)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return pb.NewTestServiceClient(conn)
	}
}

// bounded is a context for calls that should take no time.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// unary makes a call and returns its error.
func unary(ctx context.Context, client pb.TestServiceClient) error {
	_, err := client.EmptyCall(ctx, &pb.Empty{})
	return err
}

// stream opens a stream, sends one message, and returns the error with which it
// ends: nil if the server says that all is well.
func stream(ctx context.Context, client pb.TestServiceClient) error {
	s, err := client.FullDuplexCall(ctx)
	if err != nil {
		return err
	}
	_ = s.Send(&pb.StreamingOutputCallRequest{}) // why it failed, Recv says
	_ = s.CloseSend()
	for {
		if _, err := s.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// calling makes a call of either kind on a goroutine of its own.
func calling(ctx context.Context, call func(context.Context, pb.TestServiceClient) error, client pb.TestServiceClient) <-chan error {
	done := make(chan error, 1)
	go func() { done <- call(ctx, client) }()
	return done
}

var kinds = map[string]func(context.Context, pb.TestServiceClient) error{"Unary": unary, "Stream": stream}

// handledBy is a service both of whose calls are handled by handle.
func handledBy(handle func(context.Context) error) *service {
	return &service{unary: handle, duplex: func(s pb.TestService_FullDuplexCallServer) error { return handle(s.Context()) }}
}

func infoOf(t *testing.T, err error) *errdetails.ErrorInfo {
	t.Helper()
	st, ok := status.FromError(err)
	require.True(t, ok, "%v", err)
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info
		}
	}
	require.Fail(t, "no ErrorInfo", "%v", err)
	return nil
}

// Programs in other languages read and write the value, so it must not change.
func TestTheValueIsTheTextForm(t *testing.T) {
	for name, tt := range map[string]struct {
		fence tenure.Fence
		value string
	}{
		"Usual":   {tenure.Fence{Key: "/scheduler/leader", Epoch: 42, Lease: 0x32698f2a0b7c5d03}, "42:32698f2a0b7c5d03:/scheduler/leader"},
		"Largest": {tenure.Fence{Key: "k", Epoch: 1<<63 - 1, Lease: -1}, "9223372036854775807:ffffffffffffffff:k"},
		"Hostile": {tenure.Fence{Key: "\"\\\r\nevil: 1\x00\xff", Epoch: 1, Lease: 1}, "1:1:%22%5C%0D%0Aevil:%201%00%FF"},
		"Longest": {tenure.Fence{Key: strings.Repeat("k", 4092), Epoch: 1, Lease: 1}, "1:1:" + strings.Repeat("k", 4092)},
	} {
		t.Run(name, func(t *testing.T) {
			md := metadata.Pairs("Tenure-Fence", "one", "tenure-fence", "two")
			require.NoError(t, fencegrpc.Set(md, tt.fence))
			require.Equal(t, metadata.MD{"tenure-fence": {tt.value}}, md)
			got, ok, err := fencegrpc.Get(md)
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, tt.fence, got)
		})
	}
	_, ok, err := fencegrpc.Get(nil)
	require.NoError(t, err)
	require.False(t, ok)

	md := metadata.Pairs("tenure-fence", "before")
	require.ErrorContains(t, fencegrpc.Set(md, tenure.Fence{}), "Fence.Key is empty")
	require.ErrorContains(t, fencegrpc.Set(md, tenure.Fence{Key: strings.Repeat("k", 4093), Epoch: 1, Lease: 1}), "takes 4097 bytes: it must be at most 4096")
	require.Equal(t, []string{"before"}, md.Get("tenure-fence"))
}

// malformed are values that are no fence, with what the error says of them.
var malformed = map[string]struct{ value, says string }{
	"Empty":           {"", "epoch:lease:key"},
	"Quoted":          {`"42:1:k"`, "needs an escape"},
	"Two":             {"42:1:k, 43:1:k", "needs an escape"},
	"SpaceFirst":      {" 42:1:k", ""}, // the server's gRPC may take the space away
	"SpaceInside":     {"42:1:a b", "needs an escape"},
	"Backslash":       {`42:1:\`, "needs an escape"},
	"Control":         {"42:1:k\x01", "needs an escape"},
	"NotASCII":        {"42:1:ü", "needs an escape"},
	"NotUTF8":         {"42:1:\xff", "needs an escape"},
	"NoKey":           {"42:1", "epoch:lease:key"},
	"EmptyKey":        {"42:1:", "Fence.Key is empty"},
	"EmptyEpoch":      {":1:k", "no epoch"},
	"EpochZero":       {"0:1:k", "Fence.Epoch is 0"},
	"EpochNegative":   {"-42:1:k", "Fence.Epoch is -42"},
	"EpochPlus":       {"+42:1:k", `must begin with "42:1:"`},
	"EpochZeros":      {"0042:1:k", `must begin with "42:1:"`},
	"EpochHex":        {"0x2a:1:k", "no epoch"},
	"EpochUnderscore": {"4_2:1:k", "no epoch"},
	"EpochTooLarge":   {"9223372036854775808:1:k", "out of range"},
	"EpochHuge":       {strings.Repeat("9", 1000) + ":1:k", "out of range"},
	"EmptyLease":      {"42::k", "no lease"},
	"LeaseZero":       {"42:0:k", "Fence.Lease is 0"},
	"LeaseNegative":   {"42:-1:k", "no lease"},
	"LeaseCapitals":   {"42:FF:k", `must begin with "42:ff:"`},
	"LeaseZeros":      {"42:01:k", `must begin with "42:1:"`},
	"LeaseTooLarge":   {"42:10000000000000000:k", "out of range"},
	"BrokenEscape":    {"42:1:a%2", "no key"},
	"EscapeNoHex":     {"42:1:a%zz", "no key"},
	"TooLong":         {"1:1:" + strings.Repeat("k", 4093), "takes 4097 bytes: it must be at most 4096"},
	"Huge":            {"1:1:" + strings.Repeat("k", 100_000), "takes 100004 bytes"},
}

func TestGetRefusesWhatIsNoFence(t *testing.T) {
	for name, tt := range malformed {
		t.Run(name, func(t *testing.T) {
			got, ok, err := fencegrpc.Get(metadata.Pairs(fencegrpc.MetadataKey, tt.value))
			require.ErrorContains(t, err, tt.says)
			require.ErrorContains(t, err, "fencegrpc: tenure-fence: ")
			require.False(t, ok)
			require.Zero(t, got)
		})
	}
	_, ok, err := fencegrpc.Get(metadata.Pairs(fencegrpc.MetadataKey, "42:1:k", fencegrpc.MetadataKey, "42:1:k"))
	require.ErrorContains(t, err, "there are 2 values: there must be one")
	require.False(t, ok)
}

// Whatever arrives is refused with a reason, or is one valid fence in the one
// spelling that its epoch and lease have.
func FuzzGet(f *testing.F) {
	for _, tt := range malformed {
		f.Add(tt.value)
	}
	f.Add("42:32698f2a0b7c5d03:/scheduler/leader")
	f.Fuzz(func(t *testing.T, value string) {
		fence, ok, err := fencegrpc.Get(metadata.Pairs(fencegrpc.MetadataKey, value))
		require.Equal(t, err == nil, ok)
		if err != nil {
			require.Zero(t, fence)
			return
		}
		require.NoError(t, fence.Validate())
		require.True(t, strings.HasPrefix(value, fmt.Sprintf("%d:%x:", fence.Epoch, uint64(fence.Lease))))
		md := make(metadata.MD)
		if err := fencegrpc.Set(md, fence); err != nil {
			require.ErrorContains(t, err, "must be at most") // it came with fewer escapes
			return
		}
		again, _, err := fencegrpc.Get(md)
		require.NoError(t, err)
		require.Equal(t, fence, again)
	})
}

// Every fence survives the way through metadata, which must be visible ASCII, or
// is refused on this side.
func FuzzSet(f *testing.F) {
	f.Add("/scheduler/leader", int64(42), int64(0x32698f2a0b7c5d03))
	f.Add("\"\\\r\n\xff", int64(1), int64(-1))
	f.Add("", int64(0), int64(0))
	f.Fuzz(func(t *testing.T, key string, epoch, lease int64) {
		fence := tenure.Fence{Key: key, Epoch: tenure.Epoch(epoch), Lease: clientv3.LeaseID(lease)}
		md := make(metadata.MD)
		if err := fencegrpc.Set(md, fence); err != nil {
			require.True(t, fence.Validate() != nil || len(fence.String()) > 4096, "%v", err)
			require.Empty(t, md)
			return
		}
		for _, c := range md.Get(fencegrpc.MetadataKey)[0] {
			require.True(t, c > ' ' && c < 0x7f)
		}
		got, ok, err := fencegrpc.Get(md)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, fence, got)
	})
}

func TestHandlersGetTheFenceAndTheGatesContext(t *testing.T) {
	for kind, call := range kinds {
		t.Run(kind, func(t *testing.T) {
			var during context.Context
			dial := serve(t, handledBy(func(ctx context.Context) error {
				fence, ok := fencegrpc.FromContext(ctx)
				if !ok || fence != fenceOf(5) || ctx.Err() != nil {
					return status.Errorf(codes.Internal, "%v %v %v", fence, ok, ctx.Err())
				}
				md, _ := metadata.FromIncomingContext(ctx)
				during = ctx
				return status.Errorf(codes.OutOfRange, "%v", md.Get("other"))
			}), tenure.NewGate(key), nil)
			// What the outgoing metadata has already is kept, a fence aside.
			ctx := metadata.AppendToOutgoingContext(bounded(t), "other", "1", "Tenure-Fence", "99:1:k")
			err := call(ctx, dial(always(fenceOf(5))))
			require.Equal(t, codes.OutOfRange, status.Code(err), "%v", err)
			require.ErrorContains(t, err, "[1]")
			require.Error(t, during.Err(), "the handler has left, its context goes on")
			md, _ := metadata.FromOutgoingContext(ctx)
			require.Equal(t, []string{"99:1:k"}, md.Get(fencegrpc.MetadataKey), "the caller's context was changed")
		})
	}
	_, ok := fencegrpc.FromContext(t.Context())
	require.False(t, ok)
}

// What does not pass is answered as the package comment says, and not handled.
func TestAnswersToWhatDoesNotPass(t *testing.T) {
	outOfReach := errors.New("dial tcp 10.0.0.9:5432: secret")
	gate := tenure.NewGateWith(key, memory(func(_ context.Context, fence tenure.Fence) error {
		if fence.Epoch > 7 {
			return outOfReach
		}
		return nil
	}))
	require.NoError(t, gate.Seal(t.Context(), fenceOf(7)))
	type want struct {
		values []string
		code   codes.Code
		reason string
		says   string
		meta   map[string]string
		cause  error
	}
	cases := map[string]want{
		"Missing":       {nil, codes.InvalidArgument, "FENCE_MISSING", "there is no tenure-fence", nil, nil},
		"Two":           {[]string{"7:64:/scheduler/leader", "7:64:/scheduler/leader"}, codes.InvalidArgument, "FENCE_MALFORMED", "2 values", nil, nil},
		"OtherElection": {[]string{"9:64:/scheduler/leader2"}, codes.InvalidArgument, "OTHER_ELECTION", `"/scheduler/leader2" at a gate of "/scheduler/leader"`, nil, nil},
		"Older":         {[]string{"6:64:/scheduler/leader"}, codes.FailedPrecondition, "FENCED", "has been replaced", map[string]string{"fence": "6:64:/scheduler/leader", "epoch": "7"}, tenure.ErrFenced},
		"AnotherLease":  {[]string{"7:65:/scheduler/leader"}, codes.FailedPrecondition, "FENCED", "has been replaced", map[string]string{"fence": "7:65:/scheduler/leader", "epoch": "7"}, tenure.ErrFenced},
		"OutOfReach":    {[]string{"8:64:/scheduler/leader"}, codes.Unavailable, "GATE_UNAVAILABLE", "cannot be checked now", nil, outOfReach},
	}
	for name, tt := range malformed {
		if tt.says != "" {
			cases["Malformed"+name] = want{[]string{tt.value}, codes.InvalidArgument, "FENCE_MALFORMED", tt.says, nil, nil}
		}
	}
	var mu sync.Mutex
	var told error
	d := &fencegrpc.Options{Refused: func(_ context.Context, method string, err error) {
		mu.Lock()
		defer mu.Unlock()
		told = fmt.Errorf("%s: %w", method, err)
	}}
	never := func() { t.Error("it was let in") }
	// The interceptors themselves, since a client's gRPC refuses to send much of this.
	calls := map[string]func(ctx context.Context) error{
		"Unary": func(ctx context.Context) error {
			_, err := fencegrpc.UnaryServerInterceptor(gate, d)(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/s/m"}, func(context.Context, any) (any, error) {
				never()
				return nil, nil
			})
			return err
		},
		"Stream": func(ctx context.Context) error {
			return fencegrpc.StreamServerInterceptor(gate, d)(nil, &streamOf{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: "/s/m"}, func(any, grpc.ServerStream) error {
				never()
				return nil
			})
		},
	}
	for kind, call := range calls {
		for name, tt := range cases {
			t.Run(kind+name, func(t *testing.T) {
				told = nil
				err := call(metadata.NewIncomingContext(t.Context(), metadata.MD{fencegrpc.MetadataKey: tt.values}))
				require.Equal(t, tt.code, status.Code(err), "%v", err)
				info := infoOf(t, err)
				require.Equal(t, "tenure", info.GetDomain())
				require.Equal(t, tt.reason, info.GetReason())
				require.Equal(t, tt.meta, info.GetMetadata())
				require.ErrorContains(t, err, tt.says)
				require.NotContains(t, err.Error(), "secret")
				require.ErrorContains(t, told, "/s/m: ")
				if tt.cause != nil {
					require.ErrorIs(t, told, tt.cause)
				}
			})
		}
	}
}

// streamOf is a server's stream with only a context.
type streamOf struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *streamOf) Context() context.Context { return s.ctx }

// Over the wire as well: hostile metadata never lets anything in.
func TestHostileMetadataIsNotLetIn(t *testing.T) {
	gate := tenure.NewGate("k")
	for kind, call := range kinds {
		dial := serve(t, handledBy(func(ctx context.Context) error {
			if fence, _ := fencegrpc.FromContext(ctx); fence != (tenure.Fence{Key: "k", Epoch: 42, Lease: 1}) {
				t.Errorf("%v was let in", fence)
			}
			return nil
		}), gate, nil)
		client := dial(nil)
		for name, tt := range malformed {
			t.Run(kind+name, func(t *testing.T) {
				err := call(metadata.AppendToOutgoingContext(bounded(t), fencegrpc.MetadataKey, tt.value), client)
				if tt.says != "" {
					require.Error(t, err)
					require.NotEqual(t, codes.DeadlineExceeded, status.Code(err))
				}
			})
		}
		err := call(metadata.AppendToOutgoingContext(bounded(t), fencegrpc.MetadataKey, "42:1:k", fencegrpc.MetadataKey, "43:1:k"), client)
		require.Equal(t, "FENCE_MALFORMED", infoOf(t, err).GetReason())
		require.NoError(t, call(metadata.AppendToOutgoingContext(bounded(t), fencegrpc.MetadataKey, "42:1:k"), client))
	}
}

func TestTheClientKnowsARefusal(t *testing.T) {
	for kind, call := range kinds {
		t.Run(kind, func(t *testing.T) {
			gate := tenure.NewGate(key)
			require.NoError(t, gate.Seal(t.Context(), fenceOf(6)))
			dial := serve(t, handledBy(func(context.Context) error { return nil }), gate, nil)
			err := call(bounded(t), dial(always(fenceOf(5))))
			require.ErrorIs(t, err, tenure.ErrFenced)
			require.NotErrorIs(t, err, tenure.ErrUnknownOutcome)
			leader, ok := tenure.LeaderOf(err)
			require.True(t, ok)
			require.Equal(t, tenure.Fence{Key: key, Epoch: 6}, leader.Fence, "without its lease")
			st, ok := status.FromError(err)
			require.True(t, ok)
			require.Equal(t, codes.FailedPrecondition, st.Code())
			require.Equal(t, "FENCED", infoOf(t, fmt.Errorf("wrapped: %w", err)).GetReason())
			require.NoError(t, call(bounded(t), dial(always(fenceOf(6)))))
			require.NotErrorIs(t, call(bounded(t), dial(nil)), tenure.ErrFenced)
		})
	}
}

// A refusal that says no epoch is one all the same; what is about another fence,
// or in another's name, is none.
func TestOnlyWhatRefusesTheVeryFenceIsARefusal(t *testing.T) {
	const ours = "5:64:/scheduler/leader"
	with := func(code codes.Code, domain, reason string, meta map[string]string) error {
		st, err := status.New(code, "no").WithDetails(&errdetails.RetryInfo{}, &errdetails.ErrorInfo{Domain: domain, Reason: reason, Metadata: meta})
		require.NoError(t, err)
		return st.Err()
	}
	for name, tt := range map[string]struct {
		answer  error
		meaning error
		epoch   tenure.Epoch
	}{
		"Usual":          {with(codes.FailedPrecondition, "tenure", "FENCED", map[string]string{"fence": ours, "epoch": "9"}), tenure.ErrFenced, 9},
		"NoEpoch":        {with(codes.FailedPrecondition, "tenure", "FENCED", map[string]string{"fence": ours}), tenure.ErrFenced, 0},
		"EpochNegative":  {with(codes.FailedPrecondition, "tenure", "FENCED", map[string]string{"fence": ours, "epoch": "-9"}), tenure.ErrFenced, 0},
		"EpochNoNumber":  {with(codes.FailedPrecondition, "tenure", "FENCED", map[string]string{"fence": ours, "epoch": "nine"}), tenure.ErrFenced, 0},
		"EpochTooLarge":  {with(codes.FailedPrecondition, "tenure", "FENCED", map[string]string{"fence": ours, "epoch": "9223372036854775808"}), tenure.ErrFenced, 0},
		"Interrupted":    {with(codes.Aborted, "tenure", "INTERRUPTED", map[string]string{"fence": ours}), tenure.ErrUnknownOutcome, 0},
		"AnotherFence":   {with(codes.FailedPrecondition, "tenure", "FENCED", map[string]string{"fence": "4:64:/scheduler/leader", "epoch": "9"}), nil, 0},
		"NoFence":        {with(codes.FailedPrecondition, "tenure", "FENCED", nil), nil, 0},
		"AnotherDomain":  {with(codes.FailedPrecondition, "example.com", "FENCED", map[string]string{"fence": ours}), nil, 0},
		"AnotherReason":  {with(codes.FailedPrecondition, "tenure", "OTHER", map[string]string{"fence": ours}), nil, 0},
		"AnotherCode":    {with(codes.Internal, "tenure", "FENCED", map[string]string{"fence": ours}), nil, 0},
		"NoDetails":      {status.Error(codes.FailedPrecondition, "no"), nil, 0},
		"OfAnyKind":      {errors.New("no"), nil, 0},
		"EndOfTheStream": {io.EOF, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			err := fencegrpc.UnaryClientInterceptor(always(fenceOf(5)))(t.Context(), "/s/m", nil, nil, nil,
				func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
					md, _ := metadata.FromOutgoingContext(ctx)
					require.Equal(t, []string{ours}, md.Get(fencegrpc.MetadataKey))
					return tt.answer
				})
			if tt.meaning == nil {
				require.Equal(t, tt.answer, err)
				return
			}
			require.ErrorIs(t, err, tt.meaning)
			require.Equal(t, status.Code(tt.answer), status.Code(err))
			leader, ok := tenure.LeaderOf(err)
			require.Equal(t, tt.epoch > 0, ok)
			require.Equal(t, tt.epoch, leader.Fence.Epoch)
		})
	}
}

// F13. Once the term is over here, nothing is sent.
func TestNothingIsSentWithoutAFence(t *testing.T) {
	for kind, call := range kinds {
		t.Run(kind, func(t *testing.T) {
			election := tenuretest.NewElection(key)
			term := election.Grant(nil)
			calls := 0
			dial := serve(t, handledBy(func(context.Context) error {
				calls++
				return nil
			}), tenure.NewGate(key), nil)
			client := dial(fencegrpc.FromTerm(term))
			require.NoError(t, call(bounded(t), client))
			election.End(tenure.LeaseExpired)
			err := call(bounded(t), client)
			require.ErrorIs(t, err, tenure.ErrTermEnded)
			require.ErrorIs(t, err, tenure.LeaseExpired)
			require.ErrorContains(t, call(bounded(t), dial(always(tenure.Fence{}))), "Fence.Key is empty")
			require.Equal(t, 1, calls)
			require.NoError(t, term.Resign())
		})
	}
}

func TestOptionalCallsPassWithoutAFenceOnly(t *testing.T) {
	gate := tenure.NewGate(key)
	require.NoError(t, gate.Seal(t.Context(), fenceOf(6)))
	for kind, call := range kinds {
		t.Run(kind, func(t *testing.T) {
			fences := 0
			dial := serve(t, handledBy(func(ctx context.Context) error {
				if _, ok := fencegrpc.FromContext(ctx); ok {
					fences++
				}
				return nil
			}), gate, &fencegrpc.Options{Optional: func(ctx context.Context, method string) bool {
				md, _ := metadata.FromIncomingContext(ctx)
				return len(md.Get("reading")) > 0 && strings.HasPrefix(method, "/grpc.testing.TestService/")
			}})
			reading := metadata.AppendToOutgoingContext(bounded(t), "reading", "yes")
			require.NoError(t, call(reading, dial(nil)))
			require.Zero(t, fences)
			require.Equal(t, codes.InvalidArgument, status.Code(call(bounded(t), dial(nil))))
			require.ErrorIs(t, call(reading, dial(always(fenceOf(5)))), tenure.ErrFenced)
			require.NoError(t, call(reading, dial(always(fenceOf(6)))))
			require.Equal(t, 1, fences)
			require.Equal(t, codes.InvalidArgument, status.Code(call(metadata.AppendToOutgoingContext(reading, fencegrpc.MetadataKey, "x"), dial(nil))))
		})
	}
}

// F05. The older handler is told to stop, the newer call waits until it has, and
// the older client is told that nobody knows, whatever the handler says, or what
// the handler has done.
func TestALaterTermWaitsForTheHandlerOfTheOlder(t *testing.T) {
	for kind, call := range kinds {
		for name, returned := range map[string]error{
			"Done": nil, "Canceled": context.Canceled, "Status": status.Error(codes.NotFound, "gone"),
		} {
			t.Run(kind+name, func(t *testing.T) {
				inside, leave := make(chan context.Context, 1), make(chan struct{})
				var writes []tenure.Epoch // guarded by the gate
				dial := serve(t, handledBy(func(ctx context.Context) error {
					fence, _ := fencegrpc.FromContext(ctx)
					var err error
					if fence.Epoch == 5 {
						inside <- ctx
						<-leave // a pause between the check and the write
						err = returned
					}
					writes = append(writes, fence.Epoch)
					return err
				}), tenure.NewGate(key), nil)
				older, newer := dial(always(fenceOf(5))), dial(always(fenceOf(6)))
				old := calling(bounded(t), call, older)
				work := etcdtest.Await(t, limit, "inside", inside)
				next := calling(bounded(t), call, newer)
				etcdtest.Await(t, limit, "Done", work.Done())
				require.ErrorIs(t, context.Cause(work), tenure.ErrFenced)
				require.ErrorIs(t, call(bounded(t), older), tenure.ErrFenced, "it was seen already")
				select {
				case err := <-next:
					require.Fail(t, "it did not wait", "%v", err)
				default:
				}
				close(leave)
				require.NoError(t, etcdtest.Await(t, limit, "next", next))
				err := etcdtest.Await(t, limit, "old", old)
				if returned == nil {
					require.NoError(t, err, "it has done its work")
				} else {
					require.ErrorIs(t, err, tenure.ErrUnknownOutcome)
					require.NotErrorIs(t, err, tenure.ErrFenced)
					require.Equal(t, codes.Aborted, status.Code(err))
				}
				require.Equal(t, []tenure.Epoch{5, 6}, writes)
			})
		}
	}
}

// The old leader is paused in the middle of its stream. Its connection stays
// open, and the handler waits for it in RecvMsg or SendMsg.
func TestAPausedClientHoldsNoLaterTerm(t *testing.T) {
	for name, wait := range map[string]func(pb.TestService_FullDuplexCallServer) error{
		"Receiving": func(s pb.TestService_FullDuplexCallServer) error {
			for {
				if _, err := s.Recv(); err != nil {
					return err
				}
			}
		},
		"Sending": func(s pb.TestService_FullDuplexCallServer) error {
			for {
				if err := s.Send(&pb.StreamingOutputCallResponse{Payload: &pb.Payload{Body: make([]byte, 1<<20)}}); err != nil {
					return err
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inside, stopped := make(chan struct{}), make(chan error, 1)
			s := &service{
				unary: func(context.Context) error { return nil },
				duplex: func(s pb.TestService_FullDuplexCallServer) error {
					close(inside)
					err := wait(s)
					stopped <- err
					return err
				},
			}
			dial := serve(t, s, tenure.NewGate(key), nil)
			old, err := dial(always(fenceOf(5))).FullDuplexCall(bounded(t))
			require.NoError(t, err)
			require.NoError(t, old.Send(&pb.StreamingOutputCallRequest{}))
			etcdtest.Await(t, limit, "inside", inside)

			require.NoError(t, unary(bounded(t), dial(always(fenceOf(6)))))
			require.Equal(t, codes.Canceled, status.Code(etcdtest.Await(t, limit, "stopped", stopped)))
			for err = nil; err == nil; {
				_, err = old.Recv()
			}
			require.ErrorIs(t, err, tenure.ErrUnknownOutcome)
		})
	}
}

// Messages go through in order, both ways, and the end of either side is seen.
func TestStreamsWorkAsAlways(t *testing.T) {
	s := &service{duplex: func(s pb.TestService_FullDuplexCallServer) error {
		for {
			req, err := s.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			if err := s.Send(&pb.StreamingOutputCallResponse{Payload: req.GetPayload()}); err != nil {
				return err
			}
		}
	}}
	client := serve(t, s, tenure.NewGate(key), nil)(always(fenceOf(5)))
	stream, err := client.FullDuplexCall(bounded(t))
	require.NoError(t, err)
	for i := range 100 {
		require.NoError(t, stream.Send(&pb.StreamingOutputCallRequest{Payload: &pb.Payload{Body: []byte{byte(i)}}}))
	}
	require.NoError(t, stream.CloseSend())
	for i := range 100 {
		resp, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, []byte{byte(i)}, resp.GetPayload().GetBody())
	}
	_, err = stream.Recv()
	require.Equal(t, io.EOF, err)
	_, err = stream.Header()
	require.NoError(t, err)
}

// The gate's memory hangs until the call ends.
func TestACallThatEndsWhileItWaitsIsNotLetIn(t *testing.T) {
	gate := tenure.NewGateWith(key, memory(func(ctx context.Context, _ tenure.Fence) error {
		<-ctx.Done()
		return ctx.Err()
	}))
	told := make(chan error, 1)
	ctx, cancel := context.WithCancel(metadata.NewIncomingContext(t.Context(), metadata.Pairs(fencegrpc.MetadataKey, fenceOf(5).String())))
	cancel()
	_, err := fencegrpc.UnaryServerInterceptor(gate, &fencegrpc.Options{Refused: func(_ context.Context, _ string, err error) { told <- err }})(
		ctx, nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) {
			t.Error("it was let in")
			return nil, nil
		})
	require.Equal(t, codes.Canceled, status.Code(err))
	require.Equal(t, context.Canceled, <-told)
}

// A handler that panics has left all the same.
func TestAHandlerThatPanicsLeavesTheGate(t *testing.T) {
	gate := tenure.NewGate(key)
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(fencegrpc.MetadataKey, fenceOf(5).String()))
	require.Panics(t, func() {
		_, _ = fencegrpc.UnaryServerInterceptor(gate, nil)(ctx, nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { panic("no") })
	})
	require.NoError(t, gate.Seal(bounded(t), fenceOf(6)))
}

// Two gates, one behind the other: the refusal of the inner one, which the outer
// handler passes on, says nothing about the fence of the outer one's client.
func TestARefusalThatIsPassedOnIsNotTheCallers(t *testing.T) {
	for kind, call := range kinds {
		t.Run(kind, func(t *testing.T) {
			inner := tenure.NewGate("/other")
			require.NoError(t, inner.Seal(t.Context(), tenure.Fence{Key: "/other", Epoch: 9, Lease: 1}))
			behind := serve(t, handledBy(func(context.Context) error { return nil }), inner, nil)(always(tenure.Fence{Key: "/other", Epoch: 8, Lease: 1}))
			dial := serve(t, handledBy(func(ctx context.Context) error { return call(ctx, behind) }), tenure.NewGate(key), nil)
			err := call(bounded(t), dial(always(fenceOf(5))))
			require.Equal(t, codes.FailedPrecondition, status.Code(err))
			require.Equal(t, "8:1:/other", infoOf(t, err).GetMetadata()["fence"])
			require.NotErrorIs(t, err, tenure.ErrFenced)
		})
	}
}

// Nobody who makes a fence up gets in, and the holder does.
func TestAGateThatAsksEtcdBelievesNoInvention(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		elector, err := tenure.New(s.Client().Client, key, nil)
		require.NoError(t, err)
		term, err := elector.Campaign(t.Context())
		require.NoError(t, err)
		defer func() { _ = term.Resign() }()
		c := s.Client()
		intercept := fencegrpc.UnaryServerInterceptor(tenure.NewGateWith(key, tenure.EtcdMemory(c.Client)), nil)
		call := func(fence tenure.Fence) error {
			md := make(metadata.MD)
			require.NoError(t, fencegrpc.Set(md, fence))
			_, err := intercept(metadata.NewIncomingContext(t.Context(), md), nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { return nil, nil })
			return err
		}
		invented := term.Fence()
		invented.Epoch++
		c.Link.Cut()
		require.Equal(t, codes.Unavailable, status.Code(call(term.Fence())))
		c.Link.Heal()
		require.Equal(t, codes.FailedPrecondition, status.Code(call(invented)))
		require.NoError(t, call(term.Fence()))
	})
}

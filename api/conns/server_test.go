package conns

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// patience is how long a test waits for what takes milliseconds.
const patience = 20 * time.Second

const (
	messageMax = 160 << 10
	window     = 64 << 10
	callsMax   = 1024 // of a connection
)

// The service of these tests: big answers a number with so many bytes, held answers when the test
// ends or the call is cancelled, echo answers each message with itself.
func service(stop <-chan struct{}) *grpc.ServiceDesc {
	unaryHandler :=
		func(answer func(context.Context, *wrapperspb.BytesValue) (any, error)) grpc.MethodHandler {
			return func(_ any, ctx context.Context, decode func(any) error,
				interceptor grpc.UnaryServerInterceptor) (any, error) {
				in := &wrapperspb.BytesValue{}
				if err := decode(in); err != nil {
					return nil, err
				}
				return interceptor(ctx, in, &grpc.UnaryServerInfo{},
					func(ctx context.Context, _ any) (any, error) { return answer(ctx, in) })
			}
		}
	return &grpc.ServiceDesc{
		ServiceName: "test", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			{MethodName: "big",
				Handler: unaryHandler(func(_ context.Context, in *wrapperspb.BytesValue) (any,
					error) {
					return wrapperspb.Bytes(make([]byte, number(in))), nil
				})},
			{MethodName: "held",
				Handler: unaryHandler(func(ctx context.Context, in *wrapperspb.BytesValue) (any,
					error) {
					select {
					case <-stop:
					case <-ctx.Done():
					}
					return in, ctx.Err()
				})},
		},
		Streams: []grpc.StreamDesc{{StreamName: "echo", ClientStreams: true, ServerStreams: true,
			Handler: func(_ any, s grpc.ServerStream) error {
				for {
					m := &wrapperspb.BytesValue{}
					if err := s.RecvMsg(m); err != nil {
						return err
					}
					if err := s.SendMsg(m); err != nil {
						return err
					}
				}
			}}},
	}
}

func number(in *wrapperspb.BytesValue) uint32 {
	if len(in.Value) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(in.Value)
}

func bytesOf(n int) *wrapperspb.BytesValue {
	return wrapperspb.Bytes(binary.BigEndian.AppendUint32(nil, uint32(n)))
}

// server is one with the options that a node has.
type server struct {
	*Budget
	address       string
	admitted      int          // the most admitted connections
	running, most atomic.Int32 // handlers: now, and at most
}

func serve(t testing.TB, bytes int64, conns int) *server {
	s := &server{Budget: NewBudget(bytes, func(string, net.Addr) {})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.address = l.Addr().String()
	of := grpc.NewServer(append(s.Options(insecure.NewCredentials()),
		grpc.MaxRecvMsgSize(messageMax), grpc.MaxHeaderListSize(16<<10),
		grpc.WriteBufferSize(4<<10),
		grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(1<<20),
		grpc.MaxConcurrentStreams(callsMax), grpc.ChainUnaryInterceptor(s.count))...)
	stop := make(chan struct{})
	of.RegisterService(service(stop), nil)
	served := make(chan error, 1)
	listener := s.Listen(l, conns, nil)
	s.admitted = listener.most[admitted]
	go func() { served <- of.Serve(listener) }()
	t.Cleanup(func() {
		close(stop)
		of.Stop()
		require.NoError(t, <-served)
		assert.Empty(t, s.conns)
		assert.Empty(t, s.from)
		assert.Zero(t, s.used.Load())
	})
	return s
}

// count admits each call whose connection has room, and counts the handlers that run at a time.
func (s *server) count(ctx context.Context, request any, _ *grpc.UnaryServerInfo,
	handle grpc.UnaryHandler) (any, error) {
	end, limit := Of(ctx).Admitted(false, func() bool { return false })
	if limit != "" {
		return nil, status.Error(codes.ResourceExhausted, limit)
	}
	defer end()
	running := s.running.Add(1)
	defer s.running.Add(-1)
	for most := s.most.Load(); running > most &&
		!s.most.CompareAndSwap(most, running); most = s.most.Load() {
	}
	return handle(ctx, request)
}

// calls is how many calls there are.
func (s *server) calls() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		conn.mu.Lock()
		n += len(conn.calls)
		conn.mu.Unlock()
	}
	return n
}

func (s *server) dial(t testing.TB) *grpc.ClientConn {
	c, err := grpc.NewClient("passthrough:///"+s.address,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// request requests an answer of so many bytes, and reads it.
func request(t testing.TB, c *grpc.ClientConn, bytes int) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	answer := &wrapperspb.BytesValue{}
	err := c.Invoke(ctx, "/test/big", bytesOf(bytes), answer)
	if err == nil {
		assert.Len(t, answer.Value, bytes)
	}
	return err
}

// rawClient speaks HTTP/2 without a library that would keep to the rules.
type rawClient struct {
	testing.TB
	net.Conn
	*http2.Framer
	last uint32 // the stream that was opened last
}

func (s *server) raw(t testing.TB) *rawClient {
	conn, err := net.Dial("tcp", s.address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, http2.ClientPreface)
	require.NoError(t, err)
	c := &rawClient{TB: t, Conn: conn, Framer: http2.NewFramer(conn, conn)}
	require.NoError(t, c.WriteSettings())
	return c
}

// open opens a stream for a call.
func (c *rawClient) open(method string, more ...hpack.HeaderField) error {
	if c.last++; c.last%2 == 0 {
		c.last++
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"},
		{Name: ":path", Value: "/test/" + method},
		{Name: ":authority", Value: "x"}, {Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}, more...) {
		_ = encoder.WriteField(f)
	}
	return c.WriteHeaders(http2.HeadersFrameParam{StreamID: c.last, BlockFragment: block.Bytes(),
		EndHeaders: true})
}

// message is a message of so many bytes, of which the client sends fewer.
func message(bytes, send int) []byte {
	m := make([]byte, 5+send)
	binary.BigEndian.PutUint32(m[1:], uint32(bytes))
	return m
}

// send sends data in frames of so many bytes.
func (c *rawClient) send(data []byte, frame int) (err error) {
	for ; len(data) > 0 && err == nil; data = data[min(frame, len(data)):] {
		err = c.WriteData(c.last, false, data[:min(frame, len(data))])
	}
	return err
}

// request sends a complete request, for an answer of so many bytes.
func (c *rawClient) request(method string, n int) error {
	if err := c.open(method); err != nil {
		return err
	}
	return c.WriteData(c.last, true, encoded(n))
}

// encoded is a request for an answer of so many bytes.
func encoded(n int) []byte { return append([]byte{0, 0, 0, 0, 6, 10, 4}, bytesOf(n).Value...) }

// discard reads what the server sends.
func (c *rawClient) discard() { go func() { _, _ = io.Copy(io.Discard, c.Conn) }() }

// heap is what the process has in use.
func heap() int64 {
	runtime.GC()
	runtime.GC() // pools keep what they have over one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// grownLess is by how much it has grown, once that is less than most: connections that were closed
// end soon.
func grownLess(t *testing.T, before, most int64) (grown int64) {
	assert.Eventually(t, func() bool {
		grown = heap() - before
		return grown < most
	}, patience, 10*time.Millisecond)
	return grown
}

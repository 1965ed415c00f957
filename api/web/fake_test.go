package web

import (
	"context"
	"io"
	"net"
	"net/http"
	"path"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"zamok/api/wire"
	"zamok/api/zamokpb"
)

// fakeConn answers calls by functions of a test.
type fakeConn struct {
	invoke func(ctx context.Context, method string, request any) (proto.Message, error)
	stream func(s *fakeStream) error // serves a stream until it returns
}

func (f *fakeConn) Invoke(ctx context.Context, method string, request, response any, _ ...grpc.CallOption) error {
	answer, err := f.invoke(ctx, path.Base(method), request)
	if err == nil {
		proto.Merge(response.(proto.Message), answer)
	}
	return err
}

func (f *fakeConn) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	s := &fakeStream{ctx: ctx, in: make(chan *zamokpb.ClientFrame), out: make(chan *zamokpb.ServerFrame), ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		s.err = f.stream(s)
	}()
	return s, nil
}

// fakeStream is a stream of a session.
type fakeStream struct {
	grpc.ClientStream
	ctx   context.Context
	in    chan *zamokpb.ClientFrame
	out   chan *zamokpb.ServerFrame
	ended chan struct{}
	err   error
}

// received is the next message of the client; nil: there is none.
func (s *fakeStream) received() *zamokpb.ClientMessage {
	select {
	case frame := <-s.in:
		return frame.Messages[0]
	case <-s.ctx.Done():
		return nil
	}
}

// sends sends messages, and reports whether the client has received them.
func (s *fakeStream) sends(messages ...*zamokpb.ServerMessage) bool {
	select {
	case s.out <- &zamokpb.ServerFrame{Messages: messages}:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// opens answers the OpenStream, and waits for the Acquire.
func (s *fakeStream) opens() { s.opensFor(time.Duration(ttlDefault)) }

func (s *fakeStream) opensFor(ttl time.Duration) {
	select {
	case frame := <-s.in:
		s.sends(&zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Session{Session: &zamokpb.SessionState{
			Session: 7, Ttl: int64(ttl), Sent: frame.Sent,
		}}})
	case <-s.ctx.Done():
	}
	s.received()
}

func granting() *zamokpb.ServerMessage {
	return &zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Change{Change: &zamokpb.Change{
		State: &zamokpb.TicketState{Ticket: ownTicket, State: zamokpb.State_STATE_GRANTED, Token: 9},
	}}}
}

func (s *fakeStream) SendMsg(m any) error {
	select {
	case s.in <- m.(*zamokpb.ClientFrame):
		return nil
	case <-s.ended:
		return io.EOF
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func (s *fakeStream) RecvMsg(m any) error {
	select {
	case frame := <-s.out:
		proto.Merge(m.(proto.Message), frame)
		return nil
	case <-s.ended:
		if s.err == nil {
			return io.EOF
		}
		return s.err
	case <-s.ctx.Done():
		return wire.Explain(s.ctx.Err())
	}
}

// fakeConfig is the config of a handler on a fake connection.
func fakeConfig(conn grpc.ClientConnInterface) Config {
	return Config{
		Conn: conn, Node: "n1", Cluster: func() string { return "00ff" }, Started: func() bool { return true }, NotReady: func() string { return "" },
		IsHost: func(string) bool { return false }, Stopping: make(chan struct{}),
	}
}

// pipes is a listener for connections in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	conn, more := <-p
	if !more {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// serveOnPipes serves until the function that it returns has ended the server.
func serveOnPipes(t *testing.T, server *http.Server) (dial func() net.Conn, end func()) {
	connections, ended := make(pipes), make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(connections)
	}()
	dial = func() net.Conn {
		client, accepted := net.Pipe()
		connections <- accepted
		return client
	}
	return dial, func() {
		close(connections)
		_ = server.Close()
		<-ended
	}
}

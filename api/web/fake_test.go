package web

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"zamok/api/gate"
	"zamok/api/zamokpb"
)

// fakeConn is a gate, and a service, whose calls are functions of a test.
type fakeConn struct {
	invoke func(ctx context.Context, method string, request any) (proto.Message, error)
	stream func(s *fakeStream) error // serves a stream until it returns
}

func (f *fakeConn) Do(ctx context.Context, _ gate.Arrival,
	request proto.Message) (proto.Message, error) {
	return f.invoke(ctx, strings.TrimSuffix(string(request.ProtoReflect().Descriptor().Name()),
		"Request"), request)
}

func (f *fakeConn) Stream(ctx context.Context, _ gate.Arrival, _ string,
	messages gate.Messages) error {
	return f.stream(&fakeStream{ctx, messages})
}

func (f *fakeConn) Cluster() string { return "00ff" }

// fakeStream is a stream of a session.
type fakeStream struct {
	ctx context.Context
	gate.Messages
}

// received is the next message of the client; nil: there is none.
func (s *fakeStream) received() *zamokpb.ClientMessage {
	frame := new(zamokpb.ClientFrame)
	if s.RecvMsg(frame) != nil {
		return nil
	}
	return frame.Messages[0]
}

// sends sends messages, and reports whether the client has received them.
func (s *fakeStream) sends(messages ...*zamokpb.ServerMessage) bool {
	return s.SendMsg(&zamokpb.ServerFrame{Messages: messages}) == nil
}

// opens answers the OpenStream, and waits for the Acquire.
func (s *fakeStream) opens() { s.opensFor(time.Duration(ttlDefault)) }

func (s *fakeStream) opensFor(ttl time.Duration) {
	frame := new(zamokpb.ClientFrame)
	if s.RecvMsg(frame) == nil {
		s.sends(&zamokpb.ServerMessage{
			Message: &zamokpb.ServerMessage_Session{Session: &zamokpb.SessionState{
				Session: 7, Ttl: int64(ttl), Sent: frame.Sent,
			}}})
	}
	s.received()
}

func granting() *zamokpb.ServerMessage {
	return &zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Change{Change: &zamokpb.Change{
		State: &zamokpb.TicketState{Ticket: ownTicket, State: zamokpb.State_STATE_GRANTED,
			Token: 9},
	}}}
}

// fakeConfig is the config of a handler in front of a fake gate.
func fakeConfig(g Gate) Config {
	return Config{
		Gate: g, Begin: func() (end func(), err error) { return func() {}, nil }, Node: "n1",
		Started: func() bool { return true }, NotReady: func() string { return "" },
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

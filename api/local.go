package api

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"zamok/api/zamokpb"
)

// localConn is a connection to this node's own services without a network: HTTP is served through it. A call takes the
// way that it would take from a gRPC connection (Server.unary, Server.stream), relay and admission included, so there
// is one implementation of everything behind both protocols. The context has the caller as its grpc peer.
type localConn struct {
	server  *Server
	unary   map[string]grpc.MethodHandler
	streams map[string]grpc.StreamHandler
}

func newLocalConn(s *Server) *localConn {
	l := &localConn{server: s, unary: make(map[string]grpc.MethodHandler), streams: make(map[string]grpc.StreamHandler)}
	for _, service := range []*grpc.ServiceDesc{&zamokpb.Zamok_ServiceDesc, &zamokpb.Admin_ServiceDesc} {
		for _, m := range service.Methods {
			l.unary["/"+service.ServiceName+"/"+m.MethodName] = m.Handler
		}
		for _, st := range service.Streams {
			l.streams["/"+service.ServiceName+"/"+st.StreamName] = st.Handler
		}
	}
	return l
}

// begin counts a call in Server.busy, unless the node is stopping: announceStop closes
// Server.stopping under the same lock, so none is counted after that.
func (l *localConn) begin() error {
	s := l.server
	s.relaying.Lock()
	defer s.relaying.Unlock()
	if s.isStopping() {
		return errStopping()
	}
	s.busy.Add(1)
	return nil
}

// received is the context of a call as its handler has it: what the caller sends is what the handler receives.
func received(ctx context.Context) context.Context {
	md, _ := metadata.FromOutgoingContext(ctx)
	return metadata.NewIncomingContext(ctx, md)
}

// Invoke carries out a unary call.
func (l *localConn) Invoke(ctx context.Context, method string, request, response any, _ ...grpc.CallOption) error {
	handle := l.unary[method]
	if handle == nil {
		return status.Errorf(codes.Unimplemented, "there is no method %s here", method)
	}
	if err := l.begin(); err != nil {
		return err
	}
	defer l.server.busy.Done()
	ctx = grpc.NewContextWithServerTransportStream(received(ctx), localTransport{method})
	var answer any
	var err error
	handled := make(chan struct{})
	go func() { // net/http would recover from a panic here, and continue with what the handler has locked
		answer, err = handle(l.server, ctx, func(in any) error {
			proto.Merge(in.(proto.Message), request.(proto.Message))
			return nil
		}, l.server.unary)
		close(handled)
	}()
	<-handled
	if err != nil {
		return err
	}
	return carry(answer.(proto.Message), response.(proto.Message))
}

// carry copies a message to another one, perhaps of another type with the same encoding, as in a relayed answer.
func carry(from, to proto.Message) error {
	if from.ProtoReflect().Descriptor() == to.ProtoReflect().Descriptor() {
		proto.Merge(to, from)
		return nil
	}
	bytes, err := proto.Marshal(from)
	if err != nil {
		return err
	}
	return proto.Unmarshal(bytes, to)
}

// localTransport is what a handler expects behind its context. HTTP needs no header or trailer of a call.
type localTransport struct{ method string }

func (t localTransport) Method() string             { return t.method }
func (localTransport) SetHeader(metadata.MD) error  { return nil }
func (localTransport) SendHeader(metadata.MD) error { return nil }
func (localTransport) SetTrailer(metadata.MD) error { return nil }

// NewStream begins a stream. It ends when its handler returns, at the latest when ctx ends.
func (l *localConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	handle := l.streams[method]
	if handle == nil {
		return nil, status.Errorf(codes.Unimplemented, "there is no stream %s here", method)
	}
	if err := l.begin(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	st := &localStream{toServer: make(chan []byte), toClient: make(chan []byte), ended: make(chan struct{})}
	go func() {
		defer l.server.busy.Done()
		defer cancel()
		defer close(st.ended)
		st.err = l.server.stream(l.server, &localServerStream{localStream: st, ctx: received(ctx)},
			&grpc.StreamServerInfo{FullMethod: method}, handle)
	}()
	return &localClientStream{localStream: st, ctx: ctx, sendsOne: !desc.ClientStreams}, nil
}

// localStream is a stream in memory. Messages are passed encoded: the two sides share nothing.
type localStream struct {
	toServer, toClient chan []byte
	ended              chan struct{} // closed when the handler has returned
	err                error         // what it returned; set before ended is closed
}

// send passes a message, unless the stream ends before it is received.
func (st *localStream) send(ctx context.Context, to chan []byte, m any) error {
	bytes, err := proto.Marshal(m.(proto.Message))
	if err != nil {
		return err
	}
	select {
	case to <- bytes:
		return nil
	case <-st.ended:
		return io.EOF // as gRPC does; the reason is what RecvMsg returns
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

type localClientStream struct {
	*localStream
	ctx      context.Context
	sendsOne bool // one message: if the stream ends before it is received, RecvMsg has the reason, as in gRPC
	closed   sync.Once
}

func (c *localClientStream) Context() context.Context     { return c.ctx }
func (c *localClientStream) Header() (metadata.MD, error) { return nil, nil }
func (c *localClientStream) Trailer() metadata.MD         { return nil }

func (c *localClientStream) SendMsg(m any) error {
	err := c.send(c.ctx, c.toServer, m)
	if c.sendsOne && errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (c *localClientStream) CloseSend() error {
	c.closed.Do(func() { close(c.toServer) })
	return nil
}

func (c *localClientStream) RecvMsg(m any) error {
	select {
	case bytes := <-c.toClient:
		return proto.Unmarshal(bytes, m.(proto.Message))
	case <-c.ended:
		if c.err == nil {
			return io.EOF
		}
		return c.err
	}
}

type localServerStream struct {
	*localStream
	ctx context.Context
}

func (c *localServerStream) Context() context.Context     { return c.ctx }
func (c *localServerStream) SetHeader(metadata.MD) error  { return nil }
func (c *localServerStream) SendHeader(metadata.MD) error { return nil }
func (c *localServerStream) SetTrailer(metadata.MD)       {}

func (c *localServerStream) SendMsg(m any) error {
	if err := c.send(c.ctx, c.toClient, m); !errors.Is(err, io.EOF) {
		return err
	}
	return status.Error(codes.Canceled, "the handler of the stream has returned")
}

func (c *localServerStream) RecvMsg(m any) error {
	select {
	case bytes, more := <-c.toServer:
		if !more {
			return io.EOF
		}
		return proto.Unmarshal(bytes, m.(proto.Message))
	case <-c.ended:
		return status.Error(codes.Canceled, "the handler of the stream has returned")
	case <-c.ctx.Done():
		return status.FromContextError(c.ctx.Err()).Err()
	}
}

package driver

import (
	"context"
	"errors"
	"io"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"zamok/api/zamokpb"
)

// Echo replies to each frame of zamok's stream with an empty grant: what gRPC and the kernel cost
// without a lock service. It serves until ctx ends.
func Echo(ctx context.Context, address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	zamokpb.RegisterZamokServer(server, &echoServer{})
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	return server.Serve(listener)
}

type echoServer struct {
	zamokpb.UnimplementedZamokServer
}

func (*echoServer) Session(
	stream grpc.BidiStreamingServer[zamokpb.ClientFrame, zamokpb.ServerFrame]) error {
	for {
		frame, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		reply := &zamokpb.ServerFrame{}
		for _, m := range frame.GetMessages() {
			state := &zamokpb.TicketState{State: zamokpb.State_STATE_GRANTED,
				Ticket: m.GetAcquire().GetTicket(), Token: 1}
			reply.Messages = append(reply.Messages,
				&zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Change{
					Change: &zamokpb.Change{State: state, Index: 1}}})
		}
		if err := stream.Send(reply); err != nil {
			return err
		}
	}
}

// openEcho opens one connection and a stream for each goroutine that uses it.
func openEcho(ctx context.Context, s Session) (Client, error) {
	conn, err := grpc.NewClient(s.Endpoints[0],
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return Client{}, err
	}
	alive, end := context.WithCancel(context.WithoutCancel(ctx))
	closeAll := func() error {
		end()
		return conn.Close()
	}
	unused := make(chan grpc.BidiStreamingClient[zamokpb.ClientFrame, zamokpb.ServerFrame], s.Width)
	for range s.Width {
		stream, err := zamokpb.NewZamokClient(conn).Session(alive)
		if err != nil {
			return Client{}, errors.Join(err, closeAll())
		}
		unused <- stream
	}
	roundTrip := func(m *zamokpb.ClientMessage) error {
		stream := <-unused
		defer func() { unused <- stream }()
		if err := stream.Send(&zamokpb.ClientFrame{Messages: []*zamokpb.ClientMessage{m},
			AckedThrough: 1}); err != nil {
			return err
		}
		_, err := stream.Recv()
		return err
	}
	lock := func(_ context.Context, key string) (Unlock, error) {
		acquire := (&zamokpb.Acquire{Ticket: 1, Wait: -1,
			Items: []*zamokpb.Item{{Name: key, Mode: zamokpb.Mode_MODE_EXCLUSIVE}}}).Message()
		drop := (&zamokpb.Drop{Ticket: 1}).Message()
		return func(context.Context) error { return roundTrip(drop) }, roundTrip(acquire)
	}
	return Client{Lock: lock, TryLock: lock, Close: closeAll}, nil
}

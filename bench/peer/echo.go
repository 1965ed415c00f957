package peer

import (
	"context"
	"errors"
	"io"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"zamok/api/zamokpb"
)

// Echo answers each frame of zamok's stream with one that holds nothing but a grant's shape: what gRPC
// and the kernel cost when nothing is decided or kept. It serves until ctx ends.
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

func (*echoServer) Session(stream grpc.BidiStreamingServer[zamokpb.ClientFrame, zamokpb.ServerFrame]) error {
	for {
		frame, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		answer := &zamokpb.ServerFrame{}
		for _, m := range frame.GetMessages() {
			state := &zamokpb.TicketState{State: zamokpb.State_STATE_GRANTED, Ticket: m.GetAcquire().GetTicket(), Token: 1}
			answer.Messages = append(answer.Messages, &zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Change{
				Change: &zamokpb.Change{State: state, Index: 1}}})
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

// openEcho opens one connection and a stream for each goroutine that uses it.
func openEcho(ctx context.Context, s Session) (Client, error) {
	conn, err := grpc.NewClient(s.Endpoints[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
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
		if err := stream.Send(&zamokpb.ClientFrame{Messages: []*zamokpb.ClientMessage{m}, AckedThrough: 1}); err != nil {
			return err
		}
		_, err := stream.Recv()
		return err
	}
	lock := func(_ context.Context, key string) (Unlock, error) {
		ask := &zamokpb.ClientMessage{Message: &zamokpb.ClientMessage_Acquire{Acquire: &zamokpb.Acquire{Ticket: 1, WaitFor: -1,
			Items: []*zamokpb.Item{{Name: key, Mode: zamokpb.Mode_MODE_EXCLUSIVE}}}}}
		drop := &zamokpb.ClientMessage{Message: &zamokpb.ClientMessage_Drop{Drop: &zamokpb.TicketRequest{Ticket: 1}}}
		return func(context.Context) error { return roundTrip(drop) }, roundTrip(ask)
	}
	return Client{Lock: lock, TryLock: lock, Close: closeAll}, nil
}

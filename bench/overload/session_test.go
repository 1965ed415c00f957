package overload

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
)

// node is a server of one stream, whose part the test plays.
type node struct {
	zamokpb.UnimplementedZamokServer
	t       *testing.T
	address string
	play    func(wire zamokpb.Zamok_SessionServer) error
}

func (n *node) Session(wire zamokpb.Zamok_SessionServer) error { return n.play(wire) }

func newNode(t *testing.T) *node {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	n, server := &node{t: t, address: lis.Addr().String()}, grpc.NewServer()
	zamokpb.RegisterZamokServer(server, n)
	go func() { _ = server.Serve(lis) }() // ends with Stop
	t.Cleanup(server.Stop)
	return n
}

// opened receives an OpenStream and replies with the states of tickets.
func (n *node) opened(wire zamokpb.Zamok_SessionServer,
	tickets ...*zamokpb.TicketState) *zamokpb.OpenStream {
	f, err := wire.Recv()
	if !assert.NoError(n.t, err) || !assert.Len(n.t, f.Messages, 1) {
		return nil
	}
	assert.NoError(n.t,
		wire.Send(&zamokpb.ServerFrame{
			Messages: []*zamokpb.ServerMessage{{Message: &zamokpb.ServerMessage_Session{
				Session: &zamokpb.SessionState{Session: 7, Ttl: int64(sessionTTL),
					Tickets: tickets}}}}}))
	return f.Messages[0].GetOpen()
}

// commands receives that many acquisitions and drops.
func (n *node) commands(wire zamokpb.Zamok_SessionServer, count int) (acquired, dropped []uint64) {
	for len(acquired)+len(dropped) < count {
		f, err := wire.Recv()
		if !assert.NoError(n.t, err) {
			break
		}
		for _, m := range f.Messages {
			if m.GetAcquire() != nil {
				acquired = append(acquired, m.GetAcquire().Ticket)
			}
			if m.GetDrop() != nil {
				dropped = append(dropped, m.GetDrop().Ticket)
			}
		}
	}
	return acquired, dropped
}

func changed(number, ticket uint64, state zamokpb.State) *zamokpb.ServerMessage {
	return &zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Change{
		Change: &zamokpb.Change{Number: number,
			State: &zamokpb.TicketState{Ticket: ticket, State: state, Token: 9}}}}
}

// The old leader grants one of four tickets, and then ends the stream and names the next leader.
// That one knows two of the tickets, one of which has ended. The session continues there with the
// others, and sends again the commands that the next leader does not know.
func TestASessionFollowsTheLeader(t *testing.T) {
	old, leader := newNode(t), newNode(t)
	old.play = func(wire zamokpb.Zamok_SessionServer) error {
		assert.Zero(t, old.opened(wire).GetSession())
		acquired, _ := old.commands(wire, 4)
		assert.Equal(t, []uint64{1, 2, 3, 4}, acquired)
		assert.NoError(t,
			wire.Send(&zamokpb.ServerFrame{
				Messages: []*zamokpb.ServerMessage{changed(1, 1, zamokpb.State_STATE_GRANTED)}}))
		_, dropped := old.commands(wire, 1)
		assert.Equal(t, []uint64{1}, dropped)
		s, err := status.New(codes.Unavailable, "").WithDetails(&zamokpb.ErrorInfo{
			Code: zamokpb.Code_CODE_NOT_LEADER, LeaderAddress: leader.address})
		assert.NoError(t, err)
		return s.Err()
	}
	ended := make(chan struct{})
	leader.play = func(wire zamokpb.Zamok_SessionServer) error {
		defer close(ended)
		open := leader.opened(wire,
			&zamokpb.TicketState{Ticket: 1, State: zamokpb.State_STATE_ENDED, Token: 9},
			&zamokpb.TicketState{Ticket: 2, State: zamokpb.State_STATE_GRANTED, Token: 10})
		assert.EqualValues(t, 7, open.GetSession())
		assert.EqualValues(t, 2, open.GetAttempt())
		acquired, dropped := leader.commands(wire, 4)
		assert.Equal(t, []uint64{3, 4, 5}, acquired, "5 is the cycle after 1")
		assert.Equal(t, []uint64{2}, dropped)
		return status.Error(codes.Internal, "the test ends")
	}
	s := newSession(t.Context(), &clientsSpec{Endpoints: []string{old.address}, AtOnce: 4}, 0)
	require.NoError(t, s.follow(nil))
	go s.run(time.Now()) // until the end of the test's context
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		require.Fail(t, "the session does not attach at the next leader")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	assert.Len(t, s.resent, 2,
		"the drop of 1 and the acquisition of 2, whose answers only the next leader had")
	assert.EqualValues(t, 1, s.cycles.Load(), "that of 1, whose end only the next leader sent")
}

// The time of a command that was sent again is from its first sending.
func TestTimesOfRepeatedCommands(t *testing.T) {
	s := newSession(t.Context(), &clientsSpec{}, 0)
	first := time.Now().Add(-time.Hour)
	for ticket := range uint64(2) {
		s.acquire(ticket+1, first)
		s.repeat(ticket + 1)
	}
	s.frame(time.Now(), 0)
	s.refusedWith(&zamokpb.ErrorInfo{Code: zamokpb.Code_CODE_OVERLOADED,
		Outcome: zamokpb.Outcome_OUTCOME_NOT_DONE}, 1)
	s.message(changed(1, 2, zamokpb.State_STATE_GRANTED))
	require.Len(t, s.resent, 2)
	assert.GreaterOrEqual(t, min(s.resent[0], s.resent[1]), time.Hour)
	s.frame(time.Now(), 0)
	s.repeat(2)
	s.message(changed(2, 2, zamokpb.State_STATE_ENDED))
	require.Len(t, s.resent, 3)
	assert.Less(t, s.resent[2], time.Hour, "its drop was first sent now")
}

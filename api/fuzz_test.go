package api

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"zamok/api/gate"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
)

// FuzzFrame gives a stream's handler a frame of any bytes. Whatever it is, the node decodes and
// applies what it makes of it and continues, the machine is sound, and what the stream would send
// can be encoded. So no client can end nodes by an entry.
func FuzzFrame(f *testing.F) {
	n := startAlone(f)
	seeds := [][]*zamokpb.ClientMessage{
		nil, {{}}, {openMessage(&zamokpb.OpenStream{Secret: newSecret()})},
		{keepAlive(), keepAlive()},
		{exclusive(1, "x", 0), exclusive(1, "x", -1), exclusive(2, "x", -1), drop(1), downgrade(2)},
		{withPosition(1, "x", "y"), exclusive(0, "", -5), closeSession(), exclusive(3, "z", 0)},
		{acquire(nil),
			acquire(&zamokpb.Acquire{Ticket: 1 << 63, Items: []*zamokpb.Item{nil, {Mode: 99}}})},
	}
	for _, messages := range seeds {
		bytes, err := proto.Marshal(
			&zamokpb.ClientFrame{Messages: messages, Sent: []byte("now"), AckedThrough: 1})
		require.NoError(f, err)
		f.Add(bytes)
	}
	f.Add(make([]byte, 300))
	f.Fuzz(func(t *testing.T, bytes []byte) {
		frame := new(zamokpb.ClientFrame)
		if proto.Unmarshal(bytes, frame) != nil {
			return // gRPC ends the stream
		}
		st := &memoryStream{ended: make(chan struct{}), last: make(chan struct{}),
			in: []*zamokpb.ClientFrame{
				{
					Messages: []*zamokpb.ClientMessage{
						openMessage(&zamokpb.OpenStream{Secret: newSecret(),
							Settings: settings(clock.Minute)})}},
				frame, {Messages: []*zamokpb.ClientMessage{keepAlive()}, Sent: []byte(lastSent)},
				{Messages: []*zamokpb.ClientMessage{closeSession()}},
			}}
		err := n.server.gate.Stream(soon(t), gate.Arrival{Address: "192.0.2.1:1"},
			zamokpb.Zamok_Session_FullMethodName, st)
		out := st.end()
		if err != nil {
			require.Equal(t, zamokpb.Code_CODE_INVALID, infoOf(t, err).Code)
		}
		_, _, err = n.Raft().ReadBarrier(context.Background())
		require.NoError(t, err)
		require.NoError(t, context.Cause(n.failed))
		for _, frame := range out {
			require.NotContains(t, frame.String(), zamokpb.Code_CODE_INTERNAL.String(),
				"the leader could not decode it")
			_, err = proto.Marshal(frame)
			require.NoError(t, err)
		}
		n.Raft().View(func(m *fsm.Machine) { require.NoError(t, m.Check()) })
	})
}

// lastSent is the clock of the frame behind those that are tried.
const lastSent = "the last"

// memoryStream is a stream of a session without a network. Behind the frame with lastSent it waits
// for its confirmation.
type memoryStream struct {
	in    []*zamokpb.ClientFrame
	last  chan struct{} // closed when lastSent was confirmed
	ended chan struct{} // closed when the stream has ended

	mu  sync.Mutex // guards out: the writer may still send when the handler has returned
	out []*zamokpb.ServerFrame
}

// end ends the stream, and returns what was sent until then.
func (s *memoryStream) end() []*zamokpb.ServerFrame {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.ended)
	return s.out
}

func (s *memoryStream) RecvMsg(m any) error {
	if len(s.in) == 1 {
		select {
		case <-s.last:
		case <-s.ended:
		}
	}
	if len(s.in) == 0 {
		return io.EOF
	}
	proto.Merge(m.(proto.Message), s.in[0])
	s.in = s.in[1:]
	return nil
}

func (s *memoryStream) SendMsg(m any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if isClosed(s.ended) {
		return net.ErrClosed
	}
	s.out = append(s.out, m.(*zamokpb.ServerFrame))
	for _, message := range m.(*zamokpb.ServerFrame).Messages {
		if string(message.GetKeepAliveAck().GetSent()) == lastSent {
			close(s.last)
		}
	}
	return nil
}

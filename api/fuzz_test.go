package api

import (
	"context"
	"encoding/binary"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"zamok/api/access"
	"zamok/api/push"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

// FuzzFrame gives a stream's handler a frame of any bytes. Whatever it is, the node decodes and applies what it makes of it
// and continues, the machine is sound, and what the stream would send can be encoded. So no client can end nodes by an entry.
func FuzzFrame(f *testing.F) {
	n := startAlone(f)
	seeds := [][]*zamokpb.ClientMessage{
		nil, {{}}, {openMessage(&zamokpb.OpenStream{Secret: newSecret()})}, {keepAlive(), keepAlive()},
		{exclusive(1, "x", 0), exclusive(1, "x", -1), exclusive(2, "x", -1), drop(1), downgrade(2)},
		{withPosition(1, "x", "y"), exclusive(0, "", -5), closeSession(), exclusive(3, "z", 0)},
		{acquire(nil), acquire(&zamokpb.Acquire{Ticket: 1 << 63, Items: []*zamokpb.Item{nil, {Mode: 99}}})},
	}
	for _, messages := range seeds {
		bytes, err := proto.Marshal(&zamokpb.ClientFrame{Messages: messages, Sent: []byte("now"), AckedThrough: 1})
		require.NoError(f, err)
		f.Add(bytes)
	}
	f.Add(make([]byte, 300))
	var secrets atomic.Uint64
	f.Fuzz(func(t *testing.T, bytes []byte) {
		frame := new(zamokpb.ClientFrame)
		if proto.Unmarshal(bytes, frame) != nil {
			return // gRPC ends the stream
		}
		st := attachDirectly(t, n, secrets.Add(1))
		err := st.handle(frame)
		if err != nil {
			require.Equal(t, zamokpb.Code_CODE_INVALID, infoOf(t, err).Code)
		}
		_, _, err = n.Raft().ReadBarrier(context.Background())
		require.NoError(t, err)
		require.Eventually(t, func() bool { return st.pending.Load() == 0 }, patience, clock.Millisecond.Duration())
		require.NoError(t, context.Cause(n.failed))
		frameOut, _ := st.queue.Take()
		require.NotContains(t, frameOut.String(), zamokpb.Code_CODE_INTERNAL.String(), "the leader could not decode it")
		_, err = proto.Marshal(frameOut)
		require.NoError(t, err)
		n.server.hub.Leave(st.queue)
		_, _ = n.Raft().Propose(context.Background(), &fsm.CloseSession{Session: st.queue.Session})
		n.Raft().View(func(m *fsm.Machine) { require.NoError(t, m.Check()) })
	})
}

// attachDirectly is a stream without a connection.
func attachDirectly(t testing.TB, n *Node, number uint64) *stream { return attachFor(t, n, number, 0) }

// attachFor is one of a session that ends with a grace period after a break.
func attachFor(t testing.TB, n *Node, number uint64, grace clock.Span) *stream {
	ctx := context.Background()
	secret := access.Hash(binary.BigEndian.AppendUint64(nil, number))
	a, err := n.Raft().Propose(ctx, &fsm.OpenSession{Secret: secret, Settings: session.Settings{TTL: clock.Minute, Grace: grace}})
	require.NoError(t, err)
	adopted := make(chan *push.Queue, 1)
	n.Raft().Submit(ctx, &fsm.Attach{Session: a.Result.Session, Secret: secret}, func(a raftnode.Answer, err error) {
		queue, _ := n.server.hub.Adopt(&zamokpb.SessionState{Session: uint64(a.Result.Session), Attachment: a.Result.Index})
		adopted <- queue
	})
	queue := <-adopted
	require.NotNil(t, queue)
	renewal := &zamokpb.RenewSessionRequest{Session: uint64(a.Result.Session), Secret: newSecret()}
	return &stream{server: n.server, ctx: ctx, queue: queue, renewal: renewal}
}

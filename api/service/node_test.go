package service

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/api/history"
	"zamok/api/metrics"
	"zamok/api/push"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
	"zamok/session"
)

// patience is how long a test waits for what happens soon, on a machine that may be busy.
const patience = 30 * time.Second

// node is a service in front of a state machine that is replicated to nobody.
type node struct {
	*Service
	raft *raftnode.Node
}

// startAlone starts a node that leads, and ends it with the test.
func startAlone(t testing.TB) *node {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	list, err := peer.ParseList("n1=" + l.Addr().String())
	require.NoError(t, err)
	hub, remembered, counted, stopping := push.NewHub(metrics.New()), history.New(), metrics.New(),
		make(chan struct{})
	s := New(Config{
		ID: "n1", Hub: hub, History: remembered, Metrics: counted, Stopping: stopping,
		Answered: func(context.Context, time.Time, *wire.Error) {},
	})
	raft, err := raftnode.Open(t.Context(), raftnode.Config{
		ID: "n1", Store: store.Config{Memory: &store.Memory{}}, TokenBase: 1 << 40,
		ElectionTimeout: 50 * time.Millisecond,
		Peers:           peer.Config{List: list, Listener: l, Advertise: l.Addr().String()},
		Logger:          slog.New(slog.DiscardHandler),
		Fatal:           func(err error) { t.Errorf("fatal: %v", err) },
		Epoch:           hub.SetLeading,
		Applied: func(m *fsm.Machine, a fsm.Applied) {
			hub.Applied(m, a)
			remembered.Applied(a)
		},
		Restored: func(m *fsm.Machine) {
			hub.Restored(m)
			remembered.Restored(m)
		},
	})
	require.NoError(t, err)
	s.Start(raft)
	t.Cleanup(func() {
		close(stopping)
		hub.SetLeading(false)
		require.NoError(t, raft.Kill())
		s.Wait()
	})
	require.Eventually(t, func() bool { return raft.Status().Leading }, patience, time.Millisecond)
	return &node{s, raft}
}

// testCaller is a caller that may do and see everything of its own.
type testCaller struct {
	Caller  // the listings are not called
	name    string
	conn    any
	hungUp  bool
	removed string // why the node that relays the call is none any more
}

func (c testCaller) Identity() string     { return c.name }
func (c testCaller) Principal() string    { return c.name }
func (c testCaller) Owns(id string) bool  { return id == c.name }
func (testCaller) MayLock() bool          { return true }
func (c testCaller) Connection() any      { return c.conn }
func (testCaller) Probe()                 {}
func (c testCaller) HungUp() bool         { return c.hungUp }
func (c testCaller) RelayRemoved() string { return c.removed }

// soon is the context of a call of a caller.
func soon(t testing.TB, c testCaller) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return NewContext(ctx, c)
}

// attachDirectly is a stream without a connection.
func attachDirectly(t testing.TB, n *node, number uint64) *stream {
	return attachFor(t, n, number, 0)
}

// attachFor is a stream of a session with release on disconnect.
func attachFor(t testing.TB, n *node, number uint64, release clock.Span) *stream {
	ctx := NewContext(context.Background(), testCaller{})
	secret := wire.Hash(binary.BigEndian.AppendUint64(nil, number))
	a, err := n.raft.Propose(ctx,
		&fsm.OpenSession{Secret: secret,
			Settings: session.Settings{TTL: clock.Minute, ReleaseOnDisconnect: release}})
	require.NoError(t, err)
	claimed := make(chan *push.Queue, 1)
	n.raft.Submit(ctx, &fsm.Attach{Session: a.Result.Session, Secret: secret},
		func(a raftnode.Answer, err error) {
			queue, _ := n.Hub.Claim(&zamokpb.SessionState{Session: uint64(a.Result.Session),
				Attachment: a.Result.Index})
			claimed <- queue
		})
	queue := <-claimed
	require.NotNil(t, queue)
	return &stream{server: n.Service, ctx: ctx, queue: queue, frames: noFrames{}}
}

// stall has nothing applied until release is called. The state machine can be read meanwhile.
func stall(t *testing.T, n *node) (release func()) {
	reached, released := make(chan struct{}), make(chan struct{})
	n.raft.Submit(t.Context(), &fsm.ExpireSession{Session: 1 << 60}, func(raftnode.Answer, error) {
		close(reached)
		<-released
	})
	<-reached
	release = sync.OnceFunc(func() { close(released) })
	t.Cleanup(release) // before the node stops
	return release
}

// until has a command carried out, however busy the node is.
func until(n *node, c fsm.Command) {
	for {
		if _, err := n.raft.Propose(context.Background(), c); err == nil ||
			!errors.Is(err, raftnode.ErrOverloaded) {
			return
		}
	}
}

// lockRepeatedly acquires and drops a lock again and again, until stop is closed. It sends how long
// one round has taken at most since it was last received.
func lockRepeatedly(n *node, id session.ID, stop <-chan struct{}, worst chan<- time.Duration) {
	var most time.Duration
	for ticket := uint64(1); ; ticket++ {
		select {
		case <-stop:
			return
		case worst <- most:
			most = 0
		default:
		}
		began := time.Now()
		until(n, &fsm.Acquire{
			Session: id, Ticket: ticket, AckedThrough: ticket - 1,
			Items: []fsm.Item{{Name: "bystander", Mode: fsm.Exclusive}},
		})
		until(n, &fsm.Drop{Session: id, Ticket: ticket})
		most = max(most, time.Since(began))
	}
}

// widest is the largest acquisition there is.
func widest(id session.ID, ticket uint64) *fsm.Acquire {
	long := func(begin string, bytes int) string {
		return begin + strings.Repeat("<", bytes-len(begin))
	}
	c := &fsm.Acquire{
		Session: id, Ticket: ticket, Wait: fsm.Forever,
		Owner: long(fmt.Sprint("owner", ticket), fsm.OwnerBytesMax),
		Meta:  long("", fsm.MetaBytesMax),
	}
	for i := range fsm.ItemsMax {
		c.Items = append(c.Items,
			fsm.Item{Name: long(fmt.Sprint(id, "/", ticket, "/", i, "/"), fsm.NameBytesMax),
				Mode: fsm.Exclusive})
	}
	return c
}

// exclusive requests one lock; wait 0 or -1.
func exclusive(ticket uint64, name string, wait int64) *zamokpb.Acquire {
	return &zamokpb.Acquire{Ticket: ticket, Wait: wait,
		Items: []*zamokpb.Item{{Name: name, Mode: zamokpb.Mode_MODE_EXCLUSIVE}}}
}

func acquire(a *zamokpb.Acquire) *zamokpb.ClientMessage {
	return a.Message()
}

func frameOf(messages ...*zamokpb.ClientMessage) *zamokpb.ClientFrame {
	return &zamokpb.ClientFrame{Messages: messages}
}

// noFrames are the frames of a stream without a connection, whose messages are admitted, or all
// denied.
type noFrames struct {
	Frames
	denied  *bool
	queried *int // how often
}

func (f noFrames) Admit(*zamokpb.ClientFrame, int) error {
	if f.queried != nil {
		*f.queried++
	}
	if f.denied != nil && *f.denied {
		return wire.Errorf(zamokpb.Code_CODE_DENIED, "not done")
	}
	return nil
}

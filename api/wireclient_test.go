package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
	"zamok/clock"
)

// wireClient speaks the raw protocol of a stream, a frame at a time.
type wireClient struct {
	testing.TB
	wire   grpc.BidiStreamingClient[zamokpb.ClientFrame, zamokpb.ServerFrame]
	hangUp context.CancelFunc
	conn   *grpc.ClientConn // if a test wants to close it
	zamokpb.Attacher
	frames     int // sent
	state      *zamokpb.SessionState
	received   []*zamokpb.ServerMessage // and not read yet
	changes    uint64                   // received
	lossy      bool                     // the server is faulty: some may be missing
	unanswered []*zamokpb.ClientMessage // the acquisitions that have no answer
}

func settings(ttl clock.Span) *zamokpb.SessionSettings {
	return &zamokpb.SessionSettings{Ttl: int64(ttl), Label: "client"}
}

// dial opens a stream and sends nothing yet.
func dial(t testing.TB, c caller) *wireClient { return dialIn(soon(t), t, c) }

// dialIn does so with what ctx sends along. Each frame has patience of its own.
func dialIn(ctx context.Context, t testing.TB, c caller) *wireClient {
	ctx, cancel := lasting(ctx)
	t.Cleanup(cancel)
	wire, err := c.Session(ctx)
	require.NoError(t, err)
	return &wireClient{TB: t, wire: wire, hangUp: cancel,
		Attacher: zamokpb.Attacher{Secret: newSecret()}}
}

// openStream opens a session.
func openStream(t testing.TB, c caller, settings *zamokpb.SessionSettings) *wireClient {
	return openStreamIn(soon(t), t, c, settings)
}

// openStreamIn does so for as long as ctx lasts.
func openStreamIn(ctx context.Context, t testing.TB, c caller,
	settings *zamokpb.SessionSettings) *wireClient {
	return attach(ctx, t, c, &zamokpb.Attacher{Secret: newSecret(), Settings: settings})
}

// attach opens a stream, and another one when no node led or the leadership ended meanwhile: an
// OpenStream may be repeated.
func attach(ctx context.Context, t testing.TB, c caller, a *zamokpb.Attacher) *wireClient {
	for again := ctx; ; again = relaying(ctx) {
		w := dialIn(again, t, c)
		w.frames++
		_ = w.wire.Send(a.Open(w.sent(w.frames)))
		w.Attacher = *a
		err := w.receive()
		if err == nil {
			w.readState()
			return w
		}
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		select {
		case <-ctx.Done():
			require.NoError(t, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// again opens another stream of the same session.
func (w *wireClient) again(c caller) *wireClient {
	a := w.Attacher
	next := attach(soon(w.TB), w.TB, c, &a)
	next.lossy = w.lossy
	require.Equal(w, w.Session, next.Session)
	require.Greater(w, next.state.Attachment, w.state.Attachment)
	return next
}

// readState reads the SessionState.
func (w *wireClient) readState() {
	w.state = w.Attached(w.next())
	require.NotNil(w, w.state, "a SessionState comes before everything else")
	require.Equal(w, w.sent(w.frames), w.state.Sent, "it confirms the frame of the OpenStream")
}

// sent is the client's clock of a frame.
func (w *wireClient) sent(frame int) []byte { return fmt.Appendf(nil, "frame %d", frame) }

func (w *wireClient) send(messages ...*zamokpb.ClientMessage) {
	w.frames++
	for _, m := range messages {
		if m.GetAcquire() != nil {
			w.unanswered = append(w.unanswered, m)
		}
	}
	// An error is that of the stream's end, which Recv returns.
	_ = w.wire.Send(w.Frame(w.sent(w.frames), messages...))
}

// receive reads the next frame, or why there is none.
func (w *wireClient) receive() error {
	late := time.AfterFunc(patience, w.hangUp)
	frame, err := w.wire.Recv()
	if inTime := late.Stop(); err != nil && !inTime {
		return fmt.Errorf("no frame came for %v: %w", patience, context.DeadlineExceeded)
	}
	if err != nil {
		return err
	}
	w.count(frame.Messages)
	for _, m := range frame.Messages {
		// A machine that stands for a moment makes an acquisition wait for too long. A client sends
		// it again, behind others; what a limit refuses is a test's own matter.
		if a := m.GetAnswer(); a.GetCommand() == zamokpb.Command_COMMAND_ACQUIRE {
			i := slices.IndexFunc(w.unanswered, func(m *zamokpb.ClientMessage) bool {
				return m.GetAcquire().Ticket == a.State.Ticket
			})
			if i >= 0 {
				again := w.unanswered[i]
				w.unanswered = slices.Delete(w.unanswered, i, i+1)
				if e := a.Error; e.GetCode() == zamokpb.Code_CODE_OVERLOADED && e.Field == "" {
					w.send(again)
					continue
				}
			}
		}
		w.received = append(w.received, m)
	}
	return err
}

// count checks that no change is missing.
func (w *wireClient) count(messages []*zamokpb.ServerMessage) {
	for _, m := range messages {
		switch {
		case w.lossy:
		case m.GetChange() != nil:
			w.changes++
			assert.Equal(w, w.changes, m.GetChange().Number)
		case m.GetKeepAliveAck() != nil:
			assert.Equal(w, w.changes, m.GetKeepAliveAck().Changes)
		}
	}
}

// next is the next message.
func (w *wireClient) next() *zamokpb.ServerMessage {
	w.Helper()
	for len(w.received) == 0 {
		require.NoError(w, w.receive())
	}
	m := w.received[0]
	w.received = w.received[1:]
	return m
}

// change is the next change, whatever else comes before it.
func (w *wireClient) change() *zamokpb.Change {
	w.Helper()
	for {
		if c := w.next().GetChange(); c != nil {
			return c
		}
	}
}

// is is the next change, which is that of a ticket to a state.
func (w *wireClient) is(ticket uint64, state zamokpb.State) *zamokpb.Change {
	w.Helper()
	c := w.change()
	require.Equal(w, ticket, c.State.Ticket)
	require.Equal(w, state, c.State.State)
	return c
}

func (w *wireClient) answer() *zamokpb.Answer {
	w.Helper()
	for {
		if a := w.next().GetAnswer(); a != nil {
			return a
		}
	}
}

// end receives everything up to the end of the stream, and returns why it ended.
func (w *wireClient) end() error {
	w.Helper()
	for {
		if err := w.receive(); err != nil {
			require.False(w, errors.Is(err, context.DeadlineExceeded))
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

func openMessage(h *zamokpb.OpenStream) *zamokpb.ClientMessage {
	return h.Message()
}

func acquire(a *zamokpb.Acquire) *zamokpb.ClientMessage {
	return a.Message()
}

// exclusive requests one lock; wait 0 or -1.
func exclusive(ticket uint64, name string, wait int64) *zamokpb.ClientMessage {
	return acquire(&zamokpb.Acquire{
		Ticket: ticket, Wait: wait,
		Items: []*zamokpb.Item{{Name: name, Mode: zamokpb.Mode_MODE_EXCLUSIVE}},
	})
}

func drop(ticket uint64) *zamokpb.ClientMessage {
	return (&zamokpb.Drop{Ticket: ticket}).Message()
}

func downgrade(ticket uint64) *zamokpb.ClientMessage {
	return (&zamokpb.Downgrade{Ticket: ticket}).Message()
}

func keepAlive() *zamokpb.ClientMessage {
	return (&zamokpb.KeepAlive{}).Message()
}

func closeSession() *zamokpb.ClientMessage {
	return (&zamokpb.CloseSession{}).Message()
}

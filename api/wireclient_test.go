package api

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// talker speaks the raw protocol of a stream, a frame at a time, and has no opinion of its own.
type talker struct {
	testing.TB
	wire    grpc.BidiStreamingClient[zamokpb.ClientFrame, zamokpb.ServerFrame]
	hangUp  context.CancelFunc
	conn    *grpc.ClientConn // if a test wants to close it
	secret  []byte
	id      uint64
	frames  int // sent
	floor   uint64
	welcome *zamokpb.SessionState
	heard   []*zamokpb.ServerMessage // and not looked at yet
	changes uint64                   // heard
	lossy   bool                     // the server is faulty: some may be missing
}

func settings(ttl clock.Span) *zamokpb.SessionSettings {
	return &zamokpb.SessionSettings{Ttl: int64(ttl), Label: "talker"}
}

// dial opens a stream and says nothing yet.
func dial(t testing.TB, c caller) *talker { return dialIn(soon(t), t, c) }

func dialIn(ctx context.Context, t testing.TB, c caller) *talker {
	ctx, cancel := context.WithCancel(ctx)
	t.Cleanup(cancel)
	wire, err := c.Session(ctx)
	require.NoError(t, err)
	return &talker{TB: t, wire: wire, hangUp: cancel, secret: newSecret()}
}

// talk opens a session.
func talk(t testing.TB, c caller, settings *zamokpb.SessionSettings) *talker {
	return talkIn(soon(t), t, c, settings)
}

// talkIn does so for as long as ctx lasts.
func talkIn(ctx context.Context, t testing.TB, c caller, settings *zamokpb.SessionSettings) *talker {
	secret := newSecret()
	return attach(ctx, t, c, func(w *talker) *zamokpb.OpenStream {
		w.secret = secret
		return &zamokpb.OpenStream{Secret: secret, Settings: settings}
	})
}

// attach opens a stream with an OpenStream, and another one when nobody led or the leadership ended meanwhile: an OpenStream may
// be repeated.
func attach(ctx context.Context, t testing.TB, c caller, begin func(*talker) *zamokpb.OpenStream) *talker {
	for again := ctx; ; again = relaying(ctx) {
		w := dialIn(again, t, c)
		w.say(hello(begin(w)))
		err := w.listen()
		if err == nil {
			w.greeted()
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
func (w *talker) again(c caller) *talker {
	next := attach(soon(w.TB), w.TB, c, func(next *talker) *zamokpb.OpenStream {
		next.secret, next.floor, next.lossy = w.secret, w.floor, w.lossy
		return &zamokpb.OpenStream{Secret: w.secret, Session: w.id}
	})
	require.Equal(w, w.id, next.id)
	require.Greater(w, next.welcome.Attachment, w.welcome.Attachment)
	return next
}

// greeted hears the SessionState.
func (w *talker) greeted() {
	w.welcome = w.next().GetSession()
	require.NotNil(w, w.welcome, "a SessionState comes before everything else")
	require.Equal(w, w.sent(w.frames), w.welcome.Sent, "it proves the frame of the OpenStream")
	w.id = w.welcome.Session
}

// sent is the client's clock of a frame.
func (w *talker) sent(frame int) []byte { return fmt.Appendf(nil, "frame %d", frame) }

func (w *talker) say(messages ...*zamokpb.ClientMessage) {
	w.frames++
	// An error is that of the stream's end, which Recv tells.
	_ = w.wire.Send(&zamokpb.ClientFrame{Messages: messages, Sent: w.sent(w.frames), AckedThrough: w.floor})
}

// listen hears the next frame, or why there is none.
func (w *talker) listen() error {
	frame, err := w.wire.Recv()
	if err == nil {
		w.heard = append(w.heard, frame.Messages...)
		w.count(frame.Messages)
	}
	return err
}

// count looks that no change is missing.
func (w *talker) count(messages []*zamokpb.ServerMessage) {
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
func (w *talker) next() *zamokpb.ServerMessage {
	w.Helper()
	for len(w.heard) == 0 {
		require.NoError(w, w.listen())
	}
	m := w.heard[0]
	w.heard = w.heard[1:]
	return m
}

// change is the next change, whatever else is heard before it.
func (w *talker) change() *zamokpb.Change {
	w.Helper()
	for {
		if c := w.next().GetChange(); c != nil {
			return c
		}
	}
}

// is is the next change, which is that of a ticket to a state.
func (w *talker) is(ticket uint64, state zamokpb.State) *zamokpb.Change {
	w.Helper()
	c := w.change()
	require.Equal(w, ticket, c.State.Ticket)
	require.Equal(w, state, c.State.State)
	return c
}

func (w *talker) answer() *zamokpb.Answer {
	w.Helper()
	for {
		if a := w.next().GetAnswer(); a != nil {
			return a
		}
	}
}

// end hears everything up to the end of the stream, and returns why it ended.
func (w *talker) end() error {
	w.Helper()
	for {
		if err := w.listen(); err != nil {
			require.False(w, errors.Is(err, context.DeadlineExceeded))
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

func hello(h *zamokpb.OpenStream) *zamokpb.ClientMessage {
	return &zamokpb.ClientMessage{Message: &zamokpb.ClientMessage_Open{Open: h}}
}

func acquire(a *zamokpb.Acquire) *zamokpb.ClientMessage {
	return &zamokpb.ClientMessage{Message: &zamokpb.ClientMessage_Acquire{Acquire: a}}
}

// exclusive asks for one lock; wait 0 or -1.
func exclusive(ticket uint64, name string, wait int64) *zamokpb.ClientMessage {
	return acquire(&zamokpb.Acquire{
		Ticket: ticket, WaitFor: wait, Items: []*zamokpb.Item{{Name: name, Mode: zamokpb.Mode_MODE_EXCLUSIVE}},
	})
}

func drop(ticket uint64) *zamokpb.ClientMessage {
	return &zamokpb.ClientMessage{Message: &zamokpb.ClientMessage_Drop{Drop: &zamokpb.TicketRequest{Ticket: ticket}}}
}

func downgrade(ticket uint64) *zamokpb.ClientMessage {
	return &zamokpb.ClientMessage{Message: &zamokpb.ClientMessage_Downgrade{Downgrade: &zamokpb.TicketRequest{Ticket: ticket}}}
}

func keepAlive() *zamokpb.ClientMessage {
	return &zamokpb.ClientMessage{Message: &zamokpb.ClientMessage_KeepAlive{KeepAlive: &zamokpb.KeepAlive{}}}
}

func closeSession() *zamokpb.ClientMessage {
	return &zamokpb.ClientMessage{Message: &zamokpb.ClientMessage_Close{Close: &zamokpb.CloseSession{}}}
}

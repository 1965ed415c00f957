package overload

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"zamok/api/zamokpb"
)

const (
	streams      = 128
	tick         = 2 * time.Millisecond // between the frames of a stream
	frameMost    = 500                  // acquisitions in one frame
	windowMost   = 1000                 // tickets of one session above its acknowledged-through; the server takes 1024
	sessionTTL   = 10 * time.Second
	renewEvery   = 1500 * time.Millisecond
	drainTimeout = 30 * time.Second
)

// clientsSpec is what the process of the clients is asked to do. Rate is in cycles a second; with 0 the loop is closed,
// and AtOnce cycles of each stream are under way.
type clientsSpec struct {
	Leader string
	Rate   float64
	AtOnce int
	Window time.Duration
}

// clientsResult is the result of the window. Unsent cycles were due, and the connections did not take them.
type clientsResult struct {
	Due, Sent, Refused, Cycles, Unsent uint64
	Cut                                uint64 // streams that the server ended
	Seconds                            float64
}

// RunClients is the process of the clients. It says "ready" when its sessions are open, begins at the next line of its
// input, and prints its result.
func RunClients(ctx context.Context, spec string, in io.Reader, out io.Writer) error {
	s := clientsSpec{}
	if err := json.Unmarshal([]byte(spec), &s); err != nil {
		return err
	}
	all, err := openStreams(ctx, &s)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, readyMessage); err != nil {
		return err
	}
	if _, err := io.ReadFull(in, make([]byte, 1)); err != nil {
		return err
	}
	began := time.Now()
	var sending, receiving sync.WaitGroup
	for _, st := range all {
		sending.Go(func() { st.send(began) })
		receiving.Go(st.receive)
	}
	time.Sleep(s.Window)
	result := clientsResult{Seconds: time.Since(began).Seconds()}
	for _, st := range all {
		st.stop.Store(true)
		result.Sent += st.sent.Load()
		result.Refused += st.refused.Load()
		result.Cycles += st.cycles.Load()
	}
	if s.Rate > 0 {
		result.Due = uint64(s.Rate * result.Seconds)
		result.Unsent = result.Due - min(result.Due, result.Sent)
	}
	time.AfterFunc(drainTimeout, func() {
		for _, st := range all {
			st.cancel()
		}
	})
	sending.Wait()
	receiving.Wait()
	for _, st := range all {
		if st.cut.Load() {
			result.Cut++
		}
	}
	return json.NewEncoder(out).Encode(result)
}

// stream is one session and its cycles.
type stream struct {
	spec   *clientsSpec
	wire   grpc.BidiStreamingClient[zamokpb.ClientFrame, zamokpb.ServerFrame]
	cancel func()
	prefix string // of the names of its locks

	stop                  atomic.Bool
	sent, refused, cycles atomic.Uint64
	cut                   atomic.Bool

	mu     sync.Mutex      // guards what follows
	inHand map[uint64]bool // tickets that have not ended; true: granted
	drops  []uint64        // tickets to drop
	acked  uint64          // all tickets up to this one have ended
	next   uint64          // the next ticket
}

func openStreams(ctx context.Context, spec *clientsSpec) (all []*stream, err error) {
	for i := range streams {
		conn, err := grpc.NewClient(spec.Leader, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
		st := &stream{spec: spec, prefix: fmt.Sprintf("overload/%s/%d/", rand.Text()[:8], i), inHand: map[uint64]bool{}, next: 1}
		ctx, cancel := context.WithCancel(ctx)
		st.cancel = cancel
		if st.wire, err = zamokpb.NewZamokClient(conn).Session(ctx); err != nil {
			return nil, err
		}
		secret := make([]byte, 16)
		_, _ = rand.Read(secret) // it never fails
		open := &zamokpb.OpenStream{Secret: secret, Settings: &zamokpb.SessionSettings{Ttl: int64(sessionTTL), Label: "overload"}, Attempt: 1}
		if err := st.wire.Send(&zamokpb.ClientFrame{Messages: []*zamokpb.ClientMessage{{Message: &zamokpb.ClientMessage_Open{Open: open}}}}); err != nil {
			return nil, err
		}
		if _, err := st.wire.Recv(); err != nil {
			return nil, err
		}
		all = append(all, st)
	}
	return all, nil
}

// send sends due commands, a frame per tick, until the window is over and every ticket has ended.
func (st *stream) send(began time.Time) {
	defer func() {
		closing := &zamokpb.ClientMessage{Message: &zamokpb.ClientMessage_Close{Close: &zamokpb.CloseSession{}}}
		_ = st.wire.Send(&zamokpb.ClientFrame{Messages: []*zamokpb.ClientMessage{closing}}) // receive gets the reason
		_ = st.wire.CloseSend()
	}()
	renewed := began
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	for range ticks.C {
		frame := st.frame(time.Since(began))
		if st.wire.Context().Err() != nil || frame == nil {
			return
		}
		if now := time.Now(); now.Sub(renewed) >= renewEvery {
			renewed = now
			frame.Messages = append(frame.Messages, &zamokpb.ClientMessage{Message: &zamokpb.ClientMessage_KeepAlive{KeepAlive: &zamokpb.KeepAlive{}}})
		}
		if len(frame.Messages) > 0 && st.wire.Send(frame) != nil {
			return // receive gets the reason
		}
	}
}

// frame is what to send now; nil when all is done.
func (st *stream) frame(elapsed time.Duration) *zamokpb.ClientFrame {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.stop.Load() && len(st.inHand) == 0 {
		return nil
	}
	for ; st.acked+1 < st.next; st.acked++ {
		if _, under := st.inHand[st.acked+1]; under {
			break
		}
	}
	f := &zamokpb.ClientFrame{AckedThrough: st.acked}
	for _, ticket := range st.drops {
		f.Messages = append(f.Messages, &zamokpb.ClientMessage{Message: &zamokpb.ClientMessage_Drop{Drop: &zamokpb.TicketRequest{Ticket: ticket}}})
	}
	st.drops = st.drops[:0]
	due := st.spec.AtOnce - len(st.inHand)
	if st.spec.Rate > 0 {
		due = int(st.spec.Rate/streams*elapsed.Seconds()) - int(st.sent.Load())
	}
	if st.stop.Load() {
		due = 0
	}
	for range min(due, frameMost, windowMost-int(st.next-1-st.acked), frameMessagesMax-1-len(f.Messages)) {
		acquire := &zamokpb.Acquire{Ticket: st.next, WaitFor: -1, Items: []*zamokpb.Item{{
			Name: fmt.Sprint(st.prefix, st.next), Mode: zamokpb.Mode_MODE_EXCLUSIVE}}}
		f.Messages = append(f.Messages, &zamokpb.ClientMessage{Message: &zamokpb.ClientMessage_Acquire{Acquire: acquire}})
		st.inHand[st.next] = false
		st.next++
		st.sent.Add(1)
	}
	return f
}

const frameMessagesMax = 1024 // that the server takes

// receive handles the server's frames until the stream ends.
func (st *stream) receive() {
	for {
		f, err := st.wire.Recv()
		if err != nil {
			st.cut.Store(!errors.Is(err, io.EOF) && st.wire.Context().Err() == nil)
			st.cancel()
			return
		}
		st.mu.Lock()
		for _, m := range f.Messages {
			st.message(m)
		}
		st.mu.Unlock()
	}
}

// message takes one message. The caller holds the lock.
func (st *stream) message(m *zamokpb.ServerMessage) {
	state, refusal := m.GetChange().GetState(), (*zamokpb.ErrorInfo)(nil)
	if a := m.GetAnswer(); a != nil {
		state, refusal = a.State, a.Error
		for ticket := state.GetTicket() + 1; ticket <= a.Through; ticket++ {
			st.refused.Add(1)
			delete(st.inHand, ticket)
		}
	}
	granted, under := st.inHand[state.GetTicket()]
	switch {
	case state == nil || !under:
	case refusal != nil && granted: // of the drop
		st.drops = append(st.drops, state.Ticket)
	case refusal != nil:
		st.refused.Add(1)
		delete(st.inHand, state.Ticket)
	case state.State == zamokpb.State_STATE_GRANTED && !granted:
		st.inHand[state.Ticket] = true
		st.drops = append(st.drops, state.Ticket)
	case state.State == zamokpb.State_STATE_ENDED:
		if granted && !st.stop.Load() {
			st.cycles.Add(1)
		}
		delete(st.inHand, state.Ticket)
	}
}

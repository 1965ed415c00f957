package overload

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	random "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
)

const (
	tick             = 2 * time.Millisecond // between the frames of a stream
	frameMost        = 500                  // acquisitions in one frame
	frameMessagesMax = 1024                 // that the server accepts
	// tickets of one session above its acknowledged-through; the server accepts 1024
	windowMost     = 1000
	sessionTTL     = 10 * time.Second
	renewEvery     = 1500 * time.Millisecond
	attachMax      = 2 * time.Second
	attachDelayMin = 20 * time.Millisecond // between two attempts to attach, as in package client
	attachDelayMax = 500 * time.Millisecond
	measureEvery   = 16
)

// session is one session with its cycles and its current stream.
type session struct {
	spec   *clientsSpec
	ctx    context.Context
	prefix string // of the names of its locks

	wire zamokpb.Zamok_SessionClient
	end  func() // of the current stream and its connection

	stop                  atomic.Bool // no new cycle begins
	sent, refused, cycles atomic.Uint64

	mu       sync.Mutex       // guards what follows
	inFlight map[uint64]cycle // by ticket
	drops    []uint64         // tickets to drop
	repeats  []uint64         // tickets to acquire again, on another stream
	attacher zamokpb.Attacher // its AckedThrough: all tickets up to this one have ended
	next     uint64           // the next ticket
	lost     bool             // the session ended before it was closed

	// times and resent are from the first sending of a command to its answer: of one in
	// measureEvery, and of all that were sent again.
	times, resent []time.Duration
}

// cycle is one acquisition and its release.
type cycle struct {
	granted bool      // its drop must be sent, or was
	since   time.Time // when its latest command was first sent; zero: not yet
	resent  bool      // that command was sent again
}

func newSession(ctx context.Context, spec *clientsSpec, number int) *session {
	s := &session{spec: spec, ctx: ctx, inFlight: map[uint64]cycle{}, next: 1,
		attacher: zamokpb.Attacher{Secret: make([]byte, 16),
			Settings: &zamokpb.SessionSettings{Ttl: int64(sessionTTL), Label: "overload"}},
		prefix: fmt.Sprintf("overload/%s/%d/", rand.Text()[:8], number)}
	_, _ = rand.Read(s.attacher.Secret) // it never fails
	return s
}

// run runs cycles on one stream after the other, until the window is over and every ticket has
// ended.
func (s *session) run(began time.Time) {
	for {
		received := make(chan error, 1)
		go func() { received <- s.receive() }()
		s.send(began)
		err := <-received
		s.end()
		if s.ctx.Err() != nil || s.done() {
			return
		}
		if err = s.follow(err); err != nil {
			s.lost = s.ctx.Err() == nil
			return
		}
	}
}

// done reports whether the session must be closed.
func (s *session) done() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stop.Load() && len(s.inFlight) == 0
}

// follow attaches the session at the leader: at the one that the last stream's error names, or at
// one node after the other. It fails if the session has ended.
func (s *session) follow(cause error) error {
	for next, delay := 0, attachDelayMin; ; delay = min(2*delay, attachDelayMax) {
		info := infoOf(cause)
		switch code := info.GetCode(); {
		case s.ctx.Err() != nil:
			return s.ctx.Err()
		case errors.Is(cause, io.EOF), code == zamokpb.Code_CODE_NO_SESSION,
			code == zamokpb.Code_CODE_SUPERSEDED:
			return fmt.Errorf("the session ended: %w", cause)
		}
		if cause != nil {
			select {
			case <-time.After(delay/2 + random.N(delay)):
			case <-s.ctx.Done():
			}
		}
		address := info.GetLeaderAddress()
		if address == "" {
			address = s.spec.Endpoints[next%len(s.spec.Endpoints)]
			next++
		}
		if cause = s.attach(address); cause == nil {
			return nil
		}
	}
}

func infoOf(err error) *zamokpb.ErrorInfo {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*zamokpb.ErrorInfo); ok {
			return info
		}
	}
	return nil
}

// attach opens a stream at a node.
func (s *session) attach(address string) (err error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(s.ctx)
	s.end = func() {
		cancel()
		_ = conn.Close() // it is not read any more
	}
	timeout := time.AfterFunc(attachMax, cancel)
	defer timeout.Stop()
	defer func() {
		if err != nil {
			s.end()
		}
	}()
	if s.wire, err = zamokpb.NewZamokClient(conn).Session(ctx); err != nil {
		return err
	}
	_ = s.wire.Send(s.attacher.Open(nil)) // Recv returns the reason if it fails
	frame, err := s.wire.Recv()
	if err != nil {
		return err
	}
	messages := frame.GetMessages()
	if len(messages) == 0 || s.attacher.Attached(messages[0]) == nil {
		return errors.New("the node's first message is no SessionState")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attached(messages[0].GetSession())
	for _, m := range messages[1:] {
		s.message(m)
	}
	return nil
}

// attached updates the cycles to the cluster's state. Commands without an answer are sent again.
// The caller holds the lock.
func (s *session) attached(state *zamokpb.SessionState) {
	s.drops, s.repeats = nil, nil
	known := map[uint64]*zamokpb.TicketState{}
	for _, ticket := range state.GetTickets() {
		known[ticket.GetTicket()] = ticket
	}
	for _, number := range slices.Sorted(maps.Keys(s.inFlight)) {
		s.repeat(number)
		if ticket := known[number]; ticket != nil {
			s.changed(ticket)
		}
	}
}

// repeat sends the latest command of a cycle again. The caller holds the lock.
func (s *session) repeat(ticket uint64) {
	c := s.inFlight[ticket]
	c.resent = !c.since.IsZero()
	s.inFlight[ticket] = c
	if c.granted {
		s.drops = append(s.drops, ticket)
	} else {
		s.repeats = append(s.repeats, ticket)
	}
}

// send sends due commands, a frame per tick, until the stream ends or the session is done.
func (s *session) send(began time.Time) {
	renewed := time.Now()
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	for range ticks.C {
		if s.wire.Context().Err() != nil {
			return
		}
		if s.done() {
			closing := (&zamokpb.CloseSession{}).Message()
			// receive gets the reason
			_ = s.wire.Send(&zamokpb.ClientFrame{Messages: []*zamokpb.ClientMessage{closing}})
			_ = s.wire.CloseSend()
			return
		}
		now := time.Now()
		frame := s.frame(now, now.Sub(began))
		if now.Sub(renewed) >= renewEvery {
			renewed = now
			frame.Messages = append(frame.Messages, (&zamokpb.KeepAlive{}).Message())
		}
		if len(frame.Messages) > 0 && s.wire.Send(frame) != nil {
			return // receive gets the reason
		}
	}
}

// frame is what to send now. Cycles are due independently of streams.
func (s *session) frame(now time.Time, elapsed time.Duration) *zamokpb.ClientFrame {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a := &s.attacher; a.AckedThrough+1 < s.next; a.AckedThrough++ {
		if _, open := s.inFlight[a.AckedThrough+1]; open {
			break
		}
	}
	f := s.attacher.Frame(nil)
	for _, ticket := range s.drops {
		if _, open := s.inFlight[ticket]; !open {
			continue // it has ended since
		}
		f.Messages = append(f.Messages, (&zamokpb.Drop{Ticket: ticket}).Message())
		s.sentNow(ticket, now)
	}
	s.drops = s.drops[:0]
	room := min(frameMost, frameMessagesMax-1-len(f.Messages)) // one is for the renewal
	for ; len(s.repeats) > 0 && room > 0; s.repeats = s.repeats[1:] {
		if c, open := s.inFlight[s.repeats[0]]; open && !c.granted { // it has no answer yet
			f.Messages = append(f.Messages, s.acquire(s.repeats[0], now))
			room--
		}
	}
	due := s.spec.AtOnce - len(s.inFlight)
	if s.spec.Rate > 0 {
		due = int(s.spec.Rate/sessions*elapsed.Seconds()) - int(s.sent.Load())
	}
	if s.stop.Load() {
		due = 0
	}
	for range min(due, room, windowMost-int(s.next-1-s.attacher.AckedThrough)) {
		f.Messages = append(f.Messages, s.acquire(s.next, now))
		s.next++
		s.sent.Add(1)
	}
	return f
}

// acquire makes the acquisition of a ticket, to be sent now. The caller holds the lock.
func (s *session) acquire(ticket uint64, now time.Time) *zamokpb.ClientMessage {
	s.sentNow(ticket, now)
	return (&zamokpb.Acquire{Ticket: ticket, Wait: -1,
		Items: []*zamokpb.Item{{Name: fmt.Sprint(s.prefix, ticket),
			Mode: zamokpb.Mode_MODE_EXCLUSIVE}}}).Message()
}

// sentNow records when a command of a cycle is first sent. The caller holds the lock.
func (s *session) sentNow(ticket uint64, now time.Time) {
	if c := s.inFlight[ticket]; c.since.IsZero() {
		c.since = now
		s.inFlight[ticket] = c
	}
}

// receive handles the server's frames until the stream ends, and returns why it did.
func (s *session) receive() error {
	defer s.end()
	for {
		f, err := s.wire.Recv()
		if err != nil {
			return err
		}
		s.mu.Lock()
		for _, m := range f.Messages {
			s.message(m)
		}
		s.mu.Unlock()
	}
}

// message handles one message. The caller holds the lock.
func (s *session) message(m *zamokpb.ServerMessage) {
	a := m.GetAnswer()
	if a == nil || a.Error == nil {
		if a != nil {
			s.changed(a.State)
		} else if m.GetChange() != nil {
			s.changed(m.GetChange().State)
		}
		return
	}
	for ticket := a.GetState().GetTicket(); ticket <=
		max(a.Through, a.GetState().GetTicket()); ticket++ {
		s.refusedWith(a.Error, ticket)
	}
}

// refusedWith handles the error of a ticket's latest command. The caller holds the lock.
func (s *session) refusedWith(info *zamokpb.ErrorInfo, ticket uint64) {
	c, open := s.inFlight[ticket]
	switch {
	case !open:
	case info.Outcome != zamokpb.Outcome_OUTCOME_NOT_DONE: // it may take effect
		s.repeat(ticket)
	case c.granted: // of the drop
		s.answered(ticket, c)
		s.inFlight[ticket] = cycle{granted: true}
		s.drops = append(s.drops, ticket)
	default:
		s.answered(ticket, c)
		s.refused.Add(1)
		delete(s.inFlight, ticket)
	}
}

// changed handles the state of a ticket. The caller holds the lock.
func (s *session) changed(state *zamokpb.TicketState) {
	ticket := state.GetTicket()
	c, open := s.inFlight[ticket]
	switch {
	case !open:
	case state.State == zamokpb.State_STATE_GRANTED && !c.granted:
		s.answered(ticket, c)
		s.inFlight[ticket] = cycle{granted: true}
		s.drops = append(s.drops, ticket)
	case state.State == zamokpb.State_STATE_ENDED:
		s.answered(ticket, c)
		if (c.granted || state.Token != 0) && !s.stop.Load() {
			s.cycles.Add(1)
		}
		delete(s.inFlight, ticket)
	}
}

// answered records how long a command took. The caller holds the lock.
func (s *session) answered(ticket uint64, c cycle) {
	switch took := time.Since(c.since); {
	case c.since.IsZero(): // a drop that was never sent: the ticket ended otherwise
	case c.resent:
		s.resent = append(s.resent, took)
	case ticket%measureEvery == 0:
		s.times = append(s.times, took)
	}
}

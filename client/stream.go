package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"zamok/api/zamokpb"
	"zamok/clock"
)

const (
	// frameMessages and frameBytes bound a frame. The first is the protocol's limit. A frame ends
	// with the message that exceeds the second, so it stays below the 64 KiB that a server accepts:
	// the largest message has 39 KB.
	frameMessages = 1024
	frameBytes    = 24 << 10
)

var (
	errSilent         = errors.New("the node stopped answering")
	errMissing        = errors.New("a change is missing on the stream")
	errRelayUnneeded  = errors.New("the leader can be reached without the node that relays")
	errNoSessionState = errors.New("the node's first message was no session state")
	errOtherAttached  = errors.New("another attempt of this client has attached the session")
)

// stream is one connection of the session. The session's run goroutine sends, and another goroutine
// receives.
type stream struct {
	s      *session
	node   *node
	ctx    context.Context
	cancel context.CancelCauseFunc
	// nil before the call
	rpc grpc.BidiStreamingClient[zamokpb.ClientFrame, zamokpb.ServerFrame]
	// no earlier stream can have opened the session
	first bool
	// nil once it is applied
	firstFrame *zamokpb.ServerFrame
}

// openStream opens a stream at a node, and receives its first frame, which opened applies. It gives
// up after one ttl, when the answer would confirm nothing any more.
func (s *session) openStream(ctx context.Context, cancel context.CancelCauseFunc,
	one *node) (*stream, error) {
	st := &stream{s: s, node: one, ctx: ctx, cancel: cancel}
	s.mu.Lock()
	late := time.AfterFunc(s.ttl.Duration(), func() { cancel(errNoAnswer) })
	st.first = s.state == unopened
	s.mu.Unlock()
	defer late.Stop()
	if st.first { // no earlier attempt can have opened it
		ctx = metadata.AppendToOutgoingContext(ctx, zamokpb.FirstKey, "1")
	}
	var err error
	if st.rpc, err = one.Session(ctx); err != nil {
		return st, err
	}
	s.mu.Lock()
	s.become(openSent)
	s.opens++
	s.unanswered++
	open := s.openFrame()
	s.mu.Unlock()
	// If Send fails, Recv returns the reason.
	_ = st.rpc.Send(open)
	if st.firstFrame, err = st.rpc.Recv(); err != nil && context.Cause(ctx) == errNoAnswer {
		err = errNoAnswer
	}
	return st, err
}

// opened applies the first frame of a stream, or the error that came instead.
func (s *session) opened(e attemptEnd[*stream]) attemptEnd[*stream] {
	if e.value != nil {
		if e.err = s.applyFirstFrame(e.value, e.err); e.err != nil {
			e.value.cancel(e.err)
		}
	}
	return e
}

// applyFirstFrame applies the first frame of a stream; err is the error that came instead. If an
// attempt was superseded, that is no takeover by another program as long as another attempt of the
// same number may have taken effect.
func (s *session) applyFirstFrame(st *stream, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	info := infoOf(err)
	superseded := info.GetCode() == zamokpb.Code_CODE_SUPERSEDED
	if st.rpc != nil && (superseded || notDone(err)) {
		s.unanswered--
	}
	if st.first && s.opens == 1 && notDone(err) {
		s.become(openRefused)
		s.opens = 0
	}
	switch {
	case info.GetCode() == zamokpb.Code_CODE_NO_SESSION:
		s.finish(endConfirmed, errorOf(info))
	case superseded && s.unanswered > 0:
		return errOtherAttached
	case superseded:
		return permanentError{errTakenOver}
	case info.GetCode() == zamokpb.Code_CODE_UNAUTHENTICATED:
		if s.lease != nil && s.lease.Valid(s.c.clock.Now()) { // new credentials may be late
			return errors.New(info.GetMessage())
		}
	}
	if err != nil {
		return err
	}
	messages := st.firstFrame.GetMessages()
	st.firstFrame = nil
	if len(messages) == 0 || messages[0].GetSession().GetTtl() < int64(TTLMin) {
		return errNoSessionState
	}
	s.applySessionState(st, messages[0].GetSession())
	for _, m := range messages[1:] {
		s.apply(st, m)
	}
	return nil
}

// openFrame is the first frame of a stream.
func (s *session) openFrame() *zamokpb.ClientFrame {
	cfg := &s.c.cfg
	open := &zamokpb.OpenStream{Secret: s.secret, Session: s.id, Attempt: s.attempt,
		Settings: &zamokpb.SessionSettings{
			Ttl: int64(cfg.TTL), Label: cfg.Label, Meta: cfg.Meta,
			LockDelay: int64(cfg.LockDelay), ReleaseOnDisconnect: int64(cfg.ReleaseOnDisconnect),
		}}
	now := s.c.clock.Now()
	s.sent = now
	return &zamokpb.ClientFrame{
		Messages: []*zamokpb.ClientMessage{open.Message()},
		Sent:     encodeInstant(now), AckedThrough: s.ackedThrough,
	}
}

// applySessionState brings every ticket to the state in the cluster, and queues what has to be
// sent, drops first.
func (s *session) applySessionState(st *stream, w *zamokpb.SessionState) {
	if s.state.over() {
		return
	}
	s.become(attach)
	// a lock whose time has passed stays lost, whatever the cluster reports now
	s.checkDeadlines(s.c.clock.Now())
	if s.lease == nil {
		s.ttl = clock.Span(w.GetTtl())
		s.lease = clock.NewLocalDeadline(s.ttl)
	}
	if least := clock.Span(w.GetTtlMin()); s.ttl < least && least != s.ttlMin {
		s.c.log.Warn(
			"zamok: the session's ttl is too short for the cluster's election timeout now: most "+
				"failovers would end it, and its locks be lost; use a longer one", "ttl", s.ttl,
			"at_least", least)
	}
	s.ttlMin = clock.Span(w.GetTtlMin())
	s.id, s.stream, s.delivered = w.GetSession(), st, 0
	s.closed = false
	s.outgoing, s.retryQueue = nil, nil
	s.confirmRenewal(w.GetSent(), w.GetTime())
	s.silent = false // what was sent after that went to other nodes

	listed := make(map[uint64]bool, len(w.GetTickets()))
	for _, state := range w.GetTickets() {
		number := state.GetTicket()
		listed[number] = true
		if t := s.tickets[number]; t != nil {
			t.applyState(state, "")
		} else if state.GetState() != zamokpb.State_STATE_ENDED {
			s.releaseUnknown(state)
		}
	}
	for _, number := range slices.Sorted(maps.Keys(s.tickets)) {
		t := s.tickets[number]
		if !listed[number] && number <= s.ackedThrough {
			t.applyEnd(zamokpb.Reason_REASON_UNSPECIFIED, "")
			continue
		}
		t.queued = false
		if t.state == ticketReleasing || t.state == ticketRequested ||
			t.downgrade == downgradeRequested {
			s.queueOut(t)
		}
	}
	signal(s.wake) // for new tickets
	signal(s.kick)
}

// releaseUnknown drops a ticket that this client does not know, so that it holds nothing.
func (s *session) releaseUnknown(state *zamokpb.TicketState) *ticket {
	t := &ticket{s: s, number: state.GetTicket(), state: ticketReleasing, token: state.GetToken()}
	s.tickets[t.number] = t
	return t
}

// serve sends frames until the stream breaks, and returns why it did.
func (st *stream) serve() error {
	broke := make(chan error, 1)
	go func() { broke <- st.receive() }() // ends with the stream's context; waited for below
	for st.ctx.Err() == nil {
		frame := st.s.compose()
		if frame == nil {
			select {
			case <-st.s.wake:
			case <-st.ctx.Done():
			}
			continue
		}
		if st.rpc.Send(frame) != nil {
			break // receive gets the reason
		}
	}
	return <-broke
}

// receive applies the node's messages until the stream ends, and returns why it did.
func (st *stream) receive() error {
	defer st.cancel(nil)
	for {
		frame, err := st.rpc.Recv()
		if err != nil {
			return cmp.Or(context.Cause(st.ctx), err)
		}
		st.s.mu.Lock()
		for _, m := range frame.GetMessages() {
			st.s.apply(st, m)
		}
		st.s.mu.Unlock()
	}
}

// compose returns the next frame: drops first, then repeated messages, then new tickets up to the
// window. It returns nil if there is nothing to send.
func (s *session) compose() *zamokpb.ClientFrame {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.over() {
		return nil
	}
	f := &zamokpb.ClientFrame{}
	bytes := 0
	full := func() bool { return len(f.Messages) >= frameMessages || bytes > frameBytes }
	add := func(t *ticket) {
		if m := t.outgoingMessage(); m != nil {
			bytes += proto.Size(m)
			f.Messages = append(f.Messages, m)
		}
	}
	// Sort drops first. Only final states compare higher, and they send nothing.
	slices.SortStableFunc(s.outgoing, func(a, b *ticket) int {
		return cmp.Compare(min(b.state, ticketReleasing), min(a.state, ticketReleasing))
	})
	for ; len(s.outgoing) > 0 && !full(); s.outgoing = s.outgoing[1:] {
		add(s.outgoing[0])
	}
	for s.unsent.Len() > 0 && s.nextTicket <= s.ackedThrough+window && !full() {
		t := s.unsent.Front().Value.(*ticket)
		t.become(send)
		t.number = s.nextTicket
		s.nextTicket++
		s.tickets[t.number] = t
		add(t)
	}
	if s.closing && !s.closed && !full() {
		s.closed = true
		f.Messages = append(f.Messages, (&zamokpb.CloseSession{}).Message())
	}
	if len(f.Messages) == 0 && !s.keepAliveDue {
		return nil
	}
	now := s.c.clock.Now()
	if len(f.Messages) == 0 || s.unconfirmed(now) && len(f.Messages) < frameMessages {
		f.Messages = append(f.Messages, (&zamokpb.KeepAlive{}).Message())
		s.keptAlive = now
	}
	s.keepAliveDue = false
	f.Sent, f.AckedThrough = encodeInstant(now), s.ackedThrough
	if s.sent = now; !s.silent {
		s.silent, s.silentAt = true, now
	}
	return f
}

// unconfirmed reports whether the session was not renewed for too long although frames were sent,
// and no KeepAlive was sent just now. A message that the node rejects before the log renews
// nothing.
func (s *session) unconfirmed(now clock.Instant) bool {
	return now.Reached(s.confirmed.Add(2*s.ttl/renewals)) &&
		now.Reached(s.keptAlive.Add(s.ttl/retries))
}

// outgoingMessage is the next message of a ticket; nil if it has none.
func (t *ticket) outgoingMessage() *zamokpb.ClientMessage {
	t.queued = false
	switch {
	case t.state.final(): // since it was queued
	case t.state == ticketReleasing:
		return (&zamokpb.Drop{Ticket: t.number}).Message()
	case t.state == ticketRequested, t.state == ticketGranted && t.wantsConfirmation:
		acquire := t.request.wire(t.number)
		acquire.First = t.unanswered == 0
		t.unanswered++
		return acquire.Message()
	case t.downgrade == downgradeRequested:
		t.downgrades++
		return (&zamokpb.Downgrade{Ticket: t.number}).Message()
	}
	return nil
}

// missing ends a stream that lacks a change. The next SessionState has the whole state.
func (st *stream) missing(number uint64) {
	st.cancel(fmt.Errorf("%w: change %d comes after %d", errMissing, number, st.s.delivered))
}

// apply applies one message of the node.
func (s *session) apply(st *stream, m *zamokpb.ServerMessage) {
	if s.state.over() || st.ctx.Err() != nil {
		return // what follows a gap is sent again
	}
	switch m := m.GetMessage().(type) {
	case *zamokpb.ServerMessage_Change:
		if s.delivered++; m.Change.GetNumber() != s.delivered {
			st.missing(m.Change.GetNumber())
			return
		}
		s.applyChange(m.Change)
	case *zamokpb.ServerMessage_Answer:
		s.silentAt = s.c.clock.Now() // shows that the stream works
		s.applyAnswer(m.Answer)
		// The answer is also for the tickets up to Through, if they were sent.
		for t := m.Answer.GetState().GetTicket(); t < min(m.Answer.GetThrough(), s.nextTicket-1); {
			t++
			m.Answer.State.Ticket = t
			s.applyAnswer(m.Answer)
		}
	case *zamokpb.ServerMessage_KeepAliveAck:
		s.confirmRenewal(m.KeepAliveAck.GetSent(), m.KeepAliveAck.GetTime())
		if m.KeepAliveAck.GetChanges() != s.delivered {
			st.missing(m.KeepAliveAck.GetChanges())
		}
	case *zamokpb.ServerMessage_Position:
		if t := s.tickets[m.Position.GetTicket()]; t != nil && t.callerWaits() &&
			t.request.onPosition != nil {
			t.position = &Position{Name: m.Position.GetName(), Ahead: int(m.Position.GetAhead()),
				Blockers: each(m.Position.GetBlockers(), blocker)}
			t.notify()
		}
	case *zamokpb.ServerMessage_Contended:
		if t := s.tickets[m.Contended.GetTicket()]; t != nil && t.state == ticketHeld {
			select { // replace the number that was not read; no other goroutine sends
			case <-t.handle.contended:
			default:
			}
			t.handle.contended <- int(m.Contended.GetWaiting())
		}
	case *zamokpb.ServerMessage_SessionEnded:
		cause := reasonError(m.SessionEnded.GetReason(), m.SessionEnded.GetText())
		if s.closing && m.SessionEnded.GetReason() == zamokpb.Reason_REASON_CLOSED {
			cause = &Error{Kind: ErrClosed}
		}
		s.finish(endConfirmed, cause)
	}
}

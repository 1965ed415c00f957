package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"zamok/api/push"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

const (
	// openStreamWait is how long a stream may take until it is attached.
	openStreamWait = 10 * time.Second
	// flushWait is how long a stream that ends may take to send what is queued.
	flushWait = time.Second
	// pendingMax is how many commands and renewals of one stream may be without an answer: more
	// than a session can have, and much less than the node takes from all together.
	pendingMax = 2 * fsm.TicketsMax
	// pendingBytesMax bounds their bytes in the log: a sixteenth of what the node takes from all
	// together.
	pendingBytesMax = 4 << 20
)

// stream serves one session. Three goroutines share it: the handler, which waits for the end, since
// in gRPC only its return ends a stream; the reader; and the writer. The last two end with the
// handler, and Service.busy waits for them.
type stream struct {
	server *Service
	ctx    context.Context
	frames Frames

	attached chan struct{} // closed when queue is set
	queue    *push.Queue
	failed   chan struct{} // closed when the reader ended because of err
	err      error
	written  chan struct{} // closed when the writer ended
	ended    chan struct{} // closed when the handler ended

	received     atomic.Uint64 // how many frames came
	pending      atomic.Int64  // commands and renewals that have no answer yet
	acquiring    atomic.Int64  // acquisitions of these
	pendingBytes atomic.Int64  // of those commands
	// capacity 1: the last command had its answer, or half of crowdedMax acquisitions are left
	drained   chan struct{}
	overloads atomic.Int64  // refusals because of overload since the reader last slept
	mayWait   time.Duration // the reader's: for how long it may wait for room
	closing   bool          // the reader's: the client closed the session
}

// Frames are both directions of a session's stream.
type Frames interface {
	// Recv returns the next frame; io.EOF: the client sends no more.
	Recv() (*zamokpb.ClientFrame, error)
	// Admit says why a message of the frame that was received last is not to be carried out; nil:
	// it is.
	Admit(frame *zamokpb.ClientFrame, message int) error
	Send(*zamokpb.ServerFrame) error
}

// Session serves the stream of one session. Recv and Send of frames must end with an error soon
// after it returns.
func (s *Service) Session(ctx context.Context, frames Frames) error {
	st := &stream{
		server: s, ctx: ctx, frames: frames,
		attached: make(chan struct{}), failed: make(chan struct{}), written: make(chan struct{}),
		ended:   make(chan struct{}),
		drained: make(chan struct{}, 1),
	}
	defer close(st.ended)
	s.busy.Go(st.read)
	silence := time.NewTimer(openStreamWait)
	defer silence.Stop()
	select {
	case <-st.attached:
	case <-st.failed:
		if !isClosed(st.attached) { // or both at once: it was attached, and then it broke
			return st.err
		}
	case <-s.Stopping:
		return errStopping()
	case <-silence.C:
		return st.openTimedOut()
	}
	s.busy.Go(st.write)
	err := st.serve()
	if cut := (*wire.Error)(nil); errors.As(err, &cut) {
		s.Metrics.Cut(cut.Code())
	}
	return err
}

// openTimedOut is why a stream ends that was not attached in time.
func (st *stream) openTimedOut() *wire.Error {
	if st.received.Load() > 0 {
		return wire.Errorf(zamokpb.Code_CODE_UNKNOWN,
			"the OpenStream was not answered within %v, and may still take effect; send it again",
			openStreamWait)
	}
	return wire.Invalid("messages", "the first frame did not come within %v", openStreamWait)
}

// serve waits for the end of an attached stream, and returns the reason. If the client broke the
// stream at the moment at which this node ended it, the break counts as well.
func (st *stream) serve() error {
	select {
	case <-st.queue.Done():
		reason := st.flush()
		if isClosed(st.failed) {
			_ = st.broken()
		}
		return reason
	case <-st.failed:
		return st.broken()
	case <-st.server.Stopping:
		return errStopping()
	}
}

// flush lets the writer send what is queued, and returns why the stream ends.
func (st *stream) flush() error {
	reason := st.queue.Err()
	if reason.Code() == zamokpb.Code_CODE_SLOW_READER {
		return reason
	}
	ctx, cancel := context.WithTimeout(st.ctx, flushWait)
	defer cancel()
	select {
	case <-st.written:
	case <-ctx.Done():
	}
	if reason.Code() == zamokpb.Code_CODE_NOT_LEADER {
		st.server.nameLeader(reason)
	}
	return reason.Err()
}

// broken is the end of the reader: the client violated the protocol, or its end of the stream
// broke.
func (st *stream) broken() error {
	if e := (*wire.Error)(nil); errors.As(st.err, &e) {
		return e
	}
	if st.queue.ReleaseOnDisconnect > 0 && !st.server.isStopping() && CallerOf(st.ctx).HungUp() {
		st.awaitAnswers()
		st.server.Hub.Broken(st.queue)
	}
	return st.err
}

// answered counts a command of so many bytes that has its answer.
func (st *stream) answered(bytes int64) {
	st.pendingBytes.Add(-bytes)
	if st.pending.Add(-1) == 0 {
		st.signalDrained()
	}
}

func (st *stream) signalDrained() {
	select {
	case st.drained <- struct{}{}:
	default:
	}
}

// awaitAnswers waits until the last command has its answer: a command that was in flight when the
// stream broke must not count as a renewal after that.
func (st *stream) awaitAnswers() {
	for st.pending.Load() > 0 {
		select {
		case <-st.drained:
		case <-st.server.Stopping:
			return
		}
	}
}

// write sends what is queued, everything that is there in one frame, until the stream ends.
func (st *stream) write() {
	defer close(st.written)
	for {
		select {
		case <-st.queue.Wake():
		case <-st.ctx.Done():
			return
		}
		frame, last := st.queue.Take()
		if frame != nil {
			err := st.frames.Send(frame)
			st.queue.Sent()
			if err != nil {
				return // the reader ends for the same reason
			}
		}
		if last {
			return
		}
	}
}

// read takes frames until the stream ends. A queue that it attached is left once the handler has
// ended, perhaps before it saw the queue.
func (st *stream) read() {
	defer func() {
		if <-st.ended; isClosed(st.attached) {
			st.server.Hub.Leave(st.queue)
		}
	}()
	err := st.readOpen()
	if err == nil {
		err = st.readFrames()
	}
	if errors.Is(err, io.EOF) { // that the client closed its end is no error
		if st.closing {
			return // the stream ends with the session
		}
		err = nil
	}
	st.err = err
	close(st.failed)
}

// readOpen opens or finds the session, and attaches to it.
func (st *stream) readOpen() error {
	p, err := st.frames.Recv()
	if err != nil {
		return err
	}
	st.received.Add(1)
	if len(p.Messages) != 1 || p.Messages[0].GetOpen() == nil {
		return wire.Invalid("messages",
			"the first frame of a stream has an OpenStream and nothing else")
	}
	first := p.Messages[0].GetOpen()
	if err := st.frames.Admit(p, 0); err != nil {
		return err
	}
	attach := &fsm.Attach{
		Session: session.ID(first.Session), Secret: wire.Hash(first.Secret),
		AckedThrough: p.AckedThrough, Attempt: first.Attempt,
	}
	if attach.Session == 0 {
		a, err := st.server.openSession(st.ctx, attach.Secret, first.Settings)
		if err != nil {
			return err
		}
		attach.Session = a.Result.Session
	}
	err = st.attach(attach, p.Sent)
	if err != nil && first.Session == 0 {
		return wire.OfRetransmission(err, false) // the session is open
	}
	return err
}

// attach makes this the stream of the session. If the client breaks it meanwhile, attach continues
// to wait: the break of an attached stream counts.
func (st *stream) attach(command *fsm.Attach, sent []byte) error {
	s, id := st.server, command.Session
	attached := make(chan error, 1)
	s.node.Submit(st.ctx, command, func(a raftnode.Answer, err error) {
		e := refusal(&a, err)
		// that of attachments in one entry: nothing is wrong with the session
		if a.Result.Code == fsm.LimitExceeded {
			e = wire.Errorf(zamokpb.Code_CODE_OVERLOADED,
				"not done: another stream of session %d, or too many others, attached at the "+
					"same moment; attach anew", id)
		}
		if e == nil {
			st.queue, e = s.Hub.Claim(&zamokpb.SessionState{
				Session: uint64(id), Attachment: a.Result.Index, Ttl: int64(a.Result.TTL),
				TtlMin: int64(s.node.LeastTTL()),
				Sent:   sent, Time: int64(a.Time), Node: s.ID,
			})
		}
		if e == nil {
			close(st.attached)
			if isClosed(st.ended) { // this node is stopping, and the reader has not waited
				s.Hub.Leave(st.queue)
			}
		}
		attached <- e.Err()
	})
	select {
	case err := <-attached:
		if err == nil && st.queue.ReleaseOnDisconnect > 0 {
			CallerOf(st.ctx).Probe()
		}
		return err
	case <-s.Stopping:
		return errStopping()
	}
}

// handle carries out a frame. An error ends the stream; what is wrong with one command is its
// answer.
func (st *stream) handle(p *zamokpb.ClientFrame) error {
	if isClosed(st.queue.Done()) {
		return nil
	}
	var unqueued []*zamokpb.Acquire // for which there is no room
	frame := push.Frame{Number: st.received.Add(1), Sent: p.Sent, Arrived: time.Now()}
	id := st.queue.Session
	for i, message := range p.Messages {
		switch m := message.GetMessage().(type) {
		case *zamokpb.ClientMessage_Acquire:
			if st.hasRoom(frame.Arrived) {
				st.acquire(frame, st.frames.Admit(p, i), p.AckedThrough, m.Acquire)
			} else {
				unqueued = append(unqueued, m.Acquire)
			}
		case *zamokpb.ClientMessage_Drop:
			c := push.Command{Kind: zamokpb.Command_COMMAND_DROP, Ticket: m.Drop.GetTicket(),
				Frame: frame}
			st.command(c, st.frames.Admit(p, i),
				st.server.dropCommand(st.ctx,
					fsm.Drop{Session: id, Ticket: c.Ticket, AckedThrough: p.AckedThrough}))
		case *zamokpb.ClientMessage_Downgrade:
			c := push.Command{Kind: zamokpb.Command_COMMAND_DOWNGRADE,
				Ticket: m.Downgrade.GetTicket(), Frame: frame}
			st.command(c, st.frames.Admit(p, i),
				&fsm.Downgrade{Session: id, Ticket: c.Ticket, AckedThrough: p.AckedThrough})
		case *zamokpb.ClientMessage_KeepAlive:
			if err := st.frames.Admit(p, i); err != nil { // the rules have changed
				return wire.StreamEnded(wire.Explain(err).Code(),
					"the session is not renewed, and its stream ends: %v", err)
			}
			st.renew(frame)
		case *zamokpb.ClientMessage_Close:
			st.close()
		case *zamokpb.ClientMessage_Open:
			return wire.Invalid(fmt.Sprintf("messages[%d]", i),
				"is an OpenStream, which only the first frame has")
		default:
			return wire.Invalid(fmt.Sprintf("messages[%d]", i),
				"is empty, or of a kind that this server does not know")
		}
	}
	st.refuseUnqueued(frame, unqueued)
	return nil
}

// acquire requests locks.
func (st *stream) acquire(frame push.Frame, refused error, ackedThrough uint64,
	p *zamokpb.Acquire) {
	c := push.Command{Kind: zamokpb.Command_COMMAND_ACQUIRE, Ticket: p.GetTicket(),
		First: p.GetFirst(), Frame: frame}
	if refused != nil {
		st.refuse(c, refused)
		return
	}
	command := wire.AcquireCommand(st.queue.Session, ackedThrough, p)
	if p.Positions {
		c.Positions = len(p.Items)
	}
	st.queue.Requested(c.Ticket)
	st.submit(c, command)
}

// command carries out a command about a ticket of the session, unless it was refused.
func (st *stream) command(c push.Command, refused error, command fsm.Command) {
	if refused != nil {
		st.refuse(c, refused)
		return
	}
	st.submit(c, command)
}

// refuse answers a command that was not carried out, for whatever reason before the log.
func (st *stream) refuse(c push.Command, err error) {
	refusal := wire.Explain(err)
	if c.Kind == zamokpb.Command_COMMAND_ACQUIRE {
		refusal = wire.OfRetransmission(refusal, c.First)
	}
	st.answer(c, &raftnode.Answer{}, refusal)
}

func (st *stream) submit(c push.Command, command fsm.Command) {
	bytes := int64(fsm.Size(command))
	count, sum := st.pending.Add(1), st.pendingBytes.Add(bytes)
	// commands that end locks are not limited by bytes
	if count > pendingMax || sum > pendingBytesMax && c.Kind == zamokpb.Command_COMMAND_ACQUIRE {
		st.answered(bytes)
		st.refuse(c, wire.Errorf(zamokpb.Code_CODE_OVERLOADED,
			"not done: %d commands of this stream wait for their answers, or %d bytes of them; "+
				"send it again when some have come", pendingMax, pendingBytesMax))
		return
	}
	acquires := c.Kind == zamokpb.Command_COMMAND_ACQUIRE
	done := func(a raftnode.Answer, err error) {
		defer st.answered(bytes)
		if acquires && st.acquiring.Add(-1) == crowdedMax/2 {
			st.signalDrained()
		}
		if err != nil {
			st.refuse(c, err)
			return
		}
		st.answer(c, &a, wire.FromResult(&a.Result))
	}
	if acquires {
		st.acquiring.Add(1)
	}
	st.server.node.Submit(st.ctx, command, done)
}

func (st *stream) answer(c push.Command, a *raftnode.Answer, refusal *wire.Error) {
	if refusal.Code() == zamokpb.Code_CODE_OVERLOADED {
		st.overloads.Add(1)
	}
	st.server.Answered(st.ctx, c.Frame.Arrived, refusal)
	st.queue.Answer(c, a, refusal)
}

// renew submits the renewal of a frame, unless too many commands wait for their answers: a frame
// before it confirms nearly as much. If anything waits, the client learns that the stream stands.
func (st *stream) renew(frame push.Frame) {
	pending := st.pending.Add(1)
	if pending > 1 {
		st.queue.Received()
	}
	if pending > pendingMax {
		st.pending.Add(-1)
		return
	}
	st.server.node.Renew(st.queue.Session, func(a raftnode.Answer, err error) {
		defer st.answered(0)
		st.queue.Renewed(frame, &a, refusal(&a, err))
	})
}

// close ends the session. The event of its end is the answer.
func (st *stream) close() {
	if st.closing {
		return
	}
	st.closing = true
	st.server.node.Submit(st.ctx, &fsm.CloseSession{Session: st.queue.Session},
		func(_ raftnode.Answer, err error) {
			if err == nil {
				return
			}
			e := wire.Explain(err)
			if errors.Is(err, raftnode.ErrOverloaded) {
				e = wire.Errorf(e.Code(), "the session was not closed: %v", e)
			}
			st.queue.End(e)
		})
}

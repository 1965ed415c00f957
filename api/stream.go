package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"zamok/api/access"
	"zamok/api/conns"
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
	// pendingMax is how many commands and renewals of one stream may be without an answer: more than a
	// session can have, and much less than the node takes from all together.
	pendingMax = 2 * fsm.TicketsMax
	// pendingBytesMax bounds their bytes in the log: a sixteenth of what the node takes from all together.
	pendingBytesMax = 4 << 20
)

// stream serves one session. Three goroutines share it: the handler, which waits for the end, since in gRPC
// only its return ends a stream; the reader; and the writer. The last two end with the handler, and
// Server.busy waits for them.
type stream struct {
	server *Server
	ctx    context.Context
	wire   grpc.BidiStreamingServer[zamokpb.ClientFrame, zamokpb.ServerFrame]

	attached chan struct{} // closed when queue is set
	queue    *push.Queue
	failed   chan struct{} // closed when the reader ended because of err
	err      error
	written  chan struct{} // closed when the writer ended
	ended    chan struct{} // closed when the handler ended

	frames       atomic.Uint64                // how many came
	pending      atomic.Int64                 // commands and renewals that have no answer yet
	acquiring    atomic.Int64                 // acquisitions of these
	pendingBytes atomic.Int64                 // of those commands
	settled      chan struct{}                // capacity 1: the last command had its answer, or half of crowdedMax acquisitions are left
	overloads    atomic.Int64                 // refusals because of overload since the last pause
	mayWait      time.Duration                // the reader's: for how long it may wait for room
	closing      bool                         // the reader's: the client closed the session
	renewal      *zamokpb.RenewSessionRequest // the reader's: for Guard.Admit, the request that a renewal stands for
	end          func()                       // the reader's: ends the count of open streams; nil: not counted
}

// Session is the stream of one session.
func (s *Server) Session(conn grpc.BidiStreamingServer[zamokpb.ClientFrame, zamokpb.ServerFrame]) error {
	st := &stream{
		server: s, ctx: conn.Context(), wire: conn,
		attached: make(chan struct{}), failed: make(chan struct{}), written: make(chan struct{}), ended: make(chan struct{}),
		settled: make(chan struct{}, 1),
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
	case <-s.stopping:
		return errStopping()
	case <-silence.C:
		return st.openTimedOut()
	}
	s.busy.Go(st.write)
	err := st.serve()
	if cut := (*wire.Error)(nil); errors.As(err, &cut) {
		s.metrics.Cut(cut.Code())
	}
	return err
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// openTimedOut is why a stream ends that was not attached in time.
func (st *stream) openTimedOut() *wire.Error {
	if st.frames.Load() > 0 {
		return wire.Errorf(zamokpb.Code_CODE_UNKNOWN, "the OpenStream was not answered within %v, and may still take effect; send it again", openStreamWait)
	}
	return wire.Invalid("messages", "the first frame did not come within %v", openStreamWait)
}

// serve waits for the end of an attached stream, and returns the reason. If the client broke the stream at
// the moment at which this node ended it, the break counts as well.
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
	case <-st.server.stopping:
		return errStopping()
	}
}

func errStopping() error {
	return wire.StreamEnded(zamokpb.Code_CODE_STOPPING, "this node is stopping")
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

// broken is the end of the reader: the client violated the protocol, or its end of the stream broke.
func (st *stream) broken() error {
	if e := (*wire.Error)(nil); errors.As(st.err, &e) {
		return e
	}
	if st.queue.Grace > 0 && !st.relayed() && !st.server.isStopping() && conns.ClosedByPeer(st.ctx) {
		st.settle()
		st.server.hub.Broken(st.queue)
	}
	return st.err
}

// relayed reports whether another node passes this stream on.
func (st *stream) relayed() bool {
	_, yes := relayedBy(st.ctx)
	return yes
}

// answered notes that a command of so many bytes has its answer.
func (st *stream) answered(bytes int64) {
	st.pendingBytes.Add(-bytes)
	if st.pending.Add(-1) == 0 {
		st.wakeSettled()
	}
}

func (st *stream) wakeSettled() {
	select {
	case st.settled <- struct{}{}:
	default:
	}
}

// settle waits until the last command has its answer: a command that was in flight when the stream broke must
// not count as a renewal after that.
func (st *stream) settle() {
	for st.pending.Load() > 0 {
		select {
		case <-st.settled:
		case <-st.server.stopping:
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
			err := st.wire.Send(frame)
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

// read takes frames until the stream ends. A queue that it attached is left once the handler has ended, perhaps before it
// saw the queue.
func (st *stream) read() {
	defer func() {
		if <-st.ended; isClosed(st.attached) {
			st.server.hub.Leave(st.queue)
		}
		if st.end != nil {
			st.end()
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
	p, err := st.wire.Recv()
	if err != nil {
		return err
	}
	st.frames.Add(1)
	if len(p.Messages) != 1 || p.Messages[0].GetOpen() == nil {
		return wire.Invalid("messages", "the first frame of a stream has an OpenStream and nothing else")
	}
	first := p.Messages[0].GetOpen()
	if err := access.CheckFrame(p); err != nil {
		return err
	}
	if st.end, err = st.server.admit(st.ctx, first); err != nil {
		return err
	}
	attach := &fsm.Attach{
		Session: session.ID(first.Session), Secret: access.Hash(first.Secret), AckedThrough: p.AckedThrough, Attempt: first.Attempt,
	}
	if attach.Session == 0 {
		a, err := st.server.openSession(st.ctx, attach.Secret, first.Settings)
		if err != nil {
			return err
		}
		attach.Session = a.Result.Session
	} else if _, err := st.server.checkOwner(st.ctx, first.Session, first.Secret); err != nil {
		return err
	}
	st.renewal = &zamokpb.RenewSessionRequest{Session: uint64(attach.Session), Secret: first.Secret}
	err = st.attach(attach, p.Sent)
	if err != nil && first.Session == 0 {
		return wire.OfCopy(err, false) // the session is open
	}
	return err
}

// attach makes this the stream of the session. If the client breaks it meanwhile, attach continues to wait:
// the break of an attached stream counts.
func (st *stream) attach(command *fsm.Attach, sent []byte) error {
	s, id := st.server, command.Session
	attached := make(chan error, 1)
	s.node.Submit(st.ctx, command, func(a raftnode.Answer, err error) {
		e := refusal(&a, err)
		if a.Result.Code == fsm.LimitExceeded { // that of attachments in one entry: nothing is wrong with the session
			e = wire.Errorf(zamokpb.Code_CODE_OVERLOADED, "not done: another stream of session %d, or too many others, attached at the same moment; "+
				"attach anew", id)
		}
		if e == nil {
			st.queue, e = s.hub.Adopt(&zamokpb.SessionState{
				Session: uint64(id), Attachment: a.Result.Index, Ttl: int64(a.Result.TTL), TtlMin: int64(s.node.LeastTTL()),
				Sent: sent, Time: int64(a.Time), Node: s.cfg.ID,
			})
		}
		if e == nil {
			close(st.attached)
			if isClosed(st.ended) { // this node is stopping, and the reader has not waited
				s.hub.Leave(st.queue)
			}
		}
		attached <- e.Err()
	})
	select {
	case err := <-attached:
		if err == nil && st.queue.Grace > 0 && conns.Of(st.ctx) != nil {
			conns.Of(st.ctx).Probe(probes(tcpWaiting))
		}
		return err
	case <-s.stopping:
		return errStopping()
	}
}

// handle carries out a frame. An error ends the stream; what is wrong with one command is its answer.
func (st *stream) handle(p *zamokpb.ClientFrame) error {
	if isClosed(st.queue.Done()) {
		return nil
	}
	if err := access.CheckFrame(p); err != nil {
		return err
	}
	var excess []*zamokpb.Acquire // for which there is no room
	frame, id, acked := push.Frame{Number: st.frames.Add(1), Sent: p.Sent, Arrived: time.Now()}, st.queue.Session, p.AckedThrough
	for i, message := range p.Messages {
		switch m := message.GetMessage().(type) {
		case *zamokpb.ClientMessage_Acquire:
			if st.hasRoom(frame.Arrived) {
				st.acquire(frame, acked, m.Acquire)
			} else {
				excess = append(excess, m.Acquire)
			}
		case *zamokpb.ClientMessage_Drop:
			c := push.Command{Kind: zamokpb.Command_COMMAND_DROP, Ticket: m.Drop.GetTicket(), Frame: frame}
			st.command(c, m.Drop, st.server.dropCommand(st.ctx, fsm.Drop{Session: id, Ticket: c.Ticket, AckedThrough: acked}))
		case *zamokpb.ClientMessage_Downgrade:
			c := push.Command{Kind: zamokpb.Command_COMMAND_DOWNGRADE, Ticket: m.Downgrade.GetTicket(), Frame: frame}
			request := &zamokpb.DowngradeRequest{Session: st.renewal.Session, Secret: st.renewal.Secret, Ticket: c.Ticket}
			st.command(c, request, &fsm.Downgrade{Session: id, Ticket: c.Ticket, AckedThrough: acked})
		case *zamokpb.ClientMessage_KeepAlive:
			if err := st.server.guard.Admit(st.ctx, st.renewal); err != nil { // the rules have changed
				return wire.StreamEnded(wire.Explain(err).Code(), "the session is not renewed, and its stream ends: %v", err)
			}
			st.renew(frame)
		case *zamokpb.ClientMessage_Close:
			st.close()
		case *zamokpb.ClientMessage_Open:
			return wire.Invalid(fmt.Sprintf("messages[%d]", i), "is an OpenStream, which only the first frame has")
		default:
			return wire.Invalid(fmt.Sprintf("messages[%d]", i), "is empty, or of a kind that this server does not know")
		}
	}
	st.refuseExcess(frame, excess)
	return nil
}

// acquire requests locks.
func (st *stream) acquire(frame push.Frame, acked uint64, p *zamokpb.Acquire) {
	c := push.Command{Kind: zamokpb.Command_COMMAND_ACQUIRE, Ticket: p.GetTicket(), First: p.GetFirst(), Frame: frame}
	err := st.server.limitAcquire(st.ctx, fsm.TicketRef{Session: st.queue.Session, Ticket: c.Ticket})
	if err == nil {
		err = st.server.guard.Admit(st.ctx, p)
	}
	if err != nil {
		st.refuse(c, err)
		return
	}
	command := access.AcquireCommand(st.queue.Session, acked, p)
	if err := st.server.checkRoom(command); err != nil {
		st.refuse(c, err)
		return
	}
	if p.ReportPosition {
		c.Report = len(p.Items)
	}
	st.queue.Requested(c.Ticket)
	st.submit(c, command)
}

// command carries out a command about a ticket of the session.
func (st *stream) command(c push.Command, request any, command fsm.Command) {
	if err := st.server.guard.Admit(st.ctx, request); err != nil {
		st.refuse(c, err)
		return
	}
	st.submit(c, command)
}

// refuse answers a command that was not carried out, for whatever reason before the log.
func (st *stream) refuse(c push.Command, err error) {
	refusal := wire.Explain(err)
	if c.Kind == zamokpb.Command_COMMAND_ACQUIRE {
		refusal = wire.OfCopy(refusal, c.First)
	}
	st.answer(c, &raftnode.Answer{}, refusal)
}

func (st *stream) submit(c push.Command, command fsm.Command) {
	bytes := int64(fsm.Size(command))
	count, sum := st.pending.Add(1), st.pendingBytes.Add(bytes)
	if count > pendingMax || sum > pendingBytesMax && c.Kind == zamokpb.Command_COMMAND_ACQUIRE { // commands that end locks are not limited by bytes
		st.answered(bytes)
		st.refuse(c, wire.Errorf(zamokpb.Code_CODE_OVERLOADED, "not done: %d commands of this stream wait for their answers, or "+
			"%d bytes of them; send it again when some have come", pendingMax, pendingBytesMax))
		return
	}
	acquires := c.Kind == zamokpb.Command_COMMAND_ACQUIRE
	done := func(a raftnode.Answer, err error) {
		defer st.answered(bytes)
		if acquires && st.acquiring.Add(-1) == crowdedMax/2 {
			st.wakeSettled()
		}
		if err != nil {
			st.refuse(c, err)
			return
		}
		st.answer(c, &a, wire.Refused(&a.Result))
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
	st.server.answered(st.ctx, c.Frame.Arrived, refusal)
	st.queue.Answer(c, a, refusal)
}

// renew submits the renewal of a frame, unless too many commands wait for their answers: a frame before it
// confirms nearly as much. If anything waits, the client learns that the stream stands.
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
	st.server.node.Submit(st.ctx, &fsm.CloseSession{Session: st.queue.Session}, func(_ raftnode.Answer, err error) {
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

package api

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"zamok/api/zamokpb"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

const (
	// openStreamWait is how long a stream may take to say who it is.
	openStreamWait = 10 * time.Second
	// flushWait is how long a stream that is over may take to tell what is queued.
	flushWait = time.Second
)

// stream serves one session. Three goroutines share it: the handler, which waits for the end, since in
// gRPC only its return ends a stream; the reader; and the writer. The last two end with the handler, and
// Server.busy waits for them.
type stream struct {
	server *Server
	ctx    context.Context
	wire   grpc.BidiStreamingServer[zamokpb.ClientFrame, zamokpb.ServerFrame]

	attached  chan struct{} // closed when box is there
	queue     *sendQueue
	sawOpen   atomic.Bool   // the first frame came
	abandoned atomic.Bool   // the handler ended before that
	failed    chan error    // capacity 1: why the reader ended
	written   chan struct{} // closed when the writer ended

	pending      atomic.Int64  // commands and renewals that have no answer yet
	pendingBytes atomic.Int64  // of those commands
	disconnected atomic.Bool   // the client broke the stream
	settled      chan struct{} // capacity 1: since then, the last command had its answer
	frames       uint64        // the reader's: how many came
	closing      bool          // the reader's: the client asked for the session's end
}

// Session is the stream of one session.
func (s *Server) Session(wire grpc.BidiStreamingServer[zamokpb.ClientFrame, zamokpb.ServerFrame]) error {
	st := &stream{
		server: s, ctx: wire.Context(), wire: wire,
		attached: make(chan struct{}), failed: make(chan error, 1), written: make(chan struct{}), settled: make(chan struct{}, 1),
	}
	s.busy.Go(st.read)
	silence := time.NewTimer(openStreamWait)
	defer silence.Stop()
	select {
	case <-st.attached:
	case err := <-st.failed:
		if !st.isAttached() {
			return errorOf(err)
		}
		st.failed <- err // both at once: it was attached, and then it broke
	case <-s.stopping:
		st.abandon()
		return errStopping()
	case <-silence.C:
		st.abandon()
		return st.openTimedOut()
	}
	s.busy.Go(st.write)
	s.observer.streamOpened()
	err := st.serve()
	s.hub.leave(st.queue)
	s.observer.streamEnded(reasonOf(err))
	return err
}

// openTimedOut is why a stream that attaches to nothing is ended.
func (st *stream) openTimedOut() *failure {
	if st.sawOpen.Load() {
		return fail(zamokpb.Code_CODE_UNKNOWN, "the OpenStream was not answered within %v, and may still take effect; say it again", openStreamWait)
	}
	return invalid("messages", "the first frame did not come within %v", openStreamWait)
}

func (st *stream) isAttached() bool {
	select {
	case <-st.attached:
		return true
	default:
		return false
	}
}

// serve waits for the end of an attached stream, and returns why it ends. What the client broke counts as a break
// also if this node cut the stream at the same moment.
func (st *stream) serve() error {
	select {
	case <-st.queue.done:
		reason := st.flush()
		select {
		case err := <-st.failed:
			_ = st.broken(err)
		default:
		}
		return reason
	case err := <-st.failed:
		return st.broken(err)
	case <-st.server.stopping:
		return errStopping()
	}
}

func errStopping() error { return streamEnded(zamokpb.Code_CODE_STOPPING, "this node is stopping") }

// reasonOf is why this node ended a stream, for those who count; "": the client did, or it was in order.
func reasonOf(err error) string {
	if f := (*failure)(nil); errors.As(err, &f) {
		return strings.ToLower(strings.TrimPrefix(f.info.Code.String(), "CODE_"))
	}
	return ""
}

// flush lets the writer tell what is queued, and says why the stream ends.
func (st *stream) flush() error {
	reason := st.queue.reason
	if reason != nil && reason.info.Code == zamokpb.Code_CODE_SLOW_READER {
		return reason
	}
	limit := time.NewTimer(flushWait)
	defer limit.Stop()
	select {
	case <-st.written:
	case <-limit.C:
	case <-st.ctx.Done():
	}
	if reason == nil {
		return nil
	}
	if reason.info.Code == zamokpb.Code_CODE_NOT_LEADER {
		reason.info.Leader, reason.info.LeaderAddress = st.server.node.Leader()
		if reason.info.Leader == st.server.id {
			reason.info.Leader, reason.info.LeaderAddress = "", ""
		}
	}
	return reason
}

// broken is the reader's end: the client said what it must not, or its end of the stream broke.
func (st *stream) broken(err error) error {
	if f := (*failure)(nil); errors.As(err, &f) {
		return f
	}
	if !relayed(st.ctx) && !st.server.isStopping() && closedByPeer(st.ctx) {
		if st.queue.grace > 0 {
			st.settle()
		}
		st.server.hub.disconnected(st.queue)
	}
	return errorOf(err)
}

// answered notes that a command of so many bytes has its answer.
func (st *stream) answered(bytes int64) {
	st.pendingBytes.Add(-bytes)
	if st.pending.Add(-1) == 0 && st.disconnected.Load() {
		signal(st.settled)
	}
}

// settle waits until what the client said last has its answer: what was on its way when the stream broke is
// no renewal after that.
func (st *stream) settle() {
	st.disconnected.Store(true)
	if st.pending.Load() == 0 {
		return
	}
	select {
	case <-st.settled:
	case <-st.server.stopping:
	}
}

// errorOf is what a handler returns: the client's own end of a stream is no error.
func errorOf(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// read takes frames until the stream ends.
func (st *stream) read() {
	err := st.readOpen()
	for err == nil {
		var p *zamokpb.ClientFrame
		if p, err = st.wire.Recv(); err == nil {
			err = st.handle(p)
		}
	}
	if st.closing && errors.Is(err, io.EOF) {
		return // the rest is the session's end, which is on its way
	}
	st.failed <- err
}

// readOpen opens or finds the session, and attaches to it.
func (st *stream) readOpen() error {
	p, err := st.wire.Recv()
	if err != nil {
		return err
	}
	st.sawOpen.Store(true)
	first := (*zamokpb.OpenStream)(nil)
	if len(p.GetMessages()) == 1 {
		first = p.GetMessages()[0].GetOpen()
	}
	if first == nil {
		return invalid("messages", "the first frame of a stream has an OpenStream and nothing else")
	}
	secret, f := hashOf(first.GetSecret())
	if f == nil {
		f = checkSent(p.GetSent())
	}
	if f == nil {
		f = st.server.may(st.ctx, VerbSession, "")
	}
	if f != nil {
		return f
	}
	st.frames++
	id := session.ID(first.GetSession())
	if id == 0 {
		if id, f = st.open(secret, first.GetSettings()); f != nil {
			return f
		}
	}
	return st.attach(id, secret, first.GetAttempt(), p)
}

func (st *stream) open(secret session.Hash, settings *zamokpb.SessionSettings) (session.ID, *failure) {
	command, f := openCommand(secret, identity(st.ctx), settings, st.server.node.Timeout())
	if f == nil {
		f = st.server.roomFor(secret)
	}
	if f != nil {
		return 0, f
	}
	a, err := st.server.node.Propose(st.ctx, command)
	if err != nil {
		return 0, explain(err)
	}
	if f := refused(&a.Result); f != nil {
		return 0, f
	}
	return a.Result.Session, nil
}

// attach makes this the session's stream. If the client breaks the stream meanwhile, it waits on: a stream that was
// attached is one that broke.
func (st *stream) attach(id session.ID, secret session.Hash, attempt uint64, p *zamokpb.ClientFrame) error {
	h := st.server.hub
	denied := make(chan *failure, 1)
	h.expect(id)
	command := &fsm.Attach{Session: id, Secret: secret, AckedThrough: p.GetAckedThrough(), Attempt: attempt}
	st.server.node.Submit(command, func(a raftnode.Answer, err error) {
		f := (*failure)(nil)
		if err != nil {
			f = explain(err)
		} else {
			f = refused(&a.Result)
		}
		if a.Result.Code == fsm.LimitExceeded { // of what attaches in an entry: nothing is wrong with the session
			f = fail(zamokpb.Code_CODE_OVERLOADED, "not done: another stream of session %d, or too many others, attached at the same moment; "+
				"attach anew", id)
		}
		if f != nil {
			h.abandonAttach(id)
		} else {
			st.queue, f = h.adopt(id, p.GetSent(), a)
		}
		if f != nil {
			denied <- f
			return
		}
		close(st.attached)
		if st.abandoned.Load() {
			h.leave(st.queue)
		}
	})
	select {
	case <-st.attached:
		return nil
	case f := <-denied:
		return f
	case <-st.server.stopping:
		return errStopping()
	}
}

// abandon is the handler's end before it saw a send queue, which may come at the same moment.
func (st *stream) abandon() {
	st.abandoned.Store(true)
	if st.isAttached() {
		st.server.hub.leave(st.queue)
	}
}

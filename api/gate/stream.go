package gate

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"zamok/api/wire"
	"zamok/api/zamokpb"
)

// Messages are both directions of a stream, as a front has them.
type Messages interface {
	// RecvMsg receives the next message; io.EOF: the client sends no more. It ends with an error
	// soon after Gate.Stream has returned.
	RecvMsg(any) error
	SendMsg(any) error
}

// Stream is the way of a call whose response is a stream, and perhaps its requests: who calls,
// where it is carried out, what admit checks for each of its messages, and what its caller may see
// of each message to it.
func (g *Gate) Stream(ctx context.Context, from Arrival, method string,
	messages Messages) (err error) {
	d := OfMethod(method)
	if d == nil || d.stream == nil {
		return errNoRow(method)
	}
	defer func() { err = outcome(from, d, err) }()
	ctx, err = g.Identify(ctx, from, method)
	if err != nil {
		return err
	}
	leader, err := g.route(ctx, d)
	if err != nil {
		return err
	}
	s := &stream{Messages: messages, gate: g, ctx: ctx, d: d, relayed: leader != nil,
		began: time.Now()}
	if leader != nil {
		admission, err := g.admit(ctx, d, Stream{}, nil, true)
		if err != nil {
			return err
		}
		defer admission.End()
		return g.Relay.Stream(ctx, *leader, d, s)
	}
	err = d.stream(ctx, g, s)
	g.recordStream(ctx, method, err)
	return err
}

// stream is a stream whose caller is known.
type stream struct {
	Messages
	gate    *Gate
	ctx     context.Context
	d       *Request
	relayed bool // the leader answers, and hides what the caller may not see
	began   time.Time
	checked atomic.Int64          // time of the last authentication, since began
	ended   atomic.Pointer[error] // set when the caller is no longer authenticated
}

// SendMsg removes from a message what the caller may not see.
func (s *stream) SendMsg(m any) error {
	if err := s.authenticate(); err != nil {
		return err
	}
	if message, is := m.(proto.Message); is && !s.relayed {
		s.gate.redact(s.ctx, s.d, message, nil)
	}
	return s.Messages.SendMsg(m)
}

func (s *stream) RecvMsg(m any) error {
	if err := s.Messages.RecvMsg(m); err != nil {
		return err
	}
	return s.authenticate()
}

// authenticate ends the stream if its caller is no longer authenticated with the same identity.
func (s *stream) authenticate() error {
	if ended := s.ended.Load(); ended != nil {
		return *ended
	}
	now, before := int64(time.Since(s.began)), s.checked.Load()
	if time.Duration(now-before) < AuthenticateEvery || !s.checked.CompareAndSwap(before, now) {
		return nil
	}
	err := s.gate.identifyAgain(s.ctx, s.d.Method)
	if err != nil {
		s.ended.Store(&err)
	}
	return err
}

// admitOnly receives and admits the one request of a stream.
func (s *stream) admitOnly(request proto.Message) (Admission, error) {
	if err := s.RecvMsg(request); err != nil {
		return Admission{}, err
	}
	return s.gate.admitMessage(s.ctx, Stream{}, request)
}

// serveWatch admits the one request of a watch.
func serveWatch(ctx context.Context, g *Gate, s *stream) error {
	request := new(zamokpb.WatchRequest)
	admission, err := s.admitOnly(request)
	if err != nil {
		return err
	}
	defer admission.End()
	ctx, stop := g.whileAllowed(ctx, request, false)
	defer stop()
	return g.Service.Watch(ctx, request, s.SendMsg)
}

// serveBackup admits a backup, and records it.
func serveBackup(ctx context.Context, g *Gate, s *stream) (err error) {
	request := new(zamokpb.BackupRequest)
	admission, err := s.admitOnly(request)
	if err != nil {
		return err
	}
	defer admission.End()
	err = g.Service.Backup(ctx, func(chunk *zamokpb.BackupChunk) error { return s.SendMsg(chunk) })
	g.record(ctx, s.d, request, err)
	return err
}

// serveSession gives the service the frames of a session's stream, and admits each message. The
// stream counts as open as long as the service serves it.
func serveSession(ctx context.Context, g *Gate, s *stream) error {
	frames := &frames{stream: s}
	defer frames.end()
	return g.Service.Session(ctx, frames)
}

// frames are those of a session's stream.
type frames struct {
	*stream
	in Stream // known from the first message on

	mu        sync.Mutex // guards what follows: a first frame may come when the stream has ended
	admission Admission
	over      bool
}

func (f *frames) Send(frame *zamokpb.ServerFrame) error { return f.SendMsg(frame) }

// Recv is called by one goroutine.
func (f *frames) Recv() (*zamokpb.ClientFrame, error) {
	p := new(zamokpb.ClientFrame)
	if err := f.RecvMsg(p); err != nil {
		return nil, err
	}
	return p, checkFrame(p)
}

// Admit is called by the same goroutine, when the message has room in the queue: what has none
// meets no limit.
func (f *frames) Admit(p *zamokpb.ClientFrame, message int) error {
	request := p.Messages[message].Request()
	if open, begins := request.(*zamokpb.OpenStream); begins {
		return f.open(open)
	}
	f.in.AckedThrough = p.AckedThrough
	_, err := f.gate.admitMessage(f.ctx, f.in, request)
	return err
}

// open admits the message that begins the stream, which may take a while. If the stream has ended
// meanwhile, it counts no more.
func (f *frames) open(m *zamokpb.OpenStream) error {
	if f.in.Secret != nil {
		return nil // the service refuses a second one
	}
	f.in.Secret = m.GetSecret()
	admission, err := f.gate.admitMessage(f.ctx, Stream{}, m)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		admission.End()
		return wire.StreamEnded(zamokpb.Code_CODE_STOPPING, "the stream has ended")
	}
	f.admission = admission
	return nil
}

func (f *frames) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	f.admission.End()
}

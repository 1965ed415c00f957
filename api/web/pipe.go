package web

import (
	"context"
	"errors"
	"io"

	"google.golang.org/protobuf/proto"
)

// pipe is a stream of the wire whose client is this front. Its two ends share the messages, which
// neither changes.
type pipe[Out, In proto.Message] struct {
	ctx   context.Context
	out   chan Out // to the service
	in    chan In  // from it
	ended chan struct{}
	err   error // with which the stream ended; set before ended is closed
}

// newPipe begins a stream, which ends with ctx.
func newPipe[Out, In proto.Message](ctx context.Context, h *handler,
	method string) (*pipe[Out, In], error) {
	end, err := h.config.Begin()
	if err != nil {
		return nil, err
	}
	p := &pipe[Out, In]{ctx: ctx, out: make(chan Out), in: make(chan In),
		ended: make(chan struct{})}
	go func() {
		defer end()
		defer close(p.ended)
		if p.err = h.config.Gate.Stream(ctx, arrivalOf(ctx), method,
			service[Out, In]{p}); p.err == nil {
			p.err = io.EOF
		}
	}()
	return p, nil
}

// send passes a message, unless the stream ends before it is received.
func (p *pipe[Out, In]) send(m Out) {
	select {
	case p.out <- m:
	case <-p.ended:
	case <-p.ctx.Done():
	}
}

// service is the service's end of a pipe.
type service[Out, In proto.Message] struct{ *pipe[Out, In] }

var errReturned = errors.New("the stream has ended")

// SendMsg implements gate.Messages. A relayed message is not decoded yet.
func (s service[Out, In]) SendMsg(m any) error {
	in, is := m.(In)
	if !is {
		in = in.ProtoReflect().New().Interface().(In)
		if err := carry(m.(proto.Message), in); err != nil {
			return err
		}
	}
	select {
	case s.in <- in:
		return nil
	case <-s.ended:
		return errReturned
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

// RecvMsg implements gate.Messages.
func (s service[Out, In]) RecvMsg(m any) error {
	select {
	case out := <-s.out:
		return carry(out, m.(proto.Message))
	case <-s.ended:
		return errReturned
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

package api

import (
	"context"
	"strings"

	"google.golang.org/grpc"

	"zamok/api/zamokpb"
	"zamok/fsm"
)

// Watch sends what happens to locks under a prefix, and with none also to sessions, from this node's ring. Sending
// runs on a goroutine of its own: a client that reads nothing would hold it for ever, and is cut when the ring has
// turned.
func (s *Server) Watch(req *zamokpb.WatchRequest, stream grpc.ServerStreamingServer[zamokpb.WatchFrame]) error {
	ctx := stream.Context()
	f := checkText("prefix", req.Prefix, fsm.NameBytesMax)
	if f == nil {
		f = s.may(ctx, VerbList, req.Prefix)
	}
	if f != nil {
		return f
	}
	w, f := s.ring.watch(req.Prefix, req.From)
	if f != nil {
		return f
	}
	defer w.end()
	out, failed := make(chan found), make(chan error, 1)
	defer close(out)
	s.busy.Go(func() { // ends with the stream, whose end interrupts Send
		var err error
		for f := range out {
			if err == nil {
				if err = stream.Send(w.frame(f)); err != nil {
					failed <- err
				}
			}
			s.ring.sent(f)
		}
	})
	next, some := found{index: w.index}, true // where one is
	defer func() {
		if some {
			s.ring.sent(next)
		}
	}()
	for {
		var to chan found
		var wake chan struct{}
		if !some {
			next, some = w.read()
			switch {
			case w.failed != nil:
				return w.failed
			case some && !s.ring.send(next):
				some = false
				return tooMuch(next)
			}
		}
		if some {
			to = out
		} else {
			wake = w.wake
		}
		select {
		case to <- next:
			some = false
		case <-wake:
		case <-w.cut:
			return w.cutAt()
		case err := <-failed:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.stopping:
			return fail(zamokpb.Code_CODE_STOPPING, "this node is stopping; watch at another one, from the last index")
		}
	}
}

// frame is the message for what was found.
func (w *watch) frame(f found) *zamokpb.WatchFrame {
	frame := &zamokpb.WatchFrame{Index: f.index}
	for i := range f.events {
		e := &f.events[i]
		told := &zamokpb.LockEvent{
			Happened: happened(e), Session: uint64(e.ref.Session), Ticket: e.ref.Ticket,
			Token: e.token, Why: zamokpb.Why(e.reason), Text: e.text, Label: e.label,
		}
		for _, it := range e.items {
			if strings.HasPrefix(it.Name, w.prefix) {
				told.Items = append(told.Items, toItems([]fsm.Item{it})...)
			}
		}
		frame.Events = append(frame.Events, told)
	}
	return frame
}

func happened(e *event) zamokpb.Happened {
	switch e.kind {
	case fsm.EvGranted:
		return zamokpb.Happened_HAPPENED_GRANTED
	case fsm.EvRefused:
		return zamokpb.Happened_HAPPENED_REFUSED
	case fsm.EvLost:
		return zamokpb.Happened_HAPPENED_LOST
	case fsm.EvReleased:
		if e.token == 0 {
			return zamokpb.Happened_HAPPENED_CANCELLED
		}
		return zamokpb.Happened_HAPPENED_RELEASED
	case fsm.EvDowngraded:
		return zamokpb.Happened_HAPPENED_DOWNGRADED
	case fsm.EvEnded:
		return zamokpb.Happened_HAPPENED_ENDED
	}
	return zamokpb.Happened_HAPPENED_UNSPECIFIED
}

package api

import (
	"context"
	"strings"

	"google.golang.org/grpc"

	"zamok/api/zamokpb"
	"zamok/fsm"
)

// Watch sends what happens to locks under a prefix, and with none also to sessions, from this node's ring. Sending
// runs on a goroutine of its own: a client that reads nothing would hold it forever, and is cut when the ring has
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
	w, f := s.history.watch(req.Prefix, req.From)
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
			s.history.sent(f)
		}
	})
	next, some := found{index: w.index}, true // where one is
	defer func() {
		if some {
			s.history.sent(next)
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
			case some && !s.history.send(next):
				some = false
				return tooManyBytes(next)
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
		sent := &zamokpb.LockEvent{
			Kind: eventKind(e), Session: uint64(e.ref.Session), Ticket: e.ref.Ticket,
			Token: e.token, Reason: zamokpb.Reason(e.reason), Text: e.text, Label: e.label,
		}
		for _, it := range e.items {
			if strings.HasPrefix(it.Name, w.prefix) {
				sent.Items = append(sent.Items, toItems([]fsm.Item{it})...)
			}
		}
		frame.Events = append(frame.Events, sent)
	}
	return frame
}

func eventKind(e *event) zamokpb.EventKind {
	switch e.kind {
	case fsm.EvGranted:
		return zamokpb.EventKind_EVENT_GRANTED
	case fsm.EvRefused:
		return zamokpb.EventKind_EVENT_REFUSED
	case fsm.EvLost:
		return zamokpb.EventKind_EVENT_LOST
	case fsm.EvReleased:
		if e.token == 0 {
			return zamokpb.EventKind_EVENT_CANCELLED
		}
		return zamokpb.EventKind_EVENT_RELEASED
	case fsm.EvDowngraded:
		return zamokpb.EventKind_EVENT_DOWNGRADED
	case fsm.EvSessionEnded:
		return zamokpb.EventKind_EVENT_ENDED
	}
	return zamokpb.EventKind_EVENT_UNSPECIFIED
}

package api

import (
	"context"
	"strings"

	"google.golang.org/grpc"

	"zamok/api/zamokpb"
	"zamok/fsm"
)

// Watch tells what happens to locks under a prefix, and with none also to sessions, from this node's ring. Sending runs on a goroutine
// of its own: a client that reads nothing would hold it for ever, and is cut when the ring has turned.
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
	frames, failed := make(chan *zamokpb.WatchFrame), make(chan error, 1)
	defer close(frames)
	s.busy.Go(func() { // ends with the stream, whose end interrupts Send
		for frame := range frames {
			if err := stream.Send(frame); err != nil {
				failed <- err
				return
			}
		}
	})
	frame := &zamokpb.WatchFrame{Index: w.index} // where one is
	for {
		var out chan *zamokpb.WatchFrame
		var wake chan struct{}
		if frame == nil {
			frame = w.frame()
		}
		if frame == nil {
			wake = w.wake
		} else {
			out = frames
		}
		select {
		case out <- frame:
			frame = nil
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

// frame is what is to be told next; nil: nothing at the moment.
func (w *watch) frame() *zamokpb.WatchFrame {
	index, events, some := w.read()
	if !some {
		return nil
	}
	frame := &zamokpb.WatchFrame{Index: index}
	for i := range events {
		e := &events[i]
		told := &zamokpb.LockEvent{
			Happened: happened(e.kind), Session: uint64(e.ref.Session), Ticket: e.ref.Ticket,
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

func happened(kind fsm.EventKind) zamokpb.Happened {
	switch kind {
	case fsm.EvGranted:
		return zamokpb.Happened_HAPPENED_GRANTED
	case fsm.EvRefused:
		return zamokpb.Happened_HAPPENED_REFUSED
	case fsm.EvLost:
		return zamokpb.Happened_HAPPENED_LOST
	case fsm.EvReleased:
		return zamokpb.Happened_HAPPENED_RELEASED
	case fsm.EvDowngraded:
		return zamokpb.Happened_HAPPENED_DOWNGRADED
	case fsm.EvEnded:
		return zamokpb.Happened_HAPPENED_ENDED
	}
	return zamokpb.Happened_HAPPENED_UNSPECIFIED
}

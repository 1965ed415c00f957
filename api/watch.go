package api

import (
	"context"

	"google.golang.org/grpc"

	"zamok/api/history"
	"zamok/api/wire"
	"zamok/api/zamokpb"
)

// Watch sends the events of locks under a prefix, and with the prefix "" also those of sessions, from this
// node's history. Sending runs on a goroutine of its own: a client that reads nothing would hold it forever,
// and is cut when an event that it has not read is forgotten.
func (s *Server) Watch(req *zamokpb.WatchRequest, stream grpc.ServerStreamingServer[zamokpb.WatchFrame]) error {
	ctx := stream.Context()
	if err := s.guard.Admit(ctx, req); err != nil {
		return err
	}
	w, err := s.history.Watch(req.Prefix, req.From)
	if err != nil {
		return err
	}
	defer w.End()
	failed := make(chan error, 1)
	s.busy.Go(func() { failed <- s.sendEvents(w, stream) }) // ends with the stream, whose end interrupts Send
	select {
	case err := <-failed:
		return err
	case <-w.Done():
		return w.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.stopping:
		return wire.Errorf(zamokpb.Code_CODE_STOPPING, "this node is stopping; watch at another one, from the last index")
	}
}

// sendEvents sends what a watch reads until it fails or its stream ends.
func (s *Server) sendEvents(w *history.Watch, stream grpc.ServerStreamingServer[zamokpb.WatchFrame]) error {
	next, some := w.Start(), true
	for {
		if some {
			err := s.history.Reserve(next)
			if err == nil {
				err = stream.Send(w.Frame(next))
				s.history.Release(next)
			}
			if err != nil {
				return err
			}
		} else {
			select {
			case <-w.Wake():
			case <-stream.Context().Done():
				return context.Cause(stream.Context())
			}
		}
		var err error
		if next, some, err = w.Read(); err != nil {
			return err
		}
	}
}

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
	out, failed := make(chan history.Batch), make(chan error, 1)
	defer close(out)
	s.busy.Go(func() { // ends with the stream, whose end interrupts Send
		var err error
		for b := range out {
			if err == nil {
				if err = stream.Send(w.Frame(b)); err != nil {
					failed <- err
				}
			}
			s.history.Release(b)
		}
	})
	next, some := w.Start(), true
	defer func() {
		if some {
			s.history.Release(next)
		}
	}()
	for {
		if !some {
			if next, some, err = w.Read(); err == nil && some {
				err = s.history.Reserve(next)
			}
			if err != nil {
				some = false
				return err
			}
		}
		var to chan history.Batch // nil, and never ready, without a batch
		wake := w.Wake()
		if some {
			to, wake = out, nil
		}
		select {
		case to <- next:
			some = false
		case <-wake:
		case <-w.Done():
			return w.Err()
		case err := <-failed:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.stopping:
			return wire.Errorf(zamokpb.Code_CODE_STOPPING, "this node is stopping; watch at another one, from the last index")
		}
	}
}

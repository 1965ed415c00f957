package web

import (
	"bytes"
	"context"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"zamok/api/view"
	"zamok/api/visible"
	"zamok/api/wire"
	"zamok/api/zamokpb"
)

// events sends Server-Sent Events.
type events struct {
	w          http.ResponseWriter
	connection *http.ResponseController
	begun      bool
}

func newEvents(w http.ResponseWriter) *events {
	return &events{w: w, connection: http.NewResponseController(w)}
}

// send sends one event; the id is what a browser returns as Last-Event-ID, "" for none.
func (e *events) send(name, id string, data any) error {
	var out bytes.Buffer
	if id != "" {
		out.WriteString("id: " + id + "\n")
	}
	out.WriteString("event: " + name + "\ndata: " + visible.JSON(marshal(data)) + "\n\n")
	return e.write(out.Bytes())
}

// comment sends a line that clients ignore and proxies count as traffic.
func (e *events) comment() error { return e.write([]byte(":\n\n")) }

func (e *events) write(bytes []byte) error {
	if !e.begun {
		e.begun = true
		head := e.w.Header()
		head.Set("Content-Type", "text/event-stream")
		head.Set("X-Accel-Buffering", "no") // nginx passes each event on at once
		e.w.WriteHeader(http.StatusOK)
	}
	if err := e.connection.SetWriteDeadline(time.Now().Add(writeWait)); err != nil {
		return err
	}
	if _, err := e.w.Write(bytes); err != nil {
		return err
	}
	return e.connection.Flush()
}

// end ends the events because of an error: with an event, or with a status if none was sent. The
// end of an event stream is not reported to a browser otherwise.
func (e *events) end(err error) error {
	if err == nil || !e.begun {
		return err
	}
	_ = e.send("error", "", newErrorBody(infoOf(err))) // the connection has ended if that fails
	return nil
}

// quietFor is how long a stream of events is silent before a comment is sent: proxies end
// connections that are silent for 30 s or more.
const quietFor = 10 * time.Second

// lastEventHeader is what a browser that reconnects sends.
const lastEventHeader = "Last-Event-ID"

type watchRequest struct {
	Prefix string      `json:"prefix,omitempty" doc:"only locks whose names begin with it; with \"\" also the ends of sessions"`
	From   view.Number `json:"from,omitempty" doc:"events after this index; Last-Event-ID is used instead if it is sent. Absent: from now on"`

	Cluster string `json:"cluster,omitempty" doc:"the id of the cluster that the request is for, as the header Zamok-Cluster: EventSource sends none"`
}

// place is how far a stream of events has come.
type place struct {
	Index view.Number `json:"index" doc:"all events up to this one have been sent"`
}

// watchEvents are the events of a watch.
func watchEvents() map[string]any {
	all := map[string]any{"index": place{}, "error": errorBody{}}
	for kind := range zamokpb.EventKind_name {
		if kind != 0 {
			all[wire.JSONName(zamokpb.EventKind(kind))] = view.Event{}
		}
	}
	return all
}

func (h *handler) watchRoute() route {
	return route{
		method: "GET", path: "/v1/watch",
		summary: "Stream what happens to locks: granted, refused, lost, released, downgraded, " +
			"cancelled, ended.",
		request: reflect.TypeFor[watchRequest](), stream: true, events: watchEvents(),
		serve: func(w http.ResponseWriter, r *http.Request) error {
			request := new(watchRequest)
			if err := receive(w, r, request); err != nil {
				return err
			}
			if last := r.Header.Get(lastEventHeader); last != "" {
				if err := request.From.UnmarshalText([]byte(last)); err != nil {
					return invalid(lastEventHeader, "%v", err)
				}
			}
			out := newEvents(w)
			return out.end(h.watch(forCluster(r.Context(), request.Cluster), request, out))
		},
	}
}

// watch sends frames until one end fails.
func (h *handler) watch(ctx context.Context, r *watchRequest, out *events) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := newPipe[*zamokpb.WatchRequest, *zamokpb.WatchFrame](ctx, h,
		zamokpb.Zamok_Watch_FullMethodName)
	if err != nil {
		return err
	}
	stream.send(&zamokpb.WatchRequest{Prefix: r.Prefix, From: uint64(r.From)})
	quiet := time.NewTicker(quietFor)
	defer quiet.Stop()
	for {
		select {
		case frame := <-stream.in:
			err = sendFrame(out, frame)
		case <-quiet.C:
			err = out.comment()
		case <-stream.ended:
			err = stream.err
		}
		if err != nil {
			return err
		}
	}
}

// sendFrame sends the events of a frame. Only the last of an index has that as its id: a client
// that has received some of them is sent all of them again.
func sendFrame(out *events, frame *zamokpb.WatchFrame) error {
	if len(frame.Events) == 0 {
		return out.send("index", strconv.FormatUint(frame.Index, 10),
			place{view.Number(frame.Index)})
	}
	for i, e := range frame.Events {
		id := ""
		if i == len(frame.Events)-1 || frame.Events[i+1].Index != e.Index {
			id = strconv.FormatUint(e.Index, 10)
		}
		if err := out.send(wire.JSONName(e.Kind), id, view.NewEvent(e)); err != nil {
			return err
		}
	}
	return nil
}

package web

import (
	"bytes"
	"context"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/session/visible"
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

// end ends the events because of an error: with an event, or with a status if none was sent. The end of an event stream
// is not reported to a browser otherwise.
func (e *events) end(err error) error {
	if err == nil || !e.begun {
		return err
	}
	_ = e.send("error", "", newErrorBody(infoOf(err))) // the connection has ended if that fails
	return nil
}

// quietFor is how long a stream of events is silent before a comment is sent: proxies end connections that are silent
// for 30 s or more.
const quietFor = 10 * time.Second

// lastEventHeader is what a browser that reconnects sends.
const lastEventHeader = "Last-Event-ID"

type watchRequest struct {
	Prefix string `json:"prefix,omitempty" doc:"only locks whose names begin with it; with \"\" also the ends of sessions"`
	From   number `json:"from,omitempty" doc:"events after this index; Last-Event-ID is used instead if it is sent. Absent: from now on"`

	Cluster string `json:"cluster,omitempty" doc:"the id of the cluster that is meant, as the header Zamok-Cluster: EventSource sends none"`
}

// event is a change of an acquisition, or the end of a session.
type event struct {
	Index   number `json:"index"`
	Session number `json:"session"`
	Ticket  number `json:"ticket,omitempty"`
	Token   number `json:"token,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Text    string `json:"text,omitempty" doc:"the reason that an operator gave"`
	Label   string `json:"label,omitempty"`
	Items   []item `json:"items,omitempty"`
}

// place is how far a stream of events has come.
type place struct {
	Index number `json:"index" doc:"all events up to this one have been sent"`
}

// watchEvents are the events of a watch.
func watchEvents() map[string]any {
	all := map[string]any{"index": place{}, "error": errorBody{}}
	for kind := range zamokpb.EventKind_name {
		if kind != 0 {
			all[word(zamokpb.EventKind(kind), "EVENT_")] = event{}
		}
	}
	return all
}

func (h *handler) watchRoute() route {
	return route{
		method: "GET", path: "/v1/watch", summary: "Stream what happens to locks: granted, refused, lost, released, downgraded, cancelled, ended.",
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
			return out.end(h.watch(meant(r.Context(), request.Cluster), request, out))
		},
	}
}

// watch sends frames until one end fails.
func (h *handler) watch(ctx context.Context, r *watchRequest, out *events) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := h.zamok.Watch(ctx, &zamokpb.WatchRequest{Prefix: r.Prefix, From: uint64(r.From)})
	if err != nil {
		return err
	}
	frames, failed := received(ctx, stream.Recv)
	quiet := time.NewTicker(quietFor)
	defer quiet.Stop()
	for {
		select {
		case frame := <-frames:
			err = sendFrame(out, frame)
		case <-quiet.C:
			err = out.comment()
		case err = <-failed:
		}
		if err != nil {
			return err
		}
	}
}

// received are the frames of a stream, and the error with which it ends. That follows the end of ctx.
func received[Frame any](ctx context.Context, recv func() (Frame, error)) (<-chan Frame, <-chan error) {
	frames, failed := make(chan Frame), make(chan error, 1)
	go func() {
		for {
			frame, err := recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case frames <- frame:
			case <-ctx.Done():
			}
		}
	}()
	return frames, failed
}

// sendFrame sends the events of a frame. Only the last of an index has that as its id: a client that has received some of them
// asks for all of them again.
func sendFrame(out *events, frame *zamokpb.WatchFrame) error {
	if len(frame.Events) == 0 {
		return out.send("index", strconv.FormatUint(frame.Index, 10), place{number(frame.Index)})
	}
	for i, e := range frame.Events {
		id := ""
		if i == len(frame.Events)-1 || frame.Events[i+1].Index != e.Index {
			id = strconv.FormatUint(e.Index, 10)
		}
		if err := out.send(word(e.Kind, "EVENT_"), id, event{
			Index: number(e.Index), Session: number(e.Session), Ticket: number(e.Ticket), Token: number(e.Token),
			Reason: word(e.Reason, "REASON_"), Text: e.Text, Label: e.Label, Items: wire.Each(e.Items, newItem),
		}); err != nil {
			return err
		}
	}
	return nil
}

package web

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"zamok/api/view"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
)

// holdRequest is an acquisition that lives as long as its connection.
type holdRequest struct {
	Name    []string      `json:"name" doc:"a lock; repeated for several at once"`
	Mode    view.Mode     `json:"mode,omitempty" doc:"exclusive (default), shared or permits"`
	Permits uint32        `json:"permits,omitempty" doc:"with permits: how many"`
	Of      uint32        `json:"of,omitempty" doc:"with permits: of how many"`
	Wait    *patience     `json:"wait,omitempty" doc:"the longest wait; absent: as long as the connection lives"`
	MaxHold view.Duration `json:"max_hold,omitempty" doc:"the grant ends after this time"`
	Owner   string        `json:"owner,omitempty" doc:"a thread of the client, for deadlock detection"`
	Meta    string        `json:"meta,omitempty" doc:"shown to people, up to 4096 bytes"`

	TTL       view.Duration `json:"ttl,omitempty" doc:"how long the lock outlives a node that vanishes with the connection; default 15s"`
	LockDelay view.Duration `json:"lock_delay,omitempty" doc:"how long the lock stays closed after a loss"`
	Label     string        `json:"label,omitempty" doc:"shown to people, up to 256 bytes"`

	Cluster string `json:"cluster,omitempty" doc:"the id of the cluster that the request is for, as the header Zamok-Cluster: EventSource sends none"`
}

func (h *handler) holdRoute() route {
	return route{
		method: "GET", path: "/v1/hold",
		summary: "Hold locks for as long as the connection lives: queued, granted, " +
			"heartbeat, lost.",
		request: reflect.TypeFor[holdRequest](), takesLock: true, stream: true,
		events: map[string]any{"queued": queued{}, "granted": granted{}, "heartbeat": heartbeat{},
			"lost": lost{}, "error": errorBody{}},
		serve: func(w http.ResponseWriter, r *http.Request) error {
			request := new(holdRequest)
			if err := receive(w, r, request); err != nil {
				return err
			}
			if len(request.Name) == 0 {
				request.Name = []string{""} // which is refused by its name
			}
			wait := forever
			if request.Wait != nil {
				wait = *request.Wait
			}
			o := &hold{handler: h, out: newEvents(w), began: h.clock.Now(), names: request.Name,
				attacher: zamokpb.Attacher{Secret: newSecret(),
					Settings: settings(request.TTL, request.LockDelay, request.Label, "")},
				acquire: &zamokpb.Acquire{
					Ticket: ownTicket, Wait: int64(wait), MaxHold: request.MaxHold.Nanoseconds(),
					Owner: request.Owner,
					Meta:  []byte(request.Meta), Positions: true,
				}}
			for _, name := range request.Name {
				o.acquire.Items = append(o.acquire.Items,
					view.Item{Name: name, Mode: request.Mode, Permits: request.Permits,
						Of: request.Of}.Wire())
			}
			return o.out.end(o.run(forCluster(r.Context(), request.Cluster)))
		},
	}
}

// hold is a session that this node keeps alive for a connection. It is a client of the gRPC
// protocol, which attaches its session to the next leader when the stream breaks.
type hold struct {
	*handler
	out      *events
	names    []string
	attacher zamokpb.Attacher
	acquire  *zamokpb.Acquire

	began   clock.Instant
	lease   *clock.LocalDeadline // of the session
	ttl     time.Duration
	notice  view.Duration
	ended   bool // the session has ended
	final   bool // what ended the stream was its answer, or that of the client
	granted bool

	holdUntil clock.Time // when the maximum hold ends; 0: never
}

// openWait is how long a stream may take to open the session; more than the server takes.
const openWait = 15 * clock.Second

// lastTry is what must be left of a lease for one more stream: more than retryEvery. A hold says
// that it is lost by so much early, and not late.
const lastTry = 2 * clock.Span(retryEvery)

// heartbeatEvery is how often a session is renewed, or each third of its ttl if that is shorter.
const heartbeatEvery = 5 * time.Second

type queued struct {
	Ahead    uint32         `json:"ahead" doc:"how many other waiters are ahead in the queue"`
	Name     string         `json:"name" doc:"the lock that it waits for first"`
	Blockers []view.Blocker `json:"blockers,omitempty"`
}

type granted struct {
	Name    []string      `json:"name"`
	Cluster string        `json:"cluster" doc:"the id of the cluster"`
	Token   view.Number   `json:"token" doc:"the fencing token"`
	Session view.Number   `json:"session"`
	TTL     view.Duration `json:"ttl"`
	TTLMin  view.Duration `json:"ttl_min,omitempty" doc:"a notice, if ttl is shorter: most failovers end the session; use one and a half times this"`

	heartbeat
}

type heartbeat struct {
	ValidFor view.Duration `json:"valid_for" doc:"how long the lock was certain when this was sent"`
}

type lost struct {
	Reason string `json:"reason" doc:"expired, expired_by_operator, force_released, max_hold_exceeded, restored; session_ended: no leader was there to say why; unconfirmed: no leader has confirmed the session in time; node_stopping: the ttl ends it"`
	Text   string `json:"text,omitempty" doc:"the reason that an operator gave"`
}

// errSendAgain ends a stream whose Acquire met the end of leadership: the next one sends it again.
var errSendAgain = errors.New("the acquisition is requested again")

// errOver ends a hold after its last event.
var errOver = errors.New("the last event has been sent")

// run holds the lock until the connection or the lock ends.
func (o *hold) run(ctx context.Context) error {
	defer func() {
		if o.attacher.Session != 0 && !o.ended {
			// if that fails, its ttl ends it
			_ = o.closeLater(ctx, o.attacher.Session, o.attacher.Secret)
		}
	}()
	for {
		err := o.stream(ctx)
		switch {
		case errors.Is(err, errOver):
			return nil
		case ctx.Err() != nil || o.final:
			return err
		case o.attacher.Session == 0:
			if !isTransient(err) || o.clock.Now().Since(o.began).Duration() > retryFor {
				return err
			}
		case isCode(err, zamokpb.Code_CODE_NO_SESSION): // it ended between two streams
			o.ended = true
			return o.over("session_ended", sessionEnded(infoOf(err).Reason))
		case o.left() <= lastTry:
			return o.over("unconfirmed", wire.Errorf(zamokpb.Code_CODE_UNKNOWN,
				"not acquired: no leader has confirmed the session for %v; it is closed as soon "+
					"as there is one", o.ttl))
		}
		if !o.waitToRetry(ctx) && ctx.Err() == nil {
			return o.over("node_stopping", err)
		}
	}
}

// over ends a hold for a reason that is not the session's: a lock that is held is lost, and one
// that is not was refused.
func (o *hold) over(reason string, refusal error) error {
	if !o.granted {
		return refusal
	}
	if err := o.lost(reason, ""); !errors.Is(err, errOver) {
		return err
	}
	return nil
}

func (o *hold) heartbeat() heartbeat {
	left := o.left()
	if o.holdUntil != 0 {
		end, _ := o.lease.Local(o.holdUntil)
		left = min(left, o.clock.Now().Until(end))
	}
	return heartbeat{view.Duration(max(left, 0).Duration().Truncate(time.Millisecond))}
}

// left is for how long the session is certainly alive, or may take to open.
func (o *hold) left() clock.Span {
	if o.attacher.Session == 0 {
		return openWait
	}
	until, _ := o.lease.Until() // SessionState was a confirmation
	return o.clock.Now().Until(until)
}

func (o *hold) lost(reason, text string) error {
	if err := o.out.send("lost", "", lost{reason, text}); err != nil {
		return err
	}
	return errOver
}

// sent is this node's clock for the wire, confirm what returns of it.
func (o *hold) sent() []byte {
	mono, raw := o.clock.Now().Encode()
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, mono), raw)
}

func (o *hold) confirm(sent []byte, at int64) {
	if len(sent) == 16 {
		instant := clock.DecodeInstant(binary.BigEndian.Uint64(sent),
			binary.BigEndian.Uint64(sent[8:]))
		o.lease.Confirm(clock.Confirmation{Sent: instant, At: clock.Time(at)})
	}
}

// stream serves one stream of the session until it ends.
func (o *hold) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// interrupts a Send as well, which may take as long as an unreachable leader
	expired := time.AfterFunc(o.left().Timer(), cancel)
	defer expired.Stop()
	stream, err := newPipe[*zamokpb.ClientFrame, *zamokpb.ServerFrame](ctx, o.handler,
		zamokpb.Zamok_Session_FullMethodName)
	if err != nil {
		return err
	}
	send := func(m *zamokpb.ClientMessage) { stream.send(o.attacher.Frame(o.sent(), m)) }
	stream.send(o.attacher.Open(o.sent()))
	renew := time.NewTicker(min(time.Duration(o.attacher.Settings.Ttl)/3, heartbeatEvery))
	defer renew.Stop()
	for {
		select {
		case frame := <-stream.in:
			for _, m := range frame.Messages {
				if err := o.receive(m, send); err != nil {
					o.final = !errors.Is(err, errSendAgain)
					return err
				}
			}
			if o.attacher.Session != 0 {
				expired.Reset(o.left().Timer())
			}
		case <-renew.C:
			send((&zamokpb.KeepAlive{}).Message())
		case <-ctx.Done():
			// or it has ended
			return wire.Errorf(zamokpb.Code_CODE_UNKNOWN,
				"not acquired: no session was opened in time")
		case <-stream.ended:
			return stream.err
		}
	}
}

// receive passes on what a message says.
func (o *hold) receive(message *zamokpb.ServerMessage, send func(*zamokpb.ClientMessage)) error {
	switch m := message.Message.(type) {
	case *zamokpb.ServerMessage_Session:
		opened := o.attacher.Session != 0
		state := o.attacher.Attached(message)
		if !opened {
			o.ttl, o.lease = time.Duration(state.Ttl), clock.NewLocalDeadline(clock.Span(state.Ttl))
			o.notice = noticeOf(state.Ttl, state.TtlMin)
		}
		o.confirm(state.Sent, state.Time)
		for _, t := range state.Tickets {
			if t.Ticket == ownTicket {
				return o.update(t, "", true)
			}
		}
		send(o.acquire.Message()) // the first time, or it did not arrive
	case *zamokpb.ServerMessage_Change:
		return o.update(m.Change.State, m.Change.Text, false)
	case *zamokpb.ServerMessage_Answer:
		if e := m.Answer.Error; e != nil && e.Code != zamokpb.Code_CODE_OK {
			err := &wire.Error{Info: e}
			if isTransient(err) {
				return fmt.Errorf("%w: %w", errSendAgain, err)
			}
			return err
		}
		return o.update(m.Answer.State, "", false)
	case *zamokpb.ServerMessage_Position:
		return o.out.send("queued", "",
			queued{m.Position.Ahead, m.Position.Name,
				wire.Each(m.Position.Blockers, view.NewBlocker)})
	case *zamokpb.ServerMessage_KeepAliveAck:
		if o.confirm(m.KeepAliveAck.Sent, m.KeepAliveAck.Time); !o.granted {
			return o.waits()
		}
		return o.out.send("heartbeat", "", o.heartbeat())
	case *zamokpb.ServerMessage_SessionEnded:
		o.ended = true
		if o.granted {
			return o.lost(wire.JSONName(m.SessionEnded.Reason), m.SessionEnded.Text)
		}
		return sessionEnded(m.SessionEnded.Reason)
	}
	return nil
}

// waits keeps the connection of a waiting acquisition busy.
func (o *hold) waits() error {
	if !o.out.begun {
		return nil // the first answer has a status
	}
	return o.out.comment()
}

// update passes on the state of the ticket. Attached: it is that of a new stream, so no Answer
// follows.
func (o *hold) update(t *zamokpb.TicketState, text string, attached bool) error {
	switch {
	case t.GetState() == zamokpb.State_STATE_GRANTED && !o.granted:
		o.granted, o.holdUntil = true, clock.Time(t.HoldUntil)
		return o.out.send("granted", "",
			granted{o.names, o.config.Gate.Cluster(), view.Number(t.Token),
				view.Number(o.attacher.Session), view.Duration(o.ttl), o.notice, o.heartbeat()})
	case t.GetState() != zamokpb.State_STATE_ENDED:
		return nil
	case o.granted:
		return o.lost(wire.JSONName(t.Reason), text)
	case attached || t.Reason == zamokpb.Reason_REASON_WAIT_TIMEOUT:
		e := wire.Errorf(zamokpb.Code_CODE_NOT_ACQUIRED, "not acquired: %s",
			wire.JSONName(t.Reason))
		e.Info.Reason = t.Reason
		return e
	}
	return nil // the Answer has the details
}

func sessionEnded(reason zamokpb.Reason) error {
	e := wire.Errorf(zamokpb.Code_CODE_NO_SESSION, "not acquired: the session ended meanwhile")
	e.Info.Reason = reason
	return e
}

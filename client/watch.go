package client

import (
	"context"
	"iter"
	"time"
	"unicode/utf8"

	"zamok/api/zamokpb"
)

// EventKind is the kind of an Event.
type EventKind uint8

const (
	EventGranted EventKind = 1 + iota
	EventRefused
	EventLost
	EventReleased
	EventDowngraded
	EventEnded     // a session is over
	EventCancelled // a wait was given up by its client: it was never granted
)

func (h EventKind) String() string {
	if h > EventCancelled { // of a newer server
		h = 0
	}
	return [...]string{"unknown", "granted", "refused", "lost", "released", "downgraded", "ended", "cancelled"}[h]
}

// Event is something that happened to one acquisition, or the end of a session: that has no ticket, token or
// items, and follows the events of the acquisitions that end with it.
type Event struct {
	Index           uint64
	Kind            EventKind
	Session, Ticket uint64
	Token           Token
	Reason          string // how it ended: "dropped", "expired", "evicted", …
	Text            string // an operator's reason
	Label           string // of the session, with EventEnded
	Items           []Item
}

// EventBatch is all that happened at one index. The first of a watch has no events, and says where it begins; later ones
// without events say how far it has come.
type EventBatch struct {
	Index  uint64
	Events []Event
}

// Watch reports what happens to locks whose names begin with prefix, after the index from; 0 = from now on. With an
// empty prefix it also reports the ends of sessions.
// It goes over to another node by itself when one fails, leaves nothing out and repeats nothing. It ends
// with an error: ErrCompacted when no node that answers remembers what comes next (then List, and watch from
// its stamp), ErrInvalid when the cluster has not reached from, that of ctx, or a refusal; and without one when the loop is left.
func (c *Client) Watch(ctx context.Context, prefix string, from uint64) iter.Seq2[EventBatch, error] {
	return func(yield func(EventBatch, error) bool) {
		if !utf8.ValidString(prefix) {
			yield(EventBatch{}, invalid("prefix", "is not UTF-8"))
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var between pause
		begun, left := false, false // left: the loop was left
		var compacted error         // what a node said that does not remember what comes next; nil = none since the last frame
		follow := func(one *node) error {
			ctx, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			first := time.AfterFunc(patienceMax, func() { cancel(errNoAnswer) })
			defer first.Stop()
			stream, err := one.Watch(ctx, &zamokpb.WatchRequest{Prefix: prefix, From: from})
			for err == nil && !left {
				var frame *zamokpb.WatchFrame
				if frame, err = stream.Recv(); err != nil {
					break
				}
				first.Stop()
				between, compacted = pause{}, nil
				for _, batch := range batches(frame) {
					if (!begun || batch.Index > from) && !left {
						begun, from = true, batch.Index
						left = !yield(batch, nil)
					}
				}
			}
			if info := infoOf(err); info.GetCode() == zamokpb.Code_CODE_COMPACTED {
				compacted = definite(info)
			}
			return err
		}
		for {
			compacted = nil
			err := c.ask(ctx, anyNode, follow)
			switch {
			case left:
				return
			case ctx.Err() != nil:
				yield(EventBatch{}, contextEnd(ctx))
				return
			case err == errNotAnswered && compacted != nil:
				yield(EventBatch{}, compacted)
				return
			case err != errNotAnswered:
				yield(EventBatch{}, err)
				return
			}
			between.wait(ctx)
		}
	}
}

// batches are the events of a frame by their index; one without events, if the frame has none.
func batches(frame *zamokpb.WatchFrame) (all []EventBatch) {
	for _, e := range frame.GetEvents() {
		index := e.GetIndex()
		if len(all) == 0 || all[len(all)-1].Index != index {
			all = append(all, EventBatch{Index: index})
		}
		last := &all[len(all)-1]
		last.Events = append(last.Events, Event{Index: index, Kind: EventKind(e.GetKind()), Session: e.GetSession(), Ticket: e.GetTicket(),
			Token: Token(e.GetToken()), Reason: reasonText(e.GetReason()), Text: e.GetText(),
			Label: e.GetLabel(), Items: each(e.GetItems(), itemInfo)})
	}
	if len(all) == 0 {
		all = []EventBatch{{Index: frame.GetIndex()}}
	}
	return all
}

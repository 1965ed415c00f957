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
	EventEnded     // a session has ended
	EventCancelled // its client gave up the wait: it was never granted
)

func (h EventKind) String() string {
	if h > EventCancelled { // a newer server
		h = 0
	}
	return [...]string{"unknown", "granted", "refused", "lost", "released", "downgraded", "ended",
		"cancelled"}[h]
}

// Event is something that happened to one acquisition, or the end of a session. The end of a
// session has no ticket, token or items, and follows the events of the acquisitions that end with
// it.
type Event struct {
	Index           uint64
	Kind            EventKind
	Session, Ticket uint64
	Token           Token
	Reason          string // how it ended: "dropped", "expired", "expired_by_operator", …
	Text            string // an operator's reason
	Label           string // of the session, with EventEnded
	Items           []Item
}

// EventBatch has everything that happened at one index. The first batch of a watch has no events,
// and says where the watch begins. Later ones without events say how far it has come.
type EventBatch struct {
	Index  uint64
	Events []Event
}

// Watch yields what happens to locks whose names begin with prefix, after the index from; 0 = from
// now on. With an empty prefix it also yields the ends of sessions. When a node fails, it continues
// at another one, leaves nothing out and repeats nothing.
//
// It ends with one of these errors, or without an error when the loop is left. ErrCompacted: no
// node that answers remembers what comes next; call List, and watch from its stamp. ErrInvalid: the
// cluster has not reached from yet. The error of ctx, or another permanent error.
func (c *Client) Watch(ctx context.Context, prefix string,
	from uint64) iter.Seq2[EventBatch, error] {
	return func(yield func(EventBatch, error) bool) {
		if !utf8.ValidString(prefix) {
			yield(EventBatch{}, invalid("prefix", "is not UTF-8"))
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var retry backoff
		begun, left := false, false // left: the caller has left the loop
		var compacted error         // of a node since the last frame; nil = none
		follow := func(one *node) error {
			ctx, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			first := time.AfterFunc(attemptTimeoutMax, func() { cancel(errNoAnswer) })
			defer first.Stop()
			stream, err := one.Watch(ctx, &zamokpb.WatchRequest{Prefix: prefix, From: from})
			for err == nil && !left {
				var frame *zamokpb.WatchFrame
				if frame, err = stream.Recv(); err != nil {
					break
				}
				first.Stop()
				retry, compacted = backoff{}, nil
				for _, batch := range batches(frame) {
					if (!begun || batch.Index > from) && !left {
						begun, from = true, batch.Index
						left = !yield(batch, nil)
					}
				}
			}
			if info := infoOf(err); info.GetCode() == zamokpb.Code_CODE_COMPACTED {
				compacted = errorOf(info)
			}
			return err
		}
		for {
			compacted = nil
			err := c.tryNodes(ctx, anyNode, follow)
			switch {
			case left:
				return
			case ctx.Err() != nil:
				yield(EventBatch{}, contextEnd(ctx))
				return
			case err == errRoundFailed && compacted != nil:
				yield(EventBatch{}, compacted)
				return
			case err != errRoundFailed:
				yield(EventBatch{}, err)
				return
			}
			retry.wait(ctx)
		}
	}
}

// batches groups the events of a frame by their index. A frame without events gives one batch
// without events.
func batches(frame *zamokpb.WatchFrame) (all []EventBatch) {
	for _, e := range frame.GetEvents() {
		index := e.GetIndex()
		if len(all) == 0 || all[len(all)-1].Index != index {
			all = append(all, EventBatch{Index: index})
		}
		last := &all[len(all)-1]
		last.Events = append(last.Events,
			Event{Index: index, Kind: EventKind(e.GetKind()), Session: e.GetSession(),
				Ticket: e.GetTicket(),
				Token:  Token(e.GetToken()), Reason: reasonName(e.GetReason()), Text: e.GetText(),
				Label: e.GetLabel(), Items: each(e.GetItems(), itemInfo)})
	}
	if len(all) == 0 {
		all = []EventBatch{{Index: frame.GetIndex()}}
	}
	return all
}

package client

import (
	"context"
	"errors"
	"iter"
)

// Election elects one of many candidates at a time: the holder of its lock is the leader.
type Election struct {
	c    *Client
	name string
}

// Election returns the election of this name. It sends nothing.
func (c *Client) Election(name string) *Election { return &Election{c: c, name: name} }

// Leader is the elected candidate. Value is what it campaigned with. The token rises from leader to
// leader.
type Leader struct {
	Value           []byte
	Token           Token
	Session, Ticket uint64
}

// Campaign waits until this candidate is elected. It stays elected until the lock is lost or
// unlocked.
func (e *Election) Campaign(ctx context.Context, value []byte, opts ...Option) (*Lock, error) {
	return e.c.Lock(ctx, e.name, append(opts, WithMeta(value))...)
}

// Leader reads the elected candidate; ok is false while there is none.
func (e *Election) Leader(ctx context.Context) (leader Leader, ok bool, err error) {
	leader, _, err = e.leader(ctx)
	return leader, leader.Token != 0, err
}

func (e *Election) leader(ctx context.Context) (Leader, Stamp, error) {
	info, err := e.c.Get(ctx, e.name, 1)
	if err != nil {
		return Leader{}, Stamp{}, err
	}
	for _, t := range info.Held {
		return Leader{Value: t.Meta, Token: t.Token, Session: t.Session,
			Ticket: t.Ticket}, info.Stamp, nil
	}
	return Leader{}, info.Stamp, nil
}

// Observe yields the leader, now and whenever it changes; a Leader without a token means that there
// is none. A leader that came and went between two reads may be left out. Observe ends as Watch
// does.
func (e *Election) Observe(ctx context.Context) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		last, at := Leader{}, Stamp{}
		look := func(first bool) (on bool) { // yields the leader if it has changed
			now, stamp, err := e.leader(ctx)
			changed := first || err != nil || now.Token != last.Token || now.Session != last.Session
			last, at = now, stamp
			return (!changed || yield(now, err)) && err == nil
		}
		for first := true; look(first); first = false {
			for batch, err := range e.c.Watch(ctx, e.name, at.Index) {
				switch {
				case errors.Is(err, ErrCompacted): // read again, and watch from there
				case err != nil:
					yield(Leader{}, err)
					return
				case len(batch.Events) > 0 && !look(false):
					return
				}
			}
		}
	}
}

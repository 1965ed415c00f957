package client

import (
	"context"
	"errors"
	"iter"
)

// Election is one epoch and many candidates: the holder of its lock is elected.
type Election struct {
	c    *Client
	name string
}

// Election names an election. It does nothing yet.
func (c *Client) Election(name string) *Election { return &Election{c: c, name: name} }

// Leader is who is elected. Value is what it campaigned with. Its token rises from leader to leader.
type Leader struct {
	Value           []byte
	Token           Token
	Session, Ticket uint64
}

// Campaign waits until this candidate is elected. It stays so until the lock is lost or unlocked.
func (e *Election) Campaign(ctx context.Context, value []byte, opts ...Option) (*Lock, error) {
	return e.c.Lock(ctx, e.name, append(opts, WithMetadata(value))...)
}

// Leader asks who is elected; ok is false while there is no leader.
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
		return Leader{Value: t.Metadata, Token: t.Token, Session: t.Session, Ticket: t.Ticket}, info.Stamp, nil
	}
	return Leader{}, info.Stamp, nil
}

// Observe reports the elected leader, now and whenever that changes; a Leader without a token: there is none. A leader
// that came and went between two reports may be left out. It ends as Watch does.
func (e *Election) Observe(ctx context.Context) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		last, first := Leader{}, true
		tell := func() (at Stamp, on bool) {
			now, at, err := e.leader(ctx)
			if err != nil {
				yield(Leader{}, err)
				return at, false
			}
			if first || now.Token != last.Token || now.Session != last.Session {
				last, first = now, false
				return at, yield(now, nil)
			}
			return at, true
		}
		for {
			at, on := tell()
			if !on {
				return
			}
			for m, err := range e.c.Watch(ctx, e.name, at.Index) {
				if errors.Is(err, ErrCompacted) {
					break // look again, and watch from there
				}
				if err != nil {
					yield(Leader{}, err)
					return
				}
				if len(m.Events) > 0 {
					if _, on := tell(); !on {
						return
					}
				}
			}
		}
	}
}

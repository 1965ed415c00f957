package wire

import (
	"crypto/sha256"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// Hash is what the cluster knows of a secret.
func Hash(secret []byte) session.Hash { return sha256.Sum256(secret) }

// OpenCommand converts settings that were admitted.
func OpenCommand(secret session.Hash, identity string,
	p *zamokpb.SessionSettings) *fsm.OpenSession {
	return &fsm.OpenSession{Secret: secret, Settings: session.Settings{
		Identity: identity, Label: p.Label, Meta: string(p.Meta), TTL: clock.Span(p.Ttl),
		LockDelay: clock.Span(p.LockDelay), ReleaseOnDisconnect: clock.Span(p.ReleaseOnDisconnect),
	}}
}

// AcquireCommand converts an acquisition that was admitted; one of a single lock in one piece of
// memory.
func AcquireCommand(id session.ID, ackedThrough uint64, p *zamokpb.Acquire) *fsm.Acquire {
	a := new(struct {
		fsm.Acquire
		one [1]fsm.Item
	})
	a.Acquire = fsm.Acquire{
		Session: id, Ticket: p.GetTicket(), AckedThrough: ackedThrough,
		Wait: clock.Span(p.GetWait()), MaxHold: clock.Span(p.GetMaxHold()),
		Owner: p.GetOwner(), Meta: string(p.GetMeta()), Items: a.one[:0],
	}
	for _, it := range p.GetItems() {
		a.Items = append(a.Items,
			fsm.Item{Name: it.Name, Mode: fsm.Mode(it.Mode), Permits: it.Permits, Of: it.Of})
	}
	return &a.Acquire
}

package client

import (
	"context"

	"zamok/api/zamokpb"
	"zamok/client/call"
)

// Token is the number of a grant. Storage that rejects a token lower than the highest that it has
// seen is safe from a process that lost an exclusive lock without noticing: see package fence.
type Token uint64

// Grant identifies a grant for Check. For an exclusive lock the token is enough. Grants of shared
// locks and permits may have the same token, so Check needs the session and the ticket, too.
type Grant struct {
	Name            string
	Token           Token
	Session, Ticket uint64
}

// Grant returns the grant of the handle.
func (l *Lock) Grant() Grant {
	return Grant{Name: l.Name(), Token: l.Token(), Session: l.Session(), Ticket: l.Ticket()}
}

// Check reads whether a grant is held. True was true at a moment between the call and its answer.
func (c *Client) Check(ctx context.Context, g Grant) (held bool, at Stamp, err error) {
	r, _, err := call.Leader(ctx, c.Calls(), call.Reads, call.Node.Check, &zamokpb.CheckRequest{
		Name: g.Name, Token: uint64(g.Token), Session: g.Session, Ticket: g.Ticket})
	return r.GetHeld(), stamp(r.GetStamp()), err
}

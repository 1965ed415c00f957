package gate

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
	"zamok/session"
)

// own refuses a request about a session that its caller does not own. The commands of a session
// carry neither the secret nor the identity: neither ever changes.
func (g *Gate) own(ctx context.Context, c Caller, d *Request, request proto.Message) error {
	if d.session == nil {
		return nil
	}
	id, secret := d.session(request)
	if id == 0 && d.adds != nil {
		return nil // it opens one
	}
	for behind := true; ; behind = false {
		var code fsm.Code
		var ended fsm.EndedSession
		g.node.View(func(m *fsm.Machine) {
			if _, code = Ownership(m, c, id, secret); code == fsm.NoSession {
				ended, _ = m.EndedSession(wire.Hash(secret))
			}
		})
		if ended.ID != session.ID(id) || !c.MayUse(ended.Identity) {
			ended = fsm.EndedSession{}
		}
		switch {
		case code == fsm.OK, d.repeats && ended.Reason == fsm.Closed:
			return nil
		case code == fsm.NoSession && behind:
			// This node may be behind: then it must not deny that there is such a session. And a
			// session that will be opened has an id which others could guess.
			if _, _, err := g.node.ReadBarrier(ctx); err != nil {
				return wire.Explain(err)
			}
			continue
		}
		e := wire.FromResult(&fsm.Result{Code: code})
		if code == fsm.NoSession {
			e.Info.Reason = zamokpb.Reason(ended.Reason)
		} else {
			e.Info.Message = fmt.Sprintf(
				"the secret or the identity is not that of session %d; nothing was done", id)
		}
		return e
	}
}

// Ownership returns a session, and OK if the caller owns it: it knows the secret, and the session
// was opened with its identity.
func Ownership(m *fsm.Machine, c Caller, id uint64,
	secret []byte) (s session.Session, code fsm.Code) {
	living, found := m.Session(session.ID(id))
	switch {
	case !found:
		code = fsm.NoSession
	case living.Secret != wire.Hash(secret), !c.MayUse(living.Identity):
		code = fsm.WrongSecret
	}
	return living, code
}

package admin

import (
	"context"
	"time"

	"zamok/api/zamokpb"
	"zamok/client"
	"zamok/client/call"
)

// SessionInfo is a session.
type SessionInfo struct {
	Session         uint64
	TTL             time.Duration
	Label, Identity string
	Meta            []byte
	LockDelay       time.Duration
	LeaseUntil      time.Duration // cluster time at which it ends if it is not renewed
	Reserved        bool          // it has never had a stream
	Opened          time.Duration // cluster time
	Tickets         int           // acquisitions that wait or hold
}

func sessionInfo(i *zamokpb.SessionInfo) SessionInfo {
	settings := i.GetSettings()
	return SessionInfo{
		Session: i.GetSession(), TTL: time.Duration(settings.GetTtl()), Label: settings.GetLabel(),
		Meta: settings.GetMeta(), LockDelay: time.Duration(settings.GetLockDelay()),
		Identity: i.GetIdentity(), LeaseUntil: time.Duration(i.GetLeaseUntil()),
		Reserved: i.GetReserved(), Opened: time.Duration(i.GetOpened()),
		Tickets: int(i.GetTickets()),
	}
}

// Sessions lists living sessions with ids above after, in order: at most limit, or 1000 if that is
// 0. It makes several calls if needed, since answers are short if sessions have much metadata. The
// stamp is that of the first.
func (a *Admin) Sessions(ctx context.Context, after uint64, limit int) (
	list []SessionInfo, at client.Stamp, err error) {
	found, stamp, err := call.Sessions(ctx, a.calls, after, limit)
	for _, i := range found {
		list = append(list, sessionInfo(i))
	}
	return list, stampOf(stamp), err
}

// TicketRef identifies an acquisition.
type TicketRef struct{ Session, Ticket uint64 }

// ForceRelease ends the grants of a lock whose tokens are at most the one given, which is what the
// operator saw. It does not touch newer grants, so it may be repeated. If there is no such grant,
// but an earlier attempt of this call may have ended one, it returns an error with the outcome
// Unknown.
func (a *Admin) ForceRelease(ctx context.Context, name string, token client.Token, reason string) (
	ended []TicketRef, err error) {
	request := &zamokpb.ForceReleaseRequest{Name: name, Token: uint64(token), Reason: reason}
	r, inDoubt, err := call.Leader(ctx, a.calls, call.Repeats, call.Node.ForceRelease, request)
	if inDoubt && err == nil && len(r.GetEnded()) == 0 {
		err = &client.Error{Kind: client.ErrUnavailable, Outcome: client.Unknown,
			Message: "nothing holds it now; an attempt whose answer did not come may have ended " +
				"what did"}
	}
	for _, t := range r.GetEnded() {
		ended = append(ended, TicketRef{t.GetSession(), t.GetTicket()})
	}
	return ended, err
}

// ExpireSession ends a session as if its lease had run out. If the session has ended, but an
// earlier attempt of this call may have ended it, the error is ErrSessionExpired with the outcome
// Unknown.
func (a *Admin) ExpireSession(ctx context.Context, session uint64, reason string) error {
	request := &zamokpb.ExpireSessionRequest{Session: session, Reason: reason}
	_, _, err := call.Leader(ctx, a.calls, call.Repeats, call.Node.ExpireSession, request)
	return err
}

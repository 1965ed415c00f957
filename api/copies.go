package api

import (
	"context"
	"errors"
	"slices"
	"sync"

	"zamok/api/access"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

// isCopy reports whether a call is a copy of one that was done or is under way. Only the owner of a session learns that of its
// tickets.
func (s *Server) isCopy(ctx context.Context, request any) bool {
	switch r := request.(type) {
	case *zamokpb.OpenSessionRequest:
		return s.knowsSecret(r.Secret)
	case *zamokpb.OpenStream:
		return r.Session == 0 && s.knowsSecret(r.Secret)
	case *zamokpb.AcquireRequest:
		if r.Session == 0 {
			return s.knowsSecret(r.Secret)
		}
		_, code := s.ownership(ctx, r.Session, r.Secret)
		return code == fsm.OK && s.knowsTicket(fsm.TicketRef{Session: session.ID(r.Session), Ticket: r.Acquire.GetTicket()})
	}
	return false
}

// knowsSecret reports whether a session was opened with a secret, or this node has proposed that.
func (s *Server) knowsSecret(secret []byte) bool { return s.knowsOpening(access.Hash(secret)) }

func (s *Server) knowsOpening(secret session.Hash) (known bool) {
	if s.openings.has(secret) {
		return true
	}
	s.node.View(func(m *fsm.Machine) { _, known = m.SessionBySecret(secret) })
	return known
}

// knowsTicket reports whether a ticket was requested, or this node has proposed that.
func (s *Server) knowsTicket(ref fsm.TicketRef) bool {
	return s.doubts(ref.Session, ref.Ticket)[0] != ""
}

// doubts returns for each ticket of a session why it may be granted, or was, although a request for it is refused before the log:
// that of a copy. It is "" for a ticket that has no other request.
func (s *Server) doubts(id session.ID, tickets ...uint64) []string {
	doubts := make([]string, len(tickets))
	for i, ticket := range tickets {
		if s.acquisitions.has(fsm.TicketRef{Session: id, Ticket: ticket}) {
			doubts[i] = "another request for this ticket is being carried out"
		}
	}
	if slices.Contains(doubts, "") {
		s.node.View(func(m *fsm.Machine) { // after that: a command that was answered in between is applied
			for i, ticket := range tickets {
				if _, known := m.Ticket(fsm.TicketRef{Session: id, Ticket: ticket}); known && doubts[i] == "" {
					doubts[i] = "an earlier request for this ticket took effect"
				}
			}
		})
	}
	return doubts
}

// underWay counts the commands that were submitted and have no answer yet, by what their copies have in common. A command that was
// in the log when its leadership was lost counts on until this node leads again: the next leader may carry it out, and this node
// can't know that before. There are at most as many of them as are in flight at once.
type underWay[Key comparable] struct {
	mu       sync.Mutex
	commands map[Key]int
	unknown  map[Key]struct{} // of earlier epochs of this node
}

func (u *underWay[Key]) has(key Key) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, unknown := u.unknown[key]
	return unknown || u.commands[key] > 0
}

// until counts a command until it is answered.
func (u *underWay[Key]) until(done raftnode.Done, key Key) raftnode.Done {
	u.add(key, 1)
	return func(a raftnode.Answer, err error) {
		if errors.Is(err, raftnode.ErrUnknown) {
			u.lose(key)
		}
		u.add(key, -1)
		done(a, err)
	}
}

// lose notes a command whose outcome this node does not know.
func (u *underWay[Key]) lose(key Key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.unknown == nil {
		u.unknown = make(map[Key]struct{})
	}
	u.unknown[key] = struct{}{}
}

// SetLeading is called when this node begins and ends to lead. When it begins, the state machine has what became of the commands
// of earlier epochs.
func (u *underWay[Key]) SetLeading(leading bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if leading {
		u.unknown = nil
	}
}

func (u *underWay[Key]) add(key Key, n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.commands == nil {
		u.commands = make(map[Key]int)
	}
	if u.commands[key] += n; u.commands[key] == 0 {
		delete(u.commands, key)
	}
}

// proposeCounted is propose for a command that may have copies. Until it is answered, even if ctx ends before, they are recognized
// by the key. It also reports whether this one is a copy of a command that has been under way with it.
func proposeCounted[Key comparable](ctx context.Context, s *Server, counts *underWay[Key], key Key, command fsm.Command,
) (a raftnode.Answer, copied bool, err error) {
	copied = counts.has(key)
	a, err = s.proposeAs(ctx, command, func(done raftnode.Done) { s.node.Submit(ctx, command, counts.until(done, key)) })
	return a, copied, err
}

// proposeOpening is propose for a command that opens a session.
func (s *Server) proposeOpening(ctx context.Context, command *fsm.OpenSession) (raftnode.Answer, error) {
	a, copied, err := proposeCounted(ctx, s, &s.openings, command.Secret, command)
	if err != nil && (copied || s.knowsOpening(command.Secret)) {
		err = inDoubt(err, "another request has opened a session with this secret, or may")
	}
	return a, err
}

// proposeAcquire is propose for a call's acquisition.
func (s *Server) proposeAcquire(ctx context.Context, command *fsm.Acquire) (raftnode.Answer, error) {
	ref := fsm.TicketRef{Session: command.Session, Ticket: command.Ticket}
	a, copied, err := proposeCounted(ctx, s, &s.acquisitions, ref, command)
	switch {
	case err == nil || a.Result.Code != fsm.OK: // the state machine's refusals are answers to all copies
	case copied:
		err = inDoubt(err, "another call has requested this ticket and may get it")
	default:
		err = s.refusedCopy(err, ref)
	}
	return a, err
}

// refusedCopy is the refusal of an acquisition before the log, which may be a copy of another request.
func (s *Server) refusedCopy(err error, ref fsm.TicketRef) *wire.Error {
	return inDoubt(err, s.doubts(ref.Session, ref.Ticket)[0])
}

// inDoubt is a refusal before the log. Its request was not done, but unless other is "", a copy may be done: other says why.
func inDoubt(err error, other string) *wire.Error {
	e := wire.Explain(err)
	if e.Info.Outcome == zamokpb.Outcome_OUTCOME_NOT_DONE && other != "" {
		e.Info.Outcome = zamokpb.Outcome_OUTCOME_UNKNOWN
		e.Info.Message = other + "; of this one: " + e.Info.Message
	}
	return e
}

// notPassedOn is about an acquisition that this node does not relay, or does not take from a node that does: only the leader knows
// the copies of other nodes, and only for a caller whom a node of the cluster has authenticated.
const notPassedOn = "an earlier request for this ticket, if there was one, may be done"

// refusedRelay is the refusal of a call because of its relay.
func refusedRelay(method string, err error) error {
	if method == zamokpb.Zamok_Acquire_FullMethodName {
		return inDoubt(err, notPassedOn)
	}
	return err
}

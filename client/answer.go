package client

import (
	"zamok/api/zamokpb"
)

// change applies a pushed change.
func (s *session) change(c *zamokpb.Change) {
	state := c.GetState()
	t := s.tickets[state.GetTicket()]
	if t == nil {
		if state.GetState() == zamokpb.State_STATE_GRANTED { // for a frame of an earlier stream that arrived late
			s.queueOut(s.releaseUnknown(state))
		}
		return
	}
	if c.GetDowngraded() && t.downgrade == asked {
		t.downgrade = downgraded
		t.notify()
	}
	if state.GetState() != zamokpb.State_STATE_ENDED {
		t.report(state)
		return
	}
	if t.state == ticketRequested && atOnce(state.GetReason()) {
		return // its answer follows, with the blockers
	}
	t.reportEnd(state.GetReason(), c.GetText())
}

// atOnce reports whether a ticket ended with its own Acquire.
func atOnce(reason zamokpb.Reason) bool {
	switch reason {
	case zamokpb.Reason_REASON_TRY_FAILED, zamokpb.Reason_REASON_DEADLOCKED, zamokpb.Reason_REASON_OWNER_BUSY,
		zamokpb.Reason_REASON_KIND_MISMATCH, zamokpb.Reason_REASON_TOO_MANY:
		return true
	}
	return false
}

// answer applies the answer to a command.
func (s *session) answer(a *zamokpb.Answer) {
	info, state := a.GetError(), a.GetState()
	final := definite(info)
	switch info.GetCode() {
	case zamokpb.Code_CODE_NO_SESSION:
		s.finish(endReported, final)
		return
	case zamokpb.Code_CODE_WRONG_SECRET:
		s.finish(abort, final)
		return
	}
	t := s.tickets[state.GetTicket()]
	if t == nil {
		return
	}
	isDowngrade := a.GetCommand() == zamokpb.Command_COMMAND_DOWNGRADE
	if isDowngrade && (final != nil || info.GetOutcome() == zamokpb.Outcome_OUTCOME_NOT_DONE) {
		t.downgrades--
	}
	switch {
	case info.GetCode() == zamokpb.Code_CODE_OK:
		if isDowngrade && t.downgrade == asked {
			t.downgrade = downgraded
		}
		if t.callerWaits() && t.request.onPosition != nil && state.GetState() == zamokpb.State_STATE_WAITING &&
			t.position == nil && len(t.items) == 1 { // of several, the answer does not name the lock
			t.position = &Position{Name: t.items[0].name, Ahead: int(a.GetAhead())}
		}
	case final == nil:
		s.retryLater(t)
		return
	case a.GetCommand() == zamokpb.Command_COMMAND_ACQUIRE:
		s.refused(t, info, final)
		return
	case isDowngrade:
		if t.downgrade == asked {
			if t.downgrades > 0 { // an earlier one, perhaps of another stream, was not answered
				final = withOutcome(final, Unknown)
			}
			t.downgrade, t.refusal = notAsked, final
		}
	case state.GetState() != zamokpb.State_STATE_ENDED: // a Drop must succeed: it is repeated as long as it fails
		s.c.log.Warn("zamok: releasing a lock failed; retrying", "ticket", t.number, "error", final)
		s.retryLater(t)
		return
	}
	t.report(state)
	t.notify()
}

// refused applies the refusal of an acquisition.
func (s *session) refused(t *ticket, info *zamokpb.ErrorInfo, final error) {
	switch info.GetCode() {
	case zamokpb.Code_CODE_TICKET_ENDED: // a repeated Acquire whose ticket has ended
		t.reportEnd(info.GetReason(), info.GetMessage())
		return
	case zamokpb.Code_CODE_NOT_ACQUIRED:
		if t.callerWaits() {
			final = &NotAcquiredError{Names: names(t.items), Holders: blockers(info.GetBlockers())}
		}
	}
	if t.token != 0 {
		return // a repeated Acquire was refused; the grant is valid, or is dropped if it was given up
	}
	if info.GetOutcome() == zamokpb.Outcome_OUTCOME_UNKNOWN {
		t.giveUp(t.unconfirmed(final))
		return
	}
	if t.callerWaits() {
		t.failure = final
	}
	t.reportEnd(info.GetReason(), "")
}

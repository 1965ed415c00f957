package client

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"zamok/api/zamokpb"
	"zamok/clock"
)

const (
	// window is how far above its acknowledged-through a session may number tickets. Others wait here.
	window = 1024
	// holdParts: a grant is handed over without asking for a new confirmation if that could prolong its hold by at most
	// 1/holdParts.
	holdParts = 10
)

// ticket is one acquisition. Its session's mutex guards it.
type ticket struct {
	s       *session
	request *request
	items   []Item
	place   *list.Element // in fresh, while it is not sent
	number  uint64        // 0 = not sent yet
	state   ticketState
	token   uint64 // once the cluster has granted it
	queued  bool   // in outgoing
	// unanswered are its Acquires that may take effect: were sent, and not refused as not done.
	unanswered int

	downgrade  downgrading
	downgrades int   // were sent for the latest Downgrade, and may take effect
	refusal    error // of the latest Downgrade

	holdUntil clock.Time    // of the cluster; 0 = no maximum
	holdEnd   clock.Instant // here
	grantedAt clock.Instant // when its grant came; only with a maximum hold
	unplaced  bool          // a confirmation is asked for, to compute holdEnd

	limited time.Duration // the pause after the latest refusal by a limit

	failure  error // why it was not granted, or was lost
	unlocked bool
	handle   *Lock // once there is one

	position *Position     // news for OnPosition
	changed  chan struct{} // closed at the next change; nil while nothing waits for one
}

// downgrading is how far a Downgrade is.
type downgrading uint8

const (
	notAsked downgrading = iota
	asked
	downgraded
)

// changes returns a channel that is closed at the next change of the ticket.
func (t *ticket) changes() <-chan struct{} {
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return t.changed
}

// notify wakes the calls that wait for a change of the ticket.
func (t *ticket) notify() {
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// ask puts a new ticket in line.
func (s *session) ask(r *request) *ticket {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &ticket{s: s, request: r, items: r.items, state: ticketUnsent}
	t.place = s.fresh.PushBack(t)
	if s.state.over() {
		t.endWithSession(context.Cause(s.ctx))
	}
	signal(s.wake)
	return t
}

// giveUp ends the ticket for its caller, with the error that a waiting call returns. A Drop is sent until the cluster
// reports the end (S4).
func (t *ticket) giveUp(failure error) {
	if t.callerWaits() {
		t.failure = failure
	}
	t.become(giveUp)
}

// queueOut queues a ticket that has something to send.
func (s *session) queueOut(t *ticket) {
	if t.queued || t.state.final() {
		return
	}
	t.queued = true
	s.outgoing = append(s.outgoing, t)
	signal(s.wake)
}

// retryLater queues a ticket again after a pause, together with those that are refused meanwhile. A ticket that a limit refused
// waits alone, for the time that the limit asks for, doubled each time, since many may wait for the same limit.
func (s *session) retryLater(t *ticket, info *zamokpb.ErrorInfo) {
	if wait := time.Duration(info.GetRetryAfter()); wait > 0 {
		t.limited = min(max(2*t.limited, wait, retryAfter), max(wait, limitedMax))
		link := s.link // the next stream sends it at once
		time.AfterFunc(t.limited+rand.N(t.limited), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.link == link {
				s.queueOut(t)
			}
		})
		if now := s.c.clock.Now(); s.limitLogged == (clock.Instant{}) || now.Since(s.limitLogged) > limitLogEvery {
			s.limitLogged = now
			s.c.log.Warn("zamok: a limit of the node delays acquisitions; retrying", "limit", info.GetField(),
				"message", info.GetMessage())
		}
		return
	}
	if s.retryQueue = append(s.retryQueue, t); len(s.retryQueue) > 1 {
		return
	}
	time.AfterFunc(retryAfter, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, t := range s.retryQueue {
			s.queueOut(t)
		}
		s.retryQueue = nil
	})
}

// report applies the state of a ticket in the cluster; text is an operator's reason for its end. A state behind the known
// one changes nothing (S3).
func (t *ticket) report(st *zamokpb.TicketState, text string) {
	t.s.settled(t.number)
	switch st.GetState() {
	case zamokpb.State_STATE_WAITING:
		t.become(reportWaiting)
	case zamokpb.State_STATE_GRANTED:
		if t.token == 0 {
			t.token = st.GetToken() // also of one that is being released: a repeated Acquire must not end it
		}
		if !t.become(reportGranted) {
			return
		}
		if t.holdUntil = clock.Time(st.GetHoldUntil()); t.holdUntil != 0 {
			t.grantedAt = t.s.c.clock.Now()
			t.s.holds[t] = struct{}{}
		}
	case zamokpb.State_STATE_ENDED:
		t.reportEnd(st.GetReason(), text)
	}
}

// reportEnd applies the end of a ticket in the cluster.
func (t *ticket) reportEnd(reason zamokpb.Reason, text string) {
	s := t.s
	delete(s.tickets, t.number)
	s.settled(t.number)
	if t.callerWaits() {
		t.failure = t.endFailure(reason, text)
	}
	t.end(reportEnded, reasonError(reason, text))
}

// end moves the ticket to its end, or towards it. If it was held, it is lost to its handle for a cause.
func (t *ticket) end(e ticketEvent, cause error) {
	wasHeld := t.state == ticketHeld
	t.become(e)
	if !wasHeld {
		return
	}
	outcome := Unknown
	if t.state == ticketEnded {
		outcome = Done
	}
	t.failure = &Error{Kind: ErrLost, Outcome: outcome, cause: cause}
	if t.handle.cancel != nil {
		t.handle.cancel(t.failure) // its callbacks run in goroutines of their own
	}
	t.notify()
}

// endFailure is why a call that waits for a ticket gets no lock.
func (t *ticket) endFailure(reason zamokpb.Reason, text string) error {
	if refusal, is := refusals[reason]; is {
		return refusal(t)
	}
	switch reason {
	case zamokpb.Reason_REASON_WAIT_TIMEOUT:
		return &NotAcquiredError{Names: names(t.items), cause: errWaitTimeout}
	case zamokpb.Reason_REASON_REVOKED:
		return reasonError(reason, text)
	case zamokpb.Reason_REASON_UNSPECIFIED, zamokpb.Reason_REASON_DROPPED, zamokpb.Reason_REASON_CLOSED, zamokpb.Reason_REASON_EXPIRED,
		zamokpb.Reason_REASON_DISCONNECTED, zamokpb.Reason_REASON_EVICTED, zamokpb.Reason_REASON_MAX_HOLD_EXCEEDED,
		zamokpb.Reason_REASON_RESTORED: // over before it was returned: nothing is held, and the call may ask again
		if t.token != 0 {
			return errTooLate
		}
		return errRetryInNewSession
	default: // of a newer server
		return &Error{Kind: ErrRefused, Message: fmt.Sprintf("with the reason %d, which this client does not know", reason)}
	}
}

// endWithSession ends the ticket with its session: in the cluster, if that reported the end, or only here.
func (t *ticket) endWithSession(cause error) {
	event := sessionEnd
	if t.s.state == sessionEnded {
		event = reportEnded
	}
	next := t.state.after(event)
	if t.callerWaits() {
		switch {
		case errors.Is(cause, ErrSessionExpired) || errors.Is(cause, ErrRevoked): // a new session may get it
			t.failure = errRetryInNewSession
		case next == ticketEnded:
			t.failure = cause
		default:
			t.failure = t.unconfirmed(cause)
		}
	}
	t.end(event, cause)
}

// unconfirmed is the error of a ticket that is not held here and may still be held in the cluster.
func (t *ticket) unconfirmed(cause error) error {
	return &UnconfirmedError{Names: names(t.items), Until: t.s.leaseConfirmed(), cause: cause}
}

// setHoldDeadline computes the local end of the maximum hold, which never becomes earlier.
func (t *ticket) setHoldDeadline() {
	if end, ok := t.s.lease.Local(t.holdUntil); ok {
		t.holdEnd = t.holdEnd.Later(end)
	}
}

// mayHandOver reports whether a grant with a maximum hold may be handed over at now. The older the newest confirmation,
// the earlier the local end of the hold, by a twentieth of its age. If a new confirmation could make the end noticeably
// later, one is requested first, by sending the Acquire once more: that is confirmed at once, while a KeepAlive waits for
// a batch at the leader. If a confirmation from after the grant leaves nothing of the hold, the grant is given back.
func (t *ticket) mayHandOver(now clock.Instant) bool {
	s := t.s
	t.setHoldDeadline()
	most := clock.FromDuration(t.request.maxHold)
	most -= clock.Margin(most)
	left, fresh := now.Until(t.holdEnd), s.confirmed.Reached(t.grantedAt)
	switch {
	case left > 0 && (fresh || left >= most-most/holdParts):
		return true
	case fresh:
		t.giveUp(errTooLate)
	case !t.unplaced:
		t.unplaced = true
		s.queueOut(t)
	}
	return false
}

// handOver returns the grant to the caller, if its lease is considered valid at now (L1).
func (t *ticket) handOver(now clock.Instant) *Lock {
	s := t.s
	if t.state != ticketGranted || t.failure != nil || s.closing || !s.lease.Valid(now) || t.holdUntil != 0 && !t.mayHandOver(now) {
		return nil
	}
	t.become(handOver)
	t.handle = &Lock{t: t, contended: make(chan int, 1)}
	t.request = nil
	if left := min(checkEvery, s.checkDeadlines(now)); now.Reached(s.checksNext) || s.checksNext.Since(now) > left {
		signal(s.kick) // also if the check is overdue: timers stop while the machine is suspended
	}
	return t.handle
}

// lose ends what a handle holds, for good (L3), before the cluster reports it.
func (t *ticket) lose(cause error) {
	if t.state == ticketHeld {
		t.end(giveUp, cause)
	}
}

// settled notes that a number was answered, or is not sent again, and raises the acknowledged-through (S2).
func (s *session) settled(number uint64) {
	if number <= s.ackedThrough {
		return
	}
	s.answered[number] = true
	for s.answered[s.ackedThrough+1] {
		s.ackedThrough++
		delete(s.answered, s.ackedThrough)
	}
	if s.fresh.Len() > 0 {
		signal(s.wake)
	}
}

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
	if _, refused := refusals[state.GetReason()]; refused && t.state == ticketRequested {
		return // its answer follows, with the blockers
	}
	t.report(state, c.GetText())
}

// refusals are the reasons for which a ticket ends with its own Acquire, and the errors if the answer to that was lost.
var refusals = map[zamokpb.Reason]func(*ticket) error{
	zamokpb.Reason_REASON_TRY_FAILED:    func(t *ticket) error { return &NotAcquiredError{Names: names(t.items)} },
	zamokpb.Reason_REASON_DEADLOCKED:    func(*ticket) error { return &DeadlockError{} },
	zamokpb.Reason_REASON_OWNER_BUSY:    func(*ticket) error { return &Error{Kind: ErrNotAcquired, Message: "its owner waits already"} },
	zamokpb.Reason_REASON_KIND_MISMATCH: func(*ticket) error { return &Error{Kind: ErrKindMismatch} },
	zamokpb.Reason_REASON_TOO_MANY:      func(*ticket) error { return &Error{Kind: ErrLimit} },
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
	if a.GetCommand() == zamokpb.Command_COMMAND_ACQUIRE && info.GetOutcome() == zamokpb.Outcome_OUTCOME_NOT_DONE {
		t.unanswered--
	}
	switch {
	case info.GetCode() == zamokpb.Code_CODE_OK:
		if isDowngrade && t.downgrade == asked {
			t.downgrade = downgraded
		}
	case final == nil:
		s.retryLater(t, info)
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
		s.retryLater(t, info)
		return
	}
	t.report(state, "")
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
			final = &NotAcquiredError{Names: names(t.items), Holders: each(info.GetBlockers(), blocker)}
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

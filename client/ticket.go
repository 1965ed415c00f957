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
	// window is how far a ticket's number may be above ackedThrough. Other tickets wait in the
	// client.
	window = 1024
	// holdParts: a grant is handed over without a new confirmation if that could prolong its hold
	// by at most 1/holdParts.
	holdParts = 10
)

// ticket is one acquisition. Its session's mutex guards it.
type ticket struct {
	s       *session
	request *request
	items   []Item
	place   *list.Element // in session.unsent, until it is sent
	number  uint64        // 0 = not sent yet
	state   ticketState
	token   uint64 // 0 = not granted yet
	queued  bool   // in session.outgoing
	// unanswered counts its Acquires that may take effect: they were sent, and no answer says not
	// done.
	unanswered int

	downgrade    downgradeState
	downgrades   int   // messages of the latest Downgrade that may take effect
	downgradeErr error // of the latest Downgrade

	holdUntil         clock.Time    // by the cluster's clock; 0 = no maximum
	holdEnd           clock.Instant // by this machine's clock
	grantedAt         clock.Instant // when its grant came; only with a maximum hold
	wantsConfirmation bool          // send the Acquire again, to compute holdEnd

	limitDelay time.Duration // the delay after a limit was last exceeded

	failure  error // why it was not granted, or was lost
	unlocked bool
	handle   *Lock // once there is one

	position *Position     // to be passed to OnPosition
	changed  chan struct{} // closed at the next change; nil while nothing waits for one
}

// downgradeState is the state of a Downgrade.
type downgradeState uint8

const (
	downgradeNone downgradeState = iota
	downgradeRequested
	downgradeDone
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

// enqueue puts a new ticket in line.
func (s *session) enqueue(r *request) *ticket {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &ticket{s: s, request: r, items: r.items, state: ticketUnsent}
	t.place = s.unsent.PushBack(t)
	if s.state.over() {
		t.endWithSession(context.Cause(s.ctx))
	}
	signal(s.wake)
	return t
}

// giveUp ends the ticket for its caller; failure is the error of a waiting call. A Drop is sent
// until the cluster reports the end (S4).
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

// retryLater queues a ticket again after a delay, together with others that are declined meanwhile.
// A ticket that exceeded a limit waits on its own, for the time that the limit says, which doubles
// each time, since many tickets may wait for the same limit.
func (s *session) retryLater(t *ticket, info *zamokpb.ErrorInfo) {
	if wait := time.Duration(info.GetRetryAfter()); wait > 0 {
		t.limitDelay = min(max(2*t.limitDelay, wait, retryAfter), max(wait, limitDelayMax))
		stream := s.stream // the next stream sends it at once
		time.AfterFunc(t.limitDelay+rand.N(t.limitDelay), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.stream == stream {
				s.queueOut(t)
			}
		})
		if now := s.c.clock.Now(); s.limitLogged == (clock.Instant{}) ||
			now.Since(s.limitLogged) > limitLogEvery {
			s.limitLogged = now
			s.c.log.Warn("zamok: a limit of the node delays acquisitions; retrying", "limit",
				info.GetField(),
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

// applyState applies the state of a ticket in the cluster; text is an operator's reason for its
// end. A state before the known one changes nothing (S3).
func (t *ticket) applyState(st *zamokpb.TicketState, text string) {
	t.s.complete(t.number)
	switch st.GetState() {
	case zamokpb.State_STATE_WAITING:
		t.become(onWaiting)
	case zamokpb.State_STATE_GRANTED:
		if t.token == 0 {
			t.token = st.GetToken() // also while releasing: see acquireRefused
		}
		if !t.become(onGranted) {
			return
		}
		if t.holdUntil = clock.Time(st.GetHoldUntil()); t.holdUntil != 0 {
			t.grantedAt = t.s.c.clock.Now()
			t.s.holds[t] = struct{}{}
		}
	case zamokpb.State_STATE_ENDED:
		t.applyEnd(st.GetReason(), text)
	}
}

// applyEnd applies the end of a ticket in the cluster.
func (t *ticket) applyEnd(reason zamokpb.Reason, text string) {
	s := t.s
	delete(s.tickets, t.number)
	s.complete(t.number)
	if t.callerWaits() {
		t.failure = t.endFailure(reason, text)
	}
	t.end(onEnded, reasonError(reason, text))
}

// end moves the ticket to its end, or towards it. If it was held, its handle is lost.
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
	t.failure = &Error{Kind: ErrLost, Outcome: outcome, Reason: reasonOf(cause), cause: cause}
	if t.handle.cancel != nil {
		t.handle.cancel(t.failure) // its callbacks run in goroutines of their own
	}
	t.notify()
}

// endFailure is the error of a call whose ticket has ended without a lock.
func (t *ticket) endFailure(reason zamokpb.Reason, text string) error {
	if failure, is := refusedReasons[reason]; is {
		return failure(t)
	}
	switch reason {
	case zamokpb.Reason_REASON_WAIT_TIMEOUT:
		return &NotAcquiredError{Names: names(t.items), cause: errWaitTimeout}
	case zamokpb.Reason_REASON_FORCE_RELEASED:
		return reasonError(reason, text)
	case zamokpb.Reason_REASON_UNSPECIFIED, zamokpb.Reason_REASON_DROPPED,
		zamokpb.Reason_REASON_CLOSED, zamokpb.Reason_REASON_EXPIRED,
		zamokpb.Reason_REASON_DISCONNECTED, zamokpb.Reason_REASON_EXPIRED_BY_OPERATOR,
		zamokpb.Reason_REASON_MAX_HOLD_EXCEEDED,
		zamokpb.Reason_REASON_RESTORED: // before it was returned: request it again
		if t.token != 0 {
			return errTooLate
		}
		return errRetryInNewSession
	default: // of a newer server
		return &Error{Kind: ErrRefused,
			Message: fmt.Sprintf("with the reason %d, which this client does not know", reason)}
	}
}

// endWithSession ends the ticket with its session: in the cluster if the end is confirmed,
// otherwise only here.
func (t *ticket) endWithSession(cause error) {
	event := sessionEnd
	if t.s.state == sessionEnded {
		event = onEnded
	}
	next := t.state.after(event)
	if t.callerWaits() {
		switch {
		case errors.Is(cause, ErrSessionExpired): // a new session may acquire the lock
			t.failure = errRetryInNewSession
		case next == ticketEnded:
			t.failure = cause
		default:
			t.failure = t.unconfirmed(cause)
		}
	}
	t.end(event, cause)
}

// unconfirmed is the error of a ticket that is not held here but may be held in the cluster.
func (t *ticket) unconfirmed(cause error) error {
	return &UnconfirmedError{Names: names(t.items), Until: t.s.leaseConfirmed(), cause: cause}
}

// setHoldDeadline computes the local end of the maximum hold, which never becomes earlier.
func (t *ticket) setHoldDeadline() {
	if end, ok := t.s.lease.Local(t.holdUntil); ok {
		t.holdEnd = t.holdEnd.Later(end)
	}
}

// mayHandOver reports whether a grant with a maximum hold may be handed over at now. The older the
// newest confirmation, the earlier the local end of the hold, by a twentieth of its age. If a new
// confirmation could make the end noticeably later, the client requests one first. For that it
// sends the Acquire again, which is confirmed at once, while a KeepAlive waits for a batch at the
// leader. If a confirmation from after the grant leaves nothing of the hold, the grant is given
// back.
func (t *ticket) mayHandOver(now clock.Instant) bool {
	s := t.s
	t.setHoldDeadline()
	most := clock.FromDuration(t.request.maxHold)
	most -= clock.Margin(most)
	left, recent := now.Until(t.holdEnd), s.confirmed.Reached(t.grantedAt)
	switch {
	case left > 0 && (recent || left >= most-most/holdParts):
		return true
	case recent:
		t.giveUp(errTooLate)
	case !t.wantsConfirmation:
		t.wantsConfirmation = true
		s.queueOut(t)
	}
	return false
}

// handOver returns the grant to the caller, if its lease is considered valid at now (L1).
func (t *ticket) handOver(now clock.Instant) *Lock {
	s := t.s
	if t.state != ticketGranted || t.failure != nil || s.closing || !s.lease.Valid(now) ||
		t.holdUntil != 0 && !t.mayHandOver(now) {
		return nil
	}
	t.become(handOver)
	t.handle = &Lock{t: t, contended: make(chan int, 1)}
	t.request = nil
	if left := min(checkEvery, s.checkDeadlines(now)); now.Reached(s.checksNext) ||
		s.checksNext.Since(now) > left {
		signal(s.kick) // also if the check is overdue: timers stop while the machine is suspended
	}
	return t.handle
}

// lose ends a held ticket for good (L3), before the cluster reports its end.
func (t *ticket) lose(cause error) {
	if t.state == ticketHeld {
		t.end(giveUp, cause)
	}
}

// complete marks a number as answered or never sent again, and raises ackedThrough (S2).
func (s *session) complete(number uint64) {
	if number <= s.ackedThrough {
		return
	}
	s.completed[number] = true
	for s.completed[s.ackedThrough+1] {
		s.ackedThrough++
		delete(s.completed, s.ackedThrough)
	}
	if s.unsent.Len() > 0 {
		signal(s.wake)
	}
}

// applyChange applies a change that the cluster announced.
func (s *session) applyChange(c *zamokpb.Change) {
	state := c.GetState()
	t := s.tickets[state.GetTicket()]
	if t == nil {
		// for a frame of an earlier stream that arrived late
		if state.GetState() == zamokpb.State_STATE_GRANTED {
			s.queueOut(s.releaseUnknown(state))
		}
		return
	}
	if c.GetDowngraded() && t.downgrade == downgradeRequested {
		t.downgrade = downgradeDone
		t.notify()
	}
	if _, refused := refusedReasons[state.GetReason()]; refused && t.state == ticketRequested {
		return // the answer to its Acquire follows, with the blockers
	}
	t.applyState(state, c.GetText())
}

// refusedReasons are the reasons for which a ticket ends with its own Acquire, with the errors if
// the answer to that was lost.
var refusedReasons = map[zamokpb.Reason]func(*ticket) error{
	zamokpb.Reason_REASON_TRY_FAILED: func(t *ticket) error {
		return &NotAcquiredError{Names: names(t.items)}
	},
	zamokpb.Reason_REASON_DEADLOCKED: func(*ticket) error { return &DeadlockError{} },
	zamokpb.Reason_REASON_OWNER_BUSY: func(*ticket) error {
		return &Error{Kind: ErrNotAcquired, Message: "its owner waits already"}
	},
	zamokpb.Reason_REASON_KIND_MISMATCH: func(*ticket) error {
		return &Error{Kind: ErrKindMismatch}
	},
	zamokpb.Reason_REASON_TOO_MANY: func(*ticket) error { return &Error{Kind: ErrLimit} },
}

// applyAnswer applies the answer to a command.
func (s *session) applyAnswer(a *zamokpb.Answer) {
	info, state := a.GetError(), a.GetState()
	final := errorOf(info)
	switch info.GetCode() {
	case zamokpb.Code_CODE_NO_SESSION:
		s.finish(endConfirmed, final)
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
	if a.GetCommand() == zamokpb.Command_COMMAND_ACQUIRE &&
		info.GetOutcome() == zamokpb.Outcome_OUTCOME_NOT_DONE {
		t.unanswered--
	}
	switch {
	case info.GetCode() == zamokpb.Code_CODE_OK:
		if isDowngrade && t.downgrade == downgradeRequested {
			t.downgrade = downgradeDone
		}
	case final == nil:
		s.retryLater(t, info)
		return
	case a.GetCommand() == zamokpb.Command_COMMAND_ACQUIRE:
		s.acquireRefused(t, info, final)
		return
	case isDowngrade:
		if t.downgrade == downgradeRequested {
			if t.downgrades > 0 { // an earlier message, perhaps on another stream, has no answer
				final = withOutcome(final, Unknown)
			}
			t.downgrade, t.downgradeErr = downgradeNone, final
		}
	case state.GetState() != zamokpb.State_STATE_ENDED: // a failed Drop is repeated
		s.c.log.Warn("zamok: releasing a lock failed; retrying", "ticket", t.number, "error", final)
		s.retryLater(t, info)
		return
	}
	t.applyState(state, "")
	t.notify()
}

// acquireRefused applies a permanent error of an Acquire.
func (s *session) acquireRefused(t *ticket, info *zamokpb.ErrorInfo, final error) {
	switch info.GetCode() {
	case zamokpb.Code_CODE_TICKET_ENDED: // a repeated Acquire whose ticket has ended
		t.applyEnd(info.GetReason(), info.GetMessage())
		return
	case zamokpb.Code_CODE_NOT_ACQUIRED:
		if t.callerWaits() {
			final = &NotAcquiredError{Names: names(t.items),
				Holders: each(info.GetBlockers(), blocker)}
		}
	}
	if t.token != 0 {
		return // only a repeated Acquire failed: the grant is valid, or being dropped
	}
	if info.GetOutcome() == zamokpb.Outcome_OUTCOME_UNKNOWN {
		t.giveUp(t.unconfirmed(final))
		return
	}
	if t.callerWaits() {
		t.failure = final
	}
	t.applyEnd(info.GetReason(), "")
}

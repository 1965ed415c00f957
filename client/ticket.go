package client

import (
	"errors"
	"fmt"
	"slices"

	"zamok/api/zamokpb"
	"zamok/clock"
)

const (
	// window is how far above its floor a session may number tickets. What is beyond waits here.
	window = 1024
	// holdParts: a grant is handed over without asking for a new confirmation if that could prolong its hold by no more
	// than this part.
	holdParts = 10
	// unwantedMax is how many given-up tickets may lie among those not yet sent.
	unwantedMax = 64
)

// stage is what a ticket is to its caller; its state is what it is to the cluster.
type stage uint8

const (
	asking  stage = iota // a call waits for it
	holding              // a handle is out, and believes
	leaving              // nobody wants it: to be dropped
)

// ticket is one acquisition. Its session's mutex guards it.
type ticket struct {
	s       *session
	request *request
	number  uint64        // 0 = not sent yet
	state   zamokpb.State // as far as the cluster told; it only moves on
	stage   stage
	token   uint64

	downgrade         downgrading
	refusal           error // of the latest Downgrade
	queued            bool  // in drops or says
	retryInNewSession bool  // nothing came of it, and its caller may ask again

	holdUntil clock.Time    // of the cluster; 0 = no maximum
	holdEnd   clock.Instant // here
	grantedAt clock.Instant // when its grant came; only with a maximum hold

	failure  error // why it will not be granted, or was lost
	unlocked bool
	handle   *Lock // once there is one

	position *Position     // news for OnPosition
	changed  chan struct{} // closed at the next change; nil while nobody waits
}

// downgrading is how far a Downgrade is.
type downgrading uint8

const (
	notAsked downgrading = iota
	asked
	downgraded
)

// changes gives a channel that is closed when something about the ticket changed.
func (t *ticket) changes() <-chan struct{} {
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return t.changed
}

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
	t := &ticket{s: s, request: r}
	if s.endedWith != nil {
		t.sessionEnded(s.endedWith)
		return t
	}
	s.fresh = append(s.fresh, t)
	signal(s.wake)
	return t
}

// leave gives a ticket up, whatever it is: it is dropped until the cluster says that it is gone (S4).
func (t *ticket) leave() {
	s := t.s
	if t.stage == leaving || s.endedWith != nil {
		return
	}
	t.stage = leaving
	switch {
	case t.state == zamokpb.State_STATE_ENDED:
	case t.number == 0:
		if s.unwanted++; s.unwanted > unwantedMax && s.unwanted > len(s.fresh)/2 {
			s.fresh = slices.DeleteFunc(s.fresh, func(t *ticket) bool { return t.stage == leaving })
			s.unwanted = 0
		}
	default:
		s.queueOut(t)
	}
}

// queueOut puts a ticket among those that have something to say.
func (s *session) queueOut(t *ticket) {
	if t.queued || t.state == zamokpb.State_STATE_ENDED {
		return
	}
	t.queued = true
	if t.stage == leaving {
		s.drops = append(s.drops, t)
	} else {
		s.outgoing = append(s.outgoing, t)
	}
	signal(s.wake)
}

// retryLater lets a ticket speak again after a pause.
func (s *session) retryLater(t *ticket) {
	if len(s.retryQueue) == 0 {
		s.retryAt = s.c.clock.Now().Add(retryAfter)
		signal(s.kick)
	}
	if !slices.Contains(s.retryQueue, t) {
		s.retryQueue = append(s.retryQueue, t)
	}
}

// setState takes in what the cluster says of a ticket, if it is further than what is known (S3).
func (t *ticket) setState(st *zamokpb.TicketState) {
	s := t.s
	if st.GetState() <= t.state {
		return
	}
	t.state = st.GetState()
	s.settled(t.number)
	switch t.state {
	case zamokpb.State_STATE_GRANTED:
		if t.token, t.holdUntil = st.GetToken(), clock.Time(st.GetHoldUntil()); t.holdUntil != 0 {
			t.grantedAt = s.c.clock.Now()
		}
	case zamokpb.State_STATE_ENDED:
		t.ended(st.GetReason(), "")
	}
	t.notify()
}

// ended notes the end of a ticket in the cluster.
func (t *ticket) ended(reason zamokpb.Reason, text string) {
	s := t.s
	t.state = zamokpb.State_STATE_ENDED
	delete(s.tickets, t.number)
	s.settled(t.number)
	switch {
	case t.stage == holding:
		t.lose(reasonError(reason, text))
	case t.stage == asking && t.failure == nil:
		switch reason {
		case zamokpb.Reason_REASON_TRY_FAILED:
			t.failure = &NotAcquiredError{Names: t.request.names()}
		case zamokpb.Reason_REASON_DEADLOCKED:
			t.failure = &DeadlockError{}
		case zamokpb.Reason_REASON_OWNER_BUSY:
			t.failure = &Error{Kind: ErrNotAcquired, Message: "its owner waits already"}
		case zamokpb.Reason_REASON_KIND_MISMATCH:
			t.failure = &Error{Kind: ErrKindMismatch}
		case zamokpb.Reason_REASON_TOO_MANY:
			t.failure = &Error{Kind: ErrLimit}
		case zamokpb.Reason_REASON_REVOKED:
			t.failure = reasonError(reason, text)
		case zamokpb.Reason_REASON_UNSPECIFIED, zamokpb.Reason_REASON_DROPPED, zamokpb.Reason_REASON_CLOSED, zamokpb.Reason_REASON_EXPIRED,
			zamokpb.Reason_REASON_DISCONNECTED, zamokpb.Reason_REASON_EVICTED, zamokpb.Reason_REASON_MAX_HOLD_EXCEEDED, zamokpb.Reason_REASON_WAIT_TIMEOUT,
			zamokpb.Reason_REASON_RESTORED: // over before anybody here knew: nothing is held, and the caller still waits
			t.retryInNewSession = true
		default: // of a newer server
			t.failure = &Error{Kind: ErrRefused, Message: fmt.Sprintf("with the reason %d, which this client does not know", reason)}
		}
	}
	t.notify()
}

// refuse ends a call that waits, with a reason.
func (t *ticket) refuse(reason error) {
	if t.stage == asking {
		t.failure = reason
		t.notify()
	}
}

// sessionEnded notes that the session is over, and with it the ticket: in the cluster, if that said so, or only here.
func (t *ticket) sessionEnded(cause error) {
	if t.s.confirmedEnd || t.number == 0 {
		t.state = zamokpb.State_STATE_ENDED
	}
	t.lose(cause)
	if t.stage == asking && t.failure == nil {
		switch {
		case mayRetry(cause):
			t.retryInNewSession = true
		case t.state == zamokpb.State_STATE_ENDED:
			t.failure = cause
		default:
			t.failure = t.unconfirmed(cause)
		}
	}
	t.notify()
}

// unconfirmed is the error of what is not held here, while the cluster has not said that it does not hold it.
func (t *ticket) unconfirmed(cause error) error {
	e := &UnconfirmedError{Until: t.s.leaseConfirmed(), cause: cause}
	switch {
	case t.handle != nil:
		e.Names = t.handle.Names()
	case t.request != nil:
		e.Names = t.request.names()
	}
	return e
}

// setHoldDeadline turns the end of the maximum hold into a moment here. One that was shown is not taken back.
func (t *ticket) setHoldDeadline() {
	if end, ok := t.s.lease.Local(t.holdUntil); ok {
		t.holdEnd = t.holdEnd.Later(end)
	}
}

// mayHandOver says whether a grant with a maximum hold may be handed over at now. The older the newest confirmation, the
// earlier the end that it proves for the hold, by a twentieth of its age. If a new one could place the end noticeably
// later, it is asked for first, by sending the Acquire once more: that is confirmed at once, while a KeepAlive waits
// for company at the leader. If the confirmation of what was sent after the grant came leaves nothing of the hold, the
// grant is given back.
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
		t.leave()
		t.retryInNewSession = true
	case !t.needsHoldDeadline():
		s.deadlineUnset[t] = struct{}{}
		s.queueOut(t)
	}
	return false
}

// needsHoldDeadline reports whether a grant asks for a confirmation.
func (t *ticket) needsHoldDeadline() bool {
	_, unplaced := t.s.deadlineUnset[t]
	return unplaced && t.state == zamokpb.State_STATE_GRANTED
}

// handOver gives the grant to the caller, if it is to be believed at now (L1).
func (t *ticket) handOver(now clock.Instant) *Lock {
	s := t.s
	if t.stage != asking || t.state != zamokpb.State_STATE_GRANTED || s.endedWith != nil || s.closing || !s.lease.Valid(now) {
		return nil
	}
	if t.holdUntil != 0 {
		if !t.mayHandOver(now) {
			return nil
		}
		s.holds[t] = struct{}{}
	}
	t.stage = holding
	if s.heldCount++; s.heldCount == 1 || t.holdUntil != 0 {
		signal(s.kick) // from now on the clocks are looked at more often, or there is an earlier deadline
	}
	t.handle = &Lock{t: t, items: t.request.items}
	t.request = nil
	return t.handle
}

// lose ends the belief of a handle, for good (L3).
func (t *ticket) lose(cause error) {
	if t.stage != holding {
		return
	}
	t.expireLocally()
	t.failure = &Error{Kind: ErrLost, Outcome: Unknown, cause: cause}
	if t.state == zamokpb.State_STATE_ENDED {
		t.failure = &Error{Kind: ErrLost, Outcome: Done, cause: cause}
	}
	t.handle.notifyLost(t.failure)
	t.leave()
	t.stage = leaving
	t.notify()
}

// settled notes that a number was answered, or will not be asked for again, and raises the floor (S2).
func (s *session) settled(number uint64) {
	if number <= s.ackedThrough {
		return
	}
	s.answered[number] = true
	for s.answered[s.ackedThrough+1] {
		s.ackedThrough++
		delete(s.answered, s.ackedThrough)
	}
	if len(s.fresh) > 0 {
		signal(s.wake)
	}
}

// expireLocally takes a handle out of what keep looks after.
func (t *ticket) expireLocally() {
	t.s.heldCount--
	delete(t.s.holds, t)
}

// mayRetry reports whether a call that waited in a session which ended may continue in a new one: not if the
// cluster would refuse that too, or nobody wants it.
func mayRetry(cause error) bool {
	return errors.Is(cause, ErrSessionExpired) || errors.Is(cause, ErrRevoked)
}

package client

// ticketState is the state of an acquisition, for its caller and in the cluster.
//
//	unsent       in line, without a number; not sent to the cluster
//	requested    sent, not answered
//	waiting      in the cluster's queue
//	granted      granted by the cluster, not returned yet: the lease or the end of its maximum
//	             hold is unconfirmed
//	held         returned to its caller, who considers it held
//	releasing    given up or lost here; a Drop is sent until the cluster reports the end (S4)
//	ended        ended in the cluster, or never sent
//	unconfirmed  its session ended here only: it may be held in the cluster until the lease ends
//
// An event that the table lacks changes nothing: frames arrive late, twice and in another order.
// ended and unconfirmed are final. TestTicketTransitions compares the table with the code.
//
//	from \ event | send      | onWaiting | onGranted | handOver | giveUp    | onEnded | sessionEnd
//	unsent       | requested | -         | -         | -        | ended     | ended   | ended
//	requested    | - | waiting | granted | - | releasing | ended | unconfirmed
//	waiting      | - | - | granted | - | releasing | ended | unconfirmed
//	granted      | - | - | - | held | releasing | ended | unconfirmed
//	held         | - | - | - | - | releasing | ended | unconfirmed
//	releasing    | - | - | - | - | - | ended | unconfirmed
//	ended        | -         | -         | -         | -        | -         | -       | -
//	unconfirmed  | -         | -         | -         | -        | -         | -       | -
//
// onWaiting, onGranted and onEnded are reports of the cluster. sessionEnd is the end of the session
// here; if the cluster has ended the session, each ticket gets onEnded instead. From unsent to
// granted a call waits for the outcome.
type ticketState uint8

const (
	ticketUnsent ticketState = 1 + iota
	ticketRequested
	ticketWaiting
	ticketGranted
	ticketHeld
	ticketReleasing
	ticketEnded
	ticketUnconfirmed
)

// ticketEvent is what happens to a ticket.
type ticketEvent uint8

const (
	send ticketEvent = iota
	onWaiting
	onGranted
	handOver
	giveUp
	onEnded
	sessionEnd
	ticketEvents
)

// after returns the state after an event, or 0 if the event changes nothing.
func (from ticketState) after(e ticketEvent) ticketState {
	return [...][ticketEvents]ticketState{
		ticketUnsent: {send: ticketRequested, giveUp: ticketEnded, onEnded: ticketEnded,
			sessionEnd: ticketEnded},
		ticketRequested: {onWaiting: ticketWaiting, onGranted: ticketGranted,
			giveUp: ticketReleasing, onEnded: ticketEnded, sessionEnd: ticketUnconfirmed},
		ticketWaiting: {onGranted: ticketGranted, giveUp: ticketReleasing, onEnded: ticketEnded,
			sessionEnd: ticketUnconfirmed},
		ticketGranted: {handOver: ticketHeld, giveUp: ticketReleasing, onEnded: ticketEnded,
			sessionEnd: ticketUnconfirmed},
		ticketHeld: {giveUp: ticketReleasing, onEnded: ticketEnded,
			sessionEnd: ticketUnconfirmed},
		ticketReleasing:   {onEnded: ticketEnded, sessionEnd: ticketUnconfirmed},
		ticketEnded:       {},
		ticketUnconfirmed: {},
	}[from][e]
}

// become moves the ticket on, wakes its caller, and reports whether the event changed anything.
func (t *ticket) become(e ticketEvent) bool {
	next := t.state.after(e)
	if next == 0 {
		return false
	}
	s := t.s
	switch t.state {
	case ticketUnsent:
		s.unsent.Remove(t.place)
	case ticketHeld:
		s.heldCount--
	}
	t.state = next
	switch {
	case next == ticketHeld:
		s.heldCount++
	case next >= ticketReleasing:
		delete(s.holds, t)
		s.queueOut(t) // its Drop, unless it has ended
	}
	if next >= ticketGranted { // no call waits for an earlier state
		t.notify()
	}
	return true
}

// final reports whether no event changes the ticket any more.
func (s ticketState) final() bool { return s >= ticketEnded }

// callerWaits reports whether a call waits for the outcome.
func (t *ticket) callerWaits() bool { return t.state <= ticketGranted && t.failure == nil }

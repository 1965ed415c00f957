package client

// ticketState is where an acquisition stands, for its caller and for the cluster.
//
//	unsent       in line, without a number; not sent to the cluster
//	requested    sent, not answered
//	waiting      in the cluster's queue
//	granted      granted by the cluster, not returned yet: the lease or the end of its maximum hold is unconfirmed
//	held         returned to its caller, who considers it held
//	releasing    given up or lost here; a Drop is sent until the cluster reports the end (S4)
//	ended        ended in the cluster, or never sent
//	unconfirmed  its session ended here without confirmation, so it may hold something in the cluster until the lease ends
//
// An event that the table has no state for changes nothing: frames arrive late, twice and in another order. ended
// and unconfirmed are final. TestTicketTransitions compares this table with the code.
//
//	from \ event | send      | reportWaiting | reportGranted | handOver | giveUp    | reportEnded | sessionEnd
//	unsent       | requested | -             | -             | -        | ended     | ended       | ended
//	requested    | -         | waiting       | granted       | -        | releasing | ended       | unconfirmed
//	waiting      | -         | -             | granted       | -        | releasing | ended       | unconfirmed
//	granted      | -         | -             | -             | held     | releasing | ended       | unconfirmed
//	held         | -         | -             | -             | -        | releasing | ended       | unconfirmed
//	releasing    | -         | -             | -             | -        | -         | ended       | unconfirmed
//	ended        | -         | -             | -             | -        | -         | -           | -
//	unconfirmed  | -         | -             | -             | -        | -         | -           | -
//
// sessionEnd is the end of the session here; if the cluster ended it, each ticket gets reportEnded instead. A
// caller waits for an outcome from unsent to granted.
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
	reportWaiting
	reportGranted
	handOver
	giveUp
	reportEnded
	sessionEnd
	ticketEvents
)

// after returns the state after an event, or 0 if the event changes nothing.
func (from ticketState) after(e ticketEvent) ticketState {
	return [...][ticketEvents]ticketState{
		ticketUnsent:      {send: ticketRequested, giveUp: ticketEnded, reportEnded: ticketEnded, sessionEnd: ticketEnded},
		ticketRequested:   {reportWaiting: ticketWaiting, reportGranted: ticketGranted, giveUp: ticketReleasing, reportEnded: ticketEnded, sessionEnd: ticketUnconfirmed},
		ticketWaiting:     {reportGranted: ticketGranted, giveUp: ticketReleasing, reportEnded: ticketEnded, sessionEnd: ticketUnconfirmed},
		ticketGranted:     {handOver: ticketHeld, giveUp: ticketReleasing, reportEnded: ticketEnded, sessionEnd: ticketUnconfirmed},
		ticketHeld:        {giveUp: ticketReleasing, reportEnded: ticketEnded, sessionEnd: ticketUnconfirmed},
		ticketReleasing:   {reportEnded: ticketEnded, sessionEnd: ticketUnconfirmed},
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
		s.fresh.Remove(t.place)
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
	if next >= ticketGranted { // no call waits for less
		t.notify()
	}
	return true
}

// final reports whether nothing more happens to the ticket.
func (s ticketState) final() bool { return s >= ticketEnded }

// callerWaits reports whether a call waits for the outcome.
func (t *ticket) callerWaits() bool { return t.state <= ticketGranted && t.failure == nil }

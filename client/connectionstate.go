package client

import "cmp"

// connectionState is the state of the session's connection to the cluster.
//
//	unopened       no OpenStream has been sent that could have opened it
//	opening        an OpenStream may have opened it; unconfirmed
//	attached       it has a stream; the cluster knows the session
//	detached       it was attached; its stream broke, and another one is being opened
//	sessionEnded   ended in the cluster: it holds nothing there
//	sessionAborted ended here, unconfirmed: it may live on in the cluster until its lease ends
//
// An event that the table lacks changes nothing. TestConnectionTransitions compares the table with
// the code.
//
//	from \ event   | openSent | openRefused | attach   | streamBroke | endConfirmed | abort
//	unopened       | opening  | -           | -        | -           | sessionEnded | sessionEnded
//	opening        | - | unopened | attached | - | sessionEnded | sessionAborted
//	attached       | - | - | - | detached | sessionEnded | sessionAborted
//	detached       | - | - | attached | - | sessionEnded | sessionAborted
//	sessionEnded   | -        | -           | -        | -           | -            | -
//	sessionAborted | -        | -           | -        | -           | -            | -
//
// openRefused: the first OpenStream definitely opened nothing. After a second one, the first may
// still take effect.
type connectionState uint8

const (
	unopened connectionState = 1 + iota
	opening
	attached
	detached
	sessionEnded
	sessionAborted
)

// connectionEvent is what happens to the session's connection.
type connectionEvent uint8

const (
	openSent connectionEvent = iota
	openRefused
	attach
	streamBroke
	endConfirmed
	abort
	connectionEvents
)

// after returns the state after an event, or 0 if the event changes nothing.
func (from connectionState) after(e connectionEvent) connectionState {
	return [...][connectionEvents]connectionState{
		unopened: {openSent: opening, endConfirmed: sessionEnded, abort: sessionEnded},
		opening: {openRefused: unopened, attach: attached, endConfirmed: sessionEnded,
			abort: sessionAborted},
		attached:       {streamBroke: detached, endConfirmed: sessionEnded, abort: sessionAborted},
		detached:       {attach: attached, endConfirmed: sessionEnded, abort: sessionAborted},
		sessionEnded:   {},
		sessionAborted: {},
	}[from][e]
}

// become moves the session on and reports whether the event changed anything. The caller has the
// mutex.
func (s *session) become(e connectionEvent) bool {
	next := s.state.after(e)
	s.state = cmp.Or(next, s.state)
	return next != 0
}

// over reports whether the session has ended, in the cluster or only here.
func (s connectionState) over() bool { return s >= sessionEnded }

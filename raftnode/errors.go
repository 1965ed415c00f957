package raftnode

import (
	"errors"
	"fmt"
)

// The outcomes of a command without an answer. Each but ErrUnknown means that it was not done and
// never will be.
var (
	// ErrUnknown: it was proposed, and its outcome is not known. It may take effect later.
	ErrUnknown = errors.New("the outcome is unknown: the command was proposed, and leadership or " +
		"the process ended before it was seen applied; send it again, every command may be " +
		"repeated")
	// ErrOverloaded: the queue is full, or an acquisition has waited in it for too long.
	ErrOverloaded = errors.New("not done: this leader is overloaded; try again a little later")
	// ErrClosed: this node is closing.
	ErrClosed = errors.New("not done: this node is closed")
	// ErrOtherVersion: the state machine was upgraded meanwhile.
	ErrOtherVersion = errors.New(
		"not done: the cluster's state machine version changed meanwhile; send it again")
	// ErrUndecodable: this leader could not decode the entry that it would have proposed. No client
	// can cause that.
	ErrUndecodable = errors.New(
		"not done: this node made an entry that it cannot decode, and proposed nothing; report " +
			"this as a bug")
	// ErrRefused: the cluster can't be changed in this way; the error that wraps it gives the
	// reason.
	ErrRefused = errors.New("nothing was changed")
	// ErrNotYet: the same, but it may be possible a little later.
	ErrNotYet = errors.New("nothing was changed yet; try again later")
)

// A ChangeError is why a requested change of the cluster was not made, or why it is not known
// whether it was: Reason wraps ErrRefused, ErrNotYet, ErrUnknown or a NotLeaderError.
type ChangeError struct {
	Change string // "join", "remove" or "transfer"
	Reason error  // what happened, what took effect, and what to do
}

func (e *ChangeError) Error() string { return fmt.Sprintf("raftnode: %s: %v", e.Change, e.Reason) }
func (e *ChangeError) Unwrap() error { return e.Reason }

// changeError is a ChangeError with that reason; nil if there is none.
func changeError(change string, reason error) error {
	if reason == nil {
		return nil
	}
	return &ChangeError{change, reason}
}

// NotLeaderError is the refusal of a node that does not lead; it names the leader, if that is
// known.
type NotLeaderError struct {
	// ID is the leader's, as far as this node knows; "" = no leader is known.
	ID string
	// Client is the address under which the leader serves clients; "" = not announced yet.
	Client string
}

func (e *NotLeaderError) Error() string {
	if e.ID == "" {
		return "not done: no leader is known at the moment; try again"
	}
	return fmt.Sprintf("not done: this node does not lead, %s at %s does", e.ID, e.Client)
}

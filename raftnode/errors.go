package raftnode

import (
	"errors"
	"fmt"
)

// What became of a command that has no answer. Each of these but ErrUnknown means that it was not
// done and never will be.
var (
	// ErrUnknown: it was proposed and its outcome did not come back. It may take effect later.
	ErrUnknown = errors.New("the outcome is unknown: the command was proposed, and leadership or the process ended before it was seen applied; send it again, every command may be repeated")
	// ErrOverloaded: what waits has waited too long already.
	ErrOverloaded = errors.New("not done: this leader is overloaded; try again a little later")
	// ErrClosed: this node is closing.
	ErrClosed = errors.New("not done: this node is closed")
	// ErrOtherVersion: the rules were raised meanwhile.
	ErrOtherVersion = errors.New("not done: the cluster's rules changed meanwhile; send it again")
	// ErrRefused: the cluster can't be changed in this way; the words around it say why.
	ErrRefused = errors.New("nothing was changed")
	// ErrNotYet: the same, and a little later it may be possible.
	ErrNotYet = errors.New("nothing was changed yet; try again later")
)

// NotLeaderError says that this node has no epoch, and who may have.
type NotLeaderError struct {
	// ID is the leader's, as far as this node knows; "" = nobody is known to lead.
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

package raftnode

import "zamok/fsm"

// Freeze returns this node's state as it is now, in the time that a snapshot takes to begin. After
// Fence it holds all that was acknowledged before. It may be written while the node continues.
func (n *Node) Freeze() *fsm.Frozen {
	n.state.mu.Lock()
	defer n.state.mu.Unlock()
	return n.state.machine.Freeze()
}

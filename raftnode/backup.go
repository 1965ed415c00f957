package raftnode

import "zamok/fsm"

// Freeze returns this node's current state, in the time that a snapshot takes to begin. After ReadBarrier it has all
// that was acknowledged before. It may be written while the node continues.
func (n *Node) Freeze() *fsm.Frozen {
	n.state.mu.Lock()
	defer n.state.mu.Unlock()
	return n.state.machine.Freeze()
}

package raftnode

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"zamok/fsm"
	"zamok/raftnode/peer"
)

// Nodes exchange a few calls beside raft, one frame each way:
//
//	'c' + an entry with one Member or Digest of the caller's own    → 'o', or 'e' + why not
//	's'                                                             → 'o' + the index applied, 8 bytes
//	'l' + the index of an entry, 8 bytes                            → 'o', or 'e' + why not, or no answer
//	't' + a timeout in ms, 4 bytes                                  → 'o', or 'e' + why not
const (
	callCommand  = 'c'
	callStatus   = 's'
	callLost     = 'l'
	callTimeouts = 't'
	replyOK      = 'o'
	replyError   = 'e'
)

// callCommandOn sends a command of this node to the leader.
func (n *Node) callCommandOn(ctx context.Context, to peer.Node, c fsm.Command) error {
	entry := fsm.Entry{Commands: []fsm.Command{c}}
	_, err := n.callNode(ctx, to, entry.Append([]byte{callCommand}))
	return err
}

// appliedAt asks a node up to which index it has applied the log.
func (n *Node) appliedAt(ctx context.Context, node peer.Node) (uint64, error) {
	answer, err := n.callNode(ctx, node, []byte{callStatus})
	if err != nil {
		return 0, err
	}
	if len(answer) != 8 {
		return 0, fmt.Errorf("raftnode: %s answered %d bytes of status", node.ID, len(answer))
	}
	return binary.BigEndian.Uint64(answer), nil
}

func (n *Node) callNode(ctx context.Context, to peer.Node, body []byte) ([]byte, error) {
	answer, err := n.network.Call(ctx, to, body)
	switch {
	case err != nil:
		return nil, err
	case len(answer) > 0 && answer[0] == replyOK:
		return answer[1:], nil
	case len(answer) > 0:
		return nil, fmt.Errorf("raftnode: %s: %s", to.ID, answer[1:])
	}
	return nil, fmt.Errorf("raftnode: %s answered nothing", to.ID)
}

// handleCall answers another node.
func (n *Node) handleCall(ctx context.Context, from peer.Server, body []byte) []byte {
	answer, err := n.dispatchCall(ctx, from, body)
	if err != nil {
		return append([]byte{replyError}, err.Error()...)
	}
	return append([]byte{replyOK}, answer...)
}

func (n *Node) dispatchCall(ctx context.Context, from peer.Server, body []byte) (answer []byte, err error) {
	if len(body) == 0 {
		return nil, errors.New("the call is empty")
	}
	switch kind, body := body[0], body[1:]; kind {
	case callStatus:
		var index uint64
		n.state.view(func(m *fsm.Machine) { index = m.Stamp().Index })
		return binary.BigEndian.AppendUint64(nil, index), nil
	case callCommand:
		return nil, n.handleCommand(ctx, from, body)
	case callTimeouts:
		return nil, n.handleRetune(from, body)
	case callLost:
		return nil, n.handleLoss(from, body)
	}
	return nil, errors.New("unknown to this version")
}

// calledByLeader returns the running raft if a call of so many bytes comes from the leader, as far as this node knows.
func (n *Node) calledByLeader(from peer.Server, body []byte, size int) (*instance, error) {
	in := n.running()
	if in == nil || len(body) != size {
		return nil, fmt.Errorf("%s runs no raft, or was sent %d bytes", n.cfg.ID, len(body))
	}
	if _, leader := in.raft.LeaderWithID(); leader != from.ID() {
		return nil, fmt.Errorf("%s does not lead, as far as %s knows", from.Name, n.cfg.ID)
	}
	return in, nil
}

// handleCommand proposes what another node announces of itself, and nothing else.
func (n *Node) handleCommand(ctx context.Context, from peer.Server, bytes []byte) error {
	entry, err := fsm.DecodeEntry(bytes)
	if err != nil {
		return err
	}
	if len(entry.Commands) != 1 || !isOwn(from, entry.Commands[0]) || !n.listed(from.ID()) {
		return errors.New("a node may only announce itself, and as a member")
	}
	a, err := n.Propose(ctx, entry.Commands[0])
	if err == nil && a.Result.Code != fsm.OK {
		err = fmt.Errorf("refused: code %d", a.Result.Code)
	}
	return err
}

func isOwn(from peer.Server, c fsm.Command) bool {
	switch c := c.(type) {
	case *fsm.Member:
		return c.ID == from.Name && c.Incarnation == fsm.Incarnation(from.Incarnation)
	case *fsm.Digest:
		return c.Node == from.Name
	}
	return false
}

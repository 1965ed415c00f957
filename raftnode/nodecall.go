package raftnode

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// Nodes exchange a few calls beside raft, one frame each way. The reply is why the call was refused; empty = it was not.
const (
	callCommand  = 'c' // then an entry with one Member or Digest of the caller's own
	callLost     = 'l' // then the index of an entry, 8 bytes; a node that has lost it ends and does not reply
	callTimeouts = 't' // then a timeout in ms, 4 bytes
)

// callNode calls another node.
func (n *Node) callNode(ctx context.Context, to peer.Node, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, nodeCallTimeout)
	defer cancel()
	refusal, err := n.network.Call(ctx, to, body)
	if err == nil && len(refusal) > 0 {
		err = fmt.Errorf("raftnode: %s: %s", to.ID, refusal)
	}
	return err
}

// handleCall answers another node.
func (n *Node) handleCall(ctx context.Context, from peer.Server, body []byte) []byte {
	if len(body) == 0 {
		return []byte("the call is empty")
	}
	var err error
	switch kind, body := body[0], body[1:]; kind {
	case callCommand:
		err = n.handleCommand(ctx, from, body)
	case callTimeouts:
		err = n.handleRetune(from, body)
	case callLost:
		err = n.handleLoss(from, body)
	default:
		err = errors.New("unknown to this version")
	}
	if err != nil {
		return []byte(err.Error())
	}
	return nil
}

// calledByLeader returns the running raft if a call of so many bytes comes from the leader, as far as this node knows.
func (n *Node) calledByLeader(from peer.Server, body []byte, size int) (*instance, error) {
	in := n.instance.Load()
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
	in := n.instance.Load()
	if len(entry.Commands) != 1 || !isOwn(from, entry.Commands[0]) || in == nil || !in.servers().has(from.ID()) {
		return errors.New("a node may only announce itself, and as a member")
	}
	return n.proposeOwn(ctx, entry.Commands[0])
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

// A node whose log ends below what it acknowledged to its leader gets nothing more from that leader (package peer). It
// would still vote, for candidates that lack the same entries. So the leader notifies it, and it ends its process.

// lostEntries is a node and the entry that it acknowledged and does not have.
type lostEntries struct {
	node  peer.Node
	index uint64
}

// reportLosses notifies nodes of what they have lost.
//
// It is no part of the maintenance loop, which a slow disk of this node may hold up: the other node's votes are wrong
// until it is notified.
func (n *Node) reportLosses() {
	for {
		select {
		case <-n.life.Done():
			return
		case l := <-n.losses:
			if err := n.callNode(n.life, l.node, binary.BigEndian.AppendUint64([]byte{callLost}, l.index)); err != nil {
				n.log.Debug("could not notify a node that its log lost entries (its process may have exited for that reason)", "id", l.node.ID, "error", err)
			}
		}
		_ = pause(n.life, time.Second)
	}
}

// handleLoss ends the process if this node has acknowledged an entry to the leader that is not in its log.
func (n *Node) handleLoss(from peer.Server, body []byte) error {
	in, err := n.calledByLeader(from, body, 8)
	if err != nil {
		return err
	}
	index, last := binary.BigEndian.Uint64(body), in.raft.LastIndex()
	if last < index {
		n.fatal(fmt.Errorf("raftnode: %w", store.Damaged(n.store.LogName(),
			fmt.Sprintf("the log ends with entry %d, and the leader, %s, has this node's acknowledgement of entry %d", last, from.Name, index))))
	}
	return nil
}

package raftnode

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// A node whose log ends below what it acknowledged to its leader gets nothing more from that leader (package peer). It
// would still vote, for candidates that lack the same entries. So the leader notifies it, and it ends its process.

const (
	// lostWait bounds how long the leader tries to notify a node.
	lostWait = 2 * time.Second
	// lostPause is the pause before it notifies one again.
	lostPause = time.Second
)

// lostEntries is a node and the entry that it acknowledged and does not have.
type lostEntries struct {
	node  peer.Node
	index uint64
}

// missingAcknowledged is peer.Config's Lost.
func (n *Node) missingAcknowledged(server peer.Node, index uint64) {
	select {
	case n.losses <- lostEntries{server, index}:
	default: // it is called again
	}
}

// reportLosses notifies nodes of what they have lost.
func (n *Node) reportLosses() {
	for {
		select {
		case <-n.closing:
			return
		case l := <-n.losses:
			n.reportLoss(l)
		}
		pause := time.NewTimer(lostPause)
		select {
		case <-n.closing:
		case <-pause.C:
		}
		pause.Stop()
	}
}

func (n *Node) reportLoss(l lostEntries) {
	ctx, cancel := context.WithTimeout(context.Background(), lostWait)
	defer cancel()
	if _, err := n.callNode(ctx, l.node, binary.BigEndian.AppendUint64([]byte{callLost}, l.index)); err != nil {
		n.log.Debug("could not notify a node that its log lost entries (its process may have exited for that reason)", "id", l.node.ID, "error", err)
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

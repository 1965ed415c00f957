package raftnode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// call is what a node asks of another one beside raft: one of the fields. The reply is a refusal; empty = the call was
// not refused.
type call struct {
	// Entry has one Member or Digest of the caller's own.
	Entry []byte `json:",omitempty"`
	// Lost is the index of an entry that the leader has this node's acknowledgement of. A node that has lost it ends and
	// does not reply.
	Lost uint64 `json:",omitempty"`
	// Timeout is the leader's, in ms.
	Timeout uint32 `json:",omitempty"`
	// Join is the peer address of the caller, which asks to be added to the cluster. Only this call is for nodes that are no
	// members, too.
	Join string `json:",omitempty"`
}

// refusal is why a node refused a call.
type refusal struct {
	Reason string
	Final  bool      `json:",omitempty"` // it is an ErrRefused
	Leader peer.Node `json:",omitzero"`  // the server to ask instead
}

func (r *refusal) Error() string { return r.Reason }

func (r *refusal) Is(target error) bool { return r.Final && target == ErrRefused }

// callNode calls another node.
func (n *Node) callNode(ctx context.Context, id raft.ServerID, address raft.ServerAddress, c call) error {
	ctx, cancel := context.WithTimeout(ctx, nodeCallTimeout)
	defer cancel()
	body, _ := json.Marshal(c) // bytes and numbers
	reply, err := n.network.Call(ctx, peer.Node{ID: string(id), Address: string(address)}, body)
	if err != nil || len(reply) == 0 {
		return err
	}
	refused := &refusal{}
	if json.Unmarshal(reply, refused) != nil {
		refused.Reason = "it refused in a form that this release does not know"
	}
	return fmt.Errorf("raftnode: %s: %w", peer.NameOf(id), refused)
}

// handleCall answers another node.
func (n *Node) handleCall(ctx context.Context, from peer.Server, body []byte) []byte {
	var c call
	err, in := json.Unmarshal(body, &c), n.instance.Load()
	switch {
	case err != nil:
	case in == nil:
		err = fmt.Errorf("%s runs no raft", n.cfg.ID)
	case c.Join != "":
		err = n.handleJoin(ctx, in, from, c.Join)
	case c.Entry != nil:
		err = n.handleCommand(ctx, in, from, c.Entry)
	case in.leader() != from.ID():
		err = fmt.Errorf("%s does not lead, as far as %s knows", from.Name, n.cfg.ID)
	case c.Timeout != 0:
		err = n.handleRetune(in, timeoutOf(c.Timeout))
	case c.Lost != 0:
		n.handleLoss(in, from, c.Lost)
	default:
		err = errors.New("unknown to this version")
	}
	if err == nil {
		return nil
	}
	refused, redirected := errors.AsType[*refusal](err)
	if !redirected {
		refused = &refusal{Reason: strings.TrimPrefix(err.Error(), "raftnode: "), Final: errors.Is(err, ErrRefused)}
	}
	reply, _ := json.Marshal(refused)
	return reply
}

// handleCommand proposes what another node announces of itself, and nothing else.
func (n *Node) handleCommand(ctx context.Context, in *instance, from peer.Server, bytes []byte) error {
	entry, err := fsm.DecodeEntry(bytes)
	if err != nil {
		return err
	}
	own := false
	if len(entry.Commands) == 1 && in.servers().has(from.ID()) {
		switch c := entry.Commands[0].(type) {
		case *fsm.Member:
			own = c.ID == from.Name && c.Incarnation == fsm.Incarnation(from.Incarnation)
		case *fsm.Digest:
			own = c.Node == from.Name
		}
	}
	if !own {
		return errors.New("a node may only announce itself, and as a member")
	}
	return n.proposeOwn(ctx, entry.Commands[0])
}

// A node whose log ends below what it acknowledged to its leader gets nothing more from that leader (package peer). It
// would still vote, for candidates that lack the same entries. So the leader notifies it, and it ends its process.

// reportLoss notifies a node of what it has lost. Package peer calls it for each append that it does not send, so one call
// at a time is enough.
//
// It is no part of the maintenance loop, which a slow disk of this node may hold up: the other node's votes are wrong
// until it is notified.
func (n *Node) reportLoss(node peer.Node, index uint64) {
	if !n.notifying.CompareAndSwap(false, true) {
		return
	}
	n.untilClose(func() {
		defer n.notifying.Store(false)
		if err := n.callNode(n.life, raft.ServerID(node.ID), raft.ServerAddress(node.Address), call{Lost: index}); err != nil {
			n.log.Debug("could not notify a node that its log lost entries (its process may have exited for that reason)", "id", node.ID, "error", err)
		}
		_ = pause(n.life, time.Second)
	})
}

// handleLoss ends the process if this node has acknowledged an entry to the leader that is not in its log.
func (n *Node) handleLoss(in *instance, from peer.Server, index uint64) {
	if last := in.raft.LastIndex(); last < index {
		n.fatal(fmt.Errorf("raftnode: %w", store.Damaged(n.store.LogName(),
			fmt.Sprintf("the log ends with entry %d, and the leader, %s, has this node's acknowledgement of entry %d", last, from.Name, index))))
	}
}

package raftnode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/raft"

	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/raftnode/tail"
)

// call is what a node asks of another one beside raft: one of the fields.
type call struct {
	// Entry has one Member or Digest of the caller's own.
	Entry []byte `json:",omitempty"`
	// Owe is the end of what the leader has this node's acknowledgement of, and this node's log has
	// lost.
	Owe *tail.End `json:",omitempty"`
	// Owed is what the caller owes. The reply has a tailAnswer.
	Owed *tail.End `json:",omitempty"`
	// Timeout is the leader's, in ms.
	Timeout uint32 `json:",omitempty"`
	// Join is the peer address of the caller, which asks to be added to the cluster. Only this call is for nodes that are no
	// members, too.
	Join string `json:",omitempty"`
}

// reply is what a node answers; empty = the call was not refused.
type reply struct {
	Refusal *refusal    `json:",omitempty"`
	Tail    *tailAnswer `json:",omitempty"`
}

// refusal is why a node refused a call.
type refusal struct {
	Reason string
	Final  bool      `json:",omitempty"` // it is an ErrRefused
	Leader peer.Node `json:",omitzero"`  // the server to ask instead
}

func (r *refusal) Error() string { return r.Reason }

func (r *refusal) Is(target error) bool { return r.Final && target == ErrRefused }

// callNode calls another node, which has nothing to answer.
func (n *Node) callNode(ctx context.Context, id raft.ServerID, address raft.ServerAddress, c call) error {
	_, err := n.query(ctx, id, address, c)
	return err
}

// query calls another node.
func (n *Node) query(ctx context.Context, id raft.ServerID, address raft.ServerAddress, c call) (reply, error) {
	ctx, cancel := context.WithTimeout(ctx, nodeCallTimeout)
	defer cancel()
	body, _ := json.Marshal(c) // bytes and numbers
	var r reply
	body, err := n.network.Call(ctx, peer.Node{ID: string(id), Address: string(address)}, body)
	if err != nil || len(body) == 0 {
		return r, err
	}
	if json.Unmarshal(body, &r) != nil {
		r.Refusal = &refusal{Reason: "it answered in a form that this release does not know"}
	}
	if r.Refusal != nil {
		return r, fmt.Errorf("raftnode: %s: %w", peer.NameOf(id), r.Refusal)
	}
	return r, nil
}

// handleCall answers another node.
func (n *Node) handleCall(ctx context.Context, from peer.Server, body []byte) []byte {
	var c call
	var r reply
	err, in := json.Unmarshal(body, &c), n.instance.Load()
	switch {
	case err != nil:
	case in == nil:
		err = fmt.Errorf("%s runs no raft", n.cfg.ID)
	case c.Join != "":
		err = n.handleJoin(ctx, in, from, c.Join)
	case c.Entry != nil:
		err = n.handleCommand(ctx, in, from, c.Entry)
	case c.Owed != nil:
		r.Tail, err = n.answerOwing(ctx, in, from, *c.Owed)
	case in.leader() != from.ID():
		err = fmt.Errorf("%s does not lead, as far as %s knows", from.Name, n.cfg.ID)
	case c.Timeout != 0:
		err = n.handleRetune(in, timeoutOf(c.Timeout))
	case c.Owe != nil:
		err = n.handleOwe(ctx, in, from, *c.Owe)
	default:
		err = errors.New("unknown to this version")
	}
	if err != nil {
		refused, redirected := errors.AsType[*refusal](err)
		if !redirected {
			refused = &refusal{Reason: strings.TrimPrefix(err.Error(), "raftnode: "), Final: errors.Is(err, ErrRefused)}
		}
		r = reply{Refusal: refused}
	}
	if r == (reply{}) {
		return nil
	}
	body, _ = json.Marshal(r)
	return body
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

package raftnode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/raftnode/tail"
)

// nodeRequest is a request of a node to another one, beside raft. It has one of the fields.
type nodeRequest struct {
	// Entry has one Member or Digest of the caller's own.
	Entry []byte `json:",omitempty"`
	// Owe is the end of what the called node has acknowledged to its leader, the caller, and has
	// lost.
	Owe *tail.End `json:",omitempty"`
	// TailQuery is what the caller owes. The reply has a tailAnswer.
	TailQuery *tail.End `json:",omitempty"`
	// Timeout is the leader's, in ms.
	Timeout uint32 `json:",omitempty"`
	// Join is the peer address of the caller, which wants to be added to the cluster. Nodes that
	// are no members may send only this.
	Join string `json:",omitempty"`
}

// nodeReply is the reply to a nodeRequest; empty = the request was done, and there is nothing to
// say.
type nodeReply struct {
	Error *nodeError  `json:",omitempty"`
	Tail  *tailAnswer `json:",omitempty"`
}

// nodeError is why the called node did not do a request.
type nodeError struct {
	Reason string
	Final  bool      `json:",omitempty"` // it is an ErrRefused
	Leader peer.Node `json:",omitzero"`  // the server to call instead
}

func (e *nodeError) Error() string { return e.Reason }

func (e *nodeError) Is(target error) bool { return e.Final && target == ErrRefused }

// call sends a request to another node, and returns its reply.
func (b *base) call(
	ctx context.Context, id raft.ServerID, address raft.ServerAddress,
	request nodeRequest) (nodeReply, error) {
	ctx, cancel := context.WithTimeout(ctx, nodeCallTimeout)
	defer cancel()
	body, _ := json.Marshal(request) // bytes and numbers
	var reply nodeReply
	body, err := b.network.Call(ctx, peer.Node{ID: string(id), Address: string(address)}, body)
	if err != nil || len(body) == 0 {
		return reply, err
	}
	if json.Unmarshal(body, &reply) != nil {
		reply.Error = &nodeError{Reason: "it replied in a form that this release does not know"}
	}
	if reply.Error != nil {
		return reply, fmt.Errorf("raftnode: %s: %w", peer.NameOf(id), reply.Error)
	}
	return reply, nil
}

// handleRequest replies to another node.
func (n *Node) handleRequest(ctx context.Context, from peer.Server, body []byte) []byte {
	var request nodeRequest
	var reply nodeReply
	err, run := json.Unmarshal(body, &request), n.runs.latest.Load()
	switch {
	case err != nil:
	case run == nil:
		err = fmt.Errorf("%s runs no raft", n.cfg.ID)
	case request.Join != "":
		err = n.changes.handleJoin(ctx, run, from, request.Join)
	case request.Entry != nil:
		err = n.handleCommand(ctx, run, from, request.Entry)
	case request.TailQuery != nil:
		reply.Tail, err = n.tailDebt.answer(ctx, run, from, *request.TailQuery)
	case run.leader() != from.ID():
		err = fmt.Errorf("%s does not lead, as far as %s knows", from.Name, n.cfg.ID)
	case request.Timeout != 0:
		if err = n.timing.take(run, timeoutOf(request.Timeout)); err == nil {
			n.wakeMaintenance() // to record and announce it
		}
	case request.Owe != nil:
		err = n.tailDebt.handleOwe(ctx, run, from, *request.Owe)
	default:
		err = errors.New("unknown to this version")
	}
	if err != nil {
		reply = nodeReply{Error: nodeErrorOf(err)}
	}
	if reply == (nodeReply{}) {
		return nil
	}
	body, _ = json.Marshal(reply)
	return body
}

// nodeErrorOf is what another node is sent of an error.
func nodeErrorOf(err error) *nodeError {
	if e, ok := errors.AsType[*nodeError](err); ok {
		return e
	}
	final := errors.Is(err, ErrRefused)
	if change, ok := errors.AsType[*ChangeError](err); ok {
		err = change.Reason // the caller knows what it requested
	}
	return &nodeError{Reason: err.Error(), Final: final}
}

// handleCommand proposes what another node announces of itself, and nothing else.
func (n *Node) handleCommand(ctx context.Context, run *raftRun, from peer.Server,
	bytes []byte) error {
	entry, err := fsm.DecodeEntry(bytes)
	if err != nil {
		return err
	}
	own := false
	if len(entry.Commands) == 1 && run.servers().has(from.ID()) {
		switch c := entry.Commands[0].(type) {
		case *fsm.Member:
			own = c.ID == from.Name && c.Incarnation == fsm.Incarnation(from.Incarnation)
		case *fsm.Digest:
			own = c.Node == from.Name && c.Index != 0 // only the leader asks
		}
	}
	if !own {
		return errors.New("a node may only announce itself, and as a member")
	}
	return n.announcer.proposeOwn(ctx, entry.Commands[0])
}

package raftnode

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"zamok/raftnode/peer"
)

// leaderlessMax is how long a node is without contact to a leader before it asks the others whether it was removed, and
// how often it asks again.
const leaderlessMax = 3 * time.Second

// ErrRemoved ends the process of a node that was removed from its cluster.
var ErrRemoved = errors.New("raftnode: this node was removed from its cluster, and its data directory can't come back; " +
	"to bring the machine back, start it with another, empty data directory and --join")

// askRemoved ends the process if this node has been removed. Raft does not notify a removed follower, which
// then asks for votes in vain. So a node without a leader asks the others. Only a committed
// configuration counts that is later than any that names this node: an uncommitted removal may be undone, and a node that
// lags behind may not know yet that this one joined.
func (n *Node) askRemoved(ctx context.Context, in *instance) {
	id := n.store.Identity()
	if !id.Bootstrapped || in.raft.State() == raft.Leader || time.Since(n.opened) < leaderlessMax ||
		time.Since(in.raft.LastContact()) < leaderlessMax || time.Since(n.asked) < leaderlessMax {
		return
	}
	n.asked = time.Now()
	listed := n.listedAt
	if now := n.state.committed.view(); now.has(n.self.ID()) {
		listed = max(listed, now.index)
	}
	for _, reply := range n.network.AskAll(ctx, n.others(in)) {
		theirs := reply.Answer
		if reply.Err == nil && theirs.Cluster == peer.ClusterID(id.Cluster) && !theirs.Listed && theirs.Configuration > listed {
			n.fatal(fmt.Errorf("%w (%s at %s reports it: the configuration that was committed at index %d does not name this node)",
				ErrRemoved, theirs.Name, reply.Node.Address, theirs.Configuration))
		}
	}
}

// others are the nodes that this one knows of: those of its latest configuration and of its list.
func (n *Node) others(in *instance) []peer.Node {
	known := map[string]bool{}
	var others []peer.Node
	add := func(name, address string) {
		if name != n.cfg.ID && !known[address] {
			known[address] = true
			others = append(others, peer.Node{ID: name, Address: address})
		}
	}
	for _, s := range in.servers() {
		add(peer.NameOf(s.ID), string(s.Address))
	}
	for _, node := range n.cfg.Peers.List.Nodes() {
		add(node.ID, node.Address)
	}
	return others
}

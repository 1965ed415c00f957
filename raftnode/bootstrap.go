package raftnode

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// askEvery is how often the others of the list are asked until they agree.
const askEvery = 250 * time.Millisecond

// start starts raft: on the data in the store, as an initial member of a new cluster, or as a node that waits to be added
// to a running one.
func (n *Node) start(ctx context.Context) error {
	var err error
	switch id := n.store.Identity(); {
	case n.store.HoldsData() && !id.Bootstrapped && id.Initial != "":
		// An initial member that wrote its first entry and crashed before the marker. A node that joins writes the marker
		// when it sees itself in a committed configuration.
		err = n.store.RecordCluster(store.ID{})
	case n.store.HoldsData():
	case len(n.cfg.Peers.List.Nodes()) > 0:
		err = n.bootstrapCluster(ctx)
	default:
		var cluster store.ID
		if cluster, err = n.learnCluster(ctx, id.Cluster); err == nil {
			err = n.awaitJoin(cluster)
		}
	}
	if err != nil {
		return err
	}
	return n.startInstance()
}

// bootstrapCluster asks the others of the list until this node has written the first entry of a new cluster, or
// another node answers that the cluster exists already.
func (n *Node) bootstrapCluster(ctx context.Context) error {
	logged, agreed := "", false
	for {
		d := peer.Decide(n.network.Mine(), n.network.AskAll(ctx, n.cfg.Peers.List.Nodes()))
		switch {
		case d.Action == peer.Agree:
			n.log.Info("initial members agreed", "members", d.Initial, "reason", d.Reason)
			if err := n.store.Bootstrap(d.Initial.String()); err != nil {
				return err
			}
			if first := !agreed; first {
				agreed = true
				continue // others that agreed before wait for this
			}
		case d.Action == peer.Bootstrap:
			n.log.Info("bootstrapping the cluster", "reason", d.Reason)
			return n.writeConfiguration(d.Initial.Configuration())
		case d.Action == peer.Refuse, d.Action == peer.JoinElsewhere && n.cfg.Join == (peer.List{}):
			return fmt.Errorf("raftnode: this node does not start: %s", d.Reason)
		case d.Action == peer.JoinElsewhere && d.Cluster != (peer.ClusterID{}):
			return n.awaitJoin(store.ID(d.Cluster))
		}
		if d.Reason != logged {
			n.log.Info("waiting for the initial members", "reason", d.Reason)
			logged = d.Reason
		}
		if err := pause(ctx, askEvery); err != nil {
			return fmt.Errorf("raftnode: the cluster has not begun, nothing was changed: %s (%w)", d.Reason, err)
		}
	}
}

// writeConfiguration writes the first entry of a new log. raft.BootstrapCluster refuses a directory that has a term,
// and leaves one if the process ends between its two writes, or the second fails. A term without an entry is safe to
// continue from: no node could have asked this one for a vote.
func (n *Node) writeConfiguration(servers raft.Configuration) error {
	const first = 1 // the index, and the term
	if n.store.Term() < first {
		if err := n.store.Votes().SetUint64([]byte("CurrentTerm"), first); err != nil {
			return err
		}
	}
	entry := &raft.Log{Index: first, Term: first, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(servers)}
	if err := n.store.Logs().StoreLog(entry); err != nil {
		return fmt.Errorf("raftnode: the first entry of the log was not written: %w; the cluster can begin when this node is started again", err)
	}
	return n.store.RecordCluster(store.ID{})
}

// awaitJoin prepares this node to be added to a running cluster.
func (n *Node) awaitJoin(cluster store.ID) error {
	if cluster == (store.ID{}) {
		n.log.Info("no data and no cluster: waiting to be added with \"zamok join\"", "id", n.cfg.ID, "peer", n.network.Addr())
		return nil
	}
	if err := n.store.Join(cluster); err != nil {
		return err
	}
	n.log.Info("no data: waiting to be added to the cluster", "id", n.cfg.ID, "peer", n.network.Addr(), "cluster", cluster)
	return n.network.SetCluster(peer.ClusterID(cluster))
}

// condition describes this node's data to a node that asks.
func (n *Node) condition(asker peer.Server) peer.Condition {
	// A node with any part of a log has made promises to others. HasData is read first: initial members that change
	// afterwards are not those of a bootstrapped cluster.
	c := peer.Condition{HasData: n.store.HoldsData() || n.state.committed.Load().index > 0}
	id := n.store.Identity()
	committed := n.state.committed.Load()
	c.Member, c.Configuration, c.Listed = id.Bootstrapped, committed.index, committed.servers.has(asker.ID())
	named := committed
	if committed.index < n.opened.index { // after a start it may be committed, and not be known to be
		named = &n.opened
	}
	c.NamesAt = named.index
	for _, s := range named.servers[:min(len(named.servers), namesMax)] {
		c.Names = append(c.Names, peer.NameOf(s.ID))
	}
	c.Initial, _ = peer.ParseInitialMembers(id.Initial) // Open has validated them
	if !c.HasData {
		if err := n.store.CheckSpace(); err != nil {
			c.Unready = err.Error()
		}
	} else if in := n.instance.Load(); in != nil && !in.hasReplayed() {
		c.Unready = fmt.Sprintf("replays its log: it has applied %d of %d entries", n.state.applied.Load(), in.raft.LastIndex())
	} else if n.store.Tail().Owes() {
		c.Unready = "owes what its log has lost"
	}
	return c
}

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

// admission gets this node into a cluster: as an initial member of a new one, or as a node that is
// added to a running one.
type admission struct {
	*base
	roster *roster
	runs   *raftRuns
}

// prepare prepares the start of raft: on the data in the store, as an initial member of a new
// cluster, or as a node that waits to be added to a running one.
func (a *admission) prepare(ctx context.Context) error {
	var err error
	switch id := a.store.Identity(); {
	case a.store.HoldsData() && !id.Bootstrapped && id.Initial != "":
		// An initial member that wrote its first entry and crashed before the marker. A node that
		// joins writes the marker when it sees itself in a committed configuration.
		err = a.store.RecordCluster(store.ID{})
	case a.store.HoldsData():
	case len(a.cfg.Peers.List.Nodes()) > 0:
		err = a.bootstrapCluster(ctx)
	default:
		var cluster store.ID
		if cluster, err = a.learnCluster(ctx, id.Cluster); err == nil {
			err = a.awaitJoin(cluster)
		}
	}
	return err
}

// bootstrapCluster asks the others of the list until this node has written the first entry of a new
// cluster, or another node answers that the cluster exists already.
func (a *admission) bootstrapCluster(ctx context.Context) error {
	logged, agreed := "", false
	for {
		d := peer.Decide(a.network.Mine(), a.network.AskAll(ctx, a.cfg.Peers.List.Nodes()))
		switch {
		case d.Action == peer.Agree:
			a.log.Info("initial members agreed", "members", d.Initial, "reason", d.Reason)
			if err := a.store.Bootstrap(d.Initial.String()); err != nil {
				return err
			}
			if first := !agreed; first {
				agreed = true
				continue // others that agreed before wait for this
			}
		case d.Action == peer.Bootstrap:
			a.log.Info("bootstrapping the cluster", "reason", d.Reason)
			return a.writeConfiguration(d.Initial.Configuration())
		case d.Action == peer.Refuse, d.Action == peer.JoinElsewhere && a.cfg.Join == (peer.List{}):
			return fmt.Errorf("raftnode: this node does not start: %s", d.Reason)
		case d.Action == peer.JoinElsewhere && d.Cluster != (peer.ClusterID{}):
			return a.awaitJoin(store.ID(d.Cluster))
		}
		if d.Reason != logged {
			a.log.Info("waiting for the initial members", "reason", d.Reason)
			logged = d.Reason
		}
		if err := sleep(ctx, askEvery); err != nil {
			return fmt.Errorf("raftnode: the cluster has not begun, nothing was changed: %s (%w)",
				d.Reason, err)
		}
	}
}

// writeConfiguration writes the first entry of a new log. raft.BootstrapCluster refuses a directory
// that has a term, and leaves one if the process ends between its two writes, or the second fails.
// A term without an entry is safe to continue from: no node could have requested a vote of this
// one.
func (a *admission) writeConfiguration(servers raft.Configuration) error {
	const first = 1 // the index, and the term
	if a.store.Term() < first {
		if err := a.store.Votes().SetUint64([]byte("CurrentTerm"), first); err != nil {
			return err
		}
	}
	entry := &raft.Log{Index: first, Term: first, Type: raft.LogConfiguration,
		Data: raft.EncodeConfiguration(servers)}
	if err := a.store.Logs().StoreLog(entry); err != nil {
		return fmt.Errorf("raftnode: the first entry of the log was not written: %w; the cluster "+
			"can begin when this node is started again", err)
	}
	return a.store.RecordCluster(store.ID{})
}

// awaitJoin prepares this node to be added to a running cluster.
func (a *admission) awaitJoin(cluster store.ID) error {
	if cluster == (store.ID{}) {
		a.log.Info("no data and no cluster: waiting to be added with \"zamok join\"", "id",
			a.cfg.ID, "peer", a.network.Addr())
		return nil
	}
	if err := a.store.Join(cluster); err != nil {
		return err
	}
	a.log.Info("no data: waiting to be added to the cluster", "id", a.cfg.ID, "peer",
		a.network.Addr(), "cluster", cluster)
	return a.network.SetCluster(peer.ClusterID(cluster))
}

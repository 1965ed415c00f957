package raftnode

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

const (
	maintenanceTick = time.Second
	// leaderlessMax is how long no leader has lasted when a node asks the others why, and the pause before it asks again.
	leaderlessMax = 3 * time.Second
	// nodeCallTimeout bounds one call to another node.
	nodeCallTimeout = 2 * time.Second
	// announceShare: free space is announced again when it has changed by 1/announceShare.
	announceShare = 10
	// snapshotWhenLow is how often a node with little disk space takes a snapshot, to compact its log.
	snapshotWhenLow = time.Minute
)

// maintain is the maintenance loop: what needs the disk or other nodes and must not hold up raft.
func (n *Node) maintain() {
	ctx := n.life
	tick := time.NewTicker(maintenanceTick)
	defer tick.Stop()
	var snapshotted time.Time
	var truncating atomic.Bool
	leaders := leaderWatch{lasted: time.Now()}
	var recorded time.Duration
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.maintainWake:
		case <-tick.C:
		}
		in := n.instance.Load()
		n.recordCluster()
		in.reloadTimeout()
		n.askOthers(ctx, in, &leaders)
		n.tuneTimeouts(ctx, in)
		recorded = n.recordTimeout(recorded)
		if n.shouldAnnounce(in) {
			n.send(ctx, in, new(n.announcement(in)))
		}
		n.exchangeDigests(ctx, in)
		n.checkFreeSpace(ctx)
		if n.instance.Load() != in {
			continue // raft was started again, to hand over; the next tick does the rest
		}
		isLow := n.store.IsLowSpace() && time.Since(snapshotted) > snapshotWhenLow
		if isLow {
			snapshotted = time.Now()
			n.log.Warn("low disk space: taking a snapshot to compact the log")
		}
		needsSnapshot := isLow || n.store.WantsSnapshot()
		if (needsSnapshot || n.store.IsLong()) && truncating.CompareAndSwap(false, true) {
			// Raft accepts the request when the previous snapshot is complete, which a stalled disk may delay: nothing
			// waits for that, and the goroutine ends with raft. Raft logs the outcome.
			go func() {
				defer truncating.Store(false)
				if needsSnapshot && in.raft.Snapshot().Error() != nil {
					return
				}
				_ = n.store.Shrink() // an error ends the process
			}()
		}
	}
}

// leaderWatch is how the maintenance loop knows whether a leader lasts.
type leaderWatch struct {
	term   uint64    // raft's, at the last check
	looked time.Time // when that was
	lasted time.Time // when there last was a leader of the same term as at the previous check, or the others were asked
}

// askOthers asks the other nodes, while no leader lasts, whether this one was removed, and how slowly they answer.
func (n *Node) askOthers(ctx context.Context, in *instance, w *leaderWatch) {
	now := time.Now()
	if now.Sub(w.looked) >= maintenanceTick {
		term := in.raft.CurrentTerm()
		if in.leader() != "" && term == w.term {
			w.lasted = now
		}
		w.looked, w.term = now, term
	}
	if now.Sub(w.lasted) < leaderlessMax || in.raft.State() == raft.Leader {
		return
	}
	w.lasted = now
	replies := n.network.AskAll(ctx, n.others(in))
	n.checkRemoved(replies)
	n.noteReported(replies)
	n.lengthenTimeout(in, replies, n.network.AskAll(ctx, n.others(in)))
}

// recordCluster records on disk that this node is a member, and of which cluster, once it knows.
func (n *Node) recordCluster() {
	var cluster fsm.ClusterID
	n.View(func(m *fsm.Machine) { cluster = m.Cluster() })
	if cluster != (fsm.ClusterID{}) {
		if err := n.network.SetCluster(peer.ClusterID(cluster)); err != nil {
			n.log.Error("could not set the cluster id of the peer network", "error", err)
			return
		}
	}
	id := n.store.Identity()
	if !n.state.committed.Load().servers.has(n.self.ID()) || id.Bootstrapped && id.Cluster == store.ID(cluster) {
		return // a node that joins is a member when that is committed
	}
	if err := n.store.RecordCluster(store.ID(cluster)); err != nil {
		n.log.Error("could not record the cluster id on disk", "error", err)
	}
}

// announcement is what this node announces.
func (n *Node) announcement(in *instance) fsm.Member {
	return fsm.Member{
		ID: n.cfg.ID, Incarnation: fsm.Incarnation(n.store.Identity().Incarnation),
		Client: n.cfg.Client, Peer: n.network.Addr().String(), HTTP: n.cfg.HTTP, Version: n.cfg.Version,
		StateVersionMin: n.cfg.Versions.Min, StateVersionMax: n.cfg.Versions.Max,
		FreeBytes: n.store.FreeBytes(), LowSpaceThreshold: n.store.LowSpace(),
		ElectionTimeout: uint32(n.timeout() / time.Millisecond), ElectionTimeoutFixed: uint32(n.cfg.ElectionTimeout / time.Millisecond),
	}
}

// shouldAnnounce reports whether the cluster's record of this node is out of date. A node that replays its log waits: it
// knows an old record.
func (n *Node) shouldAnnounce(in *instance) bool {
	mine, known := n.announcement(in), n.member(n.cfg.ID).Member
	low := known.FreeBytes < known.LowSpaceThreshold
	changed := max(mine.FreeBytes, known.FreeBytes) - min(mine.FreeBytes, known.FreeBytes)
	if low == (mine.FreeBytes < mine.LowSpaceThreshold) && changed <= known.FreeBytes/announceShare {
		mine.FreeBytes = known.FreeBytes
	}
	return in.leader() != "" && mine != known && in.hasReplayed()
}

// hasReplayed reports whether nearly everything in this node's log is in its state machine.
func (in *instance) hasReplayed() bool {
	return in.node.state.applied.Load()+joinLagMax >= in.raft.LastIndex()
}

// send proposes what this node announces, here or at the leader.
func (n *Node) send(ctx context.Context, in *instance, c fsm.Command) {
	err := error(&NotLeaderError{})
	if n.queue.open.Load() {
		err = n.proposeOwn(ctx, c)
	} else if address, id := in.raft.LeaderWithID(); id != "" && id != n.self.ID() {
		entry := fsm.Entry{Commands: []fsm.Command{c}}
		err = n.callNode(ctx, id, address, call{Entry: entry.Append(nil)})
	}
	if err != nil {
		n.log.Debug("could not announce this node, or report a state digest", "error", err)
	}
}

// proposeOwn proposes what a node announces of itself.
func (n *Node) proposeOwn(ctx context.Context, c fsm.Command) error {
	ctx, cancel := context.WithTimeout(ctx, nodeCallTimeout)
	defer cancel()
	a, err := n.Propose(ctx, c)
	if err == nil && a.Result.Code != fsm.OK {
		err = fmt.Errorf("refused: code %d", a.Result.Code)
	}
	return err
}

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
	// leaderlessMax is how long no leader has lasted when a node queries the others, and how long
	// it waits before the next query.
	leaderlessMax = 3 * time.Second
	// nodeCallTimeout bounds one call to another node.
	nodeCallTimeout = 2 * time.Second
	// announceShare: free space is announced again when it has changed by 1/announceShare.
	announceShare = 10
	// snapshotWhenLow is how often a node with little disk space takes a snapshot, to compact its
	// log.
	snapshotWhenLow = time.Minute
)

// maintain is the maintenance loop. It does what needs the disk or other nodes, and must not hold
// up raft.
func (n *Node) maintain() {
	ctx := n.life
	tick := time.NewTicker(maintenanceTick)
	defer tick.Stop()
	var snapshotted time.Time
	var truncating atomic.Bool
	leaders := leaderWatch{lasted: time.Now()}
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.maintainWake:
		case <-tick.C:
		}
		run := n.runs.latest.Load()
		n.recordCluster()
		run.reloadTimeout()
		n.queryOthers(ctx, run, &leaders)
		all, others := n.handover.voters(run)
		n.timing.tune(ctx, run, all, others, n.proposer.leads)
		n.timing.record()
		if n.announcer.isOutOfDate(run) {
			_ = n.announcer.send(ctx, run, new(n.announcer.announcement()))
		}
		n.endIfOutvoted(run, n.announcer.exchangeDigests(ctx, run))
		n.room.check(ctx)
		if n.runs.latest.Load() != run {
			continue // raft was started again, to hand over; the next tick does the rest
		}
		isLow := n.store.IsLowSpace() && time.Since(snapshotted) > snapshotWhenLow
		if isLow {
			snapshotted = time.Now()
			n.log.Warn("low disk space: taking a snapshot to compact the log")
		}
		needsSnapshot := isLow || n.store.WantsSnapshot()
		if (needsSnapshot || n.store.IsLong()) && truncating.CompareAndSwap(false, true) {
			// Raft accepts the request when the previous snapshot is complete, which a stalled disk
			// may delay: nothing waits for that, and the goroutine ends with raft. Raft logs the
			// outcome.
			go func() {
				defer truncating.Store(false)
				if needsSnapshot && run.raft.Snapshot().Error() != nil {
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
	// when there last was a leader of the same term as at the previous check, or the others were
	// queried
	lasted time.Time
}

// queryOthers queries the other nodes, while no leader lasts: whether this one was removed, and how
// slowly they reply.
func (n *Node) queryOthers(ctx context.Context, run *raftRun, w *leaderWatch) {
	now := time.Now()
	if now.Sub(w.looked) >= maintenanceTick {
		term := run.raft.CurrentTerm()
		if run.leader() != "" && term == w.term {
			w.lasted = now
		}
		w.looked, w.term = now, term
	}
	if now.Sub(w.lasted) < leaderlessMax || run.raft.State() == raft.Leader {
		return
	}
	w.lasted = now
	replies := n.network.AskAll(ctx, n.roster.others(run))
	n.roster.checkRemoved(replies)
	n.roster.learnConfiguration(replies)
	again := n.network.AskAll(ctx, n.roster.others(run))
	_, others := n.handover.voters(run)
	n.timing.lengthen(run, others, replies, again)
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
	if !n.state.committed.Load().servers.has(n.self.ID()) ||
		id.Bootstrapped && id.Cluster == store.ID(cluster) {
		return // a node that joins is a member when that is committed
	}
	if err := n.store.RecordCluster(store.ID(cluster)); err != nil {
		n.log.Error("could not record the cluster id on disk", "error", err)
	}
}

// announcer keeps the cluster's record of this node up to date.
type announcer struct {
	*base
	state    *state
	timing   *timing
	proposer *proposer
}

// announcement is what this node announces.
func (a *announcer) announcement() fsm.Member {
	return fsm.Member{
		ID: a.cfg.ID, Incarnation: fsm.Incarnation(a.store.Identity().Incarnation),
		Client: a.cfg.Client, Peer: a.network.Addr().String(), HTTP: a.cfg.HTTP,
		Version:         a.cfg.Version,
		StateVersionMin: a.cfg.Versions.Min, StateVersionMax: a.cfg.Versions.Max,
		FreeBytes: a.store.FreeBytes(), LowSpaceThreshold: a.store.LowSpace(),
		ElectionTimeout:      uint32(a.timing.timeout() / time.Millisecond),
		ElectionTimeoutFixed: uint32(a.cfg.ElectionTimeout / time.Millisecond),
	}
}

// isOutOfDate reports whether the cluster's record of this node is out of date. A node that replays
// its log waits, because it knows an old record.
func (a *announcer) isOutOfDate(run *raftRun) bool {
	mine, known := a.announcement(), a.state.member(a.cfg.ID).Member
	low := known.FreeBytes < known.LowSpaceThreshold
	changed := max(mine.FreeBytes, known.FreeBytes) - min(mine.FreeBytes, known.FreeBytes)
	if low == (mine.FreeBytes < mine.LowSpaceThreshold) &&
		changed <= known.FreeBytes/announceShare {
		mine.FreeBytes = known.FreeBytes
	}
	return run.leader() != "" && mine != known && run.hasReplayed()
}

// send proposes what this node announces, here or at the leader. An error is logged.
func (a *announcer) send(ctx context.Context, run *raftRun, c fsm.Command) error {
	err := error(&NotLeaderError{})
	if a.proposer.leads() {
		err = a.proposeOwn(ctx, c)
	} else if address, id := run.raft.LeaderWithID(); id != "" && id != a.self.ID() {
		entry := fsm.Entry{Commands: []fsm.Command{c}}
		_, err = a.call(ctx, id, address, nodeRequest{Entry: entry.Append(nil)})
	}
	if err != nil {
		a.log.Debug("could not announce this node, or report a state digest", "error", err)
	}
	return err
}

// proposeOwn proposes what a node announces of itself.
func (a *announcer) proposeOwn(ctx context.Context, c fsm.Command) error {
	ctx, cancel := context.WithTimeout(ctx, nodeCallTimeout)
	defer cancel()
	answer, err := a.proposer.propose(ctx, c)
	if err == nil && answer.Result.Code != fsm.OK {
		err = fmt.Errorf("refused: code %d", answer.Result.Code)
	}
	return err
}

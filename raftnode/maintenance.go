package raftnode

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

const (
	maintenanceTick = time.Second
	// nodeCallTimeout bounds one call to another node.
	nodeCallTimeout = 2 * time.Second
	// announceShare: free space is announced again when it has changed by 1/announceShare.
	announceShare = 10
	// snapshotWhenLow is how often a node with little disk space takes a snapshot, to compact its log.
	snapshotWhenLow = time.Minute
)

// maintain is the maintenance loop: what needs the disk or other nodes and must not hold up raft.
func (n *Node) maintain() {
	ctx, cancel := context.WithCancel(context.Background())
	n.busy.Go(func() {
		<-n.closing
		cancel() // ends the calls under way
	})
	tick := time.NewTicker(maintenanceTick)
	defer tick.Stop()
	var snapshotted time.Time
	for {
		select {
		case <-n.closing:
			return
		case <-n.maintainWake:
		case <-tick.C:
		}
		n.recordCluster()
		if in := n.running(); in != nil {
			in.setElectionTimeout()
			n.askRemoved(ctx, in)
		}
		n.tuneTimeouts(ctx)
		if n.shouldAnnounce() {
			if err := n.send(ctx, n.announcement()); err != nil {
				n.log.Debug("could not announce this node", "error", err)
			}
		}
		for _, d := range n.digests.toReport() {
			d.Node = n.cfg.ID
			if err := n.send(ctx, &d); err != nil {
				n.log.Debug("could not report a state digest", "error", err)
			}
		}
		n.checkDigests()
		n.checkFreeSpace(ctx)
		if low, _ := n.store.IsLowSpace(); low && time.Since(snapshotted) > snapshotWhenLow {
			snapshotted = time.Now()
			n.log.Warn("low disk space: taking a snapshot to compact the log")
			n.truncateLog()
		}
	}
}

// truncateLog makes raft take a snapshot, whose outcome raft logs. Raft accepts the request when the previous snapshot is
// complete, which a stalled disk may delay: the maintenance loop does not wait for that when the node closes, and the
// goroutine ends with raft, which is stopped next.
func (n *Node) truncateLog() {
	in := n.running()
	if in == nil {
		return
	}
	taken := make(chan struct{})
	go func() {
		defer close(taken)
		in.raft.Snapshot()
	}()
	select {
	case <-taken:
	case <-n.closing:
	}
}

// recordCluster records on disk that this node is a member, and of which cluster, once it knows.
func (n *Node) recordCluster() {
	var cluster fsm.ClusterID
	n.state.view(func(m *fsm.Machine) { cluster = m.Cluster() })
	if cluster != (fsm.ClusterID{}) {
		if err := n.network.SetCluster(peer.ClusterID(cluster)); err != nil {
			n.log.Error("could not set the cluster id of the peer network", "error", err)
			return
		}
	}
	id := n.store.Identity()
	if !n.state.committed.view().has(n.self.ID()) || id.Bootstrapped && id.Cluster == store.ID(cluster) {
		return // a node that joins is a member when that is committed
	}
	if err := n.store.RecordCluster(store.ID(cluster)); err != nil {
		n.log.Error("could not record the cluster id on disk", "error", err)
	}
}

// announcement is what this node announces.
func (n *Node) announcement() *fsm.Member {
	free, _ := n.store.FreeBytes()
	timeout := n.timeout()
	if in := n.running(); in != nil {
		timeout = in.timeout
	}
	return &fsm.Member{
		ID: n.cfg.ID, Incarnation: fsm.Incarnation(n.store.Identity().Incarnation),
		Client: n.cfg.Client, Peer: n.network.Addr().String(), HTTP: n.cfg.HTTP, Version: n.cfg.Version,
		StateVersionMin: n.cfg.Versions.Min, StateVersionMax: n.cfg.Versions.Max,
		FreeBytes: free, LowSpaceThreshold: n.store.LowSpace(),
		ElectionTimeout: uint32(timeout / time.Millisecond), ElectionTimeoutFixed: uint32(n.cfg.ElectionTimeout / time.Millisecond),
	}
}

// shouldAnnounce reports whether the cluster's record of this node is out of date.
func (n *Node) shouldAnnounce() bool {
	if id, _ := n.Leader(); id == "" {
		return false
	}
	mine := *n.announcement()
	var known fsm.MemberRecord
	n.state.view(func(m *fsm.Machine) { known, _ = m.Member(n.cfg.ID) })
	if (known.FreeBytes < known.LowSpaceThreshold) != (mine.FreeBytes < mine.LowSpaceThreshold) {
		return true
	}
	if changed := max(mine.FreeBytes, known.FreeBytes) - min(mine.FreeBytes, known.FreeBytes); changed > known.FreeBytes/announceShare {
		return true
	}
	mine.FreeBytes = known.FreeBytes
	return mine != known.Member
}

// send proposes a command of this node, here or at the leader.
func (n *Node) send(ctx context.Context, c fsm.Command) error {
	ctx, cancel := context.WithTimeout(ctx, nodeCallTimeout)
	defer cancel()
	if n.queue.isOpen() {
		a, err := n.Propose(ctx, c)
		if err == nil && a.Result.Code != fsm.OK {
			err = fmt.Errorf("refused: code %d", a.Result.Code)
		}
		return err
	}
	in := n.running()
	if in == nil {
		return ErrClosed
	}
	address, id := in.raft.LeaderWithID()
	if id == "" || id == n.self.ID() {
		return &NotLeaderError{}
	}
	return n.callCommandOn(ctx, peer.Node{ID: string(id), Address: string(address)}, c)
}

// checkDigests compares the reported digests.
func (n *Node) checkDigests() {
	in := n.running()
	if in == nil {
		return
	}
	d, found := n.digests.compare(in.voters())
	if !found {
		return
	}
	n.log.Error("ALARM: state digests of the nodes differ: a node computed another state from the same log", "index", d.index, "mine", d.mine, "reports", d.reports, "outvoted", d.outvoted)
	if !d.outvoted {
		return // no majority differs from this node: stopping would not help
	}
	if in.raft.State() == raft.Leader {
		in.transferLeadership()
	}
	n.fatal(fmt.Errorf("%w at index %d: a majority agrees on another digest than %x: %v", ErrDiverged, d.index, d.mine, d.reports))
}

// ErrDiverged ends the process of a node whose state differs from a majority's.
var ErrDiverged = errors.New("raftnode: the state of this node has diverged from that of a majority; start it with another, empty data directory and --join, which replaces this one")

func (in *instance) voters() []string {
	var voters []string
	for _, s := range in.servers() {
		if s.Suffrage == raft.Voter {
			voters = append(voters, peer.NameOf(s.ID))
		}
	}
	return voters
}

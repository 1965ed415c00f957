package raftnode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"zamok/fsm"
	"zamok/raftnode/peer"
)

const (
	// noticesMax is how many notices of leadership wait before raft's main loop has to wait; the supervisor takes them
	// without calling raft.
	noticesMax = 64
	// transferWait is how long an orderly stop waits for another leader, beyond an election.
	transferWait = 200 * time.Millisecond
	// entriesPerAppend bounds the entries of one message to a follower, and raft's batches.
	entriesPerAppend = 64
)

// instance is one run of raft. A node has one at a time, and a new one after a transfer: raft was
// seen to refuse everything when a leader that transferred its leadership is elected again (hashicorp/raft#696).
type instance struct {
	node       *Node
	raft       *raft.Raft
	transport  *peer.Transport
	notices    chan bool
	life       context.Context // until stop
	endLife    context.CancelFunc
	supervised chan struct{} // closed when the supervisor has ended
	over       chan struct{} // closed when raft has ended: futures that it has not answered fail
	stop       func() error  // end, once
	// timeout is the T that raft was opened with (timeout.go). Never changed.
	timeout time.Duration
	// cautiousUntil is how long this node does not campaign, because its watchdog ended it before. Never
	// changed; zero = no such thing.
	cautiousUntil time.Time
	// compacted is closed when this node has tried to make a snapshot to restart raft behind; nil = it has not begun. The
	// maintenance loop owns it.
	compacted chan struct{}
	// leadership is since raft made this node leader; nil = it is not. It changes before the queue is closed.
	leadership atomic.Pointer[leadership]
}

// leadership is one of this node, as raft sees it. The maintenance loop owns what changes, the search for T.
type leadership struct {
	since     time.Time                   // with its monotonic part: the wall clock may jump
	target    time.Duration               // the T that all nodes are to have
	calmSince time.Time                   // since when a shorter one would suffice
	asked     map[raft.ServerID]time.Time // when each node was asked to change to the target
}

// startInstance starts raft on what the store holds.
func (n *Node) startInstance() error {
	n.state.replace(fsm.NewWithVersions(n.cfg.Versions)) // raft replays it
	n.state.applied.Store(0)
	transport, err := n.network.Transport(raftLogger(n.log))
	if err != nil {
		return err
	}
	in := &instance{
		node: n, transport: transport, timeout: n.timeout(), notices: make(chan bool, noticesMax),
		supervised: make(chan struct{}), over: make(chan struct{}),
	}
	in.life, in.endLife = context.WithCancel(context.Background())
	cfg := in.raftConfig()
	if n.restartedByWatchdog() {
		n.log.Warn("restarted by the watchdog: not campaigning for a while", "while", cautious)
		in.cautiousUntil = time.Now().Add(cautious)
		cfg.HeartbeatTimeout, cfg.ElectionTimeout = cautious, cautious
	}
	if err := n.store.DropStale(); err != nil {
		return errors.Join(err, transport.Close())
	}
	if in.raft, err = raft.NewRaft(cfg, &n.state, &n.proposals, n.store.Votes(), n.store.Snapshots(), transport); err != nil {
		return errors.Join(fmt.Errorf("raftnode: raft did not start: %w", err), transport.Close())
	}
	in.stop = sync.OnceValue(in.end)
	n.instance.Store(in)
	transport.Start(in.raft)
	go in.supervise()
	return nil
}

// setElectionTimeout delays this node's campaigns after a restart by the watchdog or while its disk is full, or restores
// the usual timeout. A leader with a full disk could not even open an epoch; if all disks were full, the nodes would
// depose each other forever.
func (in *instance) setElectionTimeout() {
	timeout := in.timeout
	if l := in.leadership.Load(); l != nil && in.raft.State() == raft.Leader && l.target < timeout {
		timeout = max(l.target, in.lease()) // so that its heartbeats are in time for the nodes that have the shorter one already
	}
	if time.Now().Before(in.cautiousUntil) || in.node.store.CheckSpace() != nil {
		timeout = max(timeout, cautious)
	}
	c := in.raft.ReloadableConfig()
	if c.ElectionTimeout == timeout {
		return
	}
	in.node.log.Info("election timeout changed", "timeout", timeout)
	c.HeartbeatTimeout, c.ElectionTimeout = timeout, timeout
	if err := in.raft.ReloadConfig(c); err != nil {
		in.node.log.Error("could not change the election timeout; the previous one stays in force", "error", err)
	}
}

// led is since when this node leads, as far as raft has said; zero = it does not.
func (in *instance) led() (since time.Time) {
	if l := in.leadership.Load(); l != nil {
		since = l.since
	}
	return since
}

// leader is the server that leads, as far as this node knows; "" = none is known.
func (in *instance) leader() raft.ServerID {
	_, id := in.raft.LeaderWithID()
	return id
}

// lease is how long a leader continues without an answer from a majority.
func (in *instance) lease() time.Duration { return in.timeout / 2 }

func (in *instance) raftConfig() *raft.Config {
	n := in.node
	c := raft.DefaultConfig()
	c.LocalID = n.self.ID()
	c.HeartbeatTimeout, c.ElectionTimeout = in.timeout, in.timeout
	c.LeaderLeaseTimeout = in.lease()
	c.CommitTimeout = min(c.CommitTimeout, in.timeout/4)
	c.MaxAppendEntries = entriesPerAppend
	c.BatchApplyCh = true
	c.SnapshotThreshold, c.TrailingLogs = n.cfg.SnapshotEntries, n.cfg.SnapshotEntries
	c.SnapshotInterval = n.cfg.SnapshotEvery
	c.ShutdownOnRemove = true
	c.NotifyCh = in.notices
	c.NoLegacyTelemetry = true
	c.Logger = raftLogger(n.log)
	return c
}

// compact makes a snapshot before this node restarts raft without need, and reports whether that is over. Raft would replay up to
// some 40 s of log, with the processors that others need as well, and take no entries until it has; a snapshot is made while it
// takes them.
func (in *instance) compact() bool {
	if in.compacted == nil {
		done := make(chan struct{})
		in.compacted = done
		go func() { // ends with raft, which logs the outcome: without a snapshot, the restart takes longer
			_ = waitAnswered(in.over, in.raft.Snapshot()).Error()
			close(done)
			in.node.wakeMaintenance()
		}()
	}
	select {
	case <-in.compacted:
		return true
	default:
		return false
	}
}

// reopen restarts raft, unless that has happened already, or the node is closing.
func (n *Node) reopen(old *instance) {
	n.changing <- struct{}{}
	defer func() { <-n.changing }()
	if n.instance.Load() != old || n.life.Err() != nil {
		return
	}
	if err := old.stop(); err != nil {
		n.log.Warn("raft shut down with an error", "error", err)
	}
	if err := n.startInstance(); err != nil {
		n.fatal(fmt.Errorf("raftnode: raft did not start again: %w", err))
	}
}

// leading returns the running raft if this node leads.
func (n *Node) leading() (*instance, error) {
	in := n.instance.Load()
	if !n.queue.open.Load() {
		return nil, n.notLeader()
	}
	return in, nil
}

// servers are those of raft's latest configuration, which may not be committed.
func (in *instance) servers() servers { return in.raft.GetConfiguration().Configuration().Servers }

// mayPostpone reports whether this node may send entries to the followers before they are on its own disk: they
// are commands of the term in which it leads, and no majority is complete without a follower. Raft calls the log
// on the goroutine that changes the configuration.
func (n *Node) mayPostpone(entries []*raft.Log) bool {
	in := n.instance.Load()
	if in == nil || in.raft.State() != raft.Leader {
		return false
	}
	term := in.raft.CurrentTerm()
	if slices.ContainsFunc(entries, func(e *raft.Log) bool { return e.Type != raft.LogCommand || e.Term != term }) {
		return false
	}
	voters := 0
	for _, s := range in.servers() {
		if s.Suffrage == raft.Voter {
			voters++
		}
	}
	return voters > 1
}

// waitFor waits for a future of raft, or until ctx ends: then the outcome is unknown.
func (in *instance) waitFor(ctx context.Context, future raft.Future) error {
	done := make(chan error, 1)
	go func() { done <- waitAnswered(in.over, future).Error() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w (%w)", ErrUnknown, context.Cause(ctx))
	}
}

// end ends raft: first the streams, so that nothing more is answered and a leader notices; then, when raft has answered
// what is in flight, raft itself. The wait is bounded, because raft was seen not to answer (hashicorp/raft#498), above
// all when it has ended already.
func (in *instance) end() error {
	err := in.transport.Close()
	in.endLife()
	limit := time.NewTimer(2 * in.timeout) // a leader's lease ends after half of one
	defer limit.Stop()
	select {
	case <-in.supervised:
	case <-limit.C:
	}
	err = errors.Join(err, in.raft.Shutdown().Error())
	close(in.over)
	<-in.supervised
	return err
}

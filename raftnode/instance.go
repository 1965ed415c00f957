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
	opened     time.Time
	raft       *raft.Raft
	transport  *peer.Transport
	notices    chan bool
	life       context.Context // until stop
	endLife    context.CancelFunc
	supervised chan struct{} // closed when the supervisor has ended
	over       chan struct{} // closed when raft has ended: futures that it has not answered fail
	stop       func() error  // end, once
	// shortest is the T that raft leads with, and the least that it can follow with (timeout.go). Never changed.
	shortest time.Duration
	// cautiousUntil is how long this node does not campaign, because its watchdog ended it before. Never
	// changed; zero = no such thing.
	cautiousUntil time.Time
	// leadership is since raft made this node leader; nil = it is not. It changes before the queue is closed.
	leadership atomic.Pointer[leadership]
}

// leadership is one of this node, as raft sees it.
type leadership struct {
	since     time.Time // with its monotonic part: the wall clock may jump
	calmSince time.Time // since when a shorter T would suffice; of the maintenance loop
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
		node: n, opened: time.Now(), transport: transport, shortest: n.shortest(), notices: make(chan bool, noticesMax),
		supervised: make(chan struct{}), over: make(chan struct{}),
	}
	in.life, in.endLife = context.WithCancel(context.Background())
	cfg := in.raftConfig()
	if n.restartedByWatchdog() {
		n.log.Warn("restarted by the watchdog: not campaigning for a while", "while", cautious)
		in.cautiousUntil = time.Now().Add(cautious)
		cfg.HeartbeatTimeout, cfg.ElectionTimeout = in.raftTimeouts()
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

// shortest is the T that raft leads with. No leader goes below one that this node's operator has chosen; but the heartbeats of this
// node, which come after a tenth to a fifth of it, must be in time for nodes that do not know the choice yet.
func (n *Node) shortest() time.Duration {
	if n.cfg.ElectionTimeout != 0 {
		return min(n.cfg.ElectionTimeout, 3*timeoutMin)
	}
	return timeoutMin
}

// raftTimeouts are raft's timeouts now. A leader keeps the short one of heartbeats. A node does not campaign for a while
// after a restart by the watchdog, or while its disk is full: a leader with a full disk could not even open an epoch; if all
// disks were full, the nodes would depose each other forever.
func (in *instance) raftTimeouts() (heartbeat, election time.Duration) {
	t := max(in.node.timeout(), in.shortest)
	switch {
	case in.leadership.Load() != nil:
		return in.shortest, t
	case time.Now().Before(in.cautiousUntil) || in.node.store.CheckSpace() != nil:
		return max(t, cautious), max(t, cautious)
	}
	return t, t
}

// reloadTimeout has raft take its timeouts.
func (in *instance) reloadTimeout() {
	n := in.node
	n.reloading.Lock()
	defer n.reloading.Unlock()
	in.transport.SetPatience(leaseFor(max(n.timeout(), in.shortest)) - in.shortest)
	c := in.raft.ReloadableConfig()
	heartbeat, election := in.raftTimeouts()
	if c.HeartbeatTimeout == heartbeat && c.ElectionTimeout == election {
		return
	}
	n.log.Debug("reloading raft's timeouts", "heartbeat", heartbeat, "election", election)
	c.HeartbeatTimeout, c.ElectionTimeout = heartbeat, election
	if err := in.raft.ReloadConfig(c); err != nil {
		n.log.Error("could not change the election timeout; the previous one stays in force", "error", err)
	}
}

// mayCampaign reports whether this node may ask for votes. One that gave way recently votes for
// others, and campaigns only after it has heard no leader for yieldTimeouts.
func (n *Node) mayCampaign() bool {
	if !n.moves.gaveWay(time.Now()) {
		return true
	}
	in := n.instance.Load()
	heard := in.opened
	if contact := in.raft.LastContact(); contact.After(heard) {
		heard = contact
	}
	return time.Since(heard) >= yieldTimeouts*n.timeout()
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

func (in *instance) raftConfig() *raft.Config {
	n := in.node
	c := raft.DefaultConfig()
	c.LocalID = n.self.ID()
	c.HeartbeatTimeout = max(n.timeout(), in.shortest)
	c.ElectionTimeout = c.HeartbeatTimeout
	c.LeaderLeaseTimeout = in.shortest // the longest that raft accepts; see SetPatience
	c.CommitTimeout = min(c.CommitTimeout, in.shortest/4)
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
	limit := time.NewTimer(2 * in.node.timeout()) // a leader's lease ends earlier
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

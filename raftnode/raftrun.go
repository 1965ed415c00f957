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
	// notifyChSize is how many changes of leadership may be unread before raft's main loop has to
	// wait; the supervisor reads them without calling raft.
	notifyChSize = 64
	// transferWait is how long an orderly stop waits for another leader, beyond an election.
	transferWait = 200 * time.Millisecond
	// entriesPerAppend bounds the entries of one message to a follower, and raft's batches.
	entriesPerAppend = 64
)

// raftRuns starts hashicorp/raft, and starts it again after a transfer of the leadership.
type raftRuns struct {
	*base
	state               *state
	timing              *timing
	proposer            *proposer
	restartedByWatchdog func() bool
	latest              atomic.Pointer[raftRun] // it has ended in between, and after Close
	// restarting has capacity 1. It is full while raft is stopped or replaced, which may take as
	// long as a disk stalls.
	restarting chan struct{}
	reloadMu   sync.Mutex // held while raft takes the timeouts
}

// raftRun is one run of hashicorp/raft. A node has one at a time, and a new one after a transfer:
// raft was seen to reject everything when a leader that transferred its leadership is elected again
// (hashicorp/raft#696).
type raftRun struct {
	runs       *raftRuns
	proposer   *proposer
	opened     time.Time
	raft       *raft.Raft
	transport  *peer.Transport
	notifyCh   chan bool
	life       context.Context // until stop
	endLife    context.CancelFunc
	supervised chan struct{} // closed when the supervisor has ended
	over       chan struct{} // closed when raft has ended: futures that it has not completed fail
	stop       func() error  // end, once
	// shortest is the T that raft leads with, and the least that it can follow with (timeout.go).
	// Never changed.
	shortest time.Duration
	// cautiousUntil is until when this node does not campaign, because its watchdog ended the
	// previous process. Never changed; zero = the watchdog did not.
	cautiousUntil time.Time
	// leadership is that of this node; nil = it does not lead. It changes before the queue is
	// closed.
	leadership atomic.Pointer[leadership]
}

// leadership is a leadership of this node, from raft's point of view: its epoch begins later.
type leadership struct {
	since     time.Time // with its monotonic part: the wall clock may jump
	calmSince time.Time // since when a shorter T would suffice; of the maintenance loop
}

// start starts raft on what the store holds.
func (rs *raftRuns) start() error {
	rs.state.replace(fsm.NewWithVersions(rs.cfg.Versions)) // raft replays it
	rs.state.applied.Store(0)
	transport, err := rs.network.Transport(raftLogger(rs.log))
	if err != nil {
		return err
	}
	run := &raftRun{
		runs: rs, proposer: rs.proposer, opened: time.Now(), transport: transport,
		shortest: shortestTimeout(rs.cfg.ElectionTimeout), notifyCh: make(chan bool, notifyChSize),
		supervised: make(chan struct{}), over: make(chan struct{}),
	}
	run.life, run.endLife = context.WithCancel(context.Background())
	cfg := run.raftConfig()
	if rs.restartedByWatchdog() {
		rs.log.Warn("restarted by the watchdog: not campaigning for a while", "while", cautious)
		run.cautiousUntil = time.Now().Add(cautious)
		cfg.HeartbeatTimeout, cfg.ElectionTimeout = run.raftTimeouts()
	}
	if err := rs.store.DropStale(); err != nil {
		return errors.Join(err, transport.Close())
	}
	if run.raft, err = raft.NewRaft(cfg, rs.state, &rs.proposer.proposals, rs.store.Votes(),
		rs.store.Snapshots(), transport); err != nil {
		return errors.Join(fmt.Errorf("raftnode: raft did not start: %w", err), transport.Close())
	}
	run.stop = sync.OnceValue(run.end)
	rs.latest.Store(run)
	transport.Start(run.raft)
	go run.supervise()
	return nil
}

// shortestTimeout is the T (timeout.go) that raft leads with. It is the one that the operator has
// chosen, up to a bound: the heartbeats of this node, which come after a tenth to a fifth of it,
// must be in time for nodes that do not know the choice yet.
func shortestTimeout(fixed time.Duration) time.Duration {
	if fixed != 0 {
		return min(fixed, 3*timeoutMin)
	}
	return timeoutMin
}

// raftTimeouts are raft's timeouts now. A leader keeps the short one for its heartbeats. A node
// does not campaign for a while after a restart by the watchdog, or while its disk is full. A
// leader with a full disk could not even open an epoch, and if all disks were full, the nodes would
// depose each other forever.
func (run *raftRun) raftTimeouts() (heartbeat, election time.Duration) {
	t := max(run.runs.timing.timeout(), run.shortest)
	switch {
	case run.leadership.Load() != nil:
		return run.shortest, t
	case time.Now().Before(run.cautiousUntil) || run.runs.store.CheckSpace() != nil:
		return max(t, cautious), max(t, cautious)
	}
	return t, t
}

// reloadTimeout hands raft its present timeouts.
func (run *raftRun) reloadTimeout() {
	rs := run.runs
	rs.reloadMu.Lock()
	defer rs.reloadMu.Unlock()
	run.transport.SetLeaseExtension(leaseFor(max(rs.timing.timeout(), run.shortest)) - run.shortest)
	c := run.raft.ReloadableConfig()
	heartbeat, election := run.raftTimeouts()
	if c.HeartbeatTimeout == heartbeat && c.ElectionTimeout == election {
		return
	}
	rs.log.Debug("reloading raft's timeouts", "heartbeat", heartbeat, "election", election)
	c.HeartbeatTimeout, c.ElectionTimeout = heartbeat, election
	if err := run.raft.ReloadConfig(c); err != nil {
		rs.log.Error("could not change the election timeout; the previous one stays in force",
			"error", err)
	}
}

// ledSince is when raft made this node leader; zero = it does not lead.
func (run *raftRun) ledSince() (since time.Time) {
	if l := run.leadership.Load(); l != nil {
		since = l.since
	}
	return since
}

// leader is the server that leads, as far as this node knows; "" = none is known.
func (run *raftRun) leader() raft.ServerID {
	_, id := run.raft.LeaderWithID()
	return id
}

func (run *raftRun) raftConfig() *raft.Config {
	rs := run.runs
	c := raft.DefaultConfig()
	c.LocalID = rs.self.ID()
	c.HeartbeatTimeout = max(rs.timing.timeout(), run.shortest)
	c.ElectionTimeout = c.HeartbeatTimeout
	c.LeaderLeaseTimeout = run.shortest // the longest that raft accepts; see SetLeaseExtension
	c.CommitTimeout = min(c.CommitTimeout, run.shortest/4)
	c.MaxAppendEntries = entriesPerAppend
	c.BatchApplyCh = true
	c.SnapshotThreshold, c.TrailingLogs = rs.cfg.SnapshotEntries, rs.cfg.SnapshotEntries
	c.SnapshotInterval = rs.cfg.SnapshotEvery
	c.ShutdownOnRemove = true
	c.NotifyCh = run.notifyCh
	c.NoLegacyTelemetry = true
	c.Logger = raftLogger(rs.log)
	return c
}

// restart replaces a run of raft by a new one, unless that has happened already or the node is
// closing.
func (rs *raftRuns) restart(old *raftRun) {
	rs.restarting <- struct{}{}
	defer func() { <-rs.restarting }()
	if rs.latest.Load() != old || rs.life.Err() != nil {
		return
	}
	if err := old.stop(); err != nil {
		rs.log.Warn("raft shut down with an error", "error", err)
	}
	if err := rs.start(); err != nil {
		rs.fatal(fmt.Errorf("raftnode: raft did not start again: %w", err))
	}
}

// leading returns the running raft if this node leads.
func (rs *raftRuns) leading() (*raftRun, error) {
	run := rs.latest.Load()
	if !rs.proposer.leads() {
		return nil, rs.proposer.notLeader()
	}
	return run, nil
}

// servers are those of raft's latest configuration, which may not be committed.
func (run *raftRun) servers() servers { return run.raft.GetConfiguration().Configuration().Servers }

// mayPostpone reports whether this node may send entries to the followers before they are on its
// own disk (W2): they are commands of the term in which it leads, and each majority needs a
// follower. Raft calls the log on the goroutine that changes the configuration, so this one does
// not change meanwhile.
func (rs *raftRuns) mayPostpone(entries []*raft.Log) bool {
	run := rs.latest.Load()
	if run == nil || run.raft.State() != raft.Leader {
		return false
	}
	term := run.raft.CurrentTerm()
	if slices.ContainsFunc(entries,
		func(e *raft.Log) bool { return e.Type != raft.LogCommand || e.Term != term }) {
		return false
	}
	voters := 0
	for _, s := range run.servers() {
		if s.Suffrage == raft.Voter {
			voters++
		}
	}
	return voters > 1
}

// contact is this leader's contact with another server. A server that has not responded in this
// leadership counts as if it had responded when that began, with an unknown log.
func (run *raftRun) contact(id raft.ServerID, led time.Time) peer.Contact {
	c := run.transport.Contact(id)
	if !c.At.After(led) {
		c.At, c.LastLog = led, 0
	}
	return c
}

// hasReplayed reports whether nearly everything in this node's log is in its state machine.
func (run *raftRun) hasReplayed() bool {
	return run.runs.state.applied.Load()+joinLagMax >= run.raft.LastIndex()
}

// oldestWait is for how long the oldest entry, or the opening of the epoch, has been waiting to be
// committed, and for how long it may. What an entry takes on a slow line is no fault of this node.
func (run *raftRun) oldestWait(now time.Time) (waits, may time.Duration) {
	since, bytes := run.proposer.proposals.uncommitted(run.raft.CommitIndex())
	if since.IsZero() && !run.proposer.leads() {
		since = run.ledSince()
	}
	if !since.IsZero() {
		waits = now.Sub(since)
	}
	return waits, max(run.runs.timing.timeout(), commitBound) +
		time.Duration(bytes)*time.Second/peer.RateMin
}

// waitFor waits for a future of raft, or until ctx ends: then the outcome is unknown.
func (run *raftRun) waitFor(ctx context.Context, future raft.Future) error {
	done := make(chan error, 1)
	go func() { done <- failWhenOver(run.over, future).Error() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w (%w)", ErrUnknown, context.Cause(ctx))
	}
}

// end ends raft. First it closes the streams, so that this node responds to nothing more, and
// ceases to lead for want of responses. When raft has completed what is in flight, it shuts raft
// down. The wait is bounded: raft was seen to leave futures incomplete (hashicorp/raft#498), above
// all when it has ended already.
func (run *raftRun) end() error {
	err := run.transport.Close()
	run.endLife()
	limit := time.NewTimer(2 * run.runs.timing.timeout()) // a leader's lease ends earlier
	defer limit.Stop()
	select {
	case <-run.supervised:
	case <-limit.C:
	}
	err = errors.Join(err, run.raft.Shutdown().Error())
	close(run.over)
	<-run.supervised
	return err
}

package raftnode

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
)

// A leader whose disk hangs stays leader forever: its heartbeats run on other goroutines
// (hashicorp/raft#503, #666), and so does one whose main loop is stuck. Nobody else can depose it,
// so it ends its own process. A follower's end would help nobody: it only says that it is not ready.
const (
	watchTick = 500 * time.Millisecond
	// A write may take writeMax, and up to writeSpread more, fixed by the node's id: disks that
	// three nodes share must not end all of them at one moment.
	writeMax    = 3 * time.Second
	writeSpread = 2 * time.Second
	// loopMax is how long raft's main loop, or the machine, may leave an entry lying.
	loopMax = 5 * time.Second
	// epochMax is how long after raft's notice the epoch may take to open.
	epochMax = 5 * time.Second
	// stuckPause is how long a process lives at least before the watchdog may end it, so that a
	// sick machine is restarted once a minute at most.
	stuckPause = time.Minute
	// cautious is how long a node does not campaign after its watchdog ended it, or while its disk is
	// full, unless nobody leads for one to two times as long.
	cautious = 10 * time.Second
	// stuckNoteMax is how long the watchdog waits to write down that it ends the process.
	stuckNoteMax = 200 * time.Millisecond
)

// ErrStuck ends the process of a leader that can't lead.
var ErrStuck = errors.New("raftnode: this leader is stuck and makes room for another")

// watch is the watchdog.
func (n *Node) watch() {
	began := time.Now()
	awake := awakeTracker{looked: began}
	tick := time.NewTicker(watchTick)
	defer tick.Stop()
	for {
		select {
		case <-n.closing:
			return
		case <-tick.C:
		}
		awake.observe(time.Now())
		in := n.running()
		if in != nil && in.raft.State() == raft.Shutdown && n.running() == in {
			// Nothing else ends raft while it is the one that runs: as the leader it has committed its own removal.
			n.fatal(ErrRemoved)
		}
		if in == nil || in.ledSince.Load() == nil || n.state.restoring.Load() > 0 {
			continue
		}
		stuck := n.stuck(in, time.Now(), awake)
		if stuck == nil {
			continue
		}
		if time.Since(began) < stuckPause {
			n.log.Warn("stalled, but started too recently to exit for it", "reason", stuck)
			continue
		}
		n.writeStuckNote(stuck)
		n.fatal(stuck)
	}
}

// awakeTracker is since when the process runs without a standstill. While it is stopped (SIGSTOP, a virtual
// machine that is moved) nothing in it continues, and that says nothing about its disk.
type awakeTracker struct{ looked, since time.Time }

// observe is called at every tick. One that comes late by another tick was held up by a standstill.
func (a *awakeTracker) observe(now time.Time) {
	if now.Sub(a.looked) > 2*watchTick {
		a.since = now
	}
	a.looked = now
}

// awakeSince is how long what began at a moment has been continuing in a process that ran.
func (a *awakeTracker) awakeSince(began, now time.Time) time.Duration {
	if began.Before(a.since) {
		began = a.since
	}
	return now.Sub(began)
}

// stuck says in what way this leader is stuck, or nil.
func (n *Node) stuck(in *instance, now time.Time, awake awakeTracker) error {
	if w, writing := n.store.Writing(); writing && awake.awakeSince(w.Since, now) > writeMax+n.spread() {
		return fmt.Errorf("%w: a write (%v) has been going on for %v", ErrStuck, w.Op, now.Sub(w.Since))
	}
	if since := in.epochSince.Load(); since != nil && awake.awakeSince(*since, now) > epochMax {
		return fmt.Errorf("%w: raft made it leader and its epoch did not open for %v", ErrStuck, now.Sub(*since))
	}
	lying := n.proposals.stalled(in.raft.CommitIndex(), now)
	if !lying.IsZero() && awake.awakeSince(lying, now) > loopMax && in.raft.State() == raft.Leader {
		return fmt.Errorf("%w: an entry has been lying here for %v, not for want of other nodes", ErrStuck, now.Sub(lying))
	}
	return nil
}

func (n *Node) spread() time.Duration {
	h := fnv.New32a()
	h.Write([]byte(n.cfg.ID))
	return time.Duration(h.Sum32()) % writeSpread
}

func (n *Node) stuckNotePath() string { return filepath.Join(n.cfg.Store.Dir, "stuck") }

// writeStuckNote leaves word for the next start. The disk may hang, so it is not waited for.
func (n *Node) writeStuckNote(stuck error) {
	if n.cfg.Store.Dir == "" {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = os.WriteFile(n.stuckNotePath(), []byte(stuck.Error()+"\n"), 0o600)
	}()
	limit := time.NewTimer(stuckNoteMax)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	}
}

// restartedByWatchdog takes the word that the watchdog left, if it is fresh.
func (n *Node) restartedByWatchdog() bool {
	if n.cfg.Store.Dir == "" {
		return false
	}
	info, err := os.Stat(n.stuckNotePath())
	if err != nil {
		return false
	}
	_ = os.Remove(n.stuckNotePath())
	return time.Since(info.ModTime()) < stuckPause
}

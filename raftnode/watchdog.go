package raftnode

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
)

// A leader whose disk or main loop stalls stays leader forever: its heartbeats run on other goroutines
// (hashicorp/raft#503, #666). No other node can depose it. If it could not give way either
// (progress.go), it ends its own process. The end of a follower would not help: it only reports
// that it is not ready.
const (
	watchTick = 500 * time.Millisecond
	// A write may take writeMax, and up to writeSpread more, by the node's id: a disk that three nodes share must not end
	// all of them at one moment.
	writeMax    = 3 * time.Second
	writeSpread = 2 * time.Second
	// loopMax is how long raft's main loop, or the state machine, may leave a proposal waiting.
	loopMax = 5 * time.Second
	// epochMax is how long an epoch may take to open after raft's notice.
	epochMax = 5 * time.Second
	// stuckPause is how long a process runs at least before the watchdog may end it, so that it restarts at most once a
	// minute.
	stuckPause = time.Minute
	// cautious is how long a node does not campaign after its watchdog ended it, or while its disk is full, unless there is
	// no leader for one to two times as long.
	cautious = 10 * time.Second
	// stuckNoteMax bounds the write of the note that the watchdog ends the process.
	stuckNoteMax = 200 * time.Millisecond
)

// ErrStuck ends the process of a leader that can't lead.
var ErrStuck = errors.New("raftnode: this leader stalls; the process exits so that another node can lead")

// watch is the watchdog.
func (n *Node) watch() {
	began := time.Now()
	awake := awakeTracker{looked: began}
	for pause(n.life, watchTick) == nil {
		now := time.Now()
		awake.observe(now)
		in := n.instance.Load()
		if in.led().IsZero() || n.state.restoring.Load() > 0 {
			continue
		}
		switch stuck := n.stuck(in, now, awake); {
		case stuck == nil:
		case now.Sub(began) < stuckPause:
			n.log.Warn("stalled, but started too recently to exit for it", "reason", stuck)
		default:
			n.writeStuckNote(stuck)
			n.fatal(stuck)
		}
	}
}

// awakeTracker is since when the process runs without a pause. While it is paused (SIGSTOP, a virtual machine that is
// moved) nothing in it continues, whatever its disk does.
type awakeTracker struct{ looked, since time.Time }

// observe is called at every tick. One that is late by another tick was delayed by a pause.
func (a *awakeTracker) observe(now time.Time) {
	if now.Sub(a.looked) > 2*watchTick {
		a.since = now
	}
	a.looked = now
}

// awakeSince is how long an operation has been going on while the process ran.
func (a *awakeTracker) awakeSince(began, now time.Time) time.Duration {
	return min(now.Sub(began), now.Sub(a.since))
}

// stuck is why this leader counts as stalled, or nil.
func (n *Node) stuck(in *instance, now time.Time, awake awakeTracker) error {
	if w, writing := n.store.Writing(); writing && awake.awakeSince(w.Since, now) > writeLimit(n.cfg.ID) {
		return fmt.Errorf("%w: a write (%v) has been going on for %v", ErrStuck, w.Op, now.Sub(w.Since))
	}
	open, led := n.queue.open.Load(), in.led() // in this order: an epoch that has just ended is none that did not open
	if !open && !led.IsZero() && awake.awakeSince(led, now) > epochMax {
		return fmt.Errorf("%w: raft made it leader and its epoch did not open for %v", ErrStuck, now.Sub(led))
	}
	waiting := n.proposals.stalled(in.raft.CommitIndex(), now)
	if !waiting.IsZero() && awake.awakeSince(waiting, now) > loopMax && in.raft.State() == raft.Leader {
		return fmt.Errorf("%w: a proposal has been waiting for local I/O for %v", ErrStuck, now.Sub(waiting))
	}
	return nil
}

// writeLimit is how long a write of a node may take. Ids that differ in their last digit have limits far apart.
func writeLimit(id string) time.Duration {
	sum := sha256.Sum256([]byte(id))
	return writeMax + time.Duration(binary.BigEndian.Uint32(sum[:]))%writeSpread
}

// stuckNotePath is where the watchdog leaves a note for the next start; "" = nowhere, all data is in memory.
func (n *Node) stuckNotePath() string {
	if n.cfg.Store.Dir == "" {
		return ""
	}
	return filepath.Join(n.cfg.Store.Dir, "stuck")
}

// writeStuckNote leaves a note for the next start. The disk may stall, so the wait is bounded.
func (n *Node) writeStuckNote(stuck error) {
	ctx, written := context.WithTimeout(context.Background(), stuckNoteMax)
	go func() {
		defer written()
		_ = os.WriteFile(n.stuckNotePath(), []byte(stuck.Error()+"\n"), 0o600)
	}()
	<-ctx.Done()
}

// restartedByWatchdog removes the note of the watchdog and reports whether there was a recent one.
func (n *Node) restartedByWatchdog() bool {
	info, err := os.Stat(n.stuckNotePath())
	if err != nil {
		return false
	}
	_ = os.Remove(n.stuckNotePath())
	return time.Since(info.ModTime()) < stuckPause
}

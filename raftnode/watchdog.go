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

	"zamok/raftnode/store"
)

// A leader whose disk or main loop stalls stays leader forever: its heartbeats run on other
// goroutines (hashicorp/raft#503, #666). No other node can depose it. If it could not give way
// either (progress.go), it ends its own process. The end of a follower would not help: it only
// shows that it is not ready.
const (
	watchTick = 500 * time.Millisecond
	// A write may take writeMax, and up to writeSpread more, by the node's id: a disk that three
	// nodes share must not end all of them at one moment.
	writeMax    = 3 * time.Second
	writeSpread = 2 * time.Second
	// loopMax is how long raft's main loop, or the state machine, may leave a proposal waiting.
	loopMax = 5 * time.Second
	// epochMax is how long an epoch may take to open after raft has made this node leader.
	epochMax = 5 * time.Second
	// watchdogInterval is how long a process must run before the watchdog may end it, so that it
	// restarts at most once a minute.
	watchdogInterval = time.Minute
	// cautious is the election timeout of a node after its watchdog ended it, or while its disk is
	// full: it campaigns only if there is no leader for one to two times as long.
	cautious = 10 * time.Second
	// stuckFileMax bounds the write of the file which says that the watchdog ends the process.
	stuckFileMax = 200 * time.Millisecond
)

// ErrStuck ends the process of a leader that can't lead.
var ErrStuck = errors.New(
	"raftnode: this leader stalls; the process exits so that another node can lead")

// watchdog ends the process of a leader that stalls.
type watchdog struct {
	*base
	state    *state
	proposer *proposer
	runs     *raftRuns
}

// watch is the watchdog's loop.
func (wd *watchdog) watch() {
	began := time.Now()
	awake := awakeTracker{looked: began}
	for sleep(wd.life, watchTick) == nil {
		now := time.Now()
		awake.observe(now)
		run := wd.runs.latest.Load()
		if run.ledSince().IsZero() || wd.state.restoring.Load() > 0 {
			continue
		}
		switch stuck := wd.sample(run, now).stuck(awake, now, writeLimit(wd.cfg.ID)); {
		case stuck == nil:
		case now.Sub(began) < watchdogInterval:
			wd.log.Warn("stalled, but started too recently to exit for it", "reason", stuck)
		default:
			wd.writeStuckFile(stuck)
			wd.fatal(stuck)
		}
	}
}

// awakeTracker tracks since when the process has run without a pause. While it is paused (SIGSTOP,
// a virtual machine that is moved) nothing in it continues, whatever its disk does.
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

// stallSamples are since when a leader has been busy with something; zero = it is not.
type stallSamples struct {
	write   store.InProgress // with its kind
	opening time.Time        // of its epoch, since raft made it leader
	// proposal is since when one has been waiting for local I/O. It is read only if nothing else
	// stalls, because reading it marks what is committed.
	proposal func() time.Time
}

func (wd *watchdog) sample(run *raftRun, now time.Time) (s stallSamples) {
	s.write, _ = wd.store.Writing()
	// In this order: an epoch that has just ended did open.
	open, led := wd.proposer.leads(), run.ledSince()
	if !open {
		s.opening = led
	}
	s.proposal = func() time.Time {
		since := wd.proposer.proposals.stalled(run.raft.CommitIndex(), now)
		if run.raft.State() != raft.Leader {
			return time.Time{}
		}
		return since
	}
	return s
}

// stuck is why a leader counts as stalled, or nil: one of these takes too long.
//
//	a write                       the limit of the node (writeLimit)
//	the opening of its epoch      epochMax
//	a proposal, for local I/O     loopMax
func (s stallSamples) stuck(awake awakeTracker, now time.Time, limit time.Duration) error {
	exceeds := func(since time.Time, limit time.Duration) bool {
		return !since.IsZero() && awake.awakeSince(since, now) > limit
	}
	if exceeds(s.write.Since, limit) {
		return fmt.Errorf("%w: a write (%v) has been going on for %v", ErrStuck, s.write.Op,
			now.Sub(s.write.Since))
	}
	if exceeds(s.opening, epochMax) {
		return fmt.Errorf("%w: raft made it leader and its epoch did not open for %v", ErrStuck,
			now.Sub(s.opening))
	}
	if waiting := s.proposal(); exceeds(waiting, loopMax) {
		return fmt.Errorf("%w: a proposal has been waiting for local I/O for %v", ErrStuck,
			now.Sub(waiting))
	}
	return nil
}

// writeLimit is how long a write of a node may take. Ids that differ in their last digit have
// limits far apart.
func writeLimit(id string) time.Duration {
	sum := sha256.Sum256([]byte(id))
	return writeMax + time.Duration(binary.BigEndian.Uint32(sum[:]))%writeSpread
}

// stuckFilePath is the file that the watchdog leaves for the next start; "" = none, all data is in
// memory.
func (wd *watchdog) stuckFilePath() string {
	if wd.cfg.Store.Dir == "" {
		return ""
	}
	return filepath.Join(wd.cfg.Store.Dir, "stuck")
}

// writeStuckFile leaves a file for the next start. The disk may stall, so the wait is bounded.
func (wd *watchdog) writeStuckFile(stuck error) {
	ctx, written := context.WithTimeout(context.Background(), stuckFileMax)
	go func() {
		defer written()
		_ = os.WriteFile(wd.stuckFilePath(), []byte(stuck.Error()+"\n"), 0o600)
	}()
	<-ctx.Done()
}

// restarted removes the file of the watchdog and reports whether there was a recent one.
func (wd *watchdog) restarted() bool {
	info, err := os.Stat(wd.stuckFilePath())
	if err != nil {
		return false
	}
	_ = os.Remove(wd.stuckFilePath())
	return time.Since(info.ModTime()) < watchdogInterval
}

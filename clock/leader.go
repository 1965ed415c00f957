package clock

import "sync"

// StepMax is the most that one reading of a Leader can add. A leader that did
// not look at its clock for longer was not serving either (paused, swapped out,
// stuck behind its disk), and what passed meanwhile must not age a session whose
// renewals waited outside. A leader reads every 20–50 ms, so in
// a healthy leader nothing is ever cut off.
const StepMax = 100 * Millisecond

// Leader is the running clock of one epoch. It may be used by several
// goroutines at once: the one that stamps entries and the one that ticks do.
// It owns no goroutine; an epoch that is over just stops reading it.
type Leader struct {
	src   Source
	epoch uint64

	mu        sync.Mutex
	lastRead  Instant // The most that each clock has shown at a reading. Guarded by mu.
	now       Time    // C1: never falls, never faster than either clock. Guarded by mu.
	discarded Span    // Guarded by mu.
}

// StartLeader starts the clock of an epoch at the machine's time base. Call it
// *after* the epoch's LeaderStart was applied, with the time that the machine
// had then, and after the process's previous epoch has stopped: the proof in
// the package comment stands on both.
func StartLeader(src Source, epoch uint64, base Time) *Leader {
	return &Leader{src: src, epoch: epoch, lastRead: src.Now(), now: base}
}

// Read is a step of the clock, not a look at it: it adds what has passed since
// the latest reading, at most StepMax. A reading that lagged behind would give
// the renewals in its entry a deadline too early by the lag (C2).
//
// What has passed is what the slower of the two clocks says *of this step*: a
// leader's time may always be slow but never fast. Of two totals the lesser would
// run fast: a clock that was slow makes up for it. A suspended leader served no
// client, and one of its clocks may stand then. A clock that goes back adds
// nothing, and nothing again until it has made up for it.
func (l *Leader) Read() Reading {
	l.mu.Lock()
	defer l.mu.Unlock()
	// The source is read under the mutex, so that readings leave in the order
	// of what they show.
	reading := l.src.Now()
	elapsed := l.lastRead.Until(reading)
	l.lastRead = l.lastRead.Later(reading)
	if elapsed > 0 {
		step := min(elapsed, StepMax)
		l.now = l.now.Add(step)
		l.discarded = addSaturated(l.discarded, elapsed-step)
	}
	return Reading{Epoch: l.epoch, Now: l.now}
}

// Discarded is the total of what StepMax has cut off so far: by so much longer live
// the leases of those who have died. It belongs in a metric.
func (l *Leader) Discarded() Span {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.discarded
}

// Reading is what a leader writes at the head of an entry: which epoch it
// holds, and what the clock of that epoch shows.
type Reading struct {
	// Epoch is the index of the LeaderStart that began it; never zero.
	Epoch uint64
	Now   Time
}

// Advance is the machine's one rule of time: what the time is after an entry
// that carries r, when it was t before. epoch is the epoch in force at that
// entry: the index of the latest LeaderStart, or zero when there is none,
// *which is so from the first entry of another term than that LeaderStart's*
// (an epoch ends with its term). Keeping that second half is the caller's duty;
// the package comment shows what goes wrong without it.
//
// A reading counts only in its own epoch, and even there time never falls. A
// reading that does not count makes time stand still, which ends no lease early.
func Advance(t Time, epoch uint64, r Reading) Time {
	if epoch == 0 || r.Epoch != epoch {
		return t
	}
	return max(t, r.Now)
}

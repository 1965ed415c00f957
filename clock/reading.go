package clock

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

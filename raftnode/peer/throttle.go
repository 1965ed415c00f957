package peer

import (
	"time"

	"github.com/hashicorp/raft"
)

const (
	// appendTimeTarget is how long the entries of one append may be on their way, beyond a round trip.
	// Heartbeats and votes share the line with them. The rate follows when an append takes less than half of
	// it, or more than twice.
	appendTimeTarget = 200 * time.Millisecond
	// rateMin and rateMax bound the rate, in bytes a second, that appends to a server are cut for;
	// rateInitial is where it begins.
	rateMin, rateInitial, rateMax = 32 << 10, 5 << 20, 80 << 20
	// entryOverheadBytes is about what an entry takes on the line beside its data.
	entryOverheadBytes = 64
	// progressEvery is how often the progress of a server that is being caught up is logged.
	progressEvery = 10 * time.Second
)

// throttle is how fast a server takes entries, as measured by this node. Raft puts up to 64 entries into an
// append, whatever their size, and gives it a fixed time; what a slow line can't bring there within that time
// would be sent again and again. So an append is cut to what the line brings there within appendTimeTarget,
// but for one entry, and its time-out follows its size.
type throttle struct {
	rate      float64       // bytes a second; at least as fast as a server has been, or to be tried
	roundTrip time.Duration // about the shortest round trip of late; 0 = none seen
	// Of the append that is under way: its bytes, and until when it may take; zero = it has no connection
	// yet.
	inFlightBytes int
	deadline      time.Time
	catchUp       progress // of the appends in a row behind which there is more
}

// limit shortens a request. Raft continues from what was sent: it looks at the entries again after the call.
func (p *throttle) limit(args *raft.AppendEntriesRequest) {
	p.inFlightBytes, p.deadline = 0, time.Time{}
	for i, entry := range args.Entries {
		size := len(entry.Data) + len(entry.Extensions) + entryOverheadBytes
		if i > 0 && p.inFlightBytes+size > p.batchBytes() {
			args.Entries = args.Entries[:i]
			return
		}
		p.inFlightBytes += size
	}
}

// batchBytes is how many bytes go with one append.
func (p *throttle) batchBytes() int { return int(p.rate * appendTimeTarget.Seconds()) }

// extendDeadline returns the deadline of the append under way: that which every call has, plus twice what its
// size takes.
func (p *throttle) extendDeadline(at time.Time) time.Time {
	p.deadline = at.Add(2 * time.Duration(float64(p.inFlightBytes)/p.rate*float64(time.Second)))
	return p.deadline
}

// observeRoundTrip notes the round trip of an append without entries.
func (p *throttle) observeRoundTrip(took time.Duration) {
	if slower := p.roundTrip + p.roundTrip/64 + 1; p.roundTrip > 0 {
		took = min(took, slower) // the line may have become another
	}
	p.roundTrip = max(took, 1)
}

// observeAppend notes what became of the append under way.
func (p *throttle) observeAppend(took time.Duration, err error) {
	measured, full := float64(p.inFlightBytes)/took.Seconds(), p.inFlightBytes >= p.batchBytes()/2
	switch took -= min(took, p.roundTrip); {
	case err != nil && !p.deadline.IsZero() && !time.Now().Before(p.deadline):
		p.rate = max(min(p.rate/4, measured), rateMin)
	case err == nil && full && took > 2*appendTimeTarget && measured < p.rate:
		p.rate = max(measured, p.rate/4, rateMin)
	case err == nil && full && took < appendTimeTarget/2:
		p.rate = min(2*p.rate, rateMax)
	}
}

// progress is how far a transfer is, which is logged every progressEvery. The zero value is one that has not
// begun.
type progress struct {
	began, logged time.Time
	bytes         int
}

// add counts bytes, and returns the bytes a second if it is time to log them.
func (p *progress) add(n int) (rate int, due bool) {
	now := time.Now()
	if p.began.IsZero() {
		p.began, p.logged = now, now
	}
	p.bytes += n
	if due = now.Sub(p.logged) >= progressEvery; due {
		p.logged = now
		rate = int(float64(p.bytes) / now.Sub(p.began).Seconds())
	}
	return rate, due
}

// report returns what there is to log of a server that took an append of some bytes, and may have fallen
// behind.
func (p *progress) report(bytes int, args *raft.AppendEntriesRequest) (message string, attrs []any) {
	last := args.PrevLogEntry + uint64(len(args.Entries))
	if last >= args.LeaderCommitIndex {
		if p.logged.After(p.began) {
			message, attrs = "peer caught up", []any{"index", last}
		}
		*p = progress{}
	} else if rate, due := p.add(bytes); due {
		message, attrs = "peer catching up", []any{"at", last, "of", args.LeaderCommitIndex, "bytes_per_second", rate}
	}
	return message, attrs
}

// throttledConn is a connection for entries.
type throttledConn struct {
	*stream
	to *follower // guarded by the mutex of the stream's owner
}

// SetDeadline is called once for each append, before it is sent.
func (c throttledConn) SetDeadline(at time.Time) error {
	c.owner.mu.Lock()
	at = c.to.throttle.extendDeadline(at)
	c.owner.mu.Unlock()
	return c.stream.SetDeadline(at)
}

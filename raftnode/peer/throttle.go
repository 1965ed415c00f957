package peer

import (
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// appendTimeTarget is how long the entries of one append may be on their way, beyond a round
	// trip. Heartbeats and votes share the line with them. The rate follows when an append takes
	// less than half of it, or more than twice.
	appendTimeTarget = 200 * time.Millisecond
	// RateMin and rateMax bound the rate, in bytes a second, that appends to a server are cut for;
	// rateInitial is where it begins.
	RateMin, rateInitial, rateMax = 32 << 10, 5 << 20, 80 << 20
	// entryOverheadBytes is about what an entry takes on the line beside its data.
	entryOverheadBytes = 64
	// progressEvery is how often the progress of a server that is being caught up is logged.
	progressEvery = 10 * time.Second
	// snapshotStallTimeout is for how long no byte of a snapshot may move before its transfer is
	// over, at both ends.
	snapshotStallTimeout = 10 * time.Second
	// bufferedBytesMax is how much of what was sent may still lie in buffers of the two machines,
	// and is unseen for it; bufferedRateMin the bytes a second at which they empty at least.
	bufferedBytesMax, bufferedRateMin = 8 << 20, 64 << 10
)

// throttle is how fast a server takes entries, as measured by this node. Raft puts up to 64 entries
// into an append, whatever their size, and gives it a fixed time; what a slow line can't bring
// there within that time would be sent again and again. So an append is cut to what the line brings
// there within appendTimeTarget, but for one entry, and its time-out follows its size.
type throttle struct {
	rate      float64       // bytes a second; at least as fast as a server has been, or to be tried
	roundTrip time.Duration // see Contact.Trip
	// Of the append that is under way: its bytes, and until when it may take; zero = it has no
	// connection yet.
	inFlightBytes int
	deadline      time.Time
	catchUp       progress // of the appends in a row behind which there is more
}

// limit shortens a request. Raft continues from what was sent: it looks at the entries again after
// the call.
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

// extendDeadline returns the deadline of the append under way: that which every call has, plus
// twice what its size takes.
func (p *throttle) extendDeadline(at time.Time) time.Time {
	p.deadline = at.Add(2 * time.Duration(float64(p.inFlightBytes)/p.rate*float64(time.Second)))
	return p.deadline
}

// observeRoundTrip records the round trip of an append without entries. A hundred that are longer
// raise it from one millisecond to hundreds.
func (p *throttle) observeRoundTrip(took time.Duration) {
	if slower := p.roundTrip + p.roundTrip/16 + 1; p.roundTrip > 0 {
		took = min(took, slower) // the line may have become another
	}
	p.roundTrip = max(took, 1)
}

// observeAppend records what became of the append under way.
func (p *throttle) observeAppend(took time.Duration, err error) {
	measured, full := float64(p.inFlightBytes)/took.Seconds(), p.inFlightBytes >= p.batchBytes()/2
	switch took -= min(took, p.roundTrip); {
	case err != nil && !p.deadline.IsZero() && !time.Now().Before(p.deadline):
		p.rate = max(min(p.rate/4, measured), RateMin)
	case err == nil && full && took > 2*appendTimeTarget && measured < p.rate:
		p.rate = max(measured, p.rate/4, RateMin)
	case err == nil && full && took < appendTimeTarget/2:
		p.rate = min(2*p.rate, rateMax)
	}
}

// progress is how far a transfer is, which is logged every progressEvery. The zero value is one
// that has not begun.
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

// logLine returns what there is to log of a server that took an append of some bytes, and may have
// fallen behind.
func (p *progress) logLine(bytes int,
	args *raft.AppendEntriesRequest) (message string, attrs []any) {
	last := args.PrevLogEntry + uint64(len(args.Entries))
	if last >= args.LeaderCommitIndex {
		if p.logged.After(p.began) {
			message, attrs = "peer caught up", []any{"index", last}
		}
		*p = progress{}
	} else if rate, due := p.add(bytes); due {
		message, attrs = "peer catching up",
			[]any{"at", last, "of", args.LeaderCommitIndex, "bytes_per_second", rate}
	}
	return message, attrs
}

// throttledConn is a connection for entries.
type throttledConn struct {
	*outboundConn
	to *follower // guarded by the mutex of the stream's owner
}

// SetDeadline is called once for each append, before it is sent.
func (c throttledConn) SetDeadline(at time.Time) error {
	c.owner.mu.Lock()
	at = c.to.throttle.extendDeadline(at)
	c.owner.mu.Unlock()
	return c.outboundConn.SetDeadline(at)
}

// snapshotConn is a connection for one snapshot. It lives as long as bytes move: nothing is known
// of how long the snapshot will take. What has been written may lie in a buffer yet, so the answer
// may take as long again as the writing took and, for the buffers, longer.
type snapshotConn struct {
	*outboundConn
	began time.Time
	sent  int
}

// SetDeadline is called once, before the snapshot is sent. The deadline comes of the size, not of
// what happens.
func (c *snapshotConn) SetDeadline(time.Time) error {
	c.began = time.Now()
	return nil
}

func (c *snapshotConn) Write(b []byte) (written int, err error) {
	const step = 16 << 10
	for written < len(b) && err == nil {
		if err = c.SetWriteDeadline(time.Now().Add(snapshotStallTimeout)); err != nil {
			break
		}
		var n int
		n, err = c.outboundConn.Write(b[written:min(len(b), written+step)])
		written += n
	}
	c.sent += written
	return written, err
}

func (c *snapshotConn) Read(b []byte) (int, error) {
	buffered := time.Duration(min(c.sent, bufferedBytesMax)) * time.Second / bufferedRateMin
	if err := c.SetReadDeadline(
		time.Now().Add(snapshotStallTimeout + time.Since(c.began) + buffered)); err != nil {
		return 0, err
	}
	return c.outboundConn.Read(b)
}

// outgoingSnapshot is a snapshot that is read to be sent, and logs now and then how far it is.
type outgoingSnapshot struct {
	io.Reader
	progress
	log  *slog.Logger
	to   raft.ServerID
	size int64
}

func (s *outgoingSnapshot) Read(b []byte) (int, error) {
	n, err := s.Reader.Read(b)
	if rate, due := s.add(n); due {
		s.log.Info("sending a snapshot", "node", s.to, "bytes", s.bytes, "of", s.size,
			"bytes_per_second", rate)
	}
	return n, err
}

// Repeated is the longest of what was measured three times within one of the latest ten seconds.
// Once or twice says nothing about the next time: a machine, or all nodes together, may have been
// stopped. The zero value is ready.
type Repeated struct {
	mu sync.Mutex
	// when the first was measured; seconds count from there
	began time.Time
	// of a second, the longest last; each second at its number modulo repeatedSeconds
	longest [repeatedSeconds][3]time.Duration
	second  [repeatedSeconds]int64 // which one that is
}

const repeatedSeconds = 10

// Add records a measurement.
func (r *Repeated) Add(now time.Time, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.began.IsZero() {
		r.began = now
	}
	second := max(int64(now.Sub(r.began)/time.Second), 0) // now may have been read before began was
	i := second % repeatedSeconds
	if r.second[i] != second {
		r.second[i], r.longest[i] = second, [3]time.Duration{}
	}
	r.longest[i][0] = max(r.longest[i][0], took)
	slices.Sort(r.longest[i][:])
}

// Now returns it; 0 = nothing was measured so often.
func (r *Repeated) Now(now time.Time) (longest time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, second := range r.second {
		if int64(now.Sub(r.began)/time.Second)-second <= repeatedSeconds {
			longest = max(longest, r.longest[i][0])
		}
	}
	return longest
}

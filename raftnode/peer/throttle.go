package peer

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// appendTime is how long the entries of one append may be on their way, beyond a round trip. Heartbeats and
	// votes share the line with them. Half of it and twice it are what it is measured by.
	appendTime = 200 * time.Millisecond
	// rateMin and rateMax bound the rate, in bytes a second, that appends to a server are cut for; rateInitial is
	// where it begins.
	rateMin, rateInitial, rateMax = 32 << 10, 5 << 20, 80 << 20
	// entryOverhead is what an entry has on the line beside its data, about.
	entryOverhead = 64
	// snapshotStall is for how long no byte of a snapshot may move before its transfer is over, at both ends.
	snapshotStall = 10 * time.Second
	// unseenBytes is how much of what was sent may still lie in buffers of the two machines, and is unseen for it;
	// unseenRate the bytes a second at which they empty at least.
	unseenBytes, unseenRate = 8 << 20, 64 << 10
	// refusedPause is how long a server that did not take entries is not sent any.
	refusedPause = time.Second
	// progressEvery is how often the progress of a server that is being caught up is logged.
	progressEvery = 10 * time.Second
)

// throttle is how fast a server takes entries, as far as this node has seen. Raft puts up to 64 entries into an
// append, whatever their size, and gives it a fixed time; what a slow line can't bring there within that
// time would be sent again and again. So an append is cut to what the line brings there within appendTime,
// but for one entry, and its time-out follows its size.
type throttle struct {
	trips WorstRoundTrip // round trips of heartbeats

	mu        sync.Mutex
	rate      float64       // bytes a second; at least as fast as a server has been, or to be tried
	roundTrip time.Duration // about the shortest round trip of late; 0 = none seen
	// Of the append that is under way: its bytes, and until when it may take; zero = it has no connection yet.
	sending     int
	deadline    time.Time
	pausedUntil time.Time // until when no entries are sent, since the server did not take the last ones
	// catching is the run of appends behind which there is more: since when, at what rate, and when it was logged.
	catching struct {
		since, logged time.Time
		bytes         int
	}
}

func entryBytes(e *raft.Log) int { return len(e.Data) + len(e.Extensions) + entryOverhead }

// cut shortens a request. Raft continues from what was sent: it looks at the entries again after the call.
func (p *throttle) cut(args *raft.AppendEntriesRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sending, p.deadline = 0, time.Time{}
	for i, entry := range args.Entries {
		size := entryBytes(entry)
		if i > 0 && p.sending+size > p.batch() {
			args.Entries = args.Entries[:i]
			return
		}
		p.sending += size
	}
}

// batch is how many bytes go with one append.
func (p *throttle) batch() int { return int(p.rate * appendTime.Seconds()) }

// until makes of the deadline that every call has that of the append under way: it is later by twice what its size
// takes.
func (p *throttle) until(at time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = at.Add(2 * time.Duration(float64(p.sending)/p.rate*float64(time.Second)))
	return p.deadline
}

// pauseAfterRefusal notes that the server did not take entries that fit its log.
func (p *throttle) pauseAfterRefusal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pausedUntil = time.Now().Add(refusedPause)
}

// waitAfterRefusal waits until entries may be sent again.
func (p *throttle) waitAfterRefusal(ctx context.Context) {
	p.mu.Lock()
	left := time.Until(p.pausedUntil)
	p.mu.Unlock()
	if left <= 0 {
		return
	}
	pause := time.NewTimer(left)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
}

// observeRoundTrip notes the round trip of an append without entries.
func (p *throttle) observeRoundTrip(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slower := p.roundTrip + p.roundTrip/64 + 1; p.roundTrip > 0 {
		took = min(took, slower) // the line may have become another
	}
	p.roundTrip = max(took, 1)
}

// sent notes what became of the append under way.
func (p *throttle) sent(took time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen, full := float64(p.sending)/took.Seconds(), p.sending >= p.batch()/2
	switch took -= min(took, p.roundTrip); {
	case err != nil && !p.deadline.IsZero() && !time.Now().Before(p.deadline):
		p.rate = max(min(p.rate/4, seen), rateMin)
	case err == nil && full && took > 2*appendTime && seen < p.rate:
		p.rate = max(seen, p.rate/4, rateMin)
	case err == nil && full && took < appendTime/2:
		p.rate = min(2*p.rate, rateMax)
	}
}

// progress logs now and then how far a server is that has fallen behind.
func (p *throttle) progress(log *slog.Logger, to string, args *raft.AppendEntriesRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, now, last := &p.catching, time.Now(), args.PrevLogEntry+uint64(len(args.Entries))
	switch {
	case last >= args.LeaderCommitIndex:
		if !c.logged.IsZero() {
			log.Info("peer caught up", "node", to, "index", last)
		}
		c.since, c.logged, c.bytes = time.Time{}, time.Time{}, 0
		return
	case c.since.IsZero():
		c.since = now
	}
	c.bytes += p.sending
	if now.Sub(c.since) >= progressEvery && now.Sub(c.logged) >= progressEvery {
		c.logged = now
		log.Info("peer catching up", "node", to, "at", last, "of", args.LeaderCommitIndex,
			"bytes_per_second", int(float64(c.bytes)/now.Sub(c.since).Seconds()))
	}
}

// sendThrottled sends an append at the pace of its server.
func (t *Transport) sendThrottled(p *throttle, id raft.ServerID, at raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse) error {
	began := time.Now()
	if len(args.Entries) == 0 {
		err := t.NetworkTransport.AppendEntries(id, addressed(id, at), args, resp)
		if took := time.Since(began); err == nil {
			p.observeRoundTrip(took)
			if args.LeaderCommitIndex == 0 { // a heartbeat, which waits for no disk
				p.trips.Add(time.Now(), took)
			}
		}
		return err
	}
	p.cut(args)
	err := t.NetworkTransport.AppendEntries(id, entriesPrefix+addressed(id, at), args, resp)
	p.sent(time.Since(began), err)
	if err == nil && resp.Success {
		p.progress(t.streams.network.config.Logger, string(id), args)
	}
	return err
}

// Marks before what meant makes tell streams.Dial what a connection is for; so those for one purpose are a
// pool of their own. No id begins with them.
const (
	entriesPrefix  = raft.ServerAddress("+")
	snapshotPrefix = raft.ServerAddress("#")
)

// throttledConn is a connection for entries.
type throttledConn struct {
	*stream
	throttle *throttle
}

// SetDeadline is called once for each append, before it is sent.
func (c throttledConn) SetDeadline(at time.Time) error {
	return c.stream.SetDeadline(c.throttle.until(at))
}

// snapshotConn is a connection for one snapshot. It lives as long as bytes move: nothing is known of how long
// the snapshot will take. What has been written may lie in a buffer yet, so the answer may take as long again as
// the writing took and, for the buffers, longer.
type snapshotConn struct {
	*stream
	began time.Time
	sent  int
}

// SetDeadline is called once, before the snapshot is sent. The deadline comes of the size, not of what
// happens.
func (c *snapshotConn) SetDeadline(time.Time) error {
	c.began = time.Now()
	return nil
}

func (c *snapshotConn) Write(b []byte) (written int, err error) {
	const step = 16 << 10
	for written < len(b) && err == nil {
		if err = c.SetWriteDeadline(time.Now().Add(snapshotStall)); err != nil {
			break
		}
		var n int
		n, err = c.stream.Write(b[written:min(len(b), written+step)])
		written += n
	}
	c.sent += written
	return written, err
}

func (c *snapshotConn) Read(b []byte) (int, error) {
	wait := snapshotStall + time.Since(c.began) + time.Duration(min(c.sent, unseenBytes))*time.Second/unseenRate
	if err := c.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return 0, err
	}
	return c.stream.Read(b)
}

// purpose makes of a new connection what its mark asks for.
func (s *streams) purpose(mark raft.ServerAddress, stream *stream) net.Conn {
	switch mark {
	case entriesPrefix:
		return throttledConn{stream, s.throttleOf(stream.server)}
	case snapshotPrefix:
		return &snapshotConn{stream: stream, began: time.Now()}
	}
	return stream
}

// stripPurpose takes the mark off.
func stripPurpose(address raft.ServerAddress) (mark, rest raft.ServerAddress) {
	for _, mark := range []raft.ServerAddress{entriesPrefix, snapshotPrefix} {
		if rest, found := strings.CutPrefix(string(address), string(mark)); found {
			return mark, raft.ServerAddress(rest)
		}
	}
	return "", address
}

// outgoingSnapshot is a snapshot that is read to be sent, and logs now and then how far it is.
type outgoingSnapshot struct {
	io.Reader
	log           *slog.Logger
	to            raft.ServerID
	sent, size    int64
	began, logged time.Time
}

func (l *outgoingSnapshot) Read(b []byte) (int, error) {
	n, err := l.Reader.Read(b)
	l.sent += int64(n)
	if now := time.Now(); now.Sub(l.logged) >= progressEvery {
		l.logged = now
		l.log.Info("sending a snapshot", "node", l.to, "bytes", l.sent, "of", l.size,
			"bytes_per_second", int(float64(l.sent)/now.Sub(l.began).Seconds()))
	}
	return n, err
}

// incomingSnapshot is a snapshot that is being received. Raft does nothing else meanwhile, it does not even vote. So it must
// not wait for a leader that is suspended or gone.
type incomingSnapshot struct {
	io.Reader
	stalled func()
}

func (a incomingSnapshot) Read(b []byte) (int, error) {
	limit := time.AfterFunc(snapshotStall, a.stalled)
	defer limit.Stop()
	return a.Reader.Read(b)
}

// watchArrival ends the connections with a server that sends a snapshot and then sends nothing more of it.
func (t *Transport) watchArrival(request raft.RPC) raft.RPC {
	args, ok := request.Command.(*raft.InstallSnapshotRequest)
	if !ok || request.Reader == nil {
		return request
	}
	from := raft.ServerID(args.ID)
	request.Reader = incomingSnapshot{request.Reader, func() {
		t.streams.network.log.Warn("stalled "+string(from), "receiving a snapshot stalled; the transfer was aborted and the leader starts again",
			"node", excerpt(args.ID), "silent", snapshotStall)
		t.streams.closeMatching(func(s *stream) bool { return s.server == from })
	}}
	return request
}

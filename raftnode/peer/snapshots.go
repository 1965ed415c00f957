package peer

import (
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// snapshotStallTimeout is for how long no byte of a snapshot may move before its transfer is over, at
	// both ends.
	snapshotStallTimeout = 10 * time.Second
	// bufferedBytesMax is how much of what was sent may still lie in buffers of the two machines, and is
	// unseen for it; bufferedRateMin the bytes a second at which they empty at least.
	bufferedBytesMax, bufferedRateMin = 8 << 20, 64 << 10
)

// snapshotConn is a connection for one snapshot. It lives as long as bytes move: nothing is known of how long
// the snapshot will take. What has been written may lie in a buffer yet, so the answer may take as long again
// as the writing took and, for the buffers, longer.
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
		if err = c.SetWriteDeadline(time.Now().Add(snapshotStallTimeout)); err != nil {
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
	buffered := time.Duration(min(c.sent, bufferedBytesMax)) * time.Second / bufferedRateMin
	if err := c.SetReadDeadline(time.Now().Add(snapshotStallTimeout + time.Since(c.began) + buffered)); err != nil {
		return 0, err
	}
	return c.stream.Read(b)
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
		s.log.Info("sending a snapshot", "node", s.to, "bytes", s.bytes, "of", s.size, "bytes_per_second", rate)
	}
	return n, err
}

// incomingSnapshot is a snapshot that is being received. Raft does nothing else meanwhile, it does not even
// vote. So it must not wait for a leader that is suspended or gone: the connections with it end.
type incomingSnapshot struct {
	io.Reader
	transport *Transport
	args      *raft.InstallSnapshotRequest
	forRaft   bool // and not read yet, see answerKnown
}

func (s *incomingSnapshot) Read(b []byte) (int, error) {
	if s.forRaft {
		s.forRaft = false
		if s.transport.hasApplied(s.args) {
			return 0, errKnown
		}
	}
	limit := time.AfterFunc(snapshotStallTimeout, s.stalled)
	defer limit.Stop()
	return s.Reader.Read(b)
}

func (s *incomingSnapshot) stalled() {
	t, from := s.transport, raft.ServerID(s.args.ID)
	t.network.log.warn("stalled "+string(from), "receiving a snapshot stalled; the transfer was aborted and the "+
		"leader starts again", "node", excerpt(s.args.ID), "silent", snapshotStallTimeout)
	t.closeMatching(func(s *stream) bool { return s.remote.ID() == from })
}

// answerKnown answers a snapshot of what this node has applied, and reports whether it did. The leader did
// not receive the answer to the first one, or the network delivered it twice. Raft would install it again: it
// would take back what was applied and, worse, the configuration, and would not take the later ones, whose
// entries it has. What is applied is committed, so it equals the leader's, and to have it is all that the
// leader waits for.
//
// A snapshot that is passed on is checked once more when raft reads it:
//
//  1. raft is storing an append, which will commit up to 6; 3 is applied;
//  2. a snapshot up to 4 arrives; it is not known, and waits for raft;
//  3. raft applies up to 6, takes the snapshot, and would go back to 4.
//
// The second check is in raft's main loop, in which nothing else is applied. Raft drops the snapshot and
// reads what follows to empty the connection; the leader sends it again, and then it is known.
func (t *Transport) answerKnown(request raft.RPC) bool {
	snapshot := request.Reader.(*incomingSnapshot)
	args := snapshot.args
	if !t.hasApplied(args) {
		snapshot.forRaft = true
		return false
	}
	t.network.log.Log(slog.LevelInfo, "known "+string(args.ID),
		"skipped a snapshot whose entries are already applied", "node", excerpt(args.ID), "index", args.LastLogIndex)
	t.answer(request, func() (any, error) {
		return &raft.InstallSnapshotResponse{Term: max(args.Term, t.raft.CurrentTerm()), Success: true}, nil
	})
	return true
}

// hasApplied reports whether this node has applied what is in a snapshot. One of an earlier leader is left to
// raft to refuse.
func (t *Transport) hasApplied(args *raft.InstallSnapshotRequest) bool {
	return args.Term >= t.raft.CurrentTerm() && args.LastLogIndex <= t.raft.AppliedIndex()
}

var errKnown = errors.New("peer: meanwhile this node has applied what is in the snapshot; it was not installed")

// answer answers a request that raft is not given. A snapshot is read before: the next request on its
// connection begins behind it.
func (t *Transport) answer(request raft.RPC, answer func() (any, error)) {
	t.background.Go(func() {
		if request.Reader != nil {
			_, _ = io.Copy(io.Discard, request.Reader)
		}
		request.Respond(answer())
	})
}

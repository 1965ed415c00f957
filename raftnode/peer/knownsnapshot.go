package peer

import (
	"errors"
	"io"
	"log/slog"

	"github.com/hashicorp/raft"
)

// known answers a snapshot of what this node has applied, and reports whether it did. The leader did not receive the
// answer to the first one, or the network delivered it twice. Raft would install it again: it would take back what was
// applied and, worse, the list of nodes, and would not take the later ones, whose entries it has. What is applied is
// committed, so it equals the leader's, and to have it is all that the leader waits for.
//
// A snapshot that is passed on is looked at once more when raft reads it:
//
//  1. raft is storing an append, which will commit up to 6; 3 is applied;
//  2. a snapshot up to 4 arrives; it is not known, and waits for raft;
//  3. raft applies up to 6, takes the snapshot, and would go back to 4.
//
// The second look is taken in raft's main loop, in which nothing else is applied. Raft drops the snapshot, the leader
// sends it again, and then it is known.
func (t *Transport) known(request *raft.RPC) bool {
	args, ok := request.Command.(*raft.InstallSnapshotRequest)
	if !ok {
		return false
	}
	if !t.has(args) {
		request.Reader = &firstRead{request.Reader, func() bool { return t.has(args) }}
		return false
	}
	t.streams.network.log.Log(slog.LevelInfo, "known "+string(args.ID), "skipped a snapshot whose entries are already applied",
		"node", excerpt(args.ID), "index", args.LastLogIndex)
	t.discard(*request, func() (any, error) {
		return &raft.InstallSnapshotResponse{Term: max(args.Term, t.raft.CurrentTerm()), Success: true}, nil
	})
	return true
}

// has reports whether this node has applied what is in a snapshot. One of an earlier leader is left to raft to refuse.
func (t *Transport) has(args *raft.InstallSnapshotRequest) bool {
	return args.Term >= t.raft.CurrentTerm() && args.LastLogIndex <= t.raft.AppliedIndex()
}

var errKnown = errors.New("peer: meanwhile this node has applied what is in the snapshot; it was not installed")

// firstRead fails at its first read if has reports true then. Raft reads what follows to empty the connection.
type firstRead struct {
	io.Reader
	has func() bool
}

func (r *firstRead) Read(b []byte) (int, error) {
	if has := r.has; has != nil {
		r.has = nil
		if has() {
			return 0, errKnown
		}
	}
	return r.Reader.Read(b)
}

// discard reads a snapshot that raft is not given, and then answers it: the next request on its connection begins
// behind it.
func (t *Transport) discard(request raft.RPC, answer func() (any, error)) {
	t.refusing.Go(func() {
		_, _ = io.Copy(io.Discard, request.Reader)
		request.Respond(answer())
	})
}

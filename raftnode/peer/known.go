package peer

import (
	"io"

	"github.com/hashicorp/raft"
)

// known answers a snapshot of what this node has applied, and tells whether it did. Its leader did not hear that it
// was installed, or the network kept it. Raft would install it again: it would take back what was applied and, worse,
// the list of nodes, and would not take the later ones, whose entries it has. What is applied is committed, so it is
// as the leader has it, and to have it is all that the leader waits for.
func (t *Transport) known(request raft.RPC) bool {
	args, ok := request.Command.(*raft.InstallSnapshotRequest)
	r := t.raft.Load()
	if !ok || r == nil || args.Term < r.CurrentTerm() || args.LastLogIndex > r.AppliedIndex() {
		return false
	}
	t.streams.network.log.Info("known "+string(args.ID), "a snapshot was not installed, since this node has what is in it",
		"node", excerpt(args.ID), "index", args.LastLogIndex)
	t.discarded(request, &raft.InstallSnapshotResponse{Term: args.Term, Success: true}, nil)
	return true
}

// discarded answers a snapshot that Raft is not given, when all of it has come: the next request on its connection
// begins behind it.
func (t *Transport) discarded(request raft.RPC, response any, err error) {
	t.refusing.Go(func() {
		_, _ = io.Copy(io.Discard, request.Reader)
		request.Respond(response, err)
	})
}

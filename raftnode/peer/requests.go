package peer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"time"

	"github.com/hashicorp/raft"

	"zamok/raftnode/tail"
)

const (
	// termAdvanceMax is how far ahead of this node's own a term may be. Elections don't get there:
	// at four a second it takes 34 years. A restored cluster's terms, which begin at the seconds
	// since 1970, are not that far from those of an empty node that joins it, before the year 2106.
	termAdvanceMax = 1 << 32
	// lastIndexMax is the last index that a snapshot may claim to reach: no log gets there, and the
	// index after it is one.
	lastIndexMax = 1 << 62
)

// ErrImplausible is wrapped by the error of a call that was answered with a term which no cluster
// can be in. Raft was not given the answer.
var ErrImplausible = errors.New("a term or an index is beyond reason")

// Start sets the Raft that this Transport is for, once; until then every request waits. What Raft
// has applied decides about a snapshot, and while Raft is being made it can't say.
func (t *Transport) Start(r *raft.Raft) {
	t.raft = r
	close(t.started)
}

// handToRaft waits for raft's main loop to take a request.
func (t *Transport) handToRaft(c *inboundConn, request raft.RPC) {
	select {
	case t.requests <- request:
	case <-c.ended:
		request.Respond(nil, net.ErrClosed)
	case <-t.ctx.Done():
	}
}

// prepareRequest changes a request to what Raft may be given, or answers it and returns false. A
// node is in no lower term than its log.
func (t *Transport) prepareRequest(c *inboundConn, request *raft.RPC) bool {
	n := t.network
	from := request.Command.(raft.WithRPCHeader).GetRPCHeader()
	var kind, fault string
	var term, logTerm uint64
	switch r := request.Command.(type) { // a request to begin an election has no numbers
	case *raft.AppendEntriesRequest:
		kind, term, logTerm, fault = "append", r.Term, r.PrevLogTerm, entriesFault(r)
		// The leader's commit index goes no further than what its request shows to be in both logs.
		// Raft counts as committed what this node's log has up to there, also behind the entries of
		// the request: they may be of an earlier leader, and an append may be cut short.
		r.LeaderCommitIndex = min(r.LeaderCommitIndex, r.PrevLogEntry+uint64(len(r.Entries)))
	case *raft.RequestVoteRequest:
		kind, term, logTerm = "vote", r.Term, r.LastLogTerm
		t.presentAsVoter(&r.RPCHeader)
	case *raft.RequestPreVoteRequest:
		kind, term, logTerm = "pre-vote", r.Term, r.LastLogTerm
		t.presentAsVoter(&r.RPCHeader)
	case *raft.InstallSnapshotRequest:
		kind, term, logTerm = "snapshot", r.Term, r.LastLogTerm
		if r.LastLogIndex > lastIndexMax || r.ConfigurationIndex > r.LastLogIndex {
			fault = fmt.Sprintf("its snapshot reaches index %d, with a configuration of index %d",
				r.LastLogIndex, r.ConfigurationIndex)
		} else if r.SnapshotVersion == 0 || !isConfiguration(r.Configuration) {
			// of version 0 it has a list of peers instead
			fault = "its configuration can't be read"
		}
		c.left += r.Size
		c.snapshot = r.Size
		request.Reader = &incomingSnapshot{Reader: request.Reader, transport: t, args: r}
	}
	if logTerm > term {
		fault = fmt.Sprintf("its log is of term %d, later than its own, %d", logTerm, term)
	}
	if fault = cmp.Or(n.senderFault(c.remote.Server, from), n.termFault(term), fault); fault != "" {
		n.log.warn("leap "+kind,
			"rejected an implausible raft request: its sender or the sender's disk is damaged, "+
				"or hostile", "kind", kind, "fault", fault, "node", excerpt(from.ID), "address",
			excerpt(from.Addr))
		err := fmt.Errorf("%s rejected this %s: %w: %s; nothing was changed there", n.config.ID,
			kind, ErrImplausible, fault)
		t.respond(*request, func() (any, error) { return nil, err })
		return false
	}
	snapshot, ok := request.Reader.(*incomingSnapshot)
	return (!ok || !t.respondIfApplied(*request, snapshot)) && !t.rejectOwing(*request, from)
}

// rejectOwing rejects a vote, a pre-vote, or a leadership that is handed over, if this node owes
// what the candidate may lack, and reports whether it did. Raft does not enter
// the term of a rejected candidate.
func (t *Transport) rejectOwing(request raft.RPC, from raft.RPCHeader) bool {
	n := t.network
	var candidate tail.End
	var response any
	var err error
	switch r := request.Command.(type) {
	case *raft.RequestVoteRequest:
		candidate, response = tail.End{Term: r.LastLogTerm, Index: r.LastLogIndex},
			&raft.RequestVoteResponse{Term: n.config.Term()}
	case *raft.RequestPreVoteRequest:
		candidate, response = tail.End{Term: r.LastLogTerm, Index: r.LastLogIndex},
			&raft.RequestPreVoteResponse{Term: n.config.Term()}
	case *raft.TimeoutNowRequest:
		err = fmt.Errorf("%s takes no leadership before it has again what its log has lost",
			n.config.ID)
	default:
		return false
	}
	state := n.config.Tail()
	if state.MayVoteFor(candidate) {
		return false
	}
	n.log.warn("owes "+string(from.ID),
		"rejected a vote or the leadership: this node has lost the end of its log, and the "+
			"candidate may lack the same entries", "node", excerpt(from.ID), "owed_index",
		state.Owed.Index, "owed_term", state.Owed.Term,
		"candidate_index", candidate.Index, "candidate_term", candidate.Term)
	t.respond(request, func() (any, error) { return response, err })
	return true
}

// RaiseTerm has this node enter a term above another one, on its disk, unless it is in one. So it
// takes nothing more from the leader of that other term, and leads no longer if it does. Raft gets
// a request for a vote, in this node's own name. Raft has to reject it, but enters its term. Only a
// node whose log is empty votes for itself, in a term in which it does not campaign.
func (t *Transport) RaiseTerm(ctx context.Context, above uint64) error {
	n := t.network
	if fault := n.termFault(above); fault != "" || above == math.MaxUint64 {
		return fmt.Errorf("peer: the term was not raised: %w: %s", ErrImplausible, fault)
	}
	// without an id: this log may not name this node yet, and raft would reject it for that
	self := raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax,
		Addr:            t.EncodePeer(n.server().ID(), t.LocalAddr()),
	}
	answered := make(chan raft.RPCResponse, 1)
	request := raft.RPC{
		Command: &raft.RequestVoteRequest{RPCHeader: self, Term: above + 1,
			LeadershipTransfer: true}, RespChan: answered,
	}
	for n.config.Term() <= above {
		select {
		case t.requests <- request:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.ctx.Done():
			return ErrClosed
		}
		select {
		case response := <-answered:
			if response.Error != nil {
				return response.Error
			}
			if term := n.config.Term(); term <= above {
				return fmt.Errorf("peer: %s is no member, and remains in term %d",
					n.config.ID, term)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.ctx.Done():
			return ErrClosed
		}
	}
	return nil
}

// presentAsVoter has Raft vote for a server that was given its vote and of which this node knows
// only that it is being caught up. Raft rejects that, and looks at the id in a request for nothing
// else; so it is shown this node's own.
func (t *Transport) presentAsVoter(from *raft.RPCHeader) {
	for _, s := range t.raft.GetConfiguration().Configuration().Servers {
		if s.ID == raft.ServerID(from.ID) && s.Suffrage != raft.Voter {
			from.ID = []byte(t.network.server().ID())
		}
	}
}

// Consumer implements raft.Transport.
func (t *Transport) Consumer() <-chan raft.RPC { return t.requests }

// SetHeartbeatHandler implements raft.Transport.
func (t *Transport) SetHeartbeatHandler(handle func(raft.RPC)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.heartbeat = handle
}

// handleHeartbeat passes a heartbeat on; they don't come through Consumer. Raft handles them on the
// goroutine of their connection, beside its main loop. One of a later term would end a leadership
// there, and the main loop, which has not seen that, append the next entry in the later term, in
// which another node leads (hashicorp/raft#695). So such a heartbeat goes the way of all other
// requests.
func (t *Transport) handleHeartbeat(c *inboundConn, request raft.RPC) {
	t.mu.Lock()
	handle := t.heartbeat
	t.mu.Unlock()
	switch {
	case !t.prepareRequest(c, &request):
	case handle == nil, request.Command.(*raft.AppendEntriesRequest).Term > t.network.config.Term():
		t.handToRaft(c, request)
	default:
		handle(request)
	}
}

// checkTerm looks at the term of another node's answer to a call.
func (t *Transport) checkTerm(kind string, id raft.ServerID, at raft.ServerAddress,
	term uint64) error {
	n := t.network
	fault := n.termFault(term)
	if fault == "" {
		return nil
	}
	n.log.warn("leap from "+string(id),
		"rejected an implausible raft response: its sender or the sender's disk is damaged, "+
			"or hostile", "kind", kind, "fault", fault, "node", id, "address", at)
	return fmt.Errorf(
		"peer: the answer of %s to a call (%s) was rejected: %w: %s; nothing was changed here",
		id, kind, ErrImplausible, fault)
}

// senderFault returns what is wrong with the sender of a request, or "": it must be the server at
// the other end of the connection, and known. Raft itself accepts a request for a vote even without
// a sender.
func (n *Network) senderFault(sender Server, named raft.RPCHeader) string {
	if raft.ServerID(named.ID) != sender.ID() {
		return fmt.Sprintf("it was sent by %s in the name of %q", sender, excerpt(named.ID))
	}
	if unknown := n.checkKnown(sender); unknown != nil { // it was removed since it connected
		return unknown.Detail
	}
	return ""
}

// termFault returns what is wrong with the term of a message; "" = nothing.
func (n *Network) termFault(term uint64) string {
	currentTerm := n.config.Term()
	if term <= currentTerm || term-currentTerm <= termAdvanceMax {
		return ""
	}
	return fmt.Sprintf("its term %d is more than %d ahead of this node's, %d",
		term, uint64(termAdvanceMax), currentTerm)
}

// entriesFault looks at the log that an append carries: one entry right behind the other, of terms
// up to the leader's. Raft would store an entry of any index, and continue behind it.
func entriesFault(r *raft.AppendEntriesRequest) string {
	for i, entry := range r.Entries {
		switch want := r.PrevLogEntry + 1 + uint64(i); {
		case entry == nil || entry.Index != want:
			return fmt.Sprintf("it has another entry where that of index %d belongs", want)
		case hasUnknownType(entry):
			return fmt.Sprintf("its entry %d is of type %d, which Raft does not have", want,
				entry.Type)
		case entry.Type == raft.LogConfiguration && !isConfiguration(entry.Data):
			return fmt.Sprintf("its entry %d is a configuration that can't be read", want)
		case entry.Term > r.Term:
			return fmt.Sprintf("its entry %d is of term %d, later than its own, %d", want,
				entry.Term, r.Term)
		}
	}
	return ""
}

// isConfiguration reports whether Raft can read a configuration; its process would end at each
// start.
func isConfiguration(data []byte) (readable bool) {
	defer func() {
		if recover() != nil {
			readable = false
		}
	}()
	value := newValueReader()
	_, err := value.read(data)
	return err == nil && value.ended() && len(raft.DecodeConfiguration(data).Servers) > 0
}

// hasUnknownType reports whether Raft could not apply an entry; its process would end at each
// start. So it does with the lists of peers that its first protocol had in place of configurations,
// if it can't read one.
func hasUnknownType(entry *raft.Log) bool {
	return entry != nil &&
		(entry.Type > raft.LogConfiguration || entry.Type == raft.LogAddPeerDeprecated ||
			entry.Type == raft.LogRemovePeerDeprecated)
}

// excerpt is what is logged of the name that a sender gives itself.
func excerpt(name []byte) string { return string(name[:min(len(name), idBytesMax)]) }

// incomingSnapshot is a snapshot that is being received. Raft does nothing else meanwhile, it does
// not even vote. So it must not wait for a leader that is suspended or gone: the connections with
// it end.
type incomingSnapshot struct {
	io.Reader
	transport *Transport
	args      *raft.InstallSnapshotRequest
	forRaft   bool // and not read yet, see respondIfApplied
}

func (s *incomingSnapshot) Read(b []byte) (int, error) {
	if s.forRaft {
		s.forRaft = false
		if s.transport.hasApplied(s.args) {
			return 0, errApplied
		}
	}
	limit := time.AfterFunc(snapshotStallTimeout, s.stalled)
	defer limit.Stop()
	return s.Reader.Read(b)
}

func (s *incomingSnapshot) stalled() {
	t, from := s.transport, raft.ServerID(s.args.ID)
	t.network.log.warn("stalled "+string(from),
		"receiving a snapshot stalled; the transfer was aborted and the leader starts again",
		"node", excerpt(s.args.ID), "silent", snapshotStallTimeout)
	t.closeMatching(func(s *stream) bool { return s.remote.ID() == from })
}

// respondIfApplied responds to a snapshot of what this node has applied, and reports whether it
// did. The leader did not receive the answer to the first one, or the network delivered it twice.
// Raft would install it again: it would take back what was applied and, worse, the configuration,
// and would not take the later ones, whose entries it has. What is applied is committed, so it
// equals the leader's, and to have it is all that the leader waits for.
//
// A snapshot that is passed on is checked once more when raft reads it:
//
//  1. raft is storing an append, which will commit up to 6; 3 is applied;
//  2. a snapshot up to 4 arrives; it is not applied, and waits for raft;
//  3. raft applies up to 6, takes the snapshot, and would go back to 4.
//
// The second check is in raft's main loop, in which nothing else is applied. Raft drops the
// snapshot and reads what follows to empty the connection; the leader sends it again, and then it
// is applied.
func (t *Transport) respondIfApplied(request raft.RPC, snapshot *incomingSnapshot) bool {
	args := snapshot.args
	if !t.hasApplied(args) {
		snapshot.forRaft = true
		return false
	}
	t.network.log.Log(slog.LevelInfo, "applied "+string(args.ID),
		"skipped a snapshot whose entries are already applied", "node", excerpt(args.ID), "index",
		args.LastLogIndex)
	t.respond(request, func() (any, error) {
		return &raft.InstallSnapshotResponse{Term: max(args.Term, t.raft.CurrentTerm()),
			Success: true}, nil
	})
	return true
}

// hasApplied reports whether this node has applied what is in a snapshot. One of an earlier leader
// is left to raft to reject.
func (t *Transport) hasApplied(args *raft.InstallSnapshotRequest) bool {
	return args.Term >= t.raft.CurrentTerm() && args.LastLogIndex <= t.raft.AppliedIndex()
}

var errApplied = errors.New(
	"peer: meanwhile this node has applied what is in the snapshot; it was not installed")

// respond responds to a request that raft is not given. A snapshot is read before: the next request
// on its connection begins behind it.
func (t *Transport) respond(request raft.RPC, answer func() (any, error)) {
	t.background.Go(func() {
		if request.Reader != nil {
			_, _ = io.Copy(io.Discard, request.Reader)
		}
		request.Respond(answer())
	})
}

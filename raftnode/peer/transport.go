package peer

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// idleConnsDefault is one idle connection each to a peer for heartbeats, appends and votes.
	idleConnsDefault = 3
	// rpcTimeoutDefault is how long a vanished peer can hold up one call.
	rpcTimeoutDefault = 2 * time.Second
	// rpcsInFlightDefault switches pipelining off: with Raft's own default of 2, one refused append
	// of a live follower was seen to stop replication to it for good (hashicorp/raft#612).
	rpcsInFlightDefault = 1
)

// Transport is Raft's transport over a Network. It differs from raft.NetworkTransport in two
// things. The id of the server that a call is meant for goes with the call down to the handshake,
// and into the key of the connection pool: Raft keeps connections by address, and a node that took over
// another's address would be handed the other's connections. And terms that leap don't pass (requests.go).
//
// A call that does not go through one of the methods below reaches the stream layer without an id,
// and is refused there.
type Transport struct {
	*raft.NetworkTransport
	network      *Network
	streams      *streamLayer
	idleConnsMax int            // as many idle connections to a peer are kept
	requests     chan raft.RPC  // those that Raft may be given
	background   sync.WaitGroup // filterRequests, and the reading of snapshots that are refused or known
	raft         *raft.Raft     // see Start

	mu        sync.Mutex // guards what follows
	term      uint64     // of the latest append
	followers map[raft.ServerID]*follower
}

var (
	_ raft.Transport   = (*Transport)(nil)
	_ raft.WithPreVote = (*Transport)(nil) // without it Raft would leave pre-votes out, silently
	_ raft.WithClose   = (*Transport)(nil)
)

// Transport lends connections to Raft until it is closed; then another may be opened. From c,
// Stream is set here, and what is zero becomes: MaxPool 3, MaxRPCsInFlight 1, Timeout 2 s.
func (n *Network) Transport(c raft.NetworkTransportConfig) (*Transport, error) {
	if c.ServerAddressProvider != nil {
		return nil, errors.New("peer: a ServerAddressProvider would hide the id of the node that a " +
			"call is meant for; put addresses into the Raft configuration")
	}
	c.MaxPool = cmp.Or(c.MaxPool, idleConnsDefault)
	c.MaxRPCsInFlight = cmp.Or(c.MaxRPCsInFlight, rpcsInFlightDefault)
	c.Timeout = cmp.Or(c.Timeout, rpcTimeoutDefault)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx.Err() != nil {
		return nil, ErrClosed
	}
	if n.transport != nil {
		return nil, errors.New("peer: a Transport is open already; close it before opening the next")
	}
	t := &Transport{
		network: n, idleConnsMax: c.MaxPool, requests: make(chan raft.RPC), followers: map[raft.ServerID]*follower{},
	}
	t.streams = newStreamLayer(n, t.throttleFor)
	c.Stream = t.streams
	t.NetworkTransport = raft.NewNetworkTransportWithConfig(&c)
	n.transport = t
	return t, nil
}

// openStreams is the stream layer of the open Transport, or nil.
func (n *Network) openStreams() *streamLayer {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.transport == nil {
		return nil
	}
	return n.transport.streams
}

// Close ends every connection of Raft, both ways, and waits for the goroutines that serve the
// accepted ones. The Network stays open and still answers questions and calls.
func (t *Transport) Close() error {
	err := t.NetworkTransport.Close()
	t.background.Wait()
	n := t.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.transport == t {
		n.transport = nil
	}
	return err
}

// addressed joins the id of a server to its address, for the way through raft.NetworkTransport to
// streams.Dial. No id holds a '='.
func addressed(id raft.ServerID, at raft.ServerAddress) raft.ServerAddress {
	return raft.ServerAddress(id) + "=" + at
}

// retryDead makes a call once more for each idle connection that turns out to be dead, and checks the term of
// the answer. Raft asks for a vote once and takes a failure for silence, so after a restart of the peer,
// which kills the idle connections, an election would be lost and with it half a second without a leader.
// Asking twice is no harm: a vote that was given is given again. The same holds of a transfer to the peer,
// which would fail.
func (t *Transport) retryDead(kind string, id raft.ServerID, at raft.ServerAddress, term *uint64,
	call func() error) error {
	var err error
	for range t.idleConnsMax + 1 {
		if err = call(); err == nil {
			return t.checkTerm(kind, id, at, *term)
		}
		if !isConnClosed(err) {
			break
		}
	}
	return err
}

// isConnClosed reports whether a connection turned out to have ended before it was used.
func isConnClosed(err error) bool {
	for _, sign := range []error{io.EOF, io.ErrClosedPipe, net.ErrClosed, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, sign) {
			return true
		}
	}
	return false
}

// AppendEntries implements raft.Transport.
func (t *Transport) AppendEntries(id raft.ServerID, at raft.ServerAddress,
	args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	to, throttle := Node{string(id), string(at)}, t.throttleFor(id)
	if len(args.Entries) > 0 {
		throttle.waitAfterRefusal(t.streams.ctx)
	}
	t.withholdRemoval(id, args)
	if i := slices.IndexFunc(args.Entries, hasUnknownType); i >= 0 {
		// The log was deleted up to here while Raft read it (package store); it looks again, and sends its
		// snapshot.
		args.Entries = args.Entries[:i]
	}
	acknowledged, excluded := t.enterTerm(id, args.Term)
	if excluded {
		t.network.config.Lost(to, acknowledged)
		return fmt.Errorf("peer: %s is excluded from replication: %w", id, ErrExcluded)
	}
	sent := time.Now()
	err := t.sendThrottled(throttle, id, at, args, resp)
	if err == nil {
		err = t.checkTerm("append", id, at, resp.Term)
	}
	if err == nil && resp.Term == args.Term {
		if err := t.checkLog(id, args.Term, acknowledged, resp.LastLog); err != nil {
			return err
		}
		if resp.Success {
			t.acknowledge(id, args.Term, args.PrevLogEntry+uint64(len(args.Entries)))
		}
	}
	refused := err == nil && rejectedEntries(args, resp)
	if refused {
		err = fmt.Errorf("peer: %s refused the entries of an append; its log has the reason; they are sent again", id)
	}
	t.recordContact(to, sent, args, resp, err)
	if refused {
		throttle.pauseAfterRefusal()
		args.Entries, resp.Success = nil, true // as if none had been sent: Raft reads them again, and tries again
		return nil
	}
	return err
}

// rejectedEntries reports whether a follower refused entries that fit its log, since its disk is full or they
// were changed on their way. Raft says of a log that does not fit, and of nothing else, that the next try
// needs no pause. It would go back in the leader's log for either, and send a snapshot in the end, though the
// follower lacks nothing before them. And it would wait longer with each refusal, though a cluster of which
// only the leader has room should continue soon after there is some.
func rejectedEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) bool {
	return len(args.Entries) > 0 && !resp.Success && !resp.NoRetryBackoff && resp.Term == args.Term
}

// AppendEntriesPipeline implements raft.Transport. Pipelining is off (rpcsInFlightDefault); its answers make
// a leader step down at most, since Raft adopts no term from them, and are not looked at here.
func (t *Transport) AppendEntriesPipeline(id raft.ServerID,
	at raft.ServerAddress) (raft.AppendPipeline, error) {
	return t.NetworkTransport.AppendEntriesPipeline(id, addressed(id, at))
}

// RequestVote implements raft.Transport.
func (t *Transport) RequestVote(id raft.ServerID, at raft.ServerAddress,
	args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return t.retryDead("vote", id, at, &resp.Term, func() error {
		return t.NetworkTransport.RequestVote(id, addressed(id, at), args, resp)
	})
}

// RequestPreVote implements raft.WithPreVote.
func (t *Transport) RequestPreVote(id raft.ServerID, at raft.ServerAddress,
	args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return t.retryDead("pre-vote", id, at, &resp.Term, func() error {
		return t.NetworkTransport.RequestPreVote(id, addressed(id, at), args, resp)
	})
}

// TimeoutNow implements raft.Transport.
func (t *Transport) TimeoutNow(id raft.ServerID, at raft.ServerAddress,
	args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return t.retryDead("transfer", id, at, new(uint64), func() error {
		return t.NetworkTransport.TimeoutNow(id, addressed(id, at), args, resp)
	})
}

// InstallSnapshot implements raft.Transport.
func (t *Transport) InstallSnapshot(id raft.ServerID, at raft.ServerAddress,
	args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	data = &outgoingSnapshot{Reader: data, log: t.network.config.Logger, to: id, size: args.Size}
	t.enterTerm(id, args.Term)
	err := t.NetworkTransport.InstallSnapshot(id, snapshotPrefix+addressed(id, at), args, resp, data)
	if err == nil {
		err = t.checkTerm("snapshot", id, at, resp.Term)
	}
	if err == nil && resp.Success {
		t.acknowledge(id, args.Term, args.LastLogIndex)
	}
	return err
}

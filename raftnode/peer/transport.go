package peer

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// poolDefault is one idle connection each to a peer for heartbeats, appends and votes.
	poolDefault = 3
	// rpcTimeoutDefault is how long a vanished peer can hold up one call.
	rpcTimeoutDefault = 2 * time.Second
	// rpcsInFlightDefault switches pipelining off: with Raft's own default of 2, one refused append
	// of a live follower was seen to stop replication to it for good (hashicorp/raft#612).
	rpcsInFlightDefault = 1
)

// Transport is Raft's transport over a Network. It differs from raft.NetworkTransport in one
// thing: the id of the server that a call is meant for goes with the call down to the handshake,
// and into the key of the connection pool. Raft keeps connections by address; a node that took over
// another's address would be handed the other's connections.
//
// A call that does not go through one of the methods below reaches the stream layer without an id,
// and is refused there.
type Transport struct {
	*raft.NetworkTransport
	streams *streams
	pool    int // as many idle connections to a peer are kept
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
	if c.MaxPool == 0 {
		c.MaxPool = poolDefault
	}
	if c.MaxRPCsInFlight == 0 {
		c.MaxRPCsInFlight = rpcsInFlightDefault
	}
	if c.Timeout == 0 {
		c.Timeout = rpcTimeoutDefault
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx.Err() != nil {
		return nil, ErrClosed
	}
	if n.transport != nil {
		return nil, errors.New("peer: a Transport is open already; close it before opening the next")
	}
	streams := newStreams(n)
	c.Stream = streams
	n.transport = &Transport{raft.NewNetworkTransportWithConfig(&c), streams, c.MaxPool}
	return n.transport, nil
}

// openStreams is the stream layer of the open Transport, or nil.
func (n *Network) openStreams() *streams {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.transport == nil {
		return nil
	}
	return n.transport.streams
}

// Close ends every connection of Raft, both ways, and waits for the goroutines that serve the
// accepted ones. The Network stays open and goes on answering what this node holds.
func (t *Transport) Close() error {
	err := t.NetworkTransport.Close()
	n := t.streams.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.transport == t {
		n.transport = nil
	}
	return err
}

// meant joins the id of a server to its address, for the way through raft.NetworkTransport to
// streams.Dial. No id holds a '='.
func meant(id raft.ServerID, at raft.ServerAddress) raft.ServerAddress {
	return raft.ServerAddress(id) + "=" + at
}

// again asks for a vote once more for each idle connection that turns out to be dead. Raft asks once
// and takes a failure for silence, so after a restart of the peer, which kills the idle connections, an
// election would be lost and with it half a second without a leader. Asking twice is no harm: a vote
// that was given is given again.
func (t *Transport) again(ask func() error) (err error) {
	for range t.pool + 1 {
		if err = ask(); err == nil || !isDead(err) {
			return err
		}
	}
	return err
}

// isDead tells whether a connection turned out to have ended before it was used.
func isDead(err error) bool {
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
	return t.NetworkTransport.AppendEntries(id, meant(id, at), args, resp)
}

// AppendEntriesPipeline implements raft.Transport.
func (t *Transport) AppendEntriesPipeline(id raft.ServerID,
	at raft.ServerAddress) (raft.AppendPipeline, error) {
	return t.NetworkTransport.AppendEntriesPipeline(id, meant(id, at))
}

// RequestVote implements raft.Transport.
func (t *Transport) RequestVote(id raft.ServerID, at raft.ServerAddress,
	args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return t.again(func() error { return t.NetworkTransport.RequestVote(id, meant(id, at), args, resp) })
}

// RequestPreVote implements raft.WithPreVote.
func (t *Transport) RequestPreVote(id raft.ServerID, at raft.ServerAddress,
	args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return t.again(func() error { return t.NetworkTransport.RequestPreVote(id, meant(id, at), args, resp) })
}

// InstallSnapshot implements raft.Transport.
func (t *Transport) InstallSnapshot(id raft.ServerID, at raft.ServerAddress,
	args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	return t.NetworkTransport.InstallSnapshot(id, meant(id, at), args, resp, data)
}

// TimeoutNow implements raft.Transport.
func (t *Transport) TimeoutNow(id raft.ServerID, at raft.ServerAddress,
	args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return t.NetworkTransport.TimeoutNow(id, meant(id, at), args, resp)
}

package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

const (
	// idleConnsMax is one idle connection each to a peer for heartbeats, appends and votes.
	idleConnsMax = 3
	// rpcsInFlight switches pipelining off: with Raft's own default of 2, one rejected append of a
	// live follower was seen to stop replication to it for good (hashicorp/raft#612).
	rpcsInFlight = 1
)

// Transport is Raft's transport over a Network. It differs from raft.NetworkTransport in two
// things. The id of the server that a call is for goes with the call down to the handshake,
// and into the key of the connection pool: Raft keeps connections by address, and a node that took
// over another's address would be handed the other's connections. And terms that leap don't pass
// (requests.go).
//
// A call that is made otherwise than through the methods below reaches the stream layer without an
// id, and is refused there.
type Transport struct {
	*raft.NetworkTransport
	network   *Network
	logger    hclog.Logger
	requests  chan raft.RPC // those that Raft may be given
	started   chan struct{} // closed by Start
	raft      *raft.Raft    // see Start
	extension atomic.Int64  // see SetLeaseExtension

	ctx  context.Context // ends when Close begins
	stop context.CancelCauseFunc
	// background are the reading of snapshots that are rejected or applied already, heartbeats
	// beside raft, and the accepted streams that their handler has not closed.
	background sync.WaitGroup

	mu        sync.Mutex // guards what follows
	heartbeat func(raft.RPC)
	open      map[*stream]struct{}
	large     map[string]*inboundConn // by name, that of the large request which is under way
	term      uint64                  // of the latest append
	followers map[raft.ServerID]*follower
}

var _ raft.WithPreVote = (*Transport)(nil) // without it Raft would leave pre-votes out, silently

// Transport lends connections to Raft until it is closed; then another may be opened. A peer that
// vanished holds up a call for HandshakeTimeout.
func (n *Network) Transport(logger hclog.Logger) (*Transport, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx.Err() != nil {
		return nil, ErrClosed
	}
	if n.transport != nil {
		return nil, errors.New(
			"peer: a Transport is open already; close it before opening the next")
	}
	t := &Transport{
		network: n, logger: logger, requests: make(chan raft.RPC), started: make(chan struct{}),
		open: map[*stream]struct{}{}, large: map[string]*inboundConn{},
		followers: map[raft.ServerID]*follower{},
	}
	t.ctx, t.stop = context.WithCancelCause(n.ctx)
	t.NetworkTransport = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Logger: logger, Stream: streamLayer{t}, Timeout: n.config.HandshakeTimeout,
		MaxPool: idleConnsMax, MaxRPCsInFlight: rpcsInFlight,
	})
	n.transport = t
	return t, nil
}

// openTransport is the open Transport, or nil.
func (n *Network) openTransport() *Transport {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.transport
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

// deadConnErrors show that a connection had ended before it was used.
var deadConnErrors = []error{io.EOF, io.ErrClosedPipe, net.ErrClosed, syscall.EPIPE,
	syscall.ECONNRESET}

// retryDead makes a call once more for each idle connection that turns out to be dead, and checks
// the term of the answer. Raft requests a vote once and takes a failure for silence, so after a
// restart of the peer, which kills the idle connections, an election would be lost and with it half
// a second without a leader. To request it twice is no harm: a vote that was given is given again.
// The same holds of a transfer to the peer, which would fail.
func retryDead[Args, Resp any](t *Transport, kind string,
	call func(raft.ServerID, raft.ServerAddress, *Args, *Resp) error,
	id raft.ServerID, at raft.ServerAddress, args *Args, resp *Resp, term *uint64) (err error) {
	for range idleConnsMax + 1 {
		if err = call(id, addressed(id, at), args, resp); err == nil {
			return t.checkTerm(kind, id, at, *term)
		}
		if !slices.ContainsFunc(deadConnErrors,
			func(dead error) bool { return errors.Is(err, dead) }) {
			break
		}
	}
	return err
}

// errEntriesRejected is how an append failed whose entries fit the follower's log, since its disk
// is full or they were changed on their way. Raft says of a log that does not fit, and of nothing
// else, that the next try needs no pause. It would go back in the leader's log for either, and send
// a snapshot in the end, though the follower lacks nothing before them. And it would wait longer
// with each rejection, though a cluster of which only the leader has room should continue soon
// after there is some.
var errEntriesRejected = errors.New("the entries of an append were rejected; the log of that " +
	"node has the reason; they are sent again")

// AppendEntries implements raft.Transport.
func (t *Transport) AppendEntries(id raft.ServerID, at raft.ServerAddress,
	args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if isHeartbeat(args) {
		return t.sendHeartbeat(id, at, args, resp)
	}
	if t.repeat(id, args, resp) {
		return nil
	}
	return t.sendAppend(id, at, args, resp)
}

func (t *Transport) sendAppend(id raft.ServerID, at raft.ServerAddress,
	args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	f, acknowledged, lost := t.beginAppend(id, args)
	// heartbeats go on: the server owes nothing on the word of a node out of its hearing
	if lost {
		if !isHeartbeat(args) {
			if err := t.makeOwe(f, at, args.Term, acknowledged); err != nil {
				return err
			}
		}
		acknowledged = 0
	}
	to := addressed(id, at)
	if len(args.Entries) > 0 {
		to = entriesPrefix + to
	}
	sent := time.Now()
	err := t.NetworkTransport.AppendEntries(id, to, args, resp)
	if err == nil {
		err = t.checkTerm("append", id, at, resp.Term)
	}
	if err == nil && resp.Term == args.Term {
		if resp.LastLog < acknowledged {
			return t.recordLoss(f, args.Term, acknowledged, resp.LastLog)
		}
		if len(args.Entries) > 0 && !resp.Success && !resp.NoRetryBackoff {
			err = errEntriesRejected
		}
	}
	t.observeAppend(f, at, sent, args, resp, err)
	if errors.Is(err, errEntriesRejected) {
		// as if none had been sent: Raft reads them again, and tries again
		args.Entries, resp.Success = nil, true
		return nil
	}
	if n := len(args.Entries); err == nil && n > 0 && resp.Success &&
		t.network.config.WaitWritten != nil {
		// Raft counts the entries for this node already (P11).
		err = t.network.config.WaitWritten(t.ctx, args.Entries[n-1].Index)
	}
	return err
}

// RequestVote implements raft.Transport. A node that owes something sends no request, and gets no
// vote: Raft can't be kept from campaigning by a setting.
func (t *Transport) RequestVote(id raft.ServerID, at raft.ServerAddress,
	args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if t.network.config.Tail().Owes() {
		*resp = raft.RequestVoteResponse{Term: args.Term}
		return nil
	}
	return retryDead(t, "vote", t.NetworkTransport.RequestVote, id, at, args, resp, &resp.Term)
}

// errYields is why this node requests no pre-vote (Config.MayCampaign). It votes for others as
// ever.
var errYields = errors.New(
	"not requested: this node gave way as leader recently, and lets others campaign first")

// RequestPreVote implements raft.WithPreVote. See RequestVote.
func (t *Transport) RequestPreVote(id raft.ServerID, at raft.ServerAddress,
	args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if may := t.network.config.MayCampaign; may != nil && !may() {
		return errYields
	}
	if t.network.config.Tail().Owes() {
		*resp = raft.RequestPreVoteResponse{Term: args.Term}
		return nil
	}
	return retryDead(t, "pre-vote", t.NetworkTransport.RequestPreVote, id, at, args, resp,
		&resp.Term)
}

// TimeoutNow implements raft.Transport.
func (t *Transport) TimeoutNow(id raft.ServerID, at raft.ServerAddress,
	args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return retryDead(t, "transfer", t.NetworkTransport.TimeoutNow, id, at, args, resp, new(uint64))
}

// InstallSnapshot implements raft.Transport.
func (t *Transport) InstallSnapshot(id raft.ServerID, at raft.ServerAddress,
	args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	data = &outgoingSnapshot{Reader: data, log: t.network.config.Logger, to: id, size: args.Size}
	t.mu.Lock()
	f := t.follower(id)
	t.enterTerm(f, args.Term)
	f.confirmed = content{} // a snapshot says nothing of what is committed
	t.mu.Unlock()
	err := t.NetworkTransport.InstallSnapshot(id, snapshotPrefix+addressed(id, at), args,
		resp, data)
	if err == nil {
		err = t.checkTerm("snapshot", id, at, resp.Term)
	}
	if err == nil && resp.Success {
		t.mu.Lock()
		f.acknowledge(args.Term, args.LastLogIndex)
		t.mu.Unlock()
	}
	return err
}

// streamLayer is the raft.StreamLayer of a Transport. It dials connections and makes their
// handshake; the Transport owns them until they are closed. Accepted connections go another way,
// see serve.
type streamLayer struct{ t *Transport }

// Prefixes of an address show Dial what a connection is for; so those for one purpose are a pool of
// their own. No id begins with them.
const (
	entriesPrefix  = "+"
	snapshotPrefix = "#"
)

// addressed joins the id of a server to its address, for the way through raft.NetworkTransport to
// Dial. No id holds a '='.
func addressed(id raft.ServerID, at raft.ServerAddress) raft.ServerAddress {
	return raft.ServerAddress(id) + "=" + at
}

// Dial implements raft.StreamLayer. The address is what addressed makes, with a prefix for the
// purpose.
func (s streamLayer) Dial(address raft.ServerAddress, _ time.Duration) (net.Conn, error) {
	rest := strings.TrimLeft(string(address), entriesPrefix+snapshotPrefix)
	server, at, found := strings.Cut(rest, "=")
	if !found {
		return nil, fmt.Errorf("peer: a call to %s doesn't name the server that it wants, and "+
			"was not made: Raft has to call through a peer.Transport", address)
	}
	stream := &stream{purpose: purposeRaft}
	if err := s.t.network.dial(s.t.ctx, Node{server, at}, stream, nil); err != nil {
		return nil, err
	}
	if !s.t.track(stream) {
		return nil, ErrClosed
	}
	conn := &outboundConn{stream: stream, left: answerBytesMax}
	switch strings.TrimSuffix(string(address), rest) {
	case entriesPrefix:
		s.t.mu.Lock()
		defer s.t.mu.Unlock()
		return throttledConn{conn, s.t.follower(raft.ServerID(server))}, nil
	case snapshotPrefix:
		return &snapshotConn{outboundConn: conn, began: time.Now()}, nil
	}
	return conn, nil
}

// answerBytesMax bounds the answer to a request: a few numbers, or an error. It holds no lists, so
// these bytes bound its memory.
const answerBytesMax = 64 << 10

// outboundConn is a connection of Raft that this node has dialled.
type outboundConn struct {
	*stream
	left int // the bytes that the current answer may still have
}

// Read implements net.Conn, and bounds an answer.
func (c *outboundConn) Read(b []byte) (int, error) {
	if c.left <= 0 {
		return 0, fmt.Errorf("peer: the answer of %s to a call is longer than %d bytes; nothing "+
			"was changed here", c.remote.Name, answerBytesMax)
	}
	n, err := c.stream.Read(b[:min(len(b), c.left)])
	c.left -= n
	return n, err
}

// Write implements net.Conn. After a request the next answer begins.
func (c *outboundConn) Write(b []byte) (int, error) {
	c.left = answerBytesMax
	return c.stream.Write(b)
}

// Accept implements net.Listener.
func (s streamLayer) Accept() (net.Conn, error) {
	<-s.t.ctx.Done()
	return nil, ErrClosed
}

// Addr implements net.Listener.
func (s streamLayer) Addr() net.Addr { return s.t.network.Addr() }

// Close implements net.Listener. Raft's transport calls it, after it has stopped its handlers:
// then each of them closes its stream as its last act.
func (s streamLayer) Close() error {
	s.t.stop(ErrClosed)
	s.t.closeMatching(func(*stream) bool { return true })
	return nil
}

// closeMatching ends the connections that match; their users then close the streams.
func (t *Transport) closeMatching(matches func(*stream) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for stream := range t.open {
		if matches(stream) {
			// not the stream: the close message of TLS could wait for a peer that doesn't read
			stream.raw.Close()
		}
	}
}

// track takes a stream into ownership until it is closed, or, after Close, closes it.
func (t *Transport) track(stream *stream) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() != nil {
		stream.raw.Close()
		return false
	}
	stream.owner = t
	if stream.inbound {
		t.makeRoom(stream.remote.Name)
		t.background.Add(1)
	}
	t.open[stream] = struct{}{}
	return true
}

// stream is a connection whose handshake is done.
type stream struct {
	net.Conn           // TLS over raw, or raw itself
	raw       net.Conn // without TLS
	inbound   bool     // accepted: if it is for Raft, serve closes it
	purpose   purpose
	remote    Answer    // of the other end
	repliedAt time.Time // when this end replied to the hello, if it was called
	// closed for another one of the same node; the mutex of its owner guards it
	crowdedOut bool
	// of a call: the request at the end that is called, the reply at the other
	body  []byte
	owner *Transport // if it is for Raft; nil: whoever dialled or accepted it closes it
}

// Close implements net.Conn.
func (s *stream) Close() error {
	err := s.Conn.Close()
	if s.owner == nil {
		return err
	}
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	if _, open := s.owner.open[s]; open {
		delete(s.owner.open, s)
		if s.inbound {
			s.owner.background.Done()
		}
	}
	return err
}

package peer

import (
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/hashicorp/raft"
)

// streamLayer is what raft.NetworkTransport sees of a Transport. It hands out connections whose handshake is
// done; the Transport owns them until they are closed, since Raft's forgets those that it accepted.
type streamLayer struct{ t *Transport }

// Prefixes of an address show Dial what a connection is for; so those for one purpose are a pool of their
// own. No id begins with them.
const (
	entriesPrefix  = "+"
	snapshotPrefix = "#"
)

// addressed joins the id of a server to its address, for the way through raft.NetworkTransport to Dial. No id
// holds a '='.
func addressed(id raft.ServerID, at raft.ServerAddress) raft.ServerAddress {
	return raft.ServerAddress(id) + "=" + at
}

// Dial implements raft.StreamLayer. The address is what addressed makes, with a prefix for the purpose.
func (s streamLayer) Dial(address raft.ServerAddress, _ time.Duration) (net.Conn, error) {
	rest := strings.TrimLeft(string(address), entriesPrefix+snapshotPrefix)
	server, at, found := strings.Cut(rest, "=")
	if !found {
		return nil, fmt.Errorf("peer: a call to %s doesn't say which node it means, and was not made: "+
			"Raft has to call through a peer.Transport", address)
	}
	stream, err := s.t.network.dial(s.t.ctx, Node{server, at}, purposeRaft, nil)
	if err != nil {
		return nil, err
	}
	if !s.t.track(stream) {
		return nil, ErrClosed
	}
	switch strings.TrimSuffix(string(address), rest) {
	case entriesPrefix:
		s.t.mu.Lock()
		defer s.t.mu.Unlock()
		return throttledConn{stream, s.t.follower(raft.ServerID(server))}, nil
	case snapshotPrefix:
		return &snapshotConn{stream: stream, began: time.Now()}, nil
	}
	return stream, nil
}

// Accept implements net.Listener.
func (s streamLayer) Accept() (net.Conn, error) {
	select {
	case stream := <-s.t.accepted:
		return stream, nil
	case <-s.t.ctx.Done():
		return nil, ErrClosed
	}
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

// deliver hands a verified connection to Accept.
func (t *Transport) deliver(stream *stream) {
	if !t.track(stream) {
		return
	}
	select {
	case t.accepted <- stream:
	case <-t.ctx.Done():
		stream.Close()
	}
}

// closeMatching ends the connections that match; their users then close the streams.
func (t *Transport) closeMatching(matches func(*stream) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for stream := range t.open {
		if matches(stream) {
			stream.raw.Close() // not the stream: the close message of TLS could wait for a peer that doesn't read
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
	t.open[stream] = struct{}{}
	if stream.inbound {
		t.background.Add(1)
	}
	return true
}

// stream is a connection whose handshake is done.
type stream struct {
	net.Conn          // TLS over raw, or raw itself
	raw      net.Conn // what the network gave
	inbound  bool     // accepted: if it is for Raft, a handler of Raft's transport closes it
	purpose  purpose
	remote   Answer     // of the other end
	answered time.Time  // when the hello was answered, at the end that is called
	body     []byte     // of a call: the request at the end that is called, the reply at the other
	owner    *Transport // if it is for Raft
}

// Close implements net.Conn, for a connection of Raft.
func (s *stream) Close() error {
	err := s.Conn.Close()
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

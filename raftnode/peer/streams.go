package peer

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// streamLayer is the raft.StreamLayer under a Transport: it hands out connections whose handshake is
// done and owns them until they are closed, since Raft's transport forgets those it accepted.
type streamLayer struct {
	network    *Network
	accepted   chan *stream // to Accept, one at a time
	throttleOf func(raft.ServerID) *throttle

	ctx      context.Context // ends when Close begins
	stop     context.CancelCauseFunc
	handlers sync.WaitGroup // accepted streams that their handler has not closed

	mu   sync.Mutex // guards what follows
	open map[*stream]struct{}
}

var _ raft.StreamLayer = (*streamLayer)(nil)

func newStreamLayer(n *Network, throttleOf func(raft.ServerID) *throttle) *streamLayer {
	s := &streamLayer{network: n, throttleOf: throttleOf, accepted: make(chan *stream), open: map[*stream]struct{}{}}
	s.ctx, s.stop = context.WithCancelCause(n.ctx)
	return s
}

// Dial implements raft.StreamLayer. The address is what addressed makes, with a prefix for the purpose.
func (s *streamLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	rest := strings.TrimLeft(string(address), entriesPrefix+snapshotPrefix)
	prefix := strings.TrimSuffix(string(address), rest)
	server, at, found := strings.Cut(rest, "=")
	if !found {
		return nil, fmt.Errorf("peer: a call to %s doesn't say which node it means, and was not made: "+
			"Raft has to call through a peer.Transport", address)
	}
	if timeout <= 0 {
		timeout = s.network.config.HandshakeTimeout
	}
	ctx, cancel := context.WithTimeoutCause(s.ctx, timeout, fmt.Errorf("no answer within %v", timeout))
	defer cancel()
	stream, _, _, err := s.network.dial(ctx, Node{server, at}, purposeRaft, nil)
	if err != nil {
		return nil, err
	}
	if !s.track(stream) {
		return nil, ErrClosed
	}
	return s.wrapConn(prefix, stream), nil
}

// deliver hands a verified connection to Accept.
func (s *streamLayer) deliver(stream *stream) {
	if !s.track(stream) {
		return
	}
	select {
	case s.accepted <- stream:
	case <-s.ctx.Done():
		stream.Close()
	}
}

// Accept implements net.Listener.
func (s *streamLayer) Accept() (net.Conn, error) {
	select {
	case stream := <-s.accepted:
		return stream, nil
	case <-s.ctx.Done():
		return nil, ErrClosed
	}
}

// Addr implements net.Listener.
func (s *streamLayer) Addr() net.Addr { return s.network.Addr() }

// Close implements net.Listener. Raft's transport calls it, after it has stopped its handlers:
// then each of them closes its stream as its last act.
func (s *streamLayer) Close() error {
	s.stop(ErrClosed)
	s.closeMatching(func(*stream) bool { return true })
	s.handlers.Wait()
	return nil
}

// closeMatching ends the connections that match; their users then close the streams.
func (s *streamLayer) closeMatching(matches func(*stream) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for stream := range s.open {
		if matches(stream) {
			stream.raw.Close() // not the stream: the close message of TLS could wait for a peer that doesn't read
		}
	}
}

// track takes a stream into ownership until it is closed, or, after Close, closes it.
func (s *streamLayer) track(stream *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		stream.raw.Close()
		return false
	}
	stream.owner = s
	s.open[stream] = struct{}{}
	if stream.inbound {
		s.handlers.Add(1)
	}
	return true
}

// stream is a verified connection.
type stream struct {
	net.Conn                 // TLS over raw, or raw itself
	raw        net.Conn      // what the network gave
	inbound    bool          // accepted, so that a handler of Raft's transport closes it
	server     raft.ServerID // at the other end
	generation generation    // of that node
	owner      *streamLayer
}

func (s *stream) Close() error {
	err := s.Conn.Close()
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	if _, open := s.owner.open[s]; open {
		delete(s.owner.open, s)
		if s.inbound {
			s.owner.handlers.Done()
		}
	}
	return err
}

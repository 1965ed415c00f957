package peer

import (
	"context"
	"net"
	"sync"

	"github.com/hashicorp/raft"
)

// Connections on which a node relays calls of clients to the leader. They begin with the same
// handshake as Raft's, so the leader knows which node relays a call.

// RelayConn is a connection for relayed calls. Its user closes it, even after the Network was
// closed.
type RelayConn struct{ *stream }

// From is the node that dialled an accepted connection.
func (c RelayConn) From() Server { return c.remote.Server }

// DialRelay connects to a server, at an address.
func (n *Network) DialRelay(ctx context.Context, id raft.ServerID,
	at raft.ServerAddress) (RelayConn, error) {
	s := &stream{purpose: purposeRelay}
	return RelayConn{s}, n.dial(ctx, Node{string(id), string(at)}, s, nil)
}

// Relays returns a listener whose connections are RelayConn. It may be called once, and the
// listener ends with the Network.
func (n *Network) Relays() net.Listener {
	return &relayListener{network: n, closed: make(chan struct{})}
}

type relayListener struct {
	network *Network
	close   sync.Once
	closed  chan struct{}
}

func (l *relayListener) Addr() net.Addr { return l.network.Addr() }

func (l *relayListener) Accept() (net.Conn, error) {
	select {
	case s := <-l.network.relays:
		return RelayConn{s}, nil
	case <-l.network.ctx.Done():
	case <-l.closed:
	}
	return nil, ErrClosed
}

func (l *relayListener) Close() error {
	l.close.Do(func() { close(l.closed) })
	return nil
}

// deliverRelay hands a connection to the listener. If none accepts it before the handshake's
// timeout, it is closed.
func (n *Network) deliverRelay(ctx context.Context, s *stream) {
	s.owner = nil
	select {
	case n.relays <- s:
	case <-ctx.Done():
		s.raw.Close()
	}
}

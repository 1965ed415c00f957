package sim

import (
	"context"
	"net"
)

// Stack is what the kernel of a host keeps for one process: its ports and connections. When the
// process ends, however it does, they are closed at once.
type Stack struct {
	network *Network
	host    string

	// Guarded by network.mu.
	closed    bool
	listeners map[*Listener]struct{}
	conns     map[*conn]struct{}
}

// NewStack is for a process that starts on a host.
func (n *Network) NewStack(host string) *Stack {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts[host] = true
	return &Stack{network: n, host: host, listeners: map[*Listener]struct{}{}, conns: map[*conn]struct{}{}}
}

// Listen opens a port of this host.
func (s *Stack) Listen(port string) (*Listener, error) { return s.network.listen(s, s.host+":"+port) }

// Dial calls an address. It continues until somebody answers, refuses, or ctx ends.
func (s *Stack) Dial(ctx context.Context, address string) (net.Conn, error) {
	return s.network.dial(ctx, s, address)
}

// CloseAll closes everything that the process has open, and lets it open nothing more.
func (s *Stack) CloseAll() {
	s.network.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.closeLocked()
	}
	ports := s.listeners
	s.listeners = nil
	s.network.mu.Unlock()
	for p := range ports {
		p.Close()
	}
}

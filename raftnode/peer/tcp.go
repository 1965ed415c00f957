package peer

import (
	"context"
	"fmt"
	"net"
	"time"
)

// keepAlive is how long a connection may be idle before it is probed, and the time between two
// probes. It has to be at most a sixth of a lease (10 s unless asked otherwise); the kernel counts
// in whole seconds and Go rounds up, so of what is below 1.7 s only 1 s is. A machine that vanishes
// without closing its connections is noticed within keepAlive × (1 + keepAliveProbes) = 4 s.
const (
	keepAlive       = time.Second
	keepAliveProbes = 3
)

// ListenTCP listens on a peer port; what it accepts has keepalives.
func ListenTCP(ctx context.Context, address string) (net.Listener, error) {
	config := net.ListenConfig{KeepAliveConfig: keepAliveConfig()}
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("peer: can't listen for peers on %s (--peer): %w", address, err)
	}
	return listener, nil
}

// DialTCP connects to a peer port with keepalives.
func DialTCP(ctx context.Context, address string) (net.Conn, error) {
	return (&net.Dialer{KeepAliveConfig: keepAliveConfig()}).DialContext(ctx, "tcp", address)
}

func keepAliveConfig() net.KeepAliveConfig {
	return net.KeepAliveConfig{
		Enable: true, Idle: keepAlive, Interval: keepAlive, Count: keepAliveProbes,
	}
}

package conns

import (
	"net"
	"time"
)

// What gRPC keeps for each connection, here and at the node to which calls are relayed.
const (
	// BufferBytes is each connection's buffer in each direction: there are thousands of
	// connections, and their messages are small.
	BufferBytes = 4 << 10
	// WindowBytes and ConnWindowBytes are what a client may send ahead on one stream, and on a
	// whole connection. They are fixed, because otherwise gRPC measures the connection with a ping
	// for nearly every frame.
	WindowBytes     = 64 << 10
	ConnWindowBytes = 1 << 20
	// StreamsPerConn bounds the calls in flight on one connection; an Acquire is held open. With
	// what each may have sent before it is read, WindowBytes and a message, a connection may keep
	// 128 MiB.
	StreamsPerConn = 1024
	// MaxDefault is how many clients may be connected at once, unless it is configured.
	MaxDefault = 16_384
	// PingIdle is after how long of silence the other end is probed by HTTP/2. TCP's keepalives,
	// which cost no goroutine, notice a vanished computer earlier.
	PingIdle = time.Minute
)

// A client's computer that vanishes is noticed within VanishedAfter: by TCP_USER_TIMEOUT while
// something that was sent to it is not acknowledged, and by probes on connections of HTTP and while
// a call waits, or where the break releases locks. Nothing depends on other connections: they are
// probed each IdleProbes, since there are thousands. TCP_USER_TIMEOUT is a matter of the kernel;
// other systems than Linux take minutes.
const (
	VanishedAfter = 10 * time.Second
	WaitingProbes = VanishedAfter / 2 // the second probe is the last
	IdleProbes    = time.Minute
	probesMax     = 3
)

// Probes is the configuration of TCP's probes of an idle connection.
func Probes(every time.Duration) net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: every, Interval: min(every, VanishedAfter),
		Count: probesMax}
}

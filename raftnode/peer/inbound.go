package peer

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/hashicorp/raft"
)

// requestBytesMax bounds a request of Raft, without the snapshot that may follow. An append has the
// bytes that a line carries in appendTimeTarget, or one entry, which is shorter.
const requestBytesMax = int64(rateMax*appendTimeTarget/time.Second) + 1<<20

// inboundConnsMax bounds the connections of Raft from nodes of one name. A node has up to 9 idle
// ones (idleConnsMax for each of three pools) and those that are in use.
const inboundConnsMax = 32

// largeBytes is from which length on a request is large. A node sends one large request at a time,
// an append with entries (rpcsInFlight): when it sends another, it has given up the one before.
const largeBytes = 1 << 20

// beginLarge closes the connection of the large request that the same node has sent before, unless
// that was answered. So all its connections hold requestBytesMax once, and largeBytes each.
func (t *Transport) beginLarge(c *inboundConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if before := t.large[c.remote.Name]; before != nil {
		before.raw.Close()
		before.end()
	}
	t.large[c.remote.Name] = c
}

// endLarge follows when a large request was answered, or its connection ends.
func (t *Transport) endLarge(c *inboundConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.large[c.remote.Name] == c {
		delete(t.large, c.remote.Name)
	}
}

// makeRoom closes the oldest connection from a name that has reached inboundConnsMax. The caller
// holds the mutex.
func (t *Transport) makeRoom(name string) {
	conns, oldest := 0, (*stream)(nil)
	for s := range t.open {
		if !s.inbound || s.remote.Name != name || s.crowdedOut {
			continue
		}
		if conns++; oldest == nil || s.repliedAt.Before(oldest.repliedAt) {
			oldest = s
		}
	}
	if conns >= inboundConnsMax {
		oldest.crowdedOut = true
		oldest.raw.Close()
		t.network.log.warn("many "+name, "too many connections from a peer: closed the oldest",
			"peer", name, "limit", inboundConnsMax)
	}
}

// serve passes the requests of a connection on to Raft, until it ends. Each connection has a
// raft.NetworkTransport of its own, because that does not report over which connection a request
// came, which P12 needs.
func (t *Transport) serve(s *stream) {
	if !t.track(s) {
		return
	}
	ended, end := context.WithCancel(context.Background())
	c := &inboundConn{stream: s, request: newRequest(), end: end, ended: ended.Done()}
	select {
	case <-t.started:
	case <-t.ctx.Done():
		c.Close()
		return
	}
	layer := &singleStream{streamLayer: streamLayer{t}, conn: make(chan net.Conn, 1),
		closed: make(chan struct{})}
	layer.conn <- c
	reader := raft.NewNetworkTransportWithConfig(
		&raft.NetworkTransportConfig{Logger: t.logger, Stream: layer})
	defer reader.Close()
	reader.SetHeartbeatHandler(func(request raft.RPC) { t.answerHeartbeat(c, request) })
	for {
		select {
		case request := <-reader.Consumer():
			if t.prepareRequest(c, &request) {
				t.handToRaft(c, request)
			}
		case <-ended.Done():
			return
		case <-t.ctx.Done():
			return
		}
	}
}

// inboundConn is an accepted connection of Raft.
type inboundConn struct {
	*stream
	request
	end   context.CancelFunc
	ended <-chan struct{} // closed by end
}

// request is what has been read of the current request, which begins behind the answer to the one
// before: a byte for its kind, one value, and the bytes of a snapshot.
type request struct {
	left     int64 // the bytes that it may still have
	large    bool  // it has more than largeBytes
	hasKind  bool
	value    valueReader
	behind   int64 // bytes behind the value
	snapshot int64 // those that belong to the request
}

func newRequest() request { return request{left: requestBytesMax, value: newValueReader()} }

// read follows the request through b.
func (r *request) read(b []byte) error {
	r.left -= int64(len(b))
	if len(b) > 0 && !r.hasKind {
		r.hasKind, b = true, b[1:]
	}
	b, err := r.value.read(b)
	r.behind += int64(len(b))
	return err
}

// Read implements net.Conn, and bounds a request before Raft decodes it.
func (c *inboundConn) Read(b []byte) (int, error) {
	if c.left <= 0 {
		return 0, c.reject(fmt.Errorf("it is longer than %d bytes", requestBytesMax))
	}
	n, err := c.stream.Read(b[:min(int64(len(b)), c.left)])
	if fault := c.read(b[:n]); fault != nil {
		return 0, c.reject(fault)
	}
	if !c.large && requestBytesMax-c.left > largeBytes {
		c.large = true
		c.owner.beginLarge(c)
	}
	return n, err
}

// reject ends the connection because of the request that it carries. Raft's handler logs the error.
func (c *inboundConn) reject(fault error) error {
	c.raw.Close()
	return fmt.Errorf("peer: a request from %s was rejected and the connection closed: %w",
		c.remote.Name, fault)
}

// Write implements net.Conn. After an answer the next request begins. Bytes that came before it,
// and are no snapshot's, were not followed: no node sends them, and the connection ends.
func (c *inboundConn) Write(b []byte) (int, error) {
	ended := c.request
	if c.large {
		c.owner.endLarge(c)
	}
	c.request = newRequest()
	n, err := c.stream.Write(b)
	if err == nil && ended.behind != ended.snapshot {
		err = c.reject(fmt.Errorf("%d bytes were sent behind it, and %d belong to it", ended.behind,
			ended.snapshot))
	}
	return n, err
}

// Close implements net.Conn. The handler of raft's transport calls it as its last act.
func (c *inboundConn) Close() error {
	defer c.end()
	c.owner.endLarge(c)
	return c.stream.Close()
}

// singleStream is a stream layer that accepts one connection.
type singleStream struct {
	streamLayer
	conn   chan net.Conn // holds it until it is accepted
	closed chan struct{}
}

// Accept implements net.Listener.
func (s *singleStream) Accept() (net.Conn, error) {
	select {
	case c := <-s.conn:
		return c, nil
	default:
	}
	<-s.closed // the reader's end
	return nil, ErrClosed
}

// Close implements net.Listener.
func (s *singleStream) Close() error {
	close(s.closed)
	return nil
}

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// proxyNetwork is the network of a run. A proxy stands in front of every port of every node. It
// applies to each byte the faults of the directed link from the process that sends to the one that
// receives.
type proxyNetwork struct {
	// owner names the process at the far end of an accepted connection; "" = it has ended.
	owner  func(net.Conn) string
	open   context.Context // ends with close
	cancel context.CancelFunc
	work   sync.WaitGroup

	conns sync.Map // what breaks each connection, a context.CancelFunc, by *linkID

	mu             sync.Mutex // guards what follows
	faults         map[*linkFault][]linkID
	changed        chan struct{}            // closed when the faults change
	lastDeliveries map[string]time.Duration // when something of a process last arrived anywhere
}

// linkID names a directed link.
type linkID struct{ from, to string }

// reverse is the other direction.
func (p linkID) reverse() linkID { return linkID{p.to, p.from} }

// linkFault is a fault of a link. Several may be injected into one link: any black hole and any
// refusal counts, delays add up, the lowest rate counts.
type linkFault struct {
	blackhole bool          // nothing arrives, without an error, until the fault is healed
	refuse    bool          // open connections are reset, none can be opened
	delay     time.Duration // and up to jitter more
	jitter    time.Duration
	rate      int // bytes a second; 0 = unlimited
	passes    int // a write with more bytes is held back, with all that follows it; 0 = all pass
}

const (
	chunkBytes        = 16 << 10
	chunksInFlightMax = 64 // on their way in one direction of one connection
	dialTimeout       = 2 * time.Second
)

func newProxyNetwork(owner func(net.Conn) string) *proxyNetwork {
	f := &proxyNetwork{
		owner: owner, faults: map[*linkFault][]linkID{}, changed: make(chan struct{}),
		lastDeliveries: map[string]time.Duration{},
	}
	f.open, f.cancel = context.WithCancel(context.Background())
	return f
}

// close ends all connections and waits for all goroutines.
func (f *proxyNetwork) close() {
	f.cancel()
	f.work.Wait()
}

// inject injects a fault into links, until heal is called.
func (f *proxyNetwork) inject(c linkFault, links ...linkID) (heal func()) {
	f.updateFaults(func() { f.faults[&c] = links })
	if c.refuse {
		f.resetConns(links...)
	}
	return func() { f.updateFaults(func() { delete(f.faults, &c) }) }
}

func (f *proxyNetwork) updateFaults(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	close(f.changed)
	f.changed = make(chan struct{})
}

// effectiveFault is the sum of all faults of a link, and a channel that is closed when any faults
// change.
func (f *proxyNetwork) effectiveFault(l linkID) (sum linkFault, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c, links := range f.faults {
		if !slices.Contains(links, l) {
			continue
		}
		sum.blackhole = sum.blackhole || c.blackhole
		sum.refuse = sum.refuse || c.refuse
		sum.delay += c.delay
		sum.jitter += c.jitter
		if c.rate > 0 && (sum.rate == 0 || c.rate < sum.rate) {
			sum.rate = c.rate
		}
		if c.passes > 0 && (sum.passes == 0 || c.passes < sum.passes) {
			sum.passes = c.passes
		}
	}
	return sum, f.changed
}

// resetConns breaks the connections over any of the links, in either direction. It returns how
// many.
func (f *proxyNetwork) resetConns(links ...linkID) (broken int) {
	for conn, reset := range f.conns.Range {
		if over := *conn.(*linkID); slices.Contains(links, over) ||
			slices.Contains(links, over.reverse()) {
			reset.(context.CancelFunc)()
			broken++
		}
	}
	return broken
}

// lastDelivery is when something of a process last arrived anywhere; 0 = never.
func (f *proxyNetwork) lastDelivery(from string) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lastDeliveries[from]
}

// serve proxies a node's port: connections to front are forwarded to back. It returns where it
// listens.
func (f *proxyNetwork) serve(to, front, back string) (net.Addr, error) {
	in, err := net.Listen("tcp", front)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(f.open, func() { in.Close() })
	f.work.Go(func() {
		for conn, err := in.Accept(); err == nil; conn, err = in.Accept() { // until it is closed
			f.work.Go(func() { f.carry(conn, to, back) })
		}
	})
	return in.Addr(), nil
}

// carry forwards a connection, until both ends have closed it or it is reset.
func (f *proxyNetwork) carry(client net.Conn, to, target string) {
	ctx, reset := context.WithCancel(f.open)
	defer reset()
	resetAfter(ctx, client)
	from := f.owner(client)
	if from == "" {
		return
	}
	over := linkID{from, to}
	f.conns.Store(&over, reset)
	defer f.conns.Delete(&over)
	if !f.awaitDelivery(ctx, over, time.Now(), 0) ||
		!f.awaitDelivery(ctx, over.reverse(), time.Now(), 0) {
		return // a SYN or its answer does not arrive
	}
	server, err := net.DialTimeout("tcp", target, dialTimeout)
	if err != nil {
		return // nothing listens: the connection is reset
	}
	resetAfter(ctx, server)
	var both sync.WaitGroup
	both.Go(func() { f.copyOneWay(ctx, reset, client, server, over) })
	both.Go(func() { f.copyOneWay(ctx, reset, server, client, over.reverse()) })
	both.Wait()
}

// resetAfter resets a connection when ctx ends.
func resetAfter(ctx context.Context, conn net.Conn) {
	context.AfterFunc(ctx, func() {
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	})
}

// chunk is the result of one read; without data it is a reset.
type chunk struct {
	data []byte
	at   time.Time
}

// copyOneWay forwards bytes in one direction. It forwards the end of the stream, or a reset, after
// all bytes that were sent before.
func (f *proxyNetwork) copyOneWay(ctx context.Context, reset func(), from, to net.Conn, l linkID) {
	chunks := make(chan chunk, chunksInFlightMax)
	f.work.Go(func() { // ends when from is closed, at the latest
		defer close(chunks)
		for {
			buffer := make([]byte, chunkBytes)
			n, err := from.Read(buffer)
			if n > 0 || err != nil && !errors.Is(err, io.EOF) {
				select {
				case chunks <- chunk{buffer[:n], time.Now()}:
				case <-ctx.Done():
				}
			}
			if err != nil {
				return
			}
		}
	})
	for c := range chunks {
		arrives := f.awaitDelivery(ctx, l, c.at, len(c.data))
		if arrives && len(c.data) > 0 {
			_, err := to.Write(c.data)
			arrives = err == nil
		}
		if !arrives || len(c.data) == 0 {
			reset()
			return
		}
		f.mu.Lock()
		f.lastDeliveries[l.from] = monotonicNow()
		f.mu.Unlock()
	}
	if f.awaitDelivery(ctx, l, time.Now(), 0) {
		_ = to.(*net.TCPConn).CloseWrite()
	}
}

// awaitDelivery waits until bytes that were sent at some moment may arrive. It returns false if
// they never will, because the link refuses connections or the connection is over.
func (f *proxyNetwork) awaitDelivery(ctx context.Context, l linkID, sent time.Time,
	bytes int) bool {
	spread := rand.Float64() // of the jitter
	var through time.Time    // when a link with a limited rate has transmitted the bytes
	for ctx.Err() == nil {
		fault, changed := f.effectiveFault(l)
		wait := time.Until(sent.Add(fault.delay + time.Duration(spread*float64(fault.jitter))))
		if fault.rate > 0 {
			if through.IsZero() {
				through = time.Now().Add(
					time.Duration(bytes) * time.Second / time.Duration(fault.rate))
			}
			wait = max(wait, time.Until(through))
		}
		switch {
		case fault.refuse:
			return false
		case fault.blackhole, fault.passes > 0 && bytes > fault.passes:
			wait = time.Hour // until the faults change
		case wait <= 0:
			return true
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return false
}

// socketBetween is the inode of this machine's TCP socket that is connected from one address to
// another; "" if there is none. It queries the kernel for this socket (sock_diag(7)): the list of
// all sockets is long on a machine that opened many connections in the last minute.
func socketBetween(from, to *net.TCPAddr) (inode string, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, socketRequest(from, to), 0,
		&unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return "", err
	}
	reply := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, reply, unix.MSG_DONTWAIT) // it is there: Sendto waits for it
	if err != nil {
		return "", err
	}
	messages, err := syscall.ParseNetlinkMessage(reply[:n])
	if err == nil && len(messages) == 0 {
		err = errors.New("empty reply")
	}
	if err != nil {
		return "", fmt.Errorf("sock_diag: %w", err)
	}
	switch kind, data := messages[0].Header.Type, messages[0].Data; {
	case kind == unix.NLMSG_ERROR && len(data) >= 4:
		if err := unix.Errno(-int32(binary.NativeEndian.Uint32(data))); err != unix.ENOENT {
			return "", fmt.Errorf("sock_diag: %w", err)
		}
		return "", nil
	case kind == diagByFamily && len(data) >= diagInodeOffset+4:
		return fmt.Sprint(binary.NativeEndian.Uint32(data[diagInodeOffset:])), nil
	default:
		return "", fmt.Errorf("sock_diag replied with message %d of %d bytes", kind, n)
	}
}

const (
	diagByFamily     = 20      // SOCK_DIAG_BY_FAMILY
	diagRequestBytes = 16 + 56 // nlmsghdr, inet_diag_req_v2
	diagInodeOffset  = 52 + 16 // where idiag_inode is in the reply, behind its header
)

// socketRequest is struct nlmsghdr, then struct inet_diag_req_v2.
func socketRequest(from, to *net.TCPAddr) []byte {
	b := make([]byte, diagRequestBytes)
	own := binary.NativeEndian
	own.PutUint32(b[0:], diagRequestBytes)
	own.PutUint16(b[4:], diagByFamily)
	own.PutUint16(b[6:], unix.NLM_F_REQUEST)
	b[16], b[17] = unix.AF_INET, unix.IPPROTO_TCP
	own.PutUint32(b[20:], ^uint32(0)) // in whatever state
	binary.BigEndian.PutUint16(b[24:], uint16(from.Port))
	binary.BigEndian.PutUint16(b[26:], uint16(to.Port))
	copy(b[28:], from.IP.To4())
	copy(b[44:], to.IP.To4())
	own.PutUint64(b[64:], ^uint64(0)) // no cookie
	return b
}

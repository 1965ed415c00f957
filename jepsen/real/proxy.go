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

// proxyNetwork is the network of a run: in front of every port of every node stands a proxy, and what goes
// through it is treated as the directed link from the process that sends to the one that receives.
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

// linkFault is what is wrong with a link. Several may be injected into one: holes and cuts count if one has
// them, delays add up, the lowest rate holds.
type linkFault struct {
	blackhole bool          // nothing arrives, without an error: it arrives when the fault is healed
	refuse    bool          // what is open breaks, nothing can be opened
	delay     time.Duration // and up to jitter more
	jitter    time.Duration
	rate      int // bytes a second; 0 = as fast as it goes
	passes    int // what is sent at once and has more bytes is held, and all that follows it; 0 = all passes
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

// close ends all connections and waits until nothing runs any more.
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

// effectiveFault is the sum of all faults of a link, and a channel that is closed when any faults change.
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

// resetConns breaks the connections over any of the links, in either direction. It returns how many.
func (f *proxyNetwork) resetConns(links ...linkID) (broken int) {
	for conn, reset := range f.conns.Range {
		if over := *conn.(*linkID); slices.Contains(links, over) || slices.Contains(links, over.reverse()) {
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

// serve proxies a node's port: connections to front are forwarded to back. It returns where it listens.
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

// carry moves what is sent over a connection, until both ends are through with it or it is broken.
func (f *proxyNetwork) carry(client net.Conn, to, target string) {
	ctx, reset := context.WithCancel(f.open)
	defer reset()
	breakWhenOver(ctx, client)
	from := f.owner(client)
	if from == "" {
		return
	}
	over := linkID{from, to}
	f.conns.Store(&over, reset)
	defer f.conns.Delete(&over)
	if !f.awaitDelivery(ctx, over, time.Now(), 0) || !f.awaitDelivery(ctx, over.reverse(), time.Now(), 0) {
		return // the way of a SYN and of its answer
	}
	server, err := net.DialTimeout("tcp", target, dialTimeout)
	if err != nil {
		return // nothing listens: the connection is reset
	}
	breakWhenOver(ctx, server)
	var both sync.WaitGroup
	both.Go(func() { f.copyOneWay(ctx, reset, client, server, over) })
	both.Go(func() { f.copyOneWay(ctx, reset, server, client, over.reverse()) })
	both.Wait()
}

// breakWhenOver closes a connection with a reset when ctx ends.
func breakWhenOver(ctx context.Context, conn net.Conn) {
	context.AfterFunc(ctx, func() {
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	})
}

// chunk is what was read at once; without data it is a reset.
type chunk struct {
	data []byte
	at   time.Time
}

// copyOneWay moves bytes one way. An end of the stream is passed on after all that was sent before it, and a reset too.
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

// awaitDelivery waits until what was sent at a moment may arrive. False: it never will, because the link is cut or the
// connection is over.
func (f *proxyNetwork) awaitDelivery(ctx context.Context, l linkID, sent time.Time, bytes int) bool {
	spread := rand.Float64() // of what jitter there is
	var through time.Time    // when a narrow line has taken the bytes
	for ctx.Err() == nil {
		is, changed := f.effectiveFault(l)
		wait := time.Until(sent.Add(is.delay + time.Duration(spread*float64(is.jitter))))
		if is.rate > 0 {
			if through.IsZero() {
				through = time.Now().Add(time.Duration(bytes) * time.Second / time.Duration(is.rate))
			}
			wait = max(wait, time.Until(through))
		}
		switch {
		case is.refuse:
			return false
		case is.blackhole, is.passes > 0 && bytes > is.passes:
			wait = time.Hour // until it changes
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

// socketBetween is the inode of this machine's TCP socket that is connected from one address to another; ""
// if there is none. The kernel is asked for this one (sock_diag(7)): its list of all sockets is long on a
// machine on which much was connected in the last minute.
func socketBetween(from, to *net.TCPAddr) (inode string, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, socketRequest(from, to), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return "", err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, unix.MSG_DONTWAIT) // the kernel answers before Sendto returns
	if err != nil {
		return "", err
	}
	messages, err := syscall.ParseNetlinkMessage(answer[:n])
	if err == nil && len(messages) == 0 {
		err = errors.New("it answers nothing")
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
		return "", fmt.Errorf("sock_diag answers with message %d of %d bytes", kind, n)
	}
}

const (
	diagByFamily     = 20      // SOCK_DIAG_BY_FAMILY
	diagRequestBytes = 16 + 56 // nlmsghdr, inet_diag_req_v2
	diagInodeOffset  = 52 + 16 // where idiag_inode is in the answer, behind its header
)

// socketRequest is the question: struct nlmsghdr, struct inet_diag_req_v2.
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

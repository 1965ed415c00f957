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

	mu    sync.Mutex // guards what follows
	links map[linkID]*link
	conns map[*linkID]context.CancelFunc // what breaks each connection
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
}

type link struct {
	mu           sync.Mutex // guards what follows
	faults       map[*linkFault]struct{}
	changed      chan struct{} // closed when the faults change
	lastDelivery time.Duration // when it last delivered something
}

const (
	chunkBytes        = 16 << 10
	chunksInFlightMax = 64 // on their way in one direction of one connection
	dialTimeout       = 2 * time.Second
)

func newProxyNetwork(owner func(net.Conn) string) *proxyNetwork {
	f := &proxyNetwork{owner: owner, links: map[linkID]*link{}, conns: map[*linkID]context.CancelFunc{}}
	f.open, f.cancel = context.WithCancel(context.Background())
	return f
}

// close ends all connections and waits until nothing runs any more.
func (f *proxyNetwork) close() {
	f.cancel()
	f.work.Wait()
}

// link is the one of a pair, made at its first use.
func (f *proxyNetwork) link(p linkID) *link {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.links[p]
	if l == nil {
		l = &link{faults: map[*linkFault]struct{}{}, changed: make(chan struct{})}
		f.links[p] = l
	}
	return l
}

// inject injects a fault into links, until heal is called.
func (f *proxyNetwork) inject(c linkFault, pairs ...linkID) (heal func()) {
	for _, p := range pairs {
		f.link(p).updateFaults(func(all map[*linkFault]struct{}) { all[&c] = struct{}{} })
	}
	if c.refuse {
		f.resetConns(pairs...)
	}
	return func() {
		for _, p := range pairs {
			f.link(p).updateFaults(func(all map[*linkFault]struct{}) { delete(all, &c) })
		}
	}
}

func (l *link) updateFaults(do func(map[*linkFault]struct{})) {
	l.mu.Lock()
	defer l.mu.Unlock()
	do(l.faults)
	close(l.changed)
	l.changed = make(chan struct{})
}

// effectiveFault is the sum of all faults, and a channel that is closed when it changes.
func (l *link) effectiveFault() (sum linkFault, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.faults {
		sum.blackhole = sum.blackhole || c.blackhole
		sum.refuse = sum.refuse || c.refuse
		sum.delay += c.delay
		sum.jitter += c.jitter
		if c.rate > 0 && (sum.rate == 0 || c.rate < sum.rate) {
			sum.rate = c.rate
		}
	}
	return sum, l.changed
}

// resetConns breaks the connections over any of the links, in either direction. It returns how many.
func (f *proxyNetwork) resetConns(pairs ...linkID) (broken int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for l, reset := range f.conns {
		if slices.Contains(pairs, *l) || slices.Contains(pairs, l.reverse()) {
			reset()
			broken++
		}
	}
	return broken
}

// lastDelivery is when something of a process last arrived anywhere; 0 = never.
func (f *proxyNetwork) lastDelivery(from string) (last time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for p, l := range f.links {
		if p.from == from {
			l.mu.Lock()
			last = max(last, l.lastDelivery)
			l.mu.Unlock()
		}
	}
	return last
}

// serve proxies a node's port: connections to front are forwarded to back. It returns where it listens.
func (f *proxyNetwork) serve(to, front, back string) (net.Addr, error) {
	in, err := net.Listen("tcp", front)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(f.open, func() { in.Close() })
	f.work.Go(func() {
		for {
			conn, err := in.Accept()
			if err != nil {
				return // closed
			}
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
	f.mu.Lock()
	f.conns[&over] = reset
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.conns, &over)
	}()
	there, back := f.link(over), f.link(over.reverse())
	if !there.awaitDelivery(ctx, time.Now(), 0) || !back.awaitDelivery(ctx, time.Now(), 0) {
		return // the way of a SYN and of its answer
	}
	server, err := net.DialTimeout("tcp", target, dialTimeout)
	if err != nil {
		return // nothing listens: the connection is reset
	}
	breakWhenOver(ctx, server)
	var both sync.WaitGroup
	both.Go(func() { f.copyOneWay(ctx, reset, client, server, there) })
	both.Go(func() { f.copyOneWay(ctx, reset, server, client, back) })
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
func (f *proxyNetwork) copyOneWay(ctx context.Context, reset func(), from, to net.Conn, l *link) {
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
		arrives := l.awaitDelivery(ctx, c.at, len(c.data))
		if arrives && len(c.data) > 0 {
			_, err := to.Write(c.data)
			arrives = err == nil
		}
		if !arrives || len(c.data) == 0 {
			reset()
			return
		}
		l.mu.Lock()
		l.lastDelivery = monotonicNow()
		l.mu.Unlock()
	}
	if l.awaitDelivery(ctx, time.Now(), 0) {
		_ = to.(*net.TCPConn).CloseWrite()
	}
}

// awaitDelivery waits until what was sent at a moment may arrive. False: it never will, because the link is cut or the
// connection is over.
func (l *link) awaitDelivery(ctx context.Context, sent time.Time, bytes int) bool {
	spread := rand.Float64() // of what jitter there is
	for {
		is, changed := l.effectiveFault()
		wait := time.Until(sent.Add(is.delay + time.Duration(spread*float64(is.jitter))))
		if is.rate > 0 {
			wait = max(wait, time.Duration(bytes)*time.Second/time.Duration(is.rate))
			bytes = 0 // so long it occupies the line, once
		}
		switch {
		case is.refuse:
			return false
		case is.blackhole:
			wait = time.Hour // until it changes
		case wait <= 0:
			return ctx.Err() == nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return false
		}
	}
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
	within := unix.NsecToTimeval(int64(time.Second))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &within); err != nil {
		return "", err
	}
	if err := unix.Sendto(fd, socketRequest(from, to), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return "", err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return "", err
	}
	return parseSocket(answer[:n])
}

const (
	diagByFamily     = 20           // SOCK_DIAG_BY_FAMILY
	diagRequestBytes = 16 + 56      // nlmsghdr, inet_diag_req_v2
	diagInodeOffset  = 16 + 52 + 16 // where idiag_inode is in the answer
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

func parseSocket(b []byte) (inode string, err error) {
	if len(b) < 20 {
		return "", errors.New("sock_diag answers nothing")
	}
	own := binary.NativeEndian
	switch kind := own.Uint16(b[4:]); {
	case kind == unix.NLMSG_ERROR:
		err := unix.Errno(-int32(own.Uint32(b[16:])))
		if err == unix.ENOENT {
			return "", nil
		}
		return "", fmt.Errorf("sock_diag: %w", err)
	case kind == diagByFamily && len(b) >= diagInodeOffset+4:
		return fmt.Sprint(own.Uint32(b[diagInodeOffset:])), nil
	default:
		return "", fmt.Errorf("sock_diag answers with message %d of %d bytes", kind, len(b))
	}
}

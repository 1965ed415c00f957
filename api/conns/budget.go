package conns

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"zamok/api/gate/limits"
)

// frameBytes is gRPC's overhead for a frame until its message is complete.
const frameBytes = 64

// Budget bounds the bytes in flight on all connections together.
type Budget struct {
	bytes   int64
	refused func(limit string, from net.Addr)
	used    atomic.Int64

	shrinking sync.Mutex // held by shrink

	mu    sync.Mutex // guards what follows
	conns map[*Conn]struct{}
	from  map[string]*network // by its name; without a connection there is none
}

// NewBudget returns a budget of a number of bytes. It calls refused for each connection that is
// closed because of a limit.
func NewBudget(bytes int64, refused func(limit string, from net.Addr)) *Budget {
	return &Budget{
		bytes: bytes, refused: refused, conns: make(map[*Conn]struct{}),
		from: make(map[string]*network),
	}
}

// grow adds to the sum, and closes connections if it is beyond the budget.
func (b *Budget) grow(bytes int64) {
	if b.used.Add(bytes) > b.bytes && bytes > 0 {
		b.shrink()
	}
}

// shrink closes the heaviest connections until the others are within the budget.
func (b *Budget) shrink() {
	b.shrinking.Lock()
	defer b.shrinking.Unlock()
	for b.used.Load() > b.bytes {
		conn := b.heaviest()
		if conn == nil {
			return // the rest is being released
		}
		_ = conn.Close() // that it is closed already is no error
		b.refused(limits.UnreadBytes, conn.Conn.RemoteAddr())
	}
}

func (b *Budget) heaviest() (heaviest *Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	most, now := -1.0, time.Now()
	for conn := range b.conns {
		if kept, byteSeconds := conn.load(now); kept > 0 && byteSeconds > most {
			heaviest, most = conn, byteSeconds
		}
	}
	return heaviest
}

// forget removes a connection that has ended, and makes room.
func (b *Budget) forget(conn *Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.conns[conn]; known {
		delete(b.conns, conn)
		if conn.count(-1); conn.from.in == [classes]int{} {
			delete(b.from, conn.network)
		}
	}
}

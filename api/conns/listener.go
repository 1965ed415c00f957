package conns

import (
	"net"
	"sync"
)

// ConnBytes is the most memory of a connection without a call, beside what the budget counts: its buffers, its tables of headers
// and its goroutines. Most take 20 KiB, and 30 with TLS; frames and records of 16 KiB make the buffers larger.
const ConnBytes = 64 << 10

// Listener accepts a limited number of connections. Beyond it, a new connection replaces the one that has been without a call
// for longest; if all have calls, the new one is closed.
type Listener struct {
	net.Listener
	budget     *Budget
	most, used int // used is guarded by Budget.mu
	limit      func(from net.Addr) (end func(), err error)
}

// Listen returns a listener with at most most connections, which share the budget. limit counts a connection of an address until
// end is called, or refuses it; nil: no limit.
func (b *Budget) Listen(l net.Listener, most int, limit func(from net.Addr) (end func(), err error)) *Listener {
	return &Listener{Listener: l, budget: b, most: most, limit: limit}
}

func (l *Listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		end := func() {}
		if l.limit != nil {
			if end, err = l.limit(raw.RemoteAddr()); err != nil {
				_ = raw.Close()
				continue
			}
		}
		if conn := newConn(raw, l.budget, l, sync.OnceFunc(end)); l.admit(conn) {
			return conn, nil
		}
		end()
		_ = raw.Close()
		l.budget.refused(connections, raw.RemoteAddr())
	}
}

// admit gives a connection a slot, if there is one.
func (l *Listener) admit(conn *Conn) bool {
	for {
		l.budget.mu.Lock()
		if l.used < l.most {
			l.used++
			l.budget.conns[conn] = struct{}{}
			l.budget.mu.Unlock()
			return true
		}
		idlest := l.idlest()
		l.budget.mu.Unlock()
		if idlest == nil {
			return false
		}
		_ = idlest.Close() // that it is closed already is no error
	}
}

// idlest returns the connection that has been without a call for longest, or nil. The caller holds the budget's lock.
func (l *Listener) idlest() (idlest *Conn) {
	for conn := range l.budget.conns {
		if since := conn.idleSince(); conn.listener == l && !since.IsZero() && (idlest == nil || since.Before(idlest.idleSince())) {
			idlest = conn
		}
	}
	return idlest
}

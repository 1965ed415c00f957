package conns

import (
	"net"
	"time"

	"zamok/api/gate/limits"
)

// ConnBytes is the most memory of a connection without a call, beside what the budget counts: its
// buffers, its tables of headers and its goroutines. Most take 20 KiB, and 30 with TLS; frames and
// records of 16 KiB make the buffers larger.
const ConnBytes = 64 << 10

// class is what a connection is to its Listener. The package comment has the table.
type class uint8

const (
	fresh    class = iota // no call of it was admitted yet
	admitted              // one was
	reserved              // one of an operator was, when there was no room among the admitted
	classes
)

const (
	// freshPart and reservedPart are what the admitted leave free of a Listener's connections.
	freshPart, reservedPart = 8, 32
	// fullFor is for how long a connection that found no room is refused without another search.
	fullFor = time.Second
)

// Listener accepts a limited number of connections. Beyond it, each takes the place of another.
type Listener struct {
	net.Listener
	budget *Budget
	limits *limits.Limits
	most   [classes]int // most[fresh] is that of all together
	in     [classes]int // guarded by Budget.mu
}

// Listen returns a listener with at most most connections, which share the budget. The limits are
// those of addresses; nil: none.
func (b *Budget) Listen(l net.Listener, most int, limits *limits.Limits) *Listener {
	part := func(of int) int { return (most + of - 1) / of }
	rest := max(most-part(freshPart)-part(reservedPart), 1)
	return &Listener{
		Listener: l, budget: b, limits: limits,
		most: [classes]int{fresh: most, admitted: rest, reserved: part(reservedPart)},
	}
}

func (l *Listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		conn := newConn(raw, l.budget, l)
		switch {
		case l.limits != nil && l.limits.Take(limits.Connects, conn.network) != nil:
			// it has counted the refusal
		case !l.add(conn):
			l.budget.refused(limits.AllConnections, raw.RemoteAddr())
		default:
			return conn, nil
		}
		_ = raw.Close()
	}
}

// add adds a new connection, if there is room.
func (l *Listener) add(conn *Conn) bool {
	b := l.budget
	for {
		b.mu.Lock()
		if l.in[fresh]+l.in[admitted]+l.in[reserved] < l.most[fresh] {
			if conn.from = b.from[conn.network]; conn.from == nil {
				conn.from = new(network)
				b.from[conn.network] = conn.from
			}
			b.conns[conn] = struct{}{}
			conn.count(1)
			b.mu.Unlock()
			return true
		}
		first := b.givesWay(conn, func(c *Conn) bool { return c.listener == l && c.class == fresh })
		b.mu.Unlock()
		if first == nil {
			return false
		}
		_ = first.Close() // that it is closed already is no error
	}
}

// Admitted counts an admitted call of the connection until end is called, or returns the limit for
// which there is no room. Identified: its caller is authenticated. MayOperate reports whether the
// caller may operate, and is called if the reserve is needed.
func (c *Conn) Admitted(identified bool, mayOperate func() bool) (end func(), limit string) {
	limit, seeks := c.beginAdmitted(identified)
	if seeks {
		limit = c.listener.admit(c, mayOperate)
	}
	if limit == "" {
		return c.endAdmitted, ""
	}
	c.endAdmitted()
	if seeks {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.full, c.fullSince = limit, time.Now()
	}
	return nil, limit
}

// beginAdmitted counts an admitted call, so that the connection has one when it seeks room. It
// returns the limit for which it found none a moment ago.
func (c *Conn) beginAdmitted(identified bool) (limit string, seeks bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.identified = c.identified || identified
	if c.busy++; c.busy == 1 && c.class != fresh {
		c.since = time.Now()
	}
	switch {
	case c.class != fresh:
		return "", false
	case time.Since(c.fullSince) < fullFor:
		return c.full, false
	}
	return "", true
}

func (c *Conn) endAdmitted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy--; c.busy == 0 && c.class != fresh {
		c.since = time.Now()
	}
}

// admit makes a new connection an admitted or a reserved one. It returns the limit for which there
// is no room; "": there is.
func (l *Listener) admit(conn *Conn, mayOperate func() bool) (limit string) {
	b, as := l.budget, admitted
	for {
		var first *Conn
		b.mu.Lock()
		_, open := b.conns[conn]
		switch {
		case !open || conn.class != fresh:
			b.mu.Unlock()
			return ""
		case as == admitted && l.perAddress() > 0 && conn.from.in[admitted] >= l.perAddress():
			limit = limits.AddressConnections
			first = b.givesWay(conn, func(c *Conn) bool {
				return c.class == admitted && c.from == conn.from
			})
		case l.in[as] >= l.most[as]:
			limit = limits.AllConnections
			first = b.givesWay(conn, func(c *Conn) bool { return c.listener == l && c.class == as })
		default:
			conn.count(-1)
			conn.become(as)
			conn.count(1)
			b.mu.Unlock()
			return ""
		}
		b.mu.Unlock()
		switch {
		case first != nil:
			_ = first.Close() // that it is closed already is no error
		case as == admitted && mayOperate():
			as = reserved
		default:
			b.refused(limit, conn.Conn.RemoteAddr())
			return limit
		}
	}
}

// perAddress is how many admitted connections an address may have; 0: any number.
func (l *Listener) perAddress() int {
	if l.limits == nil {
		return 0
	}
	return l.limits.Most(limits.AddressConnections)
}

// become changes the class. The caller holds the budget's lock.
func (c *Conn) become(class class) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.class, c.since = class, time.Now()
}

// network is how many connections there are from a network, by class. Budget.mu guards it.
type network struct{ in [classes]int }

// count counts the connection in its class. The caller holds the budget's lock.
func (c *Conn) count(n int) {
	c.listener.in[c.class] += n
	c.from.in[c.class] += n
}

// givesWay returns the first of some connections of one class to give way to another connection, or
// nil. The caller holds the lock.
func (b *Budget) givesWay(to *Conn, among func(*Conn) bool) (first *Conn) {
	newcomer, best := to.standing(), standing{}
	for c := range b.conns {
		if !among(c) {
			continue
		}
		s := c.standing()
		if s.class == fresh {
			s.alike = c.from.in[fresh]
		}
		if s.givesWayTo(newcomer) && (first == nil || s.before(best)) {
			first, best = c, s
		}
	}
	return first
}

// standing is what decides which connection gives way.
type standing struct {
	class      class
	alike      int       // of a new connection: how many are new and of its network
	identified bool      // the caller of an admitted call was authenticated
	busy       bool      // an admitted call is in flight
	since      time.Time // when that began or ended; of a new connection: when it came
}

func (c *Conn) standing() standing {
	c.mu.Lock()
	defer c.mu.Unlock()
	return standing{class: c.class, identified: c.identified, busy: c.busy > 0, since: c.since}
}

func (s standing) givesWayTo(other standing) bool {
	switch {
	case s.class == fresh:
		return true
	case s.busy:
		return !s.identified && other.identified
	}
	return !s.identified || other.identified
}

// before reports whether a connection gives way before another one of its class.
func (s standing) before(other standing) bool {
	switch {
	case s.alike != other.alike:
		return s.alike > other.alike
	case s.identified != other.identified:
		return other.identified
	case s.busy != other.busy:
		return other.busy
	}
	return s.since.Before(other.since)
}

package conns

import (
	"fmt"
	"log/slog"
	"math"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/gate/limits"
	"zamok/clock"
)

// port is a Listener whose connections have no network. Time passes between them.
type port struct {
	*testing.T
	*Listener
}

// from is a connection of an address.
type from struct {
	net.Conn
	host string
}

func (f from) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(f.host), Port: 1} }
func (f from) Close() error         { return nil }

// The parts of 32 connections.
const (
	places       = 32
	admittedMost = 27
	reservedMost = 1
	one, other   = "192.0.2.1", "192.0.2.2"
)

func ports(t *testing.T, n int, set limits.Set) (all []port) {
	l := limits.New(limits.Config{
		Set: set, Connections: places, Logger: slog.New(slog.DiscardHandler), Clock: clock.System(),
	})
	t.Cleanup(l.Stop)
	b := NewBudget(math.MaxInt64, func(limit string, _ net.Addr) { l.CountRefusal(limit, "") })
	for range n {
		all = append(all, port{t, b.Listen(nil, places, l)})
	}
	return all
}

// comes is a new connection of an address; nil: it is refused.
func (p port) comes(host string) *Conn {
	time.Sleep(time.Millisecond)
	conn := newConn(from{host: host}, p.budget, p.Listener)
	if !p.add(conn) {
		return nil
	}
	require.LessOrEqual(p, p.in[fresh]+p.in[admitted]+p.in[reserved], places)
	require.LessOrEqual(p, p.in[admitted], admittedMost)
	require.LessOrEqual(p, p.in[reserved], reservedMost)
	return conn
}

// caller is who makes a call.
type caller struct{ identified, operates bool }

var anybody, known, operator = caller{}, caller{identified: true}, caller{true, true}

// by makes an admitted call on a connection.
func by(who caller, conn *Conn) (end func(), limit string) {
	return conn.Admitted(who.identified, func() bool { return who.operates })
}

// calls makes connections of an address, each with an admitted call.
func (p port) calls(n int, host string, who caller) (all []*Conn, ends []func()) {
	for range n {
		conn := p.comes(host)
		end, limit := by(who, conn)
		require.Empty(p, limit)
		all, ends = append(all, conn), append(ends, end)
	}
	return all, ends
}

func (p port) open(want bool, which ...*Conn) {
	p.Helper()
	for i, conn := range which {
		require.Equal(p, want, !conn.closed.Load(), "connection %d", i)
	}
}

// inBubble runs a test of ports.
func inBubble(t *testing.T, name string, n int, set limits.Set, f func(*testing.T, []port)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, ports(t, n, set)) })
	})
}

// The table of the package comment, row by row.
func TestWhichConnectionGivesWay(t *testing.T) {
	noShare := limits.Set{limits.AddressConnections: 0}
	inBubble(t, "the oldest of the address with most", 1, noShare, func(t *testing.T, p []port) {
		lone := p[0].comes(other)
		var of []*Conn
		for range places - 1 {
			of = append(of, p[0].comes(one))
		}
		p[0].open(true, append(of, lone)...)
		next := p[0].comes("192.0.2.3")
		p[0].open(false, of[0])
		p[0].open(true, of[1:]...)
		for range 10 * places {
			p[0].comes(one)
		}
		p[0].open(true, lone, next)
		p[0].open(false, of...)
	})
	inBubble(t, "none with an admitted call to a new one", 1, noShare,
		func(t *testing.T, p []port) {
			holders, _ := p[0].calls(admittedMost, one, known)
			for range 10 * places {
				require.NotNil(t, p[0].comes(one))
				require.NotNil(t, p[0].comes(other))
			}
			p[0].open(true, holders...)
			assert.Equal(t, places-admittedMost, p[0].in[fresh])
		})
	inBubble(t, "the one without a call for longest", 1, noShare, func(t *testing.T, p []port) {
		all, ends := p[0].calls(admittedMost, one, known)
		ends[3]()
		time.Sleep(time.Second)
		ends[2]()
		_, _ = p[0].calls(1, other, known)
		p[0].open(false, all[3])
		_, _ = p[0].calls(1, other, known)
		p[0].open(false, all[2])
		_, limit := by(known, p[0].comes(other))
		assert.Equal(t, limits.AllConnections, limit)
		p[0].open(true, append(all[4:], all[:2]...)...)
	})
	inBubble(t, "one without an identity to one with it", 1, noShare, func(t *testing.T, p []port) {
		all, ends := p[0].calls(admittedMost-1, one, anybody)
		idle, end := p[0].calls(1, one, known)
		end[0]()
		_, limit := by(anybody, p[0].comes(other))
		assert.Equal(t, limits.AllConnections, limit)
		time.Sleep(time.Second)
		ends[5]()
		_, _ = p[0].calls(1, other, known)
		p[0].open(false, all[5])
		_, _ = p[0].calls(1, other, known)
		p[0].open(false, all[0])
		p[0].open(true, append(all[6:], idle[0])...)
	})
	inBubble(t, "what has shown an identity keeps it", 1, noShare, func(t *testing.T, p []port) {
		all, _ := p[0].calls(admittedMost, one, anybody)
		end, limit := by(known, all[0])
		require.Empty(t, limit)
		end()
		_, _ = p[0].calls(admittedMost-1, other, known)
		p[0].open(true, all[0])
		p[0].open(false, all[1:]...)
	})
	inBubble(t, "the reserve is for those who may operate", 1, noShare,
		func(t *testing.T, p []port) {
			all, _ := p[0].calls(admittedMost, one, known)
			_, limit := by(known, p[0].comes(one))
			assert.Equal(t, limits.AllConnections, limit)
			first, ends := p[0].calls(1, one, operator)
			_, limit = by(operator, p[0].comes(one))
			assert.Equal(t, limits.AllConnections, limit)
			ends[0]()
			_, limit = by(known, p[0].comes(one))
			assert.Equal(t, limits.AllConnections, limit)
			p[0].open(true, first[0])
			_, _ = p[0].calls(1, other, operator)
			p[0].open(false, first[0])
			p[0].open(true, all...)
		})
	perAddress := limits.Set{limits.AddressConnections: 20}
	inBubble(t, "one of the address, on either port", 2, perAddress, oneOfTheAddress)
}

// oneOfTheAddress fills two ports, where an address has reached its share.
func oneOfTheAddress(t *testing.T, p []port) {
	web, ends := p[1].calls(10, one, known)
	_, _ = p[0].calls(10, one, known)
	for range admittedMost - 10 {
		_, end := p[0].calls(1, other, known)
		end[0]()
	}
	_, limit := by(known, p[0].comes(one))
	assert.Equal(t, limits.AddressConnections, limit)
	ends[4]()
	_, _ = p[0].calls(1, one, known)
	p[0].open(false, web[4])
	operators, _ := p[0].calls(1, one, operator)
	require.NoError(t, operators[0].Close())
	require.NoError(t, web[0].Close())
	_, _ = p[0].calls(1, one, known)
	assert.Equal(t, map[string]*network{
		one:   {[classes]int{fresh: 1, admitted: 20}},
		other: {[classes]int{admitted: admittedMost - 12}},
	}, p[0].budget.from)
}

// A connection that found no room looks for it again a second later.
func TestARefusedConnectionTriesAgain(t *testing.T) {
	inBubble(t, "", 1, nil, func(t *testing.T, p []port) {
		_, _ = p[0].calls(admittedMost/2, one, known)
		_, ends := p[0].calls(admittedMost-admittedMost/2, other, known)
		conn := p[0].comes("192.0.2.3")
		_, limit := by(known, conn)
		require.Equal(t, limits.AllConnections, limit)
		ends[0]()
		_, limit = by(known, conn)
		require.Equal(t, limits.AllConnections, limit, "it searches once a second")
		time.Sleep(fullFor)
		_, limit = by(known, conn)
		require.Empty(t, limit)
		p[0].open(true, conn)
	})
}

// There is room for one admitted connection, and on larger ports for the default limit of an
// address.
func TestThePartsOfAPort(t *testing.T) {
	for most, want := range map[int][classes]int{
		1: {1, 1, 1}, 2: {2, 1, 1}, 4: {4, 2, 1}, places: {places, admittedMost, reservedMost},
		100: {100, 83, 4}, 16_384: {16_384, 13_824, 512},
	} {
		l := NewBudget(1, nil).Listen(nil, most, nil)
		assert.Equal(t, want, l.most, fmt.Sprint(most))
		if most > 1<<5 {
			assert.GreaterOrEqual(t, l.most[admitted], most-most/4)
		}
	}
}

package fsm_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// The limits that a log of a few sessions never meets.

// applyCommands applies commands in one entry, some time after the last.
func (p *comparison) applyCommands(t *testing.T, after clock.Span,
	commands ...fsm.Command) fsm.Applied {
	reading := clock.Reading{Epoch: p.model.epoch, Now: p.model.time.Add(after)}
	a, err := p.apply(newRecord(1, &fsm.Entry{Version: 1, Reading: reading, Commands: commands}))
	require.NoError(t, err)
	return a
}

// openSessions begins an epoch and opens sessions that live for ttl.
func (p *comparison) openSessions(t *testing.T, sessions int,
	ttl, delay clock.Span) (ids []session.ID) {
	p.applyCommands(t, 0, &fsm.LeaderStart{Node: "n1", Cluster: fsm.ClusterID{1}})
	for i := range sessions {
		open := &fsm.OpenSession{Secret: session.Hash{byte(i), byte(i >> 8)},
			Settings: session.Settings{TTL: ttl, LockDelay: delay}}
		ids = append(ids, p.applyCommands(t, 0, open).Results[0].Session)
	}
	return ids
}

func exclusiveAcquire(id session.ID, ticket uint64, name string) *fsm.Acquire {
	return &fsm.Acquire{
		Session: id, Ticket: ticket,
		Items: []fsm.Item{{Name: lockPrefix + name, Mode: fsm.Exclusive}}, Wait: fsm.Forever,
	}
}

// Far more falls due at one time than one entry may expire: sessions with many tickets and with
// few, waits, holds, and then the delays that the ends leave. Entry by entry the rest follows.
func TestManyExpirationsAtOnce(t *testing.T) {
	const ttl = 10 * clock.Second
	p := newComparison()
	ids := p.openSessions(t, 500, ttl, clock.Second)
	for i, id := range ids {
		var commands []fsm.Command
		tickets := 1 // ticket each
		if i%150 == 7 {
			tickets = 400
		}
		for n := range tickets {
			c := exclusiveAcquire(id, uint64(n+1), fmt.Sprintf("%d/%d", i, n))
			if n%3 == 1 {
				c.MaxHold = ttl
			}
			commands = append(commands, c)
		}
		if i%20 == 19 { // waits for the session before
			c := exclusiveAcquire(id, 1000, fmt.Sprintf("%d/0", i-1))
			c.Wait = ttl - clock.Span(i%3)
			commands = append(commands, c)
		}
		p.applyCommands(t, 0, commands...)
	}
	require.NoError(t, p.check())

	p.applyCommands(t, ttl)
	require.NoError(t, p.check())
	require.NotEmpty(t, p.model.sessions, "more is due than one entry expires")
	entries := 1
	for ; len(p.model.sessions)+len(p.model.tickets)+len(p.model.delays) > 0; entries++ {
		require.Less(t, entries, 10)
		after := clock.Span(0)
		if due, _ := p.model.nextDue(); due.at > p.model.time {
			after = due.at.Sub(p.model.time)
		}
		p.applyCommands(t, after)
		require.NoError(t, p.check())
	}
	t.Logf("expired in %d entries", entries)
	require.Equal(t, fsm.Counts{}, p.machine.Counts())
}

func TestLiveTicketLimit(t *testing.T) {
	p := newComparison()
	id := p.openSessions(t, 1, fsm.LongestTTLDefault, 0)[0]
	var ticket uint64
	next := func() fsm.Result {
		ticket++
		c := exclusiveAcquire(id, ticket, "shared")
		c.Items[0].Mode, c.AckedThrough = fsm.Shared, ticket-1
		return p.applyCommands(t, 0, c).Results[0]
	}
	for range fsm.TicketsMax {
		require.Equal(t, fsm.Granted, next().State)
	}
	refused := next()
	require.Equal(t, fsm.LimitExceeded, refused.Code)
	require.Equal(t, fsm.TooMany, refused.Reason)
	require.Equal(t, fsm.LimitExceeded,
		p.applyCommands(t, 0, exclusiveAcquire(id, ticket, "shared")).Results[0].Code,
		"asked again")
	p.applyCommands(t, 0, &fsm.Drop{Session: id, Ticket: 17})
	require.Equal(t, fsm.Granted, next().State)
	require.NoError(t, p.check())
	p.applyCommands(t, 0, &fsm.CloseSession{Session: id})
	require.Equal(t, fsm.Counts{}, p.machine.Counts())
	require.NoError(t, p.check())
}

// A release by force ends everybody, and names the first of them.
func TestForceReleaseOfManyHolders(t *testing.T) {
	const holders = fsm.EndedMax + 100
	p := newComparison()
	id := p.openSessions(t, 1, fsm.LongestTTLDefault, 0)[0]
	var shared []fsm.Command
	for ticket := range uint64(holders) {
		c := exclusiveAcquire(id, ticket+1, "crowd")
		c.Items[0].Mode, c.AckedThrough = fsm.Shared, ticket
		shared = append(shared, c)
	}
	token := p.applyCommands(t, 0, shared...).Results[holders-1].Token
	r := p.applyCommands(t, 0,
		&fsm.ForceRelease{Name: lockPrefix + "crowd", Token: token}).Results[0]
	require.Len(t, r.Detail.Ended, fsm.EndedMax)
	require.Equal(t, holders-fsm.EndedMax, r.Detail.More)
	require.Zero(t, p.machine.Counts().Granted)
	require.NoError(t, p.check())
}

// However many names there were, one that is forgotten comes back as a new one.
func TestForgottenMemberReturnsAsNew(t *testing.T) {
	p := newComparison()
	p.openSessions(t, 0, 0, 0)
	announce := func(n, incarnation int) fsm.MemberRecord {
		m := &fsm.Member{ID: fmt.Sprint("n", n), Incarnation: fsm.Incarnation{byte(incarnation)},
			StateVersionMin: 1, StateVersionMax: 1}
		require.Equal(t, fsm.OK, p.applyCommands(t, clock.Second, m).Results[0].Code)
		record, known := p.machine.Member(m.ID)
		require.True(t, known)
		require.Equal(t, *m, record.Member)
		require.Equal(t, p.machine.Stamp().Index, record.Announced)
		return record
	}
	for n := range fsm.MembersMax {
		require.Zero(t, announce(n, 1).Replaced)
	}
	replaced := announce(0, 2).Replaced
	require.Equal(t, p.machine.Time(), replaced)
	for n := range 2 * fsm.MembersMax {
		require.Zero(t, announce(fsm.MembersMax+n, 1).Replaced)
		require.Equal(t, replaced, announce(0, 2).Replaced, "it announces itself all the time")
		require.NoError(t, p.check())
	}
	_, known := p.machine.Member("n5")
	require.False(t, known)
	require.Zero(t, announce(5, 2).Replaced)
	require.Len(t, p.machine.Members(), fsm.MembersMax)
}

package fsm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/fsm/record"
	"zamok/session"
)

// What one entry may cost all nodes, and what a name or a session may leave behind.

func TestOneAttachPerSessionAndEntry(t *testing.T) {
	b := newHarness(t)
	s := b.open(1, clock.Minute)
	attach := &Attach{Session: s, Secret: session.Hash{1}}
	a := b.do(0, attach, attach)
	require.Equal(t, OK, a.Results[0].Code)
	require.Equal(t, LimitExceeded, a.Results[1].Code)
	require.Equal(t, "attach", a.Results[1].Detail.Field)
	after, _ := b.m.Session(s)
	require.Equal(t, a.Results[0].Index, after.Attachment, "the first one stands")
	require.Equal(t, OK, b.do(0, attach).Results[0].Code, "the next entry may")
}

// Sessions with very many tickets attach in one entry: some have events with all tickets, the
// others are refused and may attach in the next entry.
func TestAttachedTicketsPerEntryAreBounded(t *testing.T) {
	const ticketsPerSession = 2 * TicketWindow
	const atOnce = AttachedMax / 2 / ticketsPerSession // one identity's part
	const sessions = atOnce + 2
	b := newHarness(t)
	var attach []Command
	for i := range byte(sessions) {
		s := b.open(i+1, clock.Hour)
		for ackedThrough := uint64(0); ackedThrough <
			ticketsPerSession; ackedThrough += TicketWindow {
			var shared []Command
			for ticket := range uint64(TicketWindow) {
				shared = append(shared, &Acquire{
					Session: s, Ticket: ackedThrough + ticket + 1, AckedThrough: ackedThrough,
					Items: []Item{{Name: "crowd", Mode: Shared}},
				})
			}
			_, err := b.m.Apply(1, (&Entry{Version: 1, Commands: shared}).Append(nil))
			require.NoError(t, err)
		}
		attach = append(attach, &Attach{Session: s, Secret: session.Hash{i + 1}})
	}
	ticketsInEvents := func(a Applied) (tickets int) {
		for _, e := range a.Events {
			tickets += len(e.Tickets)
		}
		return tickets
	}
	a := b.do(0, attach...)
	require.Equal(t, AttachedMax/2, ticketsInEvents(a))
	for i, r := range a.Results {
		if i < atOnce {
			require.Equal(t, OK, r.Code, i)
		} else {
			require.Equal(t, LimitExceeded, r.Code, i)
		}
	}
	other := b.openFor("other", 100)
	a = b.do(0, append(slices.Clone(attach[atOnce:]), attach[0],
		&Attach{Session: other, Secret: session.Hash{100}})...)
	require.Equal(t, 2*ticketsPerSession, ticketsInEvents(a), "the next entry has the rest")
	require.Equal(t, LimitExceeded, a.Results[2].Code)
	require.Equal(t, OK, a.Results[3].Code, "the session of another identity")
}

// Gone tickets cost as much to remove as living ones.
func TestEndedTicketsCountTowardsExpirationsMax(t *testing.T) {
	b := newHarness(t)
	const sessions = 20
	for i := range byte(sessions) {
		s := b.open(i+1, 2*clock.Second)
		var drops []Command
		for ticket := range uint64(100) {
			drops = append(drops, &Drop{Session: s, Ticket: ticket + 1})
		}
		b.do(0, drops...)
	}
	a := b.do(clock.Time(clock.Minute))
	ended := 0
	for _, e := range a.Events {
		if e.Kind == EvSessionEnded {
			ended++
		}
	}
	require.Equal(t, 11, ended, "eleven sessions of 101 records reach %d", ExpirationsMax)
	require.Equal(t, sessions-11, b.m.Counts().Sessions)
	b.do(clock.Time(clock.Minute))
	require.Zero(t, b.m.Counts().Sessions)
}

func TestRestoreHoldOffLeavesNoDelays(t *testing.T) {
	var backup, snapshot bytes.Buffer
	_, err := newHarness(t).m.Freeze().WriteTo(&backup)
	require.NoError(t, err)
	_, _, err = RewriteBackup(&snapshot, &backup, NewHistory{Cluster: ClusterID{2}})
	require.NoError(t, err)
	m, err := Restore(&snapshot)
	require.NoError(t, err)
	b := &harness{t, m}
	b.do(0, &LeaderStart{Node: "n1", Cluster: ClusterID{2}})
	s := b.open(1, clock.Hour)
	for i := range uint64(10) {
		b.do(0, &Acquire{Session: s, Ticket: i + 1,
			Items: exclusive(fmt.Sprint("a", i), fmt.Sprint("b", i)), Wait: Forever})
	}
	require.Equal(t, 20, m.Counts().Delayed)
	for i := range uint64(10) {
		b.do(0, &Drop{Session: s, Ticket: i + 1})
	}
	require.Equal(t, Counts{Sessions: 1}, m.Counts())
}

// A deadlock behind many readers and many writers is found, from the other end: one ticket waits
// for what the owner holds.
func TestDeadlockBehindManyHoldersIsFound(t *testing.T) {
	const count = 1000
	b := newHarness(t)
	x, readers, writers := b.open(1, clock.Hour), b.open(2, clock.Hour), b.open(3, clock.Hour)
	b.do(0, &Acquire{Session: x, Ticket: 1, Items: exclusive("A"), Owner: "x"})
	var commands []Command
	for i := range uint64(count) {
		commands = append(commands,
			&Acquire{Session: readers, Ticket: i + 1, Items: []Item{{Name: "L", Mode: Shared}}})
	}
	for i := range uint64(count) {
		c := &Acquire{Session: writers, Ticket: i + 1, Items: exclusive("L"), Wait: Forever}
		if i == 0 {
			c.Items = exclusive("A", "L")
		}
		commands = append(commands, c)
	}
	b.do(0, commands...)
	a := b.do(0, &Acquire{Session: x, Ticket: 2, Items: exclusive("L"), Wait: Forever, Owner: "x"})
	require.Equal(t, Deadlock, a.Results[0].Code)
	require.Equal(t, []Link{
		{TicketRef{x, 2}, "x", Waiting, "L"}, {TicketRef{writers, 1}, "", Waiting, "A"},
		{TicketRef{x, 1}, "x", Granted, "A"},
	}, a.Results[0].Detail.Cycle)
}

// Where no ticket waits for what the owner holds, nothing is searched; where much would be
// searched, one entry searches only so much.
func TestDeadlockSearchPerEntryIsBounded(t *testing.T) {
	b := newHarness(t)
	x, others := b.open(1, clock.Hour), b.open(2, clock.Hour)
	b.do(0, &Acquire{Session: x, Ticket: 1, Items: exclusive("A"), Owner: "x"})
	queue := []Command{&Acquire{Session: others, Ticket: 1, Items: exclusive("L")}}
	for i := range uint64(900) {
		queue = append(queue, &Acquire{Session: others, Ticket: i + 2, Items: exclusive("L"),
			Wait: Forever})
	}
	b.do(0, queue...)
	b.do(0, &Acquire{Session: x, Ticket: 2, Items: exclusive("L"), Wait: Forever, Owner: "x"})
	require.Equal(t, 1, b.m.searched.used, "no ticket waits for A, which was looked at")
	b.do(0, &Drop{Session: x, Ticket: 2})

	b.do(0, &Acquire{Session: others, Ticket: 950, Items: exclusive("A"), Wait: Forever})
	var asking []Command
	for i := range uint64(500) {
		asking = append(asking,
			&Acquire{Session: x, Ticket: i + 3, Items: exclusive("L"), Wait: Forever, Owner: "x"},
			&Drop{Session: x, Ticket: i + 3})
	}
	for _, r := range b.do(0, asking...).Results {
		require.Equal(t, OK, r.Code)
	}
	require.Equal(t, SearchMax/2, b.m.searched.used, "one identity's part")
}

// An identity whose searches come first in an entry, and are long, leaves steps for those of
// others.
func TestOthersSearchBesideLongSearches(t *testing.T) {
	b := newHarness(t)
	long := b.openFor("long", 1)
	b.do(0, &Acquire{Session: long, Ticket: 1, Items: exclusive("A"), Owner: "x"},
		&Acquire{Session: long, Ticket: 2, Items: exclusive("L")})
	var queue, asking []Command
	for i := range uint64(700) { // both ways are long
		queue = append(queue, &Acquire{Session: long, Ticket: i + 3,
			Items: exclusive([]string{"A", "L"}[i%2]), Wait: Forever})
	}
	b.do(0, queue...)
	for i := range uint64(100) {
		asking = append(asking, &Acquire{Session: long, Ticket: 800 + i, Items: exclusive("L"),
			Wait: Forever, Owner: "x"},
			&Drop{Session: long, Ticket: 800 + i})
	}
	const pairs = 3 // of two owners that wait for each other, each pair of another identity
	for i := range byte(pairs) {
		s, p, q := b.openFor(string('a'+rune(i)), 2+i), fmt.Sprint("p", i), fmt.Sprint("q", i)
		b.do(0, &Acquire{Session: s, Ticket: 1, Items: exclusive(p), Owner: p},
			&Acquire{Session: s, Ticket: 2, Items: exclusive(q), Owner: q},
			&Acquire{Session: s, Ticket: 3, Items: exclusive(q), Owner: p, Wait: Forever})
		asking = append(asking, &Acquire{Session: s, Ticket: 4, Items: exclusive(p), Owner: q,
			Wait: Forever})
	}
	results := b.do(0, asking...).Results
	for i, r := range results[len(results)-pairs:] {
		require.Equal(t, Deadlock, r.Code, i)
	}
	require.Less(t, b.m.searched.used, SearchMax)
}

// Both directions of the search agree on whether there is a cycle.
func TestBothDirectionsOfTheSearchAgree(t *testing.T) {
	r, b, found := rand.New(rand.NewPCG(1, 2)), newHarness(t), 0
	var sessions []session.ID
	for i := range byte(3) {
		sessions = append(sessions, b.open(i+1, clock.Hour))
	}
	numbers := make(map[session.ID]uint64)
	for range 25_000 {
		s := b.m.sessions.Ref(sessions[r.IntN(len(sessions))])
		key := TicketRef{s.ID, numbers[s.ID] + 1}
		if live := slices.Collect(
			maps.Keys(maps.Collect(ticketsOf(b.m.tickets, TicketRef{Session: s.ID})))); len(live) >
			0 && r.IntN(3) == 0 {
			slices.SortFunc(live, TicketRef.compare)
			b.do(0, &Drop{Session: s.ID, Ticket: live[r.IntN(len(live))].Ticket,
				AckedThrough: numbers[s.ID]})
			continue
		}
		var items []Item
		for i, name := range strings.Split("abcdefghijklmn", "") {
			switch r.IntN(24) {
			case 0:
				items = append(items, Item{Name: name, Mode: Exclusive})
			case 1:
				items = append(items, Item{Name: name, Mode: Shared})
			}
			if n := len(items); i == 13 && n > 0 && items[n-1].Name == name { // and one of permits
				items[n-1] = Item{Name: name, Mode: Permits, Permits: 1 + r.Uint32N(3), Of: 3}
			}
		}
		if len(items) == 0 {
			continue
		}
		c := &Acquire{Session: s.ID, Ticket: key.Ticket, AckedThrough: numbers[s.ID], Items: items,
			Wait: Forever, Owner: []string{"", "p", "q"}[r.IntN(3)]}
		numbers[s.ID]++
		asked := &ticket{state: Waiting, owner: c.Owner}
		asked.setItems(items)
		b.m.fillSlots(key, asked)
		if _, waits := b.m.waitOf(s.ID, c.Owner); c.Owner != "" && !waits &&
			asked.blockedAt() != nil {
			search := &search{m: b.m, key: key, owner: c.Owner, left: 1 << 20,
				items: make(map[*lock]Item)}
			for i, it := range items {
				search.items[asked.slots[i].lock] = it
			}
			ahead, behind := search.ahead(asked), search.behind()
			require.Equal(t, ahead == nil, behind == nil, "%v\n%v", ahead, behind)
			if ahead != nil {
				if slices.ContainsFunc(ahead.Cycle[:len(ahead.Cycle)-1],
					func(l Link) bool { return l.State == Granted }) {
					found++
				}
				require.True(t, search.hasWaiters())
				require.Equal(t, ahead.Cycle[0].TicketRef, behind.Cycle[0].TicketRef)
				require.NotEmpty(t, behind.Cycle[0].Name)
				last := behind.Cycle[len(behind.Cycle)-1]
				require.Equal(t, Link{last.TicketRef, c.Owner, Granted, last.Name}, last)
				require.NotEmpty(t, last.Name)
			}
		}
		b.do(0, c)
	}
	require.Greater(t, found, 50, "cycles through another owner")
}

// To look whether anybody waits for what an owner holds is a part of the search: an owner that
// holds very much and asks again and again keeps all nodes from nothing else.
func TestOwnerScanCountsTowardsSearchLimit(t *testing.T) {
	b := newHarness(t)
	x, others := b.open(1, clock.Hour), b.open(2, clock.Hour)
	b.do(0, &Acquire{Session: others, Ticket: 1, Items: exclusive("L")})
	var holding []Command
	for ticket := range uint64(20_000 / ItemsMax) {
		names := make([]string, ItemsMax)
		for i := range names {
			names[i] = fmt.Sprint(ticket, "/", i)
		}
		holding = append(holding,
			&Acquire{Session: x, Ticket: ticket + 1, Items: exclusive(names...), Owner: "x"})
	}
	b.do(0, holding...)
	var asking []Command
	for i := range uint64(500) {
		asking = append(asking,
			&Acquire{Session: x, Ticket: 500 + i, Items: exclusive("L"), Wait: Forever, Owner: "x"},
			&Drop{Session: x, Ticket: 500 + i})
	}
	for i, r := range b.do(0, asking...).Results {
		require.Equal(t, OK, r.Code, i)
	}
	require.Greater(t, b.m.searched.used, SearchMax/2-8)
	require.LessOrEqual(t, b.m.searched.used, SearchMax/2)
}

// What a search costs decides how many of an entry there are. So it must not depend on whether the
// state machine was restored: an owner's tickets are searched in the order of their numbers, not of
// their grants.
func TestDeadlockSearchCostsTheSameAfterRestore(t *testing.T) {
	b := newHarness(t)
	x, o, p := b.open(1, clock.Hour), b.open(2, clock.Hour), b.open(3, clock.Hour)
	b.do(0, &Acquire{Session: x, Ticket: 1, Items: exclusive("L"), Wait: Forever},
		&Acquire{Session: o, Ticket: 1, Items: exclusive("L"), Wait: Forever, Owner: "o"})
	const last = 150 // far more than SearchMax locks together
	var holding []Command
	for ticket := uint64(2); ticket <= last; ticket++ {
		names := make([]string, ItemsMax)
		for i := range names {
			names[i] = fmt.Sprint(ticket, "/", i)
		}
		holding = append(holding,
			&Acquire{Session: o, Ticket: ticket, Items: exclusive(names...), Owner: "o"})
	}
	b.do(0, holding...)
	b.do(0, &Drop{Session: x, Ticket: 1}) // grants o its first ticket last
	b.do(0, &Acquire{Session: p, Ticket: 1, Items: exclusive("K"), Owner: "p"},
		&Acquire{Session: p, Ticket: 2, Items: exclusive("L"), Wait: Forever, Owner: "p"})
	restored, err := Restore(bytes.NewReader(snapshotOf(t, b.m)))
	require.NoError(t, err)

	e := Entry{Version: 1, Reading: clock.Reading{Epoch: b.m.Epoch()}}
	for i := range uint64(12) {
		e.Commands = append(e.Commands, &Acquire{
			Session: o, Ticket: last + 1 + i, Items: exclusive("K"), Wait: Forever, Owner: "o",
		})
	}
	want := b.apply(e)
	got, err := restored.Apply(1, e.Append(nil))
	require.NoError(t, err)
	require.Equal(t, b.m.searched.used, restored.searched.used)
	require.Equal(t, want, got)
	require.Equal(t, b.m.Digest(), restored.Digest())
	for _, r := range want.Results {
		require.Equal(t, Deadlock, r.Code)
	}
}

func TestForceReleaseRefusesFutureToken(t *testing.T) {
	b := newHarness(t)
	s := b.open(1, clock.Minute)
	token := b.do(0, &Acquire{Session: s, Ticket: 1, Items: exclusive("x")}).Results[0].Token
	a := b.do(0, &ForceRelease{Name: "x", Token: 1<<64 - 1})
	require.Equal(t, Invalid, a.Results[0].Code)
	require.True(t, b.m.Holds("x", token, TicketRef{}))
}

// A checksum that is right does not make sense of a state of the future.
func TestRestoreRefusesFutureIndexes(t *testing.T) {
	withChecksum := func(body []byte) []byte {
		return binary.LittleEndian.AppendUint32(body, record.UpdateChecksum(0, body))
	}
	header := func(index uint64) []byte {
		fields := binary.AppendUvarint(nil, 1)
		for _, v := range []uint64{1, index, 0, 0} {
			fields = binary.AppendUvarint(fields, v)
		}
		fields = append(fields, make([]byte, 16)...)
		fields = append(fields, 0, 0)
		for range 2 { // the longest ttl, and the highest
			fields = binary.AppendUvarint(fields, uint64(LongestTTLDefault))
		}
		fields = append(fields, 1, 1, 1, 1, 0) // quotas, and ends
		return append(append([]byte("zamok\x01"), byte(recHeader), byte(len(fields)), 0), fields...)
	}
	ticketFirst := append(header(5), byte(recTicket), 4, 0, 1, byte(Ended), byte(Dropped), 0)
	ticketFirst = append(ticketFirst, byte(recEnd), 0, 0)
	_, err := Restore(bytes.NewReader(withChecksum(ticketFirst)))
	require.ErrorContains(t, err, "without a session")

	_, err = Restore(bytes.NewReader(withChecksum(append(header(indexMax+1), byte(recEnd), 0, 0))))
	require.ErrorContains(t, err, "out of bounds")

	for want, change := range map[string]func(m *Machine, s *session.Session){
		"renewed":    func(m *Machine, s *session.Session) { s.Renewed = m.index + 1 },
		"changed":    func(m *Machine, s *session.Session) { s.Changed = m.index + 1 },
		"attachment": func(m *Machine, s *session.Session) { s.Attachment = m.index + 1 },
		"id":         func(m *Machine, s *session.Session) { m.index = uint64(s.ID) - 1 },
	} {
		b := newHarness(t)
		id := b.open(1, clock.Minute)
		change(b.m, b.m.sessions.Ref(id))
		_, err := Restore(bytes.NewReader(snapshotOf(t, b.m)))
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "above the machine's index")
	}

	for _, ttls := range [][2]clock.Span{ // the longest, and the highest that it was
		{LongestTTLMin - 1, clock.Hour}, {clock.Hour + 1, clock.Hour},
		{clock.Hour, LongestTTLMax + 1}, {0, 0},
	} {
		m := New()
		m.longestTTL, m.highestTTL = ttls[0], ttls[1]
		_, err := Restore(bytes.NewReader(snapshotOf(t, m)))
		require.ErrorContains(t, err, "longest ttl: ")
	}

	for _, quotas := range []Quotas{{}, {Amounts{1, 1, QuotaBytesMax + 1}, 1},
		{Amounts{SessionsMax + 1, 1, 1}, 1}, {Amounts{1, 1, 1}, 0}} {
		m := New()
		m.quotas = quotas
		_, err := Restore(bytes.NewReader(snapshotOf(t, m)))
		require.ErrorContains(t, err, "quotas: ")
	}

	for want, record := range map[string]MemberRecord{
		"announced: 4 is above the machine's index 3":    {Announced: 4},
		"replaced: 10ns is above the machine's time 9ns": {Announced: 3, Replaced: 10},
	} {
		m := New()
		m.index, m.time = 3, 9
		record.ID = "n1"
		m.members.Set(record.ID, record)
		_, err := Restore(bytes.NewReader(snapshotOf(t, m)))
		require.ErrorContains(t, err, want)
	}
}

// Damage in the number of the version is damage, not another version.
func TestDamagedVersionIsReportedAsDamage(t *testing.T) {
	b := snapshotOf(t, New())
	b[len("zamok\x01")+recordHeadBytes] = 77
	_, err := Restore(bytes.NewReader(b))
	require.ErrorContains(t, err, "damaged")
	var rules *VersionError
	require.NotErrorAs(t, err, &rules)
}

// What a session remembers of tickets that ended does not depend on what they asked for.
func TestEndedTicketMemoryIsBounded(t *testing.T) {
	// of a session: 1024 records, in nodes of a tree that may be half full
	const bytesMax = 384 << 10
	b := newHarness(t)
	s, other := b.open(1, clock.Hour), b.open(2, clock.Hour)
	largest := func(id session.ID, ticket uint64) *Acquire {
		c := &Acquire{
			Session: id, Ticket: ticket, Owner: strings.Repeat("o", OwnerBytesMax),
			Meta: strings.Repeat("m", MetaBytesMax),
		}
		for i := range ItemsMax {
			name := fmt.Sprint(id, "/", ticket, "/", i, "/")
			if i == 0 {
				name = "held"
			}
			c.Items = append(c.Items,
				Item{Name: name + strings.Repeat("n", NameBytesMax-len(name)), Mode: Exclusive})
		}
		return c
	}
	apply := func(c Command) Result {
		a, err := b.m.Apply(1, (&Entry{Version: 1, Commands: []Command{c}}).Append(nil))
		require.NoError(t, err)
		return a.Results[0]
	}
	require.Equal(t, Granted, apply(largest(other, 1)).State)
	require.Equal(t, NotAcquired, apply(largest(s, 1)).Code)
	before := heapInUse()
	for ticket := uint64(2); ticket <= TicketWindow; ticket++ {
		require.Equal(t, NotAcquired, apply(largest(s, ticket)).Code)
	}
	grown := int64(heapInUse()) - int64(before)
	t.Logf("%d bytes for %d ended tickets", grown, TicketWindow-1)
	require.Less(t, grown, int64(bytesMax))
	r := apply(largest(s, TicketWindow+1))
	require.Equal(t, LimitExceeded, r.Code)
	require.Zero(t, r.State, "it is not remembered")
	require.NoError(t, b.m.Check())
}

func heapInUse() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

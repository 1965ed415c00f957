package fsm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/fsm/record"
	"zamok/session"
)

// Limits of how many there may be, and entries that are none.

func TestTicketWindow(t *testing.T) {
	w := newReplicaPair(t, 1)
	items := exclusive("stock")
	w.requireRefused(&Acquire{Session: firstSession, Ticket: TicketWindow + 1, Items: items},
		LimitExceeded, "ticket")
	w.requireRefused(&Acquire{Session: firstSession, Ticket: 1<<64 - 1, Items: items},
		LimitExceeded, "ticket")
	w.requireRefused(&Drop{Session: firstSession, Ticket: TicketWindow + 1}, LimitExceeded,
		"ticket")
	w.requireAccepted(&Acquire{Session: firstSession, Ticket: TicketWindow, Items: items})

	// the highest number to acknowledge leaves no ticket, and wraps around nothing
	const top = 1<<64 - 1
	r := w.do(&Acquire{Session: firstSession, Ticket: top, AckedThrough: top, Items: items})[0]
	require.Equal(t, TicketEnded, r.Code)
	require.Equal(t, Ended, r.State)
	r = w.do(&Acquire{Session: firstSession, Ticket: TicketWindow, Items: items})[0]
	require.Equal(t, Granted, r.State)
	require.NoError(t, w.m.Check())
}

// pairWithMaxTickets has as many live tickets as one session may, numbered from 1, each with a lock
// of its own.
func pairWithMaxTickets(t *testing.T) *replicaPair {
	w := newReplicaPair(t, 2)
	for number := uint64(1); number <= TicketsMax; {
		var commands []Command
		for ; len(commands) < TicketWindow; number++ {
			commands = append(commands, &Acquire{
				Session: firstSession, Ticket: number, AckedThrough: number - 1,
				Items: exclusive(fmt.Sprint(number)),
			})
		}
		for _, r := range w.do(commands...) {
			require.Equal(t, Granted, r.State)
		}
	}
	require.NoError(t, w.m.Check())
	return w
}

func TestLiveTicketLimit(t *testing.T) {
	w := pairWithMaxTickets(t)
	more := &Acquire{Session: firstSession, Ticket: TicketsMax + 1, Items: exclusive("one more")}
	for range 2 { // a repeat is answered in the same way
		r := w.do(more)[0]
		require.Equal(t, LimitExceeded, r.Code)
		require.Equal(t, Ended, r.State)
		require.Equal(t, TooMany, r.Reason)
	}
	// Another session has its own number of them; and a session that drops one may have another.
	other := *more
	other.Session, other.Ticket = firstSession+1, 1
	w.requireAccepted(&other)
	w.requireAccepted(&Drop{Session: firstSession, Ticket: 7})
	another := *more
	another.Ticket, another.Items = TicketsMax+2, exclusive("another")
	w.requireAccepted(&another)
}

func TestEndSessionWithMaxTickets(t *testing.T) {
	w := pairWithMaxTickets(t)
	w.requireAccepted(&CloseSession{Session: firstSession})
	require.Equal(t, Counts{Sessions: 1}, w.m.Counts())
}

func TestMemberRecordLimit(t *testing.T) {
	w := newReplicaPair(t, 0)
	name := func(i int) string { return fmt.Sprintf("n%d", i) }
	recorded := func() (members []string) {
		for _, record := range w.m.Members() {
			members = append(members, record.ID)
		}
		return members
	}
	for i := range MembersMax {
		w.requireAccepted(&Member{ID: name(i), StateVersionMin: 1, StateVersionMax: 1})
	}
	members := recorded()
	require.Len(t, members, MembersMax)

	// A known name needs no room.
	w.requireAccepted(&Member{ID: name(0), StateVersionMin: 1, StateVersionMax: 1, FreeBytes: 1})
	require.Equal(t, members, recorded())

	// The oldest announcement is that of n1.
	w.requireAccepted(&Member{ID: "one more", StateVersionMin: 1, StateVersionMax: 1})
	members = recorded()
	require.Len(t, members, MembersMax)
	require.NotContains(t, members, name(1))
	require.Subset(t, members, []string{name(0), name(2), "one more"})

	w.requireAccepted(&Member{ID: name(1), StateVersionMin: 1, StateVersionMax: 1})
	members = recorded()
	require.NotContains(t, members, name(2))
	require.Contains(t, members, name(1))
}

func TestSessionLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("a million sessions take seconds and half a gigabyte")
	}
	m := New()
	secret := func(i uint64) (h session.Hash) {
		binary.LittleEndian.PutUint64(h[:], i)
		return h
	}
	m.index, m.quotas = SessionsMax, noQuotas().Quotas
	for i := uint64(1); i <= SessionsMax; i++ { // as OpenSession does
		m.addSession(session.Session{
			ID: session.ID(i), Secret: secret(i), Settings: session.Settings{TTL: clock.Hour},
			Renewed: i, Deadline: clock.Time(clock.Hour),
		})
	}
	e := Entry{Version: 1, Commands: []Command{
		// one too many
		&OpenSession{Secret: secret(0), Settings: session.Settings{TTL: clock.Hour}},
		&OpenSession{Secret: secret(1), Settings: session.Settings{TTL: clock.Hour}}, // is there
		&CloseSession{Session: 2},
		&OpenSession{Secret: secret(0), Settings: session.Settings{TTL: clock.Hour}},
	}}
	a, err := m.Apply(1, e.Append(nil))
	require.NoError(t, err)
	require.Equal(t, LimitExceeded, a.Results[0].Code)
	require.Equal(t, "total_sessions", a.Results[0].Detail.Field)
	for _, r := range a.Results[1:] {
		require.Equal(t, OK, r.Code)
	}
	require.Equal(t, SessionsMax, m.Counts().Sessions)
}

func TestBlockersMax(t *testing.T) {
	w := newReplicaPair(t, 3)
	for ticket := uint64(1); ticket <= 10; ticket++ { // ten hold, ten wait
		w.requireAccepted(&Acquire{Session: firstSession, Ticket: ticket,
			Items: []Item{{Name: "stock", Mode: Shared}}})
	}
	for ticket := uint64(1); ticket <= 10; ticket++ {
		w.requireAccepted(&Acquire{Session: firstSession + 1, Ticket: ticket,
			Items: exclusive("stock"), Wait: Forever})
	}
	r := w.do(&Acquire{Session: firstSession + 2, Ticket: 1, Items: exclusive("stock")})[0]
	require.Equal(t, NotAcquired, r.Code)
	require.Len(t, r.Detail.Blockers, BlockersMax)
	require.Equal(t, r.Detail.Blockers, w.m.Blockers(TicketRef{firstSession + 1, 10}))
	require.Len(t, w.m.Blockers(TicketRef{firstSession + 1, 3}), 12)
}

func TestNewHistoryLimits(t *testing.T) {
	var backup bytes.Buffer
	_, err := newReplicaPair(t, 1).m.Freeze().WriteTo(&backup)
	require.NoError(t, err)
	rewrite := func(h NewHistory) (*Machine, error) {
		var b bytes.Buffer
		_, holdOff, err := RewriteBackup(&b, bytes.NewReader(backup.Bytes()), h)
		if err != nil {
			require.Zero(t, b.Len(), "a refused restore wrote something")
			return nil, err
		}
		m, err := Restore(&b)
		require.Equal(t, holdOff, m.HoldOff())
		return m, err
	}
	for _, valid := range []NewHistory{
		{Cluster: ClusterID{2}},
		{Cluster: ClusterID{2}, AboveIndex: TokenBaseMax, HoldOff: HoldOffMax},
		{Cluster: ClusterID{2}, HoldOff: 1},
		{Cluster: ClusterID{2}, Clock: TokenBaseMax},
		{Cluster: ClusterID{2}, Clock: 1, AboveIndex: TokenBaseMax - TokenLead},
	} {
		m, err := rewrite(valid)
		require.NoError(t, err)
		require.NoError(t, m.Check())
		require.GreaterOrEqual(t, m.HoldOffUntil(), clock.Time(clock.Hour),
			"a session of the backup has an hour")
		require.GreaterOrEqual(t, m.index, valid.AboveIndex)
	}
	for _, invalidHistory := range []NewHistory{
		{},
		{Cluster: ClusterID{2}, AboveIndex: TokenBaseMax + 1},
		{Cluster: ClusterID{2}, Clock: TokenBaseMax + 1},
		{Cluster: ClusterID{2}, Clock: 1, AboveIndex: TokenBaseMax},
		{Cluster: ClusterID{2}, HoldOff: HoldOffMax + 1},
		{Cluster: ClusterID{2}, HoldOff: -1},
		{Cluster: ClusterID{2}, Time: -1},
		{Cluster: ClusterID{2}, Time: 1<<62 + 1},
	} {
		_, err := rewrite(invalidHistory)
		require.ErrorContains(t, err, "nothing was written")
	}
}

// Where a history begins: at the clock, or whole leads above it, and never below what it has to
// exceed.
func TestTokenBase(t *testing.T) {
	for _, c := range []struct{ now, above, base uint64 }{
		{1000, 0, 1000},
		{1000, 1000, 1000},
		{1000, 1001, 1000 + TokenLead},
		{1000, 1000 + TokenLead, 1000 + TokenLead},
		{1000, 1001 + TokenLead, 1000 + 2*TokenLead},
		{1, indexMax, indexMax + 1},
	} {
		require.Equal(t, c.base, TokenBase(c.now, c.above), "%+v", c)
	}
}

// A cycle that is longer than the search, in both directions, is not seen, and the ticket is
// admitted. Here a reader who holds "end" would stand at the end of the queue of "L". At its front
// a ticket waits at the end of the queue of "M" as well, at whose front a ticket waits for "end".
func TestDeadlockSearchLimit(t *testing.T) {
	// another part is for other identities, and one for the other direction
	const searched = SearchMax / 4
	for _, queue := range []int{searched/2 - 10, searched/2 + 10} {
		w := newReplicaPair(t, 3)
		w.requireAccepted(&Acquire{Session: firstSession, Ticket: 1, Items: exclusive("end"),
			Owner: "a"})
		number := uint64(0)
		ask := func(items ...Item) {
			number++
			w.requireAccepted(&Acquire{Session: firstSession + 1, Ticket: number, Items: items,
				Wait: Forever})
		}
		reading := func(name string) Item { return Item{Name: name, Mode: Shared} }
		ask(reading("M"), reading("L"))
		ask(exclusive("M", "end")...)
		for range queue - 1 {
			ask(reading("M"))
		}
		ask(exclusive("L", "M")...)
		for range queue - 1 {
			ask(reading("L"))
		}
		r := w.do(&Acquire{Session: firstSession, Ticket: 2, Items: []Item{reading("L")},
			Wait: Forever, Owner: "a"})[0]
		if 2*queue < searched {
			require.Equal(t, Deadlock, r.Code)
			// With the newcomer, and its ticket of "end"; of a long cycle only the two ends are
			// reported.
			require.Equal(t, 2*queue+2, len(r.Detail.Cycle)+r.Detail.More)
			require.Len(t, r.Detail.Cycle, 2*BlockersMax)
		} else {
			require.Equal(t, OK, r.Code)
			require.Equal(t, Waiting, r.State)
		}
		require.NoError(t, w.m.Check())
	}
}

// rawEntry is an entry of raw commands, with a sound checksum.
func rawEntry(version byte, commands uint64, raw ...byte) []byte {
	b := []byte{version}
	// version, epoch, now, renewals, commands
	for _, v := range []uint64{1, firstSession - 1, 0, 0, commands} {
		b = binary.AppendUvarint(b, v)
	}
	return record.AppendChecksum(append(b, raw...), 0)
}

// They change nothing at all, and the index stays as well: another node may know the entry, and
// this one ends.
func TestUnreadableEntriesAreNotApplied(t *testing.T) {
	closing := byte(opOf(&CloseSession{}))
	whole := rawEntry(1, 1, closing, firstSession)
	drops := Entry{Version: 1, Commands: []Command{&Drop{Session: firstSession, Ticket: 1}}}
	big := Entry{Version: 1,
		Commands: []Command{&OpenSession{
			Settings: session.Settings{Meta: longText(EntryBytesMax)}}}}
	manyRenewals, manyCommands := Entry{Version: 1}, Entry{Version: 1}
	for i := range RenewalsMax + 1 {
		manyRenewals.Renewals = append(manyRenewals.Renewals, session.ID(i+1))
	}
	for range CommandsMax + 1 {
		manyCommands.Commands = append(manyCommands.Commands, &Drop{Session: 1, Ticket: 1})
	}
	bad := map[string][]byte{
		"nothing":                   nil,
		"one byte":                  {1},
		"version 0":                 rawEntry(0, 1, closing, firstSession),
		"version 2":                 rawEntry(2, 1, closing, firstSession),
		"command 0":                 rawEntry(1, 1, 0, firstSession),
		"command of the future":     rawEntry(1, 1, byte(len(commandKinds)), firstSession),
		"command 255":               rawEntry(1, 1, 255, firstSession),
		"an unknown one after good": rawEntry(1, 2, closing, firstSession, 99, firstSession),
		"fewer commands than said":  rawEntry(1, 2, closing, firstSession),
		"more commands than said":   rawEntry(1, 1, closing, firstSession, closing, firstSession),
		"a long number":             rawEntry(1, 1, closing, firstSession|0x80, 0),
		"no room for its count":     rawEntry(1, 1<<60),
		"renewals that fall":        (&Entry{Version: 1, Renewals: []session.ID{3, 2}}).Append(nil),
		"renewals twice":            (&Entry{Version: 1, Renewals: []session.ID{3, 3}}).Append(nil),
		"a reading before the epoch": (&Entry{Version: 1,
			Reading: clock.Reading{Epoch: 1, Now: -1}}).Append(nil),
		"too many bytes":    big.Append(nil),
		"too many renewals": manyRenewals.Append(nil),
		"too many commands": manyCommands.Append(nil),
	}
	for i := range whole {
		bad[fmt.Sprintf("the first %d bytes", i)] = whole[:i]
		for bit := range 8 {
			damaged := append([]byte(nil), drops.Append(nil)...)
			damaged[i%len(damaged)] ^= 1 << bit
			bad[fmt.Sprintf("bit %d of byte %d", bit, i)] = damaged
		}
	}
	w := newReplicaPair(t, 1)
	w.requireAccepted(&Acquire{Session: firstSession, Ticket: 1, Items: exclusive("stock")})
	for name, entry := range bad {
		w.requireUnreadable(entry, name)
	}
	require.NoError(t, w.m.Check())
	require.Equal(t, OK, w.apply(whole).Results[0].Code) // the same bytes unharmed
}

// requireUnreadable insists that neither Check nor Apply takes an entry.
func (w *replicaPair) requireUnreadable(entry []byte, name string) {
	w.t.Helper()
	before, digest := w.m.Stamp(), w.m.Digest()
	_, err := w.m.Apply(before.Term+1, entry)
	require.EqualError(w.t, new(Checker).Check(entry), err.Error(), name)
	if _, damaged := record.VerifyChecksum(entry); damaged == nil {
		require.Regexp(w.t, "format of this binary, "+Format()+
			".* nothing of it was applied; start the binary that wrote it", err, name)
	} else {
		require.Regexp(w.t, "^not an entry: .* nothing of it was applied$", err, name)
	}
	require.Equal(w.t, before, w.m.Stamp(), name)
	require.Equal(w.t, digest, w.m.Digest(), name)
}

// The largest entry is still one.
func TestLargestEntriesAreApplied(t *testing.T) {
	w := newReplicaPair(t, 1)
	e := Entry{Version: 1}
	for i := range RenewalsMax {
		e.Renewals = append(e.Renewals, session.ID(i+1))
	}
	a := w.apply(e.Append(nil))
	require.Equal(t, OK, a.Refused)
	require.Len(t, a.Unrenewed, RenewalsMax-1)

	e = Entry{Version: 1}
	for range CommandsMax {
		e.Commands = append(e.Commands, &Drop{Session: firstSession, Ticket: 1})
	}
	require.Len(t, w.apply(e.Append(nil)).Results, CommandsMax)

	fill := &ForceRelease{Name: "x", Token: 1}
	e = Entry{Version: 1, Commands: []Command{fill}}
	fill.Reason = longText(EntryBytesMax)
	fill.Reason = longText(2*EntryBytesMax - len(e.Append(nil)))
	require.Len(t, e.Append(nil), EntryBytesMax)
	// the entry is good, the command is not
	require.Equal(t, Invalid, w.apply(e.Append(nil)).Results[0].Code)
	fill.Reason += "x"
	w.requireUnreadable(e.Append(nil), "too many bytes")
}

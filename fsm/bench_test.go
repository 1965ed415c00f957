package fsm

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/session"
)

// benchHarness is a machine with this many sessions, and entries of acquire+drop pairs that go
// round them.
type benchHarness struct {
	m        *Machine
	sessions []session.ID
	ticket   []uint64
	next     int
}

func newBenchHarness(tb testing.TB, sessions int) *benchHarness {
	b := &benchHarness{m: New(), ticket: make([]uint64, sessions)}
	b.apply(tb, &LeaderStart{Node: "n1", Nonce: 1, Cluster: ClusterID{1}, TokenBase: 1}, noQuotas())
	for i := range sessions {
		var hash session.Hash
		hash[0], hash[1], hash[2] = byte(i), byte(i>>8), byte(i>>16)
		a := b.apply(tb, &OpenSession{Secret: hash, Settings: session.Settings{TTL: clock.Hour}})
		b.sessions = append(b.sessions, a.Results[0].Session)
	}
	return b
}

func (b *benchHarness) apply(tb testing.TB, commands ...Command) Applied {
	e := Entry{Version: 1, Reading: clock.Reading{Epoch: b.m.Epoch()}, Commands: commands}
	a, err := b.m.Apply(1, e.Append(nil))
	require.NoError(tb, err)
	return a
}

// acquire asks for a lock with the next session's next ticket.
func (b *benchHarness) acquire(name string) *Acquire {
	i := b.next % len(b.sessions)
	b.next++
	b.ticket[i]++
	return &Acquire{
		Session: b.sessions[i], Ticket: b.ticket[i], AckedThrough: b.ticket[i] - 1,
		Items: exclusive(name), Wait: Forever,
	}
}

// noQuotas sets the highest quotas.
func noQuotas() *SetQuotas {
	return &SetQuotas{Quotas{Amounts{SessionsMax, QuotaTicketsMax, QuotaBytesMax}, ShareMax}}
}

// BenchmarkPairs applies encoded entries of 128 acquire+drop pairs on free locks; one operation is
// one pair, with decoding.
func BenchmarkPairs(bench *testing.B) {
	for _, held := range []int{0, 1_000, 100_000, 1_000_000} {
		bench.Run(fmt.Sprintf("held=%d", held), func(bench *testing.B) {
			b := newBenchHarness(bench, 1000)
			b.holdLocks(bench, held)
			bench.ReportAllocs()
			var entry []byte
			for i := 0; bench.Loop(); i++ {
				if i%pairsPerEntry == 0 {
					bench.StopTimer()
					entry = b.encodePairs(entry[:0], i)
					bench.StartTimer()
					a, err := b.m.Apply(1, entry)
					if err != nil || len(a.Results) != 2*pairsPerEntry ||
						a.Results[0].State != Granted {
						bench.Fatalf("%v %+v", err, a.Results)
					}
				}
			}
		})
	}
}

const pairsPerEntry = 128

// encodePairs encodes an entry of acquire+drop pairs of uncontended locks.
func (b *benchHarness) encodePairs(entry []byte, first int) []byte {
	e := Entry{Version: 1, Reading: clock.Reading{Epoch: b.m.Epoch()}}
	for i := range pairsPerEntry {
		a := b.acquire(fmt.Sprintf("account/%011d", (first+i)%1_000_000))
		e.Commands = append(e.Commands, a,
			&Drop{Session: a.Session, Ticket: a.Ticket, AckedThrough: a.Ticket})
	}
	return e.Append(entry)
}

// holdLocks makes this many locks held, by sessions of their own.
func (b *benchHarness) holdLocks(tb testing.TB, locks int) {
	var hash session.Hash
	hash[31] = 1
	for first := 0; first < locks; {
		hash[30]++
		if hash[30] == 0 {
			hash[29]++
		}
		a := b.apply(tb, &OpenSession{Secret: hash, Settings: session.Settings{TTL: clock.Hour}})
		id := a.Results[0].Session
		for ticket := uint64(1); ticket <= TicketWindow && first < locks; {
			var commands []Command
			for ; len(commands) < 512 && ticket <= TicketWindow && first < locks; ticket++ {
				commands = append(commands, &Acquire{
					Session: id, Ticket: ticket,
					Items: exclusive(fmt.Sprintf("held/%011d", first)), Wait: 0,
				})
				first++
			}
			a := b.apply(tb, commands...)
			require.Equal(tb, Granted, a.Results[len(a.Results)-1].State)
		}
	}
}

// BenchmarkOwnSessions applies encoded entries of sessions that are opened for one lock and closed
// with it; one operation is one such session: its four commands.
func BenchmarkOwnSessions(bench *testing.B) {
	const perEntry = 64
	b := newBenchHarness(bench, 1000)
	var entry []byte
	bench.ReportAllocs()
	for i := 0; bench.Loop(); i++ {
		if i%perEntry != 0 {
			continue
		}
		bench.StopTimer()
		e := Entry{Version: 1, Reading: clock.Reading{Epoch: b.m.Epoch()}}
		for n := range perEntry {
			id := session.ID(b.m.Stamp().Index + uint64(4*n) + 2)
			hash := session.Hash{31: 1}
			binary.LittleEndian.PutUint64(hash[:], uint64(i+n))
			e.Commands = append(e.Commands,
				&OpenSession{Secret: hash,
					Settings: session.Settings{TTL: clock.Minute, Identity: "web"}},
				&Acquire{Session: id, Ticket: 1,
					Items: exclusive(fmt.Sprintf("account/%011d", i+n))},
				&Drop{Session: id, Ticket: 1}, &CloseSession{Session: id})
		}
		entry = e.Append(entry[:0])
		bench.StartTimer()
		a, err := b.m.Apply(1, entry)
		if err != nil || a.Results[4*perEntry-1].Code != OK || a.Results[1].State != Granted {
			bench.Fatalf("%v %+v", err, a.Results)
		}
	}
}

package fsm

import (
	"fmt"
	"testing"

	"zamok/clock"
	"zamok/session"
)

// BenchmarkBusySessions applies entries in which each of so many sessions acquires and drops its
// own lock, as time passes, and asks what is due after each; one operation is one pair, with
// decoding.
func BenchmarkBusySessions(bench *testing.B) {
	for _, sessions := range []int{16, 64, 256} {
		bench.Run(fmt.Sprint(sessions), func(bench *testing.B) {
			b := &benchHarness{m: New()}
			b.apply(bench, &LeaderStart{Node: "n1", Nonce: 1, Cluster: ClusterID{1}, TokenBase: 1})
			for i := range sessions {
				open := &OpenSession{Secret: session.Hash{byte(i), byte(i >> 8)},
					Settings: session.Settings{TTL: 10 * clock.Second}}
				b.sessions = append(b.sessions, b.apply(bench, open).Results[0].Session)
			}
			b.ticket = make([]uint64, sessions)
			bench.ReportAllocs()
			var entry []byte
			for i := 0; bench.Loop(); i++ {
				if i%sessions != 0 {
					continue
				}
				bench.StopTimer()
				e := Entry{Version: 1,
					Reading: clock.Reading{Epoch: b.m.Epoch(),
						Now: clock.Time(i/sessions) * clock.Time(5*clock.Millisecond)}}
				for s := range sessions {
					a := b.acquire(fmt.Sprintf("own-%d", s))
					e.Commands = append(e.Commands, a,
						&Drop{Session: a.Session, Ticket: a.Ticket, AckedThrough: a.Ticket})
				}
				entry = e.Append(entry[:0])
				bench.StartTimer()
				if _, err := b.m.Apply(1, entry); err != nil {
					bench.Fatal(err)
				}
				b.m.NextDue()
			}
		})
	}
}

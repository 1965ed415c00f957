package api

import (
	"fmt"
	"testing"

	"zamok/api/zamokpb"
	"zamok/clock"
)

// One session locks and unlocks a free lock, over a real connection to a node that keeps its log in
// memory: what the wire and the machine cost, without disks and other nodes.
func BenchmarkLockUnlock(b *testing.B) {
	n := startAlone(b)
	w := openStream(b, call(b, n), settings(clock.Minute))
	b.ReportAllocs()
	for ticket := uint64(1); b.Loop(); ticket++ {
		w.send(exclusive(ticket, "bench", 0))
		w.change()
		w.send(drop(ticket))
		w.change()
		w.AckedThrough = ticket
	}
}

// Many sessions, each with its own lock, at once.
func BenchmarkLockUnlockAtOnce(b *testing.B) {
	for _, sessions := range []int{16, 256} {
		b.Run(fmt.Sprint(sessions), func(b *testing.B) {
			n := startAlone(b)
			turns := make(chan struct{})
			done := make(chan struct{}, sessions)
			for i := range sessions {
				w := openStream(b, call(b, n), settings(clock.Minute))
				go func() {
					defer func() { done <- struct{}{} }()
					for ticket := uint64(1); ; ticket++ {
						if _, more := <-turns; !more {
							return
						}
						w.send(exclusive(ticket, fmt.Sprint("bench", i), 0))
						w.change()
						w.send(drop(ticket))
						w.change()
						w.AckedThrough = ticket
					}
				}()
			}
			b.ReportAllocs()
			for b.Loop() {
				turns <- struct{}{}
			}
			close(turns)
			for range sessions {
				<-done
			}
		})
	}
}

// Two sessions hand one lock to and fro: from one's drop to the other's grant.
func BenchmarkHandOff(b *testing.B) {
	n := startAlone(b)
	both := [2]*wireClient{openStream(b, call(b, n), settings(clock.Minute)),
		openStream(b, call(b, n), settings(clock.Minute))}
	ticket := [2]uint64{1, 1}
	both[0].send(exclusive(1, "baton", -1))
	both[0].is(1, stateGranted)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		from, to := i%2, (i+1)%2
		both[to].send(exclusive(ticket[to], "baton", -1))
		for both[to].answer().State.State != zamokpb.State_STATE_WAITING {
		}
		both[from].send(drop(ticket[from]))
		for both[to].change().State.State != zamokpb.State_STATE_GRANTED {
		}
		both[from].AckedThrough = ticket[from]
		ticket[from]++
	}
}

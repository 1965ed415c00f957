package api

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

// holdMany has a session hold so many locks, of a name each.
func holdMany(t *testing.T, n *Node, w *wireClient, locks int) {
	t.Helper()
	for ticket := uint64(0); locks > 0; {
		answers := make(chan error, min(locks, 1024))
		for range cap(answers) {
			w.AckedThrough = ticket
			ticket++
			n.Raft().Submit(t.Context(),
				&fsm.Acquire{Session: session.ID(w.Session), Ticket: ticket,
					AckedThrough: w.AckedThrough, Items: []fsm.Item{
						{Name: fmt.Sprintf("many/%d/%d", w.Session, ticket), Mode: fsm.Exclusive}}},
				func(_ raftnode.Answer, err error) { answers <- err })
		}
		for range cap(answers) {
			if err := <-answers; err == nil {
				locks--
			} else {
				// it waited too long, and another ticket comes in its place
				require.ErrorIs(t, err, raftnode.ErrOverloaded)
			}
		}
	}
}

// Sessions with as many tickets as there may be attach again and again, each as soon as it has its
// SessionState. Another session continues all the time.
func TestOthersGoOnBesideSessionsThatAttachInALoop(t *testing.T) {
	const (
		longest  = 3 * time.Second // what it takes is some hundredths of that
		sessions = 4
		loops    = 50
	)
	n := startAlone(t)
	stop, others := make(chan struct{}), make(chan time.Duration)
	go lockRepeatedly(n, session.ID(openSession(t, soon(t), call(t, n)).id), stop, others)
	var loop []*wireClient
	for range sessions {
		w := openStream(t, call(t, n), settings(clock.Hour))
		holdMany(t, n, w, fsm.TicketsMax)
		loop = append(loop, w)
	}
	<-others
	began := time.Now()
	var busy sync.WaitGroup
	var sent atomic.Int64
	for _, w := range loop {
		busy.Go(func() {
			c := call(t, n)
			for range loops {
				w.hangUp()
				w = w.again(c)
				sent.Add(int64(len(w.state.Tickets)))
			}
		})
	}
	busy.Wait()
	took, most := time.Since(began), <-others
	close(stop)
	t.Logf("%d attachments, with %d tickets sent, in %v; the longest round of another "+
		"session took %v", sessions*loops, sent.Load(), took, most)
	require.EqualValues(t, sessions*loops*fsm.TicketsMax, sent.Load())
	assert.Less(t, most, longest)
}

// lockRepeatedly acquires and drops a lock again and again, until stop is closed. It sends how long
// one round has taken at most since it was last received.
func lockRepeatedly(n *Node, id session.ID, stop <-chan struct{}, worst chan<- time.Duration) {
	var most time.Duration
	for ticket := uint64(1); ; ticket++ {
		select {
		case <-stop:
			return
		case worst <- most:
			most = 0
		default:
		}
		began := time.Now()
		until(n, &fsm.Acquire{
			Session: id, Ticket: ticket, AckedThrough: ticket - 1,
			Items: []fsm.Item{{Name: "bystander", Mode: fsm.Exclusive}},
		})
		until(n, &fsm.Drop{Session: id, Ticket: ticket})
		most = max(most, time.Since(began))
	}
}

// until has a command carried out, however busy the node is.
func until(n *Node, c fsm.Command) {
	for {
		if _, err := n.Raft().Propose(context.Background(), c); err == nil ||
			!errors.Is(err, raftnode.ErrOverloaded) {
			return
		}
	}
}

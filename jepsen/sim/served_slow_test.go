package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/client"
	"zamok/fsm"
	"zamok/session"
)

// Go programs with a cluster whose commits take long, but are in time for their leases.

// slowAppends makes each write to the log of every node take so long. So no other node would lead
// better.
func (s *Sim) slowAppends(takes time.Duration) {
	for _, n := range s.InitialMembers() {
		n.Disk.onWrite.set(func(op diskOp, returned bool) time.Duration {
			if op == opAppend && !returned {
				return takes
			}
			return 0
		})
	}
}

// attachment is the attachment of a lock's session, according to the leader.
func (s *Sim) attachment(l *client.Lock) uint64 { return s.attachmentAt(s.Leader(), l) }

func (s *Sim) attachmentAt(n *Node, l *client.Lock) (at uint64) {
	n.View(func(m *fsm.Machine) {
		if live, alive := m.Session(session.ID(l.Session())); alive {
			at = live.Attachment
		}
	})
	return at
}

// A client waits for commits that take long: locks are acquired and released in about the time of a
// commit, calls are answered, and a session keeps its stream. A stream that breaks is replaced by
// exactly one other, although the client has tried several nodes; so is one to a leader that it
// can't reach any more.
func TestClientsWaitForSlowCommits(t *testing.T) {
	t.Parallel()
	for _, takes := range []time.Duration{time.Second, 1500 * time.Millisecond} {
		t.Run(fmt.Sprint(takes), func(t *testing.T) {
			runStarted(t, Config{}, func(s *Sim, leader *Node) {
				a, b := s.program("a", nil), s.program("b", nil)
				held := s.lock(a, "x")
				require.NoError(s, s.lock(b, "y").Unlock(s.Within(time.Second)))
				attached := s.attachment(held)
				s.slowAppends(takes)
				commit := 4 * takes // one that is in progress goes first
				began := s.Elapsed()
				for range 5 {
					y, err := b.Lock(s.Within(commit), "y")
					require.NoError(s, err)
					require.NoError(s, y.Unlock(s.Within(commit)))
					_, err = b.admin().Now(s.Within(commit))
					require.NoError(s, err)
				}
				s.Logf("%v for 15 commits", s.Elapsed()-began)
				began = s.Elapsed()
				z := s.lock(s.program("c", nil), "z")
				s.Logf("%v for the first lock of a client", s.Elapsed()-began)
				require.Less(s, s.Elapsed()-began, 3*commit,
					"it opens its session, attaches and acquires")
				require.NoError(s, z.Unlock(s.Within(commit)))
				require.Equal(s, attached, s.attachment(held))

				require.NoError(s, held.Err())

				// A lease that is long enough for a break.
				d := s.program("d", func(c *client.Config) { c.TTL = 30 * time.Second })
				held = s.lock(d, "z")
				for what, breaks := range map[string]func(){"all connections": d.stack.closeConns,
					"the link": func() { s.cutLink("d", leader.Host) }} {
					attached, began = s.attachment(held), s.Elapsed()
					breaks()
					s.Await(10*time.Second, "it attaches again after the break of "+what,
						func() bool { return s.attachment(held) != attached })
					s.Logf("%v for another stream after the break of %s", s.Elapsed()-began, what)
					attached = s.attachment(held)
					time.Sleep(12 * time.Second) // before it tries to reach the leader again
					require.NoError(s, held.Err())
					require.Equal(s, attached, s.attachment(held), "it attaches once")
					s.Network.HealAll()
					time.Sleep(30 * time.Second)
				}
			})
		})
	}
}

// open is how many connections a program has.
func (p *program) open() int {
	p.stack.network.mu.Lock()
	defer p.stack.network.mu.Unlock()
	return len(p.stack.conns)
}

// After a while a client has only one connection. When the leader ends, it opens others in time: it
// attaches as soon as there is another leader. Before it gives up a silent leader, it has connected
// to the others.
func TestIdleConnectionsAreOpenedInTime(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Sim, *Node){
		"killed":   func(_ *Sim, n *Node) { n.Kill() },
		"vanished": func(s *Sim, n *Node) { s.Network.Isolate(n.Host) },
	} {
		t.Run(name, func(t *testing.T) {
			runStarted(t, Config{}, func(s *Sim, leader *Node) {
				var programs []*program
				var locks []*client.Lock
				before := make(map[*client.Lock]uint64)
				for i := range 10 {
					p := s.program(fmt.Sprint("p", i), nil)
					l := s.lock(p, fmt.Sprint("x", i))
					programs, locks = append(programs, p), append(locks, l)
				}
				time.Sleep(3 * time.Minute)
				for i, p := range programs {
					require.Equal(s, 1, p.open(), "to the leader")
					before[locks[i]] = s.attachment(locks[i])
				}
				end(s, leader)
				began := s.Elapsed()
				next := s.LeaderOtherThan(leader)
				elected, opened := s.Elapsed(), time.Duration(0)
				s.Await(10*time.Second, "all attach", func() bool {
					if opened == 0 && !slices.ContainsFunc(programs,
						func(p *program) bool { return p.open() == 1 }) {
						opened = s.Elapsed()
					}
					return !slices.ContainsFunc(locks,
						func(l *client.Lock) bool { return s.attachmentAt(next, l) == before[l] })
				})
				s.Logf("%v until there was a leader, %v until all had connected, %v until all "+
					"had attached", elected-began, opened-began, s.Elapsed()-began)
				switch name {
				case "killed":
					require.Less(s, s.Elapsed()-elected, time.Second,
						"the longest time between two rounds is 0.75 s")
				case "vanished":
					require.Less(s, opened, s.Elapsed()-500*time.Millisecond)
				}
				for _, l := range locks {
					require.NoError(s, l.Err())
				}
			})
		})
	}
}

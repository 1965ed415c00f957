package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/fsm"
)

func TestGrantAndHandover(t *testing.T) {
	t.Parallel()
	for _, disks := range []Disks{InMemory, OnDisk} {
		Run(t, Config{Disks: disks}, func(s *Sim) {
			leader := s.Start()
			id := leader.OpenSession("holder", 10*time.Second)
			a := leader.Lock(id, 1, "x")
			require.Equal(s, fsm.Granted, a.Result.State)
			leader.Kill()
			next := s.LeaderOtherThan(leader)
			next.Running().View(func(m *fsm.Machine) {
				require.True(s, m.Holds("x", a.Result.Token, fsm.TicketRef{}))
			})
			leader.Restart()
			s.AwaitApplied(next, leader, time.Second)
			require.Empty(s, s.Audit.Violations())
		})
	}
}

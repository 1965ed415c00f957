package fsm

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/session"
)

// However often a cluster is restored, from backups of any age, and the longest ttl is lowered and
// raised: no lock is granted while a client of an earlier history can consider its lease valid.
// Only a longest ttl that no history of the backup had is beyond this.
func TestARestoreOutlastsEveryLease(t *testing.T) {
	kept, refused := 0, 0
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 7))
		var real clock.Time // of the world; the time of a history begins at its backup
		var leases clock.Time
		highest := LongestTTLDefault // of the histories until now, up to their backups
		m, offset, secrets := New(), clock.Time(0), byte(0)
		do := func(c Command) Result {
			e := Entry{Version: 1, Reading: clock.Reading{Epoch: m.Epoch(), Now: real - offset},
				Commands: []Command{c}}
			a, err := m.Apply(1, e.Append(nil))
			require.NoError(t, err)
			require.Equal(t, OK, a.Refused)
			require.Equal(t, real-offset, m.Time())
			return a.Results[0]
		}
		for history := range byte(4) {
			var leasesHere clock.Time // of clients of this history
			do(&LeaderStart{Node: "n1", Nonce: uint64(history) + 1, Cluster: ClusterID{1},
				TokenBase: 100})
			offset = real - m.Time()
			var backup bytes.Buffer
			backupAt, pace := random.IntN(40), clock.Span(1+random.IntN(20))*clock.Hour
			for step := range 40 {
				real = real.Add(clock.Span(random.Int64N(int64(pace))))
				switch longest := clock.Span(random.Int64N(int64(LongestTTLMax-LongestTTLMin))) +
					LongestTTLMin; random.IntN(3) {
				case 0:
					if step <= backupAt || longest <= highest {
						highest = max(highest, longest)
						require.Equal(t, OK, do(&SetLongestTTL{TTL: longest}).Code)
					}
				case 1:
					secrets++
					settings := session.Settings{TTL: m.LongestTTL(),
						LockDelay: DelayMax * clock.Span(random.IntN(2))}
					opened := do(&OpenSession{Secret: session.Hash{secrets, history},
						Settings: settings})
					require.Equal(t, OK, opened.Code)
					leasesHere = max(leasesHere, real.Add(settings.TTL+settings.LockDelay))
					got := do(&Acquire{Session: opened.Session, Ticket: 1,
						Items: exclusive(fmt.Sprint(step)), Wait: Forever})
					require.Equal(t, OK, got.Code)
					if m.HoldOff() == 0 {
						require.Greater(t, real, leases, "seed %d: a lock is granted in history %d",
							seed, history)
						kept++
					} else {
						require.Equal(t, Waiting, got.State)
						refused++
					}
				}
				if step == backupAt {
					_, err := m.Freeze().WriteTo(&backup)
					require.NoError(t, err)
				}
			}
			leases = max(leases, leasesHere)
			var snapshot bytes.Buffer
			_, _, err := RewriteBackup(&snapshot, &backup,
				NewHistory{Cluster: ClusterID{history + 2}})
			require.NoError(t, err)
			m, err = Restore(&snapshot)
			require.NoError(t, err)
			offset = real - m.Time()
		}
	}
	require.Greater(t, kept, 1000)
	require.Greater(t, refused, 1000)
}

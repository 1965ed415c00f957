package fsm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/session"
)

// NextDue may be too early for a session that was renewed. The entry that a leader then proposes
// expires nothing and makes it exact: it never proposes twice for one moment, and at most one such
// entry in NextDueExact.
func TestAnEarlyNextDueCostsOneEntry(t *testing.T) {
	m := New()
	apply := func(now clock.Time, renewals ...session.ID) Applied {
		e := Entry{Version: 1, Reading: clock.Reading{Epoch: m.Epoch(), Now: now},
			Renewals: renewals}
		a, err := m.Apply(1, e.Append(nil))
		require.NoError(t, err)
		return a
	}
	open := Entry{Version: 1,
		Commands: []Command{&LeaderStart{Node: "n1", Nonce: 1, Cluster: ClusterID{1},
			TokenBase: 1}}}
	for i := range 50 {
		settings := session.Settings{TTL: 2*clock.Second + clock.Span(i)*97*clock.Millisecond}
		open.Commands = append(open.Commands,
			&OpenSession{Secret: session.Hash{byte(i + 1)}, Settings: settings})
	}
	a, err := m.Apply(1, open.Append(nil))
	require.NoError(t, err)
	var ids []session.ID
	for _, r := range a.Results[1:] {
		ids = append(ids, r.Session)
	}
	const end, renewed = clock.Minute, 1900 * clock.Millisecond
	empty := 0
	for now := clock.Time(0); now < clock.Time(end); now = now.Add(clock.Millisecond) {
		if clock.Span(now)%renewed == 0 {
			apply(now, ids...)
		}
		due, pending := m.NextDue()
		require.True(t, pending)
		if due > now {
			continue
		}
		require.Empty(t, apply(now).Events, "all sessions are renewed in time")
		empty++
		due, _ = m.NextDue()
		require.Greater(t, due, now, "again at once")
	}
	require.NotZero(t, empty)
	require.LessOrEqual(t, empty, int(end/NextDueExact))
}

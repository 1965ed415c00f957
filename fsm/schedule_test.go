package fsm

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/session"
)

// A renewal costs the schedule nothing: a session is scheduled again when its old deadline is near,
// not in each entry.
func TestRenewedSessionStaysInTheSchedule(t *testing.T) {
	m := New()
	apply := func(now clock.Time, renewals ...session.ID) {
		e := Entry{Version: 1, Reading: clock.Reading{Epoch: m.Epoch(), Now: now},
			Renewals: renewals}
		_, err := m.Apply(1, e.Append(nil))
		require.NoError(t, err)
	}
	open := Entry{Version: 1, Commands: []Command{
		&LeaderStart{Node: "n1", Nonce: 1, Cluster: ClusterID{1}, TokenBase: 1},
		&OpenSession{Secret: session.Hash{1}, Settings: session.Settings{TTL: 10 * clock.Second}},
	}}
	a, err := m.Apply(1, open.Append(nil))
	require.NoError(t, err)
	id := a.Results[1].Session
	first, _ := m.NextDue()
	renewed := clock.Time(0)
	for now := renewed; now < first.Add(-NextDueExact); now = now.Add(clock.Second) {
		renewed = now
		apply(renewed, id)
		at, _ := m.NextDue()
		assert.Equal(t, first, at, "at %v", now)
	}
	apply(first.Add(-NextDueExact)) // the old deadline is near, so it is exact
	at, _ := m.NextDue()
	assert.Equal(t, renewed.Add(10*clock.Second), at)
	require.NoError(t, m.Check())
}

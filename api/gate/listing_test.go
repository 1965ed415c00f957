package gate

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/service"
	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// sessionsOf returns a machine with a session of each of these identities, and what applies a
// command there.
func sessionsOf(t *testing.T,
	identities ...string) (m *fsm.Machine, apply func(c fsm.Command) fsm.Result) {
	m = fsm.New()
	apply = func(c fsm.Command) fsm.Result {
		a, err := m.Apply(1,
			(&fsm.Entry{Version: m.Version(), Commands: []fsm.Command{c}}).Append(nil))
		require.NoError(t, err)
		require.Equal(t, fsm.OK, a.Results[0].Code)
		return a.Results[0]
	}
	apply(&fsm.LeaderStart{Node: "n1", Nonce: 1, Cluster: fsm.ClusterID{1}})
	for i, who := range identities {
		c := &fsm.OpenSession{Settings: session.Settings{Identity: who, TTL: clock.Hour}}
		binary.BigEndian.PutUint32(c.Secret[:], uint32(i+1))
		apply(c)
	}
	return m, apply
}

// TestAListingLooksAtAPartAtATime: while one part is read, nothing is applied. So how many
// sessions, or names of the rules, a part looks at does not depend on how many are hidden from the
// caller.
func TestAListingLooksAtAPartAtATime(t *testing.T) {
	const parts = 4
	crowd := make([]string, parts*partMax)
	for i := range crowd {
		crowd[i] = "bob"
	}
	crowd[partMax+1], crowd[3*partMax] = "alice", "alice"
	m, apply := sessionsOf(t, crowd...)
	names := make([]string, parts*partMax)
	for i := range names {
		names[i] = fmt.Sprintf("%05d", i)
	}
	first := m.Sessions(0, 1)[0].ID
	last := names[len(names)-1]
	apply(&fsm.Acquire{Session: first, Ticket: 1,
		Items: []fsm.Item{{Name: "00000", Mode: fsm.Exclusive}}})
	apply(&fsm.Acquire{Session: first, Ticket: 2,
		Items: []fsm.Item{{Name: last, Mode: fsm.Exclusive}}})
	g := testGate(t, `
rules:
  - {identities: [alice, mallory], names: ["`+strings.Join(names, `", "`)+`"], may: [read]}
  - {identities: [root], may: [operate]}
`)
	sessions := func(who string, limit int) (page []session.Session, parts int) {
		part := client{gate: g, caller: Caller{Identity: who}}.Sessions(0, limit, &page)
		for parts++; part(m); parts++ {
		}
		return page, parts
	}
	locks := func(limit int) (page []fsm.LockSummary, parts int) {
		part := client{gate: g, caller: Caller{Identity: "alice"}}.Locks("", "", limit, &page)
		for parts++; part(m); parts++ {
		}
		return page, parts
	}

	page, read := sessions("mallory", service.ListMax)
	assert.Empty(t, page)
	assert.GreaterOrEqual(t, read, parts)
	page, read = sessions("alice", service.ListMax)
	assert.Len(t, page, 2)
	assert.GreaterOrEqual(t, read, parts)
	page, read = sessions("alice", 1)
	assert.Len(t, page, 1)
	assert.Equal(t, 2, read, "a page that is full ends the listing")
	page, read = sessions("root", service.ListMax)
	assert.Len(t, page, service.ListMax)
	assert.Equal(t, 1, read, "who sees all needs one part for a page")

	found, read := locks(service.ListMax)
	require.Len(t, found, 2)
	assert.Equal(t, last, found[1].Name)
	assert.GreaterOrEqual(t, read, parts)
	found, read = locks(1)
	assert.Len(t, found, 1)
	assert.Equal(t, 1, read)
}

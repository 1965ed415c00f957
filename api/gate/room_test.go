package gate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// aliceHolds is a state in which alice has a session, with ticket 1, which is all that the quotas
// allow.
func aliceHolds(t *testing.T, secret []byte) (m *fsm.Machine, id session.ID) {
	m = fsm.New()
	apply := func(command fsm.Command) fsm.Result {
		entry :=
			(&fsm.Entry{Version: m.Version(), Reading: clock.Reading{Epoch: 1},
				Commands: []fsm.Command{command}}).Append(nil)
		applied, err := m.Apply(1, entry)
		require.NoError(t, err)
		require.Equal(t, fsm.OK, applied.Results[0].Code)
		return applied.Results[0]
	}
	apply(&fsm.LeaderStart{Node: "n1", Cluster: fsm.ClusterID{1}, TokenBase: 1})
	id = apply(&fsm.OpenSession{Secret: wire.Hash(secret),
		Settings: session.Settings{Identity: "alice", TTL: clock.Minute}}).Session
	apply(&fsm.Acquire{Session: id, Ticket: 1, Items: []fsm.Item{{Name: "x", Mode: fsm.Exclusive}}})
	apply(&fsm.SetQuotas{Quotas: fsm.Quotas{Amounts: fsm.Amounts{Tickets: 1}}})
	return m, id
}

// TestRoomIsJudgedForTheOwnerOnly: a refusal for room would show a caller which tickets another's
// session has, and how full the quota of its identity is.
func TestRoomIsJudgedForTheOwnerOnly(t *testing.T) {
	secret := make([]byte, secretBytes)
	m, id := aliceHolds(t, secret)
	g := testGate(t, "")
	g.Start(testNode{m: m, lowDisk: "n1 is low"})
	acquire := func(secret []byte, ticket uint64) *zamokpb.AcquireRequest {
		return &zamokpb.AcquireRequest{Session: uint64(id), Secret: secret,
			Acquire: &zamokpb.Acquire{
				Ticket: ticket,
				Items:  []*zamokpb.Item{{Name: "y", Mode: zamokpb.Mode_MODE_EXCLUSIVE}},
			}}
	}
	alice := callerContext(t.Context(), Caller{Identity: "alice"})
	require.NoError(t, admit(alice, g, acquire(secret, 1)), "a retransmission")
	e := (*wire.Error)(nil)
	require.ErrorAs(t, admit(alice, g, acquire(secret, 2)), &e)
	require.Equal(t, zamokpb.Code_CODE_DISK_LOW, e.Code())
	for _, ticket := range []uint64{1, 2} {
		wrong := append([]byte{1}, secret[1:]...)
		mallory := callerContext(t.Context(), Caller{Identity: "mallory"})
		for _, err := range []error{admit(alice, g, acquire(wrong, ticket)),
			admit(mallory, g, acquire(secret, ticket))} {
			require.ErrorAs(t, err, &e)
			require.Equal(t, zamokpb.Code_CODE_WRONG_SECRET, e.Code())
		}
	}
}

// TestARefusalForRoomCountsOnce: of a call the gate counts it, of a message its stream, with its
// answer.
func TestARefusalForRoomCountsOnce(t *testing.T) {
	secret := make([]byte, secretBytes)
	m, id := aliceHolds(t, secret)
	g := testGate(t, "")
	g.ID = "n1"
	g.Start(testNode{m: m})
	counted := 0
	g.Limits.LimitReached = func(string) { counted++ }
	now := time.Now()
	g.limitMet.Store(&now)
	acquire := &zamokpb.Acquire{Ticket: 2,
		Items: []*zamokpb.Item{{Name: "y", Mode: zamokpb.Mode_MODE_EXCLUSIVE}}}
	ctx := callerContext(t.Context(), Caller{Identity: "alice"})
	_, err := g.admitMessage(ctx, Stream{Secret: secret}, acquire)
	require.ErrorContains(t, err, "the quota of this cluster")
	assert.Zero(t, counted)
	require.Error(t, admit(ctx, g,
		&zamokpb.AcquireRequest{Session: uint64(id), Secret: secret, Acquire: acquire}))
	assert.Equal(t, 1, counted)
}

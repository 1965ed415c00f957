package gate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/session"
)

// TestAnonymousCallersOfANetworkAreOne: a machine with IPv6 has as many addresses as it likes.
// Whatever counts for each identity counts the network: the limits of a node, the shares of the
// queue, and the quotas in the state machine.
func TestAnonymousCallersOfANetworkAreOne(t *testing.T) {
	m, apply := sessionsOf(t)
	opened := map[string]uint64{}
	for i, c := range []struct{ address, identity string }{
		{"192.0.2.7:50001", "anonymous@192.0.2.7"},
		{"[::ffff:192.0.2.7]:50002", "anonymous@192.0.2.7"},
		{"192.0.2.8:50001", "anonymous@192.0.2.8"},
		{"[2001:db8:1:2::9]:50001", "anonymous@2001:db8:1:2::/64"},
		{"[2001:db8:1:2:3:4:5:6]:50001", "anonymous@2001:db8:1:2::/64"},
		{"[2001:db8:1:3::9]:50001", "anonymous@2001:db8:1:3::/64"},
		{"[fe80::1%eth0]:50001", "anonymous@fe80::/64"},
		{"[fe80::2%eth1]:50001", "anonymous@fe80::/64"},
		{"[::1]:50001", "anonymous@::1"},
	} {
		caller, err := Identifier{}.Caller(Arrival{Address: c.address}, time.Now())
		require.NoError(t, err)
		assert.Equal(t, c.identity, caller.Identity)
		assert.Equal(t, c.address, caller.Address, "the audit log has all of it")
		for _, known := range []Caller{CallerOf(callerContext(t.Context(), caller)),
			relayed(nil, caller.Values())} {
			assert.Equal(t, c.identity, known.Principal())
		}
		assert.Equal(t, c.identity, Caller{Address: c.address}.Principal(),
			"also of one whose credentials are wrong")
		apply(wire.OpenCommand(session.Hash{byte(i + 1)}, caller.Identity,
			&zamokpb.SessionSettings{Ttl: int64(clock.Minute)}))
		opened[c.identity]++
		assert.Equal(t, opened[c.identity], m.UsedBy(c.identity).Sessions)
	}
}

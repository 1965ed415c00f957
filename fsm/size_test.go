package fsm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/session"
)

// An entry that a leader fills by Size must never be too long for a machine to read.
func TestSizeIsAnUpperBound(t *testing.T) {
	const most = ^uint64(0)
	long := string(make([]byte, NameBytesMax))
	var items []Item
	for range ItemsMax {
		items = append(items, Item{Name: long, Mode: Permits, Permits: 1<<32 - 1, Of: 1<<32 - 1})
	}
	commands := everyCommand()
	commands = append(commands,
		&OpenSession{Settings: session.Settings{Identity: long, Label: long, Meta: long,
			TTL: -1 << 63, LockDelay: -1 << 63, ReleaseOnDisconnect: -1 << 63}},
		&Attach{Session: session.ID(most), AckedThrough: most, Attempt: most},
		&ReleaseOnDisconnect{Session: session.ID(most), Attachment: most, Index: most},
		&Acquire{
			Session: session.ID(most), Ticket: most, AckedThrough: most, Items: items,
			Wait:    -1 << 63,
			MaxHold: -1 << 63, Owner: long, Meta: long,
		},
		&Drop{Session: session.ID(most), Ticket: most, AckedThrough: most},
		&ForceRelease{Name: long, Token: most, Reason: long},
		&ExpireSession{Session: session.ID(most), Reason: long},
		&LeaderStart{Node: long, Nonce: most, TokenBase: most},
		&Member{
			ID: long, Client: long, Peer: long, HTTP: long, Version: long,
			StateVersionMin: 1<<32 - 1,
			StateVersionMax: 1<<32 - 1, FreeBytes: most, LowSpaceThreshold: most,
			ElectionTimeout: 1<<32 - 1, ElectionTimeoutFixed: 1<<32 - 1,
		},
		&Digest{Node: long, Index: most, Value: most},
	)
	for _, c := range commands {
		require.LessOrEqual(t, len(commandBytes(c)), Size(c), "%T", c)
	}
}

package fsm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/session"
)

// A client that has come back on a new stream leaves an old one behind, and the leader may see that
// one break much later. It is the latest attachment that owns the session.
func TestDetachOfOldAttachmentIsIgnored(t *testing.T) {
	b := newHarness(t)
	s := b.open(1, clock.Minute)
	attach := &Attach{Session: s, Secret: session.Hash{1}}
	older := b.do(0, attach).Results[0].Index
	latest := b.do(0, attach).Results[0].Index
	index := b.m.Stamp().Index // nothing is heard after it

	b.do(0, &ReleaseOnDisconnect{Session: s, Attachment: older, Index: index})
	_, alive := b.m.Session(s)
	require.True(t, alive)

	a := b.do(0, &ReleaseOnDisconnect{Session: s, Attachment: latest, Index: index})
	_, alive = b.m.Session(s)
	require.False(t, alive)
	require.Equal(t, Disconnected, a.Events[0].Reason)
}

// A session that was never attached has no stream: a break that names attachment 0 has no stream.
func TestDetachWithoutAttachmentIsInvalid(t *testing.T) {
	b := newHarness(t)
	s := b.open(1, clock.Minute)
	a := b.do(0, &ReleaseOnDisconnect{Session: s, Index: b.m.Stamp().Index})
	require.Equal(t, Invalid, a.Results[0].Code)
	_, alive := b.m.Session(s)
	require.True(t, alive)
}

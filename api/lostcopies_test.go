package api

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"zamok/api/access"
	"zamok/api/zamokpb"
	"zamok/fsm"
	"zamok/raftnode"
)

// TestACopyOfWhatALeaderLostIsInDoubt: an acquisition is in the log of a leader that is deposed, and its successor may grant it. A
// copy that waited in the queue behind it is refused after the first has its answer, which is "unknown", and the state machine of
// the deposed leader has no such ticket. The next epoch here begins with everything of earlier terms.
func TestACopyOfWhatALeaderLostIsInDoubt(t *testing.T) {
	t.Parallel()
	n := startAlone(t)
	s, ref, secret := n.server, fsm.TicketRef{Session: 1, Ticket: 7}, newSecret()
	first := s.acquisitions.until(func(raftnode.Answer, error) {}, ref)
	opening := s.openings.until(func(raftnode.Answer, error) {}, access.Hash(secret))
	first(raftnode.Answer{}, raftnode.ErrUnknown)
	opening(raftnode.Answer{}, raftnode.ErrUnknown)
	copied := s.acquisitions.until(func(_ raftnode.Answer, err error) {
		assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, s.refusedCopy(err, ref).Info.Outcome)
	}, ref)
	copied(raftnode.Answer{}, &raftnode.NotLeaderError{})
	assert.True(t, s.knowsSecret(secret))

	for _, leads := range []bool{false, true} {
		s.acquisitions.SetLeading(leads)
		s.openings.SetLeading(leads)
	}
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, s.refusedCopy(raftnode.ErrOverloaded, ref).Info.Outcome)
	assert.False(t, s.knowsSecret(secret))
}

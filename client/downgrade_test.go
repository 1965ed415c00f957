package client

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/api/zamokpb"
)

func TestADowngradeIsAskedForUntilItIsDone(t *testing.T) {
	b := newBare(t)
	all := b.requests(1)
	b.outgoing()
	b.push(state(1, granted, 0))
	l := b.hand(all[0])
	done := make(chan error)
	go func() { done <- l.Downgrade(t.Context()) }()
	<-b.wake
	sent, _ := b.outgoing()
	for len(sent) == 0 { // the wake was of something before
		<-b.wake
		sent, _ = b.outgoing()
	}
	require.Equal(t, []string{"downgrade 1"}, sent)
	b.attach([]*zamokpb.TicketState{state(1, granted, 0)})
	sent, _ = b.outgoing()
	require.Equal(t, []string{"downgrade 1"}, sent)
	b.receive(&zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Answer{Answer: &zamokpb.Answer{
		Command: zamokpb.Command_COMMAND_DOWNGRADE, State: state(1, granted, 0)}}})
	require.NoError(t, <-done)
	require.NoError(t, l.Err())
}

// A Downgrade is sent again on another stream, and refused: the first may have been done. One that
// was refused before, or not accepted, was not.
func TestALaterRefusalLeavesADowngradeInDoubt(t *testing.T) {
	for name, test := range map[string]struct {
		again func(b *bare, answer func(zamokpb.Code))
		want  Outcome
	}{
		"refused at once": {func(*bare, func(zamokpb.Code)) {}, NotDone},
		"on another stream": {func(b *bare, _ func(zamokpb.Code)) {
			b.attach([]*zamokpb.TicketState{state(1, granted, 0)})
		}, Unknown},
		"overloaded before": {func(b *bare, answer func(zamokpb.Code)) {
			answer(zamokpb.Code_CODE_OVERLOADED)
		}, NotDone},
	} {
		t.Run(name, func(t *testing.T) {
			b, l := holds(t)
			answer := func(code zamokpb.Code) {
				b.receive(&zamokpb.ServerMessage{
					Message: &zamokpb.ServerMessage_Answer{Answer: &zamokpb.Answer{
						Command: zamokpb.Command_COMMAND_DOWNGRADE, State: state(1, granted, 0),
						Error: &zamokpb.ErrorInfo{Code: code,
							Outcome: zamokpb.Outcome_OUTCOME_NOT_DONE}}}})
			}
			done := make(chan error, 1)
			go func() { done <- l.Downgrade(t.Context()) }()
			b.sends()
			test.again(b, answer)
			if name != "refused at once" {
				b.sends()
			}
			answer(zamokpb.Code_CODE_DISK_LOW)
			var e *Error
			require.ErrorAs(t, <-done, &e)
			require.ErrorIs(t, e, ErrLimit)
			require.Equal(t, test.want, e.Outcome)
		})
	}
}

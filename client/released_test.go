package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
	"zamok/clock"
)

// holds makes a bare session that holds a lock, as ticket 1.
func holds(t *testing.T) (*bare, *Lock) {
	b := newBare(t)
	one := b.requests(1)[0]
	_, frame := b.outgoing()
	b.push(state(1, granted, 0))
	b.confirm(frame)
	l := b.hand(one)
	require.NotNil(t, l)
	return b, l
}

// refusalOf is an error of a node.
func refusalOf(t *testing.T, code zamokpb.Code) error {
	st, err := status.New(codes.Aborted, "refused").WithDetails(
		&zamokpb.ErrorInfo{Code: code, Outcome: zamokpb.Outcome_OUTCOME_UNKNOWN})
	require.NoError(t, err)
	return st.Err()
}

func (b *bare) endsThere(reason zamokpb.Reason) {
	b.receive(&zamokpb.ServerMessage{
		Message: &zamokpb.ServerMessage_SessionEnded{
			SessionEnded: &zamokpb.SessionEnded{Reason: reason}}})
}

// way is one by which a session, or a ticket of it, ends for its client.
type way struct {
	ends      func(*bare)
	confirmed bool // the cluster said so
}

func ways(t *testing.T) map[string]way {
	denied := &Error{Kind: ErrDenied, Outcome: NotDone}
	answer := func(code zamokpb.Code) func(*bare) {
		return func(b *bare) { b.reply(state(9, 0, 0), code, zamokpb.Outcome_OUTCOME_NOT_DONE) }
	}
	return map[string]way{
		"dropped": {func(b *bare) {
			b.push(state(1, over, zamokpb.Reason_REASON_DROPPED))
		}, true},
		"force-released": {func(b *bare) {
			b.push(state(1, over, zamokpb.Reason_REASON_FORCE_RELEASED))
		}, true},
		"forgotten": {func(b *bare) { b.attach(nil) }, true},
		"session expired": {func(b *bare) {
			b.endsThere(zamokpb.Reason_REASON_EXPIRED)
		}, true},
		"expired by operator": {func(b *bare) {
			b.endsThere(zamokpb.Reason_REASON_EXPIRED_BY_OPERATOR)
		}, true},
		"no such session":        {answer(zamokpb.Code_CODE_NO_SESSION), true},
		"not its session":        {answer(zamokpb.Code_CODE_WRONG_SECRET), false},
		"coming back was denied": {func(b *bare) { b.end(denied) }, false},
		"stolen": {func(b *bare) {
			b.streamEnded(b.st, refusalOf(t, zamokpb.Code_CODE_SUPERSEDED))
		}, false},
		"another cluster":     {func(b *bare) { b.end(&Error{Kind: ErrWrongCluster}) }, false},
		"closed, unconfirmed": {func(b *bare) { _ = b.close(0) }, false},
		"closed": {func(b *bare) {
			b.mu.Lock()
			b.closing = true
			b.mu.Unlock()
			b.endsThere(zamokpb.Reason_REASON_CLOSED)
		}, true},
	}
}

// checkReleaseError checks that the error of a release leaves it in doubt exactly if the cluster
// did not answer.
func checkReleaseError(t *testing.T, confirmed bool, err error) {
	t.Helper()
	var u *UnconfirmedError
	if confirmed {
		require.False(t, errors.As(err, &u), "%v", err)
		return
	}
	require.ErrorAs(t, err, &u)
	require.Equal(t, []string{"x"}, u.Names)
	require.InDelta(t, (DefaultTTL + DefaultTTL/clock.DriftDivisor).Seconds(),
		time.Until(u.Until).Seconds(), 5)
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, Unknown, e.Outcome)
}

// An Unlock that waits for the cluster's word, when something ends.
func TestNoReleaseIsConfirmedWithoutTheClustersWord(t *testing.T) {
	for name, way := range ways(t) {
		t.Run(name, func(t *testing.T) {
			b, l := holds(t)
			ended := make(chan error, 1)
			go func() { ended <- l.Unlock(context.Background()) }()
			<-b.wake
			for !errors.Is(l.Err(), ErrNotHeld) {
				<-b.wake
			}
			way.ends(b)
			err := <-ended
			require.Equal(t, way.confirmed, err == nil, "%v", err)
			checkReleaseError(t, way.confirmed, err)
		})
	}
}

// The same of a lock that was lost by what ends.
func TestALossSaysWhetherTheClusterHoldsTheLock(t *testing.T) {
	for name, way := range ways(t) {
		t.Run(name, func(t *testing.T) {
			b, l := holds(t)
			way.ends(b)
			require.ErrorIs(t, l.Err(), ErrLost)
			require.ErrorIs(t, l.Downgrade(t.Context()), ErrLost)
			err := l.Unlock(t.Context())
			require.ErrorIs(t, err, ErrLost)
			checkReleaseError(t, way.confirmed, err)
			var e *Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, way.confirmed, e.Outcome == Done)
		})
	}
	t.Run("the local deadline", func(t *testing.T) {
		b, l := holds(t)
		b.outgoing()
		b.breaks()
		b.pass(9500 * clock.Millisecond)
		err := l.Unlock(t.Context())
		require.ErrorIs(t, err, ErrLost)
		var u *UnconfirmedError
		require.ErrorAs(t, err, &u)
		require.InDelta(t, 1, time.Until(u.Until).Seconds(), 0.6,
			"its lease ends a little later there")
	})
	t.Run("the local deadline, and then the cluster's word", func(t *testing.T) {
		b, l := holds(t)
		b.pass(9500 * clock.Millisecond)
		require.ErrorIs(t, l.Err(), ErrLost)
		b.push(state(1, over, zamokpb.Reason_REASON_DROPPED))
		checkReleaseError(t, true, l.Unlock(t.Context()))
	})
}

// Close says no more than the cluster did.
func TestCloseOfWhatEndedHereConfirmsNothing(t *testing.T) {
	for name, way := range ways(t) {
		b, _ := holds(t)
		if way.ends(b); !b.state.over() {
			continue // a ticket's end is not the session's
		}
		err := b.close(0)
		require.Equal(t, way.confirmed, err == nil, "%s: %v", name, err)
	}
}

// A Downgrade that may have been done is not refused, and one of a lock that was lost before is not
// in doubt.
func TestADowngradeOfALostLockSaysWhatItDid(t *testing.T) {
	b, l := holds(t)
	ended := make(chan error, 1)
	go func() { ended <- l.Downgrade(context.Background()) }()
	<-b.wake
	for said, _ := b.outgoing(); len(said) == 0; said, _ = b.outgoing() {
		<-b.wake
	}
	b.endsThere(zamokpb.Reason_REASON_EXPIRED)
	var e *Error
	require.ErrorAs(t, <-ended, &e)
	require.ErrorIs(t, e, ErrLost)
	require.Equal(t, Unknown, e.Outcome)
	require.ErrorAs(t, l.Downgrade(t.Context()), &e)
	require.Equal(t, NotDone, e.Outcome)
}

// An acquisition that was sent and is given up is in doubt; one that was not, is not.
func TestATryThatIsGivenUpSaysWhetherItIsInDoubt(t *testing.T) {
	b := newBare(t)
	r := newRequest([]Item{ExclusiveItem("x")}, []Option{WithWait(0)})
	one, two := b.enqueue(r), b.enqueue(r)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var all *Error
	_, err := two.wait(ctx, r)
	require.ErrorAs(t, err, &all)
	require.Equal(t, NotDone, all.Outcome)
	b.outgoing()
	_, err = one.wait(ctx, r)
	inDoubt := &UnconfirmedError{}
	require.ErrorAs(t, err, &inDoubt)
	require.Equal(t, []string{"x"}, inDoubt.Names)
	require.ErrorAs(t, err, &all)
	require.Equal(t, Unknown, all.Outcome)

	three := b.enqueue(r)
	b.outgoing()
	b.end(&Error{Kind: ErrDenied})
	require.ErrorAs(t, three.failure, &inDoubt,
		"the session ended here, and the cluster may grant it yet")
	require.ErrorIs(t, three.failure, ErrDenied)
}

// What the cluster may still hold is not said to be free because one of the clocks is hurried.
func TestUntilWhenTheClusterHoldsIsSaidByTheSlowerClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBare(t)
		b.outgoing()
		b.breaks()
		mono, raw := b.sent.Encode()
		passed := uint64(8 * clock.Second)
		for _, now := range []clock.Instant{
			clock.DecodeInstant(mono+passed*11/10, raw+passed),
			clock.DecodeInstant(mono+passed, raw+passed*11/10),
		} {
			b.clock.now = now
			require.Equal(t, b.ttl+clock.Margin(b.ttl)-8*clock.Second,
				clock.FromDuration(time.Until(b.leaseConfirmed())))
		}
	})
}

// That a session was attached by somebody else is a takeover only if no attempt of this client can
// have done it: one that went out with the same number, and of which nothing was heard.
func TestAnAttemptIsNoTakeover(t *testing.T) {
	b := newBare(t)
	attempt := &stream{s: b.session, rpc: struct {
		grpc.BidiStreamingClient[zamokpb.ClientFrame, zamokpb.ServerFrame]
	}{}}
	superseded := refusalOf(t, zamokpb.Code_CODE_SUPERSEDED)
	b.unanswered = 3
	require.Equal(t, errOtherAttached, b.applyFirstFrame(attempt, superseded), "one of two others")
	require.Equal(t, errOtherAttached, b.applyFirstFrame(attempt, superseded), "the last one")
	require.Equal(t, permanentError{errTakenOver}, b.applyFirstFrame(attempt, superseded))
}

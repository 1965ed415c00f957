package client

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/zamokpb"
	"zamok/clock"
)

// manualClock is a clock that moves only when it is advanced.
type manualClock struct {
	mu  sync.Mutex
	now clock.Instant // guarded by mu
}

func (m *manualClock) Now() clock.Instant {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

func (m *manualClock) Advance(s clock.Span) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = m.now.Add(s)
}

// bare is a session without goroutines and without a network: what it would say is looked at, and
// what it receives is sent by the test.
type bare struct {
	*testing.T
	*session
	st      *stream
	clock   *manualClock
	time    clock.Time // the cluster's
	changes uint64
}

func newBare(t *testing.T) *bare {
	manual := &manualClock{}
	manual.Advance(clock.Hour)
	c := &Client{cfg: Config{TTL: DefaultTTL, RequestTimeout: time.Minute}, clock: manual,
		nodes: &nodes{}}
	b := &bare{T: t, clock: manual, time: clock.Time(clock.Minute)}
	b.session = &session{
		c: c, state: opening, kick: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		ttl: 10 * clock.Second, nextTicket: 1,
		tickets: map[uint64]*ticket{}, completed: map[uint64]bool{}, holds: map[*ticket]struct{}{},
	}
	b.session.ctx, b.session.cancel = context.WithCancelCause(t.Context())
	b.drawRenewal()
	b.attach(nil)
	return b
}

// attach is a SessionState on a new stream, with these tickets.
func (b *bare) attach(tickets []*zamokpb.TicketState) {
	b.st = &stream{s: b.session, node: &node{}}
	b.st.ctx, b.st.cancel = context.WithCancelCause(b.session.ctx)
	b.changes = 0
	b.mu.Lock()
	defer b.mu.Unlock()
	b.become(streamBroke)
	sent := b.openFrame().Sent
	b.applySessionState(b.st,
		&zamokpb.SessionState{Session: 7, Attachment: 9, Ttl: int64(b.ttl), Sent: sent,
			Time: int64(b.time), Tickets: tickets})
}

// breaks ends the stream.
func (b *bare) breaks() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.become(streamBroke)
	b.stream = nil
}

func (b *bare) pass(d clock.Span) {
	b.clock.Advance(d)
	b.time = b.time.Add(d)
	b.renewalTick()
}

func (b *bare) receive(m *zamokpb.ServerMessage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.apply(b.st, m)
}

// sends waits until the session has something to send, and returns that.
func (b *bare) sends() (sent []string) {
	for sent, _ = b.outgoing(); len(sent) == 0; sent, _ = b.outgoing() {
		<-b.wake
	}
	return sent
}

func state(number uint64, s zamokpb.State, reason zamokpb.Reason) *zamokpb.TicketState {
	st := &zamokpb.TicketState{Ticket: number, State: s, Reason: reason}
	if s == zamokpb.State_STATE_GRANTED {
		st.Token = 1000 + number
	}
	return st
}

const (
	waiting = zamokpb.State_STATE_WAITING
	granted = zamokpb.State_STATE_GRANTED
	over    = zamokpb.State_STATE_ENDED
)

func (b *bare) push(st *zamokpb.TicketState) {
	b.changes++
	b.receive(&zamokpb.ServerMessage{
		Message: &zamokpb.ServerMessage_Change{
			Change: &zamokpb.Change{State: st, Number: b.changes}}})
}

func (b *bare) reply(st *zamokpb.TicketState, code zamokpb.Code, outcome zamokpb.Outcome) {
	a := &zamokpb.Answer{Command: zamokpb.Command_COMMAND_ACQUIRE, State: st}
	if code != zamokpb.Code_CODE_OK {
		a.Error = &zamokpb.ErrorInfo{Code: code, Outcome: outcome}
	}
	b.receive(&zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Answer{Answer: a}})
}

func (b *bare) confirm(frame *zamokpb.ClientFrame) {
	b.receive(&zamokpb.ServerMessage{
		Message: &zamokpb.ServerMessage_KeepAliveAck{KeepAliveAck: &zamokpb.KeepAliveAck{
			Sent: frame.Sent, Time: int64(b.time), Changes: b.changes}}})
}

// outgoing is what the session would send: "acquire 1", "drop 2", …
func (b *bare) outgoing() (sent []string, frame *zamokpb.ClientFrame) {
	for f := b.compose(); f != nil; f = b.compose() {
		frame = f
		for _, m := range f.Messages {
			switch m := m.Message.(type) {
			case *zamokpb.ClientMessage_Acquire:
				sent = append(sent, "acquire "+decimal(m.Acquire.Ticket))
			case *zamokpb.ClientMessage_Drop:
				sent = append(sent, "drop "+decimal(m.Drop.Ticket))
			case *zamokpb.ClientMessage_Downgrade:
				sent = append(sent, "downgrade "+decimal(m.Downgrade.Ticket))
			case *zamokpb.ClientMessage_KeepAlive:
				sent = append(sent, "alive")
			}
		}
	}
	return sent, frame
}

func decimal(n uint64) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return decimal(n/10) + decimal(n%10)
}

func (b *bare) requests(n int) (all []*ticket) {
	for range n {
		all = append(all, b.enqueue(newRequest([]Item{ExclusiveItem("x")}, nil)))
	}
	return all
}

// hand is what the caller of a ticket would get now.
func (b *bare) hand(t *ticket) *Lock {
	b.mu.Lock()
	defer b.mu.Unlock()
	return t.handOver(b.clock.Now())
}

func (b *bare) leaves(t *ticket) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t.giveUp(nil)
}

func TestTicketsBeyondTheWindowWait(t *testing.T) {
	b := newBare(t)
	b.requests(window + 50)
	sent, _ := b.outgoing()
	require.Len(t, sent, window)
	require.Equal(t, "acquire 1", sent[0])
	require.Equal(t, "acquire 1024", sent[window-1])
	b.reply(state(2, waiting, 0), 0, 0)
	sent, _ = b.outgoing()
	require.Empty(t, sent, "acknowledged-through moves without gaps")
	b.reply(state(1, waiting, 0), 0, 0)
	sent, frame := b.outgoing()
	require.Equal(t, []string{"acquire 1025", "acquire 1026"}, sent)
	require.EqualValues(t, 2, frame.AckedThrough)
}

func TestWhatWasNotSentIsForgottenWithoutAWord(t *testing.T) {
	b := newBare(t)
	all := b.requests(3)
	b.leaves(all[1])
	sent, _ := b.outgoing()
	require.Equal(t, []string{"acquire 1", "acquire 2"}, sent,
		"numbers are given when they are sent")
	require.EqualValues(t, 2, all[2].number)
	for _, t := range b.requests(500) {
		b.leaves(t)
	}
	require.Less(t, b.unsent.Len(), 500, "and does not pile up")
	sent, _ = b.outgoing()
	require.Empty(t, sent)
}

func TestTheFurtherStateWins(t *testing.T) {
	b := newBare(t)
	one := b.requests(1)[0]
	b.outgoing()
	b.push(state(1, granted, 0))
	b.reply(state(1, waiting, 0), 0, 0)
	l := b.hand(one)
	require.NotNil(t, l)
	require.EqualValues(t, 1001, l.Token())
	b.push(state(1, over, zamokpb.Reason_REASON_FORCE_RELEASED))
	require.ErrorIs(t, l.Err(), ErrForceReleased)
	b.attach([]*zamokpb.TicketState{state(1, granted, 0)})
	require.ErrorIs(t, l.Err(), ErrLost)
	sent, _ := b.outgoing()
	require.Equal(t, []string{"drop 1"}, sent, "an unknown grant must not hold anything")
}

func TestLostIsFinalAndDroppedFirst(t *testing.T) {
	b := newBare(t)
	all := b.requests(3)
	b.outgoing()
	b.push(state(2, granted, 0))
	b.reply(state(1, waiting, 0), 0, 0)
	l := b.hand(all[1])
	require.NoError(t, l.Err())
	b.pass(9400 * clock.Millisecond)
	require.NoError(t, l.Err())
	ctx := l.Context()
	b.pass(100 * clock.Millisecond)
	require.ErrorIs(t, context.Cause(ctx), ErrLost, "a look at the clocks is enough")
	sent, _ := b.outgoing()
	require.Contains(t, sent, "drop 2", "at once, if anybody listens")
	b.requests(1)
	b.attach([]*zamokpb.TicketState{state(1, waiting, 0), state(2, granted, 0)})
	require.ErrorIs(t, l.Err(), ErrLost)
	sent, _ = b.outgoing()
	require.Equal(t, []string{"drop 2", "acquire 3", "acquire 4"}, sent)
	b.attach([]*zamokpb.TicketState{state(1, waiting, 0), state(2, granted, 0),
		state(3, waiting, 0), state(4, waiting, 0)})
	sent, _ = b.outgoing()
	require.Equal(t, []string{"drop 2"}, sent, "until the cluster confirms")
	b.push(state(2, over, zamokpb.Reason_REASON_DROPPED))
	b.attach([]*zamokpb.TicketState{state(1, granted, 0), state(3, waiting, 0),
		state(4, waiting, 0)})
	sent, _ = b.outgoing()
	require.Empty(t, sent)
	require.NotNil(t, b.hand(all[0]), "who waits keeps its place")
}

// slowTimers is the clock of a machine whose timers are a tenth slow.
type slowTimers struct {
	clock.Source
	began time.Time
}

func (s slowTimers) Now() clock.Instant {
	passed := clock.FromDuration(time.Since(s.began))
	return s.Source.Now().Add(passed * clock.BendDivisor / (clock.BendDivisor - 1))
}

// A time service may slow the clock that timers run on. The margin is not for that.
func TestLostClosesInTimeWithSlowTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for i := range 10 { // at different moments between two looks at the clocks
			b := newBare(t)
			all := b.requests(1)
			b.outgoing()
			b.push(state(1, granted, 0))
			l := b.hand(all[0])
			b.c.clock = slowTimers{b.clock, time.Now()}
			time.Sleep(time.Duration(i) * 10 * time.Millisecond)
			go b.renewalLoop()
			<-l.Lost()
			until, _ := b.lease.Until()
			require.Less(t, b.c.clock.Now().Since(until), 2*clock.Millisecond)
			b.session.cancel(nil)
		}
	})
}

func TestAGrantWithoutAValidLeaseWaitsForAConfirmation(t *testing.T) {
	b := newBare(t)
	all := b.requests(1)
	_, frame := b.outgoing()
	b.confirm(frame)
	b.pass(9500 * clock.Millisecond)
	b.push(state(1, granted, 0))
	require.Nil(t, b.hand(all[0]), "a push proves nothing")
	changed := all[0].changes()
	sent, frame := b.outgoing()
	require.Equal(t, []string{"alive"}, sent)
	b.confirm(frame)
	select {
	case <-changed:
	default:
		t.Fatal("the caller is not notified")
	}
	require.NotNil(t, b.hand(all[0]))
}

// A frame of an earlier stream may come to the node late, when its ticket was given up as refused.
func TestAnUnknownGrantIsDropped(t *testing.T) {
	b := newBare(t)
	one := b.requests(1)[0]
	b.outgoing()
	b.reply(state(1, 0, 0), zamokpb.Code_CODE_DENIED, zamokpb.Outcome_OUTCOME_NOT_DONE)
	require.ErrorIs(t, one.failure, ErrDenied)
	b.push(state(1, granted, 0))
	sent, _ := b.outgoing()
	require.Equal(t, []string{"drop 1"}, sent)
	b.attach([]*zamokpb.TicketState{state(1, granted, 0)})
	sent, _ = b.outgoing()
	require.Equal(t, []string{"drop 1"}, sent, "until the cluster confirms")
	b.push(state(1, over, zamokpb.Reason_REASON_DROPPED))
	require.Empty(t, b.tickets)
}

func TestWhatTheLeaderCouldNotTakeIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBare(t)
		one := b.requests(1)[0]
		for _, code := range []zamokpb.Code{zamokpb.Code_CODE_OVERLOADED,
			zamokpb.Code_CODE_UNKNOWN} {
			require.Equal(t, []string{"acquire 1"}, b.sends())
			refused := time.Now()
			b.reply(state(1, 0, 0), code, zamokpb.Outcome_OUTCOME_UNKNOWN)
			sent, _ := b.outgoing()
			require.Empty(t, sent, "not at once")
			require.NoError(t, one.failure)
			require.Equal(t, []string{"acquire 1"}, b.sends())
			require.Equal(t, retryAfter, time.Since(refused))
			b.reply(state(1, 0, 0), code, zamokpb.Outcome_OUTCOME_UNKNOWN)
		}
		b.leaves(one)
		require.Equal(t, []string{"drop 1"}, b.sends(), "it may have been done")
	})
}

// What was refused for the moment on an earlier stream is sent on the next one at once, and once.
func TestARefusalOfAnEarlierStreamIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBare(t)
		b.requests(1)
		b.sends()
		b.reply(state(1, 0, 0), zamokpb.Code_CODE_OVERLOADED, zamokpb.Outcome_OUTCOME_NOT_DONE)
		b.breaks()
		b.attach(nil)
		require.Equal(t, []string{"acquire 1"}, b.sends())
		time.Sleep(2 * retryAfter)
		sent, _ := b.outgoing()
		require.Empty(t, sent)
	})
}

// What a newer server says and this client does not know ends the call: the call must not be
// repeated again and again.
func TestAnUnknownReasonIsAnErrorAtOnce(t *testing.T) {
	b := newBare(t)
	all := b.requests(3)
	b.outgoing()
	b.reply(state(1, 0, 0), 999, zamokpb.Outcome_OUTCOME_NOT_DONE)
	b.reply(state(2, 0, 0), 999, zamokpb.Outcome_OUTCOME_UNKNOWN)
	b.push(state(3, over, 999))
	for _, one := range all {
		require.ErrorIs(t, one.failure, ErrRefused)
		require.ErrorContains(t, one.failure, "999, which this client does not know")
		require.NotErrorIs(t, one.failure, errRetryInNewSession)
	}
	require.ErrorAs(t, all[1].failure, new(*UnconfirmedError))
	for code := range zamokpb.Code_name {
		require.Contains(t, kinds, zamokpb.Code(code), "a code that kinds leaves out")
	}
	for reason, name := range zamokpb.Reason_name {
		one := b.requests(1)[0]
		b.outgoing()
		b.push(state(one.number, over, zamokpb.Reason(reason)))
		require.NotErrorIs(t, one.failure, ErrRefused, "%s: a reason that gone leaves out", name)
	}
}

// An operator may release a lock by force before it is handed over.
func TestALockerGoesOnAfterAForcedRelease(t *testing.T) {
	b := newBare(t)
	one := b.requests(1)[0]
	b.outgoing()
	b.push(state(1, granted, 0))
	b.push(state(1, over, zamokpb.Reason_REASON_FORCE_RELEASED))
	require.ErrorIs(t, one.failure, ErrForceReleased)
	require.True(t, isTransient(one.failure))
}

func TestAMissingTicketBelowTheFloorIsGone(t *testing.T) {
	b := newBare(t)
	all := b.requests(2)
	b.outgoing()
	b.push(state(1, granted, 0))
	b.reply(state(2, waiting, 0), 0, 0)
	l := b.hand(all[0])
	b.attach(nil)
	require.ErrorIs(t, l.Err(), ErrLost)
	require.ErrorIs(t, all[1].failure, errRetryInNewSession)
	require.Empty(t, b.tickets)
}

func TestAGapInTheChangesEndsTheStream(t *testing.T) {
	b := newBare(t)
	all := b.requests(3)
	b.outgoing()
	b.push(state(1, granted, 0))
	b.changes++ // one is lost, the next comes
	b.push(state(3, granted, 0))
	require.ErrorIs(t, context.Cause(b.st.ctx), errMissing)
	require.Nil(t, b.hand(all[2]), "nothing after a gap counts")

	b.attach([]*zamokpb.TicketState{state(1, granted, 0), state(2, granted, 0),
		state(3, granted, 0)})
	require.NotNil(t, b.hand(all[1]))
	b.changes++ // the last one is lost
	b.keepAliveDue = true
	_, frame := b.outgoing()
	b.confirm(frame)
	require.ErrorIs(t, context.Cause(b.st.ctx), errMissing)
}

func TestEveryCodeHasAnError(t *testing.T) {
	again := map[string]bool{"CODE_OK": true, "CODE_NOT_LEADER": true, "CODE_OVERLOADED": true,
		"CODE_UNKNOWN":    true,
		"CODE_SUPERSEDED": true, "CODE_SLOW_READER": true, "CODE_STOPPING": true}
	for number, name := range zamokpb.Code_name {
		err := errorOf(&zamokpb.ErrorInfo{Code: zamokpb.Code(number), Message: "why",
			Outcome: zamokpb.Outcome_OUTCOME_NOT_DONE})
		if again[name] {
			assert.NoError(t, err, name)
			continue
		}
		assert.Error(t, err, name)
		if name != "CODE_DEADLOCK" { // which has the cycle instead
			assert.Contains(t, err.Error(), "why", name)
		}
	}
}

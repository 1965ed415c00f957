package client

import (
	"context"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/api/zamokpb"
)

// tableIn reads the transition table in a file's comments: from state and event to the next state,
// without the "-".
func tableIn(t *testing.T, file string) (events, states []string, next map[[2]string]string) {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	require.NoError(t, err)
	next = map[[2]string]string{}
	for _, group := range f.Comments {
		for line := range strings.Lines(group.Text()) {
			cells := strings.Split(line, "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			switch {
			case len(cells) == 1:
			case events == nil:
				events = cells[1:]
			default:
				states = append(states, cells[0])
				for i, to := range cells[1:] {
					if to != "-" {
						next[[2]string{cells[0], events[i]}] = to
					}
				}
			}
		}
	}
	require.NotEmpty(t, next)
	return events, states, next
}

// requireTable compares the table in a file's comments with the code: its headings, its rows and
// every cell.
func requireTable(t *testing.T, file string, wantEvents, wantStates []string,
	after func(state, event int) int) {
	events, states, next := tableIn(t, file)
	require.Equal(t, wantEvents, events)
	require.Equal(t, wantStates, states)
	for i, from := range states {
		for j, event := range events {
			want := 0
			if to, ok := next[[2]string{from, event}]; ok {
				require.Contains(t, states, to, "%s, %s", from, event)
				want = slices.Index(states, to) + 1
			}
			require.Equal(t, want, after(i+1, j), "%s, %s", from, event)
		}
	}
}

func TestTicketTransitions(t *testing.T) {
	events := [ticketEvents]string{send: "send", onWaiting: "onWaiting", onGranted: "onGranted",
		handOver: "handOver", giveUp: "giveUp", onEnded: "onEnded", sessionEnd: "sessionEnd"}
	states := [...]string{ticketUnsent: "unsent", ticketRequested: "requested",
		ticketWaiting: "waiting",
		ticketGranted: "granted", ticketHeld: "held", ticketReleasing: "releasing",
		ticketEnded:       "ended",
		ticketUnconfirmed: "unconfirmed"}
	requireTable(t, "ticketstate.go", events[:], states[1:], func(state, event int) int {
		return int(ticketState(state).after(ticketEvent(event)))
	})
}

func TestConnectionTransitions(t *testing.T) {
	events := [connectionEvents]string{openSent: "openSent", openRefused: "openRefused",
		attach:      "attach",
		streamBroke: "streamBroke", endConfirmed: "endConfirmed", abort: "abort"}
	states := [...]string{unopened: "unopened", opening: "opening", attached: "attached",
		detached:     "detached",
		sessionEnded: "sessionEnded", sessionAborted: "sessionAborted"}
	requireTable(t, "connectionstate.go", events[:], states[1:], func(state, event int) int {
		return int(connectionState(state).after(connectionEvent(event)))
	})
}

// ticketEventsOf are what makes each event happen to a ticket, as a session does it.
func ticketEventsOf(b *bare, one *ticket) map[ticketEvent]func() {
	return map[ticketEvent]func(){
		send:       func() { b.outgoing() },
		onWaiting:  func() { b.reply(state(one.number, waiting, 0), 0, 0) },
		onGranted:  func() { b.push(state(one.number, granted, 0)) },
		handOver:   func() { b.hand(one) },
		giveUp:     func() { b.leaves(one) },
		onEnded:    func() { b.push(state(one.number, over, zamokpb.Reason_REASON_EXPIRED)) },
		sessionEnd: func() { b.end(errTakenOver) },
	}
}

// Walked from each state with each event, as frames and calls bring them, a ticket does what the
// table says, and the counts that hang on its state are right.
func TestTicketWalksItsTransitions(t *testing.T) {
	paths := map[ticketState][]ticketEvent{
		ticketUnsent:      {},
		ticketRequested:   {send},
		ticketWaiting:     {send, onWaiting},
		ticketGranted:     {send, onWaiting, onGranted},
		ticketHeld:        {send, onGranted, handOver},
		ticketReleasing:   {send, onGranted, handOver, giveUp},
		ticketEnded:       {send, onGranted, onEnded},
		ticketUnconfirmed: {send, onGranted, handOver, sessionEnd},
	}
	for from, path := range paths {
		for event := range ticketEvents {
			if from == ticketUnsent && event == onEnded {
				continue // the cluster can't name it
			}
			b := newBare(t)
			one := b.requests(1)[0]
			happens := ticketEventsOf(b, one)
			for _, e := range path {
				happens[e]()
			}
			require.Equal(t, from, one.state, "the way there")
			happens[event]()
			want := from
			if next := from.after(event); next != 0 {
				want = next
			}
			require.Equal(t, want, one.state, "state %d, event %d", from, event)
			require.True(t, want.final() || event != onEnded && event != sessionEnd,
				"no state outlives its end")
			require.True(t, want >= ticketReleasing || event != giveUp,
				"what was given up is not held")
			require.Equal(t, want == ticketHeld, b.heldCount == 1, "state %d, event %d",
				from, event)
			if one.handle != nil {
				require.Equal(t, want == ticketHeld || from == ticketHeld && event == giveUp ||
					from == ticketReleasing, one.failure == nil,
					"a handle learns of its loss: state %d, event %d", from, event)
			}
			known := b.tickets[one.number] == one
			require.Equal(t, want != ticketUnsent && !want.final(), known, "state %d, event %d",
				from, event)
		}
	}
}

// A ticket that ended after it was queued sends nothing: an empty message would end the stream.
func TestAnEndedTicketSendsNothing(t *testing.T) {
	for _, queue := range []func(b *bare, one *ticket){
		func(b *bare, one *ticket) { b.leaves(one) },
		func(b *bare, one *ticket) { one.downgrade = downgradeRequested; b.queueOut(one) },
	} {
		b := newBare(t)
		one := b.requests(1)[0]
		b.outgoing()
		b.push(state(1, granted, 0))
		require.NotNil(t, b.hand(one))
		queue(b, one)
		b.push(state(1, over, zamokpb.Reason_REASON_FORCE_RELEASED))
		require.Nil(t, b.compose())
	}
}

// A wait that is cancelled before it was sent is not acquired: the cluster answers, so it is not
// unavailable.
func TestAnUnsentWaitThatIsCancelledIsNotAcquired(t *testing.T) {
	b := newBare(t)
	one := b.requests(1)[0]
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := one.wait(ctx, one.request)
	require.ErrorIs(t, err, ErrNotAcquired)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, ErrUnavailable)
}

// Walked from each state with each event, the session does what the table says, and its end ends
// its tickets: in the cluster, or here without the cluster's word.
func TestConnectionWalksItsTransitions(t *testing.T) {
	happens := func(b *bare, e connectionEvent) {
		switch e {
		case attach:
			if b.state.after(attach) != 0 { // no SessionState comes otherwise
				b.attach(nil)
			}
		case streamBroke:
			b.breaks()
		case endConfirmed:
			b.receive(&zamokpb.ServerMessage{
				Message: &zamokpb.ServerMessage_SessionEnded{SessionEnded: &zamokpb.SessionEnded{
					Reason: zamokpb.Reason_REASON_EXPIRED}}})
		case abort:
			b.end(errTakenOver)
		default:
			b.mu.Lock()
			defer b.mu.Unlock()
			b.become(e)
		}
	}
	for from, path := range map[connectionState][]connectionEvent{
		unopened:       {},
		opening:        {openSent},
		attached:       {openSent, attach},
		detached:       {openSent, attach, streamBroke},
		sessionEnded:   {openSent, attach, endConfirmed},
		sessionAborted: {openSent, attach, abort},
	} {
		for event := range connectionEvents {
			b := newBare(t)
			b.breaks()
			b.state = unopened
			for _, e := range path {
				happens(b, e)
			}
			require.Equal(t, from, b.state, "the way there")
			one := b.requests(1)[0]
			sent := from == attached || from == detached
			if sent {
				b.outgoing()
			}
			happens(b, event)
			want := from
			if next := from.after(event); next != 0 {
				want = next
			}
			require.Equal(t, want, b.state, "state %d, event %d", from, event)
			require.True(t, want.over() || event != endConfirmed && event != abort,
				"no state outlives its end")
			require.Equal(t, want == attached, b.stream != nil, "state %d, event %d", from, event)
			switch {
			case want.over():
				require.Error(t, b.ctx.Err())
				require.Equal(t, sent && want == sessionAborted, one.state == ticketUnconfirmed,
					"state %d, event %d", from, event)
				require.True(t, one.state.final())
			case sent:
				require.Equal(t, ticketRequested, one.state)
			default:
				require.Equal(t, ticketUnsent, one.state)
			}
		}
	}
}

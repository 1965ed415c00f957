package client

import (
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/api/zamokpb"
	"zamok/clock"
)

// tableIn reads the transition table in a file's comments: from state and event to the next state, without the "-".
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

// The table in the comment is what the code does, for every pair of a state and an event.
func TestTicketTransitions(t *testing.T) {
	events, states, next := tableIn(t, "ticketstate.go")
	require.Len(t, events, int(ticketEvents))
	require.Len(t, states, int(ticketUnconfirmed))
	for i, from := range states {
		for j, event := range events {
			want := ticketState(0)
			for k, to := range states {
				if next[[2]string{from, event}] == to {
					want = ticketState(k + 1)
				}
			}
			require.Equal(t, want, ticketState(i+1).after(ticketEvent(j)), "%s, %s", from, event)
		}
	}
}

func TestConnectionTransitions(t *testing.T) {
	events, states, next := tableIn(t, "connectionstate.go")
	require.Len(t, events, int(connectionEvents))
	require.Len(t, states, int(sessionAborted))
	for i, from := range states {
		for j, event := range events {
			want := connectionState(0)
			for k, to := range states {
				if next[[2]string{from, event}] == to {
					want = connectionState(k + 1)
				}
			}
			require.Equal(t, want, connectionState(i+1).after(connectionEvent(j)), "%s, %s", from, event)
		}
	}
}

// ticketEventsOf are what makes each event happen to a ticket, as a session does it.
func ticketEventsOf(b *bare, one *ticket) map[ticketEvent]func() {
	return map[ticketEvent]func(){
		send:          func() { b.says() },
		reportWaiting: func() { b.reply(state(one.number, waiting, 0), 0, 0) },
		reportGranted: func() { b.push(state(one.number, granted, 0)) },
		handOver:      func() { b.hand(one) },
		giveUp:        func() { b.leaves(one) },
		reportEnded:   func() { b.push(state(one.number, over, zamokpb.Reason_REASON_EXPIRED)) },
		sessionEnd:    func() { b.end(errTakenOver()) },
	}
}

// Walked from each state with each event, as frames and calls bring them, a ticket does what the table says, and the
// counts that hang on its state are right.
func TestTicketWalksItsTransitions(t *testing.T) {
	paths := map[ticketState][]ticketEvent{
		ticketUnsent:      {},
		ticketRequested:   {send},
		ticketWaiting:     {send, reportWaiting},
		ticketGranted:     {send, reportWaiting, reportGranted},
		ticketHeld:        {send, reportGranted, handOver},
		ticketReleasing:   {send, reportGranted, handOver, giveUp},
		ticketEnded:       {send, reportGranted, reportEnded},
		ticketUnconfirmed: {send, reportGranted, handOver, sessionEnd},
	}
	for from, path := range paths {
		for event := range ticketEvents {
			if from == ticketUnsent && event == reportEnded {
				continue // the cluster can't name it
			}
			b := newBare(t)
			one := b.asks(1)[0]
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
			require.Equal(t, want == ticketHeld, b.heldCount == 1, "state %d, event %d", from, event)
			if one.handle != nil {
				require.Equal(t, want == ticketHeld || from == ticketHeld && event == giveUp || from == ticketReleasing, one.failure == nil,
					"a handle learns of its loss: state %d, event %d", from, event)
			}
			known := b.tickets[one.number] == one
			require.Equal(t, want != ticketUnsent && !want.final(), known, "state %d, event %d", from, event)
		}
	}
}

// A ticket that ended after it was queued sends nothing: an empty message would end the stream.
func TestAnEndedTicketSendsNothing(t *testing.T) {
	for _, queue := range []func(b *bare, one *ticket){
		func(b *bare, one *ticket) { b.leaves(one) },
		func(b *bare, one *ticket) { one.downgrade = asked; b.queueOut(one) },
	} {
		b := newBare(t)
		one := b.asks(1)[0]
		b.says()
		b.push(state(1, granted, 0))
		require.NotNil(t, b.hand(one))
		queue(b, one)
		b.push(state(1, over, zamokpb.Reason_REASON_REVOKED))
		require.Nil(t, b.compose())
	}
}

// A session keeps its state through broken streams, and its end is final, with the cluster's word or without.
func TestConnectionWalksItsTransitions(t *testing.T) {
	b := newBare(t)
	require.Equal(t, attached, b.state)
	b.breaks()
	require.Equal(t, detached, b.state)
	b.attach(nil)
	require.Equal(t, attached, b.state)
	one := b.asks(1)[0]
	b.says()
	b.tell(&zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_SessionEnded{SessionEnded: &zamokpb.SessionEnded{
		Reason: zamokpb.Reason_REASON_EXPIRED}}})
	require.Equal(t, sessionEnded, b.state)
	require.Equal(t, ticketEnded, one.state)
	b.end(errTakenOver())
	require.Equal(t, sessionEnded, b.state, "the cluster's word stands")
	b.pass(clock.Minute)

	b = newBare(t)
	one = b.asks(1)[0]
	b.says()
	b.end(errTakenOver())
	require.Equal(t, sessionAborted, b.state)
	require.Equal(t, ticketUnconfirmed, one.state)
}

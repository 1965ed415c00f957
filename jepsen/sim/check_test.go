package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

// A checker that never complains is worse than none: each must find what was planted.

var (
	one = fsm.TicketRef{Session: 10, Ticket: 1}
	two = fsm.TicketRef{Session: 11, Ticket: 1}
)

func item(name string, mode fsm.Mode) []fsm.Item { return []fsm.Item{{Name: name, Mode: mode}} }

func granted(ref fsm.TicketRef, token uint64, items []fsm.Item) fsm.Event {
	return fsm.Event{Index: token, Kind: fsm.EvGranted, TicketRef: ref, Token: token, Items: items}
}

func released(ref fsm.TicketRef, index, token uint64) fsm.Event {
	return fsm.Event{Index: index, Kind: fsm.EvReleased, TicketRef: ref, Token: token, Reason: fsm.Dropped}
}

func ended(id uint64, index uint64) fsm.Event {
	return fsm.Event{Index: index, Kind: fsm.EvEnded, TicketRef: fsm.TicketRef{Session: session.ID(id)}, Reason: fsm.Expired}
}

// log makes an entry of each event, a second apart.
func log(events ...fsm.Event) []Effect {
	var entries []Effect
	for i, ev := range events {
		entries = append(entries, Effect{
			Applied: fsm.Applied{Index: ev.Index, Stamp: clock.Stamp{Term: 2, Index: ev.Index}, Events: []fsm.Event{ev}},
			At:      time.Duration(i+1) * time.Second,
		})
	}
	return entries
}

func TestTheLogIsCheckedForWhatMustNotBe(t *testing.T) {
	x := item("x", fsm.Exclusive)
	permits := func(n uint32) []fsm.Item {
		return []fsm.Item{{Name: "p", Mode: fsm.Permits, Permits: n, Limit: 3}}
	}
	assert.Empty(t, checkLog(log(granted(one, 20, x), released(one, 21, 20), granted(two, 22, x), ended(10, 23))))
	assert.Empty(t, checkLog(log(granted(one, 20, item("x", fsm.Shared)), granted(two, 21, item("x", fsm.Shared)))))
	assert.Empty(t, checkLog(log(granted(one, 20, permits(1)), granted(two, 21, permits(2)))))
	for what, bad := range map[string][]fsm.Event{
		"two holders":             {granted(one, 20, x), granted(two, 21, x)},
		"a reader and a writer":   {granted(one, 20, x), granted(two, 21, item("x", fsm.Shared))},
		"too many permits":        {granted(one, 20, permits(2)), granted(two, 21, permits(2))},
		"a token that falls":      {granted(one, 20, x), released(one, 21, 20), granted(two, 19, x)},
		"a grant to the dead":     {ended(10, 20), granted(one, 21, x)},
		"a ticket granted twice":  {granted(one, 20, x), granted(one, 21, item("y", fsm.Exclusive))},
		"a grant after its end":   {released(one, 20, 0), granted(one, 21, x)},
		"an end with other token": {granted(one, 20, x), released(one, 21, 19)},
		"a ticket that outlives":  {granted(one, 20, x), ended(10, 21)},
		"a session ended twice":   {ended(10, 20), ended(10, 21)},
	} {
		assert.NotEmpty(t, checkLog(log(bad...)), what)
	}
}

// told is an acquisition's answer.
func told(ref fsm.TicketRef, state fsm.State, token, index uint64) Op {
	return Op{
		Kind: OpAcquire, Ref: ref, Outcome: Done, answers: 1, Sent: time.Second, Back: time.Second,
		Answer: raftnode.Answer{
			Result: fsm.Result{Index: index, State: state, Token: token, Session: ref.Session, TTL: 5 * clock.Second},
			Stamp:  clock.Stamp{Term: 2, Index: index},
		},
	}
}

func TestAnswersAreCheckedAgainstTheLog(t *testing.T) {
	x := item("x", fsm.Exclusive)
	there := log(granted(one, 20, x), released(one, 25, 20))
	assert.Empty(t, checkAnswers([]Op{told(one, fsm.Granted, 20, 20)}, there))
	refused, dropped := told(one, 0, 0, 0), told(one, fsm.Ended, 20, 25)
	refused.Outcome, dropped.Kind = NotDone, OpDrop
	assert.Empty(t, checkAnswers([]Op{dropped}, there))
	twice, never, renewed := told(one, fsm.Granted, 20, 20), told(one, fsm.Granted, 20, 20), told(one, 0, 0, 30)
	twice.answers, never.answers, renewed.Kind = 2, 0, OpRenew
	early := dropped
	early.Answer.Result.Index = 22
	for what, bad := range map[string]struct {
		op  Op
		log []Effect
	}{
		"a grant that is not there":      {told(one, fsm.Granted, 20, 20), nil},
		"a grant with another token":     {told(one, fsm.Granted, 19, 20), there},
		"a grant that is over":           {told(one, fsm.Granted, 20, 26), there},
		"waiting, and granted already":   {told(one, fsm.Waiting, 0, 21), there},
		"refused, and done":              {refused, there},
		"two answers":                    {twice, there},
		"no answer":                      {never, there},
		"a renewal of the dead":          {renewed, log(ended(10, 29))},
		"dropped, and it goes on":        {early, there},
		"an answer to a session's ghost": {told(one, fsm.Waiting, 0, 30), log(ended(10, 29))},
	} {
		assert.NotEmpty(t, checkAnswers([]Op{bad.op}, bad.log), what)
	}
}

func TestLeasesThatEndEarlyAreFound(t *testing.T) {
	op := told(one, fsm.Granted, 20, 20) // sent after a second; its ttl is five
	late := log(granted(one, 20, nil), ended(10, 30))
	late[1].At = 6 * time.Second
	assert.Empty(t, checkLeases([]Op{op}, late))
	late[1].At -= time.Nanosecond
	assert.NotEmpty(t, checkLeases([]Op{op}, late))
}

func TestBeliefsThatOverlapAreFound(t *testing.T) {
	belief := func(ref fsm.TicketRef, items []fsm.Item, from, to int) Belief {
		return Belief{Ref: ref, Items: items, From: time.Duration(from), To: time.Duration(to)}
	}
	x, shared := item("x", fsm.Exclusive), item("x", fsm.Shared)
	assert.Empty(t, checkBeliefs([]Belief{belief(one, x, 10, 20), belief(two, x, 20, 30)}))
	assert.Empty(t, checkBeliefs([]Belief{belief(one, shared, 10, 20), belief(two, shared, 15, 30)}))
	assert.NotEmpty(t, checkBeliefs([]Belief{belief(one, x, 10, 20), belief(two, x, 19, 30)}))
	assert.NotEmpty(t, checkBeliefs([]Belief{belief(one, x, 10, 20), belief(two, shared, 15, 16)}))
	permits := []fsm.Item{{Name: "p", Mode: fsm.Permits, Permits: 2, Limit: 3}}
	assert.NotEmpty(t, checkBeliefs([]Belief{belief(one, permits, 10, 20), belief(two, permits, 15, 16)}))
}

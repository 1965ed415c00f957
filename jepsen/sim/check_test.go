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
	sessionOne = fsm.TicketRef{Session: 10, Ticket: 1}
	sessionTwo = fsm.TicketRef{Session: 11, Ticket: 1}
)

func item(name string, mode fsm.Mode) []fsm.Item { return []fsm.Item{{Name: name, Mode: mode}} }

func granted(ref fsm.TicketRef, token uint64, items []fsm.Item) fsm.Event {
	return fsm.Event{Index: token, Kind: fsm.EvGranted, TicketRef: ref, Token: token, Items: items}
}

func released(ref fsm.TicketRef, index, token uint64) fsm.Event {
	return fsm.Event{Index: index, Kind: fsm.EvReleased, TicketRef: ref, Token: token, Reason: fsm.Dropped}
}

func ended(id uint64, index uint64) fsm.Event {
	return fsm.Event{Index: index, Kind: fsm.EvSessionEnded, TicketRef: fsm.TicketRef{Session: session.ID(id)}, Reason: fsm.Expired}
}

// effectLog makes an entry of each event, a second apart.
func effectLog(events ...fsm.Event) []Effect {
	var entries []Effect
	for i, ev := range events {
		entries = append(entries, Effect{
			Applied: fsm.Applied{Index: ev.Index, Stamp: clock.Stamp{Term: 2, Index: ev.Index}, Events: []fsm.Event{ev}},
			At:      time.Duration(i+1) * time.Second,
		})
	}
	return entries
}

func TestCheckLogFindsViolations(t *testing.T) {
	x := item("x", fsm.Exclusive)
	permits := func(n uint32) []fsm.Item {
		return []fsm.Item{{Name: "p", Mode: fsm.Permits, Permits: n, Limit: 3}}
	}
	assert.Empty(t, checkLog(effectLog(granted(sessionOne, 20, x), released(sessionOne, 21, 20), granted(sessionTwo, 22, x), ended(10, 23))))
	assert.Empty(t, checkLog(effectLog(granted(sessionOne, 20, item("x", fsm.Shared)), granted(sessionTwo, 21, item("x", fsm.Shared)))))
	assert.Empty(t, checkLog(effectLog(granted(sessionOne, 20, permits(1)), granted(sessionTwo, 21, permits(2)))))
	for what, bad := range map[string][]fsm.Event{
		"two holders":             {granted(sessionOne, 20, x), granted(sessionTwo, 21, x)},
		"a reader and a writer":   {granted(sessionOne, 20, x), granted(sessionTwo, 21, item("x", fsm.Shared))},
		"too many permits":        {granted(sessionOne, 20, permits(2)), granted(sessionTwo, 21, permits(2))},
		"a token that falls":      {granted(sessionOne, 20, x), released(sessionOne, 21, 20), granted(sessionTwo, 19, x)},
		"a grant to the dead":     {ended(10, 20), granted(sessionOne, 21, x)},
		"a ticket granted twice":  {granted(sessionOne, 20, x), granted(sessionOne, 21, item("y", fsm.Exclusive))},
		"a grant after its end":   {released(sessionOne, 20, 0), granted(sessionOne, 21, x)},
		"an end with other token": {granted(sessionOne, 20, x), released(sessionOne, 21, 19)},
		"a ticket that outlives":  {granted(sessionOne, 20, x), ended(10, 21)},
		"a session ended twice":   {ended(10, 20), ended(10, 21)},
	} {
		assert.NotEmpty(t, checkLog(effectLog(bad...)), what)
	}
}

// answeredOp is an acquisition's answer.
func answeredOp(ref fsm.TicketRef, state fsm.State, token, index uint64) Op {
	return Op{
		Kind: OpAcquire, Ref: ref, Outcome: Done, answerCount: 1, Sent: time.Second, Return: time.Second,
		Answer: raftnode.Answer{
			Result: fsm.Result{Index: index, State: state, Token: token, Session: ref.Session, TTL: 5 * clock.Second},
			Stamp:  clock.Stamp{Term: 2, Index: index},
		},
	}
}

func TestCheckOutcomesFindsViolations(t *testing.T) {
	x := item("x", fsm.Exclusive)
	there := effectLog(granted(sessionOne, 20, x), released(sessionOne, 25, 20))
	assert.Empty(t, checkOutcomes([]Op{answeredOp(sessionOne, fsm.Granted, 20, 20)}, there))
	refused, dropped := answeredOp(sessionOne, 0, 0, 0), answeredOp(sessionOne, fsm.Ended, 20, 25)
	refused.Outcome, dropped.Kind = NotDone, OpRelease
	assert.Empty(t, checkOutcomes([]Op{dropped}, there))
	twice, never, renewed := answeredOp(sessionOne, fsm.Granted, 20, 20), answeredOp(sessionOne, fsm.Granted, 20, 20), answeredOp(sessionOne, 0, 0, 30)
	twice.answerCount, never.answerCount, renewed.Kind = 2, 0, OpRenew
	early := dropped
	early.Answer.Result.Index = 22
	for what, bad := range map[string]struct {
		op  Op
		log []Effect
	}{
		"a grant that is not there":      {answeredOp(sessionOne, fsm.Granted, 20, 20), nil},
		"a grant with another token":     {answeredOp(sessionOne, fsm.Granted, 19, 20), there},
		"a grant that is over":           {answeredOp(sessionOne, fsm.Granted, 20, 26), there},
		"waiting, and granted already":   {answeredOp(sessionOne, fsm.Waiting, 0, 21), there},
		"refused, and done":              {refused, there},
		"two answers":                    {twice, there},
		"no answer":                      {never, there},
		"a renewal of the dead":          {renewed, effectLog(ended(10, 29))},
		"dropped, and it goes on":        {early, there},
		"an answer to a session's ghost": {answeredOp(sessionOne, fsm.Waiting, 0, 30), effectLog(ended(10, 29))},
	} {
		assert.NotEmpty(t, checkOutcomes([]Op{bad.op}, bad.log), what)
	}
}

func TestCheckLeasesFindsEarlyEnds(t *testing.T) {
	op := answeredOp(sessionOne, fsm.Granted, 20, 20) // sent after a second; its ttl is five
	late := effectLog(granted(sessionOne, 20, nil), ended(10, 30))
	late[1].At = 6 * time.Second
	assert.Empty(t, checkLeases([]Op{op}, late))
	late[1].At -= time.Nanosecond
	assert.NotEmpty(t, checkLeases([]Op{op}, late))
}

func TestCheckHoldsFindsOverlaps(t *testing.T) {
	belief := func(ref fsm.TicketRef, items []fsm.Item, from, to int) Hold {
		return Hold{Ref: ref, Items: items, From: time.Duration(from), To: time.Duration(to)}
	}
	x, shared := item("x", fsm.Exclusive), item("x", fsm.Shared)
	assert.Empty(t, checkHolds([]Hold{belief(sessionOne, x, 10, 20), belief(sessionTwo, x, 20, 30)}))
	assert.Empty(t, checkHolds([]Hold{belief(sessionOne, shared, 10, 20), belief(sessionTwo, shared, 15, 30)}))
	assert.NotEmpty(t, checkHolds([]Hold{belief(sessionOne, x, 10, 20), belief(sessionTwo, x, 19, 30)}))
	assert.NotEmpty(t, checkHolds([]Hold{belief(sessionOne, x, 10, 20), belief(sessionTwo, shared, 15, 16)}))
	permits := []fsm.Item{{Name: "p", Mode: fsm.Permits, Permits: 2, Limit: 3}}
	assert.NotEmpty(t, checkHolds([]Hold{belief(sessionOne, permits, 10, 20), belief(sessionTwo, permits, 15, 16)}))
}

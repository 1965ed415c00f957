package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/client"
)

func sec(s float64) time.Duration { return time.Duration(s*1000) * time.Millisecond }

func singleItem(name string, mode Mode) []Item { return []Item{{Name: name, Mode: mode}} }

func permits(n int) []Item { return []Item{{Name: "pool", Mode: Permits, Permits: n, Limit: 3}} }

// historyBuilder writes a history by hand.
type historyBuilder struct{ History }

// call adds a call that was made then, and came back then; 0 = never.
func (h *historyBuilder) call(op Op, call, back float64) {
	op.Call, op.Return = sec(call), sec(back)
	h.Ops = append(h.Ops, op)
}

// grant adds an acquisition that succeeded, with its hold and its event.
func (h *historyBuilder) grant(client string, ref Ref, items []Item, token uint64, call, from float64) (*Op, *Hold) {
	h.call(Op{Client: client, Kind: OpLock, Ref: ref, Items: items, Outcome: OK, Token: token}, call, from)
	h.Holds = append(h.Holds, Hold{Client: client, Ref: ref, Token: token, Items: items, From: sec(from)})
	h.event(EvGranted, ref, token, from)
	ev := &h.Events[len(h.Events)-1]
	ev.Token, ev.Items = token, items
	return &h.Ops[len(h.Ops)-1], &h.Holds[len(h.Holds)-1]
}

// unlock ends the latest hold.
func (h *historyBuilder) unlock(index uint64, call, back float64) {
	b := &h.Holds[len(h.Holds)-1]
	b.To, b.End = sec(call), Unlocked
	h.call(Op{Client: b.Client, Kind: OpUnlock, Ref: b.Ref, Outcome: OK}, call, back)
	h.event(EvReleased, b.Ref, index, back)
}

func (h *historyBuilder) event(what EventKind, ref Ref, index uint64, at float64) {
	ev := Event{Node: "n1", At: sec(at), Index: index, Kind: what, Ref: ref}
	if i := slices.IndexFunc(h.Events, func(e Event) bool { return e.Kind == EvGranted && e.Ref == ref }); i >= 0 {
		ev.Token = h.Events[i].Token
	}
	h.Events = append(h.Events, ev)
}

func (h *historyBuilder) read(op Op, index uint64, call, back float64) {
	op.Outcome, op.Term, op.Index, op.Time = OK, 2, index, sec(call)
	h.call(op, call, back)
}

// validHistory is a history with something of everything, and nothing wrong.
func validHistory() *historyBuilder {
	h := &historyBuilder{}
	h.Plan = Plan{Healed: sec(35), End: sec(60), Drain: sec(10), CompleteEvents: true, TokensAbove: 10,
		OKMin: 10, Faults: []string{"pause client"}}
	for id, client := range map[uint64]string{11: "ann", 12: "bob", 13: "eve"} {
		h.Sessions = append(h.Sessions, Session{Session: id, Client: client, TTL: sec(10)})
	}
	h.Renewals = []Renewal{{11, sec(1), sec(1.1)}, {11, sec(30.5), sec(30.6)}, {13, sec(19), sec(19.1)}}

	h.grant("ann", Ref{11, 1}, singleItem("a", Exclusive), 20, 1, 2)
	h.unlock(23, 5, 6)
	op, _ := h.grant("bob", Ref{12, 1}, singleItem("a", Exclusive), 23, 3, 6.5)
	op.Queued = sec(3.5)
	h.unlock(26, 8, 8.5)
	h.call(Op{Client: "eve", Kind: OpTryLock, Ref: Ref{13, 1}, Items: singleItem("a", Exclusive), Outcome: Refused}, 4, 4.2)
	h.read(Op{Client: "eve", Kind: OpCheck, Ref: Ref{11, 1}, Items: singleItem("a", ""), Token: 20, Held: true},
		22, 4.5, 4.8)
	h.Writes = []Write{
		{Resource: "a", Client: "ann", Token: 20, At: sec(3), Accepted: true},
		{Resource: "a", Client: "bob", Token: 23, At: sec(7), Accepted: true},
		{Resource: "a", Client: "ann", Token: 20, At: sec(7.5)},
	}
	h.read(Op{Client: "ann", Kind: OpNow}, 40, 9, 9.5)
	h.read(Op{Client: "ann", Kind: OpGet, Items: singleItem("a", "")}, 42, 10, 10.5)

	h.grant("eve", Ref{13, 2}, singleItem("b", Exclusive), 44, 12, 13) // its client dies
	h.Sessions = append(h.Sessions, Session{Session: 13, Client: "eve", TTL: sec(10), Died: sec(20)})
	h.event(EvLost, Ref{13, 2}, 50, 30)
	h.event(EvEnded, Ref{13, 0}, 50, 30)
	h.Events[len(h.Events)-1].Reason, h.Events[len(h.Events)-2].Reason = Expired, Expired
	op, _ = h.grant("bob", Ref{12, 2}, singleItem("b", Exclusive), 50, 14, 30.5)
	op.Queued = sec(14.5)
	h.unlock(52, 32, 32.5)
	op, _ = h.grant("ann", Ref{11, 5}, singleItem("b", Exclusive), 52, 15, 32.6)
	op.Queued = sec(15.5)
	h.unlock(54, 32.7, 32.8)
	h.Faults = []Fault{{Kind: "pause client", Target: "zoe", From: sec(15), To: sec(16), ExcusesClient: true}}

	_, b := h.grant("ann", Ref{11, 2}, singleItem("d", Exclusive), 60, 33, 34)
	b.To, b.End = sec(40), Lost
	h.event(EvReleased, Ref{11, 2}, 62, 41)

	_, b = h.grant("bob", Ref{12, 3}, singleItem("e", Exclusive), 70, 41, 42)
	b.Downgraded = sec(44)
	h.call(Op{Client: "bob", Kind: OpDowngrade, Ref: b.Ref, Outcome: OK}, 44, 44.5)
	h.event(EvDowngraded, b.Ref, 74, 44.4)
	h.unlock(80, 50, 50.5)
	h.grant("ann", Ref{11, 3}, singleItem("e", Shared), 74, 43, 45)
	h.unlock(78, 49, 49.5)

	h.grant("ann", Ref{11, 4}, permits(2), 82, 50, 51)
	h.unlock(88, 53, 53.5)
	h.grant("bob", Ref{12, 4}, permits(1), 84, 51, 52)
	h.unlock(90, 54, 54.5)

	h.NodeStates = []NodeState{
		{Node: "n1", At: sec(9.6), Term: 2, Index: 40, Time: sec(9), Digest: 7},
		{Node: "n2", At: sec(9.7), Term: 2, Index: 40, Time: sec(9), Digest: 7},
	}
	h.IdleCounts = []IdleCount{{Process: "n1", Counts: map[string]int64{"sessions": 0}},
		{Process: "n1", AfterLoad: true, Counts: map[string]int64{"sessions": 0}}}
	return h
}

func TestValidHistory(t *testing.T) {
	r := Check(&validHistory().History)
	require.True(t, r.OK(), "%v", r)
	for _, c := range checks() {
		assert.NotZero(t, r.Examined[c.id], c.id)
	}
	assert.Equal(t, 1, r.Outcomes[OpTryLock][Refused])
}

// find is the first record of its kind, which there must be.
func find[T any](all []T, is func(T) bool) *T { return &all[slices.IndexFunc(all, is)] }

func (h *historyBuilder) op(kind OpKind, ref Ref) *Op {
	return find(h.Ops, func(op Op) bool { return op.Kind == kind && op.Ref == ref })
}

func (h *historyBuilder) hold(ref Ref) *Hold {
	return find(h.Holds, func(b Hold) bool { return b.Ref == ref })
}

func (h *historyBuilder) eventOf(what EventKind, ref Ref) *Event {
	return find(h.Events, func(ev Event) bool { return ev.Kind == what && ev.Ref == ref })
}

// What is excused is no violation.
func TestExcusedFindings(t *testing.T) {
	for name, spoil := range map[string]func(h *historyBuilder){
		"a client believed on while it was paused": func(h *historyBuilder) {
			h.hold(Ref{11, 1}).To = sec(7)
			h.Faults = append(h.Faults, Fault{Kind: "pause client", Target: "ann", From: sec(5), To: sec(6.9),
				ExcusesClient: true})
		},
		"an operator took it": func(h *historyBuilder) {
			h.hold(Ref{11, 1}).To, h.hold(Ref{11, 1}).End, h.hold(Ref{11, 1}).Reason = sec(7), Lost, "revoked"
			h.op(OpUnlock, Ref{11, 1}).Outcome = Refused
			h.eventOf(EvReleased, Ref{11, 1}).Kind = EvLost
			h.call(Op{Client: "op", Kind: OpForceRelease, Items: singleItem("a", ""), Token: 20, Outcome: OK}, 4.9, 6)
		},
		"an operator ended its session": func(h *historyBuilder) {
			h.hold(Ref{12, 1}).To = sec(20)
			h.call(Op{Client: "op", Kind: OpExpireSession, Ref: Ref{Session: 12}, Outcome: Unknown}, 7, 8)
			h.grant("zoe", Ref{14, 1}, singleItem("a", Exclusive), 27, 8.6, 8.8)
			h.unlock(28, 8.9, 9)
		},
		"an operator ended a session in the first instant, and its client died later": func(h *historyBuilder) {
			h.Sessions = append(h.Sessions, Session{Session: 14, Client: "zoe", TTL: sec(10), Died: sec(20)})
			h.call(Op{Client: "op", Kind: OpExpireSession, Ref: Ref{Session: 14}, Outcome: OK}, 0.2, 0.4)
			h.event(EvEnded, Ref{14, 0}, 15, 0.3)
		},
		"the end of a session is known from a list only": func(h *historyBuilder) {
			h.eventOf(EvEnded, Ref{13, 0}).Index, h.eventOf(EvEnded, Ref{13, 0}).Reason = 0, ""
		},
		"a watch reports late the end of a session, which a list showed in time": func(h *historyBuilder) {
			h.eventOf(EvEnded, Ref{13, 0}).At = sec(40)
			h.event(EvEnded, Ref{13, 0}, 0, 30.2)
		},
		"it asked to be released on disconnect": func(h *historyBuilder) {
			h.hold(Ref{11, 1}).To = sec(7)
			for i := range h.Sessions {
				h.Sessions[i].ReleaseOnDisconnect = true
			}
		},
		"the dead end later when the cluster's clock stood": func(h *historyBuilder) {
			h.eventOf(EvEnded, Ref{13, 0}).At = sec(33)
			h.Stalls = append(h.Stalls, Stall{Reason: "no leader", From: sec(22), To: sec(23), LostTime: sec(2)})
		},
		"the dead end when something is committed again": func(h *historyBuilder) {
			h.eventOf(EvEnded, Ref{13, 0}).At = sec(36)
			h.Stalls = append(h.Stalls, Stall{Reason: "no commit", From: sec(29), To: sec(35.5),
				CommitsBlocked: true})
		},
		"a call without an answer, of the dead": func(h *historyBuilder) {
			h.call(Op{Client: "eve", Kind: OpLock, Items: singleItem("a", Exclusive), Outcome: Unknown}, 19, 0)
		},
		"an unknown call was granted after all": func(h *historyBuilder) {
			h.call(Op{Client: "eve", Kind: OpLock, Items: singleItem("a", Exclusive), Outcome: Unknown}, 15, 16)
			h.event(EvGranted, Ref{13, 5}, 46, 16)
			ev := &h.Events[len(h.Events)-1]
			ev.Token, ev.Items = 46, singleItem("a", Exclusive)
			h.event(EvReleased, Ref{13, 5}, 47, 17)
		},
		"a lock that was never granted": func(h *historyBuilder) {
			h.read(Op{Client: "ann", Kind: OpGet, Items: singleItem("z", "")}, 43, 11, 11.5)
		},
		"a grant that only a hold shows": func(h *historyBuilder) {
			h.op(OpLock, Ref{13, 2}).Return, h.op(OpLock, Ref{13, 2}).Outcome = 0, Unknown
		},
		"a clock at its own rate": func(h *historyBuilder) {
			h.Plan.ClockRate = 1.4
			h.op(OpGet, Ref{}).Time = sec(11)
			h.Renewals = append(h.Renewals, Renewal{13, sec(22), sec(22.1)}) // 8 s before its lease ran out
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := validHistory()
			spoil(h)
			assert.Empty(t, Check(&h.History).Violations)
		})
	}
}

func TestInvalidRuns(t *testing.T) {
	for want, spoil := range map[string]func(h *historyBuilder){
		"its plan has no end, so the record may be cut short":                      func(h *historyBuilder) { h.Plan.End = 0 },
		"the load was too low: 22 operations succeeded, and 1000 were asked for":   func(h *historyBuilder) { h.Plan.OKMin = 1000 },
		`the fault "cut" was asked for and never happened`:                         func(h *historyBuilder) { h.Plan.Faults = []string{"cut"} },
		"C3 was asked for and had nothing to look at":                              func(h *historyBuilder) { h.Plan.Checks, h.Writes = []string{"C3"}, nil },
		"no lock was granted after the healing":                                    func(h *historyBuilder) { h.Plan.Healed = sec(59) },
		"the last call of bob, unlock at 54.000s, did not succeed: no leader":      func(h *historyBuilder) { op := h.op(OpUnlock, Ref{12, 4}); op.Outcome, op.Error = Unknown, "no leader" },
		"1 grants have no record of how long they were held":                       func(h *historyBuilder) { h.Holds = h.Holds[1:] },
		`a call of bob has the outcome "done": ok, refused or unknown are allowed`: func(h *historyBuilder) { h.op(OpUnlock, Ref{12, 4}).Outcome = "done" },
		"a call of eve was made at 4.000s and is said to have come back at 3.000s": func(h *historyBuilder) { h.op(OpTryLock, Ref{13, 1}).Return = sec(3) },
		"a grant to ann at 2.000s has no token or no items":                        func(h *historyBuilder) { h.op(OpLock, Ref{11, 1}).Token = 0 },
		"2 lines of the record are torn, and 1 clients died":                       func(h *historyBuilder) { h.TruncatedLines = 2 },
		// So many that the search takes far longer than it takes to see that its time is over.
		`C1: no order was found for 5007 calls of lock "a" in 1ns, nor that there is none`:      func(h *historyBuilder) { h.overlapping(5000) },
		`C1: lock "a" has 30007 calls without a quiet moment between them; 30000 can be judged`: func(h *historyBuilder) { h.overlapping(chunkMax) },
	} {
		t.Run(want, func(t *testing.T) {
			h := validHistory()
			spoil(h)
			timeout := searchTimeout
			if strings.Contains(want, "1ns") {
				timeout = 1
			}
			r := checkWithin(&h.History, timeout)
			assert.False(t, r.OK())
			assert.Contains(t, r.Invalid, want)
		})
	}
}

// overlapping adds one get of lock a that lasts all day, and many others meanwhile.
func (h *historyBuilder) overlapping(reads int) {
	h.read(Op{Client: "zoe", Kind: OpGet, Items: singleItem("a", ""), Holders: []Ref{{99, 1}}}, 0, 1, 59)
	for i := range reads {
		at := 20 + float64(i)/float64(reads)
		h.read(Op{Client: "zoe", Kind: OpGet, Items: singleItem("a", "")}, 0, at, at+0.001)
	}
}

// Who is killed as soon as it has begun may have asked for a lock before it had a session.
func TestDeathBeforeSession(t *testing.T) {
	h := validHistory()
	h.call(Op{Client: "kim", Kind: OpLock, Items: singleItem("a", Exclusive), Outcome: Unknown}, 19, 0)
	assert.Contains(t, Check(&h.History).Invalid, "the last call of kim, lock at 19.000s, did not succeed: no answer")
	h.Sessions = append(h.Sessions, Session{Client: "kim", Died: sec(20)})
	r := Check(&h.History)
	assert.True(t, r.OK(), "%v", r)
}

func TestUnresolvedCallsAreCounted(t *testing.T) {
	h := validHistory()
	for range 3 {
		h.call(Op{Client: "eve", Kind: OpLock, Items: singleItem("a", Exclusive), Outcome: Unknown}, 15, 16)
	}
	assert.Equal(t, 3, Check(&h.History).Unresolved)
}

func TestFindingsAreLimited(t *testing.T) {
	h := validHistory()
	h.Plan.OKMin = 1000
	for range 30 {
		h.Writes = append(h.Writes, Write{Resource: "a", Client: "ann", Token: 23, At: sec(8)})
	}
	r := Check(&h.History)
	require.Len(t, r.Violations, findingsMax+1)
	assert.Equal(t, "C3: … and 10 more", r.Violations[findingsMax].String())
	assert.Contains(t, r.String(), "invalid run: the load was too low")
}

func TestVisualize(t *testing.T) {
	h := validHistory()
	h.op(OpCheck, Ref{11, 1}).Held = false
	var page strings.Builder
	require.NoError(t, Visualize(&h.History, "a", &page))
	assert.Contains(t, page.String(), "check of token 20: held=false")
	assert.Contains(t, page.String(), "pause client zoe")

	page.Reset()
	h = validHistory()
	h.op(OpLock, Ref{12, 1}).Return = sec(4.5)
	require.NoError(t, Visualize(&h.History, "a", &page))
	assert.Contains(t, page.String(), "grant of token 23")
	assert.ErrorContains(t, Visualize(&h.History, "none", &page), `there is no lock "none"`)
}

func TestUnansweredGrantsAreAssignedToCalls(t *testing.T) {
	items := []Item{{Name: "a", Mode: Exclusive}}
	grant := func(at time.Duration, session, ticket, token uint64) Event {
		return Event{
			At: at, Index: token, Kind: EvGranted, Ref: Ref{Session: session, Ticket: ticket},
			Token: token, Items: items,
		}
	}
	h := &History{
		Sessions: []Session{{Session: 1, Client: "c1"}, {Session: 2, Client: "c2"}, {Session: 5, Client: "c3"}},
		Ops: []Op{
			{Client: "c1", ID: 1, Kind: OpLock, Items: items, Call: 10, Return: 20, Outcome: Unknown},
			{Client: "c2", ID: 1, Kind: OpLock, Items: items, Call: 11, Queued: 12, Return: 90,
				Outcome: OK, Token: 70, Ref: Ref{Session: 2, Ticket: 9}},
			{Client: "c3", ID: 1, Kind: OpTryLock, Items: items, Call: 30, Return: 50, Outcome: Refused},
		},
		Events: []Event{
			grant(25, 1, 4, 50), // what c1 had given up
			grant(30, 2, 8, 60), // c2 learned of it too late, and asked again
			grant(80, 2, 9, 70),
			grant(5, 1, 3, 40),  // before it was asked for
			grant(30, 3, 1, 61), // of no session that is known
			grant(40, 5, 1, 64), // c3 learned of it too late, and was refused when it asked again
			grant(60, 5, 2, 65), // after the call of c3
			grant(31, 4, 1, 62), // c2 again; session 4 was never listed
			{At: 32, Index: 63, Kind: EvEnded, Ref: Ref{Session: 4}, Client: "c2"},
		},
	}
	h.AddUnansweredGrants()
	var added []Ref
	for _, op := range h.Ops[3:] {
		assert.Equal(t, Unknown, op.Outcome)
		added = append(added, op.Ref)
	}
	assert.Equal(t, []Ref{{Session: 1, Ticket: 4}, {Session: 2, Ticket: 8}, {Session: 5, Ticket: 1}, {Session: 4, Ticket: 1}}, added)
	assert.Zero(t, h.Ops[1].Queued, "that may have been the place of ticket 8")
}

// What is not known is never recorded as refused.
func TestOutcome(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Outcome
	}{
		{nil, OK},
		{client.ErrNotAcquired, Refused},
		{&client.Error{Kind: client.ErrSessionExpired}, Refused},
		{&client.Error{Kind: client.ErrSessionExpired, Outcome: client.Unknown}, Unknown},
		{fmt.Errorf("lock: %w", client.ErrUnavailable), Unknown},
		{fmt.Errorf("lock: %w", context.Canceled), Unknown},
		{context.DeadlineExceeded, Unknown},
	} {
		assert.Equal(t, c.want, OutcomeOf(c.err), "%v", c.err)
	}
}

func TestLossReason(t *testing.T) {
	for want, err := range map[string]error{
		"revoked":           client.ErrRevoked,
		Expired:             client.ErrSessionExpired,
		"disconnected":      fmt.Errorf("%w: disconnected", client.ErrSessionExpired),
		"max hold exceeded": errors.New("its maximum hold is over"),
		"":                  client.ErrLost,
	} {
		assert.Equal(t, want, LossReason(err), "%v", err)
	}
}

func TestItems(t *testing.T) {
	assert.Equal(t, []Item{{Name: "a", Mode: Exclusive}, {Name: "b", Mode: Shared}},
		ItemsOf([]client.Item{client.ExclusiveItem("a"), client.SharedItem("b")}))
	assert.Empty(t, ItemsOf(nil))
}

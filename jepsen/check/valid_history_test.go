package check

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func sec(s float64) time.Duration { return time.Duration(s*1000) * time.Millisecond }

func singleItem(name string, mode Mode) []Item { return []Item{{Name: name, Mode: mode}} }

func permits(n int) []Item { return []Item{{Name: "pool", Mode: Permits, Permits: n, Limit: 3}} }

// historyBuilder writes a history by hand.
type historyBuilder struct{ History }

// grant adds an acquisition that succeeded, with its hold and its event.
func (h *historyBuilder) grant(client string, ref Ref, items []Item, token uint64, call, from float64) (*Op, *Hold) {
	h.Ops = append(h.Ops, Op{
		Client: client, Kind: OpLock, Ref: ref, Items: items, Call: sec(call), Return: sec(from), Outcome: OK, Token: token,
	})
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
	h.Ops = append(h.Ops, Op{Client: b.Client, Kind: OpUnlock, Ref: b.Ref, Call: sec(call), Return: sec(back),
		Outcome: OK})
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
	op.Call, op.Return, op.Outcome = sec(call), sec(back), OK
	op.Term, op.Index, op.Time = 2, index, sec(call)
	h.Ops = append(h.Ops, op)
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
	h.Ops = append(h.Ops, Op{
		Client: "eve", Kind: OpTryLock, Ref: Ref{13, 1}, Items: singleItem("a", Exclusive),
		Call: sec(4), Return: sec(4.2), Outcome: Refused,
	})
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
	h.Ops = append(h.Ops, Op{Client: "bob", Kind: OpDowngrade, Ref: b.Ref, Call: sec(44), Return: sec(44.5),
		Outcome: OK})
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

// op is the call of that ticket, kind and client.
func (h *historyBuilder) op(kind OpKind, ref Ref) *Op {
	for i := range h.Ops {
		if h.Ops[i].Kind == kind && h.Ops[i].Ref == ref {
			return &h.Ops[i]
		}
	}
	panic("no such call")
}

func (h *historyBuilder) hold(ref Ref) *Hold {
	for i := range h.Holds {
		if h.Holds[i].Ref == ref {
			return &h.Holds[i]
		}
	}
	panic("no such hold")
}

func (h *historyBuilder) eventOf(what EventKind, ref Ref) *Event {
	for i := range h.Events {
		if h.Events[i].Kind == what && h.Events[i].Ref == ref {
			return &h.Events[i]
		}
	}
	panic("no such event")
}

package check

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// corruptions are changes to the valid history, each with the sentence that a check must report.
var corruptions = []struct {
	apply func(h *historyBuilder)
	want  string
}{
	{func(h *historyBuilder) { h.op(OpLock, Ref{12, 1}).Return = sec(4.5) },
		`C1: lock "a": token 23 (exclusive) was granted to bob by 4.500s at the latest, and token 20 (exclusive) of ann was not given back before 5.000s`},
	{func(h *historyBuilder) { h.op(OpCheck, Ref{11, 1}).Held = false },
		`C1: lock "a": no order of the calls explains their answers. At best 1 of 6 can be ordered, and then it is held by ann with token 20 (exclusive); after that should come check of token 20: held=false (eve, between 4.500s and 4.800s); or end of token 20 (ann, between 5.000s and 6.000s); or grant of token 23, exclusive (bob, between 5.000s and 6.500s); or end of token 23 (bob, between 8.000s and 8.500s)`},
	{func(h *historyBuilder) { h.op(OpGet, Ref{}).Holders = []Ref{{12, 1}} },
		`C1: lock "a": no order of the calls explains their answers. At best 5 of 6 can be ordered, and then it is free (greatest token 23); after that should come get: holders [12/1] (ann, between 10.000s and 10.500s)`},
	{func(h *historyBuilder) {
		h.op(OpLock, Ref{12, 4}).Items = permits(2)
		h.op(OpLock, Ref{12, 4}).Return = sec(52.5)
	},
		`C1: lock "pool": token 84 (2 of 3 permits) was granted to bob by 52.500s at the latest, and token 82 (2 of 3 permits) of ann was not given back before 53.000s`},
	{func(h *historyBuilder) {
		h.op(OpLock, Ref{11, 4}).Items = permits(4)
		h.op(OpLock, Ref{12, 4}).Items = singleItem("q", Exclusive)
	},
		`C1: lock "pool": no order of the calls explains their answers. At best 0 of 2 can be ordered, and then it is free (greatest token 0); after that should come grant of token 82, 4 of 3 permits (ann, between 50.000s and 51.000s); or end of token 82 (ann, between 53.000s and 53.500s)`},
	{func(h *historyBuilder) { h.op(OpLock, Ref{12, 1}).Token = 19 },
		`C1: lock "a": token 20 (exclusive) was granted to ann by 2.000s at the latest, and token 19 (exclusive) of bob was not given back before 8.000s`},
	{func(h *historyBuilder) { h.hold(Ref{11, 1}).To = sec(7) },
		`C2: lock "a": two held it at once for 500ms: ann in exclusive (token 20, ticket 11/1) from 2.000s to 7.000s, and bob in exclusive (token 23, ticket 12/1) from 6.500s to 8.000s`},
	{func(h *historyBuilder) { h.hold(Ref{12, 2}).From = sec(19) },
		`C2: lock "b": two held it at once for 1s: eve in exclusive (token 44, ticket 13/2) from 13.000s to 20.000s, and bob in exclusive (token 50, ticket 12/2) from 19.000s to 32.000s`},
	{func(h *historyBuilder) { h.hold(Ref{12, 3}).Downgraded = sec(46) },
		`C2: lock "e": two held it at once for 1s: bob in exclusive (token 70, ticket 12/3) from 42.000s to 46.000s, and ann in shared (token 74, ticket 11/3) from 45.000s to 49.000s`},
	{func(h *historyBuilder) { h.hold(Ref{12, 4}).Items = permits(2) },
		`C2: lock "pool": from 52.000s on 4 of 3 permits were held; the last was bob in 2 of 3 permits (token 84, ticket 12/4) from 52.000s to 54.000s`},
	{func(h *historyBuilder) {
		h.Faults[0] = Fault{Kind: "pause client", Target: "bob", From: sec(9), To: sec(20), ExcusesClient: true}
		h.hold(Ref{11, 1}).To = sec(7)
	},
		`C2: lock "a": two held it at once for 500ms: ann in exclusive (token 20, ticket 11/1) from 2.000s to 7.000s, and bob in exclusive (token 23, ticket 12/1) from 6.500s to 8.000s`},
	{func(h *historyBuilder) { h.Writes[2].Accepted = true },
		`C3: resource "a": at 7.500s it accepted a write of ann with token 20, and at 7.000s it had accepted one of bob with token 23`},
	{func(h *historyBuilder) { h.Writes[1].Token = 22 },
		`C3: resource "a": at 7.000s it accepted a write of bob with token 22, which was never granted`},
	{func(h *historyBuilder) { h.Writes[1].Accepted = false },
		`C3: resource "a": at 7.000s it refused a write of bob with token 23, though it had seen no greater one`},
	{func(h *historyBuilder) { op := h.op(OpNow, Ref{}); op.Index = 21 },
		`C4: it went back: now of ann, called at 9.000s and answered at 9.500s with index 21; after lock "a" of bob, called at 3.000s and answered at 6.500s with token 23`},
	{func(h *historyBuilder) { h.op(OpGet, Ref{}).Index = 40 },
		`C4: it went back: get "a" of ann, called at 10.000s and answered at 10.500s with index 40; after now of ann, called at 9.000s and answered at 9.500s with index 40`},
	{func(h *historyBuilder) { h.op(OpLock, Ref{12, 1}).Token = 20 },
		`C4: lock "a": token 20 was granted to ann (answered at 2.000s) and to bob (answered at 6.500s)`},
	{func(h *historyBuilder) { h.Plan.TokensAbove = 20 },
		`C4: lock "a": ann was granted token 20 at 2.000s, and earlier runs had come to 20`},
	{func(h *historyBuilder) {
		h.grant("zoe", Ref{14, 1}, singleItem("a", Exclusive), 21, 3.6, 6.4)
		h.unlock(22, 6.4, 6.45)
	},
		`C5: lock "a": zoe overtook bob: zoe asked at 3.600s and was granted token 21; bob was known at 3.500s to wait, and got token 23`},
	{func(h *historyBuilder) { h.Renewals = append(h.Renewals, Renewal{13, sec(25), sec(25.1)}) },
		`C6: session 13 of eve had expired at 30.000s; what it sent at 25.000s was answered, so with a ttl of 10s it had until 35.000s`},
	{func(h *historyBuilder) { h.hold(Ref{11, 2}).To = sec(38) },
		`C6: ann gave up 11/2 (token 60) for lost at 38.000s; what it sent at 30.500s had been answered by then, so it had until 39.500s at least`},
	{func(h *historyBuilder) { h.eventOf(EvEnded, Ref{13, 0}).At = sec(31.5) },
		`C7: eve died at 20.000s, and its session 13 ended at 31.500s only, 11.5s later; with a ttl of 10s, and 0s for times in which the cluster's clock stood or nothing was committed, it was due by 31.000s`},
	{func(h *historyBuilder) {
		h.eventOf(EvEnded, Ref{13, 0}).At = sec(33)
		h.Stalls = append(h.Stalls, Stall{Reason: "no commit", From: sec(22), To: sec(25), CommitsBlocked: true},
			Stall{Reason: "no leader", From: sec(31.5), To: sec(32.5), LostTime: sec(2)})
	},
		`C7: eve died at 20.000s, and its session 13 ended at 33.000s only, 13s later; with a ttl of 10s, and 0s for times in which the cluster's clock stood or nothing was committed, it was due by 31.000s`},
	{func(h *historyBuilder) { h.eventOf(EvEnded, Ref{13, 0}).Session = 99 },
		`C7: eve died at 20.000s, and its session 13 was never ended; with a ttl of 10s, and 0s for times in which the cluster's clock stood or nothing was committed, it was due by 31.000s`},
	{func(h *historyBuilder) {
		b := h.hold(Ref{11, 1})
		b.To, b.End = sec(6.4), Lost
		h.eventOf(EvGranted, Ref{12, 1}).At = sec(6.3)
	},
		`C8: lock "a": ticket 12/1 was granted token 23 at 6.300s (as n1 saw it), and another still held the lock: ann in exclusive (token 20, ticket 11/1) from 2.000s to 6.400s; that hold ended 100ms too late`},
	{func(h *historyBuilder) {
		again := *h.hold(Ref{11, 2})
		again.From, again.To, again.End = sec(42), sec(43), Unlocked
		h.Holds = append(h.Holds, again)
	},
		`C9: ann reported ticket 11/2 (token 60) lost at 40.000s, and held it again at 42.000s`},
	{func(h *historyBuilder) {
		h.call(Op{Client: "ann", Kind: OpUnlock, Ref: Ref{11, 2}, Outcome: OK}, 42, 43)
	},
		`C9: ann reported ticket 11/2 (token 60) lost at 40.000s, and its unlock at 42.000s was answered as if it were held`},
	{func(h *historyBuilder) { h.eventOf(EvReleased, Ref{11, 2}).Ref = Ref{99, 1} },
		`C9: ann reported ticket 11/2 (token 60) lost at 40.000s, and the cluster never ended it: its locks stay closed`},
	{func(h *historyBuilder) { h.op(OpLock, Ref{12, 2}).Ref = Ref{12, 1} },
		`C10: ticket 12/1 was granted to two calls: of bob, answered at 6.500s with token 23, and of bob, answered at 30.500s with token 50`},
	{func(h *historyBuilder) {
		ev := *h.eventOf(EvGranted, Ref{12, 1})
		ev.Index, ev.Token = 25, 25
		h.Events = append(h.Events, ev)
	},
		`C10: ticket 12/1 was granted twice: token 23 at index 23, and token 25 at index 25`},
	{func(h *historyBuilder) {
		ev := *h.eventOf(EvReleased, Ref{12, 1})
		ev.Index = 27
		h.Events = append(h.Events, ev)
	},
		`C10: ticket 12/1 ended twice: released at index 26, and released at index 27`},
	{func(h *historyBuilder) { h.eventOf(EvReleased, Ref{12, 1}).Token = 20 },
		`C10: ticket 12/1 was released with token 20 at index 26, and had been granted token 23`},
	{func(h *historyBuilder) { h.op(OpGet, Ref{}).Holders = []Ref{{12, 1}} },
		`C10: lock "a": get of ann, called at 10.000s, shows ticket 12/1 as a holder, and its release had been answered at 8.500s`},
	{func(h *historyBuilder) { h.op(OpGet, Ref{}).Holders = []Ref{{13, 1}} },
		`C10: lock "a": get of ann, called at 10.000s, shows ticket 13/1 as a holder, which was refused at 4.200s`},
	{func(h *historyBuilder) { h.eventOf(EvGranted, Ref{11, 2}).Ref = Ref{13, 1} },
		`C11: eve was refused ticket 13/1 at 4.200s (no reason), and the log grants it with token 60 at index 60`},
	{func(h *historyBuilder) {
		h.Holds = append(h.Holds, Hold{Client: "eve", Ref: Ref{13, 1}, Token: 29,
			Items: singleItem("z", Exclusive), From: sec(15), To: sec(16)})
	},
		`C11: eve was refused ticket 13/1 at 4.200s, and held it from 15.000s on`},
	{func(h *historyBuilder) { h.eventOf(EvGranted, Ref{11, 3}).Kind = EvRefused },
		`C11: ann was granted ticket 11/3 with token 74 at 45.000s, and the log has no such grant`},
	{func(h *historyBuilder) { h.eventOf(EvGranted, Ref{11, 3}).Token = 73 },
		`C11: ann was granted ticket 11/3 with token 74 at 45.000s, and the log has token 73`},
	{func(h *historyBuilder) { h.eventOf(EvReleased, Ref{11, 1}).Ref = Ref{99, 1} },
		`C11: ann was answered at 6.000s that ticket 11/1 is released, and the log has no end of it`},
	{func(h *historyBuilder) {
		h.call(Op{Client: "op", Kind: OpExpireSession, Ref: Ref{Session: 12}, Outcome: OK}, 55, 56)
	},
		`C11: op was answered at 56.000s that session 12 is over, and the log has no end of it`},
	{func(h *historyBuilder) {
		h.Events = append(h.Events, Event{Index: 30, Token: 30, Kind: EvGranted, Ref: Ref{77, 1},
			Items: singleItem("a", Exclusive), At: sec(9)})
	},
		`C11: lock "a": ticket 77/1 was granted token 30 at 9.000s (index 30), and no call had asked for it`},
	{func(h *historyBuilder) { op := h.op(OpLock, Ref{12, 2}); op.Return, op.Outcome = 0, Unknown },
		`C12: bob waits without end: its lock "b", called at 14.000s, had not come back at 60.000s, 25s after the healing`},
	{func(h *historyBuilder) { h.op(OpLock, Ref{12, 4}).Call = sec(41) },
		`C12: bob waited too long: its lock "pool", called at 41.000s, came back at 52.000s; all had healed at 35.000s, and 10s were allowed from then on`},
	{func(h *historyBuilder) { h.op(OpCheck, Ref{11, 1}).Index = 24 },
		`C13: lock "a": check of token 20 (ticket 11/1) by eve at 4.500s was answered held=true at index 24, where the log says false`},
	{func(h *historyBuilder) { h.op(OpGet, Ref{}).Index = 25 },
		`C13: lock "a": get by ann at 10.000s shows the holders [] at index 25, where the log has [12/1]`},
	{func(h *historyBuilder) { h.op(OpGet, Ref{}).Time = sec(11) },
		`C14: the cluster's clock is fast: from index 22 (eve, called at 4.500s) to index 42 (ann, seen at 10.500s) it counted 6.5s, and 6s had passed at most`},
	{func(h *historyBuilder) { h.op(OpGet, Ref{}).Time = sec(8) },
		`C14: cluster time was 9s at index 40 (n2), and is 8s at index 42 (ann)`},
	{func(h *historyBuilder) { h.op(OpGet, Ref{}).Term = 1 },
		`C14: the term was 2 at index 40 (n2), and is 1 at index 42 (ann)`},
	{func(h *historyBuilder) { h.NodeStates[1].Digest = 8 },
		`C15: at index 40 n1 has the digest 7, and n2 has 8: they hold different states`},
	{func(h *historyBuilder) { h.eventOf(EvReleased, Ref{11, 1}).Index = 24 },
		`C16: lock "a": ticket 12/1 was granted it (exclusive) at index 23, while 11/1 held it (exclusive)`},
	{func(h *historyBuilder) { h.eventOf(EvGranted, Ref{12, 4}).Items = permits(2) },
		`C16: lock "pool": from index 84 on 4 of 3 permits are out, the last for ticket 12/4`},
	{func(h *historyBuilder) { h.eventOf(EvGranted, Ref{11, 1}).Token = 19 },
		`C16: lock "a": ticket 11/1 was granted at index 20 with token 19, which is not that index`},
	{func(h *historyBuilder) { h.eventOf(EvEnded, Ref{13, 0}).Index = 43 },
		`C16: lock "b": ticket 13/2 was granted token 44 at index 44, and its session had ended at index 43`},
	{func(h *historyBuilder) { h.event(EvEnded, Ref{13, 0}, 51, 31) },
		`C16: session 13 ended twice: at index 50, and at index 51`},
	{func(h *historyBuilder) { h.eventOf(EvLost, Ref{13, 2}).Index = 51 },
		`C16: lock "b": ticket 13/2 with token 44 was not ended with its session at index 50`},
	{func(h *historyBuilder) { h.IdleCounts[1].Counts["sessions"] = 3 },
		`C17: n1 had 0 sessions at rest before the load and has 3 after it`},
}

// Each single corruption of a valid history is seen, by the check whose business it is.
func TestCorruptionsAreDetected(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range corruptions {
		t.Run(c.want, func(t *testing.T) {
			h := validHistory()
			c.apply(h)
			r := Check(&h.History)
			found := slices.ContainsFunc(r.Violations, func(f Finding) bool { return f.String() == c.want })
			assert.True(t, found, "%v", r)
		})
		id, _, _ := strings.Cut(c.want, ":")
		seen[id] = true
	}
	for _, c := range checks() {
		assert.True(t, seen[c.id], "no corruption is for %s", c.id)
	}
}

// A lock is lost while its holder waits for another answer; the unlock that comes after, and whose outcome is not
// known, does not say that it was held until then.
func TestUnlockAfterLossProvesNothing(t *testing.T) {
	h := validHistory()
	b := h.hold(Ref{11, 1})
	b.To, b.End = sec(4.9), Lost
	unlock := h.op(OpUnlock, Ref{11, 1})
	unlock.Call, unlock.Return, unlock.Outcome = sec(6.7), sec(7), Unknown
	for _, f := range Check(&h.History).Violations {
		if strings.HasPrefix(f.String(), "C1: ") {
			t.Errorf("reported: %v", f)
		}
	}
}

package check

import (
	"strings"
	"testing"
)

func TestOrderViolationsOfOneLock(t *testing.T) {
	runViolationCases(t, []violationCase{{
		"granted before it was given back",
		func(h *historyBuilder) { h.op(OpLock, Ref{12, 1}).Return = sec(4.5) },
		`C1: lock "a": token 23 (exclusive) was granted to bob by 4.500s at the latest, and token 20 (exclusive) of ann was not given back before 5.000s`,
	}, {
		"a check that knows of no holder",
		func(h *historyBuilder) { h.op(OpCheck, Ref{11, 1}).Held = false },
		`C1: lock "a": no order of the calls explains their answers. At best 1 of 6 can be ordered, and then it is held by ann with token 20 (exclusive); after that should come check of token 20: held=false (eve, between 4.500s and 4.800s); or end of token 20 (ann, between 5.000s and 6.000s); or grant of token 23, exclusive (bob, between 5.000s and 6.500s); or end of token 23 (bob, between 8.000s and 8.500s)`,
	}, {
		"a get that shows who has left",
		func(h *historyBuilder) { h.op(OpGet, Ref{}).Holders = []Ref{{12, 1}} },
		`C1: lock "a": no order of the calls explains their answers. At best 5 of 6 can be ordered, and then it is free (greatest token 23); after that should come get: holders [12/1] (ann, between 10.000s and 10.500s)`,
	}, {
		"too many permits",
		func(h *historyBuilder) {
			h.op(OpLock, Ref{12, 4}).Items = permits(2)
			h.op(OpLock, Ref{12, 4}).Return = sec(52.5)
		},
		`C1: lock "pool": token 84 (2 of 3 permits) was granted to bob by 52.500s at the latest, and token 82 (2 of 3 permits) of ann was not given back before 53.000s`,
	}, {
		"more permits than there are",
		func(h *historyBuilder) {
			h.op(OpLock, Ref{11, 4}).Items = permits(4)
			h.op(OpLock, Ref{12, 4}).Items = singleItem("q", Exclusive)
		},
		`C1: lock "pool": no order of the calls explains their answers. At best 0 of 2 can be ordered, and then it is free (greatest token 0); after that should come grant of token 82, 4 of 3 permits (ann, between 50.000s and 51.000s); or end of token 82 (ann, between 53.000s and 53.500s)`,
	}, {
		"tokens against time",
		func(h *historyBuilder) { h.op(OpLock, Ref{12, 1}).Token = 19 },
		`C1: lock "a": token 20 (exclusive) was granted to ann by 2.000s at the latest, and token 19 (exclusive) of bob was not given back before 8.000s`,
	}})
}

func TestHoldViolations(t *testing.T) {
	runViolationCases(t, []violationCase{{
		"two believe at once",
		func(h *historyBuilder) { h.hold(Ref{11, 1}).To = sec(7) },
		`C2: lock "a": two believed in it at once for 500ms: ann in exclusive (token 20, ticket 11/1) from 2.000s to 7.000s, and bob in exclusive (token 23, ticket 12/1) from 6.500s to 8.000s`,
	}, {
		"believed while the dead still lived",
		func(h *historyBuilder) { h.hold(Ref{12, 2}).From = sec(19) },
		`C2: lock "b": two believed in it at once for 1s: eve in exclusive (token 44, ticket 13/2) from 13.000s to 20.000s, and bob in exclusive (token 50, ticket 12/2) from 19.000s to 32.000s`,
	}, {
		"an exclusive one beside a shared one",
		func(h *historyBuilder) { h.hold(Ref{12, 3}).Downgraded = sec(46) },
		`C2: lock "e": two believed in it at once for 1s: bob in exclusive (token 70, ticket 12/3) from 42.000s to 46.000s, and ann in shared (token 74, ticket 11/3) from 45.000s to 49.000s`,
	}, {
		"belief in too many permits",
		func(h *historyBuilder) { h.hold(Ref{12, 4}).Items = permits(2) },
		`C2: lock "pool": from 52.000s on there was belief in 4 of 3 permits; the last was bob in 2 of 3 permits (token 84, ticket 12/4) from 52.000s to 54.000s`,
	}, {
		"a loss told too late",
		func(h *historyBuilder) {
			b := h.hold(Ref{11, 1})
			b.To, b.End = sec(6.4), Lost
			h.eventOf(EvGranted, Ref{12, 1}).At = sec(6.3)
		},
		`C8: lock "a": ticket 12/1 was granted token 23 at 6.300s (as n1 saw it), and another still believed in the lock: ann in exclusive (token 20, ticket 11/1) from 2.000s to 6.400s; that belief ended 100ms too late`,
	}, {
		"a pause excuses only who was paused",
		func(h *historyBuilder) {
			h.Faults[0] = Fault{Kind: "pause client", Target: "bob", From: sec(9), To: sec(20), ExcusesClient: true}
			h.hold(Ref{11, 1}).To = sec(7)
		},
		`C2: lock "a": two believed in it at once for 500ms: ann in exclusive (token 20, ticket 11/1) from 2.000s to 7.000s, and bob in exclusive (token 23, ticket 12/1) from 6.500s to 8.000s`,
	}})
}

func TestOrderViolationsAmongClients(t *testing.T) {
	runViolationCases(t, []violationCase{{
		"a token below one told before",
		func(h *historyBuilder) { op := h.op(OpNow, Ref{}); op.Index = 21 },
		`C4: it went back: now of ann, called at 9.000s and answered at 9.500s with index 21; after lock "a" of bob, called at 3.000s and answered at 6.500s with token 23`,
	}, {
		"a stamp that stands",
		func(h *historyBuilder) { h.op(OpGet, Ref{}).Index = 40 },
		`C4: it went back: get "a" of ann, called at 10.000s and answered at 10.500s with index 40; after now of ann, called at 9.000s and answered at 9.500s with index 40`,
	}, {
		"one token for two",
		func(h *historyBuilder) { h.op(OpLock, Ref{12, 1}).Token = 20 },
		`C4: lock "a": token 20 was granted to ann (answered at 2.000s) and to bob (answered at 6.500s)`,
	}, {
		"a token of an earlier run",
		func(h *historyBuilder) { h.Plan.TokensAbove = 20 },
		`C4: lock "a": ann was granted token 20 at 2.000s, and earlier runs had come to 20`,
	}, {
		"overtaken",
		func(h *historyBuilder) {
			h.grant("zoe", Ref{14, 1}, singleItem("a", Exclusive), 21, 3.6, 6.4)
			h.unlock(22, 6.4, 6.45)
		},
		`C5: lock "a": zoe overtook bob: zoe asked at 3.600s and was granted token 21; bob had been told at 3.500s that it waits, and got token 23`,
	}})
}

func TestFencingViolations(t *testing.T) {
	runViolationCases(t, []violationCase{{
		"a late write was taken",
		func(h *historyBuilder) { h.Writes[2].Accepted = true },
		`C3: resource "a": at 7.500s it took a write of ann with token 20, and at 7.000s it had taken one of bob with token 23`,
	}, {
		"a token out of thin air",
		func(h *historyBuilder) { h.Writes[1].Token = 22 },
		`C3: resource "a": at 7.000s it took a write of bob with token 22, which nobody was granted`,
	}, {
		"refused without cause",
		func(h *historyBuilder) { h.Writes[1].Accepted = false },
		`C3: resource "a": at 7.000s it refused a write of bob with token 23, though it had seen no greater one`,
	}})
}

// A lock is lost while its holder waits for another answer; the unlock that comes after, and whose outcome is not
// known, does not say that it was held until then.
func TestUnlockAfterLossProvesNothing(t *testing.T) {
	h := validHistory()
	b := h.hold(Ref{11, 1})
	b.To, b.End = sec(4.9), Lost
	unlock := h.op(OpUnlock, Ref{11, 1})
	unlock.Call, unlock.Return, unlock.Outcome = sec(6.7), sec(7), Unknown
	for _, f := range Check(&h.History, Limits{}).Violations {
		if strings.HasPrefix(f.String(), "C1: ") {
			t.Errorf("told: %v", f)
		}
	}
}

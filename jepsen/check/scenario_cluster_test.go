package check

import "testing"

func TestLeaseViolations(t *testing.T) {
	runViolationCases(t, []violationCase{{
		"expired while its renewals were answered",
		func(h *historyBuilder) { h.Renewals = append(h.Renewals, Renewal{13, sec(25), sec(25.1)}) },
		`C6: session 13 of eve had expired at 30.000s; what it sent at 25.000s was answered, so with a ttl of 10s it had until 35.000s`,
	}, {
		"given up though it had proof",
		func(h *historyBuilder) { h.hold(Ref{11, 2}).To = sec(38) },
		`C6: ann gave up 11/2 (token 60) for lost at 38.000s; what it sent at 30.500s had been answered by then, so it had until 39.500s at least`,
	}, {
		"the dead linger",
		func(h *historyBuilder) { h.eventOf(EvEnded, Ref{13, 0}).At = sec(31.5) },
		`C7: eve died at 20.000s, and its session 13 ended at 31.500s only, 11.5s later; with a ttl of 10s, and 0s for times in which the cluster's clock stood or nothing was committed, it was due by 31.000s`,
	}, {
		"the dead linger, though nothing was held up when they were due",
		func(h *historyBuilder) {
			h.eventOf(EvEnded, Ref{13, 0}).At = sec(33)
			h.Stalls = append(h.Stalls, Stall{Reason: "no commit", From: sec(22), To: sec(25), CommitsBlocked: true},
				Stall{Reason: "no leader", From: sec(31.5), To: sec(32.5), LostTime: sec(2)})
		},
		`C7: eve died at 20.000s, and its session 13 ended at 33.000s only, 13s later; with a ttl of 10s, and 0s for times in which the cluster's clock stood or nothing was committed, it was due by 31.000s`,
	}, {
		"the dead stay for ever",
		func(h *historyBuilder) { h.eventOf(EvEnded, Ref{13, 0}).Session = 99 },
		`C7: eve died at 20.000s, and its session 13 was never ended; with a ttl of 10s, and 0s for times in which the cluster's clock stood or nothing was committed, it was due by 31.000s`,
	}, {
		"lost and found",
		func(h *historyBuilder) {
			again := *h.hold(Ref{11, 2})
			again.From, again.To, again.End = sec(42), sec(43), Unlocked
			h.Holds = append(h.Holds, again)
		},
		`C9: ann reported ticket 11/2 (token 60) lost at 40.000s, and held it again at 42.000s`,
	}, {
		"lost, and released as if it were held",
		func(h *historyBuilder) {
			h.Ops = append(h.Ops, Op{Client: "ann", Kind: OpUnlock, Ref: Ref{11, 2}, Call: sec(42), Return: sec(43), Outcome: OK})
		},
		`C9: ann reported ticket 11/2 (token 60) lost at 40.000s, and its unlock at 42.000s was answered as if it were held`,
	}, {
		"lost, and never dropped",
		func(h *historyBuilder) { h.eventOf(EvReleased, Ref{11, 2}).Ref = Ref{99, 1} },
		`C9: ann reported ticket 11/2 (token 60) lost at 40.000s, and the cluster never ended it: its locks stay closed`,
	}})
}

func TestOutcomeViolations(t *testing.T) {
	runViolationCases(t, []violationCase{{
		"one ticket for two calls",
		func(h *historyBuilder) { h.op(OpLock, Ref{12, 2}).Ref = Ref{12, 1} },
		`C10: ticket 12/1 was granted to two calls: of bob, answered at 6.500s with token 23, and of bob, answered at 30.500s with token 50`,
	}, {
		"granted twice",
		func(h *historyBuilder) {
			ev := *h.eventOf(EvGranted, Ref{12, 1})
			ev.Index, ev.Token = 25, 25
			h.Events = append(h.Events, ev)
		},
		`C10: ticket 12/1 was granted twice: token 23 at index 23, and token 25 at index 25`,
	}, {
		"ended twice",
		func(h *historyBuilder) {
			ev := *h.eventOf(EvReleased, Ref{12, 1})
			ev.Index = 27
			h.Events = append(h.Events, ev)
		},
		`C10: ticket 12/1 ended twice: released at index 26, and released at index 27`,
	}, {
		"shown after its release",
		func(h *historyBuilder) { h.op(OpGet, Ref{}).Holders = []Ref{{12, 1}} },
		`C10: lock "a": get of ann, called at 10.000s, shows ticket 12/1 as a holder, and its release had been answered at 8.500s`,
	}, {
		"refused, and granted",
		func(h *historyBuilder) { h.eventOf(EvGranted, Ref{11, 2}).Ref = Ref{13, 1} },
		`C11: eve was refused ticket 13/1 at 4.200s (no reason), and the log grants it with token 60 at index 60`,
	}, {
		"refused, and believed in",
		func(h *historyBuilder) {
			h.Holds = append(h.Holds, Hold{Client: "eve", Ref: Ref{13, 1}, Token: 29, Items: singleItem("z", Exclusive), From: sec(15), To: sec(16)})
		},
		`C11: eve was refused ticket 13/1 at 4.200s, and believed in it from 15.000s on`,
	}, {
		"refused, and shown",
		func(h *historyBuilder) { h.op(OpGet, Ref{}).Holders = []Ref{{13, 1}} },
		`C10: lock "a": get of ann, called at 10.000s, shows ticket 13/1 as a holder, which was refused at 4.200s`,
	}, {
		"answered, and not in the log",
		func(h *historyBuilder) { h.eventOf(EvGranted, Ref{11, 3}).Kind = EvRefused },
		`C11: ann was granted ticket 11/3 with token 74 at 45.000s, and the log has no such grant`,
	}, {
		"another token than the log's",
		func(h *historyBuilder) { h.eventOf(EvGranted, Ref{11, 3}).Token = 73 },
		`C11: ann was granted ticket 11/3 with token 74 at 45.000s, and the log has token 73`,
	}, {
		"a release that is not in the log",
		func(h *historyBuilder) { h.eventOf(EvReleased, Ref{11, 1}).Ref = Ref{99, 1} },
		`C11: ann was told at 6.000s that ticket 11/1 is released, and the log has no end of it`,
	}, {
		"a session's end that is not in the log",
		func(h *historyBuilder) {
			h.Ops = append(h.Ops, Op{Client: "op", Kind: OpExpireSession, Ref: Ref{Session: 12}, Call: sec(55), Return: sec(56), Outcome: OK})
		},
		`C11: op was told at 56.000s that session 12 is over, and the log has no end of it`,
	}, {
		"granted to nobody",
		func(h *historyBuilder) {
			h.Events = append(h.Events, Event{Index: 30, Token: 30, Kind: EvGranted, Ref: Ref{77, 1}, Items: singleItem("a", Exclusive), At: sec(9)})
		},
		`C11: lock "a": ticket 77/1 was granted token 30 at 9.000s (index 30), and nobody had asked for it`,
	}})
}

func TestWaitReadAndNodeViolations(t *testing.T) {
	runViolationCases(t, []violationCase{{
		"waits for ever",
		func(h *historyBuilder) { op := h.op(OpLock, Ref{12, 2}); op.Return, op.Outcome = 0, Unknown },
		`C12: bob waits for ever: its lock "b", called at 14.000s, had not come back at 60.000s, 25s after the healing`,
	}, {
		"waits too long",
		func(h *historyBuilder) { h.op(OpLock, Ref{12, 4}).Call = sec(41) },
		`C12: bob waited too long: its lock "pool", called at 41.000s, came back at 52.000s; all had healed at 35.000s, and 10s were allowed from then on`,
	}, {
		"a check against its stamp",
		func(h *historyBuilder) { h.op(OpCheck, Ref{11, 1}).Index = 24 },
		`C13: lock "a": check of token 20 (ticket 11/1) by eve at 4.500s was answered held=true at index 24, where the log says false`,
	}, {
		"a get against its stamp",
		func(h *historyBuilder) { h.op(OpGet, Ref{}).Index = 25 },
		`C13: lock "a": get by ann at 10.000s shows the holders [] at index 25, where the log has [12/1]`,
	}, {
		"a fast clock",
		func(h *historyBuilder) { h.op(OpGet, Ref{}).Time = sec(11) },
		`C14: the cluster's clock is fast: from index 22 (eve, called at 4.500s) to index 42 (ann, seen at 10.500s) it counted 6.5s, and 6s had passed at most`,
	}, {
		"a clock that goes back",
		func(h *historyBuilder) { h.op(OpGet, Ref{}).Time = sec(8) },
		`C14: cluster time was 9s at index 40 (n2), and is 8s at index 42 (ann)`,
	}, {
		"a term that goes back",
		func(h *historyBuilder) { h.op(OpGet, Ref{}).Term = 1 },
		`C14: the term was 2 at index 40 (n2), and is 1 at index 42 (ann)`,
	}, {
		"nodes that differ",
		func(h *historyBuilder) { h.NodeStates[1].Digest = 8 },
		`C15: at index 40 n1 has the digest 7, and n2 has 8: they hold different states`,
	}, {
		"two holders in the log",
		func(h *historyBuilder) { h.eventOf(EvReleased, Ref{11, 1}).Index = 24 },
		`C16: lock "a": ticket 12/1 was granted it (exclusive) at index 23, while 11/1 held it (exclusive)`,
	}, {
		"too many permits in the log",
		func(h *historyBuilder) { h.eventOf(EvGranted, Ref{12, 4}).Items = permits(2) },
		`C16: lock "pool": from index 84 on 4 of 3 permits are out, the last for ticket 12/4`,
	}, {
		"a token that is not its index",
		func(h *historyBuilder) { h.eventOf(EvGranted, Ref{11, 1}).Token = 19 },
		`C16: lock "a": ticket 11/1 was granted at index 20 with token 19, which is not that index`,
	}, {
		"a grant to an ended session",
		func(h *historyBuilder) { h.eventOf(EvEnded, Ref{13, 0}).Index = 43 },
		`C16: lock "b": ticket 13/2 was granted token 44 at index 44, and its session had ended at index 43`,
	}, {
		"growth",
		func(h *historyBuilder) { h.IdleCounts[1].Counts["sessions"] = 3 },
		`C17: n1 had 0 sessions at rest before the load and has 3 after it`,
	}})
}

package check

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What nobody can help is no violation.
func TestWhatIsExcused(t *testing.T) {
	for name, spoil := range map[string]func(h *teller){
		"a client believed on while it was paused": func(h *teller) {
			h.hold(Ref{11, 1}).To = sec(7)
			h.Faults = append(h.Faults, Fault{Kind: "pause client", Target: "ann", From: sec(5), To: sec(6.9), Voids: true})
		},
		"an operator took it": func(h *teller) {
			h.hold(Ref{11, 1}).To, h.hold(Ref{11, 1}).How, h.hold(Ref{11, 1}).Why = sec(7), Lost, "revoked"
			h.op(OpUnlock, Ref{11, 1}).Outcome = Refused
			h.ev(EvReleased, Ref{11, 1}).Happened = EvLost
			h.Ops = append(h.Ops, Op{
				Client: "op", Kind: OpForce, Items: one("a", ""), Token: 20, Call: sec(4.9), Return: sec(6), Outcome: OK,
			})
		},
		"an operator ended its session": func(h *teller) {
			h.hold(Ref{12, 1}).To = sec(20)
			h.Ops = append(h.Ops, Op{Client: "op", Kind: OpExpire, Ref: Ref{Session: 12}, Call: sec(7), Return: sec(8), Outcome: Unknown})
			h.holds("zoe", Ref{14, 1}, one("a", Exclusive), 27, 8.6, 8.8)
			h.unlocks(28, 8.9, 9)
		},
		"an operator ended a session in the first instant, and its client died later": func(h *teller) {
			h.Sessions = append(h.Sessions, Session{Session: 14, Client: "zoe", TTL: sec(10), Died: sec(20)})
			h.Ops = append(h.Ops, Op{Client: "op", Kind: OpExpire, Ref: Ref{Session: 14}, Call: sec(0.2), Return: sec(0.4), Outcome: OK})
			h.event(EvEnded, Ref{14, 0}, 15, 0.3)
		},
		"the end of a session is known from a list only": func(h *teller) {
			h.ev(EvEnded, Ref{13, 0}).Index, h.ev(EvEnded, Ref{13, 0}).Why = 0, ""
		},
		"a watch tells late of the end of a session, which a list showed in time": func(h *teller) {
			h.ev(EvEnded, Ref{13, 0}).At = sec(40)
			h.event(EvEnded, Ref{13, 0}, 0, 30.2)
		},
		"it asked to be released on disconnect": func(h *teller) {
			h.hold(Ref{11, 1}).To = sec(7)
			for i := range h.Sessions {
				h.Sessions[i].Disconnect = true
			}
		},
		"the dead end later when the cluster's clock stood": func(h *teller) {
			h.ev(EvEnded, Ref{13, 0}).At = sec(33)
			h.Stalls = append(h.Stalls, Stall{Why: "no leader", From: sec(22), To: sec(23), Lost: sec(2)})
		},
		"the dead end when something is committed again": func(h *teller) {
			h.ev(EvEnded, Ref{13, 0}).At = sec(36)
			h.Stalls = append(h.Stalls, Stall{Why: "no commit", From: sec(29), To: sec(35.5), Held: true})
		},
		"a call without an answer, of the dead": func(h *teller) {
			h.Ops = append(h.Ops, Op{Client: "eve", Kind: OpLock, Items: one("a", Exclusive), Call: sec(19), Outcome: Unknown})
		},
		"an unknown call was granted after all": func(h *teller) {
			h.Ops = append(h.Ops, Op{Client: "eve", Kind: OpLock, Items: one("a", Exclusive), Call: sec(15), Return: sec(16), Outcome: Unknown})
			h.event(EvGranted, Ref{13, 5}, 46, 16)
			ev := &h.Events[len(h.Events)-1]
			ev.Token, ev.Items = 46, one("a", Exclusive)
			h.event(EvReleased, Ref{13, 5}, 47, 17)
		},
		"a lock that nobody ever had": func(h *teller) {
			h.read(Op{Client: "ann", Kind: OpGet, Items: one("z", "")}, 43, 11, 11.5)
		},
		"a grant that only a belief tells of": func(h *teller) {
			h.op(OpLock, Ref{13, 2}).Return, h.op(OpLock, Ref{13, 2}).Outcome = 0, Unknown
		},
		"a clock at its own rate": func(h *teller) {
			h.Plan.Rate = 1.4
			h.op(OpGet, Ref{}).Time = sec(11)
			h.Beats = append(h.Beats, Beat{13, sec(22), sec(22.1)}) // 8 s before its lease ran out
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := day()
			spoil(h)
			assert.Empty(t, Check(&h.History, Limits{Growth: nil}).Violations)
		})
	}
}

func TestInvalidRunsFail(t *testing.T) {
	for want, spoil := range map[string]func(h *teller){
		"its plan has no end, so the record may be cut short":                      func(h *teller) { h.Plan.End = 0 },
		"the load was too low: 22 operations succeeded, and 1000 were asked for":   func(h *teller) { h.Plan.MinOK = 1000 },
		`the fault "cut" was asked for and never happened`:                         func(h *teller) { h.Plan.Faults = []string{"cut"} },
		"C3 was asked for and had nothing to look at":                              func(h *teller) { h.Plan.Checks, h.Writes = []string{"C3"}, nil },
		"no lock was granted after the healing":                                    func(h *teller) { h.Plan.Healed = sec(59) },
		"the last call of bob, unlock at 54.000s, did not succeed: no leader":      func(h *teller) { op := h.op(OpUnlock, Ref{12, 4}); op.Outcome, op.Error = Unknown, "no leader" },
		"1 grants have no record of how long they were believed in":                func(h *teller) { h.Holds = h.Holds[1:] },
		`a call of bob has the outcome "done": ok, refused or unknown are allowed`: func(h *teller) { h.op(OpUnlock, Ref{12, 4}).Outcome = "done" },
		"a call of eve was made at 4.000s and is said to have come back at 3.000s": func(h *teller) { h.op(OpTryLock, Ref{13, 1}).Return = sec(3) },
		"a grant to ann at 2.000s has no token or no items":                        func(h *teller) { h.op(OpLock, Ref{11, 1}).Token = 0 },
		"2 lines of the record are torn, and 1 clients died":                       func(h *teller) { h.Torn = 2 },
		// So many that the search takes far longer than it takes to see that its time is over.
		`C1: no order was found for 5007 calls of lock "a" in 1ns, nor that there is none`: func(h *teller) { h.neverQuiet(5000) },
	} {
		t.Run(want, func(t *testing.T) {
			h := day()
			spoil(h)
			limits := Limits{}
			if strings.Contains(want, "1ns") {
				limits.Linear = 1
			}
			r := Check(&h.History, limits)
			assert.False(t, r.OK())
			assert.Contains(t, r.Invalid, want)
		})
	}
}

// neverQuiet has one look at lock a take all day, and so many others be made meanwhile.
func (h *teller) neverQuiet(reads int) {
	h.read(Op{Client: "zoe", Kind: OpGet, Items: one("a", ""), Holders: []Ref{{99, 1}}}, 0, 1, 59)
	for i := range reads {
		at := 20 + float64(i)/float64(reads)
		h.read(Op{Client: "zoe", Kind: OpGet, Items: one("a", "")}, 0, at, at+0.001)
	}
}

func TestALockThatIsNeverQuietIsNotJudged(t *testing.T) {
	h := day()
	h.neverQuiet(chunkMax)
	r := Check(&h.History, Limits{})
	assert.Contains(t, r.Invalid, `C1: lock "a" has 30007 calls without a quiet moment between them; 30000 can be judged`)
}

// Who is killed as soon as it has begun may have asked for a lock before it had a session.
func TestTheDeathOfAClientWithoutASessionIsKnown(t *testing.T) {
	h := day()
	h.Ops = append(h.Ops, Op{Client: "kim", Kind: OpLock, Items: one("a", Exclusive), Call: sec(19), Outcome: Unknown})
	assert.Contains(t, Check(&h.History, Limits{}).Invalid, "the last call of kim, lock at 19.000s, did not succeed: no answer")
	h.Sessions = append(h.Sessions, Session{Client: "kim", Died: sec(20)})
	r := Check(&h.History, Limits{})
	assert.True(t, r.OK(), "%v", r)
}

func TestUnknownCallsAreCounted(t *testing.T) {
	h := day()
	for range 3 {
		h.Ops = append(h.Ops, Op{Client: "eve", Kind: OpLock, Items: one("a", Exclusive), Call: sec(15), Return: sec(16), Outcome: Unknown})
	}
	assert.Equal(t, 3, Check(&h.History, Limits{}).Unresolved)
}

func TestFindingsAreCutShort(t *testing.T) {
	h := day()
	h.Plan.MinOK = 1000
	for range 30 {
		h.Writes = append(h.Writes, Write{Resource: "a", Client: "ann", Token: 23, At: sec(8)})
	}
	r := Check(&h.History, Limits{})
	require.Len(t, r.Violations, toldMax+1)
	assert.Equal(t, "C3: … and 10 more", r.Violations[toldMax].String())
	assert.Contains(t, r.String(), "invalid run: the load was too low")
}

func TestDrawing(t *testing.T) {
	h := day()
	h.op(OpCheck, Ref{11, 1}).Held = false
	var page strings.Builder
	require.NoError(t, Draw(&h.History, "a", Limits{Linear: time.Minute}, &page))
	assert.Contains(t, page.String(), "check of token 20: held=false")
	assert.Contains(t, page.String(), "pause client zoe")

	page.Reset()
	h = day()
	h.op(OpLock, Ref{12, 1}).Return = sec(4.5)
	require.NoError(t, Draw(&h.History, "a", Limits{}, &page))
	assert.Contains(t, page.String(), "grant of token 23")
	assert.ErrorContains(t, Draw(&h.History, "none", Limits{}, &page), `there is no lock "none"`)
}

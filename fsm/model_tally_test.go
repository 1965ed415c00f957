package fsm_test

import (
	"fmt"
	"slices"
	"strings"

	"zamok/fsm"
)

// tally counts what happened. A random test only tests the rules that it reached, so what must have
// happened is asserted from here.
type tally struct {
	entries, commands, restores int
	codes                       [len(commandKinds)][14]int // by kind of command and code
	refused                     [14]int                    // entries, by code
	events                      [12]int
	reasons                     [15]int // of tickets and sessions that ended
	granted                     [4]int  // items, by mode
	fromQueue                   int     // grants to those who waited
	grantsMax                   int     // in one step
	sessionEndsMax              int     // sessions in one step
	cycles                      [8]int  // by length; the last counts the longer ones
	members                     modelCounts
}

func (n *tally) count(r record, a *fsm.Applied) {
	n.entries++
	n.refused[a.Refused]++
	n.commands += len(a.Results)
	for i := range a.Results {
		n.codes[kindOfCommand(r.entry.Commands[i])][a.Results[i].Code]++
		if d := a.Results[i].Detail; d != nil && len(d.Cycle) > 0 {
			n.cycles[min(len(d.Cycle), len(n.cycles)-1)]++
		}
	}
	grants, ends := 0, 0
	for i, e := range a.Events {
		if i > 0 && a.Events[i-1].Index != e.Index {
			grants, ends = 0, 0
		}
		n.events[e.Kind]++
		n.reasons[e.Reason]++
		switch e.Kind {
		case fsm.EvGranted:
			grants++
			at := slices.IndexFunc(a.Results, func(r fsm.Result) bool { return r.Index == e.Index })
			if at < 0 || !isAcquire(r.entry.Commands[at]) {
				n.fromQueue++
			}
			for _, item := range e.Items {
				n.granted[item.Mode]++
			}
		case fsm.EvSessionEnded:
			ends++
		}
		n.grantsMax, n.sessionEndsMax = max(n.grantsMax, grants), max(n.sessionEndsMax, ends)
	}
}

func (n *tally) add(m *tally) {
	n.entries += m.entries
	n.commands += m.commands
	n.restores += m.restores
	for i := range n.codes {
		addCounts(n.codes[i][:], m.codes[i][:])
	}
	addCounts(n.refused[:], m.refused[:])
	addCounts(n.events[:], m.events[:])
	addCounts(n.reasons[:], m.reasons[:])
	addCounts(n.granted[:], m.granted[:])
	addCounts(n.cycles[:], m.cycles[:])
	n.fromQueue += m.fromQueue
	n.members.add(m.members)
	n.grantsMax, n.sessionEndsMax = max(n.grantsMax, m.grantsMax),
		max(n.sessionEndsMax, m.sessionEndsMax)
}

func (n *modelCounts) add(m modelCounts) {
	n.replaced += m.replaced
	n.forgotten += m.forgotten
	n.outlived += m.outlived
}

func addCounts(to, from []int) {
	for i := range to {
		to[i] += from[i]
	}
}

// commandKinds and the codes that each must have met.
var commandKinds = [17]struct {
	name     string
	expected []fsm.Code
}{
	{"OpenSession", []fsm.Code{fsm.OK, fsm.Invalid, fsm.NoSession, fsm.LimitExceeded}},
	{"Attach", []fsm.Code{fsm.OK, fsm.NoSession, fsm.WrongSecret, fsm.Superseded}},
	{"ReleaseOnDisconnect", []fsm.Code{fsm.OK, fsm.Invalid, fsm.NoSession}},
	{"CloseSession", []fsm.Code{fsm.OK, fsm.NoSession}},
	{"Acquire", []fsm.Code{
		fsm.OK, fsm.Invalid, fsm.NoSession, fsm.NotAcquired, fsm.Deadlock, fsm.OwnerWaits,
		fsm.LockKindMismatch, fsm.LimitExceeded, fsm.TicketEnded,
	}},
	{"Drop", []fsm.Code{fsm.OK, fsm.Invalid, fsm.NoSession, fsm.LimitExceeded}},
	{"DropUnrenewed", []fsm.Code{fsm.OK, fsm.Invalid, fsm.NoSession, fsm.LimitExceeded}},
	{"Downgrade", []fsm.Code{fsm.OK, fsm.Invalid, fsm.NoSession, fsm.NotHeld}},
	{"ForceRelease", []fsm.Code{fsm.OK, fsm.Invalid}},
	{"ExpireSession", []fsm.Code{fsm.OK, fsm.Invalid, fsm.NoSession}},
	{"LeaderStart", []fsm.Code{fsm.OK, fsm.Invalid}},
	{"Member", []fsm.Code{fsm.OK, fsm.Invalid}},
	{"Upgrade", []fsm.Code{fsm.Invalid}},
	{"Digest", []fsm.Code{fsm.OK, fsm.Invalid}},
	{"SetLongestTTL", []fsm.Code{fsm.OK, fsm.Invalid}},
	{"SetQuotas", []fsm.Code{fsm.OK, fsm.Invalid}},
	{"WithdrawSession", []fsm.Code{fsm.OK, fsm.NoSession}},
}

func kindOfCommand(c fsm.Command) int {
	name := strings.TrimPrefix(fmt.Sprintf("%T", c), "*fsm.")
	for i := range commandKinds {
		if commandKinds[i].name == name {
			return i
		}
	}
	panic("not a command: " + name)
}

func isAcquire(c fsm.Command) bool {
	_, ok := c.(*fsm.Acquire)
	return ok
}

// missing lists what must happen and did not.
func (n *tally) missing() (missing []string) {
	for i, kind := range commandKinds {
		for _, code := range kind.expected {
			if n.codes[i][code] == 0 {
				missing = append(missing, kind.name+" "+codeNames[code])
			}
		}
	}
	require := func(counts []int, names []string, except ...string) {
		for i, name := range names {
			if name != "" && counts[i] == 0 && !slices.Contains(except, name) {
				missing = append(missing, name)
			}
		}
	}
	require(n.refused[fsm.OtherVersion:], codeNames[fsm.OtherVersion:])
	require(n.events[:], eventNames[:], "EvUpgraded") // there is one number of version as yet
	require(n.reasons[:], reasonNames[:], "Restored")
	require(n.granted[:], modeNames[:])
	require(n.cycles[2:6], []string{"cycle of 2", "cycle of 3", "cycle of 4", "cycle of 5"})
	require([]int{n.restores, n.fromQueue, n.grantsMax / 2, n.sessionEndsMax / 2},
		[]string{"restore", "grant from the queue", "two grants in a step",
			"two sessions ended in a step"})
	require([]int{n.members.replaced, n.members.forgotten, n.members.outlived},
		[]string{"a member replaced", "a member forgotten", "an ended session forgotten"})
	return missing
}

func (n *tally) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d entries, %d commands, %d restores\n", n.entries, n.commands, n.restores)
	for i, kind := range commandKinds {
		writeCounts(&b, kind.name, n.codes[i][:], codeNames[:])
	}
	writeCounts(&b, "entries refused", n.refused[1:], codeNames[1:])
	writeCounts(&b, "events", n.events[:], eventNames[:])
	writeCounts(&b, "ends", n.reasons[1:], reasonNames[1:])
	writeCounts(&b, "granted", n.granted[:], modeNames[:])
	fmt.Fprintf(&b, "  %d members replaced, %d forgotten; %d ended sessions forgotten\n",
		n.members.replaced, n.members.forgotten, n.members.outlived)
	fmt.Fprintf(&b,
		"  %d grants from the queue, up to %d grants and %d ended sessions in a step; cycles by "+
			"length %v\n",
		n.fromQueue, n.grantsMax, n.sessionEndsMax, n.cycles)
	return b.String()
}

func writeCounts(b *strings.Builder, title string, counts []int, names []string) {
	fmt.Fprintf(b, "  %s:", title)
	for i, c := range counts {
		if c > 0 {
			fmt.Fprintf(b, " %s %d", names[i], c)
		}
	}
	b.WriteByte('\n')
}

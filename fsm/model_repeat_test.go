package fsm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/fsm"
)

// Every command is said three times, the second and third at random later places, mixed with
// everything else. The witness holds each ticket to acting once, and each force, detachment and
// expiry to what it saw.
func TestCommandsRepeatedLater(t *testing.T) {
	seed := seedOf(t)
	for log := range sized(150, 60, 30) {
		pick := logChoice(seed, log)
		p := newComparison()
		g := newGenerator(pick, p.model)
		var pending []fsm.Command
		for fresh := 600; fresh > 0 || len(pending) > 0; {
			r := g.record()
			e := &fsm.Entry{Version: 1, Reading: g.reading(), Renewals: g.renewals()}
			if fresh > 0 {
				e.Commands = r.entry.Commands
				fresh -= 1 + len(e.Commands)
			}
			before := len(pending)
			for _, c := range e.Commands {
				pending = append(pending, c, c)
			}
			for range min(pick(8), before) {
				at := pick(before)
				e.Commands = append(e.Commands, pending[at])
				before--
				pending[at] = pending[before]
				pending = append(pending[:before], pending[before+1:]...)
			}
			r = newRecord(r.term, e)
			a, err := p.apply(r)
			if err != nil {
				t.Fatalf("log %d: %v\n%s", log, err, shrink(p.log))
			}
			g.observe(r, &a)
		}
		require.NoError(t, p.check(), "log %d", log)
	}
}

// A list of commands that is said again at once changes no ticket. Only what found nothing to
// act on may find it the second time: those for a session that the list itself opened, a ticket
// beyond the window that the list itself moved, a downgrade before its grant.
func TestCommandsRepeatedAtOnce(t *testing.T) {
	seed := seedOf(t)
	for log := range sized(150, 60, 30) {
		p := newComparison()
		g := newGenerator(logChoice(seed, log), p.model)
		for entries := range 200 {
			r := g.record()
			a, err := p.apply(r)
			require.NoError(t, err, "log %d, entry %d", log, entries)
			g.observe(r, &a)
			repeated := &fsm.Entry{Version: 1}
			for i, res := range a.Results {
				if res.Code != fsm.NoSession && res.Code != fsm.NotHeld &&
					(res.Code != fsm.LimitExceeded || res.State != 0) {
					repeated.Commands = append(repeated.Commands, r.entry.Commands[i])
				}
			}
			a, err = p.apply(newRecord(r.term, repeated))
			require.NoError(t, err, "log %d, entry %d again", log, entries)
			for _, e := range a.Events {
				switch e.Kind {
				case fsm.EvGranted, fsm.EvRefused, fsm.EvLost, fsm.EvReleased, fsm.EvDowngraded,
					fsm.EvSessionEnded:
					t.Fatalf("log %d, entry %d again: %s\n%s", log, entries, show(e),
						listing(p.log[len(p.log)-2:]))
				}
			}
		}
	}
}

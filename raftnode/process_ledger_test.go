package raftnode

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/fsm"
)

// ledger is what the processes of a cluster reported: it outlives them.
type ledger struct {
	mu      sync.Mutex
	entries map[fsm.TicketRef]*ledgerEntry
	tokens  map[string]uint64 // the last one of a lock, by process and name
	count   int               // of grants and drops
	grants  int
	highest uint64 // token of all grants
	mark    uint64 // the highest token when the present round began
	wrong   []string
}

type ledgerEntry struct {
	name     string
	token    uint64
	dropping bool // its drop was sent
	dropped  bool // its drop was acknowledged
}

func newLedger() *ledger {
	return &ledger{entries: make(map[fsm.TicketRef]*ledgerEntry), tokens: make(map[string]uint64)}
}

// enter writes a line of a load down; false: it is an answer to the test.
func (l *ledger) enter(process string, s said) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch s.Of {
	case "opened":
	case "granted":
		l.granted(process, s)
	case "dropping":
		if e := l.entries[s.TicketRef]; e != nil {
			e.dropping = true
		}
	case "dropped":
		// One that was never reported as granted, only waited, has an entry all the same.
		if e := l.entries[s.TicketRef]; e != nil {
			e.dropped = true
		} else {
			l.entries[s.TicketRef] = &ledgerEntry{dropped: true}
		}
		l.count++
	case "wrong":
		l.wrong = append(l.wrong, fmt.Sprintf("%s, %+v: %s", process, s.TicketRef, s.Error))
	default:
		return false
	}
	return true
}

func (l *ledger) granted(process string, s said) {
	if e := l.entries[s.TicketRef]; e != nil {
		l.wrong = append(l.wrong,
			fmt.Sprintf("%s: %+v granted twice or after its drop, with %d, %+v", process,
				s.TicketRef, s.Token, *e))
	}
	l.entries[s.TicketRef] = &ledgerEntry{name: s.Name, token: s.Token}
	if before := l.tokens[process+s.Name]; s.Token <= before {
		l.wrong = append(l.wrong,
			fmt.Sprintf("%s: %s granted with %d after %d", process, s.Name, s.Token, before))
	}
	if s.Token <= l.mark {
		l.wrong = append(l.wrong,
			fmt.Sprintf("%s: %s granted with %d, and an earlier round got to %d", process, s.Name,
				s.Token, l.mark))
	}
	l.tokens[process+s.Name] = s.Token
	l.highest = max(l.highest, s.Token)
	l.count++
	l.grants++
}

// round begins another: its tokens must be above all before.
func (l *ledger) round() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mark = l.highest
}

// acknowledged is how many grants and drops were.
func (l *ledger) acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// compare holds what a node has against what was acknowledged.
func (l *ledger) compare(t *testing.T, node string, s *standing) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	held, faults := l.faults(s)
	require.Empty(t, faults, node)
	t.Logf("%s at %d: %d grants and %d drops acknowledged, %d held; %d tickets live", node, s.Index,
		l.grants, l.count-l.grants, held, len(s.Live))
}

// faults are what is wrong with what a node has, or with what was reported; held is how many
// acknowledged grants it still has.
func (l *ledger) faults(s *standing) (held int, faults []string) {
	faults = append(faults, l.wrong...)
	live := make(map[fsm.TicketRef]liveTicket)
	tokens := make(map[uint64]fsm.TicketRef)
	for _, ticket := range s.Live {
		live[ticket.TicketRef] = ticket
		if other, twice := tokens[ticket.Token]; twice && ticket.Token != 0 {
			faults = append(faults, fmt.Sprintf("%+v and %+v have one token", other, ticket))
		}
		tokens[ticket.Token] = ticket.TicketRef
	}
	for ref, e := range l.entries {
		ticket, there := live[ref]
		switch {
		case e.dropped:
			if there {
				faults = append(faults, fmt.Sprintf("%+v was acknowledged as dropped, and is there",
					ticket))
			}
		case !there:
			if !e.dropping {
				faults = append(faults, fmt.Sprintf("%+v was granted %s with %d, and is not there",
					ref, e.name, e.token))
			}
		case ticket != liveTicket{ref, e.name, e.token}:
			faults = append(faults, fmt.Sprintf("%+v was granted %s with %d, and is %+v", ref,
				e.name, e.token, ticket))
		default:
			held++
		}
	}
	return held, faults
}

// The ledger itself notices every kind of loss.
func TestLedgerNamesWhatIsLost(t *testing.T) {
	a, b := fsm.TicketRef{Session: 1, Ticket: 1}, fsm.TicketRef{Session: 1, Ticket: 2}
	granted := func(ref fsm.TicketRef, name string, token uint64) said {
		return said{Of: "granted", TicketRef: ref, Name: name, Token: token}
	}
	reported := func(of string, ref fsm.TicketRef) said { return said{Of: of, TicketRef: ref} }
	held := []liveTicket{{a, "x", 7}}
	for _, tt := range []struct {
		name  string
		lines []said
		live  []liveTicket
		fault string // a part of it; "" = there is none
	}{
		{"held", []said{granted(a, "x", 7)}, held, ""},
		{"lost", []said{granted(a, "x", 7)}, nil, "is not there"},
		{"waits again", []said{granted(a, "x", 7)}, []liveTicket{{a, "x", 0}}, "and is"},
		{"with another token", []said{granted(a, "x", 6)}, held, "and is"},
		{"dropped", []said{granted(a, "x", 7), reported("dropping", a), reported("dropped", a)},
			nil, ""},
		{"a drop is undone", []said{granted(a, "x", 7), reported("dropping", a),
			reported("dropped", a)}, held, "as dropped"},
		{"a cancelled wait is back", []said{reported("dropping", a), reported("dropped", a)}, held,
			"as dropped"},
		{"a drop of unknown outcome, done", []said{granted(a, "x", 7), reported("dropping", a)},
			nil, ""},
		{"a drop of unknown outcome, not done", []said{granted(a, "x", 7), reported("dropping", a)},
			held, ""},
		{"a grant never reported", nil, held, ""},
		{"one token twice", nil, []liveTicket{{a, "x", 7}, {b, "y", 7}}, "one token"},
		{"a token that fell", []said{granted(a, "x", 7), granted(b, "x", 6)},
			append(held, liveTicket{b, "x", 6}), "after"},
		{"granted twice", []said{granted(a, "x", 7), granted(a, "x", 8)}, []liveTicket{{a, "x", 8}},
			"twice"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLedger()
			for _, s := range tt.lines {
				require.True(t, l.enter("n1", s))
			}
			_, faults := l.faults(&standing{Live: tt.live})
			if tt.fault == "" {
				require.Empty(t, faults)
				return
			}
			require.Contains(t, fmt.Sprint(faults), tt.fault)
		})
	}
	l := newLedger()
	l.enter("n1", granted(a, "x", 7))
	l.round()
	l.enter("n2", granted(b, "y", 7))
	_, faults := l.faults(&standing{Live: []liveTicket{{a, "x", 7}, {b, "y", 7}}})
	require.Contains(t, fmt.Sprint(faults), "an earlier round got to 7")
}

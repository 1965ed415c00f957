package fsm

import (
	"cmp"
	"fmt"

	"zamok/clock"
	"zamok/session"
	"zamok/session/tree"
)

// Range is the rules that a binary knows.
type Range struct{ Min, Max uint32 }

// Known is what this binary knows.
func Known() Range { return Range{Min: 1, Max: 1} }

// Machine is the state of the lock store. See the package comment; its invariants M1 to M13 are
// tested by Check.
type Machine struct {
	known Range

	// Canonical: what a snapshot holds. All but reports is in the digest.
	term     uint64
	index    uint64
	time     clock.Time
	office   uint64
	rules    uint32
	cluster  ClusterID
	restored uint64     // sessions with ids up to this one belong to a history before this one
	quiet    clock.Time // nothing is granted before
	sessions *session.Table
	tickets  *tree.Tree[ticketKey, ticket]
	delays   *tree.Tree[string, clock.Time]
	members  *tree.Tree[string, MemberRecord]
	reports  *tree.Tree[string, Digest]
	sum      session.Sum // of tickets, delays and members

	// Derived: rebuilt by Restore.
	locks  *tree.Tree[string, *lock]
	due    *tree.Tree[dueKey, ticketKey]
	owners map[ownerKey]owned // only ever looked up, never ranged over
	counts Counts

	// Of the step at hand.
	in      decoded
	out     Applied
	freed   []*lock // may have somebody to grant to
	moved   []*lock // whose queue changed
	granted []birth
	found   []*lock
	keys    []ticketKey
	search  search
	// Of the entry at hand.
	searched int    // the steps of its searches
	told     int    // the tickets in its Attached events
	raise    uint32 // what its SetRules raises the rules to; 0 = nothing
}

// New returns the machine that every node of a new cluster begins with.
func New() *Machine { return newMachine(Known()) }

// NewFor is New for a binary that knows other rules than this one: to try out raising them.
func NewFor(known Range) *Machine { return newMachine(known) }

func newMachine(known Range) *Machine {
	return &Machine{
		known:    known,
		rules:    1,
		sessions: session.NewTable(),
		tickets:  tree.New[ticketKey, ticket](ticketKey.compare),
		delays:   tree.New[string, clock.Time](cmp.Compare[string]),
		members:  tree.New[string, MemberRecord](cmp.Compare[string]),
		reports:  tree.New[string, Digest](cmp.Compare[string]),
		locks:    tree.New[string, *lock](cmp.Compare[string]),
		due:      tree.New[dueKey, ticketKey](dueKey.compare),
		owners:   make(map[ownerKey]owned),
	}
}

// RulesError says that this binary does not know the rules that it would have to go on under.
// Nothing has been applied.
type RulesError struct {
	Need  uint32
	Known Range
}

func (e *RulesError) Error() string {
	return fmt.Sprintf("the cluster needs rules %d and this binary knows %d to %d; nothing was applied: start a binary that knows them",
		e.Need, e.Known.Min, e.Known.Max)
}

// Apply applies one entry of the replicated log, which carries term. Bad input never gives an
// error but a refusal, the same on every node; an error is a *RulesError and means that the
// process must end. The machine keeps nothing of entry.
func (m *Machine) Apply(term uint64, entry []byte) (Applied, error) {
	fault := decodeEntry(entry, &m.in)
	e := &m.in.entry
	if fault == nil && e.Rules == m.rules {
		if err := m.beyond(e.Commands); err != nil {
			return Applied{}, err
		}
	}
	m.enter(term)
	m.index++
	m.out = Applied{Index: m.index}
	m.searched, m.told, m.raise = 0, 0, 0
	switch {
	case fault != nil:
		m.out.Refused, m.out.Fault = Malformed, fault.Error()
	case e.Rules != m.rules:
		m.out.Refused = OtherRules
	default:
		m.advance(e.Reading)
		m.hear(e)
		m.bury()
		m.out.Results = make([]Result, 0, len(e.Commands))
		for _, c := range e.Commands {
			m.index++
			r := m.act(c)
			m.settle()
			r.Index = m.index
			m.out.Results = append(m.out.Results, r)
		}
		if m.raise != 0 {
			m.rules = m.raise // all of an entry lives under the rules that it was encoded under
		}
	}
	m.out.Stamp, m.out.Time = m.Stamp(), m.time
	out := m.out
	m.out = Applied{}
	return out, nil
}

// beyond looks for a SetRules that would take the machine out of this binary's range.
func (m *Machine) beyond(commands []Command) error {
	for _, c := range commands {
		if set, ok := c.(*SetRules); ok && set.Rules == m.rules+1 && set.Rules > m.known.Max {
			return &RulesError{Need: set.Rules, Known: m.known}
		}
	}
	return nil
}

// enter ends the office with its term. Terms of one log never fall. A reading of that office can still be on its way through a
// later term, from a leader that was deposed and elected again; if it counted there, time would leap
// over what was renewed in between.
func (m *Machine) enter(term uint64) {
	if term != m.term {
		m.term, m.office = term, 0
	}
}

// advance is the machine's clock: only a reading of the present office counts.
func (m *Machine) advance(r clock.Reading) { m.time = clock.Advance(m.time, m.office, r) }

// hear renews every session that the entry is a sign of life of.
func (m *Machine) hear(e *Entry) {
	for _, id := range e.Renewals {
		if !m.hearFrom(id) {
			m.out.Dead = append(m.out.Dead, id)
		}
	}
	for _, c := range e.Commands {
		switch c := c.(type) {
		case *OpenSession:
			m.hearFrom(m.sessions.BySecret(c.Secret))
		case *Attach:
			if s := m.sessions.Find(c.Session); s != nil && s.Secret == c.Secret {
				m.hearFrom(c.Session)
			}
		case *Acquire:
			m.hearFrom(c.Session)
		case *Drop:
			m.hearFrom(c.Session)
		case *Downgrade:
			m.hearFrom(c.Session)
		case *CloseSession:
			m.hearFrom(c.Session)
		}
	}
}

func (m *Machine) hearFrom(id session.ID) bool {
	s := m.sessions.Find(id)
	if s == nil {
		return false
	}
	m.sessions.Hear(s, m.time, m.index)
	return true
}

// act carries out one command.
func (m *Machine) act(c Command) Result {
	switch c := c.(type) {
	case *OpenSession:
		return m.openSession(c)
	case *Attach:
		return m.attach(c)
	case *Detached:
		return m.detached(c)
	case *CloseSession:
		return m.closeSession(c)
	case *Acquire:
		return m.acquire(c)
	case *Drop:
		return m.drop(c)
	case *Downgrade:
		return m.downgrade(c)
	case *ForceRelease:
		return m.forceRelease(c)
	case *ExpireSession:
		return m.expireSession(c)
	case *LeaderStart:
		return m.leaderStart(c)
	case *Member:
		return m.member(c)
	case *SetRules:
		return m.setRules(c)
	case *Digest:
		return m.report(c)
	default:
		panic(fmt.Sprintf("fsm: the decoder let %T through", c)) // a new command without its case
	}
}

func (m *Machine) emit(e Event) {
	e.Index = m.index
	m.out.Events = append(m.out.Events, e)
}

// NextDue returns when the next burial is due; what is due already, left over from a full entry,
// counts. False: nothing is waiting for time to pass. Unlike a query it is no mere reading: it must
// not run beside anything else.
func (m *Machine) NextDue() (clock.Time, bool) {
	at, _, ok := m.sessions.Earliest()
	if k, _, some := m.due.Min(); some && (!ok || k.at < at) {
		return k.at, true
	}
	return at, ok
}

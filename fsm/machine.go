package fsm

import (
	"cmp"
	"fmt"
	"slices"

	"zamok/clock"
	"zamok/fsm/internal/tree"
	"zamok/session"
)

// VersionRange is the state machine versions that a binary knows.
type VersionRange struct{ Min, Max uint32 }

// SupportedVersions is what this binary knows.
func SupportedVersions() VersionRange { return VersionRange{Min: 1, Max: 1} }

// Machine is the state of the lock service. See the package comment, with its invariants.
type Machine struct {
	supported VersionRange

	canonical

	// Derived: rebuilt by Restore.
	bySecret      map[session.Hash]session.ID // only ever looked up, never ranged over
	endedBySecret map[session.Hash]uint64     // as well
	locks         *tree.Tree[string, *lock]
	due           *tree.Tree[dueKey, TicketRef]
	owned         *tree.Tree[ownedKey, struct{}]
	live          [Ended]int // how many tickets wait and are granted, by state
	// Usage that quotas limit: all bytes, those of delays and of ended sessions, and the usage of
	// each identity. Only a query iterates over the map.
	bytes, delayBytes, endedBytes uint64
	identities                    map[string]*usage

	// Of the current step.
	in        decoded
	out       Applied
	marked    []*lock // a lock is there once for each time that one of its flags was set
	granted   []grantOrder
	keyBuffer []TicketRef
	// Of the current entry.
	searched    budget // the steps of its searches
	attached    budget // the tickets in its Attached events
	nextVersion uint32 // what its Upgrade raises the version to; 0 = nothing
}

// New returns the state machine that every node of a new cluster begins with.
func New() *Machine { return NewWithVersions(SupportedVersions()) }

// NewWithVersions is New for a binary that knows other versions than this one, to test an upgrade.
func NewWithVersions(supported VersionRange) *Machine {
	return &Machine{
		supported: supported,
		canonical: canonical{
			header: header{version: 1, longestTTL: LongestTTLDefault,
				highestTTL: LongestTTLDefault, quotas: QuotasDefault()},
			sessions: tree.New[session.ID, session.Session](cmp.Compare[session.ID]),
			tickets:  tree.New[TicketRef, ticket](TicketRef.compare),
			delays:   tree.New[string, clock.Time](cmp.Compare[string]),
			members:  tree.New[string, MemberRecord](cmp.Compare[string]),
			ended:    tree.New[uint64, EndedSession](cmp.Compare[uint64]),
		},
		bySecret: make(map[session.Hash]session.ID), endedBySecret: make(map[session.Hash]uint64),
		identities: make(map[string]*usage),
		searched:   budget{most: SearchMax, by: make(map[string]int)},
		attached:   budget{most: AttachedMax, by: make(map[string]int)},
		locks:      tree.New[string, *lock](cmp.Compare[string]),
		due:        tree.New[dueKey, TicketRef](dueKey.compare),
		owned:      tree.New[ownedKey, struct{}](ownedKey.compare),
	}
}

// VersionError means that this binary does not know the state machine version that the cluster
// needs. Nothing has been applied.
type VersionError struct {
	Need  uint32
	Known VersionRange
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("the cluster needs state machine version %d and this binary knows %d to "+
		"%d; nothing was applied: start a binary that knows them",
		e.Need, e.Known.Min, e.Known.Max)
}

// Apply applies one entry of the replicated log, which carries term. A bad command is refused, the
// same on every node. An error is a *VersionError or a *FormatError: nothing was applied, other
// nodes may apply the entry, and the process must end. The state machine keeps no reference to
// entry.
func (m *Machine) Apply(term uint64, entry []byte) (Applied, error) {
	if err := m.in.read(entry); err != nil {
		return Applied{}, err
	}
	e := &m.in.entry
	if e.Version == m.version {
		if err := m.unknownVersion(e.Commands); err != nil {
			return Applied{}, err
		}
	}
	m.enterTerm(term)
	m.index++
	m.out = Applied{Index: m.index}
	m.searched.reset()
	m.attached.reset()
	m.nextVersion = 0
	if e.Version != m.version {
		m.out.Refused = OtherVersion
	} else {
		m.advance(e.Reading)
		m.renewSenders(e)
		m.expireDue()
		m.out.Results = make([]Result, 0, len(e.Commands))
		m.out.Events = slices.Grow(m.out.Events, len(e.Commands)) // most commands make one
		for _, c := range e.Commands {
			m.index++
			r := c.execute(m)
			m.grantUnblocked()
			r.Index = m.index
			m.out.Results = append(m.out.Results, r)
		}
		if m.nextVersion != 0 {
			// all of an entry is applied under the version that it was encoded for
			m.version = m.nextVersion
		}
	}
	m.out.Stamp, m.out.Time = m.Stamp(), m.time
	out := m.out
	m.out = Applied{}
	return out, nil
}

// unknownVersion returns the version of a Upgrade that this binary does not know.
func (m *Machine) unknownVersion(commands []Command) error {
	for _, c := range commands {
		if set, ok := c.(*Upgrade); ok && set.Version == m.version+1 &&
			set.Version > m.supported.Max {
			return &VersionError{Need: set.Version, Known: m.supported}
		}
	}
	return nil
}

// enterTerm ends the epoch with its term. Terms of one log never fall. A reading of that epoch can
// still arrive in a later term, from a leader that was deposed and elected again; if it counted
// there, time would leap over renewals in between.
func (m *Machine) enterTerm(term uint64) {
	if term != m.term {
		m.term, m.epoch = term, 0
	}
}

// advance is the state machine's clock: only a reading of the current epoch counts.
func (m *Machine) advance(r clock.Reading) { m.time = clock.Advance(m.time, m.epoch, r) }

// renewSenders renews every session that the entry is a renewal of.
func (m *Machine) renewSenders(e *Entry) {
	for _, id := range e.Renewals {
		if !m.renew(id) {
			m.out.Unrenewed = append(m.out.Unrenewed, id)
		}
	}
	for _, c := range e.Commands {
		switch c := c.(type) {
		case *OpenSession:
			m.renew(m.bySecret[c.Secret])
		case *Attach:
			if s := m.sessions.Ref(c.Session); s != nil && s.Secret == c.Secret {
				m.renew(c.Session)
			}
		case *Acquire:
			m.renew(c.Session)
		case *Drop:
			m.renew(c.Session)
		case *Downgrade:
			m.renew(c.Session)
		case *CloseSession:
			m.renew(c.Session)
		case *WithdrawSession:
			m.renew(c.Session)
		}
	}
}

func (m *Machine) renew(id session.ID) bool {
	s := m.sessions.Ref(id)
	if s == nil {
		return false
	}
	s.Renew(m.time, m.index)
	return true
}

func (m *Machine) emit(e Event) {
	e.Index = m.index
	m.out.Events = append(m.out.Events, e)
}

// NextDueExact is how far ahead NextDue looks exactly. An answer that is too early costs one entry
// that expires nothing, whose time makes the schedule exact: at most one in NextDueExact, however
// seldom a leader proposes otherwise.
const NextDueExact = clock.Second

// NextDue returns when the next expiration is due, which may be in the past if an entry was full;
// more than NextDueExact ahead it may be too early. False: nothing expires. Unlike a query it
// changes the schedule: it must not run concurrently with anything else.
func (m *Machine) NextDue() (clock.Time, bool) {
	key, _, some := m.earliest(m.time.Add(NextDueExact))
	return key.at, some
}

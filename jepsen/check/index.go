package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// noticeDelayMax is how long a client may take after a pause to notice that it has lost its locks.
const noticeDelayMax = 200 * time.Millisecond

const never = time.Duration(1<<63 - 1)

// historyIndex is an index over a history, in the order that the checks need. It does not change
// the history.
type historyIndex struct {
	*History
	ops       []*Op
	holds     []*Hold
	events    []*Event    // each once, by index
	conflicts [][2]*Event // what two recorded differently
	sessions  map[uint64]*sessionRecords
	tickets   map[Ref]*ticket
	byName    map[string]*lockRecords
	locks     []*lockRecords           // sorted by name: findings come in the same order every time
	diedAt    map[string]time.Duration // by client
	excused   map[string][]span        // by client: when its holds are excused
	end       time.Duration
}

// sessionRecords is all that was recorded of one session.
type sessionRecords struct {
	lease           *Session // empty: it was not listed
	closed          *Op
	expireRequested time.Duration // when an operator requested its end; never = none did
	// its end in the log, and as it was first seen, perhaps in a list only
	loggedEnd, seenEnd *Event
	// in order of their confirmation, each with the latest Sent that was confirmed by then
	renewals []Renewal
}

// ticket is all that is known of one acquisition.
type ticket struct {
	acquire, unlock, downgrade *Op
	granted, ended             *Event
	hold, lost                 *Hold // the first, and the one that was reported lost first
}

// lockRecords is all that was recorded of one name.
type lockRecords struct {
	name    string
	forced  []*Op // releases by force that may have had an effect
	grants  []*Op // acquisitions that succeeded
	reads   []*Op // checks and gets that were answered
	holds   []*Hold
	events  []*Event        // grants, and the ends of grants
	unknown []*Op           // acquisitions whose outcome is not known
	tokens  map[uint64]bool // that grants are known to have carried
}

type span struct{ from, to time.Duration }

func newHistoryIndex(h *History) *historyIndex {
	v := &historyIndex{
		History: h, sessions: map[uint64]*sessionRecords{}, byName: map[string]*lockRecords{},
		tickets: make(map[Ref]*ticket, len(h.Holds)),
		diedAt:  map[string]time.Duration{}, excused: map[string][]span{}, end: h.Plan.End,
	}
	for i := range h.Sessions {
		s := &h.Sessions[i]
		if s.Session != 0 {
			v.session(s.Session).lease = s
		}
		if s.Died != 0 {
			v.diedAt[s.Client] = max(s.Died, v.diedAt[s.Client])
		}
	}
	renewals := slices.SortedStableFunc(slices.Values(h.Renewals),
		func(a, b Renewal) int { return cmp.Compare(a.Confirmed, b.Confirmed) })
	for _, renewal := range renewals {
		s := v.session(renewal.Session)
		if n := len(s.renewals); n > 0 {
			renewal.Sent = max(renewal.Sent, s.renewals[n-1].Sent)
		}
		s.renewals = append(s.renewals, renewal)
	}
	for _, fault := range h.Faults {
		if fault.ExcusesClient {
			v.excused[fault.Target] = append(v.excused[fault.Target],
				span{fault.From, fault.To + noticeDelayMax})
		}
	}
	v.ops, v.holds = h.LatestOps(), h.LatestHolds()
	v.addOps()
	v.addHolds()
	v.addEvents()
	for _, name := range slices.Sorted(maps.Keys(v.byName)) {
		v.locks = append(v.locks, v.byName[name])
	}
	return v
}

// LatestOps are the calls, each once, as it was recorded last.
func (h *History) LatestOps() []*Op {
	type opKey struct {
		client string
		id     uint64
	}
	return latest(h.Ops, func(op *Op) (opKey, bool) { return opKey{op.Client, op.ID}, op.ID != 0 })
}

// LatestHolds are the holds, each once, as it was recorded last.
func (h *History) LatestHolds() []*Hold {
	type holdKey struct {
		client string
		Ref
		from time.Duration
	}
	return latest(h.Holds, func(hold *Hold) (holdKey, bool) {
		return holdKey{hold.Client, hold.Ref, hold.From}, hold.Ref.known()
	})
}

// latest leaves of several records of one thing the last.
func latest[T any, K comparable](records []T, key func(*T) (K, bool)) []*T {
	position := make(map[K]int, len(records))
	kept := make([]*T, 0, len(records))
	for i := range records {
		k, ok := key(&records[i])
		if at, duplicate := position[k]; ok && duplicate {
			kept[at] = &records[i]
			continue
		}
		if ok {
			position[k] = len(kept)
		}
		kept = append(kept, &records[i])
	}
	return kept
}

func (v *historyIndex) lock(name string) *lockRecords {
	return entry(v.byName, name,
		func() *lockRecords { return &lockRecords{name: name, tokens: map[uint64]bool{}} })
}

// session is the one with this number, made if need be.
func (v *historyIndex) session(id uint64) *sessionRecords {
	return entry(v.sessions, id, func() *sessionRecords {
		return &sessionRecords{lease: &Session{}, expireRequested: never}
	})
}

// entry is the value of a key, made if need be.
func entry[K comparable, V any](m map[K]*V, key K, fresh func() *V) *V {
	if m[key] == nil {
		m[key] = fresh()
	}
	return m[key]
}

// ticket is the one with this name, made if need be; nil if the name is not known.
func (v *historyIndex) ticket(ref Ref) *ticket {
	if !ref.known() {
		return nil
	}
	return entry(v.tickets, ref, func() *ticket { return &ticket{} })
}

func (v *historyIndex) addOps() {
	for _, op := range v.ops {
		v.end = max(v.end, op.Call, op.Return)
		switch op.Kind {
		case OpLock, OpTryLock:
			v.addAcquire(op)
		case OpUnlock:
			// Of several unlocks keep the one that proves most: a second one is refused, and proves
			// nothing.
			if t := v.ticket(op.Ref); t != nil &&
				(t.unlock == nil || t.unlock.Outcome == Refused || op.Outcome == OK) {
				t.unlock = op
			}
		case OpDowngrade:
			if t := v.ticket(op.Ref); t != nil && op.Outcome != Refused {
				t.downgrade = op
			}
		case OpClose:
			v.session(op.Session).closed = op
		case OpCheck, OpGet:
			if op.Outcome == OK && len(op.Items) > 0 {
				l := v.lock(op.Items[0].Name)
				l.reads = append(l.reads, op)
			}
		case OpForceRelease:
			if op.Outcome != Refused && len(op.Items) > 0 {
				l := v.lock(op.Items[0].Name)
				l.forced = append(l.forced, op)
			}
		case OpExpireSession:
			if s := v.session(op.Session); op.Outcome != Refused {
				s.expireRequested = min(s.expireRequested, op.Call)
			}
		}
	}
}

func (v *historyIndex) addAcquire(op *Op) {
	if t := v.ticket(op.Ref); t != nil && t.acquire == nil {
		t.acquire = op
	}
	for _, item := range op.Items {
		switch l := v.lock(item.Name); op.Outcome {
		case OK:
			l.grants = append(l.grants, op)
			l.tokens[op.Token] = true
		case Unknown:
			l.unknown = append(l.unknown, op)
		}
	}
}

func (v *historyIndex) addHolds() {
	for _, hold := range v.holds {
		v.end = max(v.end, hold.From, hold.To)
		if t := v.ticket(hold.Ref); t != nil {
			t.hold = cmp.Or(t.hold, hold)
			if hold.End == Lost && (t.lost == nil || hold.To < t.lost.To) {
				t.lost = hold
			}
		}
		for _, item := range hold.Items {
			l := v.lock(item.Name)
			l.holds = append(l.holds, hold)
			l.tokens[hold.Token] = true // its client may have died before it wrote down the answer
		}
	}
}

// addEvents keeps each event once, as it was seen first.
func (v *historyIndex) addEvents() {
	all := make([]*Event, len(v.Events))
	for i := range v.Events {
		all[i] = &v.Events[i]
		v.end = max(v.end, v.Events[i].At)
	}
	// at one index all is removed first, then grants are made
	order := map[EventKind]int{EvGranted: 1}
	slices.SortStableFunc(all, func(a, b *Event) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(order[a.Kind], order[b.Kind]),
			cmp.Compare(a.At, b.At))
	})
	type key struct {
		index uint64
		what  EventKind
		Ref
	}
	seen := make(map[key]*Event, len(all))
	for _, ev := range all {
		k := key{ev.Index, ev.Kind, ev.Ref}
		switch first := seen[k]; {
		case first == nil:
			seen[k] = ev
			v.addEvent(ev)
		case first.Token != ev.Token || first.Reason != ev.Reason ||
			!slices.Equal(first.Items, ev.Items):
			v.conflicts = append(v.conflicts, [2]*Event{first, ev})
		}
	}
}

func (v *historyIndex) addEvent(ev *Event) {
	v.events = append(v.events, ev)
	if ev.Kind == EvEnded {
		s := v.session(ev.Session)
		if s.seenEnd == nil || ev.At < s.seenEnd.At {
			s.seenEnd = ev
		}
		if ev.Index != 0 {
			s.loggedEnd = cmp.Or(s.loggedEnd, ev)
		}
	}
	t := v.ticket(ev.Ref)
	if t == nil {
		return
	}
	switch ev.Kind {
	case EvGranted:
		t.granted = cmp.Or(t.granted, ev)
	case EvLost, EvReleased, EvRefused:
		t.ended = cmp.Or(t.ended, ev)
	}
	if t.granted == nil {
		return
	}
	items := t.granted.Items
	if ev.Kind == EvGranted { // perhaps a second one, of other locks
		items = ev.Items
	}
	for _, item := range items {
		l := v.lock(item.Name)
		l.events = append(l.events, ev)
		if ev.Kind == EvGranted {
			l.tokens[ev.Token] = true
		}
	}
}

// isExcused reports whether a grant may have ended before its holder could know, so that its hold
// proves nothing. until is the end of the time that matters.
func (v *historyIndex) isExcused(hold *Hold, until time.Duration) bool {
	return v.session(hold.Session).lease.ReleaseOnDisconnect ||
		v.pausedDuring(hold.Client, hold.From, until) || v.endRequestedAt(hold) < until
}

func (v *historyIndex) pausedDuring(client string, from, to time.Duration) bool {
	return slices.ContainsFunc(v.excused[client],
		func(s span) bool { return s.from < to && s.to > from })
}

// endRequestedAt is when an operator requested the end of a hold; never if none did.
func (v *historyIndex) endRequestedAt(hold *Hold) time.Duration {
	first := v.session(hold.Session).expireRequested
	for _, item := range hold.Items {
		for _, op := range v.lock(item.Name).forced {
			if hold.Token <= op.Token {
				first = min(first, op.Call)
			}
		}
	}
	return first
}

// formatTime is a moment as findings show it.
func (v *historyIndex) formatTime(t time.Duration) string {
	return fmt.Sprintf("%.3fs", (t - v.Plan.Begin).Seconds())
}

// itemFor is the item of one lock in an acquisition.
func itemFor(items []Item, name string) Item {
	for _, it := range items {
		if it.Name == name {
			return it
		}
	}
	return Item{Name: name}
}

// compatible reports whether two holders may hold one lock together; permits are summed elsewhere.
func compatible(a, b Item) bool { return a.Mode == b.Mode && a.Mode != Exclusive }

func (it Item) String() string {
	if it.Mode == Permits {
		return fmt.Sprintf("%d of %d permits", it.Permits, it.Limit)
	}
	return string(it.Mode)
}

package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// noticeMax is how long a client may take to see, after a pause, that it has lost its locks.
const noticeMax = 200 * time.Millisecond

const never = time.Duration(1<<63 - 1)

// view is a history, put in order for the checks. It refers to the history and changes nothing in it.
type view struct {
	*History
	ops      []*Op
	holds    []*Hold
	events   []*Event    // each once, by index
	disputed [][2]*Event // what two recorded differently
	sessions map[uint64]*Session
	tickets  map[Ref]*ticket
	locks    map[string]*lock
	names    []string // of locks, sorted: findings come in the same order every time
	died     map[string]time.Duration
	voids    map[string][]span        // by client: when nothing is promised of its beliefs
	forced   map[string][]*Op         // by lock: releases by force that may have had an effect
	expired  map[uint64]time.Duration // by session: when an operator asked for its end
	closed   map[uint64]*Op           // by session
	end      time.Duration
}

// ticket is all that is known of one acquisition.
type ticket struct {
	acquire, unlock, downgrade *Op
	granted, gone              *Event
	hold                       *Hold
}

// lock is all that was recorded of one name.
type lock struct {
	name    string
	grants  []*Op // acquisitions that succeeded
	reads   []*Op // checks and gets that were answered
	holds   []*Hold
	events  []*Event // grants, and the ends of grants
	unknown []*Op    // acquisitions whose outcome is not known
}

type span struct{ from, to time.Duration }

func newView(h *History) *view {
	v := &view{
		History: h, sessions: map[uint64]*Session{}, locks: map[string]*lock{},
		tickets: make(map[Ref]*ticket, len(h.Holds)), died: map[string]time.Duration{}, voids: map[string][]span{},
		closed: map[uint64]*Op{}, forced: map[string][]*Op{}, expired: map[uint64]time.Duration{}, end: h.Plan.End,
	}
	for i := range h.Sessions {
		s := &h.Sessions[i]
		if s.Session != 0 {
			v.sessions[s.Session] = s
		}
		if s.Died != 0 {
			v.died[s.Client] = max(s.Died, v.died[s.Client])
		}
	}
	for _, fault := range h.Faults {
		if fault.Voids {
			v.voids[fault.Target] = append(v.voids[fault.Target], span{fault.From, fault.To + noticeMax})
		}
	}
	v.ops, v.holds = h.Calls(), h.Beliefs()
	v.addOps()
	v.addHolds()
	v.addEvents()
	v.names = slices.Sorted(maps.Keys(v.locks))
	return v
}

// Calls are the calls, each once, as it was recorded last.
func (h *History) Calls() []*Op {
	type call struct {
		client string
		id     uint64
	}
	return latest(h.Ops, func(op *Op) (call, bool) { return call{op.Client, op.ID}, op.ID != 0 })
}

// Beliefs are the holds, each once, as it was recorded last.
func (h *History) Beliefs() []*Hold {
	type belief struct {
		client string
		Ref
		from time.Duration
	}
	return latest(h.Holds, func(b *Hold) (belief, bool) { return belief{b.Client, b.Ref, b.From}, b.Ref.known() })
}

// latest leaves of several records of one thing the last.
func latest[T any, K comparable](records []T, key func(*T) (K, bool)) []*T {
	place := make(map[K]int, len(records))
	kept := make([]*T, 0, len(records))
	for i := range records {
		k, ok := key(&records[i])
		if at, again := place[k]; ok && again {
			kept[at] = &records[i]
			continue
		}
		if ok {
			place[k] = len(kept)
		}
		kept = append(kept, &records[i])
	}
	return kept
}

func (v *view) lock(name string) *lock {
	l := v.locks[name]
	if l == nil {
		l = &lock{name: name}
		v.locks[name] = l
	}
	return l
}

// ticket is the one with this name, made if need be; nil if the name is not known.
func (v *view) ticket(ref Ref) *ticket {
	if !ref.known() {
		return nil
	}
	t := v.tickets[ref]
	if t == nil {
		t = &ticket{}
		v.tickets[ref] = t
	}
	return t
}

func (v *view) addOps() {
	for _, op := range v.ops {
		v.end = max(v.end, op.Call, op.Return)
		switch op.Kind {
		case OpLock, OpTryLock:
			v.addAcquire(op)
		case OpUnlock:
			// Of several the one that says most: a second unlock is refused, and says nothing.
			if t := v.ticket(op.Ref); t != nil && (t.unlock == nil || t.unlock.Outcome == Refused || op.Outcome == OK) {
				t.unlock = op
			}
		case OpDowngrade:
			if t := v.ticket(op.Ref); t != nil && op.Outcome != Refused {
				t.downgrade = op
			}
		case OpClose:
			v.closed[op.Session] = op
		case OpCheck, OpGet:
			if op.Outcome == OK && len(op.Items) > 0 {
				l := v.lock(op.Items[0].Name)
				l.reads = append(l.reads, op)
			}
		case OpForce:
			if op.Outcome != Refused && len(op.Items) > 0 {
				v.forced[op.Items[0].Name] = append(v.forced[op.Items[0].Name], op)
			}
		case OpExpire:
			if before, again := v.expired[op.Session]; op.Outcome != Refused && (!again || op.Call < before) {
				v.expired[op.Session] = op.Call
			}
		}
	}
}

func (v *view) addAcquire(op *Op) {
	if t := v.ticket(op.Ref); t != nil && t.acquire == nil {
		t.acquire = op
	}
	for _, item := range op.Items {
		switch l := v.lock(item.Name); op.Outcome {
		case OK:
			l.grants = append(l.grants, op)
		case Unknown:
			l.unknown = append(l.unknown, op)
		}
	}
}

func (v *view) addHolds() {
	for _, b := range v.holds {
		v.end = max(v.end, b.From, b.To)
		if t := v.ticket(b.Ref); t != nil && t.hold == nil {
			t.hold = b
		}
		for _, item := range b.Items {
			l := v.lock(item.Name)
			l.holds = append(l.holds, b)
		}
	}
}

// addEvents keeps each event once, as whoever saw it first did.
func (v *view) addEvents() {
	all := make([]*Event, len(v.Events))
	for i := range v.Events {
		all[i] = &v.Events[i]
		v.end = max(v.end, v.Events[i].At)
	}
	slices.SortStableFunc(all, func(a, b *Event) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.At, b.At))
	})
	type key struct {
		index uint64
		what  Happened
		Ref
	}
	seen := make(map[key]*Event, len(all))
	for _, ev := range all {
		k := key{ev.Index, ev.Happened, ev.Ref}
		switch first := seen[k]; {
		case first == nil:
			seen[k] = ev
			v.addEvent(ev)
		case first.Token != ev.Token || first.Why != ev.Why || !slices.Equal(first.Items, ev.Items):
			v.disputed = append(v.disputed, [2]*Event{first, ev})
		}
	}
}

// rank orders what happens at one index: first all is removed, then grants are made.
func (ev *Event) rank() int {
	if ev.Happened == EvGranted {
		return 1
	}
	return 0
}

func (v *view) addEvent(ev *Event) {
	v.events = append(v.events, ev)
	t := v.ticket(ev.Ref)
	if t == nil {
		return
	}
	items := ev.Items
	switch ev.Happened {
	case EvGranted:
		if t.granted == nil {
			t.granted = ev
		}
	case EvLost, EvReleased, EvRefused:
		if t.gone == nil {
			t.gone = ev
		}
		if t.granted == nil {
			return
		}
		items = t.granted.Items
	case EvDowngraded:
		if t.granted != nil {
			items = t.granted.Items
		}
	}
	for _, item := range items {
		l := v.lock(item.Name)
		l.events = append(l.events, ev)
	}
}

// excused says that a grant may end before its holder can know: nothing is promised of what it
// believes. until is how long that matters.
func (v *view) excused(b *Hold, until time.Duration) bool {
	if s := v.sessions[b.Session]; s != nil && s.Disconnect {
		return true
	}
	for _, s := range v.voids[b.Client] {
		if s.from < until && s.to > b.From {
			return true
		}
	}
	return v.forcedAt(b) < until
}

// forcedAt is when an operator asked for a ticket's end; never if not.
func (v *view) forcedAt(b *Hold) time.Duration {
	first := never
	if at, asked := v.expired[b.Session]; asked {
		first = at
	}
	for _, item := range b.Items {
		for _, op := range v.forced[item.Name] {
			if b.Token <= op.Token {
				first = min(first, op.Call)
			}
		}
	}
	return first
}

// at tells a moment to people.
func (v *view) at(t time.Duration) string {
	return fmt.Sprintf("%.3fs", (t - v.Plan.Begin).Seconds())
}

// itemOf is what an acquisition asked of one lock.
func itemOf(items []Item, name string) Item {
	for _, it := range items {
		if it.Name == name {
			return it
		}
	}
	return Item{Name: name}
}

// fits says whether two holders of one lock may be beside each other; permits are summed elsewhere.
func fits(a, b Item) bool { return a.Mode == b.Mode && a.Mode != Exclusive }

func (it Item) String() string {
	if it.Mode == Permits {
		return fmt.Sprintf("%d of %d permits", it.Permits, it.Of)
	}
	return string(it.Mode)
}

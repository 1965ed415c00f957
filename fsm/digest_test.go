package fsm

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/session"
)

// A field that a snapshot does not have is lost in a restore, and one in which nodes may differ
// unnoticed (M12). Check does not show that. The fields of a session are package session's.

func TestDigestCoversEveryField(t *testing.T) {
	changes := map[string]func(*Machine){
		"term":            func(m *Machine) { m.term++ },
		"index":           func(m *Machine) { m.index++ },
		"time":            func(m *Machine) { m.time++ },
		"epoch":           func(m *Machine) { m.epoch++ },
		"version":         func(m *Machine) { m.version++ },
		"cluster":         func(m *Machine) { m.cluster[15]++ },
		"restoredThrough": func(m *Machine) { m.restoredThrough++ },
		"holdOffUntil":    func(m *Machine) { m.holdOffUntil++ },
		"longestTTL":      func(m *Machine) { m.longestTTL-- },
		"highestTTL":      func(m *Machine) { m.highestTTL++ },
		"quotas":          func(m *Machine) { m.quotas.Share++ },
		"ends":            func(m *Machine) { m.ends++ },
	}
	requireAllFields(t, reflect.TypeFor[header](), changes)
	digests := map[uint64]string{populatedMachine(t).Digest(): "as it is"}
	for field, change := range changes {
		m := populatedMachine(t)
		change(m)
		require.NotContains(t, digests, m.Digest(), field)
		digests[m.Digest()] = field
	}
	for field := range changeEachField(QuotasDefault()) {
		m := populatedMachine(t)
		m.quotas = field.value
		if field.name != "Share" {
			require.NotContains(t, digests, m.Digest(), field.name)
		}
		digests[m.Digest()] = field.name
	}
}

func TestDigestCoversEveryTicketField(t *testing.T) {
	key := TicketRef{7, 1}
	changes := map[string]func(*ticket){
		"state":     func(t *ticket) { t.state = Granted },
		"reason":    func(t *ticket) { t.reason++ },
		"enqueued":  func(t *ticket) { t.enqueued++ },
		"token":     func(t *ticket) { t.token++ },
		"waitUntil": func(t *ticket) { t.waitUntil++ },
		"holdUntil": func(t *ticket) { t.holdUntil++ },
		"maxHold":   func(t *ticket) { t.maxHold++ },
		"owner":     func(t *ticket) { t.owner += "x" },
		"meta":      func(t *ticket) { t.meta += "x" },
		"items": func(t *ticket) {
			t.items = append(t.items, Item{Name: "another", Mode: Exclusive})
		},
		"slots": nil, // follow from the items
	}
	requireAllFields(t, reflect.TypeFor[ticket](), changes)
	waiting := ticket{state: Waiting, enqueued: 3, items: []Item{{"seats", Permits, 2, 5}}}
	with := func(key TicketRef, t ticket) uint64 {
		m := New()
		for _, id := range []session.ID{7, 8} {
			m.addSession(session.Session{ID: id, Secret: session.Hash{byte(id)}})
		}
		m.tickets.Set(key, t)
		return m.Digest()
	}
	digests := map[uint64]string{
		with(key, waiting):                                         "as it is",
		with(TicketRef{key.Session, 2}, waiting):                   "number",
		with(TicketRef{key.Session + 1, 1}, waiting):               "session",
		with(key, ticket{state: Ended, reason: Dropped}):           "gone",
		with(key, ticket{state: Ended, reason: Expired}):           "gone for another reason",
		with(key, ticket{state: Ended, reason: Dropped, token: 9}): "gone after a grant",
	}
	require.Len(t, digests, 6)
	for field, change := range changes {
		if change == nil {
			continue
		}
		changed := waiting
		change(&changed)
		require.NotContains(t, digests, with(key, changed), field)
		digests[with(key, changed)] = field
	}
	for field := range changeEachField(waiting.items[0]) {
		changed := waiting
		changed.items = []Item{field.value}
		require.NotContains(t, digests, with(key, changed), field.name)
		digests[with(key, changed)] = field.name
	}
}

func TestDigestCoversMembersAndDelays(t *testing.T) {
	member := MemberRecord{Member: Member{ID: "n1", Client: "c", Peer: "p", HTTP: "h",
		Version: "v"}, Announced: 7}
	ended := EndedSession{ID: 1, Identity: "i", Reason: Closed}
	withMember := func(r MemberRecord) uint64 {
		m := New()
		m.members.Set("n1", r)
		return m.Digest()
	}
	withDelay := func(name string, until clock.Time) uint64 {
		m := New()
		m.delays.Set(name, until)
		return m.Digest()
	}
	withEnded := func(number uint64, e EndedSession) uint64 {
		m := New()
		m.ended.Set(number, e)
		return m.Digest()
	}
	digests := map[uint64]string{
		New().Digest():         "without any",
		withMember(member):     "a member",
		withDelay("stock", 1):  "a delay",
		withDelay("stock", 2):  "another end",
		withDelay("ledger", 1): "another name",
		withEnded(1, ended):    "an ended session",
		withEnded(2, ended):    "another number",
	}
	require.Len(t, digests, 7)
	for field := range changeEachField(member) {
		require.NotContains(t, digests, withMember(field.value), field.name)
		digests[withMember(field.value)] = field.name
	}
	for field := range changeEachField(ended) {
		require.NotContains(t, digests, withEnded(1, field.value), field.name)
		digests[withEnded(1, field.value)] = field.name
	}
}

// requireAllFields makes a new field fail until it is listed here.
func requireAllFields[F any](t *testing.T, record reflect.Type, changes map[string]F) {
	t.Helper()
	for field := range record.Fields() {
		require.Contains(t, changes, field.Name,
			"%v has a field that this test does not know", record)
	}
	require.Len(t, changes, record.NumField())
}

// fieldChange is a record in which one field differs.
type fieldChange[R any] struct {
	name  string
	value R
}

// changeEachField yields the record once for each of its fields, with another value there.
func changeEachField[R any](record R) func(yield func(fieldChange[R]) bool) {
	return func(yield func(fieldChange[R]) bool) {
		for _, field := range reflect.VisibleFields(reflect.TypeFor[R]()) {
			if field.Anonymous {
				continue // its own fields come next
			}
			changed := record
			switch v := reflect.ValueOf(&changed).Elem().FieldByIndex(field.Index); {
			case v.Kind() == reflect.String:
				v.SetString(v.String() + "x")
			case v.CanUint():
				v.SetUint(v.Uint() + 1)
			case v.CanInt():
				v.SetInt(v.Int() + 1)
			case v.Kind() == reflect.Array:
				v.Index(v.Len() - 1).SetUint(1)
			default:
				panic("how does one change a " + v.Kind().String() + "?")
			}
			if !yield(fieldChange[R]{field.Name, changed}) {
				return
			}
		}
	}
}

// A client that missed the latest change of its tickets notices it by that change's index. So
// each change must move it, and nothing else may.
func TestChangedIsIndexOfLastTicketChange(t *testing.T) {
	b := newHarness(t)
	one, other := b.open(1, clock.Hour), b.open(2, clock.Hour)
	stock := exclusive("stock")
	wait := &Acquire{Session: one, Ticket: 1, Items: stock, Wait: Forever}
	b.do(0, &Acquire{Session: other, Ticket: 1, Items: stock})
	const s = clock.Time(clock.Second)
	for _, step := range []struct {
		name    string
		now     clock.Time
		command Command // nil: time passes
		changes bool
	}{
		{"it waits", 0, wait, true},
		{"a repeat", 0, wait, false},
		{"an attachment", 0, &Attach{Session: one, Secret: session.Hash{1}}, false},
		{"a grant out of the queue", 0, &Drop{Session: other, Ticket: 1}, true},
		{"a downgrade", 0, &Downgrade{Session: one, Ticket: 1}, true},
		{"a downgrade of what is shared", 0, &Downgrade{Session: one, Ticket: 1}, false},
		{"a drop", 0, &Drop{Session: one, Ticket: 1}, true},
		{"a drop of what is gone", 0, &Drop{Session: one, Ticket: 1, AckedThrough: 1}, false},
		{"a drop before its Acquire", 0, &Drop{Session: one, Ticket: 9}, true},
		{"another's lock", 0, &Acquire{Session: other, Ticket: 2, Items: stock}, false},
		{"a refusal", 0, &Acquire{Session: one, Ticket: 2, Items: stock}, true},
		{"an invalid command", 0, &Acquire{Session: one, Ticket: 3}, false},
		{"a timed wait", 0, &Acquire{Session: one, Ticket: 4, Items: stock, Wait: 5 * clock.Second},
			true},
		{"time passes", 4 * s, nil, false},
		{"the wait is over", 5 * s, nil, true},
		{"a timed hold", 5 * s, &Acquire{Session: one, Ticket: 5, Items: exclusive("tea"),
			MaxHold: clock.Second}, true},
		{"the hold is over", 6 * s, nil, true},
		{"a grant at once", 6 * s,
			&Acquire{Session: one, Ticket: 6, Items: exclusive("tea")}, true},
		{"a release by force", 6 * s, &ForceRelease{Name: "tea", Token: 0x8b}, true},
	} {
		before, _ := b.m.Session(one)
		var commands []Command
		if step.command != nil {
			commands = append(commands, step.command)
		}
		b.do(step.now, commands...)
		want := before.Changed
		if step.changes {
			want = b.m.Stamp().Index
		}
		is, _ := b.m.Session(one)
		require.Equal(t, want, is.Changed, step.name)
	}
}

package fsm_test

import (
	"cmp"
	"fmt"
	"slices"

	"zamok/fsm"
)

// compare names the first thing that the machine did otherwise than the model, or is nil.
//
// Left out, because no document promises it: which of several bad fields is
// named (the generator spoils one at a time); the order of blockers, and which of more than
// BlockersMax are named; which of several cycles a deadlock spells out, though it must be a true
// one; the order in which the queues that moved in one step are reported.
func (m *model) compare(want, got *fsm.Applied) error {
	if want.Index != got.Index || want.Stamp != got.Stamp || want.Time != got.Time ||
		want.Refused != got.Refused {
		return fmt.Errorf("want index %d, stamp %v, time %v, refused %d; got %d, %v, %v, %d",
			want.Index,
			want.Stamp, want.Time, want.Refused, got.Index, got.Stamp, got.Time, got.Refused)
	}
	if !slices.Equal(want.Unrenewed, got.Unrenewed) {
		return fmt.Errorf("want dead %v, got %v", want.Unrenewed, got.Unrenewed)
	}
	if len(want.Results) != len(got.Results) {
		return fmt.Errorf("want %d results, got %d", len(want.Results), len(got.Results))
	}
	for i := range want.Results {
		if err := m.compareResult(&want.Results[i], &got.Results[i]); err != nil {
			return fmt.Errorf("result of index %d: %w", want.Results[i].Index, err)
		}
	}
	return compareEvents(want.Events, got.Events)
}

func (m *model) compareResult(want, got *fsm.Result) error {
	w, g := *want, *got
	w.Detail, g.Detail = nil, nil
	if w != g {
		return fmt.Errorf("want %s, got %s", show(w), show(g))
	}
	var wd, gd fsm.Detail
	if want.Detail != nil {
		wd = *want.Detail
	}
	if got.Detail != nil {
		gd = *got.Detail
	}
	if wd.Field != gd.Field || wd.Of != gd.Of || !slices.Equal(wd.Ended, gd.Ended) {
		return fmt.Errorf("want detail %s, got %s", show(wd), show(gd))
	}
	if graph, isCycle := m.waitGraphs[want.Index]; isCycle || len(gd.Cycle) > 0 {
		if err := checkCycle(graph, gd.Cycle); err != nil {
			return fmt.Errorf("%w: %s", err, show(gd.Cycle))
		}
	}
	if !sameBlockers(wd.Blockers, gd.Blockers) {
		return fmt.Errorf("want blockers %s, got %s", show(wd.Blockers), show(gd.Blockers))
	}
	return nil
}

// sameBlockers compares as sets, up to what is named at most.
func sameBlockers(want, got []fsm.Blocker) bool {
	if len(got) != min(len(want), fsm.BlockersMax) {
		return false
	}
	rest := slices.Clone(want)
	for _, b := range got {
		at := slices.Index(rest, b)
		if at < 0 {
			return false
		}
		rest = slices.Delete(rest, at, at+1)
	}
	return true
}

// checkCycle says what is wrong with the links of a cycle, by the graph as it was when the command
// was refused.
func checkCycle(graph []modelEdge, cycle []fsm.Link) error {
	if len(cycle) < 2 {
		return fmt.Errorf("a cycle of %d links", len(cycle))
	}
	for i, from := range cycle {
		to := cycle[(i+1)%len(cycle)]
		edge := modelEdge{from.TicketRef, to.TicketRef, from.Name}
		switch {
		case from.State == fsm.Granted &&
			(from.Owner == "" || from.Owner != to.Owner || to.State != fsm.Waiting):
			return fmt.Errorf("link %d is not held by the owner of the next", i)
		case from.State == fsm.Granted:
			edge.name = ""
		case to.State == fsm.Granted && to.Name != from.Name:
			return fmt.Errorf("link %d names another lock than the link before wanted", i+1)
		}
		if !slices.Contains(graph, edge) {
			return fmt.Errorf("link %d does not lead to the next", i)
		}
	}
	return nil
}

func compareEvents(want, got []fsm.Event) error {
	got = sortQueueChanges(got)
	for i := range max(len(want), len(got)) {
		if i >= len(want) || i >= len(got) || !sameEvent(&want[i], &got[i]) {
			return fmt.Errorf("event %d differs: want %s, got %s", i, showAt(want, i),
				showAt(got, i))
		}
	}
	return nil
}

// sortQueueChanges sorts the moved queues of each step by name, as the model reports them.
func sortQueueChanges(events []fsm.Event) []fsm.Event {
	isQueueChange := func(e fsm.Event) bool { return e.Kind == fsm.EvQueueChanged }
	if !slices.ContainsFunc(events, isQueueChange) {
		return events
	}
	events = slices.Clone(events)
	for from := 0; from < len(events); from++ {
		to := from
		for to < len(events) && isQueueChange(events[to]) &&
			events[to].Index == events[from].Index {
			to++
		}
		slices.SortFunc(events[from:to],
			func(a, b fsm.Event) int { return cmp.Compare(a.Lock, b.Lock) })
		from = max(from, to-1)
	}
	return events
}

func sameEvent(a, b *fsm.Event) bool {
	return a.Index == b.Index && a.Kind == b.Kind && a.TicketRef == b.TicketRef &&
		a.Token == b.Token &&
		a.HoldUntil == b.HoldUntil && a.Reason == b.Reason && a.Text == b.Text &&
		a.Label == b.Label && a.Identity == b.Identity && a.Lock == b.Lock &&
		a.Version == b.Version && sameValue(a.Epoch, b.Epoch) && sameValue(a.Digest, b.Digest) &&
		slices.Equal(a.Items, b.Items) && slices.Equal(a.Tickets, b.Tickets)
}

func sameValue[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// compareState compares what stands in the machine with what stands in the model, by its queries.
func (m *model) compareState(machine *fsm.Machine) error {
	if machine.Stamp().Index != m.index || machine.Time() != m.time ||
		machine.Cluster() != m.cluster {
		return fmt.Errorf("want index %d, time %v, cluster %x; got %v, %v, %x", m.index, m.time,
			m.cluster,
			machine.Stamp(), machine.Time(), machine.Cluster())
	}
	sessions := machine.Sessions(0, len(m.sessions)+1)
	if len(sessions) != len(m.sessions) {
		return fmt.Errorf("want %d sessions, got %d", len(m.sessions), len(sessions))
	}
	for i, want := range m.sessions {
		if got := sessions[i]; got.ID != want.id || got.Secret != want.Secret ||
			got.TTL != want.TTL ||
			got.Deadline != want.deadline || got.Attachment != want.attachment ||
			got.Attempt != want.attempt ||
			got.AckedThrough != want.ackedThrough || got.RefusedThrough != want.refusedThrough ||
			got.Changed != want.changed || got.Live != len(m.ticketsOf(want)) {
			return fmt.Errorf("session %d: want %s, until %v, attachment %d, attempt %d, "+
				"acknowledged through %d, changed %d; got %s", want.id,
				show(want.OpenSession), want.deadline, want.attachment, want.attempt,
				want.ackedThrough, want.changed, show(got))
		}
	}
	due, want := m.nextDue()
	if at, any := machine.NextDue(); any != want ||
		at != due.at && (at > due.at || at <= m.time.Add(fsm.NextDueExact)) {
		return fmt.Errorf("want the next expiration at %v, %t; got %v, %t", due.at, want, at, any)
	}
	if err := m.compareCluster(machine); err != nil {
		return err
	}
	return m.compareLocks(machine)
}

func (m *model) compareCluster(machine *fsm.Machine) error {
	if machine.Epoch() != m.epoch {
		return fmt.Errorf("want epoch %d, got %d", m.epoch, machine.Epoch())
	}
	if machine.LongestTTL() != m.longestTTL ||
		machine.RestoreHoldOff() != m.highestTTL+fsm.DelayMax {
		return fmt.Errorf("want a longest ttl of %v, of %v at most until now; got %v, and %v "+
			"after a restore", m.longestTTL, m.highestTTL,
			machine.LongestTTL(), machine.RestoreHoldOff())
	}
	if err := cmp.Or(m.compareQuotas(machine), m.compareEnded(machine)); err != nil {
		return err
	}
	members := machine.Members()
	if len(members) != len(m.members) {
		return fmt.Errorf("want %d members, got %d", len(m.members), len(members))
	}
	byName := slices.SortedFunc(slices.Values(m.members),
		func(a, b fsm.MemberRecord) int { return cmp.Compare(a.ID, b.ID) })
	for i, want := range byName {
		if members[i] != want {
			return fmt.Errorf("member %q: want %s, got %s", want.ID, show(want), show(members[i]))
		}
		if one, known := machine.Member(want.ID); !known || one != want {
			return fmt.Errorf("member %q: want %s, got %s", want.ID, show(want), show(one))
		}
	}
	return nil
}

func (m *model) compareLocks(machine *fsm.Machine) error {
	names := map[string]bool{}
	for name := range m.delays {
		names[name] = true
	}
	for _, t := range m.tickets {
		for _, item := range t.items {
			names[item.Name] = true
		}
	}
	if counts := machine.Counts(); counts.Locks != len(names) || counts.Delayed != len(m.delays) ||
		counts.Granted+counts.Waiting != len(m.tickets) {
		return fmt.Errorf("want %d locks, %d delayed, %d tickets; got %+v", len(names),
			len(m.delays), len(m.tickets), counts)
	}
	for name := range names {
		lock, ok := machine.LockView(name)
		if !ok || lock.DelayedUntil != m.delays[name] {
			return fmt.Errorf("lock %q: want delay %v; got %t, %v", name, m.delays[name], ok,
				lock.DelayedUntil)
		}
		var held, queue []fsm.TicketView
		for u := range m.users(name) {
			// what a token says without its ticket
			alone := machine.Holds(name, u.token, fsm.TicketRef{})
			switch {
			case u.state == fsm.Waiting:
				queue = append(queue, u.view())
			case !machine.Holds(name, u.token, u.TicketRef) || alone != isExclusive(u.item) ||
				machine.Holds(name, u.token+1, u.TicketRef):
				return fmt.Errorf("lock %q: whether %v holds it with token %d is reported wrongly",
					name, u.TicketRef, u.token)
			default:
				held = append(held, u.view())
			}
		}
		if !slices.EqualFunc(lock.HeldBy, held, sameTicket) ||
			!slices.EqualFunc(lock.Queue, queue, sameTicket) {
			return fmt.Errorf("lock %q: want holders %s, queue %s; got %s, %s", name, show(held),
				show(queue),
				show(lock.HeldBy), show(lock.Queue))
		}
	}
	return nil
}

func (t *modelTicket) view() fsm.TicketView {
	v := fsm.TicketView{
		TicketRef: t.TicketRef, TicketState: t.ticketState(), Enqueued: t.enqueued,
		Owner: t.request.Owner, Meta: t.request.Meta,
		Items: t.items,
	}
	if t.state == fsm.Waiting {
		v.WaitUntil = t.waitUntil
	}
	return v
}

func sameTicket(a, b fsm.TicketView) bool {
	return a.TicketRef == b.TicketRef && a.TicketState == b.TicketState &&
		a.Enqueued == b.Enqueued && a.WaitUntil == b.WaitUntil &&
		a.Owner == b.Owner && a.Meta == b.Meta && slices.Equal(a.Items, b.Items)
}

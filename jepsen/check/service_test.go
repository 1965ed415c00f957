package check

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// service is a naive lock service with its clients, in virtual time of its own: one thing after the
// other, no replication, nothing clever. What it records is valid, whatever went wrong in it.
type service struct {
	*rand.Rand
	shape
	h       *History
	now     time.Duration
	todo    agenda
	index   uint64
	term    uint64
	stood   time.Duration // cluster time that did not pass
	down    time.Duration // nothing is applied before
	spared  time.Duration // nobody has a misfortune before
	waiting []*asked      // by birth
	held    map[string][]*asked
	past    []*asked // granted once
	marks   map[string]uint64
	leases  map[uint64]*lease
	clients int
}

// shape says what kind of history is wanted.
type shape struct {
	clients, mutexes, pools int
	ttl, healed, end        time.Duration
	audit                   bool
	late                    time.Duration // how late events are seen at most
	faults                  bool
}

type asked struct {
	ref     Ref
	items   []Item
	token   uint64
	over    bool
	client  *caller
	granted func()
}

type lease struct {
	id    uint64
	heard time.Duration // cluster time
	over  bool
}

type deed struct {
	at  time.Duration
	seq int
	do  func()
}

// agenda is a heap by time, then by order of making.
type agenda struct {
	deeds []deed
	seq   int
}

func (a *agenda) Len() int { return len(a.deeds) }
func (a *agenda) Less(i, j int) bool {
	x, y := a.deeds[i], a.deeds[j]
	return x.at < y.at || x.at == y.at && x.seq < y.seq
}
func (a *agenda) Swap(i, j int) { a.deeds[i], a.deeds[j] = a.deeds[j], a.deeds[i] }
func (a *agenda) Push(d any)    { a.deeds = append(a.deeds, d.(deed)) }
func (a *agenda) Pop() any {
	d := a.deeds[len(a.deeds)-1]
	a.deeds = a.deeds[:len(a.deeds)-1]
	return d
}

// serve makes the history of one run.
func serve(seed uint64, sh shape) *History {
	s := &service{
		Rand: rand.New(rand.NewPCG(seed, 1)), shape: sh, h: &History{}, now: time.Second, index: 1000, term: 1,
		held: map[string][]*asked{}, marks: map[string]uint64{}, leases: map[uint64]*lease{},
	}
	for i := range sh.clients {
		c := &caller{s: s, name: fmt.Sprintf("c%d", i)}
		s.in(s.upTo(50*time.Millisecond), c.open)
	}
	s.in(0, s.look)
	if sh.faults {
		s.in(s.upTo(5*time.Second), s.outage)
	}
	s.rest(false)
	for s.todo.Len() > 0 {
		d := heap.Pop(&s.todo).(deed)
		s.now = d.at
		d.do()
	}
	s.rest(true)
	s.h.Plan = Plan{
		Seed: seed, Begin: time.Second, Healed: sh.healed, End: s.now, Drain: 4 * sh.ttl, MinOK: 10, Audit: sh.audit, Above: 999,
	}
	return s.h
}

func (s *service) in(d time.Duration, do func()) {
	s.todo.seq++
	heap.Push(&s.todo, deed{s.now + d, s.todo.seq, do})
}

// upTo is a random time; a fifth of them are none at all, so that moments coincide.
func (s *service) upTo(d time.Duration) time.Duration {
	if s.IntN(5) == 0 {
		return 0
	}
	return time.Duration(s.Int64N(int64(d)))
}

func (s *service) chance(percent int) bool { return s.IntN(100) < percent }

func (s *service) time() time.Duration { return s.now - s.stood }

// submit applies a command: later, and while the service is up.
func (s *service) submit(do func()) {
	s.in(s.upTo(3*time.Millisecond), func() { s.apply(do) })
}

func (s *service) apply(do func()) {
	if s.now < s.down {
		s.in(s.down-s.now, func() { s.apply(do) })
		return
	}
	s.index += 2
	do()
	s.grant()
}

// outage stops everything for a while. After the healing there is none.
func (s *service) outage() {
	length := s.upTo(s.ttl)
	if s.now+length > s.healed {
		return
	}
	s.down = s.now + length
	s.h.Faults = append(s.h.Faults, Fault{Kind: "kill", Target: "leader", From: s.now, To: s.down})
	s.h.Stalls = append(s.h.Stalls, Stall{Why: "no leader", From: s.now, To: s.down, Lost: length + time.Second})
	s.in(length, func() { s.stood += length; s.term++ })
	s.in(length+s.ttl+s.upTo(3*s.ttl), s.outage)
}

// grant gives to the first in all queues what is free, in order of birth.
func (s *service) grant() {
	blocked := map[string]bool{}
	var still []*asked
	for _, t := range s.waiting {
		if slices.ContainsFunc(t.items, func(it Item) bool { return blocked[it.Name] || !s.free(it) }) {
			for _, it := range t.items {
				blocked[it.Name] = true
			}
			still = append(still, t)
			continue
		}
		t.token = s.index
		for _, it := range t.items {
			s.held[it.Name] = append(s.held[it.Name], t)
		}
		if len(s.past) < 1000 {
			s.past = append(s.past, t)
		} else {
			s.past[s.IntN(1000)] = t
		}
		s.event(EvGranted, t, "")
		t.granted()
	}
	s.waiting = still
}

func (s *service) free(it Item) bool {
	permits := it.Permits
	for _, t := range s.held[it.Name] {
		other := itemOf(t.items, it.Name)
		if permits += other.Permits; other.Mode != it.Mode || it.Mode == Exclusive {
			return false
		}
	}
	return it.Mode != Permits || permits <= it.Of
}

// finish ends a ticket, whatever it is.
func (s *service) finish(t *asked, what Happened, why string) {
	if t.over {
		return
	}
	t.over = true
	if t.token == 0 {
		what = EvRefused
	}
	s.waiting = slices.DeleteFunc(s.waiting, func(o *asked) bool { return o == t })
	for _, it := range t.items {
		s.held[it.Name] = slices.DeleteFunc(s.held[it.Name], func(o *asked) bool { return o == t })
	}
	s.event(what, t, why)
}

func (s *service) event(what Happened, t *asked, why string) {
	if !s.audit {
		return
	}
	ev := Event{Index: s.index, Happened: what, Ref: t.ref, Token: t.token, Why: why, At: s.now}
	if what == EvGranted {
		ev.Items = slices.Clone(t.items)
	}
	for range 1 + s.IntN(2) {
		if s.late > 0 {
			ev.At = s.now + s.upTo(s.late)
		}
		s.h.Events = append(s.h.Events, ev)
	}
}

// expire ends a session when its lease is over, or comes again.
func (s *service) expire(l *lease) {
	left := l.heard + s.ttl - s.time()
	switch {
	case l.over:
	case s.now < s.down:
		s.in(s.down-s.now, func() { s.expire(l) })
	case left > 0:
		s.in(left, func() { s.expire(l) })
	default:
		s.index++
		s.close(l, Expired)
		s.grant()
	}
}

func (s *service) close(l *lease, why string) {
	l.over = true
	mine := map[*asked]bool{}
	for _, t := range s.waiting {
		mine[t] = t.ref.Session == l.id
	}
	for _, all := range s.held {
		for _, t := range all {
			mine[t] = t.ref.Session == l.id
		}
	}
	var gone []*asked
	for t, is := range mine {
		if is {
			gone = append(gone, t)
		}
	}
	slices.SortFunc(gone, func(a, b *asked) int { return int(a.ref.Ticket) - int(b.ref.Ticket) })
	for _, t := range gone {
		s.finish(t, EvLost, why)
	}
	s.event(EvEnded, &asked{ref: Ref{Session: l.id}}, why)
}

// look writes down, now and then, what the nodes show.
func (s *service) look() {
	for _, node := range []string{"n1", "n2", "n3"} {
		s.h.Seen = append(s.h.Seen, Seen{
			Node: node, At: s.now, Term: s.term, Index: s.index, Time: s.time(), Digest: s.index * 7919,
		})
	}
	if s.now < s.end {
		s.in(s.upTo(2*time.Second)+time.Millisecond, s.lookWhenUp)
	}
}

func (s *service) lookWhenUp() {
	if s.now < s.down {
		s.in(s.down-s.now+time.Millisecond, s.lookWhenUp)
		return
	}
	s.index++ // an entry of its own, so that its time is its own
	s.look()
}

func (s *service) rest(after bool) {
	s.h.Rests = append(s.h.Rests, Rest{Who: "n1", After: after, Counts: map[string]int64{"sessions": 0, "goroutines": 40}})
}

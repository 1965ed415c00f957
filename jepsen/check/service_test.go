package check

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// simService is a naive lock service with its clients, in virtual time of its own: one thing after the
// other, no replication, nothing clever. What it records is valid, whatever went wrong in it.
type simService struct {
	*rand.Rand
	serviceConfig
	history       *History
	now           time.Duration
	timers        timerHeap
	index         uint64
	term          uint64
	stalledTime   time.Duration // cluster time that did not pass
	downUntil     time.Duration // nothing is applied before
	quietUntil    time.Duration // nobody has a misfortune before
	waiting       []*request    // by birth
	held          map[string][]*request
	recentGrants  []*request // granted once
	highestTokens map[string]uint64
	leases        map[uint64]*sessionLease
	clients       int
}

// serviceConfig says what kind of history is wanted.
type serviceConfig struct {
	clients, mutexes, pools int
	ttl, healed, end        time.Duration
	audit                   bool
	eventDelayMax           time.Duration // how late events are seen at most
	faults                  bool
}

type request struct {
	ref     Ref
	items   []Item
	token   uint64
	ended   bool
	client  *simClient
	granted func()
}

type sessionLease struct {
	id      uint64
	renewed time.Duration // cluster time
	ended   bool
}

type timer struct {
	at  time.Duration
	seq int
	run func()
}

// timerHeap is a heap by time, then by order of making.
type timerHeap struct {
	timers []timer
	seq    int
}

func (a *timerHeap) Len() int { return len(a.timers) }
func (a *timerHeap) Less(i, j int) bool {
	x, y := a.timers[i], a.timers[j]
	return x.at < y.at || x.at == y.at && x.seq < y.seq
}
func (a *timerHeap) Swap(i, j int) { a.timers[i], a.timers[j] = a.timers[j], a.timers[i] }
func (a *timerHeap) Push(d any)    { a.timers = append(a.timers, d.(timer)) }
func (a *timerHeap) Pop() any {
	d := a.timers[len(a.timers)-1]
	a.timers = a.timers[:len(a.timers)-1]
	return d
}

// simulate makes the history of one run.
func simulate(seed uint64, sh serviceConfig) *History {
	s := &simService{
		Rand: rand.New(rand.NewPCG(seed, 1)), serviceConfig: sh, history: &History{}, now: time.Second, index: 1000, term: 1,
		held: map[string][]*request{}, highestTokens: map[string]uint64{}, leases: map[uint64]*sessionLease{},
	}
	for i := range sh.clients {
		c := &simClient{service: s, name: fmt.Sprintf("c%d", i)}
		s.after(s.randomDelay(50*time.Millisecond), c.open)
	}
	s.after(0, s.recordNodeStates)
	if sh.faults {
		s.after(s.randomDelay(5*time.Second), s.outage)
	}
	s.recordIdle(false)
	for s.timers.Len() > 0 {
		d := heap.Pop(&s.timers).(timer)
		s.now = d.at
		d.run()
	}
	s.recordIdle(true)
	s.history.Plan = Plan{
		Seed: seed, Begin: time.Second, Healed: sh.healed, End: s.now, Drain: 4 * sh.ttl, OKMin: 10, CompleteEvents: sh.audit, TokensAbove: 999,
	}
	return s.history
}

func (s *simService) after(d time.Duration, do func()) {
	s.timers.seq++
	heap.Push(&s.timers, timer{s.now + d, s.timers.seq, do})
}

// randomDelay is a random time; a fifth of them are none at all, so that moments coincide.
func (s *simService) randomDelay(d time.Duration) time.Duration {
	if s.IntN(5) == 0 {
		return 0
	}
	return time.Duration(s.Int64N(int64(d)))
}

func (s *simService) chance(percent int) bool { return s.IntN(100) < percent }

func (s *simService) time() time.Duration { return s.now - s.stalledTime }

// submit applies a command: later, and while the service is up.
func (s *simService) submit(do func()) {
	s.after(s.randomDelay(3*time.Millisecond), func() { s.apply(do) })
}

func (s *simService) apply(do func()) {
	if s.now < s.downUntil {
		s.after(s.downUntil-s.now, func() { s.apply(do) })
		return
	}
	s.index += 2
	do()
	s.grant()
}

// outage stops everything for a while. After the healing there is none.
func (s *simService) outage() {
	length := s.randomDelay(s.ttl)
	if s.now+length > s.healed {
		return
	}
	s.downUntil = s.now + length
	s.history.Faults = append(s.history.Faults, Fault{Kind: "kill", Target: "leader", From: s.now, To: s.downUntil})
	s.history.Stalls = append(s.history.Stalls, Stall{Reason: "no leader", From: s.now, To: s.downUntil, LostTime: length + time.Second})
	s.after(length, func() { s.stalledTime += length; s.term++ })
	s.after(length+s.ttl+s.randomDelay(3*s.ttl), s.outage)
}

// grant gives to the first in all queues what is free, in order of birth.
func (s *simService) grant() {
	blocked := map[string]bool{}
	var waiting []*request
	for _, t := range s.waiting {
		if slices.ContainsFunc(t.items, func(it Item) bool { return blocked[it.Name] || !s.free(it) }) {
			for _, it := range t.items {
				blocked[it.Name] = true
			}
			waiting = append(waiting, t)
			continue
		}
		t.token = s.index
		for _, it := range t.items {
			s.held[it.Name] = append(s.held[it.Name], t)
		}
		if len(s.recentGrants) < 1000 {
			s.recentGrants = append(s.recentGrants, t)
		} else {
			s.recentGrants[s.IntN(1000)] = t
		}
		s.event(EvGranted, t, "")
		t.granted()
	}
	s.waiting = waiting
}

func (s *simService) free(it Item) bool {
	permits := it.Permits
	for _, t := range s.held[it.Name] {
		other := itemFor(t.items, it.Name)
		if permits += other.Permits; other.Mode != it.Mode || it.Mode == Exclusive {
			return false
		}
	}
	return it.Mode != Permits || permits <= it.Limit
}

// endRequest ends a ticket, whatever it is.
func (s *simService) endRequest(t *request, kind EventKind, reason string) {
	if t.ended {
		return
	}
	t.ended = true
	if t.token == 0 {
		kind = EvRefused
	}
	s.waiting = slices.DeleteFunc(s.waiting, func(o *request) bool { return o == t })
	for _, it := range t.items {
		s.held[it.Name] = slices.DeleteFunc(s.held[it.Name], func(o *request) bool { return o == t })
	}
	s.event(kind, t, reason)
}

func (s *simService) event(kind EventKind, t *request, reason string) {
	if !s.audit {
		return
	}
	ev := Event{Index: s.index, Kind: kind, Ref: t.ref, Token: t.token, Reason: reason, At: s.now}
	if kind == EvGranted {
		ev.Items = slices.Clone(t.items)
	}
	for range 1 + s.IntN(2) {
		if s.eventDelayMax > 0 {
			ev.At = s.now + s.randomDelay(s.eventDelayMax)
		}
		s.history.Events = append(s.history.Events, ev)
	}
}

// expire ends a session when its lease is over, or comes again.
func (s *simService) expire(l *sessionLease) {
	left := l.renewed + s.ttl - s.time()
	switch {
	case l.ended:
	case s.now < s.downUntil:
		s.after(s.downUntil-s.now, func() { s.expire(l) })
	case left > 0:
		s.after(left, func() { s.expire(l) })
	default:
		s.index++
		s.close(l, Expired)
		s.grant()
	}
}

func (s *simService) close(l *sessionLease, reason string) {
	l.ended = true
	mine := map[*request]bool{}
	for _, t := range s.waiting {
		mine[t] = t.ref.Session == l.id
	}
	for _, all := range s.held {
		for _, t := range all {
			mine[t] = t.ref.Session == l.id
		}
	}
	var ended []*request
	for t, is := range mine {
		if is {
			ended = append(ended, t)
		}
	}
	slices.SortFunc(ended, func(a, b *request) int { return int(a.ref.Ticket) - int(b.ref.Ticket) })
	for _, t := range ended {
		s.endRequest(t, EvLost, reason)
	}
	s.event(EvEnded, &request{ref: Ref{Session: l.id}}, reason)
}

// recordNodeStates writes down, now and then, what the nodes show.
func (s *simService) recordNodeStates() {
	for _, node := range []string{"n1", "n2", "n3"} {
		s.history.NodeStates = append(s.history.NodeStates, NodeState{
			Node: node, At: s.now, Term: s.term, Index: s.index, Time: s.time(), Digest: s.index * 7919,
		})
	}
	if s.now < s.end {
		s.after(s.randomDelay(2*time.Second)+time.Millisecond, s.recordNodeStatesWhenUp)
	}
}

func (s *simService) recordNodeStatesWhenUp() {
	if s.now < s.downUntil {
		s.after(s.downUntil-s.now+time.Millisecond, s.recordNodeStatesWhenUp)
		return
	}
	s.index++ // an entry of its own, so that its time is its own
	s.recordNodeStates()
}

func (s *simService) recordIdle(after bool) {
	s.history.IdleCounts = append(s.history.IdleCounts, IdleCount{Process: "n1", AfterLoad: after, Counts: map[string]int64{"sessions": 0, "goroutines": 40}})
}

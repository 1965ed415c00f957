package fair

import (
	"container/heap"
	"time"
)

// From is the source of an item.
type From struct {
	Identity string
	// Session orders items: those of one session leave in order, even if their identities differ. 0 = a further session of the
	// identity.
	Session uint64
}

// Class is whether an item is urgent.
type Class uint8

const (
	Normal Class = iota
	Urgent
	classes
)

// Item is an element of the queue.
type Item[T any] struct {
	Value T
	Class Class
	Cost  int // above 0
	Since time.Time
}

const (
	// quantum is the credit of a turn: the cost of several small items, or a tenth of the largest, which takes as many turns.
	quantum = 4 << 10
	// spareMax is how many items and flows are kept for reuse: about what an entry of the log takes.
	spareMax = 1024
)

// Queue is a fair queue. Its zero value is empty.
type Queue[T any] struct {
	root       flow[T] // of the identities
	identities map[string]*flow[T]
	sessions   map[From]*flow[T]
	count      int
	opened     uint64
	spareNodes spare[node[T]]
	spareFlows spare[flow[T]]
}

type node[T any] struct {
	Item[T]
	next, prev *node[T]
}

// flow is a node of the tree: a session with its items, an identity with its sessions, or the root with all identities.
type flow[T any] struct {
	parent      *flow[T] // nil = the root
	from        From
	first, last *node[T] // of a session
	cost        int      // of all items in it
	heaviest    byCost[T]
	rank        int    // in its parent's heaviest
	opened      uint64 // a serial number
	turns       [classes]turn[T]
}

// turn is the state of a flow in the round robin of one class.
type turn[T any] struct {
	next, prev *flow[T] // the ring of its siblings with items
	credit     int
	since      time.Time // when it came to the end of the ring
	front      *flow[T]  // the child whose turn it is; nil = none has items
}

// Len is the number of items.
func (q *Queue[T]) Len() int { return q.count }

// Cost is the total cost of all items.
func (q *Queue[T]) Cost() int { return q.root.cost }

// Put adds an item.
func (q *Queue[T]) Put(from From, item Item[T]) {
	n := q.spareNodes.get()
	n.Item = item
	s := q.sessions[sessionOf(from)]
	if s == nil {
		s = q.open(from)
	}
	if n.prev = s.last; s.last != nil {
		s.last.next = n
	} else {
		s.first = n
		s.join(item.Class, item.Since)
	}
	s.last = n
	q.count++
	s.add(item.Cost)
}

// Joined returns since when the head of the line has waited that a new item would join: its session; or if that is empty, the
// round of its identity's sessions; or the round of the identities. Zero = no line.
func (q *Queue[T]) Joined(from From) time.Time {
	if s := q.sessions[sessionOf(from)]; s != nil {
		return s.first.Since
	}
	f := &q.root
	if own := q.identities[from.Identity]; own != nil && own.turns[Normal].front != nil {
		f = own
	}
	if front := f.turns[Normal].front; front != nil {
		return front.turns[Normal].since
	}
	return time.Time{}
}

// Next returns the item of a class that Take would take now; nil = none.
func (q *Queue[T]) Next(c Class, now time.Time) *Item[T] {
	if q.root.turns[c].front == nil {
		return nil
	}
	return &q.root.next(c, now).Item
}

// Take removes the next item of a class, which must have one.
func (q *Queue[T]) Take(c Class, now time.Time) Item[T] {
	n, s := q.root.next(c, now), &q.root
	for s.first == nil {
		s = s.turns[c].front
		s.turns[c].credit -= n.Cost
	}
	return q.remove(s, n, now)
}

// Evict removes the last item of the session with the highest cost, in the identity with the highest. The queue must not be
// empty.
func (q *Queue[T]) Evict() Item[T] {
	s := &q.root
	for s.last == nil {
		s = s.heaviest[0]
	}
	return q.remove(s, s.last, time.Time{})
}

// remove takes the first or the last item from a session.
func (q *Queue[T]) remove(s *flow[T], n *node[T], now time.Time) Item[T] {
	item, class := n.Item, s.first.Class
	if n == s.first {
		s.first = n.next
	} else {
		n.prev.next = nil
	}
	if n == s.last {
		s.last = n.prev
	} else {
		n.next.prev = nil
	}
	q.spareNodes.put(n)
	q.count--
	s.add(-item.Cost)
	switch {
	case s.first == nil:
		s.leave(class)
		q.close(s)
	case s.first.Class != class:
		s.leave(class)
		s.join(s.first.Class, now)
	}
	return item
}

// sessionOf is the key of a session: without the identity, since its order does not depend on that.
func sessionOf(from From) From {
	if from.Session != 0 {
		from.Identity = ""
	}
	return from
}

// open adds a session, and its identity if that has none.
func (q *Queue[T]) open(from From) *flow[T] {
	if q.sessions == nil {
		q.identities, q.sessions = make(map[string]*flow[T]), make(map[From]*flow[T])
	}
	q.opened++
	parent := q.identities[from.Identity]
	if parent == nil {
		parent = q.spareFlows.get()
		parent.parent, parent.from.Identity, parent.opened = &q.root, from.Identity, q.opened
		q.identities[from.Identity] = parent
		heap.Push(&q.root.heaviest, parent)
	}
	s := q.spareFlows.get()
	s.parent, s.from, s.opened = parent, sessionOf(from), q.opened
	q.sessions[s.from] = s
	heap.Push(&parent.heaviest, s)
	return s
}

// close removes a session that is empty, and its identity if it was the last of that.
func (q *Queue[T]) close(s *flow[T]) {
	parent := s.parent
	delete(q.sessions, s.from)
	heap.Remove(&parent.heaviest, s.rank)
	q.spareFlows.put(s)
	if room := parent.heaviest; len(room) == 0 {
		delete(q.identities, parent.from.Identity)
		heap.Remove(&q.root.heaviest, parent.rank)
		q.spareFlows.put(parent)
		if cap(room) <= spareMax {
			parent.heaviest = room
		}
	}
}

// add adds to the costs of a flow and its parents.
func (f *flow[T]) add(cost int) {
	for ; f.parent != nil; f = f.parent {
		f.cost += cost
		heap.Fix(&f.parent.heaviest, f.rank)
	}
	f.cost += cost
}

// join puts a flow at the end of its ring, and its parent too if that had no items of this class.
func (f *flow[T]) join(c Class, now time.Time) {
	for ; f.parent != nil; f = f.parent {
		t, front := &f.turns[c], f.parent.turns[c].front
		t.credit, t.since = quantum, now
		if front != nil {
			t.next, t.prev = front, front.turns[c].prev
			t.prev.turns[c].next, front.turns[c].prev = f, f
			return
		}
		t.next, t.prev = f, f
		f.parent.turns[c].front = f
	}
}

// leave removes a flow from its ring, and its parent too if that has no more items of this class.
func (f *flow[T]) leave(c Class) {
	for ; f.parent != nil; f = f.parent {
		t, front := &f.turns[c], &f.parent.turns[c].front
		if t.next != f {
			t.next.turns[c].prev, t.prev.turns[c].next = t.prev, t.next
			if *front == f {
				*front = t.next
			}
			return
		}
		*front = nil
	}
}

// next advances the turns to a flow whose credit covers its first item, and returns that item. Repeating it changes nothing.
func (f *flow[T]) next(c Class, now time.Time) *node[T] {
	for f.first == nil {
		front := f.turns[c].front
		n, t := front.next(c, now), &front.turns[c]
		if n.Cost <= t.credit {
			return n
		}
		t.credit += quantum
		t.since = now
		f.turns[c].front = t.next
	}
	return f.first
}

// byCost is a heap of flows with the highest cost first, and the latest among equals: so a newcomer is evicted before equal
// flows that wait already.
type byCost[T any] []*flow[T]

func (h byCost[T]) Len() int { return len(h) }

func (h byCost[T]) Less(i, j int) bool {
	return h[i].cost > h[j].cost || h[i].cost == h[j].cost && h[i].opened > h[j].opened
}

func (h byCost[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].rank, h[j].rank = i, j
}

func (h *byCost[T]) Push(f any) {
	f.(*flow[T]).rank = len(*h)
	*h = append(*h, f.(*flow[T]))
}

func (h *byCost[T]) Pop() any {
	last := len(*h) - 1
	f := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return f
}

// spare keeps some values for reuse.
type spare[T any] []*T

func (s *spare[T]) get() *T {
	last := len(*s) - 1
	if last < 0 {
		return new(T)
	}
	v := (*s)[last]
	*s = (*s)[:last]
	return v
}

func (s *spare[T]) put(v *T) {
	if len(*s) < spareMax {
		var zero T
		*v = zero
		*s = append(*s, v)
	}
}

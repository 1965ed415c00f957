package fair

import "container/heap"

// From is the source of an item.
type From struct {
	Identity string
	// Session orders items: those of one session leave in order, even if their identities differ. 0
	// = a further session of the identity.
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
}

const (
	// quantum is the credit that a round adds: the cost of several small items, or a tenth of the
	// largest, which waits for as many rounds.
	quantum = 4 << 10
	// spareMax is how many items and flows are kept for reuse: about what an entry of the log
	// takes.
	spareMax = 1024
)

// Queue is a fair queue. Its zero value is empty.
type Queue[T any] struct {
	root           flow[T] // of the identities
	identities     map[string]*flow[T]
	sessions       map[From]*flow[T]
	counts         [classes]int
	serial         uint64   // of the latest item or flow
	oldest, newest *node[T] // of the normal items
	spareNodes     spare[node[T]]
	spareFlows     spare[flow[T]]
}

type node[T any] struct {
	Item[T]
	session      *flow[T]
	serial       uint64
	next, prev   *node[T] // of its class in its session
	newer, older *node[T] // of all normal items
}

// flow is a node of the tree: a session with its items, an identity with its sessions, or the root
// with all identities.
type flow[T any] struct {
	parent    *flow[T] // nil = the root
	from      From
	serial    uint64
	items     [classes]struct{ first, last *node[T] } // of a session
	loads     [classes]load[T]
	rotations [classes]rotation[T]
}

// load is what waits in a flow of one class.
type load[T any] struct {
	cost     int
	heaviest byCost[T] // its children
	rank     int       // in its parent's heaviest
}

// rotation is the place of a flow in the round robin of one class.
type rotation[T any] struct {
	next, prev *flow[T] // the ring of its siblings whose first item is of this class
	credit     int
	front      *flow[T] // the child that is served next; nil = there is none
}

// Len is the number of items of a class.
func (q *Queue[T]) Len(c Class) int { return q.counts[c] }

// Cost is the total cost of the items of a class.
func (q *Queue[T]) Cost(c Class) int { return q.root.loads[c].cost }

// Put adds an item.
func (q *Queue[T]) Put(from From, item Item[T]) {
	s := q.sessions[sessionOf(from)]
	if s == nil {
		s = q.open(from)
	}
	n, c := q.spareNodes.get(), item.Class
	q.serial++
	n.Item, n.session, n.serial = item, s, q.serial
	empty, list := s.first() == nil, &s.items[c]
	if n.prev = list.last; n.prev != nil {
		n.prev.next = n
	} else {
		list.first = n
	}
	list.last = n
	if c == Normal {
		if n.older = q.newest; n.older != nil {
			n.older.newer = n
		} else {
			q.oldest = n
		}
		q.newest = n
	}
	q.counts[c]++
	s.add(c, item.Cost)
	if empty {
		s.join(c)
	}
}

// Next returns the item of a class that Take would take now; nil = none.
func (q *Queue[T]) Next(c Class) *Item[T] {
	if q.root.rotations[c].front == nil {
		return nil
	}
	return &q.root.next(c).Item
}

// Take removes the next item of a class, which must have one.
func (q *Queue[T]) Take(c Class) Item[T] {
	n := q.root.next(c)
	for f := n.session; f.parent != nil; f = f.parent {
		f.rotations[c].credit -= n.Cost
	}
	return q.remove(n)
}

// Evict removes the last item of a class in the session where these cost most, in the identity
// where they do. There must be one.
func (q *Queue[T]) Evict(c Class) Item[T] {
	f := &q.root
	for f.items[c].last == nil {
		f = f.loads[c].heaviest.flows[0]
	}
	return q.remove(f.items[c].last)
}

// Oldest returns the normal item that was put first; nil = none.
func (q *Queue[T]) Oldest() *Item[T] {
	if q.oldest == nil {
		return nil
	}
	return &q.oldest.Item
}

// TakeOldest removes the normal item that was put first, which there must be.
func (q *Queue[T]) TakeOldest() Item[T] { return q.remove(q.oldest) }

// remove takes an item that is the first or the last of its class in its session.
func (q *Queue[T]) remove(n *node[T]) Item[T] {
	item, s, c := n.Item, n.session, n.Class
	before, list := s.first().Class, &s.items[c]
	if list.first == n {
		list.first = n.next
	} else {
		n.prev.next = nil
	}
	if list.last == n {
		list.last = n.prev
	} else {
		n.next.prev = nil
	}
	if c == Normal {
		q.forget(n)
	}
	q.spareNodes.put(n)
	q.counts[c]--
	s.add(c, -item.Cost)
	switch first := s.first(); {
	case first == nil:
		s.leave(before)
		q.close(s)
	case first.Class != before:
		s.leave(before)
		s.join(first.Class)
	}
	return item
}

// forget takes an item out of the order of age.
func (q *Queue[T]) forget(n *node[T]) {
	if n.older != nil {
		n.older.newer = n.newer
	} else {
		q.oldest = n.newer
	}
	if n.newer != nil {
		n.newer.older = n.older
	} else {
		q.newest = n.older
	}
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
	parent := q.identities[from.Identity]
	if parent == nil {
		parent = q.openIn(&q.root, From{Identity: from.Identity})
		q.identities[from.Identity] = parent
	}
	s := q.openIn(parent, sessionOf(from))
	q.sessions[s.from] = s
	return s
}

func (q *Queue[T]) openIn(parent *flow[T], from From) *flow[T] {
	q.serial++
	f := q.spareFlows.get()
	f.parent, f.from, f.serial = parent, from, q.serial
	for c := range parent.loads {
		h := &parent.loads[c].heaviest
		h.class = Class(c)
		heap.Push(h, f)
	}
	return f
}

// close removes a session that is empty, and its identity if it was the last of that.
func (q *Queue[T]) close(s *flow[T]) {
	delete(q.sessions, s.from)
	identity := s.parent
	q.closeIn(identity, s)
	if len(identity.loads[Normal].heaviest.flows) == 0 {
		delete(q.identities, identity.from.Identity)
		q.closeIn(&q.root, identity)
	}
}

func (q *Queue[T]) closeIn(parent, f *flow[T]) {
	for c := range parent.loads {
		heap.Remove(&parent.loads[c].heaviest, f.loads[c].rank)
	}
	var room [classes][]*flow[T]
	for c := range f.loads {
		if flows := f.loads[c].heaviest.flows; cap(flows) <= spareMax {
			room[c] = flows
		}
	}
	if q.spareFlows.put(f) {
		for c := range f.loads {
			f.loads[c].heaviest.flows = room[c]
		}
	}
}

// first is the first item of a session.
func (f *flow[T]) first() *node[T] {
	n, urgent := f.items[Normal].first, f.items[Urgent].first
	if n == nil || urgent != nil && urgent.serial < n.serial {
		return urgent
	}
	return n
}

// add adds to the costs of a flow and its parents.
func (f *flow[T]) add(c Class, cost int) {
	for ; f.parent != nil; f = f.parent {
		f.loads[c].cost += cost
		heap.Fix(&f.parent.loads[c].heaviest, f.loads[c].rank)
	}
	f.loads[c].cost += cost
}

// join puts a flow at the end of its ring, and its parent too if that had no items of this class.
func (f *flow[T]) join(c Class) {
	for ; f.parent != nil; f = f.parent {
		t, front := &f.rotations[c], f.parent.rotations[c].front
		t.credit = quantum
		if front != nil {
			t.next, t.prev = front, front.rotations[c].prev
			t.prev.rotations[c].next, front.rotations[c].prev = f, f
			return
		}
		t.next, t.prev = f, f
		f.parent.rotations[c].front = f
	}
}

// leave removes a flow from its ring, and its parent too if that has no more items of this class.
func (f *flow[T]) leave(c Class) {
	for ; f.parent != nil; f = f.parent {
		t, front := &f.rotations[c], &f.parent.rotations[c].front
		if t.next != f {
			t.next.rotations[c].prev, t.prev.rotations[c].next = t.prev, t.next
			if *front == f {
				*front = t.next
			}
			return
		}
		*front = nil
	}
}

// next goes round to a flow whose credit covers its first item, and returns that item. Repeating it
// changes nothing.
func (f *flow[T]) next(c Class) *node[T] {
	first := f.first()
	for first == nil {
		front := f.rotations[c].front
		n, t := front.next(c), &front.rotations[c]
		if n.Cost <= t.credit {
			return n
		}
		t.credit += quantum
		f.rotations[c].front = t.next
	}
	return first
}

// byCost is a heap of flows with the highest cost of one class first, and the latest among equals:
// so a newcomer is evicted before equal flows that wait already.
type byCost[T any] struct {
	class Class
	flows []*flow[T]
}

func (h *byCost[T]) Len() int { return len(h.flows) }

func (h *byCost[T]) Less(i, j int) bool {
	a, b := h.flows[i], h.flows[j]
	cost, other := a.loads[h.class].cost, b.loads[h.class].cost
	return cost > other || cost == other && a.serial > b.serial
}

func (h *byCost[T]) Swap(i, j int) {
	h.flows[i], h.flows[j] = h.flows[j], h.flows[i]
	h.flows[i].loads[h.class].rank, h.flows[j].loads[h.class].rank = i, j
}

func (h *byCost[T]) Push(f any) {
	f.(*flow[T]).loads[h.class].rank = len(h.flows)
	h.flows = append(h.flows, f.(*flow[T]))
}

func (h *byCost[T]) Pop() any {
	last := len(h.flows) - 1
	f := h.flows[last]
	h.flows[last] = nil
	h.flows = h.flows[:last]
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

// put clears a value and keeps it, or reports that there are enough.
func (s *spare[T]) put(v *T) bool {
	if len(*s) >= spareMax {
		return false
	}
	var zero T
	*v = zero
	*s = append(*s, v)
	return true
}

package fsm_test

import (
	"fmt"
	"slices"

	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// chance picks one of n: 0 … n-1. It is the generator's only source of chance, so that one
// generator serves rapid, which can shrink what it chose, and a plain seeded source, which is fast.
type chance func(n int) int

// in is true once in n times. It is true for the largest choice, so that shrinking, which tries
// small ones, makes what is rare rarer.
func (pick chance) in(n int) bool { return pick(n) == n-1 }

func pickOf[T any](pick chance, of ...T) T { return of[pick(len(of))] }

// record is one entry of a log, with the term of its leader.
type record struct {
	term  uint64
	entry *fsm.Entry // nil = bytes is not an entry
	bytes []byte
	// restore, if there is one, is not an entry: a backup is taken here and restored.
	restore *fsm.NewHistory
}

func newRecord(term uint64, e *fsm.Entry) record {
	return record{term: term, entry: e, bytes: e.Append(nil)}
}

// generator makes up a log: entries that a cluster could have written, and many that it should not.
// It looks at the model to hit what is there: of commands that name nothing little is learnt.
type generator struct {
	pick chance
	m    *model
	mood

	term    uint64
	ids     []session.ID          // every session that ever was
	next    map[session.ID]uint64 // the highest ticket number used
	tokens  []uint64              // of grants, the latest last
	marks   []uint64              // indexes at which the machine stood
	offices []uint64
	said    []fsm.Command // what may be said again
}

// mood is what stays the same over one log. Logs of many moods reach more than one average one.
type mood struct {
	secrets  int
	names    []string
	crowd    int          // tickets in hand above which the generator rather drops
	batch    int          // commands of an entry
	faithful int          // of 8 renewals so many come
	sharing  int          // of 8 mutexes so many are asked for as shared
	paces    []clock.Span // by which time moves between entries
	ttls     []clock.Span
	delays   []clock.Span // lock delays
	weights  []int        // of the makers
	nodes    int          // names of nodes: fewNodes, or more than the machine keeps records of
}

const fewNodes = 3

// makers make commands, in the order of their weights.
var makers = [...]struct {
	weight int
	make   func(*generator) fsm.Command
}{
	{30, (*generator).acquire},
	{16, (*generator).drop},
	{4, (*generator).downgrade},
	{5, (*generator).openSession},
	{3, (*generator).attach},
	{1, (*generator).detached},
	{1, (*generator).closeSession},
	{1, (*generator).expireSession},
	{2, (*generator).forceRelease},
	{1, (*generator).leaderStart},
	{1, (*generator).member},
	{1, (*generator).setRules},
	{1, (*generator).digest},
	{8, (*generator).again},
	{3, (*generator).spoilt},
}

func newGenerator(pick chance, m *model) *generator {
	g := &generator{pick: pick, m: m, term: 1, next: map[session.ID]uint64{}}
	g.mood = mood{
		secrets:  3 + pick(6),
		names:    allNames[:3+pick(len(allNames)-2)],
		crowd:    4 + pick(24),
		batch:    pickOf(pick, 2, 5, 10, 25),
		faithful: pick(9),
		sharing:  pick(8),
		ttls:     []clock.Span{fsm.TTLMin, 3 * clock.Second, 3 * clock.Second, 10 * clock.Second},
		delays:   pickOf(pick, []clock.Span{0}, []clock.Span{0, clock.Second}, []clock.Span{0, 1, fsm.DelayMax}, []clock.Span{0, clock.Millisecond, clock.Second, 5 * clock.Second}),
		paces: pickOf(pick, []clock.Span{0, 1, clock.Millisecond},
			[]clock.Span{0, 0, 30 * clock.Millisecond, 500 * clock.Millisecond},
			[]clock.Span{0, 100 * clock.Millisecond, clock.Second, clock.Second, 4 * clock.Second},
			[]clock.Span{-clock.Second, 0, clock.Second, 20 * clock.Second, 2 * clock.Minute}),
	}
	for _, maker := range makers {
		g.weights = append(g.weights, maker.weight*pickOf(pick, 0, 1, 1, 1, 4))
	}
	if g.nodes = fewNodes; pick.in(4) {
		g.nodes = 2 * fsm.MembersMax
	}
	g.weights[0] = max(g.weights[0], 10)
	g.weights[3] = max(g.weights[3], 1)
	return g
}

// lockNames begins every name, so that it can be searched for.
const lockNames = "lock:"

var allNames = []string{lockNames, lockNames + "b", lockNames + "c", lockNames + "d/e", lockNames + "d/f", lockNames + "ж"}

// record makes the next entry. The model must have applied those before.
func (g *generator) record() record {
	if g.pick.in(60) {
		g.term += 1 + uint64(g.pick(2))
	}
	e := &fsm.Entry{Version: 1, Reading: g.reading(), Renewals: g.renewals()}
	if g.pick.in(100) {
		e.Version = pickOf(g.pick, uint32(0), 2, 1<<31)
	}
	if (g.m.office == 0 || g.term != g.m.term) && !g.pick.in(3) {
		e.Commands = append(e.Commands, g.leaderStart())
	}
	for range g.pick(g.batch + 1) {
		e.Commands = append(e.Commands, g.command())
	}
	r := newRecord(g.term, e)
	if g.pick.in(150) {
		r = g.mangled(r)
	}
	return r
}

// restore is how an operator may restore a backup that was taken just now.
func (g *generator) restore() record {
	return record{term: g.term, restore: &fsm.NewHistory{
		Cluster: fsm.ClusterID{byte(1 + g.pick(200))},
		Above:   pickOf(g.pick, 0, g.m.index+uint64(g.pick(1000)), 1<<42),
		Clock:   pickOf(g.pick, 0, 0, 1, g.m.index, g.m.index+uint64(g.pick(1000))),
		Time:    pickOf(g.pick, 0, g.m.time.Add(clock.Minute)),
		HoldOff: pickOf(g.pick, 1, 1, 1, clock.Second, 0, fsm.HoldOffMax),
	}}
}

// mangled is what a torn or flipped entry leaves.
func (g *generator) mangled(r record) record {
	if r.entry = nil; g.pick.in(2) {
		r.bytes = r.bytes[:g.pick(len(r.bytes))]
	} else {
		r.bytes = slices.Clone(r.bytes)
		r.bytes[g.pick(len(r.bytes))] ^= 1 << g.pick(8)
	}
	return r
}

// learn takes notice of what an entry did.
func (g *generator) learn(r record, a *fsm.Applied) {
	g.marks = latest(append(g.marks, a.Stamp.Index), 16)
	for _, e := range a.Events {
		switch e.Kind {
		case fsm.EvGranted:
			g.tokens = latest(append(g.tokens, e.Token), 16)
		case fsm.EvEpochStarted:
			g.offices = latest(append(g.offices, e.Index), 4)
		}
	}
	if a.Refused != fsm.OK {
		return
	}
	for i, c := range r.entry.Commands {
		g.said = latest(append(g.said, c), 128)
		if id := a.Results[i].Session; id != 0 && !slices.Contains(g.ids, id) {
			g.ids = latest(append(g.ids, id), 2*g.secrets)
		}
	}
}

// latest keeps the last few.
func latest[T any](all []T, most int) []T { return all[max(0, len(all)-most):] }

func (g *generator) reading() clock.Reading {
	r := clock.Reading{Epoch: g.m.office, Now: g.m.time.Add(pickOf(g.pick, g.paces...))}
	if g.pick.in(12) {
		r.Epoch = pickOf(g.pick, append([]uint64{0, 1, g.m.index}, g.offices...)...)
	}
	r.Now = max(r.Now, 0)
	return r
}

func (g *generator) renewals() (ids []session.ID) {
	for _, s := range g.m.sessions {
		if g.pick(8) < g.faithful {
			ids = append(ids, s.id)
		}
	}
	if len(g.ids) > 0 && g.pick.in(4) {
		ids = append(ids, pickOf(g.pick, g.ids...))
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

func (g *generator) command() fsm.Command {
	if g.nodes > fewNodes && g.pick.in(3) {
		return pickOf(g.pick, g.member, g.digest)()
	}
	if len(g.m.tickets) > g.crowd && g.pick.in(2) {
		return g.drop()
	}
	if len(g.m.sessions) == 0 && !g.pick.in(4) {
		return g.openSession()
	}
	total := 0
	for _, w := range g.weights {
		total += w
	}
	at := g.pick(total)
	for i, w := range g.weights {
		if at -= w; at < 0 {
			return makers[i].make(g)
		}
	}
	panic("the weights do not add up")
}

// session is a living one most times, else one that is dead or not yet born.
func (g *generator) session() session.ID {
	if len(g.m.sessions) > 0 && !g.pick.in(12) {
		return pickOf(g.pick, g.m.sessions...).id
	}
	if len(g.ids) > 0 && !g.pick.in(4) {
		return pickOf(g.pick, g.ids...)
	}
	return session.ID(g.m.index + uint64(g.pick(4)))
}

// liveTicket names a ticket in hand, if there is one.
func (g *generator) liveTicket() (fsm.TicketRef, bool) {
	if len(g.m.tickets) == 0 {
		return fsm.TicketRef{}, false
	}
	return pickOf(g.pick, g.m.tickets...).TicketRef, true
}

// freshTicket numbers the session's next acquisition, as a client does or should not do.
func (g *generator) freshTicket(id session.ID) uint64 {
	number := g.next[id] + 1
	var ackedThrough uint64
	if s := g.m.session(id); s != nil {
		ackedThrough = s.floor
	}
	switch {
	case g.pick.in(200):
		return ackedThrough + pickOf[uint64](g.pick, fsm.TicketWindow, fsm.TicketWindow+1)
	case g.pick.in(20):
		number += uint64(g.pick(3))
	case number <= ackedThrough && !g.pick.in(4):
		number = ackedThrough + 1
	}
	g.next[id] = number
	return number
}

// oldTicket is a number that the session used, or nearly.
func (g *generator) oldTicket(id session.ID) uint64 {
	newest := g.next[id]
	return max(1, newest+2-min(newest+1, uint64(g.pick(12))))
}

func (g *generator) ackedThrough(id session.ID) uint64 {
	newest := g.next[id]
	switch g.pick(12) {
	case 0, 1: // true, as far as the generator knows
		return newest - min(newest, uint64(g.pick(4)))
	case 2: // low: it never falls
		return newest / 2
	case 3: // a lie
		if g.pick.in(200) {
			return pickOf(g.pick, ^uint64(0), ^uint64(0)-1, 1<<40)
		}
		return newest + uint64(g.pick(4))
	default:
		return 0
	}
}

func (g *generator) owner() string { return pickOf(g.pick, "", "", "x", "y") }

func (g *generator) name() string {
	if g.pick.in(100) {
		return lockNames + "nowhere"
	}
	return pickOf(g.pick, g.names...)
}

// items asks each name for the kind of lock that it usually is.
func (g *generator) items() (items []fsm.Item) {
	many := 1
	if g.pick.in(3) {
		many += g.pick(len(g.names))
	}
	from := g.pick(len(g.names))
	for i := range many {
		items = append(items, g.item((from+i)%len(g.names)))
	}
	if g.pick.in(2) {
		slices.Reverse(items)
	}
	return items
}

func (g *generator) item(at int) fsm.Item {
	item := fsm.Item{Name: g.names[at], Mode: fsm.Exclusive}
	if g.pick(8) < g.sharing {
		item.Mode = fsm.Shared
	}
	permits := at == 2 || at == 3
	if g.pick.in(25) {
		permits = !permits
	}
	if permits {
		item.Mode, item.Limit = fsm.Permits, uint32(at+1)
		if g.pick.in(40) {
			item.Limit += 2
		}
		item.Permits = 1 + uint32(g.pick(int(item.Limit)))
	}
	return item
}

func (g *generator) waitFor() clock.Span {
	return pickOf(g.pick, 0, 0, fsm.Forever, fsm.Forever, fsm.Forever, 1, clock.Second, 8*clock.Second, fsm.SpanMax)
}

func (g *generator) maxHold() clock.Span {
	return pickOf(g.pick, 0, 0, 0, 0, 0, 0, 1, clock.Second, 5*clock.Second, fsm.SpanMax)
}

func (g *generator) acquire() fsm.Command {
	c := &fsm.Acquire{
		Session: g.session(), Items: g.items(), WaitFor: g.waitFor(), MaxHold: g.maxHold(), Owner: g.owner(),
	}
	c.AckedThrough = g.ackedThrough(c.Session)
	if c.Ticket = g.freshTicket(c.Session); g.pick.in(12) {
		c.Ticket = g.oldTicket(c.Session)
	}
	if g.pick.in(20) {
		c.Metadata = "who\x00knows\xff"
	}
	return c
}

func (g *generator) drop() fsm.Command {
	ref, ok := g.liveTicket()
	if !ok || g.pick.in(6) {
		ref.Session = g.session()
		ref.Ticket = g.oldTicket(ref.Session)
		if g.pick.in(100) {
			ref.Ticket = g.ackedThrough(ref.Session) + fsm.TicketWindow + uint64(g.pick(2))
		}
	}
	return &fsm.Drop{Session: ref.Session, Ticket: ref.Ticket, AckedThrough: g.ackedThrough(ref.Session)}
}

func (g *generator) downgrade() fsm.Command {
	ref, ok := g.liveTicket()
	if !ok || g.pick.in(4) {
		ref.Session = g.session()
		ref.Ticket = g.oldTicket(ref.Session)
	}
	return &fsm.Downgrade{Session: ref.Session, Ticket: ref.Ticket, AckedThrough: g.ackedThrough(ref.Session)}
}

func secret(n int) session.Hash { return session.Hash{byte(n)} }

func (g *generator) secret() session.Hash { return secret(1 + g.pick(g.secrets)) }

func (g *generator) openSession() fsm.Command {
	return &fsm.OpenSession{
		Secret: g.secret(), Identity: "me", Label: pickOf(g.pick, "", "printer"), TTL: pickOf(g.pick, g.ttls...),
		LockDelay: pickOf(g.pick, g.delays...), Grace: pickOf(g.pick, 0, clock.Second),
	}
}

func (g *generator) attach() fsm.Command {
	c := &fsm.Attach{Session: g.session(), Secret: g.secret()}
	if s := g.m.session(c.Session); s != nil && !g.pick.in(6) {
		c.Secret = s.Secret
		c.Attempt = pickOf(g.pick, 0, s.attempt+1, s.attempt+1, s.attempt+7, s.attempt, s.attempt/2)
	}
	c.AckedThrough = g.ackedThrough(c.Session)
	return c
}

func (g *generator) detached() fsm.Command {
	c := &fsm.Detached{Session: g.session(), Index: g.m.index}
	if s := g.m.session(c.Session); s != nil {
		c.Attachment = s.attachment
		c.Index = pickOf(g.pick, g.m.index, g.m.index, s.heard, s.heard-1)
	}
	if g.pick.in(4) {
		c.Attachment = 1 + uint64(g.pick(int(min(g.m.index, 1<<30)+1)))
	}
	if len(g.marks) > 0 && g.pick.in(4) {
		c.Index = pickOf(g.pick, g.marks...)
	}
	return c
}

func (g *generator) closeSession() fsm.Command { return &fsm.CloseSession{Session: g.session()} }

func (g *generator) expireSession() fsm.Command {
	return &fsm.ExpireSession{Session: g.session(), Reason: pickOf(g.pick, "", "gone mad")}
}

// forceRelease names a token that was seen.
func (g *generator) forceRelease() fsm.Command {
	c := &fsm.ForceRelease{Name: g.name(), Reason: pickOf(g.pick, "", "stuck")}
	if len(g.tokens) > 0 && !g.pick.in(10) {
		c.Token = pickOf(g.pick, g.tokens...)
	}
	return c
}

func (g *generator) leaderStart() fsm.Command {
	return &fsm.LeaderStart{
		Node: pickOf(g.pick, "n1", "n2"), Nonce: uint64(g.pick(1000)), Cluster: fsm.ClusterID{byte(1 + g.pick(3))},
		TokenBase: pickOf[uint64](g.pick, 0, 3, 1000, 1<<40),
	}
}

func (g *generator) node() string { return fmt.Sprintf("n%d", 1+g.pick(g.nodes)) }

func (g *generator) member() fsm.Command {
	return &fsm.Member{
		ID: g.node(), Incarnation: fsm.Incarnation{byte(1 + g.pick(2))}, Client: "h:5750",
		Peer: "h:5751", HTTP: "h:5752", Version: "v0", StateVersionMin: 1, StateVersionMax: 1, FreeBytes: uint64(g.pick(1 << 20)), FreeMark: 9, Timeout: 250 * uint32(g.pick(8)), Fixed: 500,
	}
}

// setVersion never raises the version: the model knows no others.
func (g *generator) setRules() fsm.Command {
	return &fsm.SetVersion{Version: pickOf[uint32](g.pick, 0, 3, 1<<32-1)}
}

func (g *generator) digest() fsm.Command {
	return &fsm.Digest{Node: g.node(), Index: pickOf(g.pick, append([]uint64{g.m.index}, g.marks...)...), Value: uint64(g.pick(1 << 30))}
}

// again says what was said before, as a client or a network may.
func (g *generator) again() fsm.Command {
	if len(g.said) == 0 {
		return g.acquire()
	}
	return pickOf(g.pick, g.said...)
}

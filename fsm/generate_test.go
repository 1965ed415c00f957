package fsm_test

import (
	"fmt"
	"slices"

	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// choice picks one of n: 0 … n-1. It is the generator's only source of chance, so that one
// generator serves rapid, which can shrink what it chose, and a plain seeded source, which is fast.
type choice func(n int) int

// oneIn is true once in n times. It is true for the largest choice, so that shrinking, which tries
// small ones, makes what is rare rarer.
func (pick choice) oneIn(n int) bool { return pick(n) == n-1 }

func pickOf[T any](pick choice, of ...T) T { return of[pick(len(of))] }

// generator makes up a log: entries that a cluster could have written, and many that it should not.
// It looks at the model to hit what is there: of commands that name nothing little is learnt.
type generator struct {
	pick  choice
	model *model
	profile

	term       uint64
	sessionIDs []session.ID          // every session that ever was
	lastTicket map[session.ID]uint64 // the highest ticket number used
	tokens     []uint64              // of grants, the latest last
	indexes    []uint64              // indexes at which the machine stood
	epochs     []uint64
	sent       []fsm.Command // what may be said again
}

// profile is what stays the same over one log. Logs of many moods reach more than one average one.
type profile struct {
	secrets        int
	uses           [256]int // of each secret
	names          []string
	liveTicketsMax int          // live tickets above which the generator rather drops
	commandsMax    int          // commands of an entry
	renewalRate    int          // of 8 renewals so many come
	sharedRate     int          // of 8 mutexes so many are asked for as shared
	timeSteps      []clock.Span // by which time moves between entries
	ttls           []clock.Span
	delays         []clock.Span // lock delays
	weights        []int        // of the makers
	// names of nodes: fewNodes, or more than the machine keeps records of
	nodes      int
	quotasRate int // of 8 changes of the quotas so many make them low
}

const fewNodes = 3

var calmTTLs = []clock.Span{fsm.TTLMin, 3 * clock.Second, 3 * clock.Second, 10 * clock.Second}

// commandMakers make commands, in the order of their weights.
var commandMakers = [...]struct {
	weight int
	make   func(*generator) fsm.Command
}{
	{30, (*generator).acquire},
	{16, (*generator).drop},
	{4, (*generator).downgrade},
	{5, (*generator).openSession},
	{3, (*generator).attach},
	{1, (*generator).releaseOnDisconnect},
	{1, (*generator).closeSession},
	{1, (*generator).withdrawSession},
	{1, (*generator).expireSession},
	{2, (*generator).forceRelease},
	{1, (*generator).leaderStart},
	{1, (*generator).member},
	{1, (*generator).setVersion},
	{1, (*generator).digest},
	{1, (*generator).setLongestTTL},
	{1, (*generator).setQuotas},
	{4, (*generator).dropUnrenewed},
	{8, (*generator).repeated},
	{3, (*generator).invalidCommand},
}

func newGenerator(pick choice, m *model) *generator {
	g := &generator{pick: pick, model: m, term: 1, lastTicket: map[session.ID]uint64{}}
	g.profile = profile{
		secrets:        3 + pick(6),
		names:          lockNames[:3+pick(len(lockNames)-2)],
		liveTicketsMax: 4 + pick(24),
		commandsMax:    pickOf(pick, 2, 5, 10, 25),
		renewalRate:    pick(9),
		sharedRate:     pick(8),
		ttls: pickOf(pick, calmTTLs, calmTTLs,
			append(calmTTLs, fsm.LongestTTLMin+1, 2*clock.Hour)),
		delays: pickOf(pick, []clock.Span{0}, []clock.Span{0, clock.Second},
			[]clock.Span{0, 1, fsm.DelayMax},
			[]clock.Span{0, clock.Millisecond, clock.Second, 5 * clock.Second}),
		timeSteps: pickOf(pick, []clock.Span{0, 1, clock.Millisecond},
			[]clock.Span{0, 0, 30 * clock.Millisecond, 500 * clock.Millisecond},
			[]clock.Span{0, 100 * clock.Millisecond, clock.Second, clock.Second, 4 * clock.Second},
			[]clock.Span{-clock.Second, 0, clock.Second, 20 * clock.Second, 2 * clock.Minute}),
	}
	for _, maker := range commandMakers {
		g.weights = append(g.weights, maker.weight*pickOf(pick, 0, 1, 1, 1, 4))
	}
	if g.nodes = fewNodes; pick.oneIn(4) {
		g.nodes = 2 * fsm.MembersMax
	}
	g.quotasRate = pickOf(pick, 0, 0, 2, 7)
	g.weights[0] = max(g.weights[0], 10)
	g.weights[3] = max(g.weights[3], 1)
	return g
}

// lockPrefix begins every name, so that it can be searched for.
const lockPrefix = "lock:"

var lockNames = []string{lockPrefix, lockPrefix + "b", lockPrefix + "c", lockPrefix + "d/e",
	lockPrefix + "d/f", lockPrefix + "ж"}

// record makes the next entry. The model must have applied those before.
func (g *generator) record() record {
	if g.pick.oneIn(60) {
		g.term += 1 + uint64(g.pick(2))
	}
	e := &fsm.Entry{Version: 1, Reading: g.reading(), Renewals: g.renewals()}
	if g.pick.oneIn(100) {
		e.Version = pickOf(g.pick, uint32(0), 2, 1<<31)
	}
	if (g.model.epoch == 0 || g.term != g.model.term) && !g.pick.oneIn(3) {
		e.Commands = append(e.Commands, g.leaderStart())
	}
	for range g.pick(g.commandsMax + 1) {
		e.Commands = append(e.Commands, g.command())
	}
	return newRecord(g.term, e)
}

// restore is how an operator may restore a backup that was taken just now.
func (g *generator) restore() record {
	return record{term: g.term, restore: &fsm.NewHistory{
		Cluster:    fsm.ClusterID{byte(1 + g.pick(200))},
		AboveIndex: pickOf(g.pick, 0, g.model.index+uint64(g.pick(1000)), 1<<42),
		Clock:      pickOf(g.pick, 0, 0, 1, g.model.index, g.model.index+uint64(g.pick(1000))),
		Time:       pickOf(g.pick, 0, g.model.time.Add(clock.Minute)),
		HoldOff:    pickOf(g.pick, 1, 1, 1, clock.Second, 0, fsm.HoldOffMax),
	}}
}

// observe takes notice of what an entry did.
func (g *generator) observe(r record, a *fsm.Applied) {
	g.indexes = lastN(append(g.indexes, a.Stamp.Index), 16)
	for _, e := range a.Events {
		switch e.Kind {
		case fsm.EvGranted:
			g.tokens = lastN(append(g.tokens, e.Token), 16)
		case fsm.EvEpochStarted:
			g.epochs = lastN(append(g.epochs, e.Index), 4)
		}
	}
	if a.Refused != fsm.OK {
		return
	}
	for i, c := range r.entry.Commands {
		g.sent = lastN(append(g.sent, c), 128)
		if id := a.Results[i].Session; id != 0 && !slices.Contains(g.sessionIDs, id) {
			g.sessionIDs = lastN(append(g.sessionIDs, id), 2*g.secrets)
		}
	}
}

// lastN keeps the last few.
func lastN[T any](all []T, n int) []T { return all[max(0, len(all)-n):] }

func (g *generator) reading() clock.Reading {
	r := clock.Reading{Epoch: g.model.epoch, Now: g.model.time.Add(pickOf(g.pick, g.timeSteps...))}
	if g.pick.oneIn(12) {
		r.Epoch = pickOf(g.pick, append([]uint64{0, 1, g.model.index}, g.epochs...)...)
	}
	r.Now = max(r.Now, 0)
	return r
}

func (g *generator) renewals() (ids []session.ID) {
	for _, s := range g.model.sessions {
		if g.pick(8) < g.renewalRate {
			ids = append(ids, s.id)
		}
	}
	if len(g.sessionIDs) > 0 && g.pick.oneIn(4) {
		ids = append(ids, pickOf(g.pick, g.sessionIDs...))
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

func (g *generator) command() fsm.Command {
	if g.nodes > fewNodes && g.pick.oneIn(3) {
		return pickOf(g.pick, g.member, g.digest)()
	}
	if len(g.model.tickets) > g.liveTicketsMax && g.pick.oneIn(2) {
		return g.drop()
	}
	if len(g.model.sessions) == 0 && !g.pick.oneIn(4) {
		return g.openSession()
	}
	total := 0
	for _, w := range g.weights {
		total += w
	}
	at := g.pick(total)
	for i, w := range g.weights {
		if at -= w; at < 0 {
			return commandMakers[i].make(g)
		}
	}
	panic("the weights do not add up")
}

// session is a living one most times, else one that is dead or not yet born.
func (g *generator) session() session.ID {
	if len(g.model.sessions) > 0 && !g.pick.oneIn(12) {
		return pickOf(g.pick, g.model.sessions...).id
	}
	if len(g.sessionIDs) > 0 && !g.pick.oneIn(4) {
		return pickOf(g.pick, g.sessionIDs...)
	}
	return session.ID(g.model.index + uint64(g.pick(4)))
}

// liveTicket names a ticket in hand, if there is one.
func (g *generator) liveTicket() (fsm.TicketRef, bool) {
	if len(g.model.tickets) == 0 {
		return fsm.TicketRef{}, false
	}
	return pickOf(g.pick, g.model.tickets...).TicketRef, true
}

// freshTicket numbers the session's next acquisition, as a client does or should not do.
func (g *generator) freshTicket(id session.ID) uint64 {
	number := g.lastTicket[id] + 1
	var ackedThrough uint64
	if s := g.model.session(id); s != nil {
		ackedThrough = s.ackedThrough
	}
	switch {
	case g.pick.oneIn(200):
		return ackedThrough + pickOf[uint64](g.pick, fsm.TicketWindow, fsm.TicketWindow+1)
	case g.pick.oneIn(20):
		number += uint64(g.pick(3))
	case number <= ackedThrough && !g.pick.oneIn(4):
		number = ackedThrough + 1
	}
	g.lastTicket[id] = number
	return number
}

// oldTicket is a number that the session used, or nearly.
func (g *generator) oldTicket(id session.ID) uint64 {
	newest := g.lastTicket[id]
	return max(1, newest+2-min(newest+1, uint64(g.pick(12))))
}

func (g *generator) ackedThrough(id session.ID) uint64 {
	newest := g.lastTicket[id]
	switch g.pick(12) {
	case 0, 1: // true, as far as the generator knows
		return newest - min(newest, uint64(g.pick(4)))
	case 2: // low: it never falls
		return newest / 2
	case 3: // a lie
		if g.pick.oneIn(200) {
			return pickOf(g.pick, ^uint64(0), ^uint64(0)-1, 1<<40)
		}
		return newest + uint64(g.pick(4))
	default:
		return 0
	}
}

func (g *generator) owner() string { return pickOf(g.pick, "", "", "x", "y") }

func (g *generator) name() string {
	if g.pick.oneIn(100) {
		return lockPrefix + "nowhere"
	}
	return pickOf(g.pick, g.names...)
}

// items asks each name for the kind of lock that it usually is.
func (g *generator) items() (items []fsm.Item) {
	many := 1
	if g.pick.oneIn(3) {
		many += g.pick(len(g.names))
	}
	from := g.pick(len(g.names))
	for i := range many {
		items = append(items, g.item((from+i)%len(g.names)))
	}
	if g.pick.oneIn(2) {
		slices.Reverse(items)
	}
	return items
}

func (g *generator) item(at int) fsm.Item {
	item := fsm.Item{Name: g.names[at], Mode: fsm.Exclusive}
	if g.pick(8) < g.sharedRate {
		item.Mode = fsm.Shared
	}
	permits := at == 2 || at == 3
	if g.pick.oneIn(25) {
		permits = !permits
	}
	if permits {
		item.Mode, item.Of = fsm.Permits, uint32(at+1)
		if g.pick.oneIn(40) {
			item.Of += 2
		}
		item.Permits = 1 + uint32(g.pick(int(item.Of)))
	}
	return item
}

func (g *generator) wait() clock.Span {
	return pickOf(g.pick, 0, 0, fsm.Forever, fsm.Forever, fsm.Forever, 1, clock.Second,
		8*clock.Second, fsm.SpanMax)
}

func (g *generator) maxHold() clock.Span {
	return pickOf(g.pick, 0, 0, 0, 0, 0, 0, 1, clock.Second, 5*clock.Second, fsm.SpanMax)
}

func (g *generator) acquire() fsm.Command {
	c := &fsm.Acquire{
		Session: g.session(), Items: g.items(), Wait: g.wait(), MaxHold: g.maxHold(),
		Owner: g.owner(),
	}
	c.AckedThrough = g.ackedThrough(c.Session)
	if c.Ticket = g.freshTicket(c.Session); g.pick.oneIn(12) {
		c.Ticket = g.oldTicket(c.Session)
	}
	if g.pick.oneIn(20) {
		c.Meta = "who\x00knows\xff"
	}
	return c
}

func (g *generator) drop() fsm.Command {
	ref, ok := g.liveTicket()
	if !ok || g.pick.oneIn(6) {
		ref.Session = g.session()
		ref.Ticket = g.oldTicket(ref.Session)
		if g.pick.oneIn(100) {
			ref.Ticket = g.ackedThrough(ref.Session) + fsm.TicketWindow + uint64(g.pick(2))
		}
	}
	return &fsm.Drop{Session: ref.Session, Ticket: ref.Ticket,
		AckedThrough: g.ackedThrough(ref.Session)}
}

func (g *generator) dropUnrenewed() fsm.Command {
	return (*fsm.DropUnrenewed)(g.drop().(*fsm.Drop))
}

func (g *generator) downgrade() fsm.Command {
	ref, ok := g.liveTicket()
	if !ok || g.pick.oneIn(4) {
		ref.Session = g.session()
		ref.Ticket = g.oldTicket(ref.Session)
	}
	return &fsm.Downgrade{Session: ref.Session, Ticket: ref.Ticket,
		AckedThrough: g.ackedThrough(ref.Session)}
}

func secret(n, use int) session.Hash { return session.Hash{byte(n), byte(use), byte(use >> 8)} }

// secret is one of a few, most of which did not end a session that is remembered.
func (g *generator) secret() session.Hash {
	n := 1 + g.pick(g.secrets)
	for g.model.endedSession(secret(n, g.uses[n])) != nil && !g.pick.oneIn(5) {
		g.uses[n]++
	}
	return secret(n, g.uses[n])
}

func (g *generator) openSession() fsm.Command {
	return &fsm.OpenSession{Secret: g.secret(),
		Settings: session.Settings{Identity: pickOf(g.pick, identities...),
			Label: pickOf(g.pick, "", "printer"), TTL: pickOf(g.pick, g.ttls...),
			LockDelay:           pickOf(g.pick, g.delays...),
			ReleaseOnDisconnect: pickOf(g.pick, 0, clock.Second)}}
}

func (g *generator) attach() fsm.Command {
	c := &fsm.Attach{Session: g.session(), Secret: g.secret()}
	if s := g.model.session(c.Session); s != nil && !g.pick.oneIn(6) {
		c.Secret = s.Secret
		c.Attempt = pickOf(g.pick, 0, s.attempt+1, s.attempt+1, s.attempt+7, s.attempt, s.attempt/2)
	}
	c.AckedThrough = g.ackedThrough(c.Session)
	return c
}

func (g *generator) releaseOnDisconnect() fsm.Command {
	c := &fsm.ReleaseOnDisconnect{Session: g.session(), Index: g.model.index}
	if s := g.model.session(c.Session); s != nil {
		c.Attachment = s.attachment
		c.Index = pickOf(g.pick, g.model.index, g.model.index, s.renewed, s.renewed-1)
	}
	if g.pick.oneIn(4) {
		c.Attachment = 1 + uint64(g.pick(int(min(g.model.index, 1<<30)+1)))
	}
	if len(g.indexes) > 0 && g.pick.oneIn(4) {
		c.Index = pickOf(g.pick, g.indexes...)
	}
	return c
}

func (g *generator) closeSession() fsm.Command { return &fsm.CloseSession{Session: g.session()} }

func (g *generator) withdrawSession() fsm.Command {
	return &fsm.WithdrawSession{Session: g.session()}
}

func (g *generator) expireSession() fsm.Command {
	return &fsm.ExpireSession{Session: g.session(), Reason: pickOf(g.pick, "", "gone mad")}
}

// forceRelease names a token that was seen.
func (g *generator) forceRelease() fsm.Command {
	c := &fsm.ForceRelease{Name: g.name(), Reason: pickOf(g.pick, "", "stuck")}
	if len(g.tokens) > 0 && !g.pick.oneIn(10) {
		c.Token = pickOf(g.pick, g.tokens...)
	}
	return c
}

func (g *generator) leaderStart() fsm.Command {
	return &fsm.LeaderStart{
		Node: pickOf(g.pick, "n1", "n2"), Nonce: uint64(g.pick(1000)),
		Cluster:   fsm.ClusterID{byte(1 + g.pick(3))},
		TokenBase: pickOf[uint64](g.pick, 0, 3, 1000, 1<<40),
	}
}

func (g *generator) node() string { return fmt.Sprintf("n%d", 1+g.pick(g.nodes)) }

func (g *generator) member() fsm.Command {
	return &fsm.Member{
		ID: g.node(), Incarnation: fsm.Incarnation{byte(1 + g.pick(2))}, Client: "h:5750",
		Peer: "h:5751", HTTP: "h:5752", Version: "v0", StateVersionMin: 1, StateVersionMax: 1,
		FreeBytes: uint64(g.pick(1 << 20)), LowSpaceThreshold: 9,
		ElectionTimeout: 250 * uint32(g.pick(8)), ElectionTimeoutFixed: 500,
	}
}

// setVersion never raises the version: the model knows no others.
func (g *generator) setVersion() fsm.Command {
	return &fsm.Upgrade{Version: pickOf[uint32](g.pick, 0, 3, 1<<32-1)}
}

func (g *generator) setLongestTTL() fsm.Command {
	return &fsm.SetLongestTTL{
		TTL: pickOf(g.pick, fsm.LongestTTLMin, fsm.LongestTTLDefault, 3*clock.Hour,
			fsm.LongestTTLMax)}
}

// identities are those of the sessions.
var identities = []string{"me", "me", "she"}

// setQuotas makes the quotas low, so that all are met, or lets all pass.
func (g *generator) setQuotas() fsm.Command {
	if g.pick(8) >= g.quotasRate {
		return &fsm.SetQuotas{Quotas: fsm.QuotasDefault()}
	}
	up := func(n int) uint64 { return uint64(g.pick(n)) } // 0 leaves it as it is
	return &fsm.SetQuotas{Quotas: fsm.Quotas{
		Amounts: fsm.Amounts{Sessions: up(6), Tickets: up(12), Bytes: up(14) * 1000},
		Share:   uint32(up(5)) * 25,
	}}
}

func (g *generator) digest() fsm.Command {
	return &fsm.Digest{Node: g.node(),
		Index: pickOf(g.pick, append([]uint64{g.model.index}, g.indexes...)...),
		Value: uint64(g.pick(1 << 30))}
}

// repeated says what was said before, as a client or a network may.
func (g *generator) repeated() fsm.Command {
	if len(g.sent) == 0 {
		return g.acquire()
	}
	return pickOf(g.pick, g.sent...)
}

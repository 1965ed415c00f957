package check

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// generator makes the history of a correct service at random. It decides at which moment each call
// takes effect, one after the other, and lets the call begin before and return after that moment.
// Answers get lost, operators take locks away, and clients die, are cut off, or are paused beyond
// their lease.
type generator struct {
	*rand.Rand
	generatorConfig
	history *History
	now     time.Duration
	index   uint64
	calls   uint64
	clients []*generatedClient // that live
	held    map[string][]*generatedGrant
	recent  []*generatedGrant
	// abandoned are the grants whose clients got no answer, and give up what they may have been
	// granted.
	abandoned []*generatedGrant
	highest   map[string]uint64 // by resource, the token that it has seen
	due       []sessionEnd      // to come, in order
}

type sessionEnd struct {
	at  time.Duration
	end func()
}

type generatorConfig struct {
	clients, locks, pools, steps int
	ttl                          time.Duration
	audit, lateEvents, faults    bool
}

type generatedClient struct {
	name    string
	session uint64
	tickets uint64
	gone    bool // it dies or its session expires, and does nothing any more
}

type generatedGrant struct {
	Ref
	client *generatedClient
	item   Item
	token  uint64
	hold   *Hold // nil: its client never learned of it
	ended  bool
}

func generate(seed uint64, cfg generatorConfig) *History {
	g := &generator{
		Rand: rand.New(rand.NewPCG(seed, 1)), generatorConfig: cfg, history: &History{},
		now: time.Second, index: 1000,
		held: map[string][]*generatedGrant{}, highest: map[string]uint64{},
	}
	idle := IdleCount{Process: "n1", Counts: map[string]int64{"sessions": 0}}
	g.history.IdleCounts = []IdleCount{idle, {Process: "n1", AfterLoad: true, Counts: idle.Counts}}
	for range cfg.clients {
		g.addClient()
	}
	for range cfg.steps {
		g.step()
	}
	healed := g.now
	for len(g.due) > 0 { // the last sessions end
		g.now = max(g.now, g.due[0].at)
		g.endDueSessions()
	}
	g.now += 10 * time.Millisecond
	for _, c := range g.clients {
		g.tick()
		// the last calls of each must succeed
		g.grant(c, Item{Name: "last of " + c.name, Mode: Exclusive}, OK)
		g.closeSession(c)
	}
	g.history.Plan = Plan{
		Seed: seed, Begin: time.Second, Healed: healed, End: g.now + time.Second,
		Drain: time.Second, OKMin: 10,
		CompleteEvents: cfg.audit, TokensAbove: 999,
	}
	return g.history
}

func (g *generator) addClient() {
	g.tick()
	c := &generatedClient{name: fmt.Sprint("c", g.index), session: g.index}
	g.clients = append(g.clients, c)
	h := g.history
	h.Sessions = append(h.Sessions, Session{Session: c.session, Client: c.name, TTL: g.ttl})
	h.Renewals = append(h.Renewals, Renewal{c.session, g.now - 1, g.now})
}

func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

// delay is a random time; a fifth of them are none at all, so that moments coincide.
func (g *generator) delay() time.Duration {
	return time.Duration(max(0, g.Int64N(5000)-1000)) * time.Microsecond
}

// tick comes to the moment and the index at which something takes effect.
func (g *generator) tick() {
	if g.now += 1 + 2*g.delay(); g.chance(10) {
		g.now += 50 * time.Millisecond // nothing is under way
	}
	g.index += 2
	g.endDueSessions()
}

func (g *generator) endDueSessions() {
	for len(g.due) > 0 && g.due[0].at <= g.now {
		due := g.due[0]
		g.due = g.due[1:]
		g.index += 2
		due.end()
		g.index += 2
	}
}

func (g *generator) step() {
	g.tick()
	for _, r := range g.abandoned {
		g.end(r, EvReleased, "dropped", 0, "")
		g.tick()
	}
	g.abandoned = nil
	c := g.clients[g.IntN(len(g.clients))]
	item := g.item()
	holders := g.held[item.Name]
	switch n := g.IntN(100); {
	case n < 45:
		if g.fits(item) {
			g.grant(c, item, g.outcome())
		} else if n < 15 {
			g.call(c, Op{Kind: OpTryLock, Items: []Item{item}}, 0, Refused)
		}
	case n < 70 && len(holders) > 0:
		if held := holders[g.IntN(len(holders))]; !held.client.gone {
			g.release(held, g.outcome())
		}
	case n < 74 && len(holders) > 0:
		g.downgrade(holders[0])
	case n < 80:
		g.call(c, Op{Kind: OpNow, Term: 1, Index: g.index, Time: g.now}, 0, OK)
	case n < 86 && len(g.recent) > 0:
		r := g.recent[g.IntN(len(g.recent))]
		op := Op{Kind: OpCheck, Ref: r.Ref, Token: r.token, Items: []Item{{Name: r.item.Name}},
			Held: !r.ended}
		op.Term, op.Index, op.Time = 1, g.index, g.now
		g.call(c, op, 0, OK)
	case n < 90:
		op := Op{Kind: OpGet, Items: []Item{{Name: item.Name}}, Term: 1, Index: g.index,
			Time: g.now}
		for _, held := range holders {
			op.Holders = append(op.Holders, held.Ref)
		}
		g.call(c, op, 0, OK)
	case n < 97 && len(g.recent) > 0:
		g.write(g.recent[g.IntN(len(g.recent))])
	case n < 98 && g.faults && g.chance(50):
		g.force(holders)
	case n < 99 && g.faults && g.chance(30):
		g.loseSession(c)
	default:
		for _, node := range []string{"n1", "n2"} {
			state := NodeState{Node: node, At: g.now, Term: 1, Index: g.index, Time: g.now,
				Digest: g.index * 7919}
			g.history.NodeStates = append(g.history.NodeStates, state)
		}
	}
}

func (g *generator) item() Item {
	if n := g.IntN(g.locks + g.pools); n >= g.locks {
		return Item{Name: fmt.Sprint("pool-", n-g.locks), Mode: Permits, Permits: 1 + g.IntN(2),
			Limit: 3}
	} else if g.chance(30) {
		return Item{Name: fmt.Sprint("lock-", n), Mode: Shared}
	} else {
		return Item{Name: fmt.Sprint("lock-", n), Mode: Exclusive}
	}
}

func (g *generator) fits(item Item) bool {
	permits := item.Permits
	for _, held := range g.held[item.Name] {
		if permits += held.item.Permits; held.item.Mode != item.Mode || item.Mode == Exclusive {
			return false
		}
	}
	return item.Mode != Permits || permits <= item.Limit
}

func (g *generator) outcome() Outcome {
	if g.chance(4) {
		return Unknown
	}
	return OK
}

// call records a call that takes effect now and does not begin before earliest.
func (g *generator) call(c *generatedClient, op Op, earliest time.Duration, outcome Outcome) *Op {
	g.calls++
	op.Client, op.ID, op.Outcome = c.name, g.calls, Unknown
	op.Call = min(g.now, max(earliest, g.now-g.delay()))
	if g.chance(30) {
		// before it is made, as a client does that may be killed
		g.history.Ops = append(g.history.Ops, op)
	}
	op.Return, op.Outcome = g.now+g.delay(), outcome
	g.history.Ops = append(g.history.Ops, op)
	return &g.history.Ops[len(g.history.Ops)-1]
}

func (g *generator) event(kind EventKind, ref Ref, token uint64, reason string, items ...Item) {
	ev := Event{At: g.now, Index: g.index, Kind: kind, Ref: ref, Token: token, Reason: reason,
		Items: items}
	for range 1 + g.IntN(2) {
		if g.lateEvents {
			ev.At = g.now + g.delay()
		}
		if g.audit {
			g.history.Events = append(g.history.Events, ev)
		}
	}
}

func (g *generator) grant(c *generatedClient, item Item, outcome Outcome) {
	c.tickets++
	r := &generatedGrant{Ref: Ref{c.session, c.tickets}, client: c, item: item, token: g.index}
	op := g.call(c, Op{Kind: OpLock, Ref: r.Ref, Items: []Item{item}}, 0, outcome)
	if outcome != OK {
		g.abandoned = append(g.abandoned, r)
	} else {
		op.Token = r.token
		if g.chance(30) && op.Call < g.now-1 {
			op.Queued = g.now - 1 // later calls are granted later
		}
		r.hold = &Hold{Client: c.name, Ref: r.Ref, Token: r.token, Items: op.Items, From: op.Return}
		g.history.Holds = append(g.history.Holds, *r.hold)
	}
	g.held[item.Name] = append(g.held[item.Name], r)
	g.recent = append(g.recent[max(0, len(g.recent)-1000):], r)
	g.event(EvGranted, r.Ref, r.token, "", item)
}

// end removes a grant; its client holds it until a moment.
func (g *generator) end(r *generatedGrant, kind EventKind, reason string, to time.Duration,
	end HoldEnd) {
	r.ended = true
	g.held[r.item.Name] = slices.DeleteFunc(g.held[r.item.Name],
		func(o *generatedGrant) bool { return o == r })
	g.event(kind, r.Ref, r.token, reason)
	if r.hold != nil {
		if r.hold.End = end; end != "" {
			r.hold.To = max(to, r.hold.From)
		}
		if end == Lost {
			r.hold.Reason = reason
		}
		g.history.Holds = append(g.history.Holds, *r.hold)
	}
}

func (g *generator) release(r *generatedGrant, outcome Outcome) {
	g.now = max(g.now, r.hold.From)
	op := g.call(r.client, Op{Kind: OpUnlock, Ref: r.Ref}, r.hold.From, outcome)
	g.end(r, EvReleased, "dropped", op.Call, Unlocked)
}

func (g *generator) downgrade(r *generatedGrant) {
	if r.item.Mode != Exclusive || r.hold == nil || r.hold.From > g.now || r.client.gone {
		return
	}
	op := g.call(r.client, Op{Kind: OpDowngrade, Ref: r.Ref}, r.hold.From, OK)
	r.hold.Downgraded = op.Call
	r.item.Mode = Shared
	g.event(EvDowngraded, r.Ref, r.token, "")
}

func (g *generator) write(r *generatedGrant) {
	if r.item.Mode == Permits || r.hold == nil || r.hold.From > g.now {
		return
	}
	w := Write{Resource: r.item.Name, Client: r.client.name, Token: r.token,
		Shared: r.item.Mode == Shared, At: g.now}
	if w.Accepted = r.token >= g.highest[w.Resource]; w.Accepted && !w.Shared {
		g.highest[w.Resource] = r.token
	}
	g.history.Writes = append(g.history.Writes, w)
}

// force is an operator that takes a lock away.
func (g *generator) force(holders []*generatedGrant) {
	if len(holders) == 0 || holders[0].client.gone {
		return // a release of a later one, with a greater token, would take the first one's too
	}
	r := holders[0]
	g.call(&generatedClient{name: "operator"},
		Op{Kind: OpForceRelease, Items: []Item{{Name: r.item.Name}}, Token: r.token}, 0, OK)
	g.end(r, EvLost, "force_released", g.now+g.delay(), Lost)
}

// loseSession lets a client die, be cut off, or be paused. Its session expires, and a successor
// comes.
func (g *generator) loseSession(c *generatedClient) {
	g.call(c, Op{Kind: OpNow, Term: 1, Index: g.index, Time: g.now}, g.now, OK)
	c.gone = true
	g.clients = slices.DeleteFunc(g.clients, func(o *generatedClient) bool { return o == c })
	h, from := g.history, g.now
	h.Renewals = append(h.Renewals, Renewal{c.session, from - 1, from})
	kind, gaveUp := g.IntN(3), from+g.ttl-ClockMargin(g.ttl)
	if kind == 0 {
		h.Sessions = append(h.Sessions,
			Session{Session: c.session, Client: c.name, TTL: g.ttl, Died: from})
	}
	g.due = append(g.due, sessionEnd{from + g.ttl, func() {
		if kind == 2 { // it wakes up after its lease
			gaveUp = g.now + g.delay()
			fault := Fault{Kind: "pause client", Target: c.name, From: from, To: gaveUp,
				ExcusesClient: true}
			h.Faults = append(h.Faults, fault)
		}
		if kind == 0 {
			g.endSession(c, Expired, 0, "")
		} else {
			g.endSession(c, Expired, gaveUp, Lost)
		}
	}})
	g.addClient()
}

// closeSession ends a session, and with it what it holds, as its client asks.
func (g *generator) closeSession(c *generatedClient) {
	g.now += 10 * time.Millisecond
	g.tick()
	op := g.call(c, Op{Kind: OpClose, Ref: Ref{Session: c.session}}, 0, OK)
	g.endSession(c, "closed", op.Call, Unlocked)
}

func (g *generator) endSession(c *generatedClient, reason string, to time.Duration, end HoldEnd) {
	for _, name := range slices.Sorted(maps.Keys(g.held)) {
		for _, r := range slices.Clone(g.held[name]) {
			if r.client == c {
				g.end(r, EvLost, reason, to, end)
			}
		}
	}
	g.event(EvEnded, Ref{Session: c.session}, 0, reason)
}

// seedOf is where the random histories of a test begin: always the same, so that a checker's error
// which one in thousands of histories shows is met by a search for it, ZAMOK_SEED=n go test, and
// not by an unrelated change.
func seedOf(t *testing.T) uint64 {
	text := os.Getenv("ZAMOK_SEED")
	if text == "" {
		return 1
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, "ZAMOK_SEED")
	return seed
}

// What a correct service records has no violation, whatever went wrong around it.
func TestCorrectServiceHasNoViolations(t *testing.T) {
	base, examined := seedOf(t), map[string]int{}
	for seed := base; seed < base+40; seed++ {
		r := rand.New(rand.NewPCG(seed, 2))
		h := generate(seed, generatorConfig{
			clients: 2 + r.IntN(10), locks: 1 + r.IntN(4), pools: r.IntN(2), steps: 5000,
			ttl:   time.Second + time.Duration(r.IntN(2))*time.Second,
			audit: r.IntN(2) == 0, lateEvents: r.IntN(2) == 0, faults: r.IntN(4) > 0,
		})
		report := Check(h)
		require.True(t, report.OK(), "seed %d:\n%v", seed, report)
		for id, n := range report.Examined {
			examined[id] += n
		}
	}
	for _, c := range checks() {
		assert.Greater(t, examined[c.id], 20, c.id)
	}
}

func TestHistoryRoundTrip(t *testing.T) {
	seed := seedOf(t)
	h := generate(seed, generatorConfig{clients: 3, locks: 2, pools: 1, steps: 1000,
		ttl:   2 * time.Second,
		audit: true, faults: true})
	var lines bytes.Buffer
	require.NoError(t, h.Write(&lines))
	text := lines.String()
	var back History
	require.NoError(t, back.Read(strings.NewReader(text)))
	require.Equal(t, h, &back, "seed %d", seed)

	var torn History
	require.NoError(t, torn.Read(strings.NewReader(text[:len(text)-9])))
	assert.Equal(t, 1, torn.TruncatedLines)
	for line, want := range map[string]string{
		`{"op":{"client":"c"}} {"opp":{}}`: `history, record 2: json: unknown field "opp"`,
		`{}`:                               "history, record 1: there is nothing in it",
		`{"op":{"call":"soon"}}`: "history, record 1: json: cannot unmarshal " +
			"string into Go",
	} {
		assert.ErrorContains(t, new(History).Read(strings.NewReader(line)), want)
	}

	reader, disk := io.Pipe()
	reader.CloseWithError(unix.ENOSPC)
	require.EqualError(t, h.Write(disk), unix.ENOSPC.Error(), "once, not for each record")
}

// The search is made short by what tokens say of the order, and by cutting where nothing is under
// way. Neither changes what it finds.
func TestChunkedSearchAgreesWithFullSearch(t *testing.T) {
	base, good, bad := seedOf(t), 0, 0
	for seed := base; seed < base+400; seed++ {
		h := generate(seed, generatorConfig{clients: 3, locks: 1, pools: 1, steps: 40,
			ttl:   2 * time.Second,
			audit: seed%2 == 0})
		r := rand.New(rand.NewPCG(seed, 4))
		if seed%3 != 0 {
			for range 4 {
				addNoise(r, h)
			}
		}
		v := newHistoryIndex(h)
		want := true
		shared := false
		for _, l := range v.locks {
			grants := v.grantsOf(l)
			for i := range grants {
				shared = shared || i > 0 && grants[i].token == grants[i-1].token
			}
			c := &chunk{historyIndex: v, name: l.name, grants: grants, steps: v.stepsOf(l, grants)}
			result := porcupine.CheckOperationsTimeout(c.model(), c.operations(), searchTimeout)
			require.NotEqual(t, porcupine.Unknown, result, "seed %d", seed)
			want = want && result == porcupine.Ok
		}
		if shared {
			continue // one token for two is one moment for two, which only the short search knows
		}
		f := &checker{historyIndex: v, timeout: searchTimeout, chunkMin: 1, report: &Report{}}
		checkLinearizability(f)
		require.Equal(t, want, len(f.report.Violations) == 0, "seed %d: %v", seed,
			f.report.Violations)
		if want {
			good++
		} else {
			bad++
		}
	}
	assert.Greater(t, good, 20, "seed %d", base)
	assert.Greater(t, bad, 20, "seed %d", base)
}

// addNoise changes one answer, which may or may not be wrong then.
func addNoise(r *rand.Rand, h *History) {
	op := &h.Ops[r.IntN(len(h.Ops))]
	switch {
	case op.Outcome != OK:
	case op.Kind == OpCheck:
		op.Held = !op.Held
	case op.Kind == OpGet && len(op.Holders) > 0:
		op.Holders = op.Holders[1:]
	case op.acquires() && r.IntN(2) == 0:
		op.Token += uint64(r.IntN(20)) - 10
	default:
		op.Return = op.Call + time.Duration(r.Int64N(int64(op.Return-op.Call)+1))
	}
}

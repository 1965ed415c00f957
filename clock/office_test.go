package clock_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"zamok/clock"
)

// The log of a cluster in miniature, to see C3 and C4 hold where they are
// threatened: leaders change, nodes learn of it late, and entries that were
// stamped in one leadership land in another. Here a node may do at any moment
// whatever the duties D1–D3 do not forbid.

// rule is how the machine takes a reading: clock.Advance, or a wrong one.
type rule func(m *machine, e entry) clock.Time

func asDocumented(m *machine, e entry) clock.Time {
	return clock.Advance(m.time, m.inForce, e.reading)
}

// Three rules that nearly do. Each drops one part of the documented one.
func anyReadingCounts(m *machine, e entry) clock.Time {
	return max(m.time, e.reading.Now)
}

func officeWithoutTerm(m *machine, e entry) clock.Time {
	return clock.Advance(m.time, m.office, e.reading)
}

func termWithoutOffice(m *machine, e entry) clock.Time {
	if e.stampedIn != m.term {
		return m.time
	}
	return max(m.time, e.reading.Now)
}

type entry struct {
	start     int        // Not zero: a LeaderStart with this nonce.
	stamped   clock.Span // The real moment: p(E).
	stampedIn uint64     // The term of its epoch's LeaderStart.
	reading   clock.Reading
}

type machine struct {
	time    clock.Time
	term    uint64
	index   uint64
	office  uint64 // The latest LeaderStart.
	inForce uint64 // The same until the term changes, then zero (D3).
}

// node is one process. What it has stamped waits in its queue until it leads,
// which may be in a later term, or never.
type node struct {
	src      clock.Manual
	won      int // Elections that it won and has not taken notice of.
	nonce    int // Of the LeaderStart that it waits for.
	leader   *clock.Leader
	openedIn uint64
	queue    []entry
}

// lease is a renewal that was heard: in an entry stamped at from, until deadline.
type lease struct {
	from     clock.Span
	deadline clock.Time
}

const leaseTTL = 5 * clock.Second

type cluster struct {
	rule    rule
	now     clock.Span // Real time.
	term    uint64
	leads   int // The node that leads; -1 before the first election.
	nonces  int
	nodes   [3]node
	machine machine
	leases  []lease
	// slack is the least T(E) − p(E) of the log so far. By C4 no entry that
	// raises time may have less.
	slack clock.Span
}

type step struct {
	do   string
	node int
	span clock.Span // How long, for "pass" and "sleep".
	nth  int        // Which of the queue, for "land" and "drop".
}

func steps() *rapid.Generator[[]step] {
	one := rapid.Custom(func(t *rapid.T) step {
		return step{
			do: rapid.SampledFrom([]string{
				"pass", "pass", "sleep", "elect", "elect", "notice", "open", "open", "take epoch",
				"stamp", "stamp", "serve", "serve", "land", "land", "land", "drop",
			}).Draw(t, "do"),
			node: rapid.SampledFrom([]int{0, 0, 1, 1, 2}).Draw(t, "node"),
			span: rapid.SampledFrom([]clock.Span{
				clock.Millisecond, 99 * clock.Millisecond, clock.Second, 7 * clock.Second,
			}).Draw(t, "span"),
			nth: rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "nth"),
		}
	})
	return rapid.SliceOfN(one, 60, 120)
}

// run plays the steps, passing over those that are not possible, and returns
// the first breach of C3 or C4.
func run(script []step, r rule) error {
	c := &cluster{rule: r, leads: -1}
	for n, s := range script {
		if err := c.play(s); err != nil {
			return fmt.Errorf("step %d, %+v: %w", n, s, err)
		}
	}
	return nil
}

func (c *cluster) play(s step) error {
	n := &c.nodes[s.node]
	switch s.do {
	case "pass":
		c.pass(s.span, -1)
	case "sleep":
		c.pass(s.span, s.node)
	case "elect":
		c.elect(s.node)
	case "notice":
		c.notice(n)
	case "open": // As it should go: nothing comes between.
		c.notice(n)
		return c.land(s.node, len(n.queue)-1)
	case "take epoch":
		c.elect(s.node)
		for n.won > 0 {
			c.notice(n)
		}
		return c.land(s.node, len(n.queue)-1)
	case "stamp":
		c.stamp(n)
	case "serve": // As it should go.
		c.stamp(n)
		return c.land(s.node, len(n.queue)-1)
	case "land":
		return c.land(s.node, s.nth)
	case "drop":
		if s.nth < len(n.queue) {
			n.take(s.nth)
		}
	}
	return nil
}

func (c *cluster) elect(node int) {
	c.term++
	c.leads = node
	c.nodes[node].won++
}

func (c *cluster) stamp(n *node) {
	if n.leader != nil {
		n.queue = append(n.queue, entry{
			stamped: c.now, stampedIn: n.openedIn, reading: n.leader.Read(),
		})
	}
}

// land takes the nth of the node's queue into the log, and applies it. Only who
// leads can, and entries may overtake each other on their way.
func (c *cluster) land(node, nth int) error {
	n := &c.nodes[node]
	if c.leads != node || nth < 0 || nth >= len(n.queue) {
		return nil
	}
	return c.apply(n.take(nth))
}

// pass lets real time pass in steps that a ticker would make, so that clocks run
// at full speed: a clock that loses time would make the test easier to pass.
func (c *cluster) pass(span clock.Span, asleep int) {
	for span > 0 {
		tick := min(span, clock.StepMax)
		span -= tick
		c.now += tick
		for i := range c.nodes {
			n := &c.nodes[i]
			if i == asleep {
				n.src.Suspend(tick)
				continue
			}
			n.src.Advance(tick)
			if n.leader != nil {
				n.leader.Read()
			}
		}
	}
}

// notice is a node taking note of one election that it won, perhaps long after:
// the old epoch ends, then the next is proposed (D2).
func (c *cluster) notice(n *node) {
	if n.won == 0 {
		return
	}
	n.won--
	n.leader = nil
	c.nonces++
	n.nonce = c.nonces
	n.queue = append(n.queue, entry{start: n.nonce, stamped: c.now})
}

func (n *node) take(nth int) entry {
	e := n.queue[nth]
	n.queue = append(n.queue[:nth:nth], n.queue[nth+1:]...)
	return e
}

func (c *cluster) apply(e entry) error {
	m := &c.machine
	m.index++
	if m.term != c.term {
		m.term, m.inForce = c.term, 0
	}
	before := m.time
	if e.start != 0 {
		m.office, m.inForce = m.index, m.index
		c.open(e.start)
	} else {
		m.time = c.rule(m, e)
	}
	if m.time < before {
		return fmt.Errorf("C3: time fell from %v to %v", before, m.time)
	}
	if m.time > before {
		if err := c.raised(e); err != nil {
			return err
		}
	}
	c.slack = min(c.slack, clock.Span(m.time)-e.stamped)
	c.leases = append(c.leases, lease{from: e.stamped, deadline: m.time.Add(leaseTTL)})
	return nil
}

func (c *cluster) raised(e entry) error {
	lived := c.leases[:0]
	for _, l := range c.leases {
		if l.deadline > c.machine.time {
			lived = append(lived, l)
		} else if e.stamped-l.from < leaseTTL {
			return fmt.Errorf("a lease of %v ended after %v", leaseTTL, e.stamped-l.from)
		}
	}
	c.leases = lived
	if got := clock.Span(c.machine.time) - e.stamped; got > c.slack {
		return fmt.Errorf("C4: time came to %v by %v more than real time allows",
			c.machine.time, got-c.slack)
	}
	return nil
}

// open starts the epoch of the node that drew the nonce, if it still waits for
// it; what lands of an epoch that was given up opens nothing.
func (c *cluster) open(nonce int) {
	for i := range c.nodes {
		n := &c.nodes[i]
		if n.nonce == nonce {
			n.nonce = 0
			n.leader = clock.StartLeader(&n.src, c.machine.index, c.machine.time)
			n.openedIn = c.machine.term
		}
	}
}

func TestClusterTimeGrowsNoFasterThanRealTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		require.NoError(t, run(steps().Draw(t, "steps"), asDocumented))
	})
	// The same seeds by which the wrong rules below are found, and more.
	schedules := steps()
	for seed := range wrongSeeds {
		require.NoError(t, run(schedules.Example(seed), asDocumented), "seed %d", seed)
	}
}

// wrongSeeds is how many seeds a deliberately wrong thing gets to be caught.
const wrongSeeds = 1000

// The property above is worth something only if it sees what it is to prevent.
// Here is a short way into each wrong rule; the last is the one that the package
// comment tells.
func TestARuleThatLacksAPartEndsALeaseEarly(t *testing.T) {
	for _, c := range []struct {
		what   string
		wrong  rule
		script []step
	}{
		{"a reading of an epoch that is over counts", anyReadingCounts, []step{
			{do: "elect", node: 0}, {do: "notice", node: 0}, {do: "land", node: 0},
			{do: "pass", span: 10 * clock.Second},
			{do: "stamp", node: 0}, // Stays in the queue of node 0.
			{do: "elect", node: 1}, {do: "notice", node: 1}, {do: "land", node: 1},
			{do: "pass", span: clock.Second},
			{do: "stamp", node: 1}, {do: "land", node: 1}, // A fresh lease.
			{do: "elect", node: 0}, {do: "land", node: 0},
		}},
		{"two epochs of one process in one term", termWithoutOffice, []step{
			// Node 0 wins twice and has noticed neither.
			{do: "elect", node: 0}, {do: "elect", node: 0},
			{do: "notice", node: 0}, {do: "land", node: 0},
			{do: "pass", span: 10 * clock.Second},
			{do: "stamp", node: 0}, // Stays behind the next LeaderStart.
			{do: "notice", node: 0}, {do: "land", node: 0, nth: 1},
			{do: "pass", span: clock.Second},
			{do: "stamp", node: 0}, {do: "land", node: 0, nth: 1}, // A fresh lease.
			{do: "land", node: 0},
		}},
		{"an epoch outlives its term", officeWithoutTerm, []step{
			{do: "elect", node: 0}, {do: "notice", node: 0}, {do: "land", node: 0},
			{do: "elect", node: 1}, {do: "notice", node: 1}, {do: "land", node: 1},
			{do: "pass", span: 10 * clock.Second},
			{do: "stamp", node: 1},                        // Stays in the queue of node 1.
			{do: "stamp", node: 0},                        // Node 0 does not know that it is deposed.
			{do: "elect", node: 0}, {do: "land", node: 0}, // A fresh lease.
			{do: "elect", node: 1}, {do: "land", node: 1},
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			assert.Error(t, run(c.script, c.wrong))
			assert.NoError(t, run(c.script, asDocumented))
		})
	}
}

// And the random schedules find each of them without being led there.
func TestRandomSchedulesFindEachWrongRule(t *testing.T) {
	schedules := steps()
	for what, wrong := range map[string]rule{
		"any reading counts": anyReadingCounts,
		"epoch without term": officeWithoutTerm,
		"term without epoch": termWithoutOffice,
	} {
		requireCaught(t, what, func(seed int) error {
			return run(schedules.Example(seed), wrong)
		})
	}
}

// requireCaught wants some seed to show that a deliberately wrong thing is wrong.
func requireCaught(t *testing.T, what string, play func(seed int) error) {
	t.Helper()
	for seed := range wrongSeeds {
		if err := play(seed); err != nil {
			t.Logf("%s: caught by seed %d: %v", what, seed, err)
			return
		}
	}
	require.Failf(t, "not caught", "%s, by the seeds below %d", what, wrongSeeds)
}

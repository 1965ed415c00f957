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

func documentedRule(m *machine, e entry) clock.Time {
	return clock.Advance(m.time, m.currentEpoch, e.reading)
}

// Three rules that nearly do. Each drops one part of the documented one.
func readingOfAnyEpoch(m *machine, e entry) clock.Time {
	return max(m.time, e.reading.Now)
}

func epochWithoutTerm(m *machine, e entry) clock.Time {
	return clock.Advance(m.time, m.latestEpoch, e.reading)
}

func termWithoutEpoch(m *machine, e entry) clock.Time {
	if e.stampTerm != m.term {
		return m.time
	}
	return max(m.time, e.reading.Now)
}

type entry struct {
	startNonce int        // Not zero: a LeaderStart with this nonce.
	stampedAt  clock.Span // The real moment: p(E).
	stampTerm  uint64     // The term of its epoch's LeaderStart.
	reading    clock.Reading
}

type machine struct {
	time         clock.Time
	term         uint64
	index        uint64
	latestEpoch  uint64 // The latest LeaderStart.
	currentEpoch uint64 // The same until the term changes, then zero (D3).
}

// node is one process. What it has stamped waits in its queue until it leads,
// which may be in a later term, or never.
type node struct {
	src clock.Manual
	// By what part its monotonic clock is hurried; below 0: slowed; 0: not at all.
	bend          clock.Span
	unnoticedWins int // Elections that it won and has not taken notice of.
	pendingNonce  int // Of the LeaderStart that it waits for.
	leader        *clock.Leader
	epochTerm     uint64
	queue         []entry
}

// lease is a renewal that was heard: in an entry stamped at from, until deadline.
type lease struct {
	renewedAt clock.Span
	deadline  clock.Time
}

const leaseTTL = 5 * clock.Second

type cluster struct {
	rule      rule
	now       clock.Span // Real time.
	term      uint64
	leader    int // The node that leads; -1 before the first election.
	lastNonce int
	nodes     [3]node
	machine   machine
	leases    []lease
	// slack is the least T(E) − p(E) of the log so far. By C4 no entry that
	// raises time may have less.
	slack clock.Span
}

type step struct {
	action   string
	node     int
	span     clock.Span // How long, for "pass" and "sleep".
	part     clock.Span // For "bend".
	position int        // Which of the queue, for "land" and "drop".
}

func steps() *rapid.Generator[[]step] {
	one := rapid.Custom(func(t *rapid.T) step {
		return step{
			action: rapid.SampledFrom([]string{
				"pass", "pass", "sleep", "bend", "elect", "elect", "notice", "open", "open",
				"take epoch",
				"stamp", "stamp", "serve", "serve", "land", "land", "land", "drop",
			}).Draw(t, "do"),
			node: rapid.SampledFrom([]int{0, 0, 1, 1, 2}).Draw(t, "node"),
			span: rapid.SampledFrom([]clock.Span{
				clock.Millisecond, 99 * clock.Millisecond, clock.Second, 7 * clock.Second,
			}).Draw(t, "span"),
			part: rapid.SampledFrom(
				[]clock.Span{-clock.BendDivisor, clock.BendDivisor, 0}).Draw(t, "part"),
			position: rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "nth"),
		}
	})
	return rapid.SliceOfN(one, 60, 120)
}

// run plays the steps, passing over those that are not possible, and returns
// the first breach of C3 or C4.
func run(script []step, r rule) error {
	c := &cluster{rule: r, leader: -1}
	for n, s := range script {
		if err := c.play(s); err != nil {
			return fmt.Errorf("step %d, %+v: %w", n, s, err)
		}
	}
	return nil
}

func (c *cluster) play(s step) error {
	n := &c.nodes[s.node]
	switch s.action {
	case "pass":
		c.advance(s.span, -1)
	case "sleep":
		c.advance(s.span, s.node)
	case "bend":
		n.bend = s.part
	case "elect":
		c.elect(s.node)
	case "notice":
		c.startEpoch(n)
	case "open": // As it should go: nothing comes between.
		c.startEpoch(n)
		return c.commit(s.node, len(n.queue)-1)
	case "take epoch":
		c.elect(s.node)
		for n.unnoticedWins > 0 {
			c.startEpoch(n)
		}
		return c.commit(s.node, len(n.queue)-1)
	case "stamp":
		c.stamp(n)
	case "serve": // As it should go.
		c.stamp(n)
		return c.commit(s.node, len(n.queue)-1)
	case "land":
		return c.commit(s.node, s.position)
	case "drop":
		if s.position < len(n.queue) {
			n.removeQueued(s.position)
		}
	}
	return nil
}

func (c *cluster) elect(node int) {
	c.term++
	c.leader = node
	c.nodes[node].unnoticedWins++
}

func (c *cluster) stamp(n *node) {
	if n.leader != nil {
		n.queue = append(n.queue, entry{
			stampedAt: c.now, stampTerm: n.epochTerm, reading: n.leader.Read(),
		})
	}
}

// commit takes the nth of the node's queue into the log, and applies it. Only who
// leads can, and entries may overtake each other on their way.
func (c *cluster) commit(node, position int) error {
	n := &c.nodes[node]
	if c.leader != node || position < 0 || position >= len(n.queue) {
		return nil
	}
	return c.apply(n.removeQueued(position))
}

// advance lets real time pass in steps that a ticker would make, so that clocks run
// at full speed: a clock that loses time would make the test easier to pass, and so
// would a hurried one that is cut off at StepMax. Raw clocks are right.
func (c *cluster) advance(span clock.Span, suspended int) {
	for span > 0 {
		tick := min(span, clock.StepMax/2)
		span -= tick
		c.now += tick
		for i := range c.nodes {
			n := &c.nodes[i]
			if i == suspended {
				n.src.Suspend(tick)
				continue
			}
			mono := tick
			if n.bend != 0 {
				mono += tick / n.bend
			}
			n.src.Bend(tick, mono)
			if n.leader != nil {
				n.leader.Read()
			}
		}
	}
}

// startEpoch is a node noticing one election that it won, perhaps long after:
// the old epoch ends, then the next is proposed (D2).
func (c *cluster) startEpoch(n *node) {
	if n.unnoticedWins == 0 {
		return
	}
	n.unnoticedWins--
	n.leader = nil
	c.lastNonce++
	n.pendingNonce = c.lastNonce
	n.queue = append(n.queue, entry{startNonce: n.pendingNonce, stampedAt: c.now})
}

func (n *node) removeQueued(position int) entry {
	e := n.queue[position]
	n.queue = append(n.queue[:position:position], n.queue[position+1:]...)
	return e
}

func (c *cluster) apply(e entry) error {
	m := &c.machine
	m.index++
	if m.term != c.term {
		m.term, m.currentEpoch = c.term, 0
	}
	previous := m.time
	if e.startNonce != 0 {
		m.latestEpoch, m.currentEpoch = m.index, m.index
		c.epochStarted(e.startNonce)
	} else {
		m.time = c.rule(m, e)
	}
	if m.time < previous {
		return fmt.Errorf("C3: time fell from %v to %v", previous, m.time)
	}
	if m.time > previous {
		if err := c.checkTimeRaised(e); err != nil {
			return err
		}
	}
	c.slack = min(c.slack, clock.Span(m.time)-e.stampedAt)
	c.leases = append(c.leases, lease{renewedAt: e.stampedAt, deadline: m.time.Add(leaseTTL)})
	return nil
}

func (c *cluster) checkTimeRaised(e entry) error {
	live := c.leases[:0]
	for _, l := range c.leases {
		if l.deadline > c.machine.time {
			live = append(live, l)
		} else if e.stampedAt-l.renewedAt < leaseTTL {
			return fmt.Errorf("a lease of %v ended after %v", leaseTTL, e.stampedAt-l.renewedAt)
		}
	}
	c.leases = live
	if got := clock.Span(c.machine.time) - e.stampedAt; got > c.slack {
		return fmt.Errorf("C4: time came to %v by %v more than real time allows",
			c.machine.time, got-c.slack)
	}
	return nil
}

// epochStarted starts the epoch of the node that drew the nonce, if it still waits for
// it; what lands of an epoch that was given up opens nothing.
func (c *cluster) epochStarted(nonce int) {
	for i := range c.nodes {
		n := &c.nodes[i]
		if n.pendingNonce == nonce {
			n.pendingNonce = 0
			n.leader = clock.StartLeader(&n.src, c.machine.index, c.machine.time)
			n.epochTerm = c.machine.term
		}
	}
}

func TestClusterTimeIsNoFasterThanRealTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		require.NoError(t, run(steps().Draw(t, "steps"), documentedRule))
	})
	// The same seeds by which the wrong rules below are found, and more.
	schedules := steps()
	for seed := range mutantSeeds {
		require.NoError(t, run(schedules.Example(seed), documentedRule), "seed %d", seed)
	}
}

// mutantSeeds is how many seeds a deliberately wrong thing gets to be caught.
const mutantSeeds = 1000

// The property above is worth something only if it sees what it is to prevent.
// Here is a short way into each wrong rule; the last is the one that the package
// comment describes.
func TestIncompleteRuleEndsLeaseEarly(t *testing.T) {
	for _, c := range []struct {
		what   string
		wrong  rule
		script []step
	}{
		{"a reading of an epoch that is over counts", readingOfAnyEpoch, []step{
			{action: "elect", node: 0}, {action: "notice", node: 0}, {action: "land", node: 0},
			{action: "pass", span: 10 * clock.Second},
			{action: "stamp", node: 0}, // Stays in the queue of node 0.
			{action: "elect", node: 1}, {action: "notice", node: 1}, {action: "land", node: 1},
			{action: "pass", span: clock.Second},
			{action: "stamp", node: 1}, {action: "land", node: 1}, // A fresh lease.
			{action: "elect", node: 0}, {action: "land", node: 0},
		}},
		{"two epochs of one process in one term", termWithoutEpoch, []step{
			// Node 0 wins twice and has noticed neither.
			{action: "elect", node: 0}, {action: "elect", node: 0},
			{action: "notice", node: 0}, {action: "land", node: 0},
			{action: "pass", span: 10 * clock.Second},
			{action: "stamp", node: 0}, // Stays behind the next LeaderStart.
			{action: "notice", node: 0}, {action: "land", node: 0, position: 1},
			{action: "pass", span: clock.Second},
			{action: "stamp", node: 0}, {action: "land", node: 0, position: 1}, // A fresh lease.
			{action: "land", node: 0},
		}},
		{"an epoch outlives its term", epochWithoutTerm, []step{
			{action: "elect", node: 0}, {action: "notice", node: 0}, {action: "land", node: 0},
			{action: "elect", node: 1}, {action: "notice", node: 1}, {action: "land", node: 1},
			{action: "pass", span: 10 * clock.Second},
			{action: "stamp", node: 1}, // Stays in the queue of node 1.
			// Node 0 does not know that it is deposed.
			{action: "stamp", node: 0},
			{action: "elect", node: 0}, {action: "land", node: 0}, // A fresh lease.
			{action: "elect", node: 1}, {action: "land", node: 1},
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			assert.Error(t, run(c.script, c.wrong))
			assert.NoError(t, run(c.script, documentedRule))
		})
	}
}

// And the random schedules find each of them without being led there.
func TestRandomSchedulesCatchWrongRules(t *testing.T) {
	schedules := steps()
	for what, wrong := range map[string]rule{
		"any reading counts": readingOfAnyEpoch,
		"epoch without term": epochWithoutTerm,
		"term without epoch": termWithoutEpoch,
	} {
		requireCaught(t, what, func(seed int) error {
			return run(schedules.Example(seed), wrong)
		})
	}
}

// requireCaught wants some seed to show that a deliberately wrong thing is wrong.
func requireCaught(t *testing.T, what string, play func(seed int) error) {
	t.Helper()
	for seed := range mutantSeeds {
		if err := play(seed); err != nil {
			t.Logf("%s: caught by seed %d: %v", what, seed, err)
			return
		}
	}
	require.Failf(t, "not caught", "%s, by the seeds below %d", what, mutantSeeds)
}

package sim

import (
	"sync"
	"sync/atomic"
	"time"

	"zamok/clock"
)

// Clock is a machine's own clocks: a raw one, which goes as its crystal does, and the one that the machine steers. It may
// lag, or block its readers, and the raw one never runs faster than virtual time but by its rate: the whole system relies
// on that. (So a node's clock that stands and then jumps to the right time is no fault that a cluster has to survive,
// but one that blocks its readers is: a paused process sees time like that.)
type Clock struct {
	began time.Time
	rate  float64 // how fast the raw clock goes

	frozen gate // readers wait while it is shut

	mu        sync.Mutex // guards what follows
	reads     int        // at one moment of virtual time
	readsAt   time.Time
	stoppedAt *clock.Span // what has passed then
	lag       clock.Span  // how much it has lost for good
	bend      float64     // by how much the steered clock is faster than the raw one
	bentFrom  clock.Span  // since when, in what has passed
	bentBy    clock.Span  // what earlier bends have made of the steered clock
}

// readsMax is far more often than a node reads its clock at one moment.
const readsMax = 100_000

// newClock makes a clock that goes at this rate; 1 is right.
func newClock(rate float64) *Clock { return &Clock{began: time.Now(), rate: rate} }

// Now implements clock.Source.
func (c *Clock) Now() clock.Instant {
	c.frozen.wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now != c.readsAt {
		c.readsAt, c.reads = now, 0
	}
	if c.reads++; c.reads > readsMax {
		panic("sim: a clock is read again and again, and virtual time stands: something spins")
	}
	raw := scaled(c.passed(), c.rate)
	return clock.DecodeInstant(uint64(raw+c.bent()), uint64(raw))
}

// passed is how much of virtual time the clocks have noticed.
func (c *Clock) passed() clock.Span {
	if c.stoppedAt != nil {
		return *c.stoppedAt
	}
	return clock.FromDuration(time.Since(c.began)) - c.lag
}

// bent is how far the steered clock is ahead of the raw one.
func (c *Clock) bent() clock.Span { return c.bentBy + scaled(c.passed()-c.bentFrom, c.rate*c.bend) }

func scaled(s clock.Span, by float64) clock.Span { return clock.Span(float64(s) * by) }

// bendMax is how far Linux lets a program bend the clock that it steers, and a little more than chronyd does by default.
const bendMax = 1.0 / clock.BendDivisor

// Bend has the machine steer its clock from now on: by is by how much it is too fast, or too slow. The steered clock
// never jumps, and never returns by itself to the time that it should show.
func (c *Clock) Bend(by float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bentBy, c.bentFrom, c.bend = c.bent(), c.passed(), by
}

// Freeze blocks all readers until Thaw. The epoch of a leader reads its clock all the time.
func (c *Clock) Freeze() { c.frozen.shut() }

// Thaw lets those readers continue.
func (c *Clock) Thaw() { c.frozen.open() }

// Stop lets the clocks stand still.
func (c *Clock) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	passed := c.passed()
	c.stoppedAt = &passed
}

// ResumeBehind lets clocks that stand continue from there, behind by what they missed.
func (c *Clock) ResumeBehind() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stoppedAt != nil {
		stood := *c.stoppedAt
		c.stoppedAt = nil
		c.lag += c.passed() - stood
	}
}

// ResumeInTime lets a clock that stands continue as if it had never stood: a program that was
// paused sees time like that. It jumps, so it must not be the clock of a node.
func (c *Clock) ResumeInTime() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stoppedAt = nil
}

// gate holds up those who come while it is shut.
type gate struct{ opened atomic.Pointer[chan struct{}] } // closed when it opens; nil = it is open

// shut shuts the gate. False: it was shut already.
func (g *gate) shut() bool {
	opened := make(chan struct{})
	return g.opened.CompareAndSwap(nil, &opened)
}

// open lets those who wait continue. False: it was open already.
func (g *gate) open() bool {
	opened := g.opened.Swap(nil)
	if opened != nil {
		close(*opened)
	}
	return opened != nil
}

// opening returns a channel that closes when the gate opens; nil: it is open.
func (g *gate) opening() <-chan struct{} {
	if opened := g.opened.Load(); opened != nil {
		return *opened
	}
	return nil
}

func (g *gate) wait() {
	if opening := g.opening(); opening != nil {
		<-opening
	}
}

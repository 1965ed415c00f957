package sim

import (
	"sync"
	"sync/atomic"
	"time"

	"zamok/clock"
)

// Clock is the two clocks of a machine: a raw one, which runs at the rate of its crystal, and one
// that the machine steers. Both may lag, or block their readers. The raw one never runs faster than
// virtual time times its rate, on which the whole system relies. (So a cluster need not survive a
// clock that stands and then jumps to the right time. It must survive one that blocks its readers,
// as a paused process sees it.)
type Clock struct {
	began time.Time
	rate  float64 // how fast the raw clock goes

	frozen gate // readers wait while it is closed

	mu        sync.Mutex // guards what follows
	reads     int        // at one moment of virtual time
	readsAt   time.Time
	stoppedAt *clock.Span // how much had passed when it was stopped
	lag       clock.Span  // how much it has lost for good
	bend      float64     // by how much the steered clock is faster than the raw one
	bentFrom  clock.Span  // since when, as a value of passed
	bentBy    clock.Span  // by how much earlier bends have moved the steered clock
}

// readsMax is far more often than a node reads its clock at one moment.
const readsMax = 100_000

// newClock makes a clock that runs at this rate; 1 is right.
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

// passed is how much virtual time has passed for these clocks.
func (c *Clock) passed() clock.Span {
	if c.stoppedAt != nil {
		return *c.stoppedAt
	}
	return clock.FromDuration(time.Since(c.began)) - c.lag
}

// bent is how far the steered clock is ahead of the raw one.
func (c *Clock) bent() clock.Span { return c.bentBy + scaled(c.passed()-c.bentFrom, c.rate*c.bend) }

func scaled(s clock.Span, by float64) clock.Span { return clock.Span(float64(s) * by) }

// bendMax is how far Linux lets a program bend the steered clock, a little more than chronyd by
// default.
const bendMax = 1.0 / clock.BendDivisor

// Bend steers the clock from now on: it runs faster by this part, or slower if by is negative. The
// steered clock never jumps, and keeps the difference that has accumulated.
func (c *Clock) Bend(by float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bentBy, c.bentFrom, c.bend = c.bent(), c.passed(), by
}

// Freeze blocks all readers until Thaw. The epoch of a leader reads its clock all the time.
func (c *Clock) Freeze() { c.frozen.shut() }

// Thaw lets those readers continue.
func (c *Clock) Thaw() { c.frozen.open() }

// Stop stops the clocks.
func (c *Clock) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	passed := c.passed()
	c.stoppedAt = &passed
}

// ResumeBehind lets stopped clocks continue where they stopped, so they lag from then on.
func (c *Clock) ResumeBehind() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stoppedAt != nil {
		stood := *c.stoppedAt
		c.stoppedAt = nil
		c.lag += c.passed() - stood
	}
}

// ResumeInTime lets a stopped clock continue at the right time, as a program sees it that was
// paused. The clock jumps, so it must not be that of a node.
func (c *Clock) ResumeInTime() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stoppedAt = nil
}

// gate blocks goroutines while it is closed.
// the channel is closed when the gate opens; nil = it is open
type gate struct{ opened atomic.Pointer[chan struct{}] }

// shut closes the gate, and reports whether it was open.
func (g *gate) shut() bool {
	opened := make(chan struct{})
	return g.opened.CompareAndSwap(nil, &opened)
}

// open opens the gate, and reports whether it was closed.
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

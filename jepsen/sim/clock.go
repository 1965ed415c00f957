package sim

import (
	"sync"
	"sync/atomic"
	"time"

	"zamok/clock"
)

// Clock is a machine's own clock. It may lag, or block its readers, and it never runs faster than virtual time but by
// its rate: the whole system relies on that. (So a node's clock that stands and then jumps to the right time is no
// fault that a cluster has to survive, but one that blocks its readers is: a paused process sees time like that.)
type Clock struct {
	real clock.Source
	base clock.Instant // of real, when the clock was made
	rate float64       // how fast it goes

	frozen gate // readers wait while it is shut

	mu        sync.Mutex // guards what follows
	reads     int        // at one moment of virtual time
	readsAt   time.Time
	stoppedAt *clock.Instant
	lag       clock.Span // how much it has lost for good
}

// readsMax is far more often than a node reads its clock at one moment.
const readsMax = 100_000

// newClock makes a clock that goes at this rate; 1 is right.
func newClock(rate float64) *Clock {
	real := clock.Runtime()
	return &Clock{real: real, base: real.Now(), rate: rate}
}

// Now implements clock.Source.
func (c *Clock) Now() clock.Instant {
	c.frozen.wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read()
}

func (c *Clock) read() clock.Instant {
	if now := time.Now(); now != c.readsAt {
		c.readsAt, c.reads = now, 0
	}
	if c.reads++; c.reads > readsMax {
		panic("sim: a clock is read again and again, and virtual time stands: something spins")
	}
	if c.stoppedAt != nil {
		return *c.stoppedAt
	}
	passed := c.real.Now().Since(c.base)
	if c.rate != 1 {
		passed = clock.Span(float64(passed) * c.rate)
	}
	return c.base.Add(passed - c.lag)
}

// Freeze blocks all readers until Thaw. The epoch of a leader reads its clock all the time.
func (c *Clock) Freeze() { c.frozen.shut() }

// Thaw lets those readers continue.
func (c *Clock) Thaw() { c.frozen.open() }

// Stop lets the clock stand still.
func (c *Clock) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stoppedAt == nil {
		now := c.read()
		c.stoppedAt = &now
	}
}

// ResumeBehind lets a clock that stands continue from there, behind by what it missed.
func (c *Clock) ResumeBehind() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stoppedAt != nil {
		stood := *c.stoppedAt
		c.stoppedAt = nil
		c.lag += c.read().Since(stood)
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

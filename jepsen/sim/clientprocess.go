package sim

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"zamok/client"
	"zamok/jepsen/check"
)

// clientHost is a machine of its own on which a program with a client runs, dies and is started again.
type clientHost struct {
	sim       *Sim
	record    *Recorder
	host      string
	configure func(*client.Config)

	mu           sync.Mutex // guards what follows
	app          *clientProcess
	incarnations int
	paused       chan struct{} // closed when a pause is over; nil = nothing is paused
}

// clientProcess is one process of a caller.
type clientProcess struct {
	*client.Client
	caller *clientHost
	label  string
	clock  *Clock
	stack  *Stack
	ctx    context.Context // ends with the process
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// start starts a program, whose work is done by what is given, each in a goroutine of its own.
func (c *clientHost) start(work ...func(*clientProcess, *rand.Rand)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.incarnations++
	p := &clientProcess{caller: c, label: fmt.Sprintf("%s.%d", c.host, c.incarnations), stack: c.sim.Network.NewStack(c.host)}
	p.clock = newClock(c.sim.rateOf(c.host))
	p.ctx, p.cancel = context.WithCancel(context.Background())
	cfg := client.Config{
		Dialer: p.stack.Dial, Clock: p.clock, Label: p.label, Logger: slog.New(slog.DiscardHandler),
	}
	for _, n := range c.sim.InitialMembers() {
		cfg.Endpoints = append(cfg.Endpoints, n.Host)
	}
	if c.configure != nil {
		c.configure(&cfg)
	}
	var err error
	if p.Client, err = client.New(cfg); err != nil {
		c.sim.Fatal(err)
	}
	c.sim.Trace.Note(c.host, "%s starts", p.label)
	for i, do := range work {
		random := c.sim.Random(fmt.Sprintf("%s, worker %d", p.label, i))
		p.work.Go(func() { do(p, random) })
	}
	c.app = p
}

// running is the program, or nil.
func (c *clientHost) running() *clientProcess {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.app
}

// kill ends the program as kill -9 does.
func (c *clientHost) kill() {
	c.mu.Lock()
	p := c.app
	c.app = nil
	c.mu.Unlock()
	if p == nil {
		return
	}
	p.stack.CloseAll()
	c.record.recordDeath(p.label)
	c.sim.Trace.Note(c.host, "%s dies", p.label)
	c.resume(p)
	p.cancel()
	p.work.Wait()
	_ = p.Close() // nobody hears of it
}

// pause has the program see nothing and do nothing: its clock stands, and then jumps. False: it is
// paused already.
func (c *clientHost) pause(p *clientProcess) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.paused != nil || c.app != p {
		return false
	}
	c.paused = make(chan struct{})
	p.clock.Stop()
	for _, n := range c.sim.InitialMembers() {
		c.sim.Network.Cut(c.host, n.Host)
		c.sim.Network.Cut(n.Host, c.host)
	}
	return true
}

// resume ends a pause, if there is one.
func (c *clientHost) resume(p *clientProcess) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.paused == nil {
		return
	}
	if p != nil {
		p.clock.ResumeInTime()
	}
	close(c.paused)
	c.paused = nil
	for _, n := range c.sim.InitialMembers() {
		c.sim.Network.Heal(c.host, n.Host)
		c.sim.Network.Heal(n.Host, c.host)
	}
}

// running is between any two steps of a program: here it may be paused. False: it is over.
func (p *clientProcess) running() bool {
	p.caller.mu.Lock()
	paused := p.caller.paused
	p.caller.mu.Unlock()
	if paused != nil {
		<-paused
	}
	return p.ctx.Err() == nil
}

// sleep lets time pass. False: the program is over.
func (p *clientProcess) sleep(d time.Duration) bool {
	return sleepContext(p.ctx, d) == nil && p.running()
}

// recordRenewal is what a handle's deadline tells: when that was sent which was answered with proof last. It is
// put a little early, because the deadline is told in whole readings of clocks.
func (p *clientProcess) recordRenewal(l *client.Lock, ttl time.Duration) {
	c := p.caller
	c.mu.Lock()
	paused := c.paused != nil
	c.mu.Unlock()
	remaining := time.Until(l.Deadline())
	if paused || remaining <= 0 || l.Err() != nil {
		return
	}
	margin := max(ttl/20, 200*time.Millisecond)
	age := time.Duration(float64(ttl-margin-remaining)/p.clock.rate) + 5*time.Millisecond
	now := p.caller.sim.historyTime()
	c.record.recordRenewal(check.Renewal{Session: l.Session(), Sent: now - age, Confirmed: now})
}

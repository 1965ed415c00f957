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

// program is a process with a client, on a machine of its own.
type program struct {
	*client.Client
	host  string
	label string // as histories name it
	clock *Clock
	stack *Stack

	// Of a program that a load runs.
	on     *programHost
	ctx    context.Context // ends with the process
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// program starts a program that knows all nodes. It is closed at the end of the run, if not before.
func (s *Sim) program(host string, change func(*client.Config)) *program {
	p := s.newProgram(host, host, change)
	s.cleanup(func() { _ = p.Close() })
	return p
}

func (s *Sim) newProgram(host, label string, change func(*client.Config)) *program {
	p := &program{host: host, label: label, clock: newClock(s.rateOf(host)), stack: s.Network.NewStack(host)}
	cfg := client.Config{
		Dialer: p.stack.Dial, Clock: p.clock, Label: label, Logger: slog.New(slog.DiscardHandler),
	}
	for _, n := range s.InitialMembers() {
		cfg.Endpoints = append(cfg.Endpoints, n.Host)
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if p.Client, err = client.New(cfg); err != nil {
		s.Fatal(err)
	}
	return p
}

// programHost is a machine on which a load runs a program, which dies and is started again.
type programHost struct {
	sim       *Sim
	host      string
	configure func(*client.Config)

	mu           sync.Mutex // guards what follows
	program      *program
	incarnations int
	paused       chan struct{} // closed when a pause ends; nil = nothing is paused
}

// start starts a program that does this work, each part in a goroutine of its own.
func (h *programHost) start(work ...func(*program, *rand.Rand)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.incarnations++
	p := h.sim.newProgram(h.host, fmt.Sprintf("%s.%d", h.host, h.incarnations), h.configure)
	p.on = h
	p.ctx, p.cancel = context.WithCancel(context.Background())
	h.sim.Trace.Note(h.host, "%s starts", p.label)
	for i, do := range work {
		random := h.sim.Random(fmt.Sprintf("%s, worker %d", p.label, i))
		p.work.Go(func() { do(p, random) })
	}
	h.program = p
}

// running is the program that runs here, or nil.
func (h *programHost) running() *program {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.program
}

// kill ends the program as kill -9 does.
func (h *programHost) kill() {
	h.mu.Lock()
	p := h.program
	h.program = nil
	h.mu.Unlock()
	if p == nil {
		return
	}
	p.stack.CloseAll()
	h.sim.record.recordDeath(p.label)
	h.sim.Trace.Note(h.host, "%s dies", p.label)
	h.resume(p)
	p.cancel()
	p.work.Wait()
	_ = p.Close() // its sockets are closed: nothing that it sends arrives
}

// pause stops a program: its network is cut, and its clock stands until resume. False: it is paused already.
func (h *programHost) pause(p *program) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.paused != nil || h.program != p {
		return false
	}
	h.paused = make(chan struct{})
	p.clock.Stop()
	h.sim.eachLink(h.host, h.sim.Network.Cut)
	return true
}

// resume ends a pause, if there is one.
func (h *programHost) resume(p *program) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.paused == nil {
		return
	}
	p.clock.ResumeInTime()
	close(h.paused)
	h.paused = nil
	h.sim.eachLink(h.host, h.sim.Network.Heal)
}

// isPaused returns the channel that closes at the end of the pause; nil: it is not paused.
func (h *programHost) isPaused() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.paused
}

// running waits, between two steps of a program, for the end of a pause. False: the process has ended.
func (p *program) running() bool {
	if paused := p.on.isPaused(); paused != nil {
		<-paused
	}
	return p.ctx.Err() == nil
}

// sleep lets time pass. False: the process has ended.
func (p *program) sleep(d time.Duration) bool {
	return sleepContext(p.ctx, d) == nil && p.running()
}

// recordRenewal records what a handle's deadline shows: when the latest transmission was sent that was
// confirmed. It is put a little early, because deadlines are rounded to whole readings of clocks.
func (p *program) recordRenewal(l *client.Lock, ttl time.Duration) {
	remaining := time.Until(l.Deadline())
	if p.on.isPaused() != nil || remaining <= 0 || l.Err() != nil {
		return
	}
	margin := max(ttl/20, 200*time.Millisecond)
	age := time.Duration(float64(ttl-margin-remaining)/p.clock.rate) + 5*time.Millisecond
	now := p.on.sim.historyTime()
	p.on.sim.record.recordRenewal(check.Renewal{Session: l.Session(), Sent: now - age, Confirmed: now})
}

// eachLink does something to all links, both ways, between a host and the nodes.
func (s *Sim) eachLink(host string, do func(from, to string)) {
	for _, n := range s.InitialMembers() {
		do(host, n.Host)
		do(n.Host, host)
	}
}

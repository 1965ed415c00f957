package sim

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"

	"zamok/client"
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
	var cfg client.Config
	if change != nil {
		change(&cfg)
	}
	p := s.newProgram(host, host, cfg)
	s.cleanup(func() { _ = p.Close() })
	return p
}

func (s *Sim) newProgram(host, label string, cfg client.Config) *program {
	p := &program{host: host, label: label, clock: newClock(s.rateOf(host)), stack: s.Network.NewStack(host)}
	cfg.Dialer, cfg.Label = p.stack.Dial, label
	if cfg.Clock == nil {
		cfg.Clock = p.clock
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Endpoints == nil {
		for _, n := range s.InitialMembers() {
			cfg.Endpoints = append(cfg.Endpoints, n.Host)
		}
	}
	var err error
	if p.Client, err = client.New(cfg); err != nil {
		s.Fatal(err)
	}
	return p
}

// programHost is a machine on which a load runs a program, which dies and is started again.
type programHost struct {
	sim    *Sim
	host   string
	config client.Config

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
	p := h.sim.newProgram(h.host, fmt.Sprintf("%s.%d", h.host, h.incarnations), h.config)
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
	for _, r := range h.sim.routes(h.host) {
		h.sim.Network.Cut(r.from, r.to)
	}
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
	for _, r := range h.sim.routes(h.host) {
		h.sim.Network.Heal(r.from, r.to)
	}
}

// isPaused returns the channel that closes at the end of the pause; nil: it is not paused.
func (h *programHost) isPaused() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.paused
}

// routes are the directions, both ways, between a host and the nodes at other hosts.
func (s *Sim) routes(host string) (all []route) {
	for _, n := range s.InitialMembers() {
		if n.Host != host {
			all = append(all, route{host, n.Host}, route{n.Host, host})
		}
	}
	return all
}

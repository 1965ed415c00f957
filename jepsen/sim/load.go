package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/assert"

	"zamok/client"
	"zamok/client/admin"
	"zamok/fsm"
	"zamok/jepsen/check"
	"zamok/jepsen/workload"
)

// Load is programs with package client on machines of their own, one program without it, and an
// operator. Their calls are recorded.
type Load struct {
	*Sim
	hosts      []*programHost
	operator   *programHost
	pace       time.Duration   // the longest time between two calls of a program
	ending     context.Context // ends when programs must begin nothing new
	cancel     context.CancelFunc
	background []func() // end the goroutines beside the programs, and wait for them
	web        []*webProgram
	backups    backups
	watched    []watchedBatch
	leaders    []client.Leader // as the operator's program observed them
}

const (
	mutexes            = 4
	electionName       = "epoch"
	waitMax            = 3 * time.Second
	thinkTimeMax       = time.Second
	callTimeout        = 5 * time.Second // the default of Config.RequestTimeout
	threadsPerProgram  = 3
	operatorFaultRatio = 4 // one step in so many of an operator ends a grant
)

// drainMax is how long a call may take after the healing: some wait behind many others.
const drainMax = 90 * time.Second

// Load starts so many programs, which make calls until Stop.
func (s *Sim) Load(programs int, pace time.Duration) *Load {
	l := &Load{Sim: s, pace: pace, operator: &programHost{sim: s, host: "op"}}
	l.ending, l.cancel = context.WithCancel(context.Background())
	for i := range programs {
		l.hosts = append(l.hosts,
			&programHost{sim: s, host: fmt.Sprint("c", i+1), config: workload.ClientConfig(i)})
	}
	s.Cleanup(func() {
		l.cancel()
		for _, h := range append(l.hosts, l.operator) {
			h.kill()
		}
		for _, end := range l.background {
			end()
		}
	})
	l.operator.start(l.operate, l.watch, l.observeLeaders)
	for _, h := range l.hosts {
		l.startProgram(h)
	}
	poll := background(func(ctx context.Context) {
		for workload.Sleep(ctx, 5*time.Second) {
			s.record.recordNodeStates()
		}
	})
	l.background = append(l.background, poll, l.runRawClient())
	return l
}

// startProgram starts a program. Its workers end at once if the load has ended.
func (l *Load) startProgram(h *programHost) {
	var work []func(*program, *rand.Rand)
	for i := range threadsPerProgram {
		work = append(work, func(p *program, random *rand.Rand) {
			w := l.worker(p, random)
			w.Owner, w.IgnoresLoss = fmt.Sprint("owner ", i), i == 0
			w.Run()
		})
	}
	h.start(work...)
}

func (l *Load) worker(p *program, random *rand.Rand) *workload.Worker {
	return &workload.Worker{
		Client: p.Client, Rand: random, Recorder: &l.record.Recorder, Setting: workload.Setting{
			Mutexes: mutexes, Pools: 2, Elected: electionName, WaitMax: waitMax, ThinkMax: l.pace,
			HoldTime: func(random *rand.Rand) time.Duration {
				return workload.UpTo(random, l.pace*3/2)
			},
		},
		Label: p.label, TTL: p.on.config.TTL, Ctx: p.ctx, Ending: l.ending,
		Write: func(w check.Write) { _ = l.record.resource.Write(w, nil) }, ClockRate: p.clock.rate,
		Paused: p.on.paused.opening,
	}
}

// Stop waits until all calls have returned, checks that each program can still lock, and closes the
// programs. The cluster must be available.
func (l *Load) Stop() {
	if l.ending.Err() != nil {
		return // it was stopped before
	}
	l.cancel()
	for _, h := range append(l.hosts, l.operator) {
		p := h.running()
		if p == nil {
			l.startProgram(h)
			p = h.running()
		}
		p.work.Wait()
		l.worker(p, l.Random("last of "+p.label)).FinalCall()
		assert.NoError(l, p.Close())
	}
	for _, end := range l.background {
		end()
	}
	l.record.recordNodeStates()
}

// operate reads locks as an operator, and now and then ends a grant.
func (l *Load) operate(p *program, random *rand.Rand) {
	w := l.worker(p, random)
	for l.ending.Err() == nil && workload.Sleep(p.ctx, workload.UpTo(random, 2*thinkTimeMax)) {
		w.Interfere(w.Mutex(), operatorFaultRatio)
	}
}

// follow calls a function again and again until the program or the load ends.
func (l *Load) follow(p *program, do func(context.Context)) {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	defer context.AfterFunc(l.ending, cancel)()
	for ctx.Err() == nil {
		do(ctx)
		workload.Sleep(ctx, 100*time.Millisecond)
	}
}

// watch follows all locks; checkWatch compares what it received with the log.
func (l *Load) watch(p *program, _ *rand.Rand) {
	l.follow(p, func(ctx context.Context) {
		var last uint64
		begun := false
		for batch, err := range p.Watch(ctx, "", 0) {
			if err != nil {
				if !errors.Is(err, client.ErrCompacted) && ctx.Err() == nil {
					l.Errorf("a watch ended: %v", err)
				}
				return
			}
			if begun {
				l.recordBatch(last, batch)
			}
			begun, last = true, batch.Index
		}
	})
}

func (l *Load) recordBatch(after uint64, batch client.EventBatch) {
	for _, ev := range batch.Events {
		l.record.put(check.Record{Event: &check.Event{
			Node: "watch", At: l.historyTime(), Index: ev.Index,
			Kind:  check.EventKind(ev.Kind.String()),
			Ref:   check.Ref{Session: ev.Session, Ticket: ev.Ticket},
			Token: uint64(ev.Token), Reason: ev.Reason, Items: check.ItemsOf(ev.Items),
		}})
	}
	l.watched = append(l.watched, watchedBatch{after, batch.Index, len(batch.Events)})
}

// watchedBatch is a batch of a watch: so many events up to an index, after that of the batch
// before.
type watchedBatch struct {
	after, index uint64
	events       int
}

// checkWatch checks that the watch showed each event once; package check compares the events with
// the log. It returns how many events there were.
func (l *Load) checkWatch() (count int) {
	var indexes []uint64 // of all events of locks and sessions, rising
	for ev := range l.Audit.events() {
		if eventKinds[ev.Kind] != "" {
			indexes = append(indexes, ev.Index)
		}
	}
	slices.Sort(indexes)
	upTo := func(index uint64) int {
		n, _ := slices.BinarySearch(indexes, index+1)
		return n
	}
	for _, m := range l.watched {
		count += m.events
		if n := upTo(m.index) - upTo(m.after); n != m.events {
			l.Errorf("the watch showed %d events after index %d up to %d, and there were %d",
				m.events, m.after, m.index, n)
		}
	}
	return count
}

// observeLeaders follows the election.
func (l *Load) observeLeaders(p *program, _ *rand.Rand) {
	l.follow(p, func(ctx context.Context) {
		for leader, err := range p.Election(electionName).Observe(ctx) {
			if err != nil {
				return // no node could be reached
			}
			l.leaders = append(l.leaders, leader)
		}
	})
}

// checkLeaders checks that each observed leader was elected, in the order of tokens. It returns how
// many there were.
func (l *Load) checkLeaders() (count int) {
	elected := map[client.Token]fsm.TicketRef{}
	for ev := range l.Audit.events() {
		if ev.Kind == fsm.EvGranted && ev.Items[0].Name == electionName {
			elected[client.Token(ev.Token)] = ev.TicketRef
		}
	}
	last := client.Leader{}
	for _, leader := range l.leaders {
		if leader.Token == 0 {
			continue // there was none
		}
		count++
		if checkRef(elected[leader.Token]) !=
			(check.Ref{Session: leader.Session, Ticket: leader.Ticket}) {
			l.Errorf("%+v was shown as elected; with this token it was %v", leader,
				elected[leader.Token])
		}
		if leader.Token < last.Token {
			l.Errorf("%+v was shown as elected, after %+v", leader, last)
		}
		last = leader
	}
	return count
}

// program is a process with a client, on a machine of its own.
type program struct {
	*client.Client
	host  string
	label string // as histories name it
	clock *Clock
	stack *Stack

	// Only of a program that a load runs.
	on     *programHost
	ctx    context.Context // ends with the process
	cancel context.CancelFunc
	work   sync.WaitGroup
}

func (p *program) admin() *admin.Admin { return admin.New(p.Client) }

// program starts a program that knows all nodes. It is closed at the end of the run at the latest.
func (s *Sim) program(host string, change func(*client.Config)) *program {
	var cfg client.Config
	if change != nil {
		change(&cfg)
	}
	p := s.newProgram(host, host, cfg)
	s.Cleanup(func() { _ = p.Close() })
	return p
}

func (s *Sim) newProgram(host, label string, cfg client.Config) *program {
	p := &program{host: host, label: label, clock: newClock(s.rateOf(host)),
		stack: s.Network.NewStack(host)}
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

// programHost is a machine on which a load runs a program, which may be killed and started again.
type programHost struct {
	sim    *Sim
	host   string
	config client.Config
	paused gate // closed while its program is paused

	mu           sync.Mutex // guards what follows
	program      *program
	incarnations int
}

// start starts a program that runs each of these functions in a goroutine of its own.
func (h *programHost) start(work ...func(*program, *rand.Rand)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.incarnations++
	p := h.sim.newProgram(h.host, fmt.Sprintf("%s.%d", h.host, h.incarnations), h.config)
	p.on = h
	p.ctx, p.cancel = context.WithCancel(context.Background())
	h.sim.Trace.Logf(h.host, "%s starts", p.label)
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
	h.sim.Trace.Logf(h.host, "%s dies", p.label)
	h.resume(p)
	p.cancel()
	p.work.Wait()
	_ = p.Close() // its sockets are closed: nothing that it sends arrives
}

// pause pauses a program: its network is cut, and its clock is stopped, until resume. It returns
// false if the program was paused already.
func (h *programHost) pause(p *program) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.program != p || !h.paused.shut() {
		return false
	}
	p.clock.Stop()
	h.sim.Network.Cut(h.sim.routes(h.host)...)
	return true
}

// resume ends a pause, if there is one.
func (h *programHost) resume(p *program) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p.clock.ResumeInTime() // before it does anything
	if h.paused.open() {
		h.sim.Network.Heal(h.sim.routes(h.host)...)
	}
}

// routes are all routes between a host and the nodes at other hosts, both ways.
func (s *Sim) routes(host string) (all []route) {
	for _, n := range s.InitialMembers() {
		if n.Host != host {
			all = append(all, route{host, n.Host}, route{n.Host, host})
		}
	}
	return all
}

// routesFrom are those from a host to the nodes.
func (s *Sim) routesFrom(host string) []route {
	return slices.DeleteFunc(s.routes(host), func(r route) bool { return r.from != host })
}

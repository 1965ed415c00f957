package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"

	"zamok/jepsen/check"
)

// election is the nodes' election timeout: pauses are told in it.
const election = 250 * time.Millisecond

// kinds are all kinds of faults that need no root.
func kinds() []kind {
	return []kind{
		{"kill leader", killOne(true)},
		{"kill follower", killOne(false)},
		{"kill majority", (*faults).killMajority},
		{"kill all", (*faults).killAll},
		{"term leader", termOne(true)},
		{"term follower", termOne(false)},
		{"pause leader", pauseOne(true)},
		{"pause follower", pauseOne(false)},
		{"pause all nodes", (*faults).pauseAll},
		{"pause program", (*faults).pauseProgram},
		{"pause all programs", (*faults).pausePrograms},
		{"kill program", (*faults).killProgram},
		{"isolate leader", around(func(l, o []string) []pair { return both(between(l, o)) }, condition{hole: true})},
		{"cut leader off", around(func(l, o []string) []pair { return both(between(l, o)) }, condition{cut: true})},
		{"part leader from one", around(func(l, o []string) []pair { return both(between(l, o[:1])) }, condition{hole: true})},
		{"leader is not heard", around(func(l, o []string) []pair { return between(l, o) }, condition{hole: true})},
		{"leader hears nothing", around(func(l, o []string) []pair { return between(o, l) }, condition{hole: true})},
		{"ring of one-way holes", (*faults).ring},
		{"isolate follower", (*faults).isolateFollower},
		{"slow links of the leader", (*faults).slowLeader},
		{"narrow links of the leader", around(func(l, o []string) []pair { return between(l, o) }, condition{rate: 64 << 10})},
		{"flapping link", (*faults).flap},
		{"reset links of nodes", (*faults).resetNodes},
		{"cut program from leader", (*faults).programFromLeader},
		{"cut program from all", (*faults).programFromAll},
		{"slow links of programs", (*faults).slowPrograms},
		{"reconnect storm", (*faults).reconnects},
		{"transfer", (*faults).transfer},
		{"rolling restart", (*faults).rolling},
		{"restart storm", (*faults).storm},
	}
}

func killOne(leads bool) func(*faults, *turn) string {
	return func(f *faults, t *turn) string {
		nodes := f.take(t, leads, 1)
		return f.killThese(t, nodes)
	}
}

func (f *faults) killThese(t *turn, nodes []*node) string {
	if len(nodes) == 0 {
		return ""
	}
	for _, n := range nodes { // all before the first is waited for
		if p := n.hold(); p != nil {
			p.signal(syscall.SIGKILL)
		}
	}
	for _, n := range nodes {
		n.kill()
	}
	pause(t.ctx, t.lasts)
	f.restart(nodes...)
	return names(nodes)
}

func (f *faults) killMajority(t *turn) string {
	return f.killThese(t, f.takeAny(t, len(f.members())/2+1))
}

func (f *faults) killAll(t *turn) string {
	t.lasts /= 2
	return f.killThese(t, f.takeAny(t, len(f.members())))
}

func termOne(leads bool) func(*faults, *turn) string {
	return func(f *faults, t *turn) string {
		nodes := f.take(t, leads, 1)
		if len(nodes) == 0 {
			return ""
		}
		if !nodes[0].term() {
			f.say("%s did not end in good order within %v", nodes[0].id, orderlyMost)
		}
		pause(t.ctx, t.lasts/2)
		f.restart(nodes...)
		return names(nodes)
	}
}

func pauseOne(leads bool) func(*faults, *turn) string {
	return func(f *faults, t *turn) string {
		nodes := f.take(t, leads, 1)
		if len(nodes) == 0 {
			return ""
		}
		spans := []time.Duration{300 * time.Millisecond, election * 2, 3 * election, 8 * election, 20 * election}
		return f.pauseThese(t, spans[t.IntN(len(spans))], nodes)
	}
}

func (f *faults) pauseThese(t *turn, d time.Duration, nodes []*node) string {
	for _, n := range nodes {
		n.signal(syscall.SIGSTOP)
	}
	pause(t.ctx, d)
	for _, n := range nodes {
		n.signal(syscall.SIGCONT)
	}
	return names(nodes)
}

func (f *faults) pauseAll(t *turn) string {
	nodes := f.takeAny(t, len(f.members()))
	if len(nodes) == 0 {
		return ""
	}
	return f.pauseThese(t, t.lasts, nodes)
}

// pauseProgram stops a program, mostly for longer than its leases.
func (f *faults) pauseProgram(t *turn) string {
	p := f.takeProgram(t)
	if p == nil {
		return ""
	}
	spans := []time.Duration{time.Second, 5 * time.Second, 7 * time.Second}
	return f.stopPrograms(t, spans[t.IntN(len(spans))], p)
}

func (f *faults) pausePrograms(t *turn) string {
	var all []*program
	for range f.programs {
		p := f.takeProgram(t)
		if p == nil {
			return ""
		}
		all = append(all, p)
	}
	return f.stopPrograms(t, t.lasts+4*time.Second*time.Duration(t.IntN(2)), all...)
}

// stopPrograms has programs see and do nothing. Nothing is promised of what they believe meanwhile.
func (f *faults) stopPrograms(t *turn, d time.Duration, programs ...*program) string {
	var targets []string
	from := now()
	for _, p := range programs {
		p.process.signal(syscall.SIGSTOP)
		targets = append(targets, p.process.name)
	}
	pause(t.ctx, d)
	for _, p := range programs {
		p.process.signal(syscall.SIGCONT)
	}
	to := now()
	for _, p := range programs { // no faults of their own, hence without a kind
		for _, label := range p.labels() {
			f.record.put(check.Record{Fault: &check.Fault{Target: label, From: from, To: to, Voids: true}})
		}
	}
	return strings.Join(targets, ",")
}

func (f *faults) killProgram(t *turn) string {
	p := f.takeProgram(t)
	if p == nil {
		return ""
	}
	name := p.process.name
	p.kill()
	pause(t.ctx, t.lasts)
	if err := p.start(); err != nil {
		f.say("%v", err)
	}
	return name
}

// around imposes a condition on links between the leader and the others.
func around(links func(leader, others []string) []pair, c condition) func(*faults, *turn) string {
	return func(f *faults, t *turn) string {
		l := f.leader()
		if l == nil {
			return ""
		}
		others := ids(f.others(l))
		t.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
		return f.imposed(t, c, l.id, links([]string{l.id}, others))
	}
}

func (f *faults) imposed(t *turn, c condition, target string, links []pair) string {
	lift := f.fabric.impose(c, links...)
	pause(t.ctx, t.lasts)
	lift()
	return target
}

func (f *faults) ring(t *turn) string {
	all := ids(f.members())
	var links []pair
	for i, id := range all {
		links = append(links, pair{id, all[(i+1)%len(all)]})
	}
	return f.imposed(t, condition{hole: true}, strings.Join(all, "→"), links)
}

func (f *faults) isolateFollower(t *turn) string {
	l := f.leader()
	if l == nil {
		return ""
	}
	others := f.others(l)
	n := others[t.IntN(len(others))]
	return f.imposed(t, condition{hole: true}, n.id, both(between([]string{n.id}, ids(f.others(n)))))
}

func (f *faults) slowLeader(t *turn) string {
	l := f.leader()
	if l == nil {
		return ""
	}
	c := condition{delay: time.Duration(5+t.IntN(60)) * time.Millisecond, jitter: 30 * time.Millisecond}
	return f.imposed(t, c, l.id, both(between([]string{l.id}, ids(f.others(l)))))
}

// flap makes holes in a link and mends it, many times.
func (f *faults) flap(t *turn) string {
	all := ids(f.members())
	t.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	links := both([]pair{{all[0], all[1]}})
	c := condition{hole: true}
	if t.IntN(2) == 0 {
		c = condition{cut: true}
	}
	for until := now() + t.lasts; now() < until && t.ctx.Err() == nil; {
		lift := f.fabric.impose(c, links...)
		pause(t.ctx, upTo(t.Rand, 2*election))
		lift()
		pause(t.ctx, upTo(t.Rand, 2*election))
	}
	return all[0] + "↔" + all[1]
}

func upTo(random *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(most)))
}

func (f *faults) resetNodes(t *turn) string {
	all := ids(f.members())
	broken := f.times(t, 1+t.IntN(4), func() int { return f.fabric.reset(between(all, all)...) })
	return fmt.Sprintf("%d connections", broken)
}

func (f *faults) reconnects(t *turn) string {
	links := between(f.present(), ids(f.members()))
	broken := f.times(t, 1+t.IntN(4), func() int { return f.fabric.reset(links...) })
	return fmt.Sprintf("%d connections", broken)
}

// times does something again and again, and adds up.
func (f *faults) times(t *turn, n int, do func() int) (sum int) {
	for range n {
		sum += do()
		pause(t.ctx, upTo(t.Rand, 2*election))
	}
	return sum
}

func (f *faults) programFromLeader(t *turn) string {
	p, l := f.takeProgram(t), f.leader()
	if p == nil || l == nil {
		return ""
	}
	name := p.process.name
	return f.imposed(t, condition{hole: true}, name, both(between([]string{name}, []string{l.id})))
}

// programFromAll lasts beyond the shortest leases now and then.
func (f *faults) programFromAll(t *turn) string {
	p := f.takeProgram(t)
	if p == nil {
		return ""
	}
	t.lasts += 4 * time.Second * time.Duration(t.IntN(2))
	name := p.process.name
	return f.imposed(t, condition{hole: true}, name, both(between([]string{name}, ids(f.members()))))
}

func (f *faults) slowPrograms(t *turn) string {
	c := condition{delay: time.Duration(5+t.IntN(60)) * time.Millisecond, jitter: 50 * time.Millisecond}
	return f.imposed(t, c, "all programs", both(between(f.present(), ids(f.members()))))
}

// transfer hands the leadership around under load.
func (f *faults) transfer(t *turn) string {
	done := f.times(t, 1+t.IntN(3), func() int {
		if err := f.client.Transfer(t.ctx, ""); err != nil {
			return 0
		}
		return 1
	})
	if done == 0 {
		return ""
	}
	return fmt.Sprintf("%d times", done)
}

// rolling restarts every node in good order, one after the other.
func (f *faults) rolling(t *turn) string {
	nodes := f.takeAny(t, len(f.members()))
	for _, n := range nodes {
		if !n.term() {
			f.say("%s did not end in good order within %v", n.id, orderlyMost)
		}
		f.restart(n)
		pause(t.ctx, 2*election)
	}
	return names(nodes)
}

// storm kills a node every half second or so, each before the one before has found its place.
func (f *faults) storm(t *turn) string {
	nodes := f.takeAny(t, len(f.members()))
	if len(nodes) == 0 {
		return ""
	}
	for range 4 + t.IntN(4) {
		n := nodes[t.IntN(len(nodes))]
		n.kill()
		if err := n.start(); err != nil {
			f.say("%v", err)
		}
		pause(t.ctx, election+upTo(t.Rand, 3*election))
	}
	f.restart(nodes...)
	return names(nodes)
}

package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"

	"zamok/jepsen/check"
)

// electionTimeout is the nodes' election timeout: pauses are told in it.
const electionTimeout = 250 * time.Millisecond

// faultKinds are all kinds of faults that need no root.
func faultKinds() []faultKind {
	return []faultKind{
		{"kill leader", killOne(true)},
		{"kill follower", killOne(false)},
		{"kill majority", (*nemesis).killMajority},
		{"kill all", (*nemesis).killAll},
		{"term leader", termOne(true)},
		{"term follower", termOne(false)},
		{"pause leader", pauseOne(true)},
		{"pause follower", pauseOne(false)},
		{"pause all nodes", (*nemesis).pauseAll},
		{"pause program", (*nemesis).pauseProgram},
		{"pause all programs", (*nemesis).pausePrograms},
		{"kill program", (*nemesis).killProgram},
		{"isolate leader", isolateWith(func(l, o []string) []linkID { return bothDirections(linksBetween(l, o)) }, linkFault{blackhole: true})},
		{"cut leader off", isolateWith(func(l, o []string) []linkID { return bothDirections(linksBetween(l, o)) }, linkFault{refuse: true})},
		{"part leader from one", isolateWith(func(l, o []string) []linkID { return bothDirections(linksBetween(l, o[:1])) }, linkFault{blackhole: true})},
		{"leader is not heard", isolateWith(func(l, o []string) []linkID { return linksBetween(l, o) }, linkFault{blackhole: true})},
		{"leader hears nothing", isolateWith(func(l, o []string) []linkID { return linksBetween(o, l) }, linkFault{blackhole: true})},
		{"ring of one-way holes", (*nemesis).majoritiesRing},
		{"isolate follower", (*nemesis).isolateFollower},
		{"slow links of the leader", (*nemesis).slowLeader},
		{"narrow links of the leader", isolateWith(func(l, o []string) []linkID { return linksBetween(l, o) }, linkFault{rate: 64 << 10})},
		{"flapping link", (*nemesis).flapLink},
		{"reset links of nodes", (*nemesis).resetNodes},
		{"cut program from leader", (*nemesis).programFromLeader},
		{"cut program from all", (*nemesis).programFromAll},
		{"slow links of programs", (*nemesis).slowPrograms},
		{"reconnect storm", (*nemesis).reconnects},
		{"transfer", (*nemesis).transfer},
		{"rolling restart", (*nemesis).rollingRestart},
		{"restart storm", (*nemesis).crashStorm},
	}
}

func killOne(leads bool) func(*nemesis, *injection) string {
	return func(f *nemesis, t *injection) string {
		nodes := f.acquireNodes(t, leads, 1)
		return f.killNodes(t, nodes)
	}
}

func (f *nemesis) killNodes(t *injection, nodes []*node) string {
	if len(nodes) == 0 {
		return ""
	}
	for _, n := range nodes { // all before the first is waited for
		if p := n.keepDown(); p != nil {
			p.signal(syscall.SIGKILL)
		}
	}
	for _, n := range nodes {
		n.kill()
	}
	sleepContext(t.ctx, t.duration)
	f.restart(nodes...)
	return nodeNames(nodes)
}

func (f *nemesis) killMajority(t *injection) string {
	return f.killNodes(t, f.acquireAnyNodes(t, len(f.members())/2+1))
}

func (f *nemesis) killAll(t *injection) string {
	t.duration /= 2
	return f.killNodes(t, f.acquireAnyNodes(t, len(f.members())))
}

func termOne(leads bool) func(*nemesis, *injection) string {
	return func(f *nemesis, t *injection) string {
		nodes := f.acquireNodes(t, leads, 1)
		if len(nodes) == 0 {
			return ""
		}
		if !nodes[0].terminate() {
			f.logf("%s did not end in good order within %v", nodes[0].id, shutdownTimeout)
		}
		sleepContext(t.ctx, t.duration/2)
		f.restart(nodes...)
		return nodeNames(nodes)
	}
}

func pauseOne(leads bool) func(*nemesis, *injection) string {
	return func(f *nemesis, t *injection) string {
		nodes := f.acquireNodes(t, leads, 1)
		if len(nodes) == 0 {
			return ""
		}
		spans := []time.Duration{300 * time.Millisecond, electionTimeout * 2, 3 * electionTimeout, 8 * electionTimeout, 20 * electionTimeout}
		return f.pauseNodes(t, spans[t.IntN(len(spans))], nodes)
	}
}

func (f *nemesis) pauseNodes(t *injection, d time.Duration, nodes []*node) string {
	for _, n := range nodes {
		n.signal(syscall.SIGSTOP)
	}
	sleepContext(t.ctx, d)
	for _, n := range nodes {
		n.signal(syscall.SIGCONT)
	}
	return nodeNames(nodes)
}

func (f *nemesis) pauseAll(t *injection) string {
	nodes := f.acquireAnyNodes(t, len(f.members()))
	if len(nodes) == 0 {
		return ""
	}
	return f.pauseNodes(t, t.duration, nodes)
}

// pauseProgram stops a program, mostly for longer than its leases.
func (f *nemesis) pauseProgram(t *injection) string {
	p := f.acquireProgram(t)
	if p == nil {
		return ""
	}
	spans := []time.Duration{time.Second, 5 * time.Second, 7 * time.Second}
	return f.stopPrograms(t, spans[t.IntN(len(spans))], p)
}

func (f *nemesis) pausePrograms(t *injection) string {
	var all []*clientProgram
	for range f.programs {
		p := f.acquireProgram(t)
		if p == nil {
			return ""
		}
		all = append(all, p)
	}
	return f.stopPrograms(t, t.duration+4*time.Second*time.Duration(t.IntN(2)), all...)
}

// stopPrograms has programs see and do nothing. Nothing is promised of what they believe meanwhile.
func (f *nemesis) stopPrograms(t *injection, d time.Duration, programs ...*clientProgram) string {
	var targets []string
	from := monotonicNow()
	for _, p := range programs {
		p.process.signal(syscall.SIGSTOP)
		targets = append(targets, p.process.name)
	}
	sleepContext(t.ctx, d)
	for _, p := range programs {
		p.process.signal(syscall.SIGCONT)
	}
	to := monotonicNow()
	for _, p := range programs { // no faults of their own, hence without a kind
		for _, label := range p.labels() {
			f.record.put(check.Record{Fault: &check.Fault{Target: label, From: from, To: to, ExcusesClient: true}})
		}
	}
	return strings.Join(targets, ",")
}

func (f *nemesis) killProgram(t *injection) string {
	p := f.acquireProgram(t)
	if p == nil {
		return ""
	}
	name := p.process.name
	p.kill()
	sleepContext(t.ctx, t.duration)
	if err := p.start(); err != nil {
		f.logf("%v", err)
	}
	return name
}

// isolateWith imposes a condition on links between the leader and the others.
func isolateWith(links func(leader, others []string) []linkID, c linkFault) func(*nemesis, *injection) string {
	return func(f *nemesis, t *injection) string {
		l := f.leader()
		if l == nil {
			return ""
		}
		others := nodeIDs(f.others(l))
		t.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
		return f.injectFor(t, c, l.id, links([]string{l.id}, others))
	}
}

func (f *nemesis) injectFor(t *injection, c linkFault, target string, links []linkID) string {
	lift := f.network.inject(c, links...)
	sleepContext(t.ctx, t.duration)
	lift()
	return target
}

func (f *nemesis) majoritiesRing(t *injection) string {
	all := nodeIDs(f.members())
	var links []linkID
	for i, id := range all {
		links = append(links, linkID{id, all[(i+1)%len(all)]})
	}
	return f.injectFor(t, linkFault{blackhole: true}, strings.Join(all, "→"), links)
}

func (f *nemesis) isolateFollower(t *injection) string {
	l := f.leader()
	if l == nil {
		return ""
	}
	others := f.others(l)
	n := others[t.IntN(len(others))]
	return f.injectFor(t, linkFault{blackhole: true}, n.id, bothDirections(linksBetween([]string{n.id}, nodeIDs(f.others(n)))))
}

func (f *nemesis) slowLeader(t *injection) string {
	l := f.leader()
	if l == nil {
		return ""
	}
	c := linkFault{delay: time.Duration(5+t.IntN(60)) * time.Millisecond, jitter: 30 * time.Millisecond}
	return f.injectFor(t, c, l.id, bothDirections(linksBetween([]string{l.id}, nodeIDs(f.others(l)))))
}

// flapLink makes holes in a link and mends it, many times.
func (f *nemesis) flapLink(t *injection) string {
	all := nodeIDs(f.members())
	t.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	links := bothDirections([]linkID{{all[0], all[1]}})
	c := linkFault{blackhole: true}
	if t.IntN(2) == 0 {
		c = linkFault{refuse: true}
	}
	for until := monotonicNow() + t.duration; monotonicNow() < until && t.ctx.Err() == nil; {
		lift := f.network.inject(c, links...)
		sleepContext(t.ctx, randomDuration(t.Rand, 2*electionTimeout))
		lift()
		sleepContext(t.ctx, randomDuration(t.Rand, 2*electionTimeout))
	}
	return all[0] + "↔" + all[1]
}

func randomDuration(random *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(most)))
}

func (f *nemesis) resetNodes(t *injection) string {
	all := nodeIDs(f.members())
	broken := f.repeatAndSum(t, 1+t.IntN(4), func() int { return f.network.resetConns(linksBetween(all, all)...) })
	return fmt.Sprintf("%d connections", broken)
}

func (f *nemesis) reconnects(t *injection) string {
	links := linksBetween(f.livePrograms(), nodeIDs(f.members()))
	broken := f.repeatAndSum(t, 1+t.IntN(4), func() int { return f.network.resetConns(links...) })
	return fmt.Sprintf("%d connections", broken)
}

// repeatAndSum does something again and again, and adds up.
func (f *nemesis) repeatAndSum(t *injection, n int, do func() int) (sum int) {
	for range n {
		sum += do()
		sleepContext(t.ctx, randomDuration(t.Rand, 2*electionTimeout))
	}
	return sum
}

func (f *nemesis) programFromLeader(t *injection) string {
	p, l := f.acquireProgram(t), f.leader()
	if p == nil || l == nil {
		return ""
	}
	name := p.process.name
	return f.injectFor(t, linkFault{blackhole: true}, name, bothDirections(linksBetween([]string{name}, []string{l.id})))
}

// programFromAll lasts beyond the shortest leases now and then.
func (f *nemesis) programFromAll(t *injection) string {
	p := f.acquireProgram(t)
	if p == nil {
		return ""
	}
	t.duration += 4 * time.Second * time.Duration(t.IntN(2))
	name := p.process.name
	return f.injectFor(t, linkFault{blackhole: true}, name, bothDirections(linksBetween([]string{name}, nodeIDs(f.members()))))
}

func (f *nemesis) slowPrograms(t *injection) string {
	c := linkFault{delay: time.Duration(5+t.IntN(60)) * time.Millisecond, jitter: 50 * time.Millisecond}
	return f.injectFor(t, c, "all programs", bothDirections(linksBetween(f.livePrograms(), nodeIDs(f.members()))))
}

// transfer hands the leadership around under load.
func (f *nemesis) transfer(t *injection) string {
	done := f.repeatAndSum(t, 1+t.IntN(3), func() int {
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

// rollingRestart restarts every node cleanly, one after the other.
func (f *nemesis) rollingRestart(t *injection) string {
	nodes := f.acquireAnyNodes(t, len(f.members()))
	for _, n := range nodes {
		if !n.terminate() {
			f.logf("%s did not end in good order within %v", n.id, shutdownTimeout)
		}
		f.restart(n)
		sleepContext(t.ctx, 2*electionTimeout)
	}
	return nodeNames(nodes)
}

// crashStorm kills a node every half second or so, each before the one before has found its place.
func (f *nemesis) crashStorm(t *injection) string {
	nodes := f.acquireAnyNodes(t, len(f.members()))
	if len(nodes) == 0 {
		return ""
	}
	for range 4 + t.IntN(4) {
		n := nodes[t.IntN(len(nodes))]
		n.kill()
		if err := n.start(); err != nil {
			f.logf("%v", err)
		}
		sleepContext(t.ctx, electionTimeout+randomDuration(t.Rand, 3*electionTimeout))
	}
	f.restart(nodes...)
	return nodeNames(nodes)
}

package main

import (
	"fmt"
	"strings"
	"syscall"
	"time"

	"zamok/jepsen/check"
)

// electionTimeout is the nodes' election timeout: pauses are multiples of it.
const electionTimeout = 250 * time.Millisecond

// faultKinds are all kinds of faults.
func faultKinds() []faultKind {
	return []faultKind{
		{"kill leader", nothing, onNodes(leaderNode, (*nemesis).kill)},
		{"kill follower", nothing, onNodes(followerNode, (*nemesis).kill)},
		{"kill majority", nothing, onNodes(majority, (*nemesis).kill)},
		{"kill all", nothing, onNodes(everyNode, halved((*nemesis).kill))},
		{"term leader", nothing, onNodes(leaderNode, halved((*nemesis).terminate))},
		{"term follower", nothing, onNodes(followerNode, halved((*nemesis).terminate))},
		{"rolling restart", nothing, onNodes(everyNode, (*nemesis).rollingRestart)},
		{"restart storm", nothing, onNodes(everyNode, (*nemesis).restartStorm)},
		{"pause leader", nothing, onNodes(leaderNode, (*nemesis).pauseRandomly)},
		{"pause follower", nothing, onNodes(followerNode, (*nemesis).pauseRandomly)},
		{"pause all nodes", nothing, onNodes(everyNode, (*nemesis).pause)},
		{"two killed, one paused", fiveNodes, (*nemesis).killTwoPauseOne},
		{"pause program", nothing, (*nemesis).pauseProgram},
		{"pause all programs", nothing, (*nemesis).pauseAllPrograms},
		{"kill program", nothing, (*nemesis).killProgram},

		{"isolate leader", nothing, onBothWays(leader, members, hole)},
		{"cut leader off", nothing, onBothWays(leader, members, linkFault{refuse: true})},
		{"part leader from one", nothing, onBothWays(leader, follower, hole)},
		{"leader is not heard", nothing, onLinks(leader, members, hole)},
		{"leader hears nothing", nothing, onLinks(members, leader, hole)},
		{"ring of one-way holes", nothing, onRing},
		{"isolate follower", nothing, onBothWays(follower, members, hole)},
		{"slow links of the leader", nothing, onBothWays(leader, members, slow)},
		{"narrow links of the leader", nothing, onLinks(leader, members, linkFault{rate: 64 << 10})},
		{"flapping link", nothing, (*nemesis).flapLink},
		{"reset links of nodes", nothing, resetOften(members)},
		{"cut program from leader", nothing, onBothWays(program, leader, hole)},
		{"cut program from all", nothing, onBothWays(program, members, hole)},
		{"slow links of programs", nothing, onBothWays(programs, members, slow)},
		{"reconnect storm", nothing, resetOften(programs)},

		{"transfer", nothing, (*nemesis).transfer},
		{"snapshot to a follower, leader dies", long, (*nemesis).forceSnapshotInstall},
		{"replace node", long, (*nemesis).replaceNode},
		{"wipe node", byName, (*nemesis).wipeNode},

		{"slow disk of a follower", disks, onNodes(followerNode, (*nemesis).slowDisks)},
		{"slow disk of the leader", disks, onNodes(leaderNode, (*nemesis).slowDisks)},
		{"hung disk of a follower", disks, onNodes(followerNode, (*nemesis).hangDisks)},
		{"hung disk of the leader", disks, onNodes(leaderNode, (*nemesis).hangDisks)},
		{"all disks hang", disks, onNodes(everyNode, (*nemesis).hangAllDisks)},
		{"disk of a follower fails", disks, onNodes(followerNode, (*nemesis).failDisks)},
		{"disk of the leader fails", disks, onNodes(leaderNode, (*nemesis).failDisks)},
		{"disk of a follower is full", disks, onNodes(followerNode, (*nemesis).fillDisks)},
		{"disk of the leader is full", disks, onNodes(leaderNode, (*nemesis).fillDisks)},
		{"all disks are full", disks, onNodes(everyNode, (*nemesis).fillDisks)},
		{"power of the leader fails", disks, onNodes(leaderNode, (*nemesis).failPower)},
		{"power of a follower fails", disks, onNodes(followerNode, (*nemesis).failPower)},
		{"power of all fails", disks, onNodes(everyNode, halved((*nemesis).failPower))},
	}
}

// An action does something to nodes, lets it last, and undoes it. An error: it could not be done.
type action func(f *nemesis, t *injection, nodes []*node) error

func onNodes(choose selection, do action) func(*nemesis, *injection) string {
	return func(f *nemesis, t *injection) string {
		nodes := choose(f, t)
		if len(nodes) == 0 {
			return ""
		}
		if err := do(f, t, nodes); err != nil {
			f.logf("%v", err)
			return ""
		}
		return strings.Join(nodeIDs(nodes), ",")
	}
}

// halved makes an action last half as long.
func halved(do action) action {
	return func(f *nemesis, t *injection, nodes []*node) error {
		t.duration /= 2
		return do(f, t, nodes)
	}
}

func (f *nemesis) kill(t *injection, nodes []*node) error {
	killAtOnce(nodes)
	for _, n := range nodes {
		n.kill()
	}
	sleepContext(t.ctx, t.duration)
	f.restart(nodes...)
	return nil
}

// killAtOnce kills all nodes before any is waited for.
func killAtOnce(nodes []*node) {
	for _, n := range nodes {
		if p := n.keepDown(); p != nil {
			p.signal(syscall.SIGKILL)
		}
	}
}

func (f *nemesis) terminate(t *injection, nodes []*node) error {
	for _, n := range nodes {
		if !n.terminate() {
			f.logf("%s did not end in good order within %v", n.id, shutdownTimeout)
		}
	}
	sleepContext(t.ctx, t.duration)
	f.restart(nodes...)
	return nil
}

// rollingRestart restarts every node cleanly, one after the other.
func (f *nemesis) rollingRestart(t *injection, nodes []*node) error {
	t.duration = 0
	for _, n := range nodes {
		if err := f.terminate(t, []*node{n}); err != nil {
			return err
		}
		sleepContext(t.ctx, 2*electionTimeout)
	}
	return nil
}

// restartStorm kills a node every half second or so, each before the one before has caught up.
func (f *nemesis) restartStorm(t *injection, nodes []*node) error {
	for range 4 + t.IntN(4) {
		n := nodes[t.IntN(len(nodes))]
		n.kill()
		if err := n.start(); err != nil {
			f.logf("%v", err)
		}
		sleepContext(t.ctx, electionTimeout+t.upTo(3*electionTimeout))
	}
	f.restart(nodes...)
	return nil
}

func (f *nemesis) pause(t *injection, nodes []*node) error {
	for _, n := range nodes {
		n.signal(syscall.SIGSTOP)
	}
	sleepContext(t.ctx, t.duration)
	for _, n := range nodes {
		n.signal(syscall.SIGCONT)
	}
	return nil
}

func (f *nemesis) pauseRandomly(t *injection, nodes []*node) error {
	spans := []time.Duration{
		300 * time.Millisecond, 2 * electionTimeout, 3 * electionTimeout, 8 * electionTimeout, 20 * electionTimeout,
	}
	t.duration = spans[t.IntN(len(spans))]
	return f.pause(t, nodes)
}

// killTwoPauseOne kills two of five nodes and pauses a third for a while: each in turn, with a majority between.
func (f *nemesis) killTwoPauseOne(t *injection) string {
	all := everyNode(f, t)
	if len(all) < 5 {
		return ""
	}
	for i := range all {
		killed, paused := []*node{all[i], all[(i+1)%len(all)]}, all[(i+2)%len(all)]
		for _, n := range killed {
			n.kill()
		}
		paused.signal(syscall.SIGSTOP)
		sleepContext(t.ctx, t.duration/2)
		paused.signal(syscall.SIGCONT)
		sleepContext(t.ctx, t.duration/2)
		f.restart(killed...)
		if !sleepContext(t.ctx, 2*electionTimeout) {
			break
		}
	}
	return strings.Join(nodeIDs(all), ",") + " in turn"
}

// pauseProgram stops a program, mostly for longer than its leases.
func (f *nemesis) pauseProgram(t *injection) string {
	t.duration = time.Duration([]int{1, 5, 7}[t.IntN(3)]) * time.Second
	return f.pausePrograms(t, 1)
}

func (f *nemesis) pauseAllPrograms(t *injection) string {
	t.duration += 4 * time.Second * time.Duration(t.IntN(2))
	return f.pausePrograms(t, len(f.programs))
}

// pausePrograms stops programs. What their clients believe meanwhile is excused.
func (f *nemesis) pausePrograms(t *injection, many int) string {
	programs := f.acquirePrograms(t, many)
	var targets []string
	from := monotonicNow()
	for _, p := range programs {
		p.process.signal(syscall.SIGSTOP)
		targets = append(targets, p.process.name)
	}
	if len(programs) > 0 {
		sleepContext(t.ctx, t.duration)
	}
	for _, p := range programs {
		p.process.signal(syscall.SIGCONT)
	}
	to := monotonicNow()
	for _, p := range programs { // no faults of their own, hence without a kind
		for _, label := range clientLabels(p.process.name) {
			f.record.put(check.Record{Fault: &check.Fault{Target: label, From: from, To: to, ExcusesClient: true}})
		}
	}
	return strings.Join(targets, ",")
}

func (f *nemesis) killProgram(t *injection) string {
	programs := f.acquirePrograms(t, 1)
	if programs == nil {
		return ""
	}
	p := programs[0]
	name := p.process.name
	p.kill()
	sleepContext(t.ctx, t.duration)
	if err := p.start(); err != nil {
		f.logf("%v", err)
	}
	return name
}

// An endpointSet names the processes at one end of links; none = there is no occasion for the fault now.
type endpointSet func(f *nemesis, t *injection) []string

func leader(f *nemesis, _ *injection) []string {
	if l := f.leader(); l != nil {
		return []string{l.id}
	}
	return nil
}

// follower is any one of them.
func follower(f *nemesis, t *injection) []string {
	l := f.leader()
	if l == nil {
		return nil
	}
	others := nodeIDs(f.others(l))
	return []string{others[t.IntN(len(others))]}
}

func members(f *nemesis, _ *injection) []string { return nodeIDs(f.members()) }

// program is any one of them. The fault lasts beyond the shortest leases now and then.
func program(f *nemesis, t *injection) []string {
	programs := f.acquirePrograms(t, 1)
	if programs == nil {
		return nil
	}
	t.duration += 4 * time.Second * time.Duration(t.IntN(2))
	return []string{programs[0].liveName()}
}

func programs(f *nemesis, _ *injection) (all []string) {
	for _, p := range f.programs {
		all = append(all, p.liveName())
	}
	return all
}

var (
	hole = linkFault{blackhole: true}
	slow = linkFault{delay: 60 * time.Millisecond, jitter: 40 * time.Millisecond}
)

// onLinks injects a fault into the links from some to others, a delay of up to the one given.
func onLinks(from, to endpointSet, fault linkFault) func(*nemesis, *injection) string {
	return func(f *nemesis, t *injection) string {
		return f.faultyLinks(t, fault, from(f, t), to(f, t), linksBetween)
	}
}

// onBothWays injects it into both directions.
func onBothWays(from, to endpointSet, fault linkFault) func(*nemesis, *injection) string {
	return func(f *nemesis, t *injection) string {
		return f.faultyLinks(t, fault, from(f, t), to(f, t), func(a, b []string) []linkID {
			return bothDirections(linksBetween(a, b))
		})
	}
}

// onRing injects holes from each node to the next.
func onRing(f *nemesis, t *injection) string {
	return f.faultyLinks(t, hole, members(f, t), members(f, t), func(all, _ []string) (links []linkID) {
		for i, id := range all {
			links = append(links, linkID{id, all[(i+1)%len(all)]})
		}
		return links
	})
}

func (f *nemesis) faultyLinks(t *injection, fault linkFault, from, to []string,
	links func(from, to []string) []linkID) string {
	if len(from) == 0 || len(to) == 0 {
		return ""
	}
	if fault.delay > 0 {
		fault.delay = 5*time.Millisecond + t.upTo(fault.delay)
	}
	heal := f.network.inject(fault, links(from, to)...)
	sleepContext(t.ctx, t.duration)
	heal()
	return strings.Join(from, ",") + "→" + strings.Join(to, ",")
}

// flapLink breaks a link and mends it, many times.
func (f *nemesis) flapLink(t *injection) string {
	all := nodeIDs(f.members())
	t.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	fault := []linkFault{hole, {refuse: true}}[t.IntN(2)]
	for until := monotonicNow() + t.duration; monotonicNow() < until && t.ctx.Err() == nil; {
		heal := f.network.inject(fault, bothDirections([]linkID{{all[0], all[1]}})...)
		sleepContext(t.ctx, t.upTo(2*electionTimeout))
		heal()
		sleepContext(t.ctx, t.upTo(2*electionTimeout))
	}
	return all[0] + "↔" + all[1]
}

func (t *injection) upTo(most time.Duration) time.Duration {
	return time.Duration(t.Int64N(int64(most)))
}

// resetOften resets the connections of some to the nodes a few times.
func resetOften(from endpointSet) func(*nemesis, *injection) string {
	return func(f *nemesis, t *injection) string {
		broken := 0
		for range 1 + t.IntN(4) {
			broken += f.network.resetConns(linksBetween(from(f, t), members(f, t))...)
			sleepContext(t.ctx, t.upTo(2*electionTimeout))
		}
		if broken == 0 {
			return ""
		}
		return fmt.Sprintf("%d connections", broken)
	}
}

// transfer hands the leadership around under load.
func (f *nemesis) transfer(t *injection) string {
	done := 0
	for range 1 + t.IntN(3) {
		if err := f.client.Transfer(t.ctx, ""); err == nil {
			done++
		}
		sleepContext(t.ctx, t.upTo(2*electionTimeout))
	}
	if done == 0 {
		return ""
	}
	return fmt.Sprintf("%d times", done)
}

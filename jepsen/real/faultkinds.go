package main

import (
	"fmt"
	"slices"
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

		{"isolate leader", nothing, onLinks(leaderLinks, hole)},
		{"cut leader off", nothing, onLinks(leaderLinks, linkFault{refuse: true})},
		{"part leader from one", nothing, onLinks(linksToOne, hole)},
		{"leader is not heard", nothing, onLinks(linksFromLeader, hole)},
		{"leader hears nothing", nothing, onLinks(linksToLeader, hole)},
		{"ring of one-way holes", nothing, onLinks(ringLinks, hole)},
		{"isolate follower", nothing, onLinks(followerLinks, hole)},
		{"slow links of the leader", nothing, onLinks(leaderLinks, slow)},
		{"narrow links of the leader", nothing, onLinks(linksFromLeader, linkFault{rate: 64 << 10})},
		{"flapping link", nothing, (*nemesis).flapLink},
		{"reset links of nodes", nothing, (*nemesis).resetNodes},
		{"cut program from leader", nothing, onLinks(programToLeader, hole)},
		{"cut program from all", nothing, onLinks(programToAll, hole)},
		{"slow links of programs", nothing, onLinks(allProgramLinks, slow)},
		{"reconnect storm", nothing, (*nemesis).resetPrograms},

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
		killAtOnce(killed)
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

// A linkSelection chooses links, and names their target; "" = there is no occasion for it now.
type linkSelection func(f *nemesis, t *injection) (target string, links []linkID)

var (
	hole = linkFault{blackhole: true}
	slow = linkFault{delay: 60 * time.Millisecond, jitter: 40 * time.Millisecond}
)

// onLinks imposes a fault on links for a while, a delay of up to the one named.
func onLinks(choose linkSelection, fault linkFault) func(*nemesis, *injection) string {
	return func(f *nemesis, t *injection) string {
		target, links := choose(f, t)
		fault := fault
		if fault.delay > 0 {
			fault.delay = 5*time.Millisecond + t.upTo(fault.delay)
		}
		if target != "" {
			heal := f.network.inject(fault, links...)
			sleepContext(t.ctx, t.duration)
			heal()
		}
		return target
	}
}

// leaderAndOthers are the leader and the others in random order; "" if no node leads.
func (f *nemesis) leaderAndOthers(t *injection) (leader string, others []string) {
	l := f.leader()
	if l == nil {
		return "", nil
	}
	others = nodeIDs(f.others(l))
	t.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	return l.id, others
}

func linksFromLeader(f *nemesis, t *injection) (string, []linkID) {
	leader, others := f.leaderAndOthers(t)
	return leader, linksBetween([]string{leader}, others)
}

func linksToLeader(f *nemesis, t *injection) (string, []linkID) {
	leader, others := f.leaderAndOthers(t)
	return leader, linksBetween(others, []string{leader})
}

func leaderLinks(f *nemesis, t *injection) (string, []linkID) {
	leader, links := linksFromLeader(f, t)
	return leader, bothDirections(links)
}

func linksToOne(f *nemesis, t *injection) (string, []linkID) {
	leader, links := leaderLinks(f, t)
	return leader, links[:min(2, len(links))]
}

func followerLinks(f *nemesis, t *injection) (string, []linkID) {
	_, others := f.leaderAndOthers(t)
	if len(others) == 0 {
		return "", nil
	}
	rest := slices.DeleteFunc(nodeIDs(f.members()), func(id string) bool { return id == others[0] })
	return others[0], bothDirections(linksBetween(others[:1], rest))
}

func ringLinks(f *nemesis, _ *injection) (string, []linkID) {
	all := nodeIDs(f.members())
	var links []linkID
	for i, id := range all {
		links = append(links, linkID{id, all[(i+1)%len(all)]})
	}
	return strings.Join(all, "→"), links
}

func programToLeader(f *nemesis, t *injection) (string, []linkID) {
	leader := f.leader()
	programs := f.acquirePrograms(t, 1)
	if leader == nil || programs == nil {
		return "", nil
	}
	name := programs[0].liveName()
	return name, bothDirections([]linkID{{name, leader.id}})
}

// programToAll lasts beyond the shortest leases now and then.
func programToAll(f *nemesis, t *injection) (string, []linkID) {
	programs := f.acquirePrograms(t, 1)
	if programs == nil {
		return "", nil
	}
	t.duration += 4 * time.Second * time.Duration(t.IntN(2))
	name := programs[0].liveName()
	return name, bothDirections(linksBetween([]string{name}, nodeIDs(f.members())))
}

func allProgramLinks(f *nemesis, _ *injection) (string, []linkID) {
	return "all programs", bothDirections(linksBetween(f.liveNames(), nodeIDs(f.members())))
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

func (f *nemesis) resetNodes(t *injection) string { return f.resetOften(t, nodeIDs(f.members())) }

func (f *nemesis) resetPrograms(t *injection) string { return f.resetOften(t, f.liveNames()) }

// resetOften resets the connections of some to the nodes a few times.
func (f *nemesis) resetOften(t *injection, from []string) string {
	broken := 0
	for range 1 + t.IntN(4) {
		broken += f.network.resetConns(linksBetween(from, nodeIDs(f.members()))...)
		sleepContext(t.ctx, t.upTo(2*electionTimeout))
	}
	return fmt.Sprintf("%d connections", broken)
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

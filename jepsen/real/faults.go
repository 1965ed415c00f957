package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"zamok/jepsen/real/disk"
)

// electionTimeout is the nodes' election timeout: pauses are multiples of it.
const electionTimeout = 250 * time.Millisecond

// faultKinds are all kinds of faults.
func faultKinds() []faultKind {
	return []faultKind{
		{"kill leader", nothing, onNodes(leaderNode, (*injection).kill)},
		{"kill follower", nothing, onNodes(followerNode, (*injection).kill)},
		{"kill majority", nothing, onNodes(majority, (*injection).kill)},
		{"kill all", nothing, onNodes(everyNode, halved((*injection).kill))},
		{"term leader", nothing, onNodes(leaderNode, halved((*injection).terminate))},
		{"term follower", nothing, onNodes(followerNode, halved((*injection).terminate))},
		{"rolling restart", nothing, onNodes(everyNode, (*injection).rollingRestart)},
		{"restart storm", nothing, onNodes(everyNode, (*injection).restartStorm)},
		{"pause leader", nothing, onNodes(leaderNode, (*injection).pauseRandomly)},
		{"pause follower", nothing, onNodes(followerNode, (*injection).pauseRandomly)},
		{"pause all nodes", nothing, onNodes(everyNode, (*injection).pause)},
		{"two killed, one paused", fiveNodes, (*injection).killTwoPauseOne},
		{"throttle leader", throttling, onNodes(leaderNode, (*injection).throttle)},
		{"throttle follower", throttling, onNodes(followerNode, (*injection).throttle)},
		{"pause program", nothing, (*injection).pauseProgram},
		{"pause all programs", nothing, (*injection).pauseAllPrograms},
		{"kill program", nothing, (*injection).killProgram},

		{"isolate leader", nothing, onLinks(leader, members, bothWays, hole)},
		{"cut leader off", nothing, onLinks(leader, members, bothWays, linkFault{refuse: true})},
		{"part leader from one", nothing, onLinks(leader, follower, bothWays, hole)},
		{"leader is not heard", nothing, onLinks(leader, members, oneWay, hole)},
		{"leader hears nothing", nothing, onLinks(members, leader, oneWay, hole)},
		{"ring of one-way holes", nothing, onLinks(members, members, ring, hole)},
		{"isolate follower", nothing, onLinks(follower, members, bothWays, hole)},
		{"slow links of the leader", nothing, onLinks(leader, members, bothWays, slow)},
		{"narrow links of the leader", nothing, onLinks(leader, members, oneWay, linkFault{rate: 64 << 10})},
		{"large messages of the leader are lost", nothing, lasting(onLinks(leader, members, oneWay, linkFault{passes: 1400}))},
		{"flapping link", nothing, (*injection).flapLink},
		{"reset links of nodes", nothing, resetOften(members)},
		{"cut program from leader", nothing, onLinks(program, leader, bothWays, hole)},
		{"cut program from all", nothing, onLinks(program, members, bothWays, hole)},
		{"slow links of programs", nothing, onLinks(programs, members, bothWays, slow)},
		{"reconnect storm", nothing, resetOften(programs)},

		{"transfer", nothing, (*injection).transfer},
		{"snapshot to a follower, leader dies", long, (*injection).forceSnapshotInstall},
		{"replace node", long, (*injection).replaceNode},
		{"wipe node", byName, (*injection).wipeNode},

		{"slow disk of a follower", disks, onNodes(followerNode, (*injection).slowDisks)},
		{"slow disk of the leader", disks, onNodes(leaderNode, (*injection).slowDisks)},
		{"disk of the leader takes seconds", disks, onNodes(leaderNode, (*injection).slowDisksBySeconds)},
		{"hung disk of a follower", disks, onNodes(followerNode, (*injection).hangDisks)},
		{"hung disk of the leader", disks, onNodes(leaderNode, (*injection).hangDisks)},
		{"all disks hang", disks, onNodes(everyNode, (*injection).hangAllDisks)},
		{"disk of a follower fails", disks, onNodes(followerNode, (*injection).failDisks)},
		{"disk of the leader fails", disks, onNodes(leaderNode, (*injection).failDisks)},
		{"disk of a follower is full", disks, onNodes(followerNode, breakDisks(disk.Faults{Full: true}))},
		{"disk of the leader is full", disks, onNodes(leaderNode, breakDisks(disk.Faults{Full: true}))},
		{"all disks are full", disks, onNodes(everyNode, breakDisks(disk.Faults{Full: true}))},
		{"power of the leader fails", disks, onNodes(leaderNode, (*injection).failPower)},
		{"power of a follower fails", disks, onNodes(followerNode, (*injection).failPower)},
		{"power of all fails", disks, onNodes(everyNode, halved((*injection).failPower))},
	}
}

// An action does something to nodes, lets it last, and undoes it. An error: it could not be done.
type action func(t *injection, nodes []*node) error

func onNodes(choose selection, do action) func(*injection) string {
	return func(t *injection) string {
		nodes := choose(t)
		if len(nodes) == 0 {
			return ""
		}
		if err := do(t, nodes); err != nil {
			t.logf("%v", err)
			return ""
		}
		return strings.Join(nodeIDs(nodes), ",")
	}
}

// halved makes an action last half as long.
func halved(do action) action {
	return func(t *injection, nodes []*node) error {
		t.duration /= 2
		return do(t, nodes)
	}
}

func (t *injection) kill(nodes []*node) error {
	killAtOnce(nodes)
	for _, n := range nodes {
		n.kill()
	}
	t.wait(t.duration)
	t.restart(nodes...)
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

func (t *injection) terminate(nodes []*node) error {
	for _, n := range nodes {
		if !n.terminate() {
			t.logf("%s did not end in good order within %v", n.id, shutdownTimeout)
		}
	}
	t.wait(t.duration)
	t.restart(nodes...)
	return nil
}

// rollingRestart restarts every node cleanly, one after the other.
func (t *injection) rollingRestart(nodes []*node) error {
	t.duration = 0
	for _, n := range nodes {
		if err := t.terminate([]*node{n}); err != nil {
			return err
		}
		t.wait(2 * electionTimeout)
	}
	return nil
}

// restartStorm kills a node every half second or so, each before the one before has caught up.
func (t *injection) restartStorm(nodes []*node) error {
	for range 4 + t.IntN(4) {
		n := nodes[t.IntN(len(nodes))]
		n.kill()
		if err := n.start(); err != nil {
			t.logf("%v", err)
		}
		t.wait(electionTimeout + t.upTo(3*electionTimeout))
	}
	t.restart(nodes...)
	return nil
}

func (t *injection) pause(nodes []*node) error {
	for _, n := range nodes {
		n.signal(syscall.SIGSTOP)
	}
	t.wait(t.duration)
	for _, n := range nodes {
		n.signal(syscall.SIGCONT)
	}
	return nil
}

func (t *injection) pauseRandomly(nodes []*node) error {
	spans := []time.Duration{
		300 * time.Millisecond, 2 * electionTimeout, 3 * electionTimeout, 8 * electionTimeout, 20 * electionTimeout,
	}
	t.duration = spans[t.IntN(len(spans))]
	return t.pause(nodes)
}

// killTwoPauseOne kills two of five nodes and pauses a third for a while: each in turn, with a majority between.
func (t *injection) killTwoPauseOne() string {
	all := everyNode(t)
	if len(all) < 5 {
		return ""
	}
	for i := range all {
		killed, paused := []*node{all[i], all[(i+1)%len(all)]}, all[(i+2)%len(all)]
		for _, n := range killed {
			n.kill()
		}
		paused.signal(syscall.SIGSTOP)
		t.wait(t.duration / 2)
		paused.signal(syscall.SIGCONT)
		t.wait(t.duration / 2)
		t.restart(killed...)
		if !t.wait(2 * electionTimeout) {
			break
		}
	}
	return strings.Join(nodeIDs(all), ",") + " in turn"
}

// pauseProgram stops a program, mostly for longer than its leases.
func (t *injection) pauseProgram() string {
	t.duration = time.Duration([]int{1, 5, 7}[t.IntN(3)]) * time.Second
	return t.pausePrograms(1)
}

func (t *injection) pauseAllPrograms() string {
	t.duration += 4 * time.Second * time.Duration(t.IntN(2))
	return t.pausePrograms(len(t.programs))
}

// pausePrograms stops programs. What their clients believe meanwhile is excused.
func (t *injection) pausePrograms(many int) string {
	programs := take(t, t.programs, many)
	if programs == nil {
		return ""
	}
	targets, from := liveNames(programs), monotonicNow()
	for _, p := range programs {
		p.process.signal(syscall.SIGSTOP)
	}
	t.wait(t.duration)
	for _, p := range programs {
		p.process.signal(syscall.SIGCONT)
	}
	to := monotonicNow()
	for _, name := range targets { // no faults of their own, hence without a kind
		t.record.excuse(clientLabels(name), from, to)
	}
	return strings.Join(targets, ",")
}

func (t *injection) killProgram() string {
	programs := take(t, t.programs, 1)
	if programs == nil {
		return ""
	}
	p, name := programs[0], programs[0].liveName()
	p.kill()
	t.wait(t.duration)
	if err := p.start(); err != nil {
		t.logf("%v", err)
	}
	return name
}

// An endpointSet names the processes at one end of links; none = there is no occasion for the fault now.
type endpointSet func(t *injection) []string

func leader(t *injection) []string {
	if l := t.leader(); l != nil {
		return []string{l.id}
	}
	return nil
}

// follower is any one of them.
func follower(t *injection) []string {
	l := t.leader()
	if l == nil {
		return nil
	}
	others := nodeIDs(t.others(l))
	return []string{others[t.IntN(len(others))]}
}

func members(t *injection) []string { return nodeIDs(t.members()) }

// program is any one of them. The fault lasts beyond the shortest leases now and then.
func program(t *injection) []string {
	programs := take(t, t.programs, 1)
	if programs == nil {
		return nil
	}
	t.duration += 4 * time.Second * time.Duration(t.IntN(2))
	return liveNames(programs)
}

func programs(t *injection) []string { return liveNames(t.programs) }

func liveNames(programs []*clientProgram) (all []string) {
	for _, p := range programs {
		all = append(all, p.liveName())
	}
	return all
}

var (
	hole = linkFault{blackhole: true}
	slow = linkFault{delay: 60 * time.Millisecond, jitter: 40 * time.Millisecond}
)

// oneWay are the links from some to others.
func oneWay(from, to []string) (all []linkID) {
	for _, a := range from {
		for _, b := range to {
			all = append(all, linkID{a, b})
		}
	}
	return all
}

func bothWays(a, b []string) []linkID { return append(oneWay(a, b), oneWay(b, a)...) }

// ring are the links from each to the next.
func ring(all, _ []string) (links []linkID) {
	for i, id := range all {
		links = append(links, linkID{id, all[(i+1)%len(all)]})
	}
	return links
}

// onLinks injects a fault into links between some and others, a delay of up to the one given.
func onLinks(from, to endpointSet, links func(from, to []string) []linkID, fault linkFault) func(*injection) string {
	return func(t *injection) string {
		from, to := from(t), to(t)
		if len(from) == 0 || len(to) == 0 {
			return ""
		}
		fault := fault
		if fault.delay > 0 {
			fault.delay = 5*time.Millisecond + t.upTo(fault.delay)
		}
		heal := t.network.inject(fault, links(from, to)...)
		t.wait(t.duration)
		heal()
		return strings.Join(from, ",") + "→" + strings.Join(to, ",")
	}
}

// flapLink breaks a link and mends it, many times.
func (t *injection) flapLink() string {
	all := nodeIDs(t.members())
	t.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	fault := []linkFault{hole, {refuse: true}}[t.IntN(2)]
	for until := monotonicNow() + t.duration; monotonicNow() < until && t.ctx.Err() == nil; {
		heal := t.network.inject(fault, bothWays(all[:1], all[1:2])...)
		t.wait(t.upTo(2 * electionTimeout))
		heal()
		t.wait(t.upTo(2 * electionTimeout))
	}
	return all[0] + "↔" + all[1]
}

// resetOften resets the connections of some to the nodes a few times.
func resetOften(from endpointSet) func(*injection) string {
	return func(t *injection) string {
		broken := 0
		for range 1 + t.IntN(4) {
			broken += t.network.resetConns(oneWay(from(t), members(t))...)
			t.wait(t.upTo(2 * electionTimeout))
		}
		if broken == 0 {
			return ""
		}
		return fmt.Sprintf("%d connections", broken)
	}
}

// transfer hands the leadership around under load.
func (t *injection) transfer() string {
	done := 0
	for range 1 + t.IntN(3) {
		if err := t.client.Transfer(t.ctx, ""); err == nil {
			done++
		}
		t.wait(t.upTo(2 * electionTimeout))
	}
	if done == 0 {
		return ""
	}
	return fmt.Sprintf("%d times", done)
}

const (
	// hangMax is longer than a leader's watchdog waits: 3 s, and up to 2 s more by node.
	hangMax = 7 * time.Second
	// allDisksHangFor is how long all disks hang at once.
	allDisksHangFor = 4 * time.Second
	// slowBeforePowerFailure is how long disks are slow before the power fails, so that it fails in the middle of things.
	slowBeforePowerFailure = 300 * time.Millisecond
)

// onDisks does something to the disks of nodes.
func onDisks(nodes []*node, do func(*disk.Disk) error) (err error) {
	for _, n := range nodes {
		err = errors.Join(err, do(n.disk))
	}
	return err
}

func setFaults(nodes []*node, faults disk.Faults) error {
	return onDisks(nodes, func(d *disk.Disk) error { return d.SetFaults(faults) })
}

// breakDisks breaks disks for a while, and waits for the nodes, some of which may have ended because of it.
func breakDisks(faults disk.Faults) action {
	return func(t *injection, nodes []*node) error {
		if err := setFaults(nodes, faults); err != nil {
			return err
		}
		t.wait(t.duration)
		err := setFaults(nodes, disk.Faults{})
		t.awaitAnswers(nodes...)
		return err
	}
}

func (t *injection) slowDisks(nodes []*node) error {
	return breakDisks(disk.Faults{FsyncDelay: 10*time.Millisecond + t.upTo(200*time.Millisecond)})(t, nodes)
}

// slowDisksBySeconds makes flushes take so long that a leader gives way.
func (t *injection) slowDisksBySeconds(nodes []*node) error {
	t.duration = givesWayWithin
	return breakDisks(disk.Faults{FsyncDelay: time.Second + t.upTo(1500*time.Millisecond)})(t, nodes)
}

// givesWayWithin is longer than a leader leads on that makes no progress.
const givesWayWithin = 8 * time.Second

// lasting makes a fault last so long that a leader gives way.
func lasting(inject func(*injection) string) func(*injection) string {
	return func(t *injection) string {
		t.duration = givesWayWithin
		return inject(t)
	}
}

// hangDisks makes all writes hang, sometimes for longer than a leader may endure.
func (t *injection) hangDisks(nodes []*node) error {
	t.duration = time.Second + t.upTo(hangMax-time.Second)
	return breakDisks(disk.Faults{Stall: true})(t, nodes)
}

func (t *injection) hangAllDisks(nodes []*node) error {
	t.duration = allDisksHangFor
	return breakDisks(disk.Faults{Stall: true})(t, nodes)
}

// failDisks fails one operation. The node ends itself, and is started again.
func (t *injection) failDisks(nodes []*node) error {
	write := t.IntN(2) == 0
	return breakDisks(disk.Faults{FailWrite: write, FailFsync: !write})(t, nodes)
}

// failPower crashes machines: the processes end, and of what was not flushed the disks lose all or some.
func (t *injection) failPower(nodes []*node) error {
	if err := setFaults(nodes, disk.Faults{FsyncDelay: 20 * time.Millisecond}); err != nil {
		return err
	}
	t.wait(slowBeforePowerFailure)
	killAtOnce(nodes)
	some := t.IntN(3) > 0
	err := onDisks(nodes, func(d *disk.Disk) error {
		seed := uint64(0)
		if some {
			seed = t.Uint64()
		}
		lost, err := d.Crash(seed)
		t.logf("the power of %s fails: %+v", d.Dir, lost)
		return err
	})
	for _, n := range nodes {
		n.kill() // waits for its end, which nothing holds up now
	}
	err = errors.Join(err, onDisks(nodes, (*disk.Disk).Mount))
	t.wait(t.duration)
	t.restart(nodes...)
	return err
}

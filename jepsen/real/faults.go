package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"zamok/client/admin"
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
		{"terminate leader", nothing, onNodes(leaderNode, halved((*injection).terminate))},
		{"terminate follower", nothing, onNodes(followerNode, halved((*injection).terminate))},
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

		{"isolate leader", nothing, onLinks(leader, members, bothWays, blackHole)},
		{"refuse connections of leader", nothing,
			onLinks(leader, members, bothWays, linkFault{refuse: true})},
		{"isolate leader from one follower", nothing,
			onLinks(leader, follower, bothWays, blackHole)},
		{"black hole from leader", nothing, onLinks(leader, members, oneWay, blackHole)},
		{"black hole to leader", nothing, onLinks(members, leader, oneWay, blackHole)},
		{"ring of one-way black holes", nothing, onLinks(members, members, ring, blackHole)},
		{"isolate follower", nothing, onLinks(follower, members, bothWays, blackHole)},
		{"slow links of the leader", nothing, onLinks(leader, members, bothWays, slow)},
		{"narrow links of the leader", nothing,
			onLinks(leader, members, oneWay, linkFault{rate: 64 << 10})},
		{"large messages of the leader are lost", nothing,
			lasting(onLinks(leader, members, oneWay, linkFault{passes: 1400}))},
		{"flapping link", nothing, (*injection).flapLink},
		{"reset links of nodes", nothing, resetOften(members)},
		{"cut program from leader", nothing, onLinks(program, leader, bothWays, blackHole)},
		{"cut program from all", nothing, onLinks(program, members, bothWays, blackHole)},
		{"slow links of programs", nothing, onLinks(programs, members, bothWays, slow)},
		{"reconnect storm", nothing, resetOften(programs)},

		{"transfer", nothing, (*injection).transfer},
		{"snapshot to a follower, leader dies", takesLong, (*injection).forceSnapshotInstall},
		{"replace node", takesLong, (*injection).replaceNode},
		{"wipe node", onlyIfNamed, (*injection).wipeNode},

		{"slow disk of a follower", disks, onNodes(followerNode, (*injection).slowDisks)},
		{"slow disk of the leader", disks, onNodes(leaderNode, (*injection).slowDisks)},
		{"disk of the leader takes seconds", disks,
			onNodes(leaderNode, (*injection).slowDisksBySeconds)},
		{"hung disk of a follower", disks, onNodes(followerNode, (*injection).hangDisks)},
		{"hung disk of the leader", disks, onNodes(leaderNode, (*injection).hangDisks)},
		{"all disks hang", disks, onNodes(everyNode, (*injection).hangAllDisks)},
		{"disk of a follower fails", disks, onNodes(followerNode, (*injection).failDisks)},
		{"disk of the leader fails", disks, onNodes(leaderNode, (*injection).failDisks)},
		{"disk of a follower is full", disks,
			onNodes(followerNode, breakDisks(disk.Faults{Full: true}))},
		{"disk of the leader is full", disks,
			onNodes(leaderNode, breakDisks(disk.Faults{Full: true}))},
		{"all disks are full", disks, onNodes(everyNode, breakDisks(disk.Faults{Full: true}))},
		{"power of the leader fails", disks, onNodes(leaderNode, (*injection).failPower)},
		{"power of a follower fails", disks, onNodes(followerNode, (*injection).failPower)},
		{"power of all nodes fails", disks, onNodes(everyNode, halved((*injection).failPower))},
	}
}

// An action injects a fault into nodes, lets it last, and undoes it, or returns why it could not.
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

// killAtOnce kills all nodes before it waits for any.
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
			t.logf("%s did not end cleanly within %v", n.id, shutdownTimeout)
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

// restartStorm kills a node about every half second, each before the previous one has caught up.
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
		300 * time.Millisecond, 2 * electionTimeout, 3 * electionTimeout, 8 * electionTimeout,
		20 * electionTimeout,
	}
	t.duration = spans[t.IntN(len(spans))]
	return t.pause(nodes)
}

// killTwoPauseOne kills two of five nodes and pauses a third for a while: each in turn, with a
// majority between.
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

// pausePrograms stops programs. The holds of their clients are excused meanwhile.
func (t *injection) pausePrograms(many int) string {
	programs := take(t, t.programs, many)
	if programs == nil {
		return ""
	}
	targets, from := processNames(programs), monotonicNow()
	for _, p := range programs {
		p.process.signal(syscall.SIGSTOP)
	}
	t.wait(t.duration)
	for _, p := range programs {
		p.process.signal(syscall.SIGCONT)
	}
	to := monotonicNow()
	for _, name := range targets { // part of this fault, hence without a kind
		t.record.excuse(clientLabels(name), from, to)
	}
	return strings.Join(targets, ",")
}

func (t *injection) killProgram() string {
	programs := take(t, t.programs, 1)
	if programs == nil {
		return ""
	}
	p, name := programs[0], programs[0].processName()
	p.kill()
	t.wait(t.duration)
	if err := p.start(); err != nil {
		t.logf("%v", err)
	}
	return name
}

// An endpointSet names the processes at one end of links; none = the fault is impossible now.
type endpointSet func(t *injection) []string

func leader(t *injection) []string {
	if l := t.leader(); l != nil {
		return []string{l.id}
	}
	return nil
}

// follower is a random one.
func follower(t *injection) []string {
	l := t.leader()
	if l == nil {
		return nil
	}
	others := nodeIDs(t.others(l))
	return []string{others[t.IntN(len(others))]}
}

func members(t *injection) []string { return nodeIDs(t.members()) }

// program is a random one. Half of the faults last longer than the shortest lease.
func program(t *injection) []string {
	programs := take(t, t.programs, 1)
	if programs == nil {
		return nil
	}
	t.duration += 4 * time.Second * time.Duration(t.IntN(2))
	return processNames(programs)
}

func programs(t *injection) []string { return processNames(t.programs) }

func processNames(programs []*clientProgram) (all []string) {
	for _, p := range programs {
		all = append(all, p.processName())
	}
	return all
}

var (
	blackHole = linkFault{blackhole: true}
	slow      = linkFault{delay: 60 * time.Millisecond, jitter: 40 * time.Millisecond}
)

// oneWay are the links from each of some processes to each of others.
func oneWay(from, to []string) (all []linkID) {
	for _, a := range from {
		for _, b := range to {
			all = append(all, linkID{a, b})
		}
	}
	return all
}

func bothWays(a, b []string) []linkID { return append(oneWay(a, b), oneWay(b, a)...) }

// ring are the links from each process to the next.
func ring(all, _ []string) (links []linkID) {
	for i, id := range all {
		links = append(links, linkID{id, all[(i+1)%len(all)]})
	}
	return links
}

// onLinks injects a fault into links. A delay is random, up to the given one.
func onLinks(from, to endpointSet, links func(from, to []string) []linkID,
	fault linkFault) func(*injection) string {
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

// flapLink cuts a link and heals it, many times.
func (t *injection) flapLink() string {
	all := nodeIDs(t.members())
	t.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	fault := []linkFault{blackHole, {refuse: true}}[t.IntN(2)]
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

// transfer transfers the leadership a few times under load.
func (t *injection) transfer() string {
	done := 0
	for range 1 + t.IntN(3) {
		if err := admin.New(t.client).Transfer(t.ctx, ""); err == nil {
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
	// slowBeforePowerFailure is how long disks are slow before the power fails, so that it fails in
	// the middle of things.
	slowBeforePowerFailure = 300 * time.Millisecond
)

// onDisks calls do for the disk of each node.
func onDisks(nodes []*node, do func(*disk.Disk) error) (err error) {
	for _, n := range nodes {
		err = errors.Join(err, do(n.disk))
	}
	return err
}

func setFaults(nodes []*node, faults disk.Faults) error {
	return onDisks(nodes, func(d *disk.Disk) error { return d.SetFaults(faults) })
}

// breakDisks injects faults into disks for a while, and waits for the nodes, some of which may have
// ended.
func breakDisks(faults disk.Faults) action {
	return func(t *injection, nodes []*node) error {
		if err := setFaults(nodes, faults); err != nil {
			return err
		}
		t.wait(t.duration)
		err := setFaults(nodes, disk.Faults{})
		t.awaitResponses(nodes...)
		return err
	}
}

func (t *injection) slowDisks(nodes []*node) error {
	return breakDisks(disk.Faults{FsyncDelay: 10*time.Millisecond + t.upTo(200*time.Millisecond)})(
		t, nodes)
}

// slowDisksBySeconds makes flushes take so long that a leader gives way.
func (t *injection) slowDisksBySeconds(nodes []*node) error {
	t.duration = leadsWithoutProgressMax
	return breakDisks(disk.Faults{FsyncDelay: time.Second + t.upTo(1500*time.Millisecond)})(t,
		nodes)
}

// leadsWithoutProgressMax is longer than a leader leads without progress.
const leadsWithoutProgressMax = 8 * time.Second

// lasting makes a fault last so long that a leader gives way.
func lasting(inject func(*injection) string) func(*injection) string {
	return func(t *injection) string {
		t.duration = leadsWithoutProgressMax
		return inject(t)
	}
}

// hangDisks makes all writes hang, sometimes for longer than the leader's watchdog waits.
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

// failPower crashes machines: the processes end, and the disks lose some or all of what was not
// flushed.
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
		n.kill() // waits for its end
	}
	err = errors.Join(err, onDisks(nodes, (*disk.Disk).Mount))
	t.wait(t.duration)
	t.restart(nodes...)
	return err
}

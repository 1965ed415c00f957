// Package sim runs a whole cluster in virtual time: real nodes with the real Raft, its transport and
// its stores, in a bubble of testing/synctest, on a network and on disks that fail when told to. An
// hour of a cluster's life takes seconds.
//
//	func TestSomething(t *testing.T) {
//		sim.Run(t, sim.Config{}, func(s *sim.Sim) {
//			leader := s.Start()                        // three nodes; the one that leads
//			id := leader.Open("holder", 10*time.Second)
//			leader.Lock(id, 1, "x")
//			s.Network.Cut(leader.Host, "n2")           // one direction only
//			leader.Kill()
//			next := s.LeaderOtherThan(leader)
//			…
//			s.Check()                                  // what must hold of any run
//		})
//	}
//
// # Parts
//
//	sim.go       Run: the bubble, the seed, virtual deadlines; watchdog.go: when virtual time stands
//	network.go   hosts, ports, calls; link.go: faults of a link; conn.go: connections;
//	             stack.go: what ends with a process
//	node.go      machines, and the processes on them; cluster.go: several at a time
//	clock.go     a machine's clock, which may stand still or freeze who looks at it
//	disk.go      a machine's disk, which may hang, be slow, fill up or fail; power.go: what is left on it
//	             when the power fails
//	propose.go       commands handed to a node
//	load.go      clients that open sessions, acquire, hold, renew, drop and die
//	nemesis.go    random faults, counted
//	audit.go     what the machines did, compared between nodes while they do it
//	history.go   what was asked, and what was answered
//	check_*.go   what audit and history must show
//	trace.go     what happened when, printed when a test fails
//	serve.go     nodes that serve clients too: Config.Serve
//	fullstack.go     the whole stack under load: such nodes, programs with package client, an operator
//	caller*.go   machines on which such a program runs, pauses and dies; what it does; its faults;
//	             a script without package client
//	recorder.go    all of it as a history for package check
//
// # What is real
//
// Everything of raftnode and below, all goroutines, all timers. Not real are the network (bytes
// between goroutines, delayed), the disk where a Config says InMemory (package store's Memory, which
// keeps what was written), and the end of a process: [Node.Kill] closes its sockets first and at
// once, as the kernel does, and then lets the node wind up, because a goroutine can't be killed.
// What a node answers after its sockets were closed nobody hears. Writes that hang at a kill land,
// as those do that the kernel has taken; when the power fails ([Node.LosePower]) chance decides of them.
//
// # Promises
//
//	J1  Time is virtual, and every wait has a deadline in it; a run that continues beyond Config.Limit
//	    panics with the trace and all stacks. So does one in which virtual time stands for three minutes of
//	    real time, which no limit in virtual time would end.
//	J2  Everything that the run itself chooses comes from one seed, printed on failure;
//	    ZAMOK_SEED=n repeats those choices. It does not repeat the run: goroutines are scheduled, and
//	    selects decide, as they like, so a failure may need many runs to show again. The trace is
//	    there because of that.
//	J3  Clocks never run faster than virtual time, but by Config.Drift, and programs' never slower by
//	    more: the system may rely on that of a monotonic clock. A program that is paused sees no
//	    network, does nothing, and its clock stands; then its clock jumps to where it would be.
//	    Who looks at one a hundred thousand times while virtual time stands is stopped: it spins.
//	J4  The end of Run leaves nothing running; synctest fails the test otherwise.
//	J5  Every effect of every machine is held against that of the first machine that had it: digest,
//	    stamp, time, numbers of events and results; every restored snapshot likewise.
//
// # What is shown where
//
//	lease_test.go      leases over changes of leader, each two seconds for ten minutes too; what stalls
//	                   a leader; never early, never later than the bound
//	epoch_test.go     readings and beginnings of other epochs
//	formerleader_test.go    a leader that was deposed acknowledges nothing; what is unknown resolves once
//	diverged_test.go   a node that differs stops, but against a majority only
//	bootstrap_test.go  wiped, foreign and cloned nodes; differing lists; who is silent
//	members_test.go    joining, removing, handing over, under load
//	catchup_test.go    followers that were away; installs that take long
//	disk_test.go       a disk that fails
//	power_test.go      power that fails in the middle of every kind of write; disks that fill up
//	leak_test.go     what comes and goes leaves nothing behind; resources_test.go counts everything
//	idle_test.go      what a cluster writes that nobody uses, or one session
//	failover_test.go   how long a cluster is without a leader
//	longrun_test.go       hours of random faults under load: one in make test, ten in CI, as many as
//	                   wanted with make sim HOURS=n, of which one half is of nodes alone. It fails also
//	                   when a kind of fault never happened, or there was too little load, or too few
//	                   faults.
//	fullstack_test.go      the other half: the whole stack, held against package check; with clocks at the
//	                   promised rates, and with worse ones, where only tokens hold. ZAMOK_SIM_KEEP=dir
//	                   keeps the histories of runs that fail
//	drift_test.go      a loss is told in time by the slowest clock that is allowed
//	wallclock_test.go       nothing reads a wall clock
//	served*_test.go    what single clients see
//	check_test.go      that the checkers find what they are for
//
// Planted bugs for these are in testdata/mutants; what real ones were found is in docs/testing.md.
//
// # In a bubble
//
// Real sockets never become durably blocked, so time would stand: there are none. Nor does a
// goroutine that waits for a sync.Mutex: nothing here holds one while it waits for something else.
// Everything that a bubble uses is made inside it.
package sim

// Package sim runs a whole cluster in virtual time: real nodes with the real Raft, its transport, its stores, gRPC
// and package client, in a bubble of testing/synctest, on a network and on disks that fail as a test says. An hour
// of a cluster's life takes seconds.
//
//	func TestSomething(t *testing.T) {
//		RunParallel(t, Config{}, func(s *Sim) {
//			leader := s.Start()                       // three nodes; the one that leads
//			h := s.Holder("holder", "x", 10*time.Second) // a session with a lock, renewed until h.Die()
//			load := s.Load(4, time.Second)            // four programs that use package client at random
//			s.Network.Cut(route{leader.Host, "n2"})   // one direction only
//			leader.Kill()
//			next := s.LeaderOtherThan(leader)
//			…
//			load.Stop()
//			s.Check()                                 // what must hold of any run
//		})
//	}
//
// # Files
//
//	sim.go        Run: the bubble, the seed, virtual deadlines, and a watchdog for virtual time that stands;
//	              what happened when, printed when a test fails
//	node.go       machines, and the processes on them
//	network.go    hosts, ports, faults of links; connections
//	clock.go      a machine's clocks, which may stand still, be bent or block their readers
//	disk.go       a machine's disk, which may hang, be slow, fill up or fail
//	image.go      what a kill and a power failure leave on it
//	direct.go     without package client: proposals to one node, holders of one lock, and a program on the wire
//	load.go       machines on which a program with package client runs, pauses and dies; programs under load, and an
//	              operator, which run the workers of package workload
//	faults.go     the kinds of faults; random faults, counted, and what they need afterwards
//	hindrances.go what hinders a leader that answers all the same; loss.go: segments that are lost
//	audit.go      what the nodes apply, compared between them while they do it; Check, and the history of a run for
//	              package check
//
// # What is real
//
// Everything of api and client and below, all goroutines, all timers. Not real are the network (bytes between
// goroutines, delayed), the disk without Config.OnDisk (package store's Memory, which keeps what was
// written), and the end of a process: [Node.Kill] closes its sockets first and at once, as the kernel does, and
// then lets the node end, because a goroutine can't be killed. What a node sends after its sockets were closed
// does not arrive, and what it writes to its disk from then on is not there at the next start. So entries that a
// leader has sent, and has not begun to write, are lost with it, as they are when a process ends itself. Writes
// that are under way at a kill land, as the kernel has them; when the power fails ([Node.LosePower]) chance
// decides what becomes of them.
//
// # Promises
//
//	J1  Time is virtual, and every wait has a deadline in it; a run that continues beyond Config.Limit
//	    panics with the trace and all stacks. So does one in which virtual time stands for three minutes of
//	    real time, which no limit in virtual time would end.
//	J2  Everything that the run itself chooses comes from one seed, printed on failure; ZAMOK_SEED=n repeats
//	    those choices. It does not repeat the run: the scheduling of goroutines and the choices of select are
//	    not repeated, so a failure may need many runs to show again. The trace exists because of that.
//	J3  Raw clocks never run faster than virtual time, but by Config.Drift, and programs' never slower by more: the
//	    system may rely on that. Monotonic clocks may be bent by a tenth on top of it. A program that is paused has no network, does nothing,
//	    and its clock stands; then its clock jumps to the present. A run in which one clock is read a hundred
//	    thousand times at one moment of virtual time panics: something spins.
//	J4  The end of Run leaves nothing running; synctest fails the test otherwise. By then each proposal was
//	    answered exactly once.
//	J5  Every effect of every machine is compared with that of the first machine that had it: digest, stamp,
//	    time, numbers of events and results; every restored snapshot likewise. And no two
//	    different entries that any disks are given have the same index and term.
//
// # Tests
//
//	lease_test.go          leases over changes of leader, and over stalls of a leader: never early, never later
//	                       than the bound; what a cluster writes that is not used, or by one session
//	formerleader_test.go   a leader that was deposed acknowledges nothing, reads included; an unknown outcome
//	                       resolves once; clock readings and beginnings of other epochs
//	bootstrap_test.go      initial members that end at every step; wiped, foreign and cloned nodes; differing lists
//	members_test.go        joining, transfers, under load; nodes that lost their disk, and their replacement
//	removal_test.go        removing nodes, the leader too
//	disk_test.go           a disk that fails; a node whose state differs; power that fails in every kind of write
//	pending_test.go        a leader that ends, or is deposed, with entries that only the followers have
//	leak_test.go           what comes and goes leaves nothing behind
//	failover_test.go       how long a cluster is without a leader; timeouts that follow the latency of the network;
//	                       followers that were away, and installs that take long; the log in segments
//	progress_test.go       leaders on slow disks, behind black holes and on throttled processors
//	longrun_test.go        hours of random faults under load, judged by package check; they fail also when a kind
//	                       of fault never happened, or when there was too little load, or too few faults. One hour
//	                       in make test, as many as wanted with make sim HOURS=n; ZAMOK_SIM_KEEP=dir keeps the
//	                       histories of runs that fail
//	served*_test.go        what single clients see
//	sim_test.go            the simulation itself; the product reads no wall clock
//
// The mutants for these tests are in testdata/mutants; the bugs that they found are in docs/testing.md.
//
// # In a bubble
//
// Real sockets never become durably blocked, so time would stand: there are none. Nor does a goroutine that waits
// for a sync.Mutex: nothing here holds one while it waits for something else. Everything that a bubble uses is made
// inside it.
package sim

// Package sim runs a whole cluster in virtual time: real nodes with the real Raft, its transport,
// its stores, gRPC, HTTP and package client, in a bubble of testing/synctest, on a simulated
// network and on disks that fail when a test wants it. An hour of virtual time takes seconds.
//
//	func TestSomething(t *testing.T) {
//		RunParallel(t, Config{}, func(s *Sim) {
//			leader := s.Start()                       // three nodes; the one that leads
//			// a session with a lock, renewed until h.Die()
//			h := s.Holder("holder", "x", 10*time.Second)
//			load := s.Load(4, time.Second)            // four programs with package client
//			s.Network.Cut(route{leader.Host, "n2"})   // one direction only
//			leader.Kill()
//			next := s.LeaderOtherThan(leader)
//			…
//			load.Stop()
//			s.Check()                                 // everything that must hold in any run
//		})
//	}
//
// # What is real
//
// Packages api, client and all below them, all goroutines, all timers. Three things are simulated.
// The network passes delayed bytes between goroutines. The disk is package store's Memory, unless
// Config.OnDisk is set. And a process ends differently: [Node.Kill] closes its sockets first, as
// the kernel does, because a goroutine can't be killed. Nothing arrives that the node sends after
// that, and the next start does not see what it writes after that. So entries that a leader sent
// before it began to write them are lost with it. Writes in flight land at a kill, because the
// kernel has them; at a power failure ([Node.LosePower]) their outcome is random.
//
// In a bubble, time stands while a goroutine is at a real socket or waits for a sync.Mutex. So
// there are no real sockets, and nobody holds a mutex while waiting for something else. Everything
// that a bubble uses is made inside it.
//
// # Promises
//
//	J1  Time is virtual, and every wait has a deadline in it. A run that exceeds Config.Limit
//	    panics with the trace and all stacks, as does one whose virtual time stands for three real
//	    minutes.
//	J2  All random choices of a run come from one seed, printed on failure; ZAMOK_SEED=n repeats
//	    them, but not the scheduling of goroutines. For that there is the trace.
//	J3  Raw clocks run faster than virtual time by Config.Drift at most, and those of programs
//	    slower by as much at most. Monotonic clocks may be bent by a tenth in addition. A paused
//	    program has no network and a clock that stands, and then jumps to the present. A clock
//	    that is read a hundred thousand times at one moment panics, because a goroutine spins.
//	J4  At the end of Run all goroutines have ended, and each proposal was answered exactly once.
//	J5  Every effect of every machine, and every restored snapshot, is compared with that of the
//	    first machine that had it. Different entries on any disk never have one index and term.
//
// # Files
//
//	sim.go            Run: bubble, seed, deadlines, the watchdog of virtual time, the trace
//	node.go, clock.go machines, the processes on them, their clocks; network.go: links and faults
//	disk.go, image.go a disk that hangs, is slow, full or fails; what kills and power failures
//	                  leave
//	direct.go         without package client: proposals to one node, holders, a raw client
//	load.go           programs with package client, and the operator (package workload)
//	http.go, hold.go  programs that use HTTP; programs.go: reservations, death with many tickets
//	backups.go        backups, and a restored cluster; rare.go: counts of rare states
//	faults.go         the kinds of faults and the nemesis; impairments.go, replacement.go, loss.go
//	audit.go          compares what the nodes apply; Check; recorder.go: the history for package
//	                  check
//	*_test.go         by subject; longrun_test.go: random faults under load (ZAMOK_SIM_KEEP=dir
//	                  keeps the histories of failed runs); sim_test.go: the simulation itself
package sim

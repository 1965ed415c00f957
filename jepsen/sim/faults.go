package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"zamok/jepsen/check"
	"zamok/raftnode/store"
)

// FaultKind is a kind of fault.
type FaultKind string

// Faults of nodes, and of the links between them.
const (
	CutOneWay    FaultKind = "cut one way"
	CutBothWays  FaultKind = "cut both ways"
	Isolate      FaultKind = "isolate"
	SlowLink     FaultKind = "slow link"
	KillLeader   FaultKind = "kill the leader"
	KillOne      FaultKind = "kill one"
	KillAll      FaultKind = "kill all"
	StopOne      FaultKind = "orderly stop"
	StallDisk    FaultKind = "stall a disk"
	HangDisk     FaultKind = "hang the leader's disk"
	Transfer     FaultKind = "transfer"
	Freeze       FaultKind = "freeze an epoch"
	ClockLags    FaultKind = "clock stands and lags"
	LosePower    FaultKind = "lose power"
	LosePowerAll FaultKind = "lose power everywhere"
	PowerInWrite FaultKind = "lose power in a write" // to the log, or at the end of a snapshot
	PowerInVote  FaultKind = "lose power in a vote"
	FillDisk     FaultKind = "fill a disk"
	BreakDisk    FaultKind = "break a disk"
)

// Faults of programs, of the links between them and the nodes, and of membership.
const (
	KillClient  FaultKind = "kill a client"
	PauseClient FaultKind = "pause a client"
	CutClient   FaultKind = "cut a client off"
	SlowClient  FaultKind = "slow links of a client"
	FlapLink    FaultKind = "flapping link"
	Reconnects  FaultKind = "all clients reconnect"
	ReplaceNode FaultKind = "replace a node"
)

const (
	// A fault lasts between faultDurationMin and faultDurationMax, short ones as often as long ones.
	faultDurationMin = 100 * time.Millisecond
	faultDurationMax = 6 * time.Second
	// pauseMax is the longest pause between two faults.
	pauseMax = 12 * time.Second
	// hangDuration is longer than a leader's watchdog waits.
	hangDuration = 8 * time.Second
	// beyondLease is added to half of the pauses and cuts of programs, so that they outlast most leases.
	beyondLease = 4 * time.Second
	// flapMax is the longest time for which a flapping link is cut, and for which it is not.
	flapMax = 300 * time.Millisecond
	// writeTimeMax is what a write to a disk takes at most while there are faults.
	writeTimeMax = 5 * time.Millisecond
	// restartPollInterval is how often the nemesis looks for processes that ended.
	restartPollInterval = 100 * time.Millisecond
)

var errDisk = errors.New("input/output error")

// injection is one fault: its kind, its duration, and what it may strike.
type injection struct {
	*Nemesis
	*rand.Rand
	ctx    context.Context
	kind   FaultKind
	lasts  time.Duration
	a, b   *Node        // two members
	leader *Node        // nil = none leads
	host   *programHost // of a program
}

// nodeFaults make the faults of nodes. False: there was no occasion for it.
var nodeFaults = map[FaultKind]func(*injection) bool{
	CutOneWay:   func(i *injection) bool { return i.cut(route{i.a.Host, i.b.Host}) },
	CutBothWays: func(i *injection) bool { return i.cut(route{i.a.Host, i.b.Host}, route{i.b.Host, i.a.Host}) },
	Isolate:     func(i *injection) bool { return i.cut(i.sim.routes(i.a.Host)...) },
	SlowLink: func(i *injection) bool {
		return i.slow(20*time.Millisecond, 100*time.Millisecond, route{i.a.Host, i.b.Host})
	},
	KillLeader:   func(i *injection) bool { return i.leader != nil && i.end((*Node).Kill, i.leader) },
	KillOne:      func(i *injection) bool { return i.end((*Node).Kill, i.a) },
	KillAll:      func(i *injection) bool { return i.end((*Node).Kill, i.sim.Members()...) },
	StopOne:      func(i *injection) bool { return i.end((*Node).Close, i.a) },
	LosePower:    func(i *injection) bool { return i.end((*Node).LosePower, i.a) },
	LosePowerAll: func(i *injection) bool { return i.end((*Node).LosePower, i.sim.Members()...) },
	PowerInWrite: func(i *injection) bool {
		ops := []diskOp{opAppend, opDelete, opSnapshot}
		return i.losePowerDuring(ops[i.IntN(len(ops))], i.lasts, i.a)
	},
	PowerInVote: func(i *injection) bool {
		return i.leader != nil && i.end((*Node).Kill, i.leader) &&
			i.losePowerDuring(opVote, hangDuration, i.sim.Others(i.leader)...)
	},
	StallDisk: func(i *injection) bool { return i.stop(i.a, i.lasts, i.a.Disk.Stall, i.a.Disk.Resume) },
	HangDisk: func(i *injection) bool {
		return i.leader != nil && i.stop(i.leader, hangDuration, i.leader.Disk.Stall, i.leader.Disk.Resume)
	},
	Freeze:    func(i *injection) bool { return i.stop(i.a, i.lasts, i.a.Clock.Freeze, i.a.Clock.Thaw) },
	ClockLags: func(i *injection) bool { return i.stop(i.a, i.lasts, i.a.Clock.Stop, i.a.Clock.ResumeBehind) },
	FillDisk: func(i *injection) bool { // too little is left for entries, or so little that the node warns
		room := uint64(i.IntN(2)) * (store.DefaultReservedSpace + store.DefaultLowSpace) / 2
		i.trace("%s, %d bytes are left", i.a.ID, room)
		i.a.Disk.SetFree(room)
		i.wait(i.lasts)
		i.a.Disk.SetFree(math.MaxUint64)
		return true
	},
	BreakDisk: func(i *injection) bool {
		if i.a.Running() == nil {
			return false
		}
		i.trace("%s", i.a.ID)
		i.a.Disk.FailWrites(errDisk)
		return true
	},
	Transfer: func(i *injection) bool {
		if i.leader == nil || i.leader.Running() == nil {
			return false
		}
		i.trace("from %s", i.leader.ID)
		limited, cancel := context.WithTimeout(context.Background(), faultDurationMax)
		defer cancel()
		err := i.leader.Running().Transfer(limited, "")
		i.sim.Trace.Note(i.leader.ID, "transfer: %v", err)
		return err == nil
	},
}

// loadFaults make the faults that need a load.
var loadFaults = map[FaultKind]func(*injection) bool{
	KillClient: func(i *injection) bool {
		if i.host.running() == nil {
			return false
		}
		i.trace("%s", i.host.host)
		i.host.kill()
		i.wait(i.lasts)
		i.load.startProgram(i.host)
		return true
	},
	PauseClient: func(i *injection) bool {
		p := i.host.running()
		if p == nil || !i.host.pause(p) {
			return false
		}
		from := i.sim.historyTime()
		i.trace("%s", p.label)
		i.waitPerhapsBeyondLease()
		i.host.resume(p)
		i.sim.record.recordFault(check.Fault{
			Kind: string(PauseClient), Target: p.label, From: from, To: i.sim.historyTime(), ExcusesClient: true,
		})
		return true
	},
	CutClient: func(i *injection) bool {
		i.trace("%s", i.host.host)
		i.sim.eachLink(i.host.host, i.sim.Network.Cut)
		i.waitPerhapsBeyondLease()
		i.sim.eachLink(i.host.host, i.sim.Network.Heal)
		return true
	},
	SlowClient: func(i *injection) bool {
		return i.slow(100*time.Millisecond, 400*time.Millisecond, i.sim.routes(i.host.host)...)
	},
	FlapLink: func(i *injection) bool {
		from, to := i.a.Host, i.host.host
		if i.IntN(2) == 0 {
			to = i.b.Host
		}
		i.trace("%s, %s", from, to)
		for until := time.Now().Add(i.lasts); time.Now().Before(until) && i.ctx.Err() == nil; {
			i.sim.Network.Cut(from, to)
			i.wait(time.Duration(i.Int64N(int64(flapMax))))
			i.sim.Network.Heal(from, to)
			i.wait(time.Duration(i.Int64N(int64(flapMax))))
		}
		return true
	},
	Reconnects: func(i *injection) bool {
		i.trace("")
		for _, h := range i.load.hosts {
			if p := h.running(); p != nil {
				p.stack.closeConns()
			}
		}
		return true
	},
	ReplaceNode: (*injection).replaceNode,
}

func (i *injection) wait(d time.Duration) { _ = sleepContext(i.ctx, d) }

func (i *injection) waitPerhapsBeyondLease() {
	i.wait(i.lasts + time.Duration(i.IntN(2))*beyondLease)
}

func (i *injection) trace(format string, args ...any) {
	i.sim.Trace.Fault("%s: %s, for %v", i.kind, fmt.Sprintf(format, args...), i.lasts)
}

// routes are the directions between a host and the nodes.
func (s *Sim) routes(host string) (all []route) {
	s.eachLink(host, func(from, to string) {
		if from != to {
			all = append(all, route{from, to})
		}
	})
	return all
}

func (i *injection) cut(routes ...route) bool {
	i.trace("%v", routes)
	for _, r := range routes {
		i.sim.Network.Cut(r.from, r.to)
	}
	i.wait(i.lasts)
	for _, r := range routes {
		i.sim.Network.Heal(r.from, r.to)
	}
	return true
}

func (i *injection) slow(delay, spread time.Duration, routes ...route) bool {
	i.trace("%v", routes)
	for _, r := range routes {
		i.sim.Network.SetDelay(r.from, r.to, delay, spread)
	}
	i.wait(i.lasts)
	for _, r := range routes {
		i.sim.Network.SetDelay(r.from, r.to, delayMin, delaySpread)
	}
	return true
}

// end ends processes, all at one moment; restartLoop starts them again after a while.
func (i *injection) end(how func(*Node), nodes ...*Node) bool {
	any := false
	for _, n := range nodes {
		if n.Running() == nil {
			continue
		}
		any = true
		i.trace("%s", n.ID)
		i.leaveAlone(n, i.lasts)
		i.work.Go(func() { how(n) })
	}
	return any
}

// stop stops a node's clock or disk for a while. Cluster time does not pass meanwhile if the node leads.
func (i *injection) stop(n *Node, lasts time.Duration, begin, end func()) bool {
	if n.Running() == nil {
		return false
	}
	i.trace("%s", n.ID)
	from := i.sim.historyTime()
	begin()
	i.wait(lasts)
	end()
	to := i.sim.historyTime()
	i.sim.record.recordStall(check.Stall{Reason: string(i.kind), From: from, To: to, LostTime: to - from})
	return true
}

func (i *injection) losePowerDuring(op diskOp, within time.Duration, nodes ...*Node) bool {
	limited, cancel := context.WithTimeout(i.ctx, within)
	defer cancel()
	n := losePowerDuring(limited, op, 2*writeTimeMax, time.Duration(i.Int64N(int64(2*writeTimeMax))), nodes...)
	if n != nil {
		i.leaveAlone(n, faultDurationMax/2)
		i.trace("%s, %s", n.ID, op)
	}
	return n != nil
}

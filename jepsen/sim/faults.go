package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"zamok/jepsen/check"
	"zamok/jepsen/workload"
	"zamok/raftnode/store"
)

// fault is a kind of fault: a row of the tables below.
type fault struct {
	kind   string
	inject func(*injection) bool // false: there was no occasion for it
}

const (
	killClient  = "kill a client"
	pauseClient = "pause a client"
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
	kind   string
	lasts  time.Duration
	a, b   *Node        // two members
	leader *Node        // nil = none leads
	host   *programHost // of a program
}

// nodeFaults are the faults of nodes and of the links between them.
var nodeFaults = []fault{
	{"cut one way", func(i *injection) bool { return i.cut(route{i.a.Host, i.b.Host}) }},
	{"cut both ways", func(i *injection) bool { return i.cut(route{i.a.Host, i.b.Host}, route{i.b.Host, i.a.Host}) }},
	{"isolate", func(i *injection) bool { return i.cut(i.sim.routes(i.a.Host)...) }},
	{"slow link", func(i *injection) bool {
		return i.slow(20*time.Millisecond, 100*time.Millisecond, route{i.a.Host, i.b.Host})
	}},
	{"kill the leader", func(i *injection) bool { return i.leader != nil && i.end((*Node).Kill, i.leader) }},
	{"kill one", func(i *injection) bool { return i.end((*Node).Kill, i.a) }},
	{"kill all", func(i *injection) bool { return i.end((*Node).Kill, i.sim.Members()...) }},
	{"orderly stop", func(i *injection) bool { return i.end((*Node).Close, i.a) }},
	{"lose power", func(i *injection) bool { return i.end((*Node).LosePower, i.a) }},
	{"lose power everywhere", func(i *injection) bool { return i.end((*Node).LosePower, i.sim.Members()...) }},
	{"lose power in a write", func(i *injection) bool { // to the log, or at the end of a snapshot
		ops := []diskOp{opAppend, opDelete, opSnapshot}
		return i.losePowerDuring(ops[i.IntN(len(ops))], i.lasts, i.a)
	}},
	{"lose power in a vote", func(i *injection) bool {
		return i.leader != nil && i.end((*Node).Kill, i.leader) &&
			i.losePowerDuring(opVote, hangDuration, i.sim.Others(i.leader)...)
	}},
	{"stall a disk", func(i *injection) bool { return i.stop(i.a, i.lasts, i.a.Disk.Stall, i.a.Disk.Resume) }},
	{"hang the leader's disk", func(i *injection) bool {
		return i.leader != nil && i.stop(i.leader, hangDuration, i.leader.Disk.Stall, i.leader.Disk.Resume)
	}},
	{"freeze an epoch", func(i *injection) bool { return i.stop(i.a, i.lasts, i.a.Clock.Freeze, i.a.Clock.Thaw) }},
	{"clock stands and lags", func(i *injection) bool { return i.stop(i.a, i.lasts, i.a.Clock.Stop, i.a.Clock.ResumeBehind) }},
	{"fill a disk", func(i *injection) bool { // too little is left for entries, or so little that the node warns
		room := uint64(i.IntN(2)) * (store.DefaultReservedSpace + store.DefaultLowSpace) / 2
		i.trace("%s, %d bytes are left", i.a.ID, room)
		return i.during(i.lasts, func() { i.a.Disk.SetFree(room) }, func() { i.a.Disk.SetFree(math.MaxUint64) })
	}},
	{"break a disk", func(i *injection) bool {
		if i.a.Running() == nil {
			return false
		}
		i.trace("%s", i.a.ID)
		i.a.Disk.FailWrites(errDisk)
		return true
	}},
	{"transfer", func(i *injection) bool {
		if i.leader == nil || i.leader.Running() == nil {
			return false
		}
		i.trace("from %s", i.leader.ID)
		limited, cancel := context.WithTimeout(context.Background(), faultDurationMax)
		defer cancel()
		err := i.leader.Running().Transfer(limited, "")
		i.sim.Trace.Note(i.leader.ID, "transfer: %v", err)
		return err == nil
	}},
}

// clientFaults are the faults of programs, of the links between them and the nodes, and of membership.
var clientFaults = []fault{
	{killClient, (*injection).killClient},
	{pauseClient, func(i *injection) bool {
		p := i.host.running()
		if p == nil || !i.host.pause(p) {
			return false
		}
		from := i.sim.historyTime()
		i.trace("%s", p.label)
		i.wait(i.perhapsBeyondLease())
		i.host.resume(p)
		i.sim.record.put(check.Record{Fault: &check.Fault{
			Kind: pauseClient, Target: p.label, From: from, To: i.sim.historyTime(), ExcusesClient: true,
		}})
		return true
	}},
	{"cut a client off", func(i *injection) bool {
		i.lasts = i.perhapsBeyondLease()
		return i.cut(i.sim.routes(i.host.host)...)
	}},
	{"slow links of a client", func(i *injection) bool {
		return i.slow(100*time.Millisecond, 400*time.Millisecond, i.sim.routes(i.host.host)...)
	}},
	{"flapping link", func(i *injection) bool {
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
	}},
	{"all clients reconnect", func(i *injection) bool {
		i.trace("")
		for _, h := range i.load.hosts {
			if p := h.running(); p != nil {
				p.stack.closeConns()
			}
		}
		return true
	}},
	{"replace a node", (*injection).replaceNode},
}

func (i *injection) killClient() bool {
	if i.host.running() == nil {
		return false
	}
	i.trace("%s", i.host.host)
	i.host.kill()
	i.wait(i.lasts)
	i.load.startProgram(i.host)
	return true
}

func (i *injection) wait(d time.Duration) { workload.Sleep(i.ctx, d) }

func (i *injection) perhapsBeyondLease() time.Duration {
	return i.lasts + time.Duration(i.IntN(2))*beyondLease
}

// during begins something, and ends it after a while.
func (i *injection) during(lasts time.Duration, begin, end func()) bool {
	begin()
	i.wait(lasts)
	end()
	return true
}

func (i *injection) trace(format string, args ...any) {
	i.sim.Trace.Fault("%s: %s, for %v", i.kind, fmt.Sprintf(format, args...), i.lasts)
}

func (i *injection) cut(routes ...route) bool {
	i.trace("%v", routes)
	return i.during(i.lasts, func() {
		for _, r := range routes {
			i.sim.Network.Cut(r.from, r.to)
		}
	}, func() {
		for _, r := range routes {
			i.sim.Network.Heal(r.from, r.to)
		}
	})
}

func (i *injection) slow(delay, spread time.Duration, routes ...route) bool {
	i.trace("%v", routes)
	set := func(delay, spread time.Duration) {
		for _, r := range routes {
			i.sim.Network.SetDelay(r.from, r.to, delay, spread)
		}
	}
	return i.during(i.lasts, func() { set(delay, spread) }, func() { set(delayMin, delaySpread) })
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
	i.during(lasts, begin, end)
	to := i.sim.historyTime()
	i.sim.record.put(check.Record{Stall: &check.Stall{Reason: i.kind, From: from, To: to, LostTime: to - from}})
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

package sim

import (
	"context"
	"time"

	"zamok/jepsen/workload"
)

const (
	// The flushes of a leader's disk are longer by slowDownMin to slowDownMax, for slowDuration.
	slowDownMin, slowDownMax = 200 * time.Millisecond, 2500 * time.Millisecond
	slowDuration             = 20 * time.Second
	// lossMax is the highest probability of the loss of a segment.
	lossMax = 0.5
	// A throttled process runs for a tenth of each throttlePeriod.
	throttlePeriod = 100 * time.Millisecond
)

// smallLog is how many entries make a snapshot where logs are small.
const smallLog = 64

// impairments are faults under which a leader responds but makes little progress, so that it may
// give way.
var impairments = []fault{
	{"slow disk under the leader", func(i *injection) bool {
		if i.leader == nil {
			return false
		}
		slower := slowDownMin + workload.UpTo(i.Rand, slowDownMax-slowDownMin)
		return i.stop(i.leader, slowDuration, func() { i.leader.Disk.SlowDown(slower) },
			func() { i.leader.Disk.SlowDown(0) })
	}},
	{"slow disk", func(i *injection) bool {
		return i.stop(i.a, i.lasts, func() { i.a.Disk.SlowDown(slowDownMin) },
			func() { i.a.Disk.SlowDown(0) })
	}},
	// at the leader if there is one: other nodes send few large messages
	{"black hole", func(i *injection) bool {
		from := i.a
		if i.leader != nil {
			from = i.leader
		}
		routes := i.sim.routesFrom(from.Host)
		i.trace("%v", routes)
		return i.during(slowDuration, func() { i.sim.Network.BlackHole(routes...) },
			func() { i.sim.Network.FillBlackHole(routes...) })
	}},
	{"one-way loss", func(i *injection) bool {
		routes, loss := i.sim.routesFrom(i.a.Host), lossMax*i.Float64()
		i.trace("%v, %.2f", routes, loss)
		return i.during(i.lasts, func() { i.sim.Network.Lose(loss, routes...) },
			func() { i.sim.Network.Lose(0, routes...) })
	}},
	{"throttle a processor", func(i *injection) bool {
		var heal func()
		return i.stop(i.a, 2*i.lasts, func() { heal = i.a.throttle() }, func() { heal() })
	}},
	{"two snapshots in a row", (*injection).twoSnapshots},
}

// throttle lets the process here run for a tenth of the time, and use its disk and the network only
// then.
func (n *Node) throttle() (heal func()) {
	const stopped = throttlePeriod * 9 / 10
	n.Disk.SlowDown(stopped)
	routes := n.sim.routes(n.Host)
	n.sim.Network.SetDelay(delayMin, stopped, routes...)
	stop := background(func(ctx context.Context) {
		for ctx.Err() == nil {
			n.Clock.Freeze()
			workload.Sleep(ctx, stopped)
			n.Clock.Thaw()
			workload.Sleep(ctx, throttlePeriod-stopped)
		}
	})
	return func() {
		stop()
		n.sim.Network.SetDelay(delayMin, delaySpread, routes...)
		n.Disk.SlowDown(0)
	}
}

// twoSnapshots isolates a follower, twice in a row, for so long that it needs a snapshot of the
// leader each time.
func (i *injection) twoSnapshots() bool {
	if i.leader == nil || i.a == i.leader || i.a.Running() == nil {
		return false
	}
	furthest := func() (index uint64) {
		for _, n := range i.sim.Members() {
			index = max(index, n.Status().RaftIndex)
		}
		return index
	}
	routes := i.sim.routes(i.a.Host)
	for range 2 {
		missed := furthest()
		i.trace("%v", routes)
		i.sim.Network.Cut(routes...)
		behind := i.await(2*slowDuration, func() bool { return furthest() > missed+3*smallLog })
		i.sim.Network.Heal(routes...)
		_, before := i.sim.Audit.Compared()
		if !behind || !i.await(slowDuration, func() bool {
			_, after := i.sim.Audit.Compared()
			return after > before && i.a.Status().RaftIndex > missed
		}) {
			return false
		}
	}
	return true
}

// await waits until a condition holds, or a time has passed, and reports whether it holds.
func (i *injection) await(most time.Duration, holds func() bool) bool {
	for until := time.Now().Add(most); time.Now().Before(until) &&
		i.ctx.Err() == nil; i.wait(restartPollInterval) {
		if holds() {
			return true
		}
	}
	return false
}

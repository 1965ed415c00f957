package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"zamok/client"
	"zamok/jepsen/real/disk"
	"zamok/jepsen/workload"
)

const (
	// measuredFor is how long cycles of lock and unlock are counted, before and after a leader is
	// hindered.
	measuredFor = 10 * time.Second
	// measuredClients lock and unlock, each a lock of its own.
	measuredClients = 6
	// betweenMeasurements is longer than no leader gives way because one did, and the last line of
	// a log that was slow.
	betweenMeasurements = 65 * time.Second
)

// hindrances are what a leader is measured under.
func (c *cluster) hindrances() []hindrance {
	slower := func(by time.Duration) func(*node) (func() error, error) {
		return func(n *node) (func() error, error) {
			return func() error { return n.disk.SetFaults(disk.Faults{}) }, n.disk.SetFaults(disk.Faults{FsyncDelay: by})
		}
	}
	all := []hindrance{{"flushes take 2 s longer", slower(2 * time.Second)}, {"flushes take 1 s longer", slower(time.Second)}}
	if c.disks == nil {
		all = nil
	}
	all = append(all, hindrance{"a black hole", func(n *node) (func() error, error) {
		heal := c.network.inject(linkFault{passes: 1400}, oneWay([]string{n.id}, nodeIDs(c.members()))...)
		return func() error { heal(); return nil }, nil
	}})
	if c.throttled != nil {
		all = append(all, hindrance{fmt.Sprintf("%d %% of a processor", throttledPercent), func(n *node) (func() error, error) {
			pid := n.runningProcess().cmd.Process.Pid
			return func() error { return c.throttled.release(pid) }, c.throttled.add(pid)
		}})
	}
	return all
}

// A hindrance hinders a node until it is healed.
type hindrance struct {
	name  string
	begin func(*node) (heal func() error, err error)
}

// measureLeader measures what clients see when a leader is hindered: when another leads, how many
// cycles of lock and unlock there are before and after that, the longest time without any, and
// whether a lock with a ttl of 10 s is lost.
func (o *options) measureLeader(ctx context.Context) error {
	c, err := o.prepare(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.start(o.nodes); err != nil {
		return err
	}
	var loops sync.WaitGroup
	defer loops.Wait()
	loopCtx, stop := context.WithCancel(c.done)
	defer stop()
	var cycles, last, gap atomic.Int64
	last.Store(int64(monotonicNow()))
	for i := range measuredClients {
		p, err := c.measuringClient()
		if err != nil {
			return err
		}
		loops.Go(func() {
			for loopCtx.Err() == nil {
				l, err := p.Lock(loopCtx, fmt.Sprint("cycle ", i), client.WithMetadata(make([]byte, 2000)))
				if err == nil {
					err = l.Unlock(loopCtx)
				}
				if err != nil {
					workload.Sleep(loopCtx, 10*time.Millisecond)
					continue
				}
				cycles.Add(1)
				now := int64(monotonicNow())
				gap.Store(max(gap.Load(), now-last.Swap(now)))
			}
			_ = p.Close()
		})
	}
	perSecond := func() float64 {
		before := cycles.Load()
		workload.Sleep(c.done, measuredFor)
		return float64(cycles.Load()-before) / measuredFor.Seconds()
	}
	holder, err := c.measuringClient()
	if err != nil {
		return err
	}
	defer holder.Close()
	for _, h := range c.hindrances() {
		held, err := holder.Lock(c.done, "held "+h.name)
		if err != nil {
			return err
		}
		before, leader := perSecond(), c.leader()
		gap.Store(0)
		began := monotonicNow()
		heal, err := h.begin(leader)
		if err != nil {
			return errors.Join(err, heal())
		}
		moved := await(c.done, 30*time.Second, epochPollInterval/10, func() bool { l := c.leader(); return l != nil && l != leader })
		took := monotonicNow() - began
		after := perSecond()
		workload.Sleep(c.done, measuredFor)
		lost := held.Err()
		c.logf("%s: another leads: %v, after %v; %.0f cycles/s before, %.0f after; at most %v without one; the lock of ttl 10 s: %v",
			h.name, moved, took.Round(10*time.Millisecond), before, after, time.Duration(gap.Load()).Round(10*time.Millisecond), lost)
		if err := heal(); err != nil {
			return err
		}
		workload.Sleep(c.done, betweenMeasurements)
	}
	return nil
}

func (c *cluster) measuringClient() (*client.Client, error) {
	return client.New(client.Config{Endpoints: c.endpoints(), Dialer: dialFrom(c.ip(hostOfAudit))})
}

package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"zamok/client"
	"zamok/jepsen/real/disk"
	"zamok/jepsen/workload"
)

const (
	// measuredFor is how long cycles of lock and unlock are counted, before and after a leader is
	// impaired.
	measuredFor = 10 * time.Second
	// measuredClients lock and unlock, each a lock of its own.
	measuredClients = 6
	// betweenMeasurements is longer than the minute in which no second leader gives way.
	betweenMeasurements = 65 * time.Second
)

// impairments are the conditions under which a leader is measured.
func (c *cluster) impairments() []impairment {
	slower := func(by time.Duration) func(*node) (func() error, error) {
		return func(n *node) (func() error, error) {
			return func() error {
				return n.disk.SetFaults(disk.Faults{})
			}, n.disk.SetFaults(disk.Faults{FsyncDelay: by})
		}
	}
	all := []impairment{
		{"flushes take 2 s longer", slower(2 * time.Second)},
		{"flushes take 1 s longer", slower(time.Second)},
	}
	if c.disks == nil {
		all = nil
	}
	all = append(all, impairment{"a black hole", func(n *node) (func() error, error) {
		heal := c.network.inject(linkFault{passes: 1400},
			oneWay([]string{n.id}, nodeIDs(c.members()))...)
		return func() error { heal(); return nil }, nil
	}})
	if c.throttled != nil {
		name := fmt.Sprintf("%d %% of a processor", throttledPercent)
		all = append(all, impairment{name, func(n *node) (func() error, error) {
			pid := n.runningProcess().cmd.Process.Pid
			return func() error { return c.throttled.release(pid) }, c.throttled.add(pid)
		}})
	}
	return all
}

// An impairment slows a node down until it is healed.
type impairment struct {
	name  string
	begin func(*node) (heal func() error, err error)
}

// measureLeader measures what clients see when a leader is impaired: when another leads, how many
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
	m := &measurement{cluster: c}
	m.last.Store(int64(monotonicNow()))
	var loops sync.WaitGroup
	defer loops.Wait()
	ctx, stop := context.WithCancel(c.done)
	defer stop()
	for i := range measuredClients {
		p, err := c.measuringClient()
		if err != nil {
			return err
		}
		loops.Go(func() {
			for m.cycle(ctx, p, fmt.Sprint("cycle ", i)) {
			}
			_ = p.Close()
		})
	}
	holder, err := c.measuringClient()
	if err != nil {
		return err
	}
	defer holder.Close()
	only, err := regexp.Compile(o.kindPattern)
	if err != nil {
		return err
	}
	for _, h := range c.impairments() {
		if !only.MatchString(h.name) {
			continue
		}
		if err := m.measureUnder(h, holder); err != nil {
			return err
		}
		workload.Sleep(c.done, betweenMeasurements)
	}
	return nil
}

// measurement counts cycles of lock and unlock.
type measurement struct {
	*cluster
	// how many; when the last one ended; the longest time without one
	cycles, last, gap atomic.Int64
}

// cycle locks and unlocks once, and reports whether another cycle may follow.
func (m *measurement) cycle(ctx context.Context, p *client.Client, name string) bool {
	// more than passes a black hole
	l, err := p.Lock(ctx, name, client.WithMeta(make([]byte, 2000)))
	if err == nil {
		err = l.Unlock(ctx)
	}
	if err != nil {
		return workload.Sleep(ctx, 10*time.Millisecond)
	}
	m.cycles.Add(1)
	now := int64(monotonicNow())
	m.gap.Store(max(m.gap.Load(), now-m.last.Swap(now)))
	return ctx.Err() == nil
}

func (m *measurement) perSecond() float64 {
	before := m.cycles.Load()
	workload.Sleep(m.done, measuredFor)
	return float64(m.cycles.Load()-before) / measuredFor.Seconds()
}

// measureUnder impairs the leader, and logs what clients saw.
func (m *measurement) measureUnder(h impairment, holder *client.Client) error {
	held, err := holder.Lock(m.done, "held "+h.name)
	if err != nil {
		return err
	}
	before, leader := m.perSecond(), m.leader()
	m.gap.Store(0)
	began := monotonicNow()
	heal, err := h.begin(leader)
	if err != nil {
		return errors.Join(err, heal())
	}
	moved := await(m.done, 30*time.Second, leaderPollInterval/10, func() bool {
		l := m.leader()
		return l != nil && l != leader
	})
	took := monotonicNow() - began
	after := m.perSecond()
	workload.Sleep(m.done, measuredFor)
	const unit = 10 * time.Millisecond
	m.logf(
		"%s: another node leads: %v, after %v; %.0f cycles/s before, %.0f after; at most %v "+
			"without one; the lock with a ttl of 10 s: %v", h.name, moved, took.Round(unit),
		before, after,
		time.Duration(m.gap.Load()).Round(unit), held.Err())
	return heal()
}

func (c *cluster) measuringClient() (*client.Client, error) {
	return client.New(client.Config{Endpoints: c.endpoints(), Dialer: dialFrom(c.ip(hostOfAudit))})
}

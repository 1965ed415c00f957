package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"zamok/cmd/zamok/loadgen"
)

// Cluster is one running system.
type Cluster struct {
	Endpoints []string // where clients connect
	system    system
	nodes     []node
	processes []*process // of the nodes
	killedCPU float64    // seconds of processor time, of processes killed since
}

// node is what one process of a system is started with. Its addresses are of loopback; data is an
// empty folder.
type node struct {
	number             int // from 1
	name, data         string
	client, peer, http string
	ports              []string // of the three addresses
}

// Start starts the servers of one kind of system: that many nodes, or its usual number if nodes is
// 0. dir is an empty folder for their data.
func Start(kind string, nodes int, dir string, p Programs) (*Cluster, error) {
	s := systems(p)[kind]
	s.nodes = cmp.Or(nodes, s.nodes)
	return s.start(dir)
}

// start starts the nodes. If it fails, it stops those that it has started.
func (s system) start(dir string) (c *Cluster, err error) {
	ports, err := freePorts(3 * s.nodes)
	if err != nil {
		return nil, err
	}
	c = &Cluster{system: s}
	for own := range slices.Chunk(ports, 3) {
		n := node{number: len(c.nodes) + 1, client: loopback + own[0], peer: loopback + own[1],
			http: loopback + own[2], ports: own}
		n.name = fmt.Sprintf("n%d", n.number)
		n.data = filepath.Join(dir, n.name)
		c.nodes = append(c.nodes, n)
		c.Endpoints = append(c.Endpoints, n.client)
	}
	for _, n := range c.nodes {
		p := &process{name: n.name, log: filepath.Join(dir, n.name+".log")}
		if err = os.Mkdir(n.data, 0o700); err == nil {
			p.command, err = s.command(n, c.nodes)
		}
		if err == nil {
			err = p.start()
		}
		if err != nil {
			c.Stop()
			return nil, err
		}
		c.processes = append(c.processes, p)
	}
	return c, nil
}

// Alive is nil while all processes run.
func (c *Cluster) Alive() error {
	for _, p := range c.processes {
		if err := p.alive(); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends all processes and waits for them.
func (c *Cluster) Stop() {
	for _, p := range c.processes {
		p.stop()
	}
}

// Leader finds the node that leads.
func (c *Cluster) Leader(ctx context.Context) (int, error) {
	var last error
	for ctx.Err() == nil {
		for i, n := range c.nodes {
			leads, err := c.system.read(ctx, n, c.system.leads)
			if leads == 1 {
				return i, nil
			}
			last = errors.Join(err, c.Alive())
		}
		loadgen.Sleep(ctx, 50*time.Millisecond)
	}
	return 0, fmt.Errorf("no node claims to lead: %w", errors.Join(ctx.Err(), last))
}

// Kill ends one node as a power cut would.
func (c *Cluster) Kill(node int) {
	p := c.processes[node]
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.done
	c.killedCPU += (p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()).Seconds()
}

// Restart starts a killed node again, on its data.
func (c *Cluster) Restart(node int) error { return c.processes[node].start() }

// Metric reads a metric of a node.
func (c *Cluster) Metric(ctx context.Context, node int, name string) (float64, error) {
	return c.system.read(ctx, c.nodes[node], name)
}

// LeaderChanges counts how often the nodes of the cluster have seen their leader change, if they
// count it.
func (c *Cluster) LeaderChanges(ctx context.Context) (n float64, known bool) {
	if c.system.changes == "" {
		return 0, false
	}
	for _, node := range c.nodes {
		count, err := c.system.read(ctx, node, c.system.changes)
		if err != nil {
			return 0, false
		}
		n += count
	}
	return n, true
}

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"zamok/cmd/zamok/workload"
)

// Cluster is one running system.
type Cluster struct {
	Endpoints     []string // where clients connect
	processes     []*process
	killedCPU     float64                                              // seconds of processor time, of processes killed since
	isLeader      func(ctx context.Context, node int) (bool, error)    // nil: nothing leads
	leaderChanges func(ctx context.Context, node int) (float64, error) // nil: unknown
}

// Programs are where the programs are that no package brings.
type Programs struct {
	Zamok string // the built command
	Etcd  string
	Self  string // this program, for the echo
}

// Starters is how to start each kind of server. dir is empty and the system's own.
func Starters(p Programs) map[string]func(dir string) (*Cluster, error) {
	return map[string]func(dir string) (*Cluster, error){
		"zamok":     func(dir string) (*Cluster, error) { return startZamok(dir, p.Zamok) },
		"zamok-wal": func(dir string) (*Cluster, error) { return startZamok(dir, p.Zamok, "--log-store", "wal") },
		"etcd":      func(dir string) (*Cluster, error) { return startEtcd(dir, p.Etcd) },
		"zookeeper": startZooKeeper,
		"redis-aof": func(dir string) (*Cluster, error) { return startRedis(dir, true) },
		"redis-mem": func(dir string) (*Cluster, error) { return startRedis(dir, false) },
		"postgres":  startPostgres,
		"echo":      func(dir string) (*Cluster, error) { return startEcho(dir, p.Self) },
	}
}

// run starts the commands; if one can't be started, none runs.
func (c *Cluster) run(dir string, commands ...command) (*Cluster, error) {
	for _, command := range commands {
		p := &process{command: command, log: filepath.Join(dir, command.name+".log")}
		if err := p.start(); err != nil {
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
		for node := range c.processes {
			leads, err := c.isLeader(ctx, node)
			if leads {
				return node, nil
			}
			last = errors.Join(err, c.Alive())
		}
		workload.Sleep(ctx, 50*time.Millisecond)
	}
	return 0, fmt.Errorf("no node reports that it leads: %w", errors.Join(ctx.Err(), last))
}

// Kill ends one node as a power cut would, and Restart starts it again on its data.
func (c *Cluster) Kill(node int) error {
	p, err := procfs.NewProc(c.processes[node].pid())
	if err != nil {
		return err
	}
	s, err := p.Stat()
	if err != nil {
		return err
	}
	c.killedCPU += cpuSeconds(p, s)
	c.processes[node].kill()
	return nil
}

// Restart starts a killed node again.
func (c *Cluster) Restart(node int) error { return c.processes[node].start() }

// LeaderChanges counts how often the nodes of the cluster have seen their leader change, where they report it.
func (c *Cluster) LeaderChanges(ctx context.Context) (n float64, known bool) {
	if c.leaderChanges == nil {
		return 0, false
	}
	for node := range c.processes {
		count, err := c.leaderChanges(ctx, node)
		if err != nil {
			return 0, false
		}
		n += count
	}
	return n, true
}

const metricsMax = 8 << 20 // bytes that are read of a page of metrics

// readMetric reads one line of a page of metrics.
func readMetric(ctx context.Context, url, name string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, metricsMax))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", url, name)
}

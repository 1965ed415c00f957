package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"zamok/jepsen/check"
	"zamok/jepsen/real/disk"
	"zamok/jepsen/workload"
)

// cluster is everything that runs: the nodes, the proxies between them, and the programs that use
// locks.
type cluster struct {
	dir       string
	binary    string // zamok
	ownBinary string // this program
	seed      uint64
	subnet    int // the second and third byte of its addresses, 127.x.y.z
	network   *proxyNetwork
	record    *recorder
	resource  net.Listener    // of what the locks guard
	disks     *disk.Pool      // nil: the machine's own
	throttled *cgroup         // nil: not possible here
	done      context.Context // ends with the run
	cancel    context.CancelFunc
	running   sync.WaitGroup
	programs  []*clientProgram
	logMu     sync.Mutex // guards log; a leaf, so that logf may be called under any other mutex
	log       *os.File

	mu      sync.Mutex // guards what follows
	nodes   []*node
	auditor *process
	epochs  []epoch
	deaths  map[string]time.Duration // when the processes of programs were killed, by name
	notes   []string                 // for the report: what was left out, and why
}

// historyDir holds each process's part of the history, logDir its log.
func (c *cluster) historyDir() string { return filepath.Join(c.dir, "parts") }
func (c *cluster) logDir() string     { return filepath.Join(c.dir, "logs") }

// clientProgram is a client machine, which runs one process after the other.
type clientProgram struct {
	cluster *cluster
	name    string
	ip      string
	starts  atomic.Int32
	process *process // the present one
}

const (
	clientsPerProgram  = 4 // in each program
	startTimeout       = 60 * time.Second
	leaderPollInterval = 100 * time.Millisecond
)

func (c *cluster) ip(last int) string {
	return fmt.Sprintf("127.%d.%d.%d", c.subnet>>8, c.subnet&255, last)
}

// logf prints a line, also to the run's own log.
func (c *cluster) logf(format string, args ...any) {
	c.logMu.Lock()
	defer c.logMu.Unlock()
	line := time.Now().UTC().Format("15:04:05.000 ") + fmt.Sprintf(format, args...)
	fmt.Println(line)
	fmt.Fprintln(c.log, line)
}

// connectionOwner names the process that opened a connection: a program by its address, a node by
// its socket.
func (c *cluster) connectionOwner(conn net.Conn) string {
	there, here := conn.RemoteAddr().(*net.TCPAddr), conn.LocalAddr().(*net.TCPAddr)
	host := there.IP.String()
	if host == c.ip(hostOfAudit) {
		return "audit"
	}
	for _, p := range c.programs {
		if host == p.ip {
			return p.processName()
		}
	}
	inode, err := socketBetween(there, here)
	if err != nil {
		c.logf("can't find the owner of the socket %v: %v", there, err)
	}
	for _, n := range c.members() {
		if p := n.runningProcess(); p != nil && inode != "" && hasSocket(p.cmd.Process.Pid, inode) {
			return n.id
		}
	}
	return ""
}

func hasSocket(pid int, inode string) bool {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) // its error is about the pattern
	return slices.ContainsFunc(files, func(file string) bool {
		to, err := os.Readlink(file)
		return err == nil && to == "socket:["+inode+"]"
	})
}

const (
	hostOfRun          = 1
	hostOfAudit        = 2
	hostOfFirstProgram = 100
	resourcePort       = "5760"
)

// start starts the nodes, and waits until one leads.
func (c *cluster) start(nodes int) error {
	var list []string
	for range nodes {
		n, err := c.addNode()
		if err != nil {
			return err
		}
		list = append(list, n.listed())
	}
	for _, n := range c.members() {
		n.args = append(n.args, "--cluster", strings.Join(list, ","), "--join",
			strings.Join(list, ","))
		if err := n.start(); err != nil {
			return err
		}
	}
	c.running.Go(c.trackLeaders)
	if !await(c.done, startTimeout, leaderPollInterval, func() bool { return c.leader() != nil }) {
		return fmt.Errorf("no node leads after %v; see %s", startTimeout, c.dir)
	}
	return nil
}

// members are the nodes that are part of the cluster.
func (c *cluster) members() []*node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.nodes), func(n *node) bool { return n.removed.Load() })
}

// trackLeaders polls all nodes, not through the proxies, for the leader, and records the changes.
func (c *cluster) trackLeaders() {
	for workload.Sleep(c.done, leaderPollInterval) {
		for _, n := range c.members() {
			counts, err := n.metrics(c.done)
			if err != nil || counts["zamok_raft_leader"] != 1 {
				continue
			}
			term := uint64(counts["zamok_raft_term"])
			c.mu.Lock()
			if k := len(c.epochs) - 1; k < 0 || term > c.epochs[k].term {
				c.epochs = append(c.epochs, epoch{node: n, term: term, from: monotonicNow()})
			}
			c.mu.Unlock()
		}
	}
}

// leader is the node that led last, if it runs.
func (c *cluster) leader() *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := len(c.epochs) - 1; k >= 0 && c.epochs[k].node.runningProcess() != nil {
		return c.epochs[k].node
	}
	return nil
}

func (c *cluster) endpoints() (all []string) {
	for _, n := range c.members() {
		all = append(all, n.address(clientPort))
	}
	return all
}

// startSubprocess starts a subprocess of the run.
func (c *cluster) startSubprocess(name, ip string) (*process, error) {
	o := &subprocess{
		Name: name, Seed: c.seed, Endpoints: c.endpoints(), Address: ip,
		Resource: c.ip(hostOfRun) + ":" + resourcePort,
		File:     filepath.Join(c.historyDir(), name+".jsonl"),
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	return start(name, filepath.Join(c.logDir(), name+".log"),
		[]string{subprocessVariable + "=" + string(text)}, c.ownBinary)
}

// start starts another process of a program, under another name.
func (p *clientProgram) start() error {
	p.starts.Add(1)
	process, err := p.cluster.startSubprocess(p.processName(), p.ip)
	if err == nil {
		p.process = process
	}
	return err
}

// processName is the name of the present process, as the proxies know it.
func (p *clientProgram) processName() string {
	return fmt.Sprintf("%s-%d", p.name, p.starts.Load())
}

// kill is kill -9; nothing more is expected of this process.
func (p *clientProgram) kill() {
	p.process.kill()
	p.cluster.mu.Lock()
	defer p.cluster.mu.Unlock()
	p.cluster.deaths[p.process.name] = monotonicNow()
}

// stop lets the programs finish, then the audit. If one does not end in time that is an error.
func (c *cluster) stop(plan *check.Plan) (err error) {
	for _, p := range c.programs {
		p.process.stdin.Close()
	}
	for _, p := range c.programs {
		err = errors.Join(err, c.awaitExit(p.process))
	}
	c.auditor.stdin.Close()
	incomplete := c.awaitExit(c.auditor)
	plan.CompleteEvents = incomplete == nil
	return errors.Join(err, incomplete)
}

func (c *cluster) awaitExit(p *process) error {
	if !p.waitFor(drainMax + 60*time.Second) {
		p.signal(syscall.SIGQUIT) // its log then shows what it waits for
		if !p.waitFor(5 * time.Second) {
			p.kill()
		}
		return fmt.Errorf("%s did not finish", p.name)
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w, see its log", p.name, p.err)
	}
	return nil
}

// close ends everything that still runs, and waits for it.
func (c *cluster) close() {
	c.cancel()
	for _, p := range c.programs {
		if p.process != nil {
			p.process.kill()
		}
	}
	if c.auditor != nil {
		c.auditor.kill()
	}
	var all sync.WaitGroup
	for _, n := range c.nodes {
		all.Go(func() { n.signal(syscall.SIGCONT); n.terminate() })
	}
	all.Wait()
	c.running.Wait()
	c.resource.Close()
	c.network.close()
	c.closeDisks()
	if c.throttled != nil {
		if err := c.throttled.remove(); err != nil {
			c.logf("%v", err)
		}
	}
}

// openDisks prepares disks that can fail. Where they are missing the run continues, and its report
// says so.
func (c *cluster) openDisks(ctx context.Context) error {
	pool, err := disk.Open(ctx, filepath.Join(c.dir, "data"))
	if errors.Is(err, disk.ErrUnsupported) {
		c.logf("SKIPPED: all faults of disks: %v", err)
		c.notes = append(c.notes, fmt.Sprintf("No faults of disks: %v.", err))
		err = nil
	}
	c.disks = pool
	return err
}

// closeDisks unmounts the disks. It copies their contents, which may explain a failure.
func (c *cluster) closeDisks() {
	if c.disks == nil {
		return
	}
	for _, n := range c.nodes {
		if err := os.CopyFS(n.disk.Dir+".copy", os.DirFS(n.disk.Dir)); err != nil {
			c.logf("the contents of the disk of %s are lost: %v", n.id, err)
		}
		if err := n.disk.Close(); err != nil {
			c.logf("%v", err)
		}
	}
}

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"zamok/jepsen/real/disk"
	"zamok/jepsen/workload"
)

// node is one `zamok server`, through all of its restarts.
type node struct {
	cluster      *cluster
	id           string
	listenIP     string // the IP on which it listens
	advertisedIP string // the IP that others are given: the proxies listen there
	data         string
	disk         *disk.Disk // nil: the machine's own
	log          string
	args         []string
	dataWiped    bool        // it has lost its data once; only wipeNode uses this
	removed      atomic.Bool // taken out of the cluster

	mu              sync.Mutex // guards what follows
	process         *process   // nil = it never ran
	keptDown        bool       // it is down by a fault, and is not restarted
	unexpectedExits []string   // how it ended by itself, other than by a fault
}

const (
	clientPort = "5750"
	peerPort   = "5751"
	httpPort   = "5752"
	// superviseInterval is how often the supervisor checks whether a node has ended by itself.
	superviseInterval = time.Second
	// shutdownTimeout is how long a node may take to end cleanly.
	shutdownTimeout = 20 * time.Second
)

func (n *node) address(port string) string { return n.advertisedIP + ":" + port }

// listed is the node as an item of --cluster and --join.
func (n *node) listed() string { return n.id + "=" + n.address(peerPort) }

// start runs it, also if it was kept down.
func (n *node) start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keptDown = false
	return n.run()
}

// run starts the process if there is none. The caller holds the mutex.
func (n *node) run() error {
	if n.removed.Load() || n.process != nil && n.process.alive() {
		return nil
	}
	p, err := start(n.id, n.log, nil, n.cluster.binary, n.args...)
	if err != nil {
		return err
	}
	n.process = p
	return nil
}

// supervise starts the node again when it ended by itself, until the run is over.
func (n *node) supervise() {
	for workload.Sleep(n.cluster.done, superviseInterval) {
		n.mu.Lock()
		if p := n.process; p != nil && !p.alive() && !n.keptDown && !n.removed.Load() {
			n.unexpectedExits = append(n.unexpectedExits, fmt.Sprint(p.err))
			n.cluster.logf("%s ended by itself: %v", n.id, p.err)
			if err := n.run(); err != nil {
				n.cluster.logf("%v", err)
			}
		}
		n.mu.Unlock()
	}
}

// keepDown marks the node as down by a fault, and returns its process.
func (n *node) keepDown() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keptDown = true
	return n.process
}

// kill is kill -9. It stays down until start.
func (n *node) kill() {
	if p := n.keepDown(); p != nil {
		p.kill()
	}
}

// terminate sends SIGTERM, and kills the process if it does not end in time. It reports whether the
// process ended by itself.
func (n *node) terminate() bool {
	p := n.keepDown()
	if p == nil {
		return true
	}
	p.signal(syscall.SIGTERM)
	if p.waitFor(shutdownTimeout) {
		return true
	}
	p.kill()
	return false
}

// runningProcess is its process, if it runs.
func (n *node) runningProcess() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process == nil || !n.process.alive() || n.removed.Load() {
		return nil
	}
	return n.process
}

// signal sends a signal if it runs.
func (n *node) signal(sig syscall.Signal) {
	if p := n.runningProcess(); p != nil {
		p.signal(sig)
	}
}

// metrics reads the node's metrics without labels, past the proxies.
func (n *node) metrics(ctx context.Context) (map[string]float64, error) {
	url := "http://" + n.listenIP + ":" + httpPort + "/metrics"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := (&http.Client{Timeout: time.Second}).Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	counts := map[string]float64{}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		name, text, _ := strings.Cut(lines.Text(), " ")
		if value, err := strconv.ParseFloat(text, 64); err == nil {
			counts[name] = value
		}
	}
	return counts, lines.Err()
}

// addNode makes a node; it does not run yet. flags are --cluster or --join.
func (c *cluster) addNode(flags ...string) (*node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := len(c.nodes) + 1
	id := fmt.Sprint("n", i)
	n := &node{
		cluster: c, id: id, listenIP: c.ip(10 + 2*i), advertisedIP: c.ip(11 + 2*i),
		data: filepath.Join(c.dir, "data", id), log: filepath.Join(c.logDir(), id+".log"),
	}
	for _, port := range []string{clientPort, peerPort} {
		if _, err := c.network.serve(n.id, n.address(port), n.listenIP+":"+port); err != nil {
			return nil, err
		}
	}
	if c.disks != nil {
		var err error
		if n.disk, err = c.disks.Add(id); err != nil {
			return nil, err
		}
		n.data = filepath.Join(n.disk.Dir, "data")
	}
	n.args = append([]string{
		"server", "--id", n.id, "--election-timeout", electionTimeout.String(), "--data", n.data,
		"--advertise", n.advertisedIP, "--listen", n.listenIP + ":" + clientPort,
		"--peer", n.listenIP + ":" + peerPort, "--http", n.listenIP + ":" + httpPort,
	}, flags...)
	c.nodes = append(c.nodes, n)
	c.running.Go(n.supervise)
	return n, nil
}

// process is a process that this run has started. It is ended by its pid, and it dies with this
// process.
type process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser  // is closed to let it finish
	ended context.Context // ends when the process has ended
	err   error           // set before: how it ended
}

// start runs a program; its output is appended to a file.
func start(name, log string, env []string, program string, args ...string) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	p := &process{name: name, cmd: exec.Command(program, args...)}
	p.cmd.Stdout, p.cmd.Stderr = file, file
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s was not started: %w", name, err)
	}
	var end context.CancelFunc
	p.ended, end = context.WithCancel(context.Background())
	go func() { // ends with the process
		p.err = p.cmd.Wait()
		end()
	}()
	return p, nil
}

func (p *process) alive() bool { return p.ended.Err() == nil }

func (p *process) signal(sig syscall.Signal) {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		fmt.Fprintf(os.Stderr, "%v to %s: %v\n", sig, p.name, err)
	}
}

// kill ends it at once and waits for its end.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended.Done()
}

// waitFor waits for its end, for at most d, and reports whether it has ended.
func (p *process) waitFor(d time.Duration) bool { return !workload.Sleep(p.ended, d) }

// monotonicNow is CLOCK_MONOTONIC: nanoseconds since this machine was started, the same for all
// processes.
func monotonicNow() time.Duration {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		panic(err) // every Linux has this clock
	}
	return time.Duration(at.Nano())
}

// await polls until a condition is satisfied. It returns false if that took too long, or ctx has
// ended.
func await(ctx context.Context, timeout, interval time.Duration, satisfied func() bool) bool {
	for until := monotonicNow() + timeout; !satisfied(); {
		if monotonicNow() > until || !workload.Sleep(ctx, interval) {
			return false
		}
	}
	return true
}

package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// node is one `zamok server`, through all of its lives.
type node struct {
	cluster *cluster
	id      string
	real    string // the IP on which it listens
	front   string // the IP that others are told: the fabric listens there
	data    string
	log     string
	args    []string
	wiped   bool // it has lost its data once; only the fault that does that looks at it

	mu      sync.Mutex // guards what follows
	process *process   // nil = it never ran
	held    bool       // it is to be down: nobody starts it again
	busy    bool       // a fault works on it
	retired bool       // taken out of the cluster
	starts  int
	ends    []string // how it ended by itself, other than by a fault
}

const (
	clientPort = "5750"
	peerPort   = "5751"
	httpPort   = "5752"
	// restartAfter is how long whoever supervises a node waits before it starts it again.
	restartAfter = time.Second
	// orderlyMost is how long a node may take to end in good order.
	orderlyMost = 20 * time.Second
)

func (n *node) address(port string) string { return n.front + ":" + port }

// start runs it. Whoever had held it down lets go.
func (n *node) start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held = false
	return n.run()
}

// run starts the process if there is none. The caller has the mutex.
func (n *node) run() error {
	if n.retired || n.process != nil && n.process.alive() {
		return nil
	}
	p, err := start(n.id, n.log, nil, n.cluster.program, n.args...)
	if err != nil {
		return err
	}
	n.process = p
	n.starts++
	return nil
}

// supervise starts the node again when it ended by itself, until the run is over.
func (n *node) supervise(over context.Context) {
	tick := time.NewTicker(restartAfter / 4)
	defer tick.Stop()
	for over.Err() == nil {
		select {
		case <-tick.C:
		case <-over.Done():
			return
		}
		n.mu.Lock()
		p := n.process
		if p != nil && !p.alive() && !n.held && !n.retired {
			n.ends = append(n.ends, fmt.Sprint(p.err))
			n.cluster.say("%s ended by itself: %v", n.id, p.err)
			n.held = true // until the second is over
			n.mu.Unlock()
			pause(over, restartAfter)
			n.mu.Lock()
			n.held = false
			if err := n.run(); err != nil {
				n.cluster.say("%v", err)
			}
		}
		n.mu.Unlock()
	}
}

// hold marks it as down on purpose, and gives its process.
func (n *node) hold() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held = true
	return n.process
}

// kill is kill -9. It stays down until start.
func (n *node) kill() {
	if p := n.hold(); p != nil {
		p.kill()
	}
}

// term asks it to end in good order, and ends it if it doesn't. It tells whether it did.
func (n *node) term() bool {
	p := n.hold()
	if p == nil {
		return true
	}
	p.signal(syscall.SIGTERM)
	if p.within(orderlyMost) {
		return true
	}
	p.kill()
	return false
}

// up is its process, if it runs.
func (n *node) up() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process == nil || !n.process.alive() || n.retired {
		return nil
	}
	return n.process
}

// signal sends a signal if it runs.
func (n *node) signal(sig syscall.Signal) {
	if p := n.up(); p != nil {
		p.signal(sig)
	}
}

// metrics asks the node itself, beside the fabric, for its counts without labels.
func (n *node) metrics(ctx context.Context) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.real+":"+httpPort+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(ask)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	counts := map[string]float64{}
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		if name, text, ok := strings.Cut(lines.Text(), " "); ok {
			if value, err := strconv.ParseFloat(text, 64); err == nil {
				counts[name] = value
			}
		}
	}
	return counts, lines.Err()
}

// add makes a node; it does not run yet. How it comes to others is in how: --cluster or --join.
func (c *cluster) add(how ...string) (*node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := len(c.nodes) + 1
	data, err := c.dataOf(fmt.Sprint("n", i))
	if err != nil {
		return nil, err
	}
	n := &node{
		cluster: c, id: fmt.Sprint("n", i), real: c.ip(10 + 2*i), front: c.ip(11 + 2*i), data: data,
		log: filepath.Join(c.logs(), fmt.Sprintf("n%d.log", i)),
	}
	n.args = append([]string{
		"server", "--id", n.id, "--election-timeout", "250ms", "--data", n.data, "--advertise", n.front, "--listen", n.real + ":" + clientPort,
		"--peer", n.real + ":" + peerPort, "--http", n.real + ":" + httpPort, "--log-store", c.logStore,
	}, how...)
	for _, port := range []string{clientPort, peerPort} {
		if err := c.fabric.serve(n.id, n.address(port), n.real+":"+port); err != nil {
			return nil, err
		}
	}
	c.nodes = append(c.nodes, n)
	c.work.Go(func() { n.supervise(c.over) })
	return n, nil
}

// pause lets time pass. False: ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

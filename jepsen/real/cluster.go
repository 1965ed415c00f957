package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"zamok/client"
	"zamok/jepsen/report"
)

// cluster is all that runs: the nodes, the fabric between them, and the programs that use locks.
type cluster struct {
	dir      string
	program  string // zamok
	logStore string // of its nodes
	self     string // this program
	seed     uint64
	net      int // the second and third byte of its addresses, 127.x.y.z
	fabric   *fabric
	record   *record
	resource *resource
	disks    disks
	over     context.Context // ends with the run
	finish   context.CancelFunc
	work     sync.WaitGroup
	saying   sync.Mutex // guards log; of its own, so that whoever has another may say something
	log      *os.File

	mu       sync.Mutex // guards what follows
	nodes    []*node
	programs []*program
	auditor  *process
	offices  []report.Office
	entries  uint64             // that leaders said they have written, about
	counted  map[string]float64 // by node, for that
	said     []string           // what a reader of the report must know
}

// parts is where each process writes its part of the history, logs is where it says what it does.
func (c *cluster) parts() string { return filepath.Join(c.dir, "parts") }
func (c *cluster) logs() string  { return filepath.Join(c.dir, "logs") }

// program is a client machine, through all of its lives.
type program struct {
	cluster *cluster
	name    string

	mu      sync.Mutex // guards what follows
	process *process
	busy    bool
	lives   int
	died    []death
}

type death struct {
	name string
	at   time.Duration
}

const (
	clientsOf    = 4 // in each program
	startsWithin = 60 * time.Second
	officesEvery = 100 * time.Millisecond
)

func (c *cluster) ip(last int) string {
	if c.fabric.spaces != nil {
		return c.fabric.spaces.ip(last)
	}
	return fmt.Sprintf("127.%d.%d.%d", c.net>>8, c.net&255, last)
}

// say tells people, and the run's own log.
func (c *cluster) say(format string, args ...any) {
	c.saying.Lock()
	defer c.saying.Unlock()
	line := time.Now().UTC().Format("15:04:05.000 ") + fmt.Sprintf(format, args...)
	fmt.Println(line)
	fmt.Fprintln(c.log, line)
}

// owner tells whose a connection is: of programs by their address, of nodes by the process that has it.
func (c *cluster) owner(conn net.Conn) string {
	there, ok := conn.RemoteAddr().(*net.TCPAddr)
	here, also := conn.LocalAddr().(*net.TCPAddr)
	if !ok || !also {
		return ""
	}
	host := there.IP.String()
	if host == c.ip(addressAudit) {
		return "audit"
	}
	c.mu.Lock()
	nodes, programs := slices.Clone(c.nodes), slices.Clone(c.programs)
	c.mu.Unlock()
	for i, p := range programs {
		if host == c.ip(addressProgram+i) {
			p.mu.Lock()
			defer p.mu.Unlock()
			return fmt.Sprintf("%s-%d", p.name, p.lives)
		}
	}
	inode, err := socketBetween(there, here)
	if err != nil {
		c.say("whose socket %v is: %v", there, err)
	}
	for _, n := range nodes {
		if p := n.up(); p != nil && inode != "" && hasSocket(p.pid(), inode) {
			return n.id
		}
	}
	return ""
}

func hasSocket(pid int, inode string) bool {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	files, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, file := range files {
		if to, err := os.Readlink(filepath.Join(dir, file.Name())); err == nil && to == "socket:["+inode+"]" {
			return true
		}
	}
	return false
}

const (
	addressOwn     = 1
	addressAudit   = 2
	addressProgram = 100
	resourcePort   = "5760"
)

// begin starts so many nodes, and waits until one leads.
func (c *cluster) begin(nodes int) error {
	var list, join []string
	for i := 1; i <= nodes; i++ {
		list = append(list, fmt.Sprintf("n%d=%s:%s", i, c.ip(11+2*i), peerPort))
		join = append(join, c.ip(11+2*i)+":"+clientPort)
	}
	for range nodes {
		n, err := c.add("--cluster", strings.Join(list, ","), "--join", strings.Join(join, ","))
		if err != nil {
			return err
		}
		if err := n.start(); err != nil {
			return err
		}
	}
	c.work.Go(c.followOffices)
	until := time.Now().Add(startsWithin)
	for c.leader() == nil {
		if time.Now().After(until) {
			return fmt.Errorf("no node leads after %v; see %s", startsWithin, c.dir)
		}
		pause(c.over, officesEvery)
	}
	return nil
}

// members are the nodes that are part of the cluster.
func (c *cluster) members() (all []*node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		n.mu.Lock()
		if !n.retired {
			all = append(all, n)
		}
		n.mu.Unlock()
	}
	return all
}

// followOffices asks all nodes beside the fabric who leads, and takes down the changes.
func (c *cluster) followOffices() {
	for c.over.Err() == nil {
		for _, n := range c.members() {
			if n.up() == nil {
				continue
			}
			counts, err := n.metrics(c.over)
			if err != nil {
				continue
			}
			c.count(n.id, counts["zamok_entry_commands_count"])
			if counts["zamok_raft_leader"] != 1 {
				continue
			}
			term := uint64(counts["zamok_raft_term"])
			c.mu.Lock()
			if k := len(c.offices) - 1; k < 0 || term > c.offices[k].Term {
				c.offices = append(c.offices, report.Office{Node: n.id, Term: term, From: now()})
			}
			c.mu.Unlock()
		}
		pause(c.over, officesEvery)
	}
}

// count adds what a node has written since it was asked last. It begins at nothing with each process.
func (c *cluster) count(id string, entries float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.counted[id]
	if entries < before {
		before = 0
	}
	c.entries += uint64(entries - before)
	c.counted[id] = entries
}

// written is how many entries there are in the nodes' logs, about.
func (c *cluster) written() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries + termEntries*uint64(1+len(c.offices))
}

// leader is the node that led last, if it runs.
func (c *cluster) leader() *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.offices) == 0 {
		return nil
	}
	id := c.offices[len(c.offices)-1].Node
	for _, n := range c.nodes {
		if n.id == id && n.up() != nil {
			return n
		}
	}
	return nil
}

func (c *cluster) endpoints() (all []string) {
	for _, n := range c.members() {
		all = append(all, n.address(clientPort))
	}
	return all
}

func (c *cluster) order(kind, name string, address int) *order {
	return &order{
		Kind: kind, Name: name, Seed: c.seed, Endpoints: c.endpoints(), Address: c.ip(address),
		Resource: c.ip(addressOwn) + ":" + resourcePort, File: filepath.Join(c.parts(), name+".jsonl"),
		Gaps: filepath.Join(c.parts(), "gaps"), Clients: clientsOf,
	}
}

// addProgram makes a program; it does not run yet.
func (c *cluster) addProgram() *program {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &program{cluster: c, name: fmt.Sprintf("c%d", len(c.programs)+1)}
	c.programs = append(c.programs, p)
	return p
}

// start begins another life of a program, under another name.
func (p *program) start() error {
	p.mu.Lock()
	p.lives++
	name := fmt.Sprintf("%s-%d", p.name, p.lives)
	p.mu.Unlock()
	at := addressProgram + slices.Index(p.cluster.programs, p)
	o := p.cluster.order("load", name, at)
	proc, err := start(name, filepath.Join(p.cluster.logs(), name+".log"), o.env(), p.cluster.self)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.process = proc
	p.mu.Unlock()
	return nil
}

// kill is kill -9; nothing more is expected of this life.
func (p *program) kill() {
	p.mu.Lock()
	proc := p.process
	p.mu.Unlock()
	proc.kill()
	p.mu.Lock()
	p.died = append(p.died, death{proc.name, now()})
	p.mu.Unlock()
}

// labels are the names of the clients of its present life.
func (p *program) labels() (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range clientsOf {
		all = append(all, labelOf(p.process.name, i))
	}
	return all
}

// end has the programs finish, then the audit, then the nodes. What does not end in time is an error.
func (c *cluster) end() (err error) {
	for _, p := range c.programs {
		p.process.stdin.Close()
	}
	for _, p := range c.programs {
		err = errors.Join(err, c.await(p.process))
	}
	c.auditor.stdin.Close()
	return errors.Join(err, c.await(c.auditor))
}

func (c *cluster) await(p *process) error {
	if !p.within(drainMost + 60*time.Second) {
		p.signal(syscall.SIGQUIT) // its log tells what it waits for
		if !p.within(5 * time.Second) {
			p.kill()
		}
		return fmt.Errorf("%s did not finish", p.name)
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w, see its log", p.name, p.err)
	}
	return nil
}

// close ends whatever still runs, and waits for it.
func (c *cluster) close() {
	c.finish()
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
		all.Go(func() { n.signal(syscall.SIGCONT); n.term() })
	}
	all.Wait()
	c.work.Wait()
	c.resource.close()
	c.fabric.close()
	c.closeDisks()
}

// operator is a client for what the run itself asks of the cluster.
func (c *cluster) operator() (*client.Client, error) {
	return client.New(client.Config{Endpoints: c.endpoints(), Dialer: dialFrom(c.ip(addressAudit)), Label: "run"})
}

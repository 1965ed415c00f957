package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"

	"zamok/jepsen/real/netns"
)

// spaces is the network of a run in network namespaces: each node and each program has one, and the run itself,
// with the audit, has another. There are no proxies. A hole is the router's, and so is a cut, which here is
// silent; what else can be done to links needs the fabric.
type spaces struct {
	net *netns.Net

	mu    sync.Mutex // guards what follows
	holes map[pair]int
}

const (
	// spacesVariable names the namespaces to the run, whose process is started in one of them.
	spacesVariable = "ZAMOK_JEPSEN_NAMESPACES"
	// spareNodes may be added in a run.
	spareNodes = 8
	ownSpace   = "run"
)

// fabricKinds are what can be done to links only where proxies are. And a killed program is done to nobody's
// links, but here nobody knows when the last of what it sent arrived.
var fabricKinds = []string{
	"kill program", "slow links of the leader", "narrow links of the leader", "slow links of programs",
	"reset links of nodes", "reconnect storm",
}

// presentSpaces are those that this process was started for; nil: none.
func presentSpaces() *spaces {
	text := os.Getenv(spacesVariable)
	if text == "" {
		return nil
	}
	names := strings.Split(text, ",")
	return &spaces{net: netns.Known(names[0], names[1:]...), holes: map[pair]int{}}
}

// within makes the namespaces and runs this program once more in one of them, with the same arguments.
func (o *options) within() (err error) {
	names := []string{ownSpace}
	for i := range o.nodes + spareNodes {
		names = append(names, fmt.Sprint("n", i+1))
	}
	for i := range o.programs {
		names = append(names, fmt.Sprint("c", i+1))
	}
	net, err := netns.Make(names...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, net.Close()) }()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p, err := start("the run", "/dev/stdout", []string{spacesVariable + "=" + strings.Join(append([]string{net.Run()}, names...), ",")},
		"nsenter", append([]string{"--net=" + net.Path(ownSpace), "--", self}, os.Args[1:]...)...)
	if err != nil {
		return err
	}
	for {
		select {
		case <-p.ended:
			return p.err
		case s := <-signals:
			if s == syscall.SIGTERM { // of an interrupt its own process is told by the terminal
				p.signal(syscall.SIGTERM)
			}
		}
	}
}

// inSpace is the command that runs a program in the namespace of the process's name.
func inSpace(name, program string, args []string) (string, []string) {
	s := presentSpaces()
	if s == nil {
		return program, args
	}
	return "nsenter", append([]string{"--net=" + s.net.Path(spaceOf(name)), "--", program}, args...)
}

// spaceOf is where a process runs: n1, c1-2 in c1, and all else in the run's own.
func spaceOf(process string) string {
	if process != "" && (process[0] == 'n' || process[0] == 'c') {
		name, _, _ := strings.Cut(process, "-")
		return name
	}
	return ownSpace
}

// ip is the address that stands for the last byte of one on loopback.
func (s *spaces) ip(last int) string {
	name := ownSpace
	switch {
	case last >= addressProgram:
		name = fmt.Sprint("c", last-addressProgram+1)
	case last >= 12:
		name = fmt.Sprint("n", (last-10)/2)
	}
	return s.net.Addr(name).String()
}

// impose makes holes, until lift is called. Several conditions may make the same one.
func (s *spaces) impose(pairs ...pair) (lift func()) {
	s.count(pairs, 1)
	return func() { s.count(pairs, -1) }
}

func (s *spaces) count(pairs []pair, by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range pairs {
		p = pair{spaceOf(p.from), spaceOf(p.to)}
		s.holes[p] += by
		do := s.net.Hole
		if s.holes[p] == 0 {
			do = s.net.Mend
		}
		if err := do(p.from, p.to); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

// possible are the kinds that need no proxies.
func (s *spaces) possible(all []kind) []kind {
	if s == nil {
		return all
	}
	return slices.DeleteFunc(all, func(k kind) bool { return slices.Contains(fabricKinds, k.name) })
}

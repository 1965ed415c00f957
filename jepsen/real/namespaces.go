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

// namespaces is the network of a run in network namespaces: each node and each program has one, and the run itself,
// with the audit, has another. There are no proxies. A hole is the router's, and so is a cut, which here is
// silent; what else can be done to links needs the fabric.
type namespaces struct {
	net *netns.Network

	mu    sync.Mutex // guards what follows
	holes map[linkID]int
}

const (
	// namespacesVariable names the namespaces to the run, whose process is started in one of them.
	namespacesVariable = "ZAMOK_JEPSEN_NAMESPACES"
	// spareNodesMax may be added in a run.
	spareNodesMax = 8
	ownNamespace  = "run"
)

// proxyOnlyKinds are what can be done to links only where proxies are. And a killed program is done to nobody's
// links, but here nobody knows when the last of what it sent arrived.
var proxyOnlyKinds = []string{
	"kill program", "slow links of the leader", "narrow links of the leader", "slow links of programs",
	"reset links of nodes", "reconnect storm",
}

// currentNamespaces are those that this process was started for; nil: none.
func currentNamespaces() *namespaces {
	text := os.Getenv(namespacesVariable)
	if text == "" {
		return nil
	}
	names := strings.Split(text, ",")
	return &namespaces{net: netns.Attach(names[0], names[1:]...), holes: map[linkID]int{}}
}

// rerunInNamespaces makes the namespaces and runs this program once more in one of them, with the same arguments.
func (o *options) rerunInNamespaces() (err error) {
	names := []string{ownNamespace}
	for i := range o.nodes + spareNodesMax {
		names = append(names, fmt.Sprint("n", i+1))
	}
	for i := range o.programs {
		names = append(names, fmt.Sprint("c", i+1))
	}
	net, err := netns.New(names...)
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
	p, err := start("the run", "/dev/stdout", []string{namespacesVariable + "=" + strings.Join(append([]string{net.Run()}, names...), ",")},
		"nsenter", append([]string{"--net=" + net.Path(ownNamespace), "--", self}, os.Args[1:]...)...)
	if err != nil {
		return err
	}
	for {
		select {
		case <-p.done:
			return p.err
		case s := <-signals:
			if s == syscall.SIGTERM { // of an interrupt its own process is told by the terminal
				p.signal(syscall.SIGTERM)
			}
		}
	}
}

// namespaceCommand is the command that runs a program in the namespace of the process's name.
func namespaceCommand(name, program string, args []string) (string, []string) {
	s := currentNamespaces()
	if s == nil {
		return program, args
	}
	return "nsenter", append([]string{"--net=" + s.net.Path(namespaceOf(name)), "--", program}, args...)
}

// namespaceOf is where a process runs: n1, c1-2 in c1, and all else in the run's own.
func namespaceOf(process string) string {
	if process != "" && (process[0] == 'n' || process[0] == 'c') {
		name, _, _ := strings.Cut(process, "-")
		return name
	}
	return ownNamespace
}

// ip is the address that stands for the last byte of one on loopback.
func (s *namespaces) ip(last int) string {
	name := ownNamespace
	switch {
	case last >= hostOfFirstProgram:
		name = fmt.Sprint("c", last-hostOfFirstProgram+1)
	case last >= 12:
		name = fmt.Sprint("n", (last-10)/2)
	}
	return s.net.Addr(name).String()
}

// impose makes holes, until lift is called. Several conditions may make the same one.
func (s *namespaces) impose(pairs ...linkID) (lift func()) {
	s.countHoles(pairs, 1)
	return func() { s.countHoles(pairs, -1) }
}

func (s *namespaces) countHoles(pairs []linkID, by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range pairs {
		p = linkID{namespaceOf(p.from), namespaceOf(p.to)}
		s.holes[p] += by
		do := s.net.Drop
		if s.holes[p] == 0 {
			do = s.net.Undrop
		}
		if err := do(p.from, p.to); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

// withoutProxyKinds are the kinds that need no proxies.
func (s *namespaces) withoutProxyKinds(all []faultKind) []faultKind {
	if s == nil {
		return all
	}
	return slices.DeleteFunc(all, func(k faultKind) bool { return slices.Contains(proxyOnlyKinds, k.name) })
}

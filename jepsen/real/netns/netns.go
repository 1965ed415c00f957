package netns

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"zamok/jepsen/real/claim"
)

// ErrUnsupported is the error of a machine on which namespaces can't be made. A run without them says so, loudly.
var ErrUnsupported = errors.New("network namespaces can't be made here")

// NamespacesMax is how many namespaces a network may have.
const NamespacesMax = 100

// netnsDir is where ip(8) keeps the names of namespaces.
const netnsDir = "/run/netns"

// Network is the network of a run.
type Network struct {
	run   string
	names []string // the names, as they were given

	mu    sync.Mutex // guards what follows, and the router's rules
	drops map[drop]bool
}

type drop struct{ from, to string }

const router = "router"

// New makes a namespace for each name, all of which reach each other.
func New(names ...string) (*Network, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: it needs root, and this is user %d", ErrUnsupported, os.Geteuid())
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if len(names) > NamespacesMax {
		return nil, fmt.Errorf("a network of %d namespaces was asked for, and %d are the most", len(names), NamespacesMax)
	}
	run, err := claim.Own()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if err := removeDeadRuns(); err != nil {
		return nil, err
	}
	n := &Network{run: run, names: names, drops: map[drop]bool{}}
	if err := n.create(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Attach is a network that another process has made, and will remove.
func Attach(run string, names ...string) *Network {
	return &Network{run: run, names: names, drops: map[drop]bool{}}
}

// Run is what Known needs to be told.
func (n *Network) Run() string { return n.run }

// Path is the file that stands for a namespace, as for nsenter(1).
func (n *Network) Path(name string) string { return filepath.Join(netnsDir, n.namespace(name)) }

// removeDeadRuns removes the namespaces of dead runs.
func removeDeadRuns() error {
	entries, err := os.ReadDir(netnsDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if !claim.Dead(entry.Name()) {
			continue
		}
		stays := ip("", "netns del "+entry.Name())
		if _, gone := os.Stat(filepath.Join(netnsDir, entry.Name())); gone == nil { // or another run has swept it
			err = errors.Join(err, stays)
		}
	}
	return err
}

// create makes the namespaces, and a cable from each to the router.
func (n *Network) create() error {
	if err := ip("", "netns add "+n.namespace(router)); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	var outside, routes []string
	for i, name := range n.names {
		outside = append(outside, "netns add "+n.namespace(name),
			fmt.Sprintf("link add eth0 netns %s type veth peer name %s netns %s", n.namespace(name), interfaceName(i), n.namespace(router)))
		routes = append(routes, fmt.Sprintf("addr add 10.66.%d.1/24 dev %s", i, interfaceName(i)), fmt.Sprintf("link set %s up", interfaceName(i)))
	}
	if err := errors.Join(ip("", outside...), ip(n.namespace(router), routes...)); err != nil {
		return err
	}
	for i, name := range n.names {
		err := ip(n.namespace(name), "link set lo up", fmt.Sprintf("addr add %v/24 dev eth0", n.Addr(name)), "link set eth0 up",
			fmt.Sprintf("route add default via 10.66.%d.1", i))
		if err != nil {
			return err
		}
	}
	forward := func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }
	if err := n.Do(router, forward); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsupported, err) // a container may have it read-only
	}
	return nil
}

func interfaceName(i int) string { return fmt.Sprint("to", i) }

// namespace is what ip(8) calls a namespace of this run.
func (n *Network) namespace(name string) string { return n.run + "." + name }

// Addr is the address of a namespace.
func (n *Network) Addr(name string) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 66, byte(slices.Index(n.names, name)), 2})
}

// Do does something on a thread that is in a namespace: what it opens itself is in there.
func (n *Network) Do(name string, do func() error) error {
	there, err := os.Open(n.Path(name))
	if err != nil {
		return fmt.Errorf("no namespace %s: %w", name, err)
	}
	defer there.Close()
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer home.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err = do()
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, back) // the thread stays locked, so that nobody else gets it, and ends
	}
	runtime.UnlockOSThread()
	return err
}

// Start starts a process in a namespace.
func (n *Network) Start(name string, cmd *exec.Cmd) error { return n.Do(name, cmd.Start) }

// Drop lets vanish what one sends to another.
func (n *Network) Drop(from, to string) error { return n.setDrop(drop{from, to}, true) }

// Undrop ends a hole.
func (n *Network) Undrop(from, to string) error { return n.setDrop(drop{from, to}, false) }

func (n *Network) setDrop(h drop, is bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.drops[h] == is {
		return nil
	}
	do := map[bool]string{true: "add", false: "del"}[is]
	err := ip(n.namespace(router), fmt.Sprintf("rule %s from %v to %v blackhole", do, n.Addr(h.from), n.Addr(h.to)))
	if err != nil {
		return err
	}
	n.drops[h] = is
	return nil
}

// LinkDown takes the cable of a namespace out: it is told, as a machine is.
func (n *Network) LinkDown(name string) error { return n.setLink(name, "down") }

// LinkUp puts the cable in again.
func (n *Network) LinkUp(name string) error { return n.setLink(name, "up") }

func (n *Network) setLink(name, state string) error {
	return ip(n.namespace(router), fmt.Sprintf("link set %s %s", interfaceName(slices.Index(n.names, name)), state))
}

// Heal ends all holes and puts all cables in.
func (n *Network) Heal() (err error) {
	n.mu.Lock()
	holes := slices.Collect(maps.Keys(n.drops))
	n.mu.Unlock()
	for _, h := range holes {
		err = errors.Join(err, n.setDrop(h, false))
	}
	for _, name := range n.names {
		err = errors.Join(err, n.LinkUp(name))
	}
	return err
}

// Close removes the namespaces. Processes in them continue, each in a network that nobody else reaches.
func (n *Network) Close() (err error) {
	for _, name := range append([]string{router}, n.names...) {
		if _, gone := os.Stat(n.Path(name)); gone == nil {
			err = errors.Join(err, ip("", "netns del "+n.namespace(name)))
		}
	}
	return err
}

// ip gives commands to ip(8), in a namespace if one is named.
func ip(space string, commands ...string) error {
	var args []string
	if space != "" {
		args = []string{"-n", space}
	}
	cmd := exec.Command("ip", append(args, "-batch", "-")...)
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s; of %q", strings.Join(args, " "), err, bytes.TrimSpace(said), commands)
	}
	return nil
}

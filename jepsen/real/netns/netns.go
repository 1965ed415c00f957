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

// ErrNotHere is the error of a machine on which namespaces can't be made. A run without them says so, loudly.
var ErrNotHere = errors.New("network namespaces can't be made here")

// Most is how many namespaces a network may have.
const Most = 100

// folder is where ip(8) keeps the names of namespaces.
const folder = "/run/netns"

// Net is the network of a run.
type Net struct {
	run   string
	order []string // the names, as they were given

	mu    sync.Mutex // guards what follows, and the router's rules
	holes map[hole]bool
}

type hole struct{ from, to string }

const router = "router"

// Make makes a namespace for each name, all of which reach each other.
func Make(names ...string) (*Net, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: it needs root, and this is user %d", ErrNotHere, os.Geteuid())
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotHere, err)
	}
	if len(names) > Most {
		return nil, fmt.Errorf("a network of %d namespaces was asked for, and %d are the most", len(names), Most)
	}
	run, err := claim.Own()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotHere, err)
	}
	if err := sweep(); err != nil {
		return nil, err
	}
	n := &Net{run: run, order: names, holes: map[hole]bool{}}
	if err := n.lay(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Known is a network that another process has made, and will remove.
func Known(run string, names ...string) *Net {
	return &Net{run: run, order: names, holes: map[hole]bool{}}
}

// Run is what Known needs to be told.
func (n *Net) Run() string { return n.run }

// Path is the file that stands for a namespace, as for nsenter(1).
func (n *Net) Path(name string) string { return filepath.Join(folder, n.space(name)) }

// sweep removes the namespaces of dead runs.
func sweep() error {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if !claim.Dead(entry.Name()) {
			continue
		}
		stays := ip("", "netns del "+entry.Name())
		if _, gone := os.Stat(filepath.Join(folder, entry.Name())); gone == nil { // or another run has swept it
			err = errors.Join(err, stays)
		}
	}
	return err
}

// lay makes the namespaces, and a cable from each to the router.
func (n *Net) lay() error {
	if err := ip("", "netns add "+n.space(router)); err != nil {
		return fmt.Errorf("%w: %w", ErrNotHere, err)
	}
	var outside, routes []string
	for i, name := range n.order {
		outside = append(outside, "netns add "+n.space(name),
			fmt.Sprintf("link add eth0 netns %s type veth peer name %s netns %s", n.space(name), cable(i), n.space(router)))
		routes = append(routes, fmt.Sprintf("addr add 10.66.%d.1/24 dev %s", i, cable(i)), fmt.Sprintf("link set %s up", cable(i)))
	}
	if err := errors.Join(ip("", outside...), ip(n.space(router), routes...)); err != nil {
		return err
	}
	for i, name := range n.order {
		err := ip(n.space(name), "link set lo up", fmt.Sprintf("addr add %v/24 dev eth0", n.Addr(name)), "link set eth0 up",
			fmt.Sprintf("route add default via 10.66.%d.1", i))
		if err != nil {
			return err
		}
	}
	forward := func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }
	if err := n.In(router, forward); err != nil {
		return fmt.Errorf("%w: %w", ErrNotHere, err) // a container may have it read-only
	}
	return nil
}

func cable(i int) string { return fmt.Sprint("to", i) }

// space is what ip(8) calls a namespace of this run.
func (n *Net) space(name string) string { return n.run + "." + name }

// Addr is the address of a namespace.
func (n *Net) Addr(name string) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 66, byte(slices.Index(n.order, name)), 2})
}

// In does something on a thread that is in a namespace: what it opens itself is in there.
func (n *Net) In(name string, do func() error) error {
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
func (n *Net) Start(name string, cmd *exec.Cmd) error { return n.In(name, cmd.Start) }

// Hole lets vanish what one sends to another.
func (n *Net) Hole(from, to string) error { return n.set(hole{from, to}, true) }

// Mend ends a hole.
func (n *Net) Mend(from, to string) error { return n.set(hole{from, to}, false) }

func (n *Net) set(h hole, is bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.holes[h] == is {
		return nil
	}
	do := map[bool]string{true: "add", false: "del"}[is]
	err := ip(n.space(router), fmt.Sprintf("rule %s from %v to %v blackhole", do, n.Addr(h.from), n.Addr(h.to)))
	if err != nil {
		return err
	}
	n.holes[h] = is
	return nil
}

// Unplug takes the cable of a namespace out: it is told, as a machine is.
func (n *Net) Unplug(name string) error { return n.link(name, "down") }

// Plug puts the cable in again.
func (n *Net) Plug(name string) error { return n.link(name, "up") }

func (n *Net) link(name, state string) error {
	return ip(n.space(router), fmt.Sprintf("link set %s %s", cable(slices.Index(n.order, name)), state))
}

// Heal ends all holes and puts all cables in.
func (n *Net) Heal() (err error) {
	n.mu.Lock()
	holes := slices.Collect(maps.Keys(n.holes))
	n.mu.Unlock()
	for _, h := range holes {
		err = errors.Join(err, n.set(h, false))
	}
	for _, name := range n.order {
		err = errors.Join(err, n.Plug(name))
	}
	return err
}

// Close removes the namespaces. Processes in them go on, each in a network that nobody else reaches.
func (n *Net) Close() (err error) {
	for _, name := range append([]string{router}, n.order...) {
		if _, gone := os.Stat(n.Path(name)); gone == nil {
			err = errors.Join(err, ip("", "netns del "+n.space(name)))
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

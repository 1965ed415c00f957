package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// cgroup limits the processor time of processes, by version 2 or 1 of control groups.
type cgroup struct {
	dir, limit string // of the group; the file that has its limit
	value      string // of that
	parent     string // the group to which processes return
}

// throttledPercent is how much of one processor a throttled node has, in each tenth of a second.
const throttledPercent = 5

// newCgroup makes a group, if this process is allowed to.
func newCgroup(name string) (*cgroup, error) {
	var failed error
	for _, g := range []cgroup{
		{parent: "/sys/fs/cgroup", limit: "cpu.max",
			value: fmt.Sprintf("%d 100000", throttledPercent*1000)},
		{parent: "/sys/fs/cgroup/cpu", limit: "cpu.cfs_quota_us",
			value: strconv.Itoa(throttledPercent * 1000)},
	} {
		g.dir = filepath.Join(g.parent, name)
		err := os.Mkdir(g.dir, 0o755)
		if err == nil {
			if err = writeExisting(filepath.Join(g.dir, g.limit), g.value); err == nil {
				return &g, nil
			}
			err = errors.Join(err, g.remove())
		}
		failed = errors.Join(failed, err)
	}
	return nil, failed
}

// add puts a process into the group; release puts it back.
func (g *cgroup) add(pid int) error     { return moveProcess(g.dir, pid) }
func (g *cgroup) release(pid int) error { return moveProcess(g.parent, pid) }

func moveProcess(dir string, pid int) error {
	return writeExisting(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid))
}

// writeExisting writes to a file of the kernel. It makes no file if the directory is an ordinary
// one.
func writeExisting(name, text string) error {
	file, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Close())
}

func (g *cgroup) remove() error { return os.Remove(g.dir) }

// openCgroup prepares the throttling of nodes. If that is forbidden the run continues without, and
// its report says so.
func (c *cluster) openCgroup() {
	g, err := newCgroup(fmt.Sprintf("zamok-jepsen-%d", os.Getpid()))
	if err != nil {
		c.logf("SKIPPED: throttled processors: %v", err)
		c.notes = append(c.notes, fmt.Sprintf("No throttled processors: %v.", err))
	}
	c.throttled = g
}

// throttle lets nodes run for a small part of the time.
func (t *injection) throttle(nodes []*node) (err error) {
	for _, n := range nodes {
		p := n.runningProcess()
		if p == nil {
			continue
		}
		err = errors.Join(err, t.throttled.add(p.cmd.Process.Pid))
		defer func() { // unless it has ended
			if p.alive() {
				if err := t.throttled.release(p.cmd.Process.Pid); err != nil {
					t.logf("%s is still throttled: %v", n.id, err)
				}
			}
		}()
	}
	t.wait(3 * t.duration)
	return err
}

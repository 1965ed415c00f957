package server

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ticksPerSecond is the unit of /proc's times on Linux (USER_HZ, the same on every architecture that
// Go knows).
const ticksPerSecond = 100

// CPU is the processor time that the system has used so far, in seconds.
func (c *Cluster) CPU() (float64, error) {
	tree, err := c.tree()
	if err != nil {
		return 0, err
	}
	total := c.spent // of processes that were killed
	for _, s := range tree {
		total += s.seconds
	}
	return total, nil
}

// Memory is what the system uses now, in bytes.
func (c *Cluster) Memory() (float64, error) {
	tree, err := c.tree()
	if err != nil {
		return 0, err
	}
	total := 0.0
	for pid := range tree {
		total += proportional(pid)
	}
	return total, nil
}

// stat is one line of /proc/PID/stat.
type stat struct {
	parent  int
	seconds float64 // its own and those of children that ended and were waited for
}

// tree is the processes of the cluster and all below them.
func (c *Cluster) tree() (map[int]stat, error) {
	all, err := stats()
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for pid, s := range all {
		children[s.parent] = append(children[s.parent], pid)
	}
	tree := map[int]stat{}
	var walk func(pid int)
	walk = func(pid int) {
		if s, ok := all[pid]; ok {
			tree[pid] = s
		}
		for _, child := range children[pid] {
			walk(child)
		}
	}
	for _, p := range c.processes {
		walk(p.pid())
	}
	return tree, nil
}

func stats() (map[int]stat, error) {
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	all := map[int]stat{}
	for _, folder := range folders {
		text, err := os.ReadFile(folder + "/stat")
		if err != nil {
			continue // it has just ended
		}
		pid, err := strconv.Atoi(filepath.Base(folder))
		if err != nil {
			return nil, err
		}
		s, err := parseStat(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", folder, err)
		}
		all[pid] = s
	}
	return all, nil
}

// parseStat reads the fields behind the command's name, which may itself hold blanks and brackets.
func parseStat(text string) (stat, error) {
	fields := strings.Fields(text[strings.LastIndex(text, ")")+1:])
	if len(fields) < 15 {
		return stat{}, fmt.Errorf("%d fields", len(fields))
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return stat{}, err
	}
	ticks := 0
	for _, f := range fields[11:15] { // utime, stime, cutime, cstime
		n, err := strconv.Atoi(f)
		if err != nil {
			return stat{}, err
		}
		ticks += n
	}
	return stat{parent: parent, seconds: float64(ticks) / ticksPerSecond}, nil
}

func proportional(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0 // it has just ended
	}
	for line := range bytes.Lines(text) {
		if fields := bytes.Fields(line); len(fields) > 1 && string(fields[0]) == "Pss:" {
			kilobytes, err := strconv.ParseFloat(string(fields[1]), 64)
			if err == nil {
				return kilobytes * 1024
			}
		}
	}
	return 0
}

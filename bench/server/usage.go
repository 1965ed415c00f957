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
	tree, err := c.processTree()
	if err != nil {
		return 0, err
	}
	total := c.killedCPU // of processes that were killed
	for pid, s := range tree {
		total += s.preciseCPU(pid)
	}
	return total, nil
}

// Memory is what the system uses now, in bytes.
func (c *Cluster) Memory() (float64, error) {
	tree, err := c.processTree()
	if err != nil {
		return 0, err
	}
	total := 0.0
	for pid := range tree {
		total += proportionalSetSize(pid)
	}
	return total, nil
}

// procStat is one line of /proc/PID/stat.
type procStat struct {
	parent   int
	threads  int
	cpu      float64 // seconds, rounded down to ticks
	childCPU float64 // of those that ended and were waited for
}

// preciseCPU is the processor time of a process. A tick is 10 ms, and a thousand processes that each used a
// little less than one would seem to have used nothing; so it is asked for in nanoseconds where the kernel
// tells, which is per thread.
func (s procStat) preciseCPU(pid int) float64 {
	if s.threads == 1 {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
		if fields := strings.Fields(string(text)); err == nil && len(fields) > 0 {
			if nanoseconds, err := strconv.ParseFloat(fields[0], 64); err == nil {
				return nanoseconds/1e9 + s.childCPU
			}
		}
	}
	return s.cpu + s.childCPU
}

// processTree is the processes of the cluster and all below them.
func (c *Cluster) processTree() (map[int]procStat, error) {
	all, err := allProcStats()
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for pid, s := range all {
		children[s.parent] = append(children[s.parent], pid)
	}
	tree := map[int]procStat{}
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

func allProcStats() (map[int]procStat, error) {
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	all := map[int]procStat{}
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
func parseStat(text string) (procStat, error) {
	fields := strings.Fields(text[strings.LastIndex(text, ")")+1:])
	if len(fields) < 18 {
		return procStat{}, fmt.Errorf("%d fields", len(fields))
	}
	numbers := map[int]int{}
	for _, i := range []int{1, 11, 12, 13, 14, 17} { // parent, utime, stime, cutime, cstime, threads
		n, err := strconv.Atoi(fields[i])
		if err != nil {
			return procStat{}, err
		}
		numbers[i] = n
	}
	return procStat{parent: numbers[1], threads: numbers[17],
		cpu:      float64(numbers[11]+numbers[12]) / ticksPerSecond,
		childCPU: float64(numbers[13]+numbers[14]) / ticksPerSecond}, nil
}

func proportionalSetSize(pid int) float64 {
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

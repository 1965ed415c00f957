package server

import "github.com/prometheus/procfs"

// CPU is the processor time that the system has used so far, in seconds.
func (c *Cluster) CPU() (float64, error) {
	total := c.killedCPU // of processes that were killed
	err := c.forEachProcess(func(p procfs.Proc, s procfs.ProcStat) { total += cpuSeconds(p, s) })
	return total, err
}

// Memory is what the system uses now, in bytes; memory that processes share is divided among them.
func (c *Cluster) Memory() (float64, error) {
	total := 0.0
	err := c.forEachProcess(func(p procfs.Proc, _ procfs.ProcStat) {
		if maps, err := p.ProcSMapsRollup(); err == nil { // else it has just ended
			total += float64(maps.Pss)
		}
	})
	return total, err
}

// cpuSeconds is the processor time of a process and of its children that were waited for. Stat counts in ticks
// of 10 ms, rounded down: a thousand processes that each used a little less would seem to have used nothing. The
// scheduler counts nanoseconds, but per thread, so its figure is used for processes of one thread.
func cpuSeconds(p procfs.Proc, s procfs.ProcStat) float64 {
	const ticksPerSecond = 100 // USER_HZ, the same on every architecture that Go knows
	children := float64(s.CUTime+s.CSTime) / ticksPerSecond
	if sched, err := p.Schedstat(); err == nil && s.NumThreads == 1 {
		return float64(sched.RunningNanoseconds)/1e9 + children
	}
	return s.CPUTime() + children
}

// forEachProcess calls f for the processes of the cluster and all of their descendants.
func (c *Cluster) forEachProcess(f func(procfs.Proc, procfs.ProcStat)) error {
	all, err := procfs.AllProcs()
	if err != nil {
		return err
	}
	stats, children := map[int]procfs.ProcStat{}, map[int][]procfs.Proc{}
	for _, p := range all {
		if s, err := p.Stat(); err == nil { // else it has just ended
			stats[p.PID] = s
			children[s.PPID] = append(children[s.PPID], p)
		}
	}
	var walk func(p procfs.Proc)
	walk = func(p procfs.Proc) {
		f(p, stats[p.PID])
		for _, child := range children[p.PID] {
			walk(child)
		}
	}
	for _, p := range c.processes {
		if root, err := procfs.NewProc(p.pid()); err == nil {
			walk(root)
		}
	}
	return nil
}

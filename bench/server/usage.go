package server

import "github.com/prometheus/procfs"

// Usage is how much of the machine the system has used, with all descendants of its processes.
type Usage struct {
	CPU    float64 // seconds of processor time so far
	Memory float64 // bytes now; memory that processes share is divided among them
	// seconds of processor time of the whole machine so far, with what the hypervisor took
	Busy float64
}

// Usage reads the usage from the kernel.
func (c *Cluster) Usage() (Usage, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return Usage{}, err
	}
	stats, children := map[int]procfs.ProcStat{}, map[int][]procfs.Proc{}
	for _, p := range all {
		if s, err := p.Stat(); err == nil { // else it has just ended
			stats[p.PID] = s
			children[s.PPID] = append(children[s.PPID], p)
		}
	}
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return Usage{}, err
	}
	machine, err := fs.Stat()
	if err != nil {
		return Usage{}, err
	}
	t := machine.CPUTotal
	u := Usage{CPU: c.killedCPU, Busy: t.User + t.Nice + t.System + t.IRQ + t.SoftIRQ + t.Steal}
	var add func(p procfs.Proc)
	add = func(p procfs.Proc) {
		u.CPU += cpuSeconds(p, stats[p.PID])
		if maps, err := p.ProcSMapsRollup(); err == nil { // else it has just ended
			u.Memory += float64(maps.Pss)
		}
		for _, child := range children[p.PID] {
			add(child)
		}
	}
	for _, p := range c.processes {
		if root, err := procfs.NewProc(p.pid()); err == nil {
			add(root)
		}
	}
	return u, nil
}

// cpuSeconds is the processor time of a process and of its children that have ended. Stat counts in
// ticks of 10 ms, rounded down: for a thousand processes that each used a little less it would be
// zero. The scheduler counts nanoseconds, but per thread, so its figure is used for processes of
// one thread.
func cpuSeconds(p procfs.Proc, s procfs.ProcStat) float64 {
	const ticksPerSecond = 100 // USER_HZ, the same on every architecture that Go knows
	children := float64(s.CUTime+s.CSTime) / ticksPerSecond
	if sched, err := p.Schedstat(); err == nil && s.NumThreads == 1 {
		return float64(sched.RunningNanoseconds)/1e9 + children
	}
	return s.CPUTime() + children
}

package main

import (
	"cmp"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"

	"zamok/api"
	"zamok/api/conns"
	"zamok/api/gate/limits"
)

// callBytes is about what a held call or a session's stream takes, its goroutines included.
const callBytes = 16 << 10

// memoryLimits are the limits that follow from the memory limit: the defaults, or less.
type memoryLimits struct {
	unread int64 // bytes of NodeConfig.UnreadBytesMax
	conns  int   // on each of the two ports
	calls  int   // session streams, and as many held calls
}

// defaultLimits are the defaults.
var defaultLimits = memoryLimits{unread: api.UnreadBytesDefault, conns: api.ConnsDefault,
	calls: limits.CallsDefault}

// apply sets the limits that the operator has not set.
func (m memoryLimits) apply(cfg *api.NodeConfig) {
	cfg.UnreadBytesMax, cfg.ConnsMax = m.unread, cmp.Or(cfg.ConnsMax, m.conns)
	for _, name := range []string{"streams", "held-calls"} {
		if _, set := cfg.Limits[name]; !set {
			cfg.Limits[name] = m.calls
		}
	}
}

// limitMemory sets Go's memory limit to nine tenths of the memory limit of the process's cgroup
// (MemoryMax= of a unit, the limit of a container), unless the environment has GOMEMLIMIT. Of the
// limit, what clients leave unread gets at most an eighth, and so do the connections of each port,
// session streams, and held calls.
func limitMemory(log *slog.Logger, machine fs.FS) (m memoryLimits) {
	limit := debug.SetMemoryLimit(-1) // that of GOMEMLIMIT
	if allowed := cgroupMemory(machine); allowed > 0 && os.Getenv("GOMEMLIMIT") == "" {
		limit = allowed / 10 * 9
		debug.SetMemoryLimit(limit)
	}
	eighth := limit / 8
	number := func(each int64, standard int) int {
		return int(min(max(eighth/each, 1), int64(standard)))
	}
	m = memoryLimits{
		unread: min(eighth, defaultLimits.unread),
		conns:  number(conns.ConnBytes, defaultLimits.conns),
		calls:  number(callBytes, defaultLimits.calls),
	}
	if m != defaultLimits {
		log.Info("limits of connections, streams and bytes are below their defaults because of "+
			"the memory limit", "memory_limit", limit,
			"max_connections", m.conns, "streams", m.calls, "held_calls", m.calls, "unread_bytes",
			m.unread)
	}
	return m
}

// cgroupMemory is the lowest memory limit of the process's cgroups; 0: none. It reads cgroups of
// version 2, on Linux.
func cgroupMemory(machine fs.FS) (least int64) {
	groups, _ := fs.ReadFile(machine, "proc/self/cgroup")
	_, group, found := strings.Cut(string(groups), "0::")
	if !found {
		return 0
	}
	group, _, _ = strings.Cut(group, "\n")
	for dir := path.Join("/", group); ; dir = path.Dir(dir) {
		text, _ := fs.ReadFile(machine, path.Join("sys/fs/cgroup", dir, "memory.max"))
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil &&
			(least == 0 || n < least) {
			least = n
		}
		if dir == "/" {
			return least
		}
	}
}

package main

import (
	"io/fs"
	"log/slog"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// limitMemory sets Go's memory limit to nine tenths of the memory limit of the process's cgroup (MemoryMax= of a unit, the
// limit of a container), unless the environment has GOMEMLIMIT. It returns the budget for unread and incomplete bytes of
// clients: an eighth of the limit; 0: the default, which is the maximum.
func limitMemory(log *slog.Logger, machine fs.FS) (unread int64) {
	limit := debug.SetMemoryLimit(-1) // that of GOMEMLIMIT
	if allowed := cgroupMemory(machine); allowed > 0 && os.Getenv("GOMEMLIMIT") == "" {
		limit = allowed / 10 * 9
		debug.SetMemoryLimit(limit)
	}
	if unread = limit / 8; unread >= 64<<20 {
		return 0
	}
	log.Info("low memory limit: the budget for unread answers and incomplete requests is reduced", "memory_limit", limit, "unread_bytes", unread)
	return unread
}

// cgroupMemory is the lowest memory limit of the process's cgroups; 0: none. It reads cgroups of version 2, on Linux.
func cgroupMemory(machine fs.FS) (least int64) {
	groups, _ := fs.ReadFile(machine, "proc/self/cgroup")
	_, group, found := strings.Cut(string(groups), "0::")
	if !found {
		return 0
	}
	group, _, _ = strings.Cut(group, "\n")
	for dir := path.Join("/", group); ; dir = path.Dir(dir) {
		text, _ := fs.ReadFile(machine, path.Join("sys/fs/cgroup", dir, "memory.max"))
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && (least == 0 || n < least) {
			least = n
		}
		if dir == "/" {
			return least
		}
	}
}

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

// limitMemory makes Go's collector work harder as the memory comes to an end that the process may use: nine tenths of what
// its cgroup allows, as MemoryMax= of a unit or the limit of a container does, unless the environment has GOMEMLIMIT. It
// returns how much clients may leave unread or incomplete: an eighth of that; 0: the default, which is the most.
func limitMemory(log *slog.Logger, machine fs.FS) (unread int64) {
	limit := debug.SetMemoryLimit(-1) // that of GOMEMLIMIT
	if allowed := cgroupMemory(machine); allowed > 0 && os.Getenv("GOMEMLIMIT") == "" {
		limit = allowed / 10 * 9
		debug.SetMemoryLimit(limit)
	}
	if unread = limit / 8; unread >= 64<<20 {
		return 0
	}
	log.Info("the memory of this process is limited: clients may leave less unread", "limit", limit, "unread", unread)
	return unread
}

// cgroupMemory is the least that a cgroup of the process allows; 0: none limits it. Only Linux has them, in their second
// version.
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

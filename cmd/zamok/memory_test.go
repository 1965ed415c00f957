package main

import (
	"log/slog"
	"runtime/debug"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
)

// The limit of the process follows from its cgroups, the least of them, and what clients may leave unread from that.
func TestTheMemoryLimitFollowsFromTheCgroup(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	machine := func(unit, slice string) fstest.MapFS {
		return fstest.MapFS{
			"proc/self/cgroup": {Data: []byte("0::/system.slice/zamok.service\n")},
			"sys/fs/cgroup/system.slice/zamok.service/memory.max": {Data: []byte(unit + "\n")},
			"sys/fs/cgroup/system.slice/memory.max":               {Data: []byte(slice + "\n")},
		}
	}
	log := slog.New(slog.DiscardHandler)
	t.Setenv("GOMEMLIMIT", "")
	assert.Zero(t, limitMemory(log, machine("max", "max")))
	assert.Equal(t, before, debug.SetMemoryLimit(-1), "nothing limits it")
	assert.EqualValues(t, 400_000_000/10*9/8, limitMemory(log, machine("max", "400000000")))
	assert.EqualValues(t, 400_000_000/10*9/8, limitMemory(log, machine("400000000", "1000000000")))
	assert.EqualValues(t, 360_000_000, debug.SetMemoryLimit(-1))
	assert.Zero(t, limitMemory(log, machine("8000000000", "max")), "the default")
	assert.EqualValues(t, 7_200_000_000, debug.SetMemoryLimit(-1))
	t.Setenv("GOMEMLIMIT", "300000000")
	debug.SetMemoryLimit(300_000_000)
	assert.EqualValues(t, 300_000_000/8, limitMemory(log, machine("400000000", "max")), "the environment has the last word")
	assert.EqualValues(t, 300_000_000, debug.SetMemoryLimit(-1))
	debug.SetMemoryLimit(before)
	assert.Zero(t, limitMemory(log, fstest.MapFS{}), "another system")
}

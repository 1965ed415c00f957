package main

import (
	"log/slog"
	"runtime/debug"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"

	"zamok/api"
	"zamok/api/conns"
	"zamok/api/gate/limits"
)

// The limit of the process follows from its cgroups, the least of them, and what clients may leave
// unread from that.
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
	assert.Equal(t, defaultLimits, limitMemory(log, machine("max", "max")))
	assert.Equal(t, before, debug.SetMemoryLimit(-1), "nothing limits it")
	const low = 400_000_000 / 10 * 9 / 8
	small := memoryLimits{unread: low, conns: low / conns.ConnBytes, calls: low / callBytes}
	assert.Equal(t, small, limitMemory(log, machine("max", "400000000")))
	assert.Equal(t, small, limitMemory(log, machine("400000000", "1000000000")))
	assert.EqualValues(t, 360_000_000, debug.SetMemoryLimit(-1))
	assert.Equal(t, memoryLimits{unread: 64 << 20, conns: 900_000_000 / conns.ConnBytes,
		calls: 900_000_000 / callBytes},
		limitMemory(log, machine("8000000000", "max")), "more than the bytes need")
	assert.EqualValues(t, 7_200_000_000, debug.SetMemoryLimit(-1))
	assert.Equal(t, defaultLimits, limitMemory(log, machine("16000000000", "max")), "the defaults")
	t.Setenv("GOMEMLIMIT", "300000000")
	debug.SetMemoryLimit(300_000_000)
	assert.EqualValues(t, 300_000_000/8, limitMemory(log, machine("400000000", "max")).unread,
		"the environment has the last word")
	assert.EqualValues(t, 300_000_000, debug.SetMemoryLimit(-1))
	debug.SetMemoryLimit(before)
	assert.Equal(t, defaultLimits, limitMemory(log, fstest.MapFS{}), "another system")
}

// What the operator has set stays.
func TestTheMemoryLimitChangesNoFlag(t *testing.T) {
	cfg := api.NodeConfig{ConnsMax: 7, Limits: limits.Set{"streams": 9}}
	memoryLimits{unread: 1, conns: 2, calls: 3}.apply(&cfg)
	assert.Equal(t, 7, cfg.ConnsMax)
	assert.Equal(t, limits.Set{"streams": 9, "held-calls": 3}, cfg.Limits)
	cfg = api.NodeConfig{Limits: limits.Set{}}
	memoryLimits{conns: 2, calls: 3}.apply(&cfg)
	assert.Equal(t, 2, cfg.ConnsMax)
	assert.Equal(t, limits.Set{"streams": 3, "held-calls": 3}, cfg.Limits)
}

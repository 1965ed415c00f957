package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"zamok/bench/measure"
	"zamok/bench/server"
	"zamok/cmd/zamok/loadgen"
)

// describeRun describes the machine and the versions of a run.
func describeRun(ctx context.Context, c *config) (run measure.Run, err error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return run, err
	}
	run = measure.Run{
		Begun:    time.Now().UTC().Format("2006-01-02 15:04 UTC"),
		Machine:  "unknown",
		Cores:    runtime.NumCPU(),
		Memory:   "unknown",
		Kernel:   firstLineOf(ctx, "uname", "-r"),
		Disk:     firstLineOf(ctx, "stat", "-f", "-c", "%T", c.dir),
		Versions: programVersions(ctx, c.programs),
		Rounds:   c.rounds,
		Seconds:  c.window.Seconds(),
	}
	if cpus, err := fs.CPUInfo(); err == nil && len(cpus) > 0 {
		run.Machine = cpus[0].ModelName
	}
	if memory, err := fs.Meminfo(); err == nil && memory.MemTotal != nil {
		run.Memory = fmt.Sprintf("%.0f GiB", float64(*memory.MemTotal)/(1<<20))
	}
	return run, nil
}

// firstLineOf is the first line that a program prints, to either output; "" if it fails.
func firstLineOf(ctx context.Context, program string, args ...string) string {
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line)
}

// programVersions are the versions of the programs, and of the libraries in this build.
func programVersions(ctx context.Context, p server.Programs) map[string]string {
	version := func(program string, args ...string) string {
		return firstLineOf(ctx, program, args...)
	}
	found := map[string]string{
		"Go":        runtime.Version(),
		"zamok":     version("git", "describe", "--always", "--dirty"),
		"etcd":      strings.TrimPrefix(version(p.Etcd, "--version"), "etcd Version: "),
		"ZooKeeper": version("dpkg-query", "-W", "-f", "${Version}", "zookeeper"),
		"Java":      version("java", "-version"),
		"Redis":     version("dpkg-query", "-W", "-f", "${Version}", "redis-server"),
	}
	if paths, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres"); len(paths) > 0 {
		found["PostgreSQL"] = strings.TrimPrefix(version(slices.Max(paths), "--version"),
			"postgres (PostgreSQL) ")
	}
	if build, ok := debug.ReadBuildInfo(); ok {
		libraries := []string{"go.etcd.io/etcd/client/v3", "github.com/go-zookeeper/zk",
			"github.com/go-redsync/redsync/v4",
			"github.com/redis/go-redis/v9", "github.com/jackc/pgx/v5", "google.golang.org/grpc"}
		for _, m := range build.Deps {
			if slices.Contains(libraries, m.Path) {
				found[m.Path] = m.Version
			}
		}
	}
	maps.DeleteFunc(found, func(_, version string) bool { return version == "" })
	return found
}

// fsyncTimes measures small writes with fsync. The systems depend on these to different degrees, by
// how many of them are in a row in a commit, so the times are measured before each pass and
// recorded with the results.
func fsyncTimes(dir string) (*loadgen.Histogram, error) {
	const samples, sampleBytes = 100, 4096
	file, err := os.CreateTemp(dir, "fsync-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	took := &loadgen.Histogram{}
	for range samples {
		began := time.Now()
		if _, err := file.Write(make([]byte, sampleBytes)); err != nil {
			return nil, err
		}
		if err := file.Sync(); err != nil {
			return nil, err
		}
		took.Add(time.Since(began))
	}
	return took, nil
}

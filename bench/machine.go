package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"zamok/bench/measure"
	"zamok/bench/server"
)

// describeRun tells where and with what is measured.
func describeRun(ctx context.Context, c *config) (measure.Run, error) {
	disk, err := describeDisk(c.dir)
	if err != nil {
		return measure.Run{}, err
	}
	return measure.Run{
		Begun:    time.Now().UTC().Format("2006-01-02 15:04 UTC"),
		Machine:  procField("/proc/cpuinfo", "model name"),
		Cores:    runtime.NumCPU(),
		Memory:   memoryText(),
		Kernel:   firstLine("/proc/sys/kernel/osrelease"),
		Disk:     disk,
		Versions: programVersions(ctx, c.programs),
		Rounds:   c.rounds,
		Seconds:  c.window.Seconds(),
	}, nil
}

// procField reads "name : value" from a file of /proc.
func procField(path, name string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func memoryText() string {
	kilobytes, err := strconv.ParseFloat(strings.TrimSuffix(procField("/proc/meminfo", "MemTotal"), " kB"), 64)
	if err != nil {
		return "unknown"
	}
	return fmt.Sprintf("%.0f GiB", kilobytes/(1<<20))
}

func firstLine(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}

// programVersions asks the programs, and the build for the libraries.
func programVersions(ctx context.Context, p server.Programs) map[string]string {
	say := func(program string, args ...string) string {
		out, err := exec.CommandContext(ctx, program, args...).CombinedOutput() // java tells its version on standard error
		if err != nil {
			return ""
		}
		line, _, _ := strings.Cut(string(out), "\n")
		return strings.TrimSpace(line)
	}
	found := map[string]string{
		"Go":        runtime.Version(),
		"zamok":     say("git", "describe", "--always", "--dirty"),
		"etcd":      strings.TrimPrefix(say(p.Etcd, "--version"), "etcd Version: "),
		"ZooKeeper": say("dpkg-query", "-W", "-f", "${Version}", "zookeeper"),
		"Java":      say("java", "-version"),
		"Redis":     say("dpkg-query", "-W", "-f", "${Version}", "redis-server"),
	}
	if paths, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres"); len(paths) > 0 {
		found["PostgreSQL"] = strings.TrimPrefix(say(slices.Max(paths), "--version"), "postgres (PostgreSQL) ")
	}
	if build, ok := debug.ReadBuildInfo(); ok {
		libraries := []string{"go.etcd.io/etcd/client/v3", "github.com/go-zookeeper/zk", "github.com/go-redsync/redsync/v4",
			"github.com/redis/go-redis/v9", "github.com/jackc/pgx/v5", "google.golang.org/grpc"}
		for _, m := range build.Deps {
			if slices.Contains(libraries, m.Path) {
				found[m.Path] = m.Version
			}
		}
	}
	for name, version := range found {
		if version == "" {
			delete(found, name)
		}
	}
	return found
}

const (
	fsyncSamples     = 50
	fsyncSampleBytes = 4096
)

// describeDisk names the file system and how long one small write with a flush takes on it.
func describeDisk(dir string) (string, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return "", err
	}
	kind := fmt.Sprintf("file system %#x", fs.Type)
	for magic, name := range map[int64]string{0xEF53: "ext4", 0x58465342: "xfs", 0x9123683E: "btrfs", 0x01021994: "tmpfs (nothing is durable!)", 0x794C7630: "overlayfs"} {
		if int64(fs.Type) == magic {
			kind = name
		}
	}
	file, err := os.Create(filepath.Join(dir, "flush"))
	if err != nil {
		return "", err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	var took []time.Duration
	for range fsyncSamples {
		began := time.Now()
		if _, err := file.Write(make([]byte, fsyncSampleBytes)); err != nil {
			return "", err
		}
		if err := file.Sync(); err != nil {
			return "", err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return fmt.Sprintf("%s; a write of 4 KiB with fsync takes %v (median of %d; p95 %v)", kind,
		measure.Percentile(took, 0.5).Round(time.Microsecond), fsyncSamples, measure.Percentile(took, 0.95).Round(time.Microsecond)), nil
}

package disk

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// runPrefix begins the name of every run.
const runPrefix = "zamok-run-"

// ownRun is the name of this process's run.
func ownRun() (string, error) { return runNameOf(os.Getpid()) }

func runNameOf(pid int) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The second field is a name in brackets, which may hold anything; the start is the 22nd.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return "", fmt.Errorf("/proc/%d/stat is not as expected: %s", pid, text)
	}
	return fmt.Sprintf("%s%d-%s", runPrefix, pid, fields[19]), nil
}

// runIsDead reports whether a name is that of a run that has ended.
func runIsDead(name string) bool {
	var pid int
	if _, err := fmt.Sscanf(name, runPrefix+"%d-", &pid); err != nil {
		return false // not ours
	}
	now, err := runNameOf(pid)
	return errors.Is(err, os.ErrNotExist) || err == nil && now != name
}

// unmountDeadRuns takes off the mounts of dead runs.
func unmountDeadRuns() error {
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer mounts.Close()
	var errs []error
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		// 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
		before, after, found := strings.Cut(lines.Text(), " - ")
		place, kind := strings.Fields(before), strings.Fields(after)
		if !found || len(place) < 5 || len(kind) < 2 || !runIsDead(kind[1]) {
			continue
		}
		// EINVAL: it is no mount any more. Another run sweeps at the same moment.
		if err := unix.Unmount(unescapeMountPath(place[4]), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("a mount of a dead run stays on %s: %w; take it off with umount -l", place[4], err))
		}
	}
	return errors.Join(errs...)
}

// unescapeMountPath is a path as mountinfo writes it: spaces and the like in octal.
func unescapeMountPath(path string) string {
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		var c byte
		if path[i] == '\\' && i+4 <= len(path) {
			if _, err := fmt.Sscanf(path[i+1:i+4], "%o", &c); err == nil {
				b.WriteByte(c)
				i += 3
				continue
			}
		}
		b.WriteByte(path[i])
	}
	return b.String()
}

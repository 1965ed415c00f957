package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestTimerSlack: a server's threads may be woken late, unless somebody chose how late. Its process remains the same one.
func TestTimerSlack(t *testing.T) {
	if os.Getenv("ZAMOK_TEST_SLACK") != "" {
		lengthenTimerSlack()
		slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
		require.NoError(t, err)
		fmt.Printf("process %d of %s has %d\n", os.Getpid(), strings.Join(os.Args[2:], " "), slack)
		return
	}
	runtime.LockOSThread() // the child inherits from the thread that begins it; this one ends with the test
	for inherited, want := range map[uintptr]int{kernelSlack: timerSlack, 70_000: 70_000} {
		require.NoError(t, unix.Prctl(unix.PR_SET_TIMERSLACK, inherited, 0, 0, 0))
		child := exec.Command(os.Args[0], "-test.run=^TestTimerSlack$", "a", "b c")
		child.Env = append(os.Environ(), "ZAMOK_TEST_SLACK=1")
		out, err := child.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), fmt.Sprintf("process %d of a b c has %d\n", child.Process.Pid, want))
	}
}

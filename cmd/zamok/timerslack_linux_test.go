package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestTimerSlack: a server's threads may be woken late, unless somebody chose how late. Its process
// remains the same one.
func TestTimerSlack(t *testing.T) {
	if os.Getenv("ZAMOK_TEST_SLACK") != "" {
		lengthenTimerSlack()
		fmt.Printf("process %d of %s has %d\n", os.Getpid(), strings.Join(os.Args[2:], " "),
			currentTimerSlack())
		return
	}
	// the child inherits from the thread that begins it; this one ends with the test
	runtime.LockOSThread()
	for name, c := range map[string]struct {
		inherited   uintptr
		environment string
		want        int
	}{
		"the kernel's":   {kernelSlack, "", timerSlack},
		"somebody's":     {70_000, "", 70_000},
		"not to be done": {kernelSlack, timerSlackVariable + "=no", kernelSlack},
		"not to be again": {kernelSlack, timerSlackVariable + "=" + strconv.Itoa(timerSlack),
			kernelSlack},
	} {
		require.NoError(t, unix.Prctl(unix.PR_SET_TIMERSLACK, c.inherited, 0, 0, 0))
		child := exec.Command(os.Args[0], "-test.run=^TestTimerSlack$", "a", "b c")
		child.Env = append(os.Environ(), "ZAMOK_TEST_SLACK=1", c.environment)
		out, err := child.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out),
			fmt.Sprintf("process %d of a b c has %d\n", child.Process.Pid, c.want), name)
	}
	require.NoError(t, unix.Prctl(unix.PR_SET_TIMERSLACK, kernelSlack, 0, 0, 0))
	server := startZamok(t, nil, "server", "--id", "n1", "--data", t.TempDir(), "--cluster",
		"n1=127.0.0.1:"+strconv.Itoa(freePorts(t)),
		"--listen", "127.0.0.1:0", "--http", "")
	awaitCondition(t, "the server has executed itself", func() bool {
		environment, err := os.ReadFile(
			filepath.Join("/proc", strconv.Itoa(server.Process.Pid), "environ"))
		return err == nil && bytes.Contains(environment,
			[]byte(timerSlackVariable+"="+strconv.Itoa(timerSlack)))
	})
}

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The demo runs, and each act ends as announced.
func TestDemoScenarios(t *testing.T) {
	if testing.Short() {
		t.Skip("plays in real time, for twenty seconds: run it without -short, or make demo")
	}
	dir := t.TempDir()
	out, err := exec.Command("go", "build", "-o", dir, "../zamok", ".").CombinedOutput()
	require.NoError(t, err, string(out))
	story := exec.Command(filepath.Join(dir, "demo"), filepath.Join(dir, "zamok"))
	story.Env = append(os.Environ(), pauseVariable+"=4s") // other tests run beside it
	out, err = story.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "exactly one got the money")
	t.Logf("%s", out)
}

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each act of the demo ends as announced.
func TestDemoScenarios(t *testing.T) {
	if testing.Short() {
		t.Skip("takes twenty seconds of real time: run it without -short, or make demo")
	}
	dir := t.TempDir()
	out, err := exec.Command("go", "build", "-o", dir, "../zamok", ".").CombinedOutput()
	require.NoError(t, err, string(out))
	demo := exec.Command(filepath.Join(dir, "demo"), filepath.Join(dir, "zamok"))
	demo.Env = append(os.Environ(), pauseVariable+"=4s") // other tests run beside it
	out, err = demo.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "exactly one paid out")
	t.Logf("%s", out)
}

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// The page is what the report makes of the results that it names: no number is typed by hand.
func TestBenchmarksPageIsGenerated(t *testing.T) {
	page, err := os.ReadFile("../docs/benchmarks.md")
	require.NoError(t, err)
	source := regexp.MustCompile(`\(\.\./bench/(results/[^)]+\.jsonl)\)`).FindSubmatch(page)
	require.NotNil(t, source, "the page does not name its results")
	folder := t.TempDir()
	require.NoError(t, commandReport([]string{"-docs", folder, string(source[1])}))
	for _, name := range []string{"benchmarks.md", "benchmarks/own.svg", "benchmarks/one.svg",
		"benchmarks/wait.svg", "benchmarks/timeline.svg"} {
		want, err := os.ReadFile(filepath.Join(folder, name))
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join("../docs", name))
		require.NoError(t, err)
		require.Equal(t, string(want), string(got), "%s differs; see bench report in doc.go", name)
	}
}

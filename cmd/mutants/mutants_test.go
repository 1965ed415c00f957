package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each patch of this tree applies. make mutants takes minutes and checks that each bug is caught.
func TestEveryPatchApplies(t *testing.T) {
	_, mutants := find(t, "../..", ".")
	for _, m := range mutants {
		assert.NoError(t, m.stale, m.name)
	}
}

// The table of known.md lists the bugs with names, each with its test and its time.
func TestReadmeTableIsComplete(t *testing.T) {
	_, mutants := find(t, "../..", ".")
	text, err := os.ReadFile("known.md")
	require.NoError(t, err)
	listed := 0
	for _, m := range mutants {
		if m.shortName != "" {
			listed++
			assert.Regexp(t, "(?m)^"+regexp.QuoteMeta(m.tableRow())+` \d+m?\d*s \|$`, string(text),
				"go run ./cmd/mutants -known makes the table")
		}
	}
	assert.GreaterOrEqual(t, listed, 25)
	assert.Equal(t, listed, strings.Count(string(text), ".patch) |"), "a row without a bug")
}

// Each verdict occurs, for a module with a bug for each.
func TestEachVerdict(t *testing.T) {
	root, mutants := find(t, "testdata/fake", ".")
	before := readDir(t, root)
	var out strings.Builder
	s := suite{root: root, parallel: 2, timeout: 15 * time.Second, out: &out}
	err := s.run(t.Context(), mutants)
	t.Log("\n" + out.String())
	assert.EqualError(t, err, "4 of 7 mutants were not caught")

	got := map[string]string{}
	for _, row := range regexp.MustCompile(
		`(?m)^(till/\w+) +(\w+) +[0-9.]+s  (.*)$`).FindAllStringSubmatch(out.String(), -1) {
		got[row[1]] = strings.TrimSpace(row[2] + " " + row[3])
	}
	assert.Equal(t, map[string]string{
		"till/broken":    "broken",
		"till/caught":    "caught TestDraw/what_is_there",
		"till/elsewhere": "elsewhere TestDraw/what_is_there",
		"till/endless":   "caught TestDraw/more_than_is_there (the time limit)",
		"till/panics":    "caught TestPay",
		"till/stale":     "stale",
		"till/survivor":  "survived",
	}, got)
	assert.Contains(t, out.String(), "fits nowhere")
	assert.Contains(t, out.String(), "undefined: total")
	assert.Contains(t, out.String(), "nobody would know how often", "a head goes on over lines")
	assert.Equal(t, before, readDir(t, root), "the tree was touched")
}

// A named test that fails anyway, or that does not exist, is an error.
func TestBaselineFailures(t *testing.T) {
	root, mutants := find(t, "testdata/fake", "till/caught$")
	s := suite{root: root, parallel: 1, timeout: time.Minute, out: t.Output()}
	absent := mutants[0]
	absent.killer.name = "TestDraw/on_credit"
	assert.ErrorContains(t, s.run(t.Context(), []mutant{absent}), "has no test TestDraw/on_credit")

	absent.killer = test{"./bank", "TestDraw"}
	assert.ErrorContains(t, s.run(t.Context(), []mutant{absent}), "./bank")

	failing := t.TempDir()
	require.NoError(t, os.CopyFS(failing, os.DirFS(root)))
	require.NoError(t, os.WriteFile(filepath.Join(failing, "till", "sick_test.go"),
		[]byte("package till\n\nimport \"os\"\n\nfunc init() { os.Exit(3) }\n"), 0o644))
	s.root = failing
	assert.ErrorContains(t, s.run(t.Context(), mutants), "without any mutation")
}

// A cancelled run has no verdict.
func TestCancelledRunHasNoVerdict(t *testing.T) {
	root, mutants := find(t, "testdata/fake", "till/caught$")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	s := suite{root: root, parallel: 1, timeout: time.Minute, out: t.Output()}
	assert.ErrorIs(t, s.run(cancelled, mutants), context.Canceled)
}

func TestNoMatchingPatchIsAnError(t *testing.T) {
	_, err := findMutants(t.TempDir(), regexp.MustCompile("."))
	assert.ErrorContains(t, err, "no patch")
}

// Stories of patches: what they insert, and which are rejected and why.
func TestPatches(t *testing.T) {
	datadriven.RunTest(t, "testdata/patches.txt",
		func(t *testing.T, d *datadriven.TestData) string {
			const source = "package fsm\n\nimport " +
				"(\n\t\"slices\"\n\n\t\"example.org/locks/clock\"\n)\n\n" +
				"func a() {\n\tone()\n\ttwo()\n}\n\nfunc b() {\n\tone()\n\ttwo()\n}\n"
			root := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(root, "go.mod"),
				[]byte("module example.org/locks\n"), 0o644))
			require.NoError(t, os.Mkdir(filepath.Join(root, "fsm"), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(root, "fsm", "lock.go"),
				[]byte(source), 0o644))

			text := d.Input + "\n"
			if d.Cmd == "patch" {
				text = "# mutation: a bug\n# effect: to somebody\n# killed by: ./fsm TestLock\n" +
					text
			}
			m := parseMutant(root, "fsm/mutant", text)
			if m.stale != nil {
				return strings.ReplaceAll(m.stale.Error(), root, "ROOT") + "\n"
			}
			mutated := string(m.mutated["fsm/lock.go"])
			return mutated[strings.Index(mutated, "func a"):]
		})
}

// find finds the mutants below a folder whose names match.
func find(t *testing.T, folder, pattern string) (root string, mutants []mutant) {
	root, err := filepath.Abs(folder)
	require.NoError(t, err)
	mutants, err = findMutants(root, regexp.MustCompile(pattern))
	require.NoError(t, err)
	return root, mutants
}

// readDir reads a whole folder.
func readDir(t *testing.T, root string) map[string]string {
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(root, func(p string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(p)
		files[p] = string(text)
		return err
	}))
	return files
}

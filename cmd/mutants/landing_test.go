package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// After a landing those mutants are due whose patch, code or test has changed, and each of the
// others within ten landings.
func TestWhatIsDueAfterALanding(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.CopyFS(root, os.DirFS("testdata/fake")))
	git := func(args ...string) string {
		command := exec.Command("git",
			append([]string{"-c", "user.name=n", "-c", "user.email=e"}, args...)...)
		command.Dir = root
		out, err := command.CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	git("init", "-q")
	git("add", ".")
	git("commit", "-q", "-m", "all")
	passed := filepath.Join(root, "passed")
	require.NoError(t, os.WriteFile(passed, []byte("3 "+git("rev-parse", "HEAD")), 0o644))
	l, err := readLanding(passed)
	require.NoError(t, err)
	require.EqualValues(t, 3, l.number)
	_, mutants := find(t, root, ".")

	names := func() (names []string) {
		due, summary, err := l.due(root, mutants)
		require.NoError(t, err)
		t.Log(summary)
		for _, m := range due {
			names = append(names, m.name)
		}
		return names
	}
	seen := map[string]int{}
	for range landingParts {
		for _, name := range names() {
			seen[name]++
		}
		l.number++
	}
	assert.Equal(t, map[string]int{"till/stale": landingParts, "till/broken": 1, "till/caught": 1,
		"till/elsewhere": 1,
		"till/endless":   1, "till/panics": 1, "till/survivor": 1}, seen)

	taken := map[uint64]bool{}
	for _, m := range mutants {
		taken[m.part()] = true
	}
	unused := uint64(0) // a part without any mutant, so that only touched mutants are due
	for taken[unused] {
		unused++
	}
	require.Less(t, unused, uint64(landingParts))
	change := func(name, text string) {
		file, err := os.OpenFile(filepath.Join(root, name), os.O_APPEND|os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = file.WriteString(text)
		require.NoError(t, err)
		require.NoError(t, file.Close())
	}
	l.number = unused
	change("till/testdata/mutants/panics.patch", "\n")
	assert.Equal(t, []string{"till/panics", "till/stale"}, names(), "the patch")
	git("checkout", "-q", ".")
	change("till/till.go", "// more\n")
	assert.Len(t, names(), len(mutants), "the code of all of them")
	git("checkout", "-q", ".")
	change("till/till_test.go", "// more\n")
	assert.Len(t, names(), len(mutants), "the tests of all of them")
	git("checkout", "-q", ".")
	require.NoError(t, os.WriteFile(filepath.Join(root, "till", "what_is_there.txt"), nil, 0o644))
	assert.Contains(t, names(), "till/caught", "the script of its story")

	l.commit = "0000000000000000000000000000000000000000"
	_, _, err = l.due(root, mutants)
	assert.ErrorContains(t, err, "git diff", "an unknown commit leaves no mutant out")
}

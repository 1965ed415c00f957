package migrate

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/bench/server"
)

const guideFolder = "../../docs/guide/"

// block is a fenced block of a guide.
type block struct{ language, text string }

func blocks(t *testing.T, guide string) (list []block) {
	t.Helper()
	text, err := os.ReadFile(guideFolder + guide)
	require.NoError(t, err)
	for _, m := range regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$").FindAllStringSubmatch(
		string(text), -1) {
		list = append(list, block{m[1], m[2]})
	}
	require.NotEmpty(t, list)
	return list
}

// unindented is a text without the white space around its lines, and without empty lines.
func unindented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			b.WriteString("\n" + line)
		}
	}
	return b.String() + "\n"
}

// The code in the guides runs: every block except those for a shell is a part of a file in this
// folder.
func TestBlocksAreTested(t *testing.T) {
	var sources strings.Builder
	for _, pattern := range []string{"*_test.go", "testdata/*"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			sources.WriteString(unindented(string(text)))
		}
	}
	guides, err := filepath.Glob(guideFolder + "from-*.md")
	require.NoError(t, err)
	guides = append(guides, guideFolder+"migrating.md")
	for _, guide := range guides {
		for _, b := range blocks(t, filepath.Base(guide)) {
			if b.language != "sh" {
				require.Contains(t, sources.String(), unindented(b.text),
					"%s has a block that is in no file here:\n%s", guide, b.text)
			}
		}
	}
}

// runCommands runs the blocks of a guide for a shell, each of which runs ./report once for every
// line that names it.
func runCommands(t *testing.T, guide string, zamok *server.Cluster, env ...string) {
	t.Helper()
	program, err := zamokProgram()
	require.NoError(t, err, program)
	dir := t.TempDir()
	// a file written here could be busy, because a starting process inherits it
	report, err := filepath.Abs("testdata/report")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(report, filepath.Join(dir, "report")))
	ran := 0
	for _, b := range blocks(t, guide) {
		if b.language != "sh" {
			continue
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", b.text)
		cmd.Dir = dir
		cmd.Env = append(append(os.Environ(), "ZAMOK_ENDPOINTS="+zamok.Endpoints[0],
			"PATH="+filepath.Dir(program)+":"+os.Getenv("PATH")), env...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s\n%s", b.text, out)
		require.Equal(t, strings.Count(b.text, "./report"), strings.Count(string(out), "reported"),
			"%s\n%s", b.text, out)
		ran++
	}
	require.NotZero(t, ran)
}

func TestFlock(t *testing.T) {
	installed(t, "flock", "apt install util-linux")
	t.Parallel()
	runCommands(t, "migrating.md", startZamok(t, 1))
}

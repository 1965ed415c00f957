package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// This repository keeps every rule.
func TestRepositoryConforms(t *testing.T) {
	var found strings.Builder
	count, err := run("../..", &found)
	require.NoError(t, err)
	assert.Zero(t, count, "\n%s", found.String())
}

// Each rule can fail: for each, testdata has small trees that break it, and the violations.
func TestEachRuleCanFail(t *testing.T) {
	for _, r := range rules() {
		t.Run(r.name, func(t *testing.T) {
			broken := 0
			datadriven.RunTest(t, filepath.Join("testdata", r.name+".txt"),
				func(t *testing.T, d *datadriven.TestData) string {
					require.Equal(t, "tree", d.Cmd)
					found := newTestRepository(t, sections(t, d.Input)).check([]rule{r})
					if len(found) == 0 {
						return "ok\n"
					}
					broken++
					var out strings.Builder
					for _, v := range found {
						assert.NotEmpty(t, v.reason)
						fmt.Fprintln(&out, v)
					}
					return out.String()
				})
			assert.NotZero(t, broken, "no example breaks this rule: nothing shows that it can fail")
		})
	}
}

// Each ban of the architecture can fail, with its own reason.
func TestEachBanCanFail(t *testing.T) {
	a := theArchitecture()
	for pkg, r := range a.rules {
		for i, b := range slices.Concat(r.bans, a.rules[forAll].bans) {
			folder, imported := strings.TrimSuffix(pkg, "/..."),
				strings.TrimSuffix(b.pattern, "/...")
			if pkg == forAll || i >= len(r.bans) &&
				(banReason(r.bans, imported) != "" || coversAny(r.may, imported)) {
				continue // the package's own rules come first
			}
			if a.rule(imported) != nil {
				imported = "example.org/locks/" + imported
			}
			found := newTestRepository(t, map[string]string{
				folder + "/first.go": fmt.Sprintf("package first\n\nimport _ %q\n", imported),
			}).check(rules()[:1])
			reported := slices.ContainsFunc(found,
				func(v violation) bool { return v.line == 3 && v.reason == b.reason })
			assert.True(t, reported, "%s importing %s: want %q among %v", folder, imported,
				b.reason, found)
		}
	}
}

func TestRunRequiresModuleRoot(t *testing.T) {
	_, err := load(fstest.MapFS{}, "/checkout/zamok")
	assert.ErrorContains(t, err, "not the root of a module")
}

// sections splits the input of a test into files: "-- path --" begins one. "×69 text" is short for
// 69 lines of text.
func sections(t *testing.T, input string) map[string]string {
	files := map[string]string{}
	var path string
	for line := range strings.Lines(input + "\n") {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "-- "); ok {
			path = strings.TrimSuffix(name, " --")
			files[path] = ""
			continue
		}
		require.NotEmpty(t, path, "a file begins with -- path --")
		if short, ok := strings.CutPrefix(line, "×"); ok {
			count, text, _ := strings.Cut(short, " ")
			n, err := strconv.Atoi(count)
			require.NoError(t, err)
			line = strings.Repeat(text, n)
		}
		files[path] += line
	}
	return files
}

// newTestRepository loads a tree from memory.
func newTestRepository(t *testing.T, files map[string]string) *repository {
	root := fstest.MapFS{"go.mod": {Data: []byte("module example.org/locks\n")}}
	for name, text := range files {
		root[name] = &fstest.MapFile{Data: []byte(text)}
	}
	repo, err := load(root, "/checkout/zamok")
	require.NoError(t, err)
	return repo
}

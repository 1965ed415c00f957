package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// mutant is one bug, ready to be inserted.
type mutant struct {
	name      string // the package and the patch: fsm/lifo_queue
	mutation  string // the bug
	effect    string // what it would do to users
	shortName string // its name in docs/testing.md; "" = none
	killer    test
	mutated   map[string][]byte // the changed files, by path from the root
	stale     error             // why it can't be inserted; then mutated is nil
}

// test is one test of one package. Its name may be a subtest's.
type test struct {
	pkg  string // for the go command: ./fsm
	name string
}

// runPattern is the argument of -run that matches this test and no other.
func (t test) runPattern() string {
	elements := strings.Split(t.name, "/")
	for i, e := range elements {
		elements[i] = "^" + regexp.QuoteMeta(e) + "$"
	}
	return strings.Join(elements, "/")
}

// findMutants reads the patches of every package of the module at root, in order of their names. In
// testdata it searches only the mutants.
func findMutants(root string, pattern *regexp.Regexp) ([]mutant, error) {
	var found []mutant
	tree := os.DirFS(root)
	err := fs.WalkDir(tree, ".", func(p string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			_, noModule := fs.Stat(tree, path.Join(p, "go.mod"))
			skipped := noModule == nil || entry.Name()[0] == '.' ||
				path.Base(path.Dir(p)) == "testdata" && entry.Name() != "mutants"
			if p != "." && skipped {
				return fs.SkipDir
			}
			return nil
		}
		folder, file := path.Split(p)
		pkg, ok := strings.CutSuffix(folder, "/testdata/mutants/")
		file, patch := strings.CutSuffix(file, ".patch")
		if name := path.Join(pkg, file); ok && patch && pattern.MatchString(name) {
			text, err := fs.ReadFile(tree, p)
			if err != nil {
				return err
			}
			found = append(found, parseMutant(root, name, string(text)))
		}
		return nil
	})
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("no patch PACKAGE/testdata/mutants/*.patch matches %q below %s",
			pattern, root)
	}
	return found, err
}

// parseMutant makes a mutant of a patch. An error of the patch is its verdict.
func parseMutant(root, name, text string) mutant {
	m := mutant{name: name}
	head, patches, err := parse(text)
	if err != nil {
		m.stale = err
		return m
	}
	m.mutation, m.effect, m.shortName = head["mutation"], head["effect"], head["name"]
	pkg, testName, ok := strings.Cut(head["killed by"], " ")
	if m.mutation == "" || m.effect == "" || !ok || !strings.HasPrefix(pkg, "./") ||
		!strings.HasPrefix(testName, "Test") {
		m.stale = errors.New(
			`a patch begins with "# mutation: …", "# effect: …" and "# killed by: ./PACKAGE TestName"`)
		return m
	}
	m.killer = test{pkg, testName}
	m.mutated, m.stale = applyPatches(root, patches)
	return m
}

var moduleLine = regexp.MustCompile(`(?m)^module[ \t]+(\S+)`)

// applyPatches applies patches to copies of the files under root.
func applyPatches(root string, patches []filePatch) (map[string][]byte, error) {
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return nil, err
	}
	module := moduleLine.FindSubmatch(mod)
	if module == nil {
		return nil, errors.New("go.mod names no module")
	}
	sources := map[string][]byte{}
	for _, p := range patches {
		if err := validatePatch(p, string(module[1])); err != nil {
			return nil, err
		}
		if _, twice := sources[p.path]; twice {
			return nil, fmt.Errorf("%s appears twice", p.path)
		}
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(p.path)))
		if err != nil {
			return nil, err
		}
		mutated, err := p.apply(string(text))
		if err != nil {
			return nil, err
		}
		sources[p.path] = []byte(mutated)
	}
	return sources, nil
}

// validatePatch rejects patches of other files than Go files of the product, and of imports of this
// module.
func validatePatch(p filePatch, module string) error {
	if path.Ext(p.path) != ".go" || strings.HasSuffix(p.path, "_test.go") ||
		!fs.ValidPath(p.path) ||
		slices.Contains(strings.Split(p.path, "/"), "testdata") {
		return fmt.Errorf("%s: a mutant changes Go files of the product, no tests and nothing else",
			p.path)
	}
	for _, h := range p.hunks {
		for _, line := range slices.Concat(h.before, h.after) {
			if strings.Contains(line, `"`+module+`/`) {
				return fmt.Errorf("%s: the hunk at line %d shows an import of this module, which "+
					"make rename would change", p.path, h.line)
			}
		}
	}
	return nil
}

// tableRow is the row of known.md, without the time that it took to catch the mutant.
func (m mutant) tableRow() string {
	tier := "unit"
	switch {
	case strings.HasPrefix(m.killer.pkg, "./jepsen/sim"):
		tier = "simulation"
	case strings.HasPrefix(m.killer.pkg, "./jepsen/real"):
		tier = "real processes"
	}
	folder, name := path.Split(m.name)
	return fmt.Sprintf("| %s | [%s](../../%stestdata/mutants/%s.patch) | %s | %s `%s` |",
		m.shortName, m.mutation, folder, name, tier, m.killer.pkg, m.killer.name)
}

package main

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// landingParts is within how many landings each mutant is due, changed or not.
const landingParts = 10

// landing is the last commit that passed all checks, and its number. .ci/run writes its file, which
// is committed.
type landing struct {
	number uint64
	commit string
}

func readLanding(file string) (l landing, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return landing{}, err
	}
	if _, err := fmt.Sscanf(string(text), "%d %s\n", &l.number, &l.commit); err != nil {
		return landing{}, fmt.Errorf(`%s: want "NUMBER COMMIT": %w`, file, err)
	}
	return l, nil
}

// due returns the mutants that are due after a landing: those that a change since then may have
// touched, and one part of the others.
func (l landing) due(root string, mutants []mutant) (due []mutant, summary string, err error) {
	changed, err := changedSince(root, l.commit)
	if err != nil {
		return nil, "", err
	}
	touched := 0
	for _, m := range mutants {
		hit, err := m.touches(root, changed)
		if err != nil {
			return nil, "", err
		}
		if hit {
			touched++
		}
		if hit || m.part() == l.number%landingParts {
			due = append(due, m)
		}
	}
	return due, fmt.Sprintf(
		"%d of %d mutants: %d touched since %.8s, and of the others part %d of %d",
		len(due), len(mutants), touched, l.commit, l.number%landingParts+1, landingParts), nil
}

// part is the landing, of landingParts, in which an untouched mutant is due. It depends only on the
// name.
func (m mutant) part() uint64 {
	h := fnv.New64a()
	h.Write([]byte(m.name))
	return h.Sum64() % landingParts
}

// touches reports whether the patch, a file that it changes, or the test that catches it is among
// the changed files. A stale mutant counts as touched.
func (m mutant) touches(root string, changed map[string]bool) (bool, error) {
	folder, name := path.Split(m.name)
	if m.stale != nil || changed[path.Join(folder, "testdata/mutants", name+".patch")] {
		return true, nil
	}
	for file := range m.mutated {
		if changed[file] {
			return true, nil
		}
	}
	elements := strings.Split(m.killer.name, "/")
	declaration := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(elements[0]) + `\(`)
	pkg := path.Clean(m.killer.pkg)
	for file := range changed {
		switch base := path.Base(file); {
		case !strings.HasPrefix(file, pkg+"/"):
		case slices.Contains(elements[1:], strings.TrimSuffix(base, path.Ext(base))):
			return true, nil // the script of a story
		case path.Dir(file) == pkg && strings.HasSuffix(base, "_test.go"):
			text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
			if err != nil && !errors.Is(err, os.ErrNotExist) { // a deleted file declares nothing
				return false, err
			}
			if declaration.Match(text) {
				return true, nil
			}
		}
	}
	return false, nil
}

// changedSince lists the files that differ from a commit, also those that are not committed.
func changedSince(root, commit string) (map[string]bool, error) {
	changed := map[string]bool{}
	for _, args := range [][]string{
		{"diff", "--name-only", "--no-renames", "-z", commit, "--"},
		{"ls-files", "--others", "--exclude-standard", "-z"},
	} {
		git := exec.Command("git", args...)
		git.Dir = root
		var stderr bytes.Buffer
		git.Stderr = &stderr
		out, err := git.Output()
		if err != nil {
			return nil, fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
		}
		for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
			changed[name] = true
		}
	}
	return changed, nil
}

package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

func main() {
	count, err := run(".", os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "policy:", err)
		os.Exit(2)
	}
	if count > 0 {
		fmt.Fprintf(os.Stderr, "policy: %d violations\n", count)
		os.Exit(1)
	}
}

// run checks the tree at root, which contains go.mod, and prints the violations.
func run(root string, out io.Writer) (count int, err error) {
	home, err := filepath.Abs(root)
	if err != nil {
		return 0, err
	}
	t, err := load(os.DirFS(root), home)
	if err != nil {
		return 0, err
	}
	found := t.check(rules())
	for _, v := range found {
		fmt.Fprintln(out, v)
	}
	return len(found), nil
}

// check checks every file against the rules. A violation of a whole package is reported once.
func (t *repository) check(rules []rule) (found []violation) {
	for _, r := range rules {
		for _, f := range t.files {
			r.check(t, f, func(v violation) {
				v.path = cmp.Or(v.path, f.path)
				found = append(found, v)
			})
		}
	}
	slices.SortFunc(found, violation.compare)
	return slices.Compact(found)
}

// rule is one rule for all files. Its name is also the name of the file in testdata with trees that
// break it.
type rule struct {
	name  string
	check func(t *repository, f file, report func(violation))
}

func rules() []rule {
	return []rule{
		{"imports", checkImports},
		{"calls", checkCalls},
		{"tests", checkTests},
		{"sizes", checkSizes},
		{"packagedocs", checkPackageDoc},
		{"places", checkPlace},
		{"words", checkWords},
		{"module", checkModule},
	}
}

// violation is a place where a rule is broken, what breaks it, and the reason of the rule.
type violation struct {
	path   string // empty in a report: the file that is checked
	line   int    // 0: the file as a whole
	what   string
	reason string
}

func (v violation) String() string {
	if v.line == 0 {
		return fmt.Sprintf("%s: %s: %s", v.path, v.what, v.reason)
	}
	return fmt.Sprintf("%s:%d: %s: %s", v.path, v.line, v.what, v.reason)
}

func (v violation) compare(w violation) int {
	return cmp.Or(cmp.Compare(v.path, w.path), cmp.Compare(v.line, w.line),
		cmp.Compare(v.what, w.what))
}

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

// run checks the tree at root, which holds go.mod, and prints what it finds.
func run(root string, out io.Writer) (count int, err error) {
	home, err := filepath.Abs(root)
	if err != nil {
		return 0, err
	}
	t, err := load(os.DirFS(root), home)
	if err != nil {
		return 0, err
	}
	var found []violation
	for _, r := range rules() {
		found = append(found, r.check(t)...)
	}
	slices.SortFunc(found, violation.compare)
	for _, v := range found {
		fmt.Fprintln(out, v)
	}
	return len(found), nil
}

// rule is one thing that the tree is held to. Its name is also the name of the file in testdata
// that shows it failing.
type rule struct {
	name  string
	check func(*repository) []violation
}

func rules() []rule {
	return []rule{
		{"imports", checkImports},
		{"calls", checkCalls},
		{"tests", checkTests},
		{"sizes", checkSizes},
		{"names", checkNames},
		{"packagedocs", checkPackageDocs},
		{"words", checkWords},
		{"module", checkModule},
	}
}

// violation is where a rule is broken, by what, and why the rule exists.
type violation struct {
	path   string
	line   int // 0: the file as a whole
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
	return cmp.Or(cmp.Compare(v.path, w.path), cmp.Compare(v.line, w.line), cmp.Compare(v.what, w.what))
}

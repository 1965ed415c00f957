package main

import (
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

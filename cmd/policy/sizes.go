package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"slices"
)

const (
	functionLinesMax = 70 // what can be seen at once, from its name to its last brace

	// A test may be longer: its cases are read one at a time, not as one thought.
	testFunctionLinesMax = 100

	fileLinesMax = 500 // what can be held in mind as one subject
)

// sizeException lets one file or function be longer, up to its own limit.
type sizeException struct {
	target string // "path/file.go", or "path/file.go Function"
	max    int
	reason string
}

func sizeExceptions() []sizeException {
	return nil
}

// checkSizes holds functions and files, tests too, to what a reader can see and keep in mind.
func checkSizes(t *repository) []violation { return checkSizesWith(t, sizeExceptions()) }

func checkSizesWith(t *repository, exceptions []sizeException) []violation {
	var found []violation
	used := map[string]bool{}
	measure := func(path string, line int, what, kind string, lines, limit int, why string) {
		i := slices.IndexFunc(exceptions, func(e sizeException) bool { return e.target == what })
		if i >= 0 && lines > limit {
			used[what] = true
			limit = exceptions[i].max
		}
		if lines > limit {
			found = append(found, violation{path, line, fmt.Sprintf("%s of %d lines, at most %d", kind, lines, limit), why})
		}
	}
	for _, f := range t.goFiles() {
		measure(f.path, 0, f.path, "a file", bytes.Count(f.text, []byte("\n")), fileLinesMax,
			"a file has one subject; this one has another file in it")
		limit := functionLinesMax
		if f.test {
			limit = testFunctionLinesMax
		}
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				lines := t.fset.Position(fn.End()).Line - t.line(fn) + 1
				measure(f.path, t.line(fn), f.path+" "+fn.Name.Name, "function "+fn.Name.Name, lines, limit,
					"a function that does not fit a screen does more than one thing; name the other thing")
			}
		}
	}
	for _, e := range exceptions {
		if !used[e.target] {
			found = append(found, violation{"cmd/policy/sizes.go", 0, "the exception for " + e.target + " is not needed",
				"an exception that outlives its cause permits the next one; remove it"})
		}
	}
	return found
}

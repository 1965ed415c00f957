package main

import (
	"bytes"
	"fmt"
	"go/ast"
)

const (
	functionLinesMax = 70 // what can be seen at once, from its name to its last brace

	// A test may be longer: its cases are read one at a time, not as one thought.
	testFunctionLinesMax = 100

	fileLinesMax = 500 // what can be held in mind as one subject
)

// checkSizes holds functions and files, tests too, to what a reader can see and keep in mind.
func checkSizes(t *repository) []violation {
	var found []violation
	measure := func(path string, line int, what string, lines, limit int, why string) {
		if lines > limit {
			found = append(found, violation{path, line, fmt.Sprintf("%s of %d lines, at most %d", what, lines, limit), why})
		}
	}
	for _, f := range t.goFiles() {
		measure(f.path, 0, "a file", bytes.Count(f.text, []byte("\n")), fileLinesMax,
			"a file has one subject; this one has another file in it")
		limit := functionLinesMax
		if f.test {
			limit = testFunctionLinesMax
		}
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				measure(f.path, t.line(fn), "function "+fn.Name.Name, t.fset.Position(fn.End()).Line-t.line(fn)+1, limit,
					"a function that does not fit a screen does more than one thing; name the other thing")
			}
		}
	}
	return found
}

package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// checkModule finds lines of go.mod that an importer would inherit or lack.
func checkModule(_ *repository, f file, report func(violation)) {
	if f.path != "go.mod" {
		return
	}
	tools := regexp.MustCompile(
		`^(tool\b|(require)?\s*(honnef\.co/go/tools|golang\.org/x/vuln|github\.com/golangci/\S+|github\.com/bufbuild/buf)\s)`)
	for i, line := range bytes.Split(f.text, []byte("\n")) {
		switch {
		case tools.Match(line):
			report(violation{line: i + 1, what: "names a tool",
				reason: "importers of this module would inherit it; pin it in the Makefile and " +
					"run it with go run"})
		case bytes.HasPrefix(line, []byte("replace")):
			report(violation{line: i + 1, what: "replaces a module",
				reason: "it counts only in this checkout: importers would build something else " +
					"than was tested"})
		}
	}
}

// checkPackageDoc finds packages, also commands and packages for tests, without a package comment
// in doc.go.
func checkPackageDoc(t *repository, f file, report func(violation)) {
	documents := func(other file) bool {
		return other.path == path.Join(f.folder(), "doc.go") && other.syntax != nil &&
			other.syntax.Doc != nil
	}
	if f.syntax != nil && !slices.ContainsFunc(t.files, documents) {
		report(violation{path: f.folder(), what: "the package has no doc.go with a package comment",
			reason: "the package comment is the documentation, and readers look for it in doc.go"})
	}
}

// places are the folders at the top that have code. All else goes below them.
var places = []string{"api", "bench", "client", "clock", "cmd", "docs", "fsm", "jepsen", "raftnode",
	"session"}

// checkPlace finds packages that are outside of these folders.
func checkPlace(_ *repository, f file, report func(violation)) {
	if top, _, _ := strings.Cut(f.path, "/"); f.syntax != nil && !slices.Contains(places, top) {
		report(violation{path: top, what: "a package outside of " + strings.Join(places, ", "),
			reason: "readers know these folders; put it, or its internal folder, below the one " +
				"that it serves"})
	}
}

const (
	functionLinesMax = 70 // about a screen, from its name to its last brace

	// A test may be longer: its cases are read one at a time, not as one thought.
	testFunctionLinesMax = 100

	fileLinesMax = 500 // as much as a reader can keep in mind as one subject

	columnsMax, tabColumns = 100, 4
)

// checkSizes finds functions and files, also of tests, that are too long for a reader.
func checkSizes(t *repository, f file, report func(violation)) {
	if !f.written() {
		return
	}
	measure := func(line int, what string, lines, limit int, why string) {
		if lines > limit {
			report(violation{line: line,
				what: fmt.Sprintf("%s of %d lines, at most %d", what, lines, limit), reason: why})
		}
	}
	measure(0, "a file", bytes.Count(f.text, []byte("\n")), fileLinesMax,
		"a file has one subject; this one has another file in it")
	raw := rawLines(t, f.syntax)
	// The module's path counts as its last element: make rename breaks no line.
	text := strings.ReplaceAll(string(f.text), t.module+"/", path.Base(t.module)+"/")
	for i, line := range strings.Split(text, "\n") {
		columns := utf8.RuneCountInString(line) + strings.Count(line, "\t")*(tabColumns-1)
		if columns > columnsMax && !raw[i+1] {
			report(violation{line: i + 1, what: fmt.Sprintf("a line of %d columns, at most %d",
				columns, columnsMax), reason: "two files fit a screen beside each other"})
		}
	}
	limit := functionLinesMax
	if f.test {
		limit = testFunctionLinesMax
	}
	for _, d := range f.syntax.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok {
			measure(t.line(fn), "function "+fn.Name.Name,
				t.fset.Position(fn.End()).Line-t.line(fn)+1, limit,
				"a function that does not fit a screen does more than one thing; name the "+
					"other thing")
		}
	}
}

// rawLines are the lines with a raw string, such as the tags of a field, which no line break may
// change.
func rawLines(t *repository, file *ast.File) map[int]bool {
	lines := make(map[int]bool)
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.BasicLit); ok && s.Value[0] == '`' {
			for l := t.line(s); l <= t.fset.Position(s.End()).Line; l++ {
				lines[l] = true
			}
		}
		return true
	})
	return lines
}

// wordExceptions are files that checkWords does not read.
func wordExceptions() []string {
	// the last breaks rules on purpose
	return []string{"LICENSE", "go.sum", "cmd/policy/testdata/..."}
}

// checkWords finds unfinished work and paths of one machine in every text file.
func checkWords(t *repository, f file, report func(violation)) {
	if coversAny(wordExceptions(), f.path) || f.generated ||
		strings.Contains(f.path, "testdata/fuzz/") {
		return
	}
	// Concatenated, so that the rule does not find itself.
	unfinished := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME)\b`)
	homePattern := regexp.MustCompile(
		`(^|[^\w.~-])(/home/[a-z]\w*|/Users/[A-Za-z]\w*|/root/[\w.]|[A-Z]:\\Users\\)`)

	// A folder at the root, such as /src, is too likely to be an ordinary word.
	var checkout *regexp.Regexp
	if strings.Count(t.home, "/") > 1 {
		checkout = regexp.MustCompile(`(^|[^\w/-])` + regexp.QuoteMeta(t.home) + `($|[^\w-])`)
	}

	for i, line := range bytes.Split(f.text, []byte("\n")) {
		at := func(what, why string) { report(violation{line: i + 1, what: what, reason: why}) }
		if word := unfinished.Find(line); word != nil {
			at("contains "+string(word),
				"unfinished work does not belong in code; do it, or document the limit where "+
					"users read it")
		}
		if home := homePattern.FindSubmatch(line); home != nil && !isExampleHome(string(home[2])) {
			at("names "+string(home[2]),
				"that path exists on one machine; take it from the environment, a flag or a "+
					"temporary folder")
		}
		if checkout != nil && checkout.Match(line) {
			at("names the place of this checkout",
				"that path exists on one machine; start from the module's root")
		}
	}
}

// isExampleHome exempts the home directories that documentation and images use as examples.
func isExampleHome(home string) bool { return home == "/home/you" || home == "/home/nonroot" }

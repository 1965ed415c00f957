package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"strings"
)

// checkModule reads go.mod for what an importer would inherit or miss.
func checkModule(t *repository) []violation {
	tools := regexp.MustCompile(`^(tool\b|(require)?\s*(honnef\.co/go/tools|golang\.org/x/vuln|github\.com/golangci/\S+|github\.com/bufbuild/buf)\s)`)
	var found []violation
	for _, f := range t.files {
		if f.path != "go.mod" {
			continue
		}
		for i, line := range bytes.Split(f.text, []byte("\n")) {
			switch {
			case tools.Match(line):
				found = append(found, violation{f.path, i + 1, "names a tool",
					"importers of this module would inherit it; pin it in the Makefile and run it with go run"})
			case bytes.HasPrefix(line, []byte("replace")):
				found = append(found, violation{f.path, i + 1, "replaces a module",
					"it counts only in this checkout: importers would build something else than was tested"})
			}
		}
	}
	return found
}

// checkNames refuses files, folders and packages whose name any code would fit.
func checkNames(t *repository) []violation {
	const why = "a generic name attracts unrelated code; name it after its one subject"
	vague := regexp.MustCompile(`(?i)(?:^|[-_./])(utils?|common|helpers?|managers?|misc)(?:$|[-_./])`)
	var found []violation
	for _, f := range t.goFiles() {
		if m := vague.FindStringSubmatch(f.syntax.Name.Name); m != nil {
			found = append(found, violation{f.path, t.line(f.syntax.Name), "a package called " + strings.ToLower(m[1]), why})
		}
		if m := vague.FindStringSubmatch(f.path); m != nil {
			found = append(found, violation{f.path, 0, "a path with " + strings.ToLower(m[1]) + " in it", why})
		}
	}
	return found
}

// checkPackageDocs wants each package, commands and packages for tests included, to have its package comment in
// doc.go.
func checkPackageDocs(t *repository) []violation {
	documented := map[string]bool{}
	for _, f := range t.files {
		if f.syntax != nil && path.Base(f.path) == "doc.go" && f.syntax.Doc != nil {
			documented[f.folder()] = true
		}
	}
	var found []violation
	for _, f := range t.files {
		if f.syntax != nil && !documented[f.folder()] {
			documented[f.folder()] = true // reported once
			found = append(found, violation{f.path, 0, "package " + f.folder() + " has no doc.go with a package comment",
				"the package comment is the documentation, and readers look for it in doc.go"})
		}
	}
	return found
}

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

// wordExceptions are files in which a word proves nothing.
func wordExceptions() []string {
	return []string{"LICENSE", "go.sum", "cmd/policy/testdata/..."} // the last breaks rules on purpose
}

// checkWords reads every file of text for what should not be handed to others.
func checkWords(t *repository) []violation {
	// Put together here, so that this file does not find itself.
	unfinished := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME)\b`)
	homePattern := regexp.MustCompile(`(^|[^\w.~-])(/home/[a-z]\w*|/Users/[A-Za-z]\w*|/root/[\w.]|[A-Z]:\\Users\\)`)

	// A folder at the root, such as /src, is too likely to be an ordinary word.
	var checkout *regexp.Regexp
	if strings.Count(t.home, "/") > 1 {
		checkout = regexp.MustCompile(`(^|[^\w/-])` + regexp.QuoteMeta(t.home) + `($|[^\w-])`)
	}

	var found []violation
	for _, f := range t.files {
		if coversAny(wordExceptions(), f.path) || f.generated || strings.Contains(f.path, "testdata/fuzz/") {
			continue
		}
		for i, line := range bytes.Split(f.text, []byte("\n")) {
			at := func(what, why string) { found = append(found, violation{f.path, i + 1, what, why}) }
			if word := unfinished.Find(line); word != nil {
				at("contains "+string(word), "unfinished work does not belong in code; do it, or document the limit where users read it")
			}
			if home := homePattern.FindSubmatch(line); home != nil && !isExampleHome(string(home[2])) {
				at("names "+string(home[2]), "that path exists on one machine; take it from the environment, a flag or a temporary folder")
			}
			if checkout != nil && checkout.Match(line) {
				at("names the place of this checkout", "that path exists on one machine; start from the module's root")
			}
		}
	}
	return found
}

// isExampleHome exempts the home directories that documentation and images use as examples.
func isExampleHome(home string) bool { return home == "/home/you" || home == "/home/nonroot" }

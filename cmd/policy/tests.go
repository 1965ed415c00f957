package main

import (
	"go/ast"
	"slices"
	"strings"
)

// checkTests finds tests that prove less than they seem to: skipped without a reason, or right only as
// long as the machine is fast enough.
func checkTests(t *repository, f file, report func(violation)) {
	if !f.written() || !f.test {
		return
	}
	names := importNames(f.syntax)
	inBubble := importsPath(f.syntax, "testing/synctest") || callsAny(f.syntax, t.synctestHelpers(f.folder()))
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && isSilentSkip(call) {
			report(violation{line: t.line(call), what: "skips a test without a reason",
				reason: "a skipped test reads like a passed one; name what is missing and how to run it"})
		}
		if pkg, name := selection(n, names); pkg == "time" && name == "Sleep" && !inBubble {
			report(violation{line: t.line(n), what: "sleeps in a test",
				reason: "a sleep is too short on a busy machine and too long on every other; wait for the event, or sleep in a testing/synctest bubble, where time is free"})
		}
		return true
	})
}

// isSilentSkip recognises t.Skip(), t.Skip("") and t.SkipNow(), whatever t is called.
func isSilentSkip(call *ast.CallExpr) bool {
	fn, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, fn.Sel.Name) {
		return false
	}
	if len(call.Args) == 0 {
		return true
	}
	first, ok := call.Args[0].(*ast.BasicLit)
	return ok && strings.Trim(first.Value, "\"` ") == ""
}

// synctestHelpers are the names declared in files of a package that import testing/synctest: a package with
// many tests in bubbles has one way into them. A file that uses such a name, or makes the import
// itself, is taken to sleep inside a bubble. That is a heuristic.
func (t *repository) synctestHelpers(folder string) (names []string) {
	for _, f := range t.files {
		if !f.written() || f.folder() != folder || !importsPath(f.syntax, "testing/synctest") {
			continue
		}
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				names = append(names, fn.Name.Name)
			}
		}
	}
	return names
}

// callsAny reports whether a file calls one of the names.
func callsAny(f *ast.File, names []string) (found bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if fn, ok := call.Fun.(*ast.Ident); ok && slices.Contains(names, fn.Name) {
				found = true
			}
		}
		return !found
	})
	return found
}

// importsPath reports whether a file makes an import.
func importsPath(f *ast.File, p string) bool {
	return slices.ContainsFunc(f.Imports, func(spec *ast.ImportSpec) bool { return importPath(spec) == p })
}

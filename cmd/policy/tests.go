package main

import (
	"go/ast"
	"strings"
)

// checkTests finds tests that prove less than they seem to: skipped without a reason, or right only as
// long as the machine is fast enough.
func checkTests(t *repository) []violation {
	var found []violation
	helpers := synctestHelpers(t)
	for _, f := range t.goFiles() {
		if !f.test {
			continue
		}
		names := importNames(f.syntax)
		inBubble := importsPath(f.syntax, "testing/synctest") || callsAny(f.syntax, helpers[f.folder()])
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && isSilentSkip(call) {
				found = append(found, violation{f.path, t.line(call), "skips a test without a reason",
					"a skipped test reads like a passed one; name what is missing and how to run it"})
			}
			if use, pkg, name, ok := selection(n, names); ok && pkg == "time" && name == "Sleep" && !inBubble {
				found = append(found, violation{f.path, t.line(use), "sleeps in a test",
					"a sleep is too short on a busy machine and too long on every other; wait for the event, or sleep in a testing/synctest bubble, where time is free"})
			}
			return true
		})
	}
	return found
}

// isSilentSkip recognises t.Skip(), t.Skip("") and t.SkipNow(), whatever t is called.
func isSilentSkip(call *ast.CallExpr) bool {
	fn, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	switch fn.Sel.Name {
	case "SkipNow":
		return len(call.Args) == 0
	case "Skip", "Skipf":
		if len(call.Args) == 0 {
			return true
		}
		first, ok := call.Args[0].(*ast.BasicLit)
		return ok && strings.Trim(first.Value, "\"` ") == ""
	}
	return false
}

// synctestHelpers are, by package, the names declared in files that import testing/synctest: a package with
// many tests in bubbles has one way into them. A file that uses such a name, or makes the import
// itself, is taken to sleep inside a bubble. That is a heuristic.
func synctestHelpers(t *repository) map[string]map[string]bool {
	helpers := make(map[string]map[string]bool)
	for _, f := range t.goFiles() {
		if !importsPath(f.syntax, "testing/synctest") {
			continue
		}
		if helpers[f.folder()] == nil {
			helpers[f.folder()] = make(map[string]bool)
		}
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				helpers[f.folder()][fn.Name.Name] = true
			}
		}
	}
	return helpers
}

// callsAny reports whether a file calls one of the names.
func callsAny(f *ast.File, names map[string]bool) (found bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if fn, ok := call.Fun.(*ast.Ident); ok && names[fn.Name] {
				found = true
			}
		}
		return !found
	})
	return found
}

// importsPath reports whether a file makes an import.
func importsPath(f *ast.File, p string) bool {
	for _, spec := range f.Imports {
		if importPath(spec) == p {
			return true
		}
	}
	return false
}

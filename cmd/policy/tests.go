package main

import (
	"go/ast"
	"slices"
	"strings"
)

// checkTests finds tests that are skipped without a reason, or that sleep, and so pass only on a
// fast machine.
func checkTests(t *repository, f file, report func(violation)) {
	if !f.written() || !f.test {
		return
	}
	names := importNames(f.syntax)
	inBubble := t.inBubble(f)
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && isSilentSkip(call) {
			report(violation{line: t.line(call), what: "skips a test without a reason",
				reason: "a skipped test reads like a passed one; name what is missing and how " +
					"to run it"})
		}
		if pkg, name := selection(n, names); pkg == "time" && name == "Sleep" && !inBubble {
			report(violation{line: t.line(n), what: "sleeps in a test",
				reason: "a sleep is too short on a busy machine and too long on every other; " +
					"wait for the event, or sleep in a testing/synctest bubble, where " +
					"time is free"})
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

// inBubble guesses whether a file sleeps in bubbles of testing/synctest: it imports that, or calls
// a function of a file in its package that does, because such a package has helpers for its
// bubbles.
func (t *repository) inBubble(f file) (found bool) {
	helpers := map[string]bool{}
	for _, other := range t.files {
		if !other.written() || other.folder() != f.folder() || !importsSynctest(other) {
			continue
		}
		for _, d := range other.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				helpers[fn.Name.Name] = true
			}
		}
	}
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			fn, ok := call.Fun.(*ast.Ident)
			found = found || ok && helpers[fn.Name]
		}
		return !found
	})
	return found || importsSynctest(f)
}

func importsSynctest(f file) bool {
	return slices.ContainsFunc(f.syntax.Imports,
		func(spec *ast.ImportSpec) bool { return importPath(spec) == "testing/synctest" })
}

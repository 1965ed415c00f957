package main

import (
	"go/ast"
	"path"
	"regexp"
	"slices"
)

// checkCalls finds calls of functions that the architecture forbids, and init functions. Tests and
// generated code are exempt.
func checkCalls(t *repository, f file, report func(violation)) {
	if !f.written() || f.test || f.nested {
		return
	}
	names := importNames(f.syntax)
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		pkg, name := selection(n, names)
		if reason := callBanReason(f, pkg, name); reason != "" {
			report(violation{line: t.line(n), what: "uses " + path.Base(pkg) + "." + name,
				reason: reason})
		}
		if fn, ok := n.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			report(violation{line: t.line(fn), what: "has an init function",
				reason: "it runs when it is linked, in an order that no code shows; call " +
					"it instead"})
		}
		return true
	})
}

// callBanReason is the reason why a file may not use a function; "" if it may.
func callBanReason(f file, pkg, name string) string {
	if pkg == "os" && name == "Exit" && path.Base(f.path) == "main.go" &&
		coversAny([]string{"cmd/...", "jepsen/..."}, f.folder()) {
		return ""
	}
	for _, b := range theArchitecture().calls {
		if slices.Contains(b.functions, pkg+"."+name) && !coversAny(b.allowed, f.folder()) {
			return b.reason
		}
	}
	return ""
}

// selection recognises a name of an imported package, such as time.Now; "" and "" for other nodes.
func selection(n ast.Node, names map[string]string) (pkg, name string) {
	if use, ok := n.(*ast.SelectorExpr); ok {
		if x, ok := use.X.(*ast.Ident); ok {
			return names[x.Name], use.Sel.Name
		}
	}
	return "", ""
}

// importNames maps the names by which a file knows its imports to their paths.
func importNames(f *ast.File) map[string]string {
	version := regexp.MustCompile(`/v[0-9]+$`)
	names := map[string]string{}
	for _, spec := range f.Imports {
		p := importPath(spec)
		name := path.Base(version.ReplaceAllString(p, ""))
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = p
	}
	return names
}

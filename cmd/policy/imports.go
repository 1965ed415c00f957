package main

import (
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strconv"
	"strings"
)

// checkImports finds imports that the architecture does not allow.
func checkImports(t *repository, f file, report func(violation)) {
	if f.syntax == nil || f.nested {
		return
	}
	if theArchitecture().rule(f.folder()) == nil {
		report(violation{path: f.folder(), what: "the package has no line in the architecture",
			reason: "the layer of a new package is a decision: add a line to " +
				"cmd/policy/architecture.txt"})
		return
	}
	for _, spec := range f.syntax.Imports {
		name, internal := strings.CutPrefix(importPath(spec)+"/", t.module+"/")
		v := violation{line: t.line(spec), what: "imports " + path.Clean(name)}
		if spec.Name != nil && spec.Name.Name == "." {
			v.what, v.reason = v.what+" with a dot", "dot imports hide where a name comes from"
		} else {
			v.reason = importReason(f, path.Clean(name), internal)
		}
		if v.reason != "" {
			report(v)
		}
	}
}

// importReason is the reason why a file may not import a package; "" if it may. The name of an
// internal package is its folder.
func importReason(f file, name string, internal bool) string {
	a := theArchitecture()
	r, all := a.rule(f.folder()), a.rules[forAll]
	allowed := slices.Concat(r.may, a.lower(f.folder()))
	if f.test {
		allowed = slices.Concat(allowed, r.tests, all.tests)
	} else if reason := banReason(r.bans, name); reason != "" {
		return reason
	} else if reason := banReason(all.bans, name); reason != "" && !coversAny(r.may, name) {
		return reason
	}
	switch {
	case internal && name == f.folder(), coversAny(allowed, name),
		!internal && isStandard(name) && slices.Contains(allowed, "std"):
		return ""
	case internal && covers("jepsen/...", name):
		return "jepsen may import every package; no package may import jepsen"
	case internal:
		return fmt.Sprintf("a package may import only lower layers, and %s is not below %s", name,
			f.folder())
	}
	return fmt.Sprintf("it is not on the list of %s; a new dependency is a decision, taken in "+
		"cmd/policy/architecture.txt", f.folder())
}

// banReason is the reason of the first ban of a package; "" if there is none.
func banReason(bans []ban, name string) string {
	for _, b := range bans {
		if covers(b.pattern, name) {
			return b.reason
		}
	}
	return ""
}

func importPath(spec *ast.ImportSpec) string {
	p, _ := strconv.Unquote(spec.Path.Value) // the parser has accepted it
	return p
}

// isStandard reports whether an import path is the standard library's: its first element has no
// dot. (This module's paths may have none either; they are recognised before.)
func isStandard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

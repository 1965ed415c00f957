package main

import (
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strconv"
	"strings"
)

// checkImports holds the tree to the table.
func checkImports(t *repository, f file, report func(violation)) {
	if f.syntax == nil || f.nested {
		return
	}
	r := ruleFor(f.folder())
	if r == nil {
		report(violation{path: f.folder(), what: "the package has no row in the policy's table",
			reason: "the layer of a new package is a decision: add a row to cmd/policy/table.go"})
		return
	}
	for _, spec := range f.syntax.Imports {
		name, internal := strings.CutPrefix(importPath(spec)+"/", t.module+"/")
		v := violation{line: t.line(spec), what: "imports " + path.Clean(name)}
		if spec.Name != nil && spec.Name.Name == "." {
			v.what, v.reason = v.what+" with a dot", "dot imports hide where a name comes from"
		} else {
			v.reason = importReason(f, r, path.Clean(name), internal)
		}
		if v.reason != "" {
			report(v)
		}
	}
}

// ruleFor is the row of a package; nil if it has none.
func ruleFor(folder string) *packageRule {
	rows := packageTable()
	i := slices.IndexFunc(rows, func(r packageRule) bool { return covers(r.pkg, folder) })
	if i < 0 {
		return nil
	}
	return &rows[i]
}

// importReason says why a file may not import a package, which, if internal, is the folder of one of ours; "" if it may.
func importReason(f file, r *packageRule, name string, internal bool) string {
	if !f.test {
		if reason := banReason(r.bannedImports, name); reason != "" {
			return reason
		}
		if reason := banReason(bansForAll(), name); reason != "" && !coversAny(r.external, name) {
			return reason
		}
	}
	if internal {
		lower := r.internal
		if lower == nil {
			lower = lowerLayers(r.pkg)
		}
		switch {
		case name == f.folder() || coversAny(lower, name) || f.test && coversAny(r.testInternal, name):
			return ""
		case covers("jepsen/...", name):
			return "jepsen may import every package; no package may import jepsen"
		}
		return fmt.Sprintf("a package may import only lower layers, and %s is not below %s", name, f.folder())
	}
	allowed := r.external
	if f.test {
		allowed = slices.Concat(allowed, testLibraries(), []string{std})
	}
	if coversAny(allowed, name) || isStandard(name) && slices.Contains(allowed, std) {
		return ""
	}
	return fmt.Sprintf("it is not on the list of %s; a new dependency is a decision, taken in cmd/policy/table.go", r.pkg)
}

// banReason is the reason of the first ban of a package; "" if there is none.
func banReason(bans []ban, name string) string {
	for _, b := range bans {
		if coversAny(strings.Fields(b.patterns), name) {
			return b.reason
		}
	}
	return ""
}

func importPath(spec *ast.ImportSpec) string {
	p, err := strconv.Unquote(spec.Path.Value)
	if err != nil { // the parser has accepted it
		return spec.Path.Value
	}
	return p
}

// isStandard reports whether an import path is the standard library's: its first element has no
// dot. (This module's paths may have none either; they are recognised before.)
func isStandard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

package main

import (
	"fmt"
	"go/ast"
	"slices"
	"strconv"
	"strings"
)

// checkImports holds the tree to the table.
func checkImports(t *repository, f file, report func(violation)) {
	if f.syntax == nil || f.nested {
		return
	}
	r, known := ruleFor(packageTable(), f.folder())
	if !known {
		report(violation{path: f.folder(), what: "the package has no row in the policy's table",
			reason: "the layer of a new package is a decision: add a row to cmd/policy/table.go"})
		return
	}
	for _, spec := range f.syntax.Imports {
		if what, reason, ok := checkImport(t, f, r, spec); !ok {
			report(violation{line: t.line(spec), what: what, reason: reason})
		}
	}
}

func ruleFor(rows []packageRule, folder string) (packageRule, bool) {
	i := slices.IndexFunc(rows, func(r packageRule) bool { return covers(r.pkg, folder) })
	if i < 0 {
		return packageRule{}, false
	}
	return rows[i], true
}

// checkImport reports whether a file may make an import, and if not, what it imports and why that is refused.
func checkImport(t *repository, f file, r packageRule, spec *ast.ImportSpec) (what, reason string, ok bool) {
	imported := importPath(spec)
	if spec.Name != nil && spec.Name.Name == "." {
		return "imports " + imported + " with a dot", "dot imports hide where a name comes from", false
	}
	name, internal := t.packageDir(imported)
	what = "imports " + name
	if !f.test {
		if reason, banned := banReason(r.bannedImports, name); banned {
			return what, reason, false
		}
		if reason, banned := banReason(bansForAll(), name); banned && !coversAny(r.external, name) {
			return what, reason, false
		}
	}
	if internal {
		if r.internal == nil {
			r.internal = lowerLayers(r.pkg)
		}
		if name == f.folder() || coversAny(r.internal, name) || f.test && coversAny(r.testInternal, name) {
			return "", "", true
		}
		if covers("jepsen/...", name) {
			return what, "jepsen may import every package; no package may import jepsen", false
		}
		return what, fmt.Sprintf("a package may import only lower layers, and %s is not below %s", name, f.folder()), false
	}
	allowed := r.external
	if f.test {
		allowed = slices.Concat(allowed, testLibraries(), []string{std})
	}
	if coversAny(allowed, name) || isStandard(name) && slices.Contains(allowed, std) {
		return "", "", true
	}
	return what, fmt.Sprintf("it is not on the list of %s; a new dependency is a decision, taken in cmd/policy/table.go", r.pkg), false
}

// packageDir turns an import path of ours into the package's folder; another's path stays as it is.
func (t *repository) packageDir(imported string) (name string, internal bool) {
	if imported == t.module {
		return ".", true
	}
	if folder, ok := strings.CutPrefix(imported, t.module+"/"); ok {
		return folder, true
	}
	return imported, false
}

func banReason(bans []ban, name string) (reason string, banned bool) {
	i := slices.IndexFunc(bans, func(b ban) bool { return covers(b.pattern, name) })
	if i < 0 {
		return "", false
	}
	return bans[i].reason, true
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

package main

import (
	"fmt"
	"go/ast"
	"slices"
	"strconv"
	"strings"
)

// checkImports holds the tree to the table.
func checkImports(t *tree) []violation {
	var found []violation
	rows := table()
	strangers := map[string]bool{} // packages without a row, reported once each
	for _, f := range t.files {
		if f.syntax == nil || f.nested {
			continue
		}
		r, known := rowOf(rows, f.folder())
		if !known {
			if !strangers[f.folder()] {
				strangers[f.folder()] = true
				found = append(found, violation{f.path, 0, "package " + f.folder() + " has no row in the policy's table",
					"the layer of a new package is a decision: add a row to cmd/policy/table.go"})
			}
			continue
		}
		for _, spec := range f.syntax.Imports {
			if what, why, ok := judge(t, f, r, spec); !ok {
				found = append(found, violation{f.path, t.line(spec), what, why})
			}
		}
	}
	for _, r := range rows {
		found = append(found, checkLinks(t, r)...)
	}
	return found
}

func rowOf(rows []row, folder string) (row, bool) {
	i := slices.IndexFunc(rows, func(r row) bool { return covers(r.pkg, folder) })
	if i < 0 {
		return row{}, false
	}
	return rows[i], true
}

// judge says whether a file may make an import, and if not, what it did and why that is refused.
func judge(t *tree, f file, r row, spec *ast.ImportSpec) (what, why string, ok bool) {
	imported := importPath(spec)
	if spec.Name != nil && spec.Name.Name == "." {
		return "imports " + imported + " with a dot", "dot imports hide where a name comes from", false
	}
	name, own := t.own(imported)
	what = "imports " + name
	if !f.test {
		if why, banned := reason(r.bans, name); banned {
			return what, why, false
		}
		if why, banned := reason(bansForAll(), name); banned && !coversAny(r.outside, name) {
			return what, why, false
		}
	}
	if own {
		if name == f.folder() || coversAny(r.ours, name) || f.test && coversAny(r.tests, name) {
			return "", "", true
		}
		if covers("jepsen/...", name) {
			return what, "jepsen may import every package; no package may import jepsen", false
		}
		return what, fmt.Sprintf("a package may import only lower layers, and %s is not below %s", name, f.folder()), false
	}
	allowed := r.outside
	if f.test {
		allowed = slices.Concat(allowed, testLibraries(), []string{std})
	}
	if coversAny(allowed, name) || isStandard(name) && slices.Contains(allowed, std) {
		return "", "", true
	}
	return what, fmt.Sprintf("it is not on the list of %s; a new dependency is a decision, taken in cmd/policy/table.go", r.pkg), false
}

// checkLinks follows the imports of a package through ours, to what it would link.
func checkLinks(t *tree, r row) []violation {
	if len(r.links) == 0 {
		return nil
	}
	var found []violation
	type step struct{ folder, chain string }
	seen := map[string]bool{r.pkg: true}
	for queue := []step{{r.pkg, r.pkg}}; len(queue) > 0; queue = queue[1:] {
		here := queue[0]
		for _, f := range t.files {
			if f.syntax == nil || f.test || f.nested || f.folder() != here.folder {
				continue
			}
			for _, spec := range f.syntax.Imports {
				name, own := t.own(importPath(spec))
				if seen[name] {
					continue
				}
				seen[name] = true
				chain := here.chain + " → " + name
				if why, banned := reason(r.links, name); banned {
					found = append(found, violation{f.path, t.line(spec), "links " + name + " (" + chain + ")", why})
				} else if own {
					queue = append(queue, step{name, chain})
				}
			}
		}
	}
	return found
}

// own turns an import path of ours into the package's folder; another's path stays as it is.
func (t *tree) own(imported string) (name string, ours bool) {
	if imported == t.module {
		return ".", true
	}
	if folder, ok := strings.CutPrefix(imported, t.module+"/"); ok {
		return folder, true
	}
	return imported, false
}

func reason(bans []ban, name string) (why string, banned bool) {
	i := slices.IndexFunc(bans, func(b ban) bool { return covers(b.what, name) })
	if i < 0 {
		return "", false
	}
	return bans[i].why, true
}

func importPath(spec *ast.ImportSpec) string {
	p, err := strconv.Unquote(spec.Path.Value)
	if err != nil { // the parser has accepted it
		return spec.Path.Value
	}
	return p
}

// isStandard reports whether an import path is the standard library's: its first element has no
// dot. (Ours may have none either, but is told apart before.)
func isStandard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

package main

import (
	"path"
	"strings"
)

// checkPackageDocs asks each package, commands and packages for tests included, for a doc.go that
// holds its package comment: the manual, in the place where everybody looks first.
func checkPackageDocs(t *repository) []violation {
	first := map[string]file{}
	docFile := map[string]file{}
	for _, f := range t.files {
		if f.syntax == nil {
			continue
		}
		if _, ok := first[f.folder()]; !ok {
			first[f.folder()] = f
		}
		if path.Base(f.path) == "doc.go" {
			docFile[f.folder()] = f
		}
	}
	var found []violation
	for folder, f := range first {
		doc, ok := docFile[folder]
		switch {
		case !ok:
			found = append(found, violation{f.path, 0, "package " + folder + " has no doc.go",
				"the package comment is the documentation, and readers look for it in doc.go"})
		case doc.syntax.Doc == nil || strings.TrimSpace(doc.syntax.Doc.Text()) == "":
			found = append(found, violation{doc.path, t.line(doc.syntax), "doc.go has no package comment",
				"begin the package comment with one sentence that says what the package is for"})
		}
	}
	return found
}

package main

import "path"

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

package main

import (
	"bytes"
	"regexp"
)

// checkModule reads go.mod for what an importer would inherit or miss.
func checkModule(t *repository) []violation {
	tools := regexp.MustCompile(`^(tool\b|(require)?\s*(honnef\.co/go/tools|golang\.org/x/vuln|github\.com/golangci/\S+|github\.com/bufbuild/buf)\s)`)
	var found []violation
	for _, f := range t.files {
		if f.path != "go.mod" {
			continue
		}
		for i, line := range bytes.Split(f.text, []byte("\n")) {
			switch {
			case tools.Match(line):
				found = append(found, violation{f.path, i + 1, "names a tool",
					"importers of this module would inherit it; pin it in the Makefile and run it with go run"})
			case bytes.HasPrefix(line, []byte("replace")):
				found = append(found, violation{f.path, i + 1, "replaces a module",
					"it counts only in this checkout: importers would build something else than was tested"})
			}
		}
	}
	return found
}

package main

import (
	"path"
	"slices"
	"strings"
)

// vagueNames say nothing about what they name.
func vagueNames() []string {
	return []string{"util", "utils", "common", "helper", "helpers", "manager", "managers", "misc"}
}

// checkNames refuses files, folders and packages whose name any code would fit.
func checkNames(t *repository) []violation {
	const why = "a generic name attracts unrelated code; name it after its one subject"
	var found []violation
	for _, f := range t.goFiles() {
		if name, ok := findVagueName(f.syntax.Name.Name); ok {
			found = append(found, violation{f.path, t.line(f.syntax.Name), "a package called " + name, why})
		}
		for _, element := range strings.Split(f.path, "/") {
			if name, ok := findVagueName(strings.TrimSuffix(element, path.Ext(element))); ok {
				found = append(found, violation{f.path, 0, "a path with " + name + " in it", why})
			}
		}
	}
	return found
}

// findVagueName finds an empty word among the words of a name.
func findVagueName(name string) (word string, found bool) {
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return r == '_' || r == '-' || r == '.' })
	for _, word := range words {
		if slices.Contains(vagueNames(), word) {
			return word, true
		}
	}
	return "", false
}

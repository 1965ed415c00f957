package main

import (
	"path"
	"slices"
	"strings"
)

// emptyNames say nothing about what they name.
func emptyNames() []string {
	return []string{"util", "utils", "common", "helper", "helpers", "manager", "managers", "misc"}
}

// checkNames refuses files, folders and packages whose name any code would fit.
func checkNames(t *tree) []violation {
	const why = "a generic name attracts unrelated code; name it after its one subject"
	var found []violation
	for _, f := range t.code() {
		if name, ok := emptyName(f.syntax.Name.Name); ok {
			found = append(found, violation{f.path, t.line(f.syntax.Name), "a package called " + name, why})
		}
		for _, element := range strings.Split(f.path, "/") {
			if name, ok := emptyName(strings.TrimSuffix(element, path.Ext(element))); ok {
				found = append(found, violation{f.path, 0, "a path with " + name + " in it", why})
			}
		}
	}
	return found
}

// emptyName finds an empty word among the words of a name.
func emptyName(name string) (word string, found bool) {
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return r == '_' || r == '-' || r == '.' })
	for _, word := range words {
		if slices.Contains(emptyNames(), word) {
			return word, true
		}
	}
	return "", false
}

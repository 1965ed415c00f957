package main

import (
	"regexp"
	"strings"
)

// checkNames refuses files, folders and packages whose name any code would fit.
func checkNames(t *repository) []violation {
	const why = "a generic name attracts unrelated code; name it after its one subject"
	vague := regexp.MustCompile(`(?i)(?:^|[-_./])(utils?|common|helpers?|managers?|misc)(?:$|[-_./])`)
	var found []violation
	for _, f := range t.goFiles() {
		if m := vague.FindStringSubmatch(f.syntax.Name.Name); m != nil {
			found = append(found, violation{f.path, t.line(f.syntax.Name), "a package called " + strings.ToLower(m[1]), why})
		}
		if m := vague.FindStringSubmatch(f.path); m != nil {
			found = append(found, violation{f.path, 0, "a path with " + strings.ToLower(m[1]) + " in it", why})
		}
	}
	return found
}

package main

import (
	"bytes"
	"regexp"
	"strings"
)

// wordExceptions are files in which a word proves nothing.
func wordExceptions() []string {
	return []string{"LICENSE", "go.sum", "cmd/policy/testdata/..."} // the last breaks rules on purpose
}

// checkWords reads every file of text for what should not be handed to others.
func checkWords(t *repository) []violation {
	// Put together here, so that this file does not find itself.
	unfinished := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME)\b`)
	homePattern := regexp.MustCompile(`(^|[^\w.~-])(/home/[a-z]\w*|/Users/[A-Za-z]\w*|/root/[\w.]|[A-Z]:\\Users\\)`)

	// A folder at the root, such as /src, is too likely to be an ordinary word.
	var checkout *regexp.Regexp
	if strings.Count(t.home, "/") > 1 {
		checkout = regexp.MustCompile(`(^|[^\w/-])` + regexp.QuoteMeta(t.home) + `($|[^\w-])`)
	}

	var found []violation
	for _, f := range t.files {
		if coversAny(wordExceptions(), f.path) || f.generated || strings.Contains(f.path, "testdata/fuzz/") {
			continue
		}
		for i, line := range bytes.Split(f.text, []byte("\n")) {
			at := func(what, why string) { found = append(found, violation{f.path, i + 1, what, why}) }
			if word := unfinished.Find(line); word != nil {
				at("contains "+string(word), "unfinished work does not belong in code; do it, or document the limit where users read it")
			}
			if home := homePattern.FindSubmatch(line); home != nil && !isExampleHome(string(home[2])) {
				at("names "+string(home[2]), "that path exists on one machine; take it from the environment, a flag or a temporary folder")
			}
			if checkout != nil && checkout.Match(line) {
				at("names the place of this checkout", "that path exists on one machine; start from the module's root")
			}
		}
	}
	return found
}

// isExampleHome exempts the home directories that documentation and images use as examples.
func isExampleHome(home string) bool { return home == "/home/you" || home == "/home/nonroot" }

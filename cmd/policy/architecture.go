package main

import (
	_ "embed"
	"slices"
	"strings"
	"sync"
)

//go:embed architecture.txt
var architectureText string

// architecture is the content of architecture.txt, which explains its statements.
type architecture struct {
	layers [][][]string // lines of columns of packages
	rules  map[string]*packageRule
	calls  []callBan
}

// packageRule is what a package may import; a pattern of imports is one of covers.
type packageRule struct {
	may, tests []string
	bans       []ban
}

// callBan is functions, such as time.Now, that only some packages may call.
type callBan struct {
	functions, allowed []string
	reason             string
}

const forAll = "all" // the name of the rule for every package

// ban is a forbidden import, with the reason.
type ban struct{ pattern, reason string }

// theArchitecture is parsed once. It panics on an unknown statement.
var theArchitecture = sync.OnceValue(func() *architecture {
	a := &architecture{rules: map[string]*packageRule{}}
	names, subjects := map[string]string{}, []string{}
	for line := range strings.Lines(architectureText) {
		statement, reason, _ := strings.Cut(strings.TrimSpace(line), ": ")
		verb, rest, _ := strings.Cut(statement, " ")
		words := strings.Fields(rest)
		for i, word := range words {
			if full, ok := names[word]; ok {
				words[i] = full
			}
		}
		switch verb {
		case "", "#":
		case "layers":
			var columns [][]string
			for column := range strings.SplitSeq(rest, "◄") {
				columns = append(columns, strings.Fields(column))
			}
			a.layers = append(a.layers, columns)
		case "let":
			names[words[0]] = words[2]
		case "for":
			subjects = words
		case "calls":
			a.calls = append(a.calls, callBan{functions: words, reason: reason})
		case "only":
			last := &a.calls[len(a.calls)-1]
			last.allowed = append(last.allowed, words...)
		case "may", "tests", "never":
			for _, pkg := range subjects {
				a.add(pkg, verb, words, reason)
			}
		default:
			panic("architecture.txt: unknown statement: " + line)
		}
	}
	return a
})

// add adds a statement to the rule of a package.
func (a *architecture) add(pkg, verb string, imports []string, reason string) {
	if a.rules[pkg] == nil {
		a.rules[pkg] = &packageRule{}
	}
	r := a.rules[pkg]
	switch verb {
	case "may":
		r.may = append(r.may, imports...)
	case "tests":
		r.tests = append(r.tests, imports...)
	case "never":
		for _, pattern := range imports {
			r.bans = append(r.bans, ban{pattern, reason})
		}
	}
}

// rule is the rule of a package; nil if there is none.
func (a *architecture) rule(folder string) *packageRule {
	for pattern, r := range a.rules {
		if covers(pattern, folder) && pattern != forAll {
			return r
		}
	}
	return nil
}

// lower are the packages to the left of a package, in all lines of layers, and what is to the left
// of them.
func (a *architecture) lower(pkg string) (lower []string) {
	for next := []string{pkg}; len(next) > 0; next = next[1:] {
		for _, line := range a.layers {
			for i, column := range line {
				if !slices.Contains(column, next[0]) {
					continue
				}
				for _, p := range slices.Concat(line[:i]...) {
					if !slices.Contains(lower, p) {
						lower, next = append(lower, p), append(next, p)
					}
				}
			}
		}
	}
	return lower
}

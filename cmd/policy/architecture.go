package main

import (
	_ "embed"
	"slices"
	"strings"
	"sync"
)

//go:embed architecture.txt
var architectureText string

// architecture is what architecture.txt says, which explains the words.
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

// callBan is uses of functions, such as time.Now, that only some packages may make.
type callBan struct {
	functions, allowed []string
	reason             string
}

const forAll = "all" // the name of the rule for every package

// ban is an import with the reason why it is not made here.
type ban struct{ pattern, reason string }

// theArchitecture is read once. A line that says nothing is a mistake of this package.
var theArchitecture = sync.OnceValue(func() *architecture {
	a := &architecture{rules: map[string]*packageRule{}}
	names, about := map[string]string{}, []string{}
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
			about = words
		case "calls":
			a.calls = append(a.calls, callBan{functions: words, reason: reason})
		case "only":
			last := &a.calls[len(a.calls)-1]
			last.allowed = append(last.allowed, words...)
		case "may", "tests", "never":
			for _, pkg := range about {
				a.add(pkg, verb, words, reason)
			}
		default:
			panic("architecture.txt: what is this: " + line)
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

// lower are the packages to the left of a package, in all lines of layers.
func (a *architecture) lower(pkg string) (lower []string) {
	for _, line := range a.layers {
		for i, column := range line {
			if slices.Contains(column, pkg) {
				lower = append(lower, slices.Concat(line[:i]...)...)
			}
		}
	}
	for _, p := range slices.Clone(lower) {
		lower = append(lower, a.lower(p)...)
	}
	return lower
}

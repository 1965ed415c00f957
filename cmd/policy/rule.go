package main

import (
	"cmp"
	"fmt"
)

// rule is one thing that the tree is held to. Its name is also the name of the file in testdata
// that shows it failing.
type rule struct {
	name  string
	check func(*repository) []violation
}

func rules() []rule {
	return []rule{
		{"imports", checkImports},
		{"calls", checkCalls},
		{"tests", checkTests},
		{"sizes", checkSizes},
		{"names", checkNames},
		{"packagedocs", checkPackageDocs},
		{"words", checkWords},
		{"module", checkModule},
	}
}

// violation is where a rule is broken, by what, and why the rule exists.
type violation struct {
	path   string
	line   int // 0: the file as a whole
	what   string
	reason string
}

func (v violation) String() string {
	if v.line == 0 {
		return fmt.Sprintf("%s: %s: %s", v.path, v.what, v.reason)
	}
	return fmt.Sprintf("%s:%d: %s: %s", v.path, v.line, v.what, v.reason)
}

func (v violation) compare(w violation) int {
	return cmp.Or(cmp.Compare(v.path, w.path), cmp.Compare(v.line, w.line), cmp.Compare(v.what, w.what))
}

package main

import (
	"fmt"
	"io"
	"path"
	"strings"
	"time"
)

// table writes the mutants that have a name of their own as rows of jepsen/README.md: what catches each, and
// how fast, with all that it takes to build the test.
func table(w io.Writer, mutants []mutant, verdicts []verdict) {
	for i, m := range mutants {
		if v := verdicts[i]; m.known != "" && v.word == "caught" {
			fmt.Fprintf(w, "%s %v |\n", m.row(), v.took.Round(time.Second))
		}
	}
}

// row is a mutant's row up to the time that it took.
func (m mutant) row() string {
	folder, name := path.Split(m.name)
	return fmt.Sprintf("| %s | [%s](../%stestdata/mutants/%s.patch) | %s | %s `%s` |",
		m.known, m.plants, folder, name, m.catcher.tier(), m.catcher.pkg, m.catcher.name)
}

// tier is which kind of test it is.
func (t test) tier() string {
	switch {
	case strings.HasPrefix(t.pkg, "./jepsen/sim"):
		return "simulation"
	case strings.HasPrefix(t.pkg, "./jepsen/real"):
		return "real processes"
	}
	return "unit"
}

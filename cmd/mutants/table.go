package main

import (
	"fmt"
	"io"
	"path"
	"strings"
	"time"
)

// writeTable writes the mutants that have a name of their own as rows of docs/testing.md: what catches each, and
// how fast, with all that it takes to build the test.
func writeTable(w io.Writer, mutants []mutant, verdicts []verdict) {
	for i, m := range mutants {
		if v := verdicts[i]; m.shortName != "" && v.kind == "caught" {
			fmt.Fprintf(w, "%s %v |\n", m.tableRow(), v.took.Round(time.Second))
		}
	}
}

// tableRow is a mutant's row up to the time that it took.
func (m mutant) tableRow() string {
	folder, name := path.Split(m.name)
	return fmt.Sprintf("| %s | [%s](../%stestdata/mutants/%s.patch) | %s | %s `%s` |",
		m.shortName, m.mutation, folder, name, m.killer.tier(), m.killer.pkg, m.killer.name)
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

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
)

// print writes a document: as one of JSON with -o json, else as text for people.
func (a *app) print(doc any, text func(w io.Writer)) error {
	if a.output == "json" {
		encoder := json.NewEncoder(a.stdout)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return encoder.Encode(doc)
	}
	text(a.stdout)
	return nil
}

// printLine writes one of many documents: with -o json each is on a line of its own.
func (a *app) printLine(doc any, text string) error {
	if a.output == "json" {
		encoder := json.NewEncoder(a.stdout)
		encoder.SetEscapeHTML(false)
		return encoder.Encode(doc)
	}
	_, err := fmt.Fprintln(a.stdout, text)
	return err
}

// table writes rows in columns, the first row being their heads.
func table(w io.Writer, rows [][]string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(t, "\t")
			}
			fmt.Fprint(t, sanitizeLine(cell))
		}
		fmt.Fprintln(t)
	}
	t.Flush()
}

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"zamok/api/visible"
)

// print writes a document as JSON with -o json, otherwise as text for people.
func (a *app) print(doc any, text func(w io.Writer)) error {
	if a.output == "json" {
		return a.printJSON(doc, "  ")
	}
	var out bytes.Buffer
	text(&out)
	_, err := io.WriteString(a.stdout, visible.Lines(out.String()))
	return err
}

// printLine writes one of many documents, each on a line.
func (a *app) printLine(doc any, text string) error {
	if a.output == "json" {
		return a.printJSON(doc, "")
	}
	_, err := fmt.Fprintln(a.stdout, visible.Line(text))
	return err
}

func (a *app) printJSON(doc any, indent string) error {
	encoder := json.NewEncoder(visibleWriter{a.stdout, visible.JSON})
	encoder.SetIndent("", indent)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(doc)
}

// visibleWriter escapes invisible characters. Each Write contains whole lines.
type visibleWriter struct {
	w    io.Writer
	show func(string) string
}

func (v visibleWriter) Write(text []byte) (int, error) {
	if _, err := io.WriteString(v.w, v.show(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}

// cellColumnsMax is the maximum width of a cell of a table; longer texts are cut.
const cellColumnsMax = 128

// table writes rows in columns. The first row is the head.
func table(w io.Writer, rows [][]string) {
	cells := mapSlice(rows, func(row []string) []string {
		return mapSlice(row, func(cell string) string {
			return visible.Cut(visible.Cell(cell), cellColumnsMax)
		})
	})
	widths := make([]int, len(rows[0]))
	for _, row := range cells {
		for i, cell := range row {
			widths[i] = max(widths[i], visible.Columns(cell)+2)
		}
	}
	for _, row := range cells {
		for i, cell := range row {
			if i == len(row)-1 {
				fmt.Fprintln(w, cell)
			} else {
				fmt.Fprint(w, cell, strings.Repeat(" ", widths[i]-visible.Columns(cell)))
			}
		}
	}
}

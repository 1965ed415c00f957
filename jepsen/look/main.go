package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"zamok/jepsen/check"
	"zamok/jepsen/report"
)

func main() {
	dir := flag.String("o", "", "the `directory` to write the report into; none: tell the findings only")
	flag.Parse()
	verdict, err := recheck(*dir, flag.Args())
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "look:", err)
		os.Exit(2)
	case verdict != report.Passed:
		os.Exit(1)
	}
}

func recheck(dir string, files []string) (report.Verdict, error) {
	if len(files) == 0 {
		return "", errors.New("name the files of a history")
	}
	var h check.History
	for _, name := range files {
		if err := readHistory(&h, name); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
	}
	r := check.Check(&h, check.Limits{})
	fmt.Print(r)
	run := report.Run{History: &h, Report: r, Command: "go run ./jepsen/look " + strings.Join(files, " ")}
	if dir == "" {
		return report.VerdictOf(r), nil
	}
	s, err := report.Write(dir, run)
	if err != nil {
		return "", err
	}
	fmt.Println("the report is in", filepath.Join(dir, "timeline.html"))
	return s.Verdict, nil
}

func readHistory(h *check.History, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	return h.Read(file)
}

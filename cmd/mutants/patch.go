package main

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// filePatch is the part of a unified diff for one file.
type filePatch struct {
	path  string
	hunks []hunk
}

// hunk replaces the lines before by the lines after; both include the context.
type hunk struct {
	line          int // the original place of before, from 1; a hint
	before, after []string
}

var (
	headLines = regexp.MustCompile(`\A(?:(?:#.*|[ \t]*)\n)*`)
	headEntry = regexp.MustCompile(`(?m)^# *([^:\n]+): (.*(?:\n#   .*)*)`)
	// diff adds the time of the file after a tab
	fileHead = regexp.MustCompile(
		`\A(?:(?:diff --git|index) .*\n)*--- ([^\t\n]*).*\n\+\+\+ ([^\t\n]*).*\n`)
	hunkHead = regexp.MustCompile(`\A@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@.*\n`)
)

// parse reads the head of a patch, "# key: text" with "#   more text" below it, and its diff. An
// unknown line is an error: its author thinks that it is applied.
func parse(text string) (head map[string]string, patches []filePatch, err error) {
	if strings.Contains(text, "\r") {
		return nil, nil, errors.New("the patch has line ends of another system")
	}
	text = strings.TrimSuffix(text, "\n") + "\n"
	comment := headLines.FindString(text)
	head = map[string]string{}
	for _, entry := range headEntry.FindAllStringSubmatch(comment, -1) {
		head[entry[1]] = strings.Join(strings.Fields(strings.ReplaceAll(entry[2], "\n#", " ")), " ")
	}
	for rest := text[len(comment):]; rest != ""; {
		last := len(patches) - 1
		if match := fileHead.FindStringSubmatch(rest); match != nil {
			p := strings.TrimPrefix(match[2], "b/")
			if match[1] != "a/"+p || match[2] != "b/"+p {
				return nil, nil, fmt.Errorf(
					"a mutant changes a file in its place, as --- a/PATH and +++ b/PATH; "+
						"not %q, %q", "--- "+match[1], "+++ "+match[2])
			}
			patches, rest = append(patches, filePatch{path: p}), rest[len(match[0]):]
		} else if match := hunkHead.FindStringSubmatch(rest); match != nil && last >= 0 {
			h := hunk{line: number(match[1])}
			if rest, err = h.read(rest[len(match[0]):], number(match[2]),
				number(match[3])); err != nil {
				return nil, nil, err
			}
			patches[last].hunks = append(patches[last].hunks, h)
		} else {
			line, _, _ := strings.Cut(rest, "\n")
			return nil, nil, fmt.Errorf("line %d is no part of a unified diff: %q",
				strings.Count(text, "\n")-strings.Count(rest, "\n")+1, line)
		}
	}
	if len(patches) == 0 || slices.ContainsFunc(patches,
		func(p filePatch) bool { return len(p.hunks) == 0 }) {
		return nil, nil, errors.New("the patch changes nothing")
	}
	return head, patches, nil
}

// number reads a number of a hunk's head; a missing one is 1.
func number(digits string) int {
	n, _ := strconv.Atoi(cmp.Or(digits, "1")) // the pattern lets only digits through
	return n
}

// read reads the lines of a hunk, checks their number against its head, and returns the rest of the
// patch.
func (h *hunk) read(text string, before, after int) (rest string, err error) {
	for rest = text; rest != "" && (len(h.before) != before || len(h.after) != after); {
		var line string
		line, rest, _ = strings.Cut(rest, "\n")
		line = cmp.Or(line, " ") // editors strip the blank of an empty line
		if !strings.Contains(" +-", line[:1]) {
			return "", fmt.Errorf("the hunk at line %d holds %q", h.line, line)
		}
		if line[0] != '+' {
			h.before = append(h.before, line[1:])
		}
		if line[0] != '-' {
			h.after = append(h.after, line[1:])
		}
	}
	if len(h.before) != before || len(h.after) != after {
		return "", fmt.Errorf("the hunk at line %d announces %d and %d lines and holds %d and %d",
			h.line, before, after, len(h.before), len(h.after))
	}
	return rest, nil
}

// apply returns the text with all hunks applied, or the first that does not fit.
func (p filePatch) apply(text string) (string, error) {
	lines := strings.Split(text, "\n")
	done := 0 // hunks are in the order of the file
	var result []string
	for _, h := range p.hunks {
		at, err := h.locate(lines, done)
		if err != nil {
			return "", fmt.Errorf("%s: the hunk at line %d %w", p.path, h.line, err)
		}
		result = append(append(result, lines[done:at]...), h.after...)
		done = at + len(h.before)
	}
	mutated := strings.Join(append(result, lines[done:]...), "\n")
	if mutated == text {
		return "", fmt.Errorf("%s: the patch changes nothing", p.path)
	}
	return mutated, nil
}

// locate finds where a hunk fits, at or after the line from (counted from 0): at its own line, or
// else in the only place where it fits.
func (h hunk) locate(lines []string, from int) (int, error) {
	if len(h.before) == 0 {
		return 0, errors.New("shows no line of the file: give it context")
	}
	var places []int
	for at := from; at+len(h.before) <= len(lines); at++ {
		if slices.Equal(lines[at:at+len(h.before)], h.before) {
			places = append(places, at)
		}
	}
	switch {
	case slices.Contains(places, h.line-1):
		return h.line - 1, nil
	case len(places) == 0:
		return 0, errors.New("fits nowhere: the code has changed, write the mutant again")
	case len(places) > 1:
		return 0, fmt.Errorf("has moved and fits in %d places: give it more context", len(places))
	}
	return places[0], nil
}

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

// filePatch is the part of a unified diff that is about one file.
type filePatch struct {
	path  string
	hunks []hunk
}

// hunk replaces the lines before by the lines after; both hold the context around the change.
type hunk struct {
	line          int // where before was, counted from 1; a hint
	before, after []string
}

// parse reads the head of a patch, "# key: text" with "#   more text" below it, and its diff. Every
// line must be understood: what a lenient reader skips is what its author thought was applied.
func parse(text string) (head map[string]string, patches []filePatch, err error) {
	if strings.Contains(text, "\r") {
		return nil, nil, errors.New("the patch has line ends of another system")
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	head, rest := parseHead(lines)
	for len(rest) > 0 && err == nil {
		last := len(patches) - 1
		switch {
		case strings.HasPrefix(rest[0], "diff --git "), strings.HasPrefix(rest[0], "index "):
			rest = rest[1:] // git repeats itself in the two lines that count
		case strings.HasPrefix(rest[0], "--- ") && len(rest) > 1:
			var p filePatch
			p.path, err = patchedPath(rest[0], rest[1])
			patches, rest = append(patches, p), rest[2:]
		case strings.HasPrefix(rest[0], "@@ ") && last >= 0:
			var h hunk
			h, rest, err = parseHunk(rest)
			patches[last].hunks = append(patches[last].hunks, h)
		default:
			err = fmt.Errorf("line %d is no part of a unified diff: %q", len(lines)-len(rest)+1, rest[0])
		}
	}
	if err == nil && (len(patches) == 0 || slices.ContainsFunc(patches, func(p filePatch) bool { return len(p.hunks) == 0 })) {
		err = errors.New("the patch changes nothing")
	}
	return head, patches, err
}

// parseHead reads the comment lines and returns the lines after them.
func parseHead(lines []string) (head map[string]string, rest []string) {
	head = map[string]string{}
	var key string
	for i, line := range lines {
		comment, ok := strings.CutPrefix(line, "#")
		switch {
		case !ok && strings.TrimSpace(line) != "":
			return head, lines[i:]
		case key != "" && strings.HasPrefix(comment, "   "):
			head[key] += " " + strings.TrimSpace(comment)
		default:
			var value string
			key, value, _ = strings.Cut(strings.TrimSpace(comment), ": ")
			head[key] = strings.TrimSpace(value)
		}
	}
	return head, nil
}

// patchedPath takes the path from the two lines that name it.
func patchedPath(before, after string) (string, error) {
	from, okFrom := strings.CutPrefix(before, "--- a/")
	to, okTo := strings.CutPrefix(after, "+++ b/")
	from, _, _ = strings.Cut(from, "\t") // diff adds the time of the file
	to, _, _ = strings.Cut(to, "\t")
	if !okFrom || !okTo || from != to {
		return "", fmt.Errorf("a mutant changes a file in its place, as --- a/PATH and +++ b/PATH; not %q, %q", before, after)
	}
	return to, nil
}

var hunkHead = regexp.MustCompile(`^@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@`)

// parseHunk reads one hunk and holds it to the numbers of lines that it announces.
func parseHunk(lines []string) (h hunk, rest []string, err error) {
	match := hunkHead.FindStringSubmatch(lines[0])
	if match == nil {
		return hunk{}, nil, fmt.Errorf("not the head of a hunk: %q", lines[0])
	}
	number := func(s string) int {
		n, _ := strconv.Atoi(cmp.Or(s, "1")) // the pattern lets only digits through
		return n
	}
	h.line = number(match[1])
	before, after := number(match[2]), number(match[3])
	rest = lines[1:]
	for ; len(rest) > 0 && (len(h.before) != before || len(h.after) != after); rest = rest[1:] {
		kind, text := " ", ""
		if rest[0] != "" { // editors strip the blank of an empty line
			kind, text = rest[0][:1], rest[0][1:]
		}
		if !strings.Contains(" +-", kind) {
			return hunk{}, nil, fmt.Errorf("the hunk at line %d holds %q", h.line, rest[0])
		}
		if kind != "+" {
			h.before = append(h.before, text)
		}
		if kind != "-" {
			h.after = append(h.after, text)
		}
	}
	if len(h.before) != before || len(h.after) != after {
		return hunk{}, nil, fmt.Errorf("the hunk at line %d announces %d and %d lines and holds %d and %d",
			h.line, before, after, len(h.before), len(h.after))
	}
	return h, rest, nil
}

// apply returns the text with all hunks applied, or the first that does not fit.
func (p filePatch) apply(text string) (string, error) {
	lines := strings.Split(text, "\n")
	done := 0 // hunks stand in the order of the file
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

// locate finds where a hunk fits, at or after the line from (counted from 0): at its own line, or else
// in the only place where it does.
func (h hunk) locate(lines []string, from int) (int, error) {
	if len(h.before) == 0 {
		return 0, errors.New("shows no line of the file: give it context")
	}
	matches := func(at int) bool {
		return at >= from && at+len(h.before) <= len(lines) && slices.Equal(lines[at:at+len(h.before)], h.before)
	}
	if matches(h.line - 1) {
		return h.line - 1, nil
	}
	var places []int
	for at := from; at+len(h.before) <= len(lines); at++ {
		if matches(at) {
			places = append(places, at)
		}
	}
	switch len(places) {
	case 0:
		return 0, errors.New("fits nowhere: the code has changed, write the mutant again")
	case 1:
		return places[0], nil
	}
	return 0, fmt.Errorf("has moved and fits in %d places: give it more context", len(places))
}

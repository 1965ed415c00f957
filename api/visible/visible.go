package visible

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// marksMax bounds the combining marks on one letter; the scripts of living languages need no more.
const marksMax = 4

// Line escapes text for one line.
func Line(text string) string { return escape(text, "", inText) }

// Word escapes text as a part of a line, in quotes if its end would not be clear.
func Word(text string) string {
	if strings.ContainsAny(text, `"(),;`) || Cell(text) != Line(text) {
		return Quote(text)
	}
	return Line(text)
}

// Quote escapes text and puts it in quotes, as in Go.
func Quote(text string) string { return Line(strconv.Quote(text)) }

// Cell escapes text for a cell of a table, with its spaces distinct from those between columns.
func Cell(text string) string {
	const space = `\x20`
	text = strings.ReplaceAll(Line(text), "  ", space+space)
	if rest, found := strings.CutPrefix(text, " "); found {
		text = space + rest
	}
	if rest, found := strings.CutSuffix(text, " "); found {
		text = rest + space
	}
	return text
}

// Lines escapes text of several lines, which end with \n.
func Lines(text string) string { return escape(text, "\n", inText) }

// JSON escapes invisible characters in the strings of JSON documents, without changing their
// values.
func JSON(text string) string { return escape(text, "\n\t\r", inJSON) }

// escape replaces invisible characters that are not in kept. It calls escaped with -b for a byte b
// that is not UTF-8.
func escape(text, kept string, escaped func(r rune) string) string {
	if isPlain(text, kept) {
		return text
	}
	var b strings.Builder
	marks := marksMax // before the current character; marksMax: there is no letter to put one on
	for i, width := 0, 0; i < len(text); i += width {
		var r rune
		r, width = utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && width == 1:
			b.WriteString(escaped(-rune(text[i])))
			marks = marksMax
			continue
		case unicode.IsMark(r):
			marks++
		case unicode.IsLetter(r) || unicode.IsDigit(r):
			marks = 0
		default:
			marks = marksMax
		}
		if isVisible(r) && marks <= marksMax || strings.ContainsRune(kept, r) {
			b.WriteRune(r)
			continue
		}
		b.WriteString(escaped(r))
		marks = marksMax
	}
	return b.String()
}

// isPlain reports whether text is ASCII without characters to escape, which is the usual case.
func isPlain(text, kept string) bool {
	for i := range len(text) {
		if c := text[i]; (c < ' ' || c >= 0x7f) && strings.IndexByte(kept, c) < 0 {
			return false
		}
	}
	return true
}

// isVisible reports whether a character is visible where it is drawn.
func isVisible(r rune) bool {
	return unicode.IsPrint(r) &&
		!unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) &&
		r != '\u2800' // the pattern of Braille without a dot
}

func inText(r rune) string {
	if r < 0 {
		return fmt.Sprintf(`\x%02x`, -r)
	}
	quoted := fmt.Sprintf("%+q", r)
	return quoted[1 : len(quoted)-1]
}

func inJSON(r rune) string {
	switch {
	case r < 0: // JSON has no bytes
		r = utf8.RuneError
	case r > 0xffff:
		r -= 0x10000
		return fmt.Sprintf(`\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
	}
	return fmt.Sprintf(`\u%04x`, r)
}

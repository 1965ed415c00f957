package visible

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// marksMax is how many combining marks may stand on one letter: the scripts of living languages need no more.
const marksMax = 4

// Line returns text for one line.
func Line(text string) string { return escape(text, "", inText) }

// Word returns text for a part of a line that people can tell from the rest: in quotes if it could be taken for more.
func Word(text string) string {
	if strings.ContainsAny(text, `"(),;`) || Cell(text) != Line(text) {
		return Quote(text)
	}
	return Line(text)
}

// Quote returns text in quotes, as Go writes it.
func Quote(text string) string { return Line(strconv.Quote(text)) }

// Cell returns text for a cell of a table, whose spaces can be told from those between columns.
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

// Lines returns text of several lines, which \n ends.
func Lines(text string) string { return escape(text, "\n", inText) }

// JSON returns a document of JSON, or several, in which strings have escapes for what can't be seen. It means the same.
func JSON(text string) string { return escape(text, "\n\t\r", inJSON) }

// escape replaces what can't be seen, but for the characters in kept. A byte that is no part of a character is -byte to
// escaped.
func escape(text, kept string, escaped func(r rune) string) string {
	if isPlain(text, kept) {
		return text
	}
	var b strings.Builder
	marks := marksMax // how many the next one comes after
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

// isPlain reports whether text is ASCII of which nothing is to be escaped, as nearly all is.
func isPlain(text, kept string) bool {
	for i := range len(text) {
		if c := text[i]; (c < ' ' || c >= 0x7f) && strings.IndexByte(kept, c) < 0 {
			return false
		}
	}
	return true
}

// isVisible reports whether a person sees a character where it is drawn.
func isVisible(r rune) bool {
	return unicode.IsPrint(r) && !unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) &&
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

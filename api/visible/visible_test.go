package visible

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLineShowsWhatIsSeenAndEscapesTheRest(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                       "",
		"account/200 \\ \"'<&>~": "account/200 \\ \"'<&>~",
		"Łódź, 東京, Київ, שלום, دبي":         "Łódź, 東京, Київ, שלום, دبي",
		"e\u0301, नमस्ते, ภาษาไทยที่นี่, 🔒": "e\u0301, नमस्ते, ภาษาไทยที่นี่, 🔒",
		"a\nb\rc\td":                          `a\nb\rc\td`,
		"\x1b[2J\x07\b\x00\x7f":               `\x1b[2J\a\b\x00\x7f`,
		"\u0085\u009b31m":                     `\u0085\u009b31m`,
		"\u202eevil\u202c":                    `\u202eevil\u202c`,
		"\u2066\u2067\u2068\u2069":            `\u2066\u2067\u2068\u2069`,
		"\u200e\u200f\u061c":                  `\u200e\u200f\u061c`,
		"st\u200bo\u200cc\u200dk\ufeff\u2060": `st\u200bo\u200cc\u200dk\ufeff\u2060`,
		"so\u00adft":                          `so\u00adft`,
		"\U000e0001\U000e0041":                `\U000e0001\U000e0041`,
		"a\ufe0f\ufe00\U000e0100":             `a\ufe0f\ufe00\U000e0100`,
		"a\u034f\u115f\u1160\u3164\uffa0\u17b4\u180b\u2800": `a\u034f\u115f\u1160\u3164\uffa0\u17b4\u180b\u2800`,
		"a\u00a0b\u2003c\u3000d":                            `a\u00a0b\u2003c\u3000d`,
		"a\u2028b\u2029c":                                   `a\u2028b\u2029c`,
		"\u0301a":                                           `\u0301a`,
		" \u0301\u0302":                                     ` \u0301\u0302`,
		"\u202e\u0301":                                      `\u202e\u0301`,
		"a" + strings.Repeat("\u0301", 6): "a" + strings.Repeat("\u0301", 4) +
			`\u0301\u0301`,
		"\xff\xc3(\xed\xa0\x80":        `\xff\xc3(\xed\xa0\x80`,
		"\ufffd\ue000\U0010ffff\ufdd0": "\ufffd" + `\ue000\U0010ffff\ufdd0`,
	} {
		assert.Equal(t, want, Line(text), "%+q", text)
	}
	require.Equal(t, "a\nb\\r\\u202e\n", Lines("a\nb\r\u202e\n"))
}

func TestWordAndCellShowWhereTextEnds(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct{ word, cell string }{
		"account/200":   {"account/200", "account/200"},
		"my lock":       {"my lock", "my lock"},
		"":              {"", ""},
		" ":             {`" "`, `\x20`},
		"stock ":        {`"stock "`, `stock\x20`},
		" stock":        {`" stock"`, `\x20stock`},
		"a   mutex":     {`"a   mutex"`, `a\x20\x20 mutex`},
		"a (shared), b": {`"a (shared), b"`, "a (shared), b"},
		"x) token 9: force-released": {`"x) token 9: force-released"`,
			"x) token 9: force-released"},
		`say "a"` + "\u202e":  {`"say \"a\"\u202e"`, `say "a"\u202e`},
		"a, \U000e0100\u0301": {`"a, \U000e0100\u0301"`, `a, \U000e0100\u0301`},
	} {
		assert.Equal(t, want.word, Word(text), "%+q", text)
		assert.Equal(t, want.cell, Cell(text), "%+q", text)
	}
}

func TestJSONMeansTheSame(t *testing.T) {
	t.Parallel()
	document := "{\n\t\"name\": \"a\x7f\u0085\u202e\u200b\u0301\U000e0041ż\"}\n"
	shown := JSON(document)
	require.Equal(t, "{\n\t\"name\": \"a"+`\u007f\u0085\u202e\u200b\u0301\udb40\udc41`+"ż\"}\n",
		shown)
	var want, got map[string]string
	require.NoError(t, json.Unmarshal([]byte(document), &want))
	require.NoError(t, json.Unmarshal([]byte(shown), &got))
	require.Equal(t, want, got)
	require.Equal(t, `"\ufffd"`, JSON("\"\xff\""))
}

func TestCutCountsColumns(t *testing.T) {
	t.Parallel()
	for text, columns := range map[string]int{"": 0, "stock": 5, "東京": 4, "e\u0301": 1, "ｱ": 1,
		"Ａ": 2, "🔒x": 3} {
		assert.Equal(t, columns, Columns(text), text)
		assert.Equal(t, text, Cut(text, columns), text)
	}
	require.Equal(t, "sto…", Cut("stock", 4))
	require.Equal(t, "東…", Cut("東京", 3))
	require.Equal(t, "…", Cut("東京", 2))
	require.Equal(t, "ee\u0301…", Cut("ee\u0301eee", 3))
}

// What is shown is valid, in one line, made of what can be seen, and shown again as it is.
func FuzzVisible(f *testing.F) {
	for _, text := range []string{"a", "\x1b[2J", "\u202e\u0301\xff",
		"e\u0301\u0301\u0301\u0301\u0301", "東\U000e0041\n"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		line := Line(text)
		require.True(t, utf8.ValidString(line), "%+q", line)
		for _, r := range line {
			require.True(t, isVisible(r), "%+q of %+q", line, text)
		}
		require.Equal(t, line, Line(line))
		for _, s := range []string{Cell(text), Word(text)} {
			require.Equal(t, s, Line(s))
		}
		require.NotContains(t, Cell(text), "  ")
		require.Equal(t, strings.TrimSpace(Cell(text)), Cell(text))
		require.Equal(t, strings.Count(text, "\n"), strings.Count(Lines(text), "\n"))
		cut := Cut(line, 7)
		require.LessOrEqual(t, Columns(cut), 7)
		require.True(t, strings.HasPrefix(line, strings.TrimSuffix(cut, "…")))

		document, err := json.Marshal(map[string]string{text: text})
		require.NoError(t, err)
		var want, got map[string]string
		require.NoError(t, json.Unmarshal(document, &want))
		shown := JSON(string(document))
		require.NoError(t, json.Unmarshal([]byte(shown), &got))
		require.Equal(t, want, got)
		require.Equal(t, shown, Line(shown))
	})
}

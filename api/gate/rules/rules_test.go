package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const example = `
groups:
  billing: [ci-billing, "svc/*"]
  sre: token
rules:
  - groups: [billing]
    names: [account/*, stock]
    may: [lock, read, watch]
  - identities: [alice]
    groups: [sre]
    names: ["*"]
    may: [read, release, operate]
  - groups: [authenticated]
    names: [public/*]
    may: [read]
  - groups: [anonymous]
    names: [public/door]
    may: [lock]
`

func parse(t require.TestingT, text string) *Set {
	s, err := Parse([]byte(text))
	require.NoError(t, err)
	return s
}

func TestRulesAllow(t *testing.T) {
	s := parse(t, example)
	billing, service := Caller{Identity: "ci-billing"}, Caller{Identity: "svc/a"}
	alice, mallory := Caller{Identity: "alice"}, Caller{Identity: "mallory"}
	nameless := Caller{Identity: "alice", Anonymous: true}
	for _, c := range []struct {
		who  Caller
		verb Verb
		name string
		may  bool
	}{
		{billing, Lock, "account/200", true},
		{service, Lock, "account/200", true},
		{Caller{Identity: "svc"}, Lock, "account/200", false},
		{billing, Lock, "account/", true},
		{billing, Lock, "account", false},
		{billing, Lock, "stock", true},
		{billing, Lock, "stockholm", false},
		{billing, Release, "stock", false},
		{billing, Operate, "", false},
		{billing, Read, "public/x", true},
		{alice, Read, "stock", true},
		{alice, Lock, "stock", false},
		{alice, Operate, "", true},
		{Caller{Identity: "bob", Groups: []string{"sre"}}, Operate, "", true},
		// no group of tokens
		{Caller{Identity: "bob", Groups: []string{"billing"}}, Lock, "stock", false},
		{mallory, Read, "public/x", true},
		{mallory, Lock, "public/door", false},
		{nameless, Read, "public/x", false},
		{nameless, Operate, "", false},
		{nameless, Lock, "public/door", true},
		{Caller{Identity: "x", Groups: []string{"sre"}, Anonymous: true}, Operate, "", false},
	} {
		assert.Equal(t, c.may, s.May(c.who, c.verb, c.name), "%+v", c)
		assert.Equal(t, c.may, strings.HasPrefix(s.Why(c.who, c.verb, c.name),
			"allowed by the rule in line "), "%+v", c)
	}
	assert.True(t, (*Set)(nil).May(mallory, Operate, ""), "without a file everything is allowed")
	assert.Equal(t, "no rule allows it; allowed: read, release, operate",
		s.Why(alice, Lock, "stock"))
	assert.Equal(t, "no rule allows it or any other verb", s.Why(billing, Lock, "account"))
	assert.Equal(t, "no rule allows it; allowed: lock, read, watch", s.Why(billing, Operate, ""),
		"with some lock")
	assert.Equal(t, "no rule allows it or any other verb", (&Set{}).Why(billing, Operate, ""))
}

func TestWhatIsWrongIsNamedWithItsLine(t *testing.T) {
	for text, complaint := range map[string]string{
		"":                          "is empty",
		"rules: [":                  "is not YAML",
		"rules: []\n---\nrules: []": "a second YAML document",
		"[]":                        "line 1: expected a mapping",
		"groups: {}":                "line 1: \"rules\" is missing",
		"rules: {}":                 "line 1: expected a list of rules",
		"rule: []":                  "line 1: unknown key \"rule\"",
		"rules: []\nrules: []":      "line 2: \"rules\" is set twice",
		"rules:\n- may: [lock]":     "line 2: the rule has neither",
		"rules:\n- identities: [a]\n  names: [x]": "line 2: " +
			"\"may\" is missing",
		"rules:\n- identities: [a]\n  may: []": "allows nothing",
		"rules:\n- identities: [a]\n  may: [lock]": "no names " +
			"of locks",
		"rules:\n- identities: [a]\n  may: [lok]\n  names: [x]": "line 3: " +
			"\"lok\" is not a verb",
		"rules:\n- identities: [a]\n  may: [operate]\n  names: [x]": "remove names",
		"rules:\n- identities: [a]\n  may: [lock]\n  names: [x*y]": "line 4: " +
			"\"x*y\" has a *",
		"rules:\n- identities: [a]\n  may: [lock]\n  names: [7]": "line 4: " +
			"\"7\" is not a string",
		"rules:\n- identities: a\n  may: [lock]\n  names: [x]": "line 2: " +
			"expected a list of identities",
		"rules:\n- groups: [g]\n  may: [lock]\n  names: [x]": "line 2: " +
			"there is no group \"g\"",
		"groups:\n  g: []\nrules: []": "line 2: " +
			"the group \"g\" is empty",
		"groups:\n  anonymous: [a]\nrules: []":   "is built in",
		"groups:\n  g: [a]\n  g: [b]\nrules: []": "twice",
		"rules:\n- identities: [a]\n  may: [lock]\n  names: [x]\n  deny: [release]": "line 5: " +
			"unknown key \"deny\"",
		"rules: &x\n- identities: *x\n  may: [lock]\n  names: [x]": "line 2",
		strings.Repeat("#", fileBytesMax+1):                        "the maximum is",
		"rules:\n- identities: [\"anonymous@10.*\"]\n  may: [operate]": "line 2: " +
			"\"anonymous@10.*\" is not an identity",
		"rules:\n- identities: [a, Anonymous]\n  may: [operate]": "line 2: " +
			"\"Anonymous\" is not an identity but a group",
		"groups:\n  g: [authenticated]\nrules: []": "line 2: " +
			"\"authenticated\" is not an identity but a group",
		"rules: \xff": "is not UTF-8",
	} {
		_, err := Parse([]byte(text))
		require.ErrorContains(t, err, complaint, "%.80q", text)
	}
}

// TestAListingHasWhatMayBeRead: a name is in one of the ranges exactly if it has the prefix and may
// be read.
func TestAListingHasWhatMayBeRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.RuneFrom([]rune("ab/")), 1, 4, -1)
		patterns := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) string {
			return text.Draw(t, "text") + rapid.SampledFrom([]string{"", "*"}).Draw(t, "star")
		}), 1, 6).Draw(t, "patterns")
		s := parse(t,
			"rules:\n- identities: [a]\n  may: [read]\n  names: ["+strings.Join(patterns, ", ")+"]")
		c, prefix := Caller{Identity: "a"},
			rapid.StringOfN(rapid.RuneFrom([]rune("ab/")), 0, 3, -1).Draw(t, "prefix")
		ranges := s.Readable(c, Read, prefix)
		for range 20 {
			name, within := text.Draw(t, "name"), 0
			for _, r := range ranges {
				if r.Name != "" && r.Name == name ||
					r.Name == "" && strings.HasPrefix(name, r.Prefix) {
					within++
				}
			}
			want := 0
			if strings.HasPrefix(name, prefix) && s.May(c, Read, name) {
				want = 1
			}
			require.Equal(t, want, within, "%q in %v", name, ranges)
		}
	})
}

// TestManyRulesCostACallerLittle: of thousands of rules only those that may apply to a caller are
// evaluated.
func TestManyRulesCostACallerLittle(t *testing.T) {
	var text strings.Builder
	text.WriteString("groups:\n  ops: [root, u7]\nrules:\n- {groups: [ops], may: [operate]}\n- " +
		"{identities: [\"svc/*\"], names: [x], may: [read]}\n")
	for i := range rulesMax - 2 {
		fmt.Fprintf(&text, "- {identities: [u%d, u%d], names: [a%d/*], may: [lock]}\n", i, i, i)
	}
	s := parse(t, text.String())
	assert.Len(t, s.open, 1)
	assert.Equal(t, []int{0, 9}, s.exact["u7"])
	assert.True(t, s.May(Caller{Identity: "u7"}, Lock, "a7/x"))
	assert.True(t, s.May(Caller{Identity: "u7"}, Operate, ""))
	assert.False(t, s.May(Caller{Identity: "u8"}, Lock, "a7/x"))
	assert.False(t, s.May(Caller{Identity: "u7", Anonymous: true}, Lock, "a7/x"))
}

// FuzzParse reads a file of any bytes. For a file that is accepted, nothing but its rules allows
// anything: the index of callers, listings and explanations agree with a search through all rules,
// and an anonymous caller has no identity.
func FuzzParse(f *testing.F) {
	for _, identity := range []string{"alice", "svc/a", "anonymous@10.0.0.1"} {
		f.Add([]byte(example), identity, "account/200", "sre")
	}
	f.Add(
		[]byte("rules:\n- {groups: [anonymous, authenticated], may: [lock, watch], names: "+
			"[\"*\"]}"), "a", "b", "c")
	f.Fuzz(func(t *testing.T, text []byte, identity, name, group string) {
		s, err := Parse(text)
		if err != nil {
			require.Nil(t, s)
			return
		}
		for _, c := range []Caller{{Identity: identity},
			{Identity: identity, Groups: []string{group}},
			{Identity: identity, Groups: []string{group}, Anonymous: true}} {
			for _, verb := range verbs {
				may := s.May(c, verb, name)
				var want bool
				for i := range s.rules {
					want = want || slices.Contains(s.rules[i].verbs, verb) &&
						s.isAbout(&s.rules[i], c) && s.rules[i].allows(verb, name)
				}
				require.Equal(t, want, may, "%+v %s", c, verb)
				require.True(t, s.Some(c, verb) || !may)
				require.Equal(t, may, strings.HasPrefix(s.Why(c, verb, name),
					"allowed by the rule in line "))
				if c.Anonymous {
					require.Equal(t, s.May(Caller{Anonymous: true}, verb, name), may,
						"an anonymous caller has no identity")
				}
				if verb != Operate {
					listed := slices.ContainsFunc(s.Readable(c, verb, ""), func(r Range) bool {
						return r.Name == name && name != "" ||
							r.Name == "" && strings.HasPrefix(name, r.Prefix)
					})
					require.Equal(t, may, listed, "%+v %s", c, verb)
				}
			}
		}
	})
}

package rules

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// The limits of a rules file.
const (
	fileBytesMax = 1 << 20
	rulesMax     = 10_000
)

// LineError is an error in a rules file.
type LineError struct {
	Line int
	What string
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.What) }

func wrong(at *yaml.Node, format string, args ...any) error {
	return &LineError{at.Line, fmt.Sprintf(format, args...)}
}

// Parse reads a rules file. A file with an error has no effect at all.
func Parse(text []byte) (*Set, error) {
	switch {
	case len(text) > fileBytesMax:
		return nil, fmt.Errorf("has %d bytes; the maximum is %d", len(text), fileBytesMax)
	case !utf8.Valid(text):
		return nil, errors.New("is not UTF-8")
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document, second yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, errors.New(
			"is empty, which would deny everything; write rules: [] if that is intended")
	case err != nil:
		return nil, fmt.Errorf("is not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("has a second YAML document: write all rules into one")
	}
	s := &parser{Set: &Set{}}
	root := document.Content[0]
	err := eachKey(root, map[string]func(*yaml.Node) error{"groups": s.parseGroups,
		"rules": s.parseRules}, "rules")
	if err != nil {
		return nil, err
	}
	for _, use := range s.uses {
		if known := func(g group) bool {
			return g.name == use.Value
		}; !slices.ContainsFunc(s.groups, known) {
			return nil, wrong(use,
				"there is no group %q: define it under groups, with its identities, or as %s: "+
					"token if JWTs name its members", use.Value, use.Value)
		}
	}
	s.index()
	return s.Set, nil
}

// parser is a Set that is being read.
type parser struct {
	*Set
	uses []*yaml.Node // of groups, by rules
}

// eachKey calls the function of each key of a mapping with the value.
func eachKey(n *yaml.Node, keys map[string]func(*yaml.Node) error, required ...string) error {
	if n.Kind != yaml.MappingNode {
		return wrong(n, "expected a mapping with the keys %s", listKeys(keys))
	}
	var seen []string
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		parse := keys[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode || parse == nil:
			return wrong(key, "unknown key %q: expected %s", key.Value, listKeys(keys))
		case slices.Contains(seen, key.Value):
			return wrong(key, "%q is set twice", key.Value)
		}
		seen = append(seen, key.Value)
		if err := parse(value); err != nil {
			return err
		}
	}
	for _, key := range required {
		if !slices.Contains(seen, key) {
			return wrong(n, "%q is missing", key)
		}
	}
	return nil
}

func listKeys(keys map[string]func(*yaml.Node) error) string {
	var names []string
	for name := range keys {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// texts reads a list of strings.
func texts(n *yaml.Node, what string, use func(at *yaml.Node, text string) error) error {
	if n.Kind != yaml.SequenceNode {
		return wrong(n, "expected a list of %s, such as [a, b]", what)
	}
	for _, item := range n.Content {
		if item.Kind != yaml.ScalarNode || item.Tag != "!!str" || item.Value == "" {
			return wrong(item,
				"%q is not a string: expected a list of %s; put quotes around numbers and *",
				item.Value, what)
		}
		if err := use(item, item.Value); err != nil {
			return err
		}
	}
	return nil
}

// patterns reads a list of strings that may end with a *.
func patterns(n *yaml.Node, what string) (all []pattern, err error) {
	err = texts(n, what, func(at *yaml.Node, text string) error {
		p := newPattern(text)
		if strings.Contains(p.text, "*") {
			return wrong(at, "%q has a * that is not at the end", text)
		}
		all = append(all, p)
		return nil
	})
	return all, err
}

// identities reads a list of identities, and refuses patterns that match none.
func identities(n *yaml.Node) ([]pattern, error) {
	all, err := patterns(n, "identities")
	for i, p := range all {
		switch lower := strings.ToLower(p.text); {
		case strings.HasPrefix(lower, Anonymous+"@"):
			return nil, wrong(n.Content[i],
				"%q is not an identity: use the group %s for clients without credentials", p,
				Anonymous)
		case !p.prefix && (lower == Anonymous || lower == Authenticated):
			return nil, wrong(n.Content[i],
				"%q is not an identity but a group: list it under groups of the rule", p)
		}
	}
	return all, err
}

func (s *parser) parseGroups(n *yaml.Node) error {
	if n.Kind != yaml.MappingNode {
		return wrong(n, "expected a mapping of groups: name: [identity, …]")
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		sameName := func(g group) bool { return g.name == key.Value }
		switch {
		case key.Kind != yaml.ScalarNode || key.Value == "":
			return wrong(key, "the name of a group must be a string")
		case key.Value == Authenticated || key.Value == Anonymous:
			return wrong(key, "the group %s is built in and can't be defined", key.Value)
		case slices.ContainsFunc(s.groups, sameName):
			return wrong(key, "the group %q is defined twice", key.Value)
		}
		g, value := group{name: key.Value}, n.Content[i+1]
		if g.byToken = value.Kind == yaml.ScalarNode && value.Value == "token"; !g.byToken {
			var err error
			if g.identities, err = identities(value); err != nil {
				return err
			}
			if len(g.identities) == 0 {
				return wrong(key, "the group %q is empty: leave it out", g.name)
			}
		}
		s.groups = append(s.groups, g)
	}
	return nil
}

func (s *parser) parseRules(n *yaml.Node) error {
	if n.Kind != yaml.SequenceNode {
		return wrong(n, "expected a list of rules")
	}
	if len(n.Content) > rulesMax {
		return wrong(n, "%d rules; the maximum is %d", len(n.Content), rulesMax)
	}
	for _, item := range n.Content {
		r := rule{line: item.Line}
		err := eachKey(item, map[string]func(*yaml.Node) error{
			"identities": func(v *yaml.Node) (err error) {
				r.identities, err = identities(v)
				return err
			},
			"groups": func(v *yaml.Node) error {
				return texts(v, "groups", func(at *yaml.Node, name string) error {
					r.groups = append(r.groups, name)
					if name != Authenticated && name != Anonymous {
						s.uses = append(s.uses, at) // it may be defined below
					}
					return nil
				})
			},
			"names": func(v *yaml.Node) (err error) {
				r.names, err = patterns(v, "names of locks")
				return err
			},
			"may": func(v *yaml.Node) error { return texts(v, "verbs", r.addVerb) },
		}, "may")
		if err == nil {
			err = r.check(item)
		}
		if err != nil {
			return err
		}
		s.rules = append(s.rules, r)
	}
	return nil
}

func (r *rule) addVerb(at *yaml.Node, text string) error {
	if !IsVerb(Verb(text)) {
		return wrong(at, "%q is not a verb: use one of %v", text, verbs)
	}
	r.verbs = append(r.verbs, Verb(text))
	return nil
}

func (r *rule) check(at *yaml.Node) error {
	withNames := slices.ContainsFunc(r.verbs, func(v Verb) bool { return v != Operate })
	switch {
	case len(r.identities) == 0 && len(r.groups) == 0:
		return wrong(at, "the rule has neither identities nor groups")
	case len(r.verbs) == 0:
		return wrong(at, "the rule allows nothing: may is empty")
	case withNames && len(r.names) == 0:
		return wrong(at, `the rule has no names of locks; use ["*"] for all`)
	case !withNames && len(r.names) > 0:
		return wrong(at, "operate applies to the cluster, not to locks: remove names")
	}
	return nil
}

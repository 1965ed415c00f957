package rules

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Verb is what a rule allows.
type Verb string

// The verbs; see the package comment.
const (
	Lock    Verb = "lock"
	Read    Verb = "read"
	Watch   Verb = "watch"
	Release Verb = "release"
	Operate Verb = "operate"
)

var verbs = []Verb{Lock, Read, Watch, Release, Operate}

// The groups that exist without being defined.
const (
	Authenticated = "authenticated"
	Anonymous     = "anonymous"
)

// Caller is the client that makes a request.
type Caller struct {
	Identity  string
	Groups    []string // the claim of its JWT, for groups that are declared as token
	Anonymous bool     // it is not authenticated
}

// Set is the content of a rules file. It is immutable. Nil allows everything.
type Set struct {
	groups []group
	rules  []rule
	// An index, since a caller is concerned by few of perhaps thousands of rules: exact are the
	// rules that list its identity, open the rules with patterns or groups. Both are positions in
	// rules.
	exact map[string][]int
	open  []int
}

type group struct {
	name       string
	identities []pattern
	byToken    bool // its members have it in their JWT
}

type rule struct {
	identities []pattern
	groups     []string
	names      []pattern
	verbs      []Verb
	line       int
}

// pattern is a text, or a prefix.
type pattern struct {
	text   string
	prefix bool
}

func newPattern(text string) pattern {
	beginning, prefix := strings.CutSuffix(text, "*")
	return pattern{beginning, prefix}
}

func (p pattern) String() string {
	if p.prefix {
		return p.text + "*"
	}
	return p.text
}

func (p pattern) matches(text string) bool {
	return p.text == text || p.prefix && strings.HasPrefix(text, p.text)
}

// within narrows a pattern to texts with a prefix; false: none match.
func (p pattern) within(prefix string) (part pattern, some bool) {
	switch {
	case strings.HasPrefix(p.text, prefix):
		return p, true
	case p.prefix && strings.HasPrefix(prefix, p.text):
		return pattern{prefix, true}, true
	}
	return pattern{}, false
}

// covers reports whether this pattern matches everything that another one matches.
func (p pattern) covers(other pattern) bool {
	if p.prefix {
		return strings.HasPrefix(other.text, p.text)
	}
	return p == other
}

func matchesAny(patterns []pattern, text string) bool {
	return slices.ContainsFunc(patterns, func(p pattern) bool { return p.matches(text) })
}

// isAbout reports whether a rule applies to a caller.
func (s *Set) isAbout(r *rule, c Caller) bool {
	if !c.Anonymous && matchesAny(r.identities, c.Identity) {
		return true
	}
	return slices.ContainsFunc(r.groups, func(name string) bool { return s.isMember(name, c) })
}

func (s *Set) isMember(name string, c Caller) bool {
	switch name {
	case Authenticated:
		return !c.Anonymous
	case Anonymous:
		return c.Anonymous
	}
	return !c.Anonymous && slices.ContainsFunc(s.groups, func(g group) bool {
		return g.name == name &&
			(matchesAny(g.identities, c.Identity) || g.byToken && slices.Contains(c.Groups, name))
	})
}

// index fills exact and open.
func (s *Set) index() {
	s.exact = make(map[string][]int)
	for i := range s.rules {
		r := &s.rules[i]
		who, anybody := slices.Clone(r.identities), false
		for _, name := range r.groups {
			at := slices.IndexFunc(s.groups, func(g group) bool { return g.name == name })
			if anybody = anybody || at < 0 || s.groups[at].byToken; !anybody {
				who = append(who, s.groups[at].identities...)
			}
		}
		if anybody || slices.ContainsFunc(who, func(p pattern) bool { return p.prefix }) {
			s.open = append(s.open, i)
			continue
		}
		for _, p := range who {
			if known := s.exact[p.text]; len(known) == 0 || known[len(known)-1] != i {
				s.exact[p.text] = append(known, i)
			}
		}
	}
}

// forCaller yields the rules of a caller that contain a verb; without a verb, all of them.
func (s *Set) forCaller(c Caller, verb Verb) iter.Seq[*rule] {
	return func(yield func(*rule) bool) {
		for _, some := range [][]int{s.exact[c.Identity], s.open} {
			for _, i := range some {
				r := &s.rules[i]
				if (verb == "" || slices.Contains(r.verbs, verb)) && s.isAbout(r, c) && !yield(r) {
					return
				}
			}
		}
	}
}

// allows reports whether a rule with a verb allows it for a lock.
func (r *rule) allows(verb Verb, name string) bool {
	return verb == Operate || matchesAny(r.names, name)
}

// May reports whether a caller may use a verb on a lock. With Operate the name is ignored.
func (s *Set) May(c Caller, verb Verb, name string) bool {
	if s == nil {
		return true
	}
	for r := range s.forCaller(c, verb) {
		if r.allows(verb, name) {
			return true
		}
	}
	return false
}

// Some reports whether a caller may use a verb on at least one lock; without a verb, whether it has
// any permission.
func (s *Set) Some(c Caller, verb Verb) bool {
	if s == nil {
		return true
	}
	for range s.forCaller(c, verb) {
		return true
	}
	return false
}

// Why explains the answer of May: by which rule, or what the caller may do instead. No name: that
// of Some, and what it may do with any lock.
func (s *Set) Why(c Caller, verb Verb, name string) string {
	for r := range s.forCaller(c, verb) {
		if r.allows(verb, name) {
			return fmt.Sprintf("allowed by the rule in line %d", r.line)
		}
	}
	var may []string
	for _, v := range verbs {
		if s.May(c, v, name) || name == "" && s.Some(c, v) {
			may = append(may, string(v))
		}
	}
	if len(may) == 0 {
		return "no rule allows it or any other verb"
	}
	return "no rule allows it; allowed: " + strings.Join(may, ", ")
}

// A Range is one name, or all names with a prefix.
type Range struct {
	Name   string // "": see Prefix
	Prefix string
}

// Readable returns the names with a prefix on which a caller may use a verb: ranges in order that
// do not overlap.
func (s *Set) Readable(c Caller, verb Verb, prefix string) (ranges []Range) {
	if s == nil {
		return []Range{{Prefix: prefix}}
	}
	var parts []pattern
	for r := range s.forCaller(c, verb) {
		for _, p := range r.names {
			if part, some := p.within(prefix); some {
				parts = append(parts, part)
			}
		}
	}
	// of two with the same text, the one that covers the other comes first
	slices.SortFunc(parts, func(a, b pattern) int {
		return cmp.Or(strings.Compare(a.text, b.text),
			-cmp.Compare(len(a.String()), len(b.String())))
	})
	var last pattern // in this order, all parts that a prefix covers follow it directly
	for i, p := range parts {
		switch {
		case i > 0 && last.covers(p):
			continue
		case p.prefix:
			ranges = append(ranges, Range{Prefix: p.text})
		default:
			ranges = append(ranges, Range{Name: p.text})
		}
		last = p
	}
	return ranges
}

// IsVerb reports whether there is such a verb.
func IsVerb(v Verb) bool { return slices.Contains(verbs, v) }

package rules

import (
	"fmt"
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

// Caller is who asks.
type Caller struct {
	Identity  string
	Groups    []string // that its token has: they are members of the groups that are declared as the token's
	Anonymous bool     // nothing has proved the identity
}

// Set is what a file allows. It does not change. Nil allows everything.
type Set struct {
	groups []group
	rules  []rule
}

type group struct {
	name       string
	identities []pattern
	byToken    bool // its members are those whose token says so
}

type rule struct {
	identities []pattern
	groups     []string
	names      []pattern
	verbs      []Verb
	line       int
}

// pattern is a text, or the beginning of one.
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

// within is what of a pattern begins with prefix; false: nothing.
func (p pattern) within(prefix string) (part pattern, some bool) {
	switch {
	case strings.HasPrefix(p.text, prefix):
		return p, true
	case p.prefix && strings.HasPrefix(prefix, p.text):
		return pattern{prefix, true}, true
	}
	return pattern{}, false
}

// covers reports whether all that another pattern matches is matched by this one.
func (p pattern) covers(other pattern) bool {
	if p.prefix {
		return strings.HasPrefix(other.text, p.text)
	}
	return p == other
}

func matchesAny(patterns []pattern, text string) bool {
	return slices.ContainsFunc(patterns, func(p pattern) bool { return p.matches(text) })
}

// isAbout reports whether a rule is about a caller.
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
		return g.name == name && (matchesAny(g.identities, c.Identity) || g.byToken && slices.Contains(c.Groups, name))
	})
}

// forCaller are the rules that allow a caller something of a verb.
func (s *Set) forCaller(c Caller, verb Verb) (found []*rule) {
	for i := range s.rules {
		if r := &s.rules[i]; slices.Contains(r.verbs, verb) && s.isAbout(r, c) {
			found = append(found, r)
		}
	}
	return found
}

// May reports whether a caller may do something with a lock. With Operate the name means nothing.
func (s *Set) May(c Caller, verb Verb, name string) bool {
	return s == nil || slices.ContainsFunc(s.forCaller(c, verb), func(r *rule) bool {
		return verb == Operate || matchesAny(r.names, name)
	})
}

// Some reports whether a caller may do something with any lock at all; with no verb, whether it may do anything.
func (s *Set) Some(c Caller, verb Verb) bool {
	return s == nil || slices.ContainsFunc(verbs, func(v Verb) bool { return (verb == "" || v == verb) && len(s.forCaller(c, v)) > 0 })
}

// Why explains the answer of May: by which rule, or what the caller may do instead.
func (s *Set) Why(c Caller, verb Verb, name string) string {
	for _, r := range s.forCaller(c, verb) {
		if verb == Operate || matchesAny(r.names, name) {
			return fmt.Sprintf("allowed by the rule in line %d", r.line)
		}
	}
	var may []string
	for _, v := range verbs {
		for _, r := range s.forCaller(c, v) {
			if v == Operate || matchesAny(r.names, name) {
				may = append(may, string(v))
				break
			}
		}
	}
	if len(may) == 0 {
		return "no rule allows it, nor anything else there"
	}
	return "no rule allows it; allowed are: " + strings.Join(may, ", ")
}

// A Range is a part of the names: one, or all that begin with Prefix.
type Range struct {
	Name   string // "": see Prefix
	Prefix string
}

// Readable returns what of the names that begin with prefix a caller may do something with: ranges in order, of which none
// overlaps another.
func (s *Set) Readable(c Caller, verb Verb, prefix string) (ranges []Range) {
	if s == nil {
		return []Range{{Prefix: prefix}}
	}
	var parts []pattern
	for _, r := range s.forCaller(c, verb) {
		for _, p := range r.names {
			if part, some := p.within(prefix); some {
				parts = append(parts, part)
			}
		}
	}
	slices.SortFunc(parts, func(a, b pattern) int { return strings.Compare(a.text, b.text) })
	for _, p := range parts {
		covered := slices.ContainsFunc(parts, func(other pattern) bool { return other != p && other.covers(p) })
		switch one := (Range{Name: p.text}); {
		case covered:
			continue
		case p.prefix:
			one = Range{Prefix: p.text}
			fallthrough
		default:
			if len(ranges) == 0 || ranges[len(ranges)-1] != one {
				ranges = append(ranges, one)
			}
		}
	}
	return ranges
}

// IsVerb reports whether there is such a verb.
func IsVerb(v Verb) bool { return slices.Contains(verbs, v) }

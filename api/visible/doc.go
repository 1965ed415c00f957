// Package visible escapes untrusted text for people: names of locks, labels, metadata, identities,
// answers of other programs. Such text could move the cursor of a terminal, begin another line of a
// log, reverse the order of the text beside it, or look like something else because part of it is
// invisible.
//
//	fmt.Fprintf(w, "%s is held\n", visible.Line(name))
//
// # Model
//
// Visible characters stay: letters, digits, punctuation, symbols and the plain space, as in
// unicode.IsPrint. All others are escaped as in a Go string, such as \n, \u202e or \xff: control
// characters, line and paragraph separators, characters that change the direction of text,
// characters without width (joiners, soft hyphens, variation selectors, tags, fillers), other
// spaces, and bytes that are not UTF-8. So are combining marks that follow no letter or digit, or
// more than marksMax other marks, since they would be drawn over other characters.
//
// Escaping is idempotent. A backslash in the text stays, so a name of the six characters \u202e
// looks like an escape; JSON distinguishes the two. Letters of different scripts that look alike,
// and normal forms of one letter, stay as they are.
package visible

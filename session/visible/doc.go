// Package visible shows text of others to people: names of locks, labels, metadata, identities, what another program
// answered. Such text may move the cursor of a terminal, begin another line of a log, turn the order of what stands
// beside it, or look like something else because part of it can't be seen. Here is the one rule for it:
//
//	fmt.Fprintf(w, "%s is held\n", visible.Line(name))
//
// A character is shown as it is if a person sees it: letters, digits, punctuation, symbols and the plain space, as
// unicode.IsPrint has it. The others are shown as Go writes them in a string, such as \n, \u202e or \xff: control
// characters, line and paragraph separators, what turns the direction of text, what has no width (joiners, soft hyphens,
// variation selectors, tags, fillers), other spaces, and bytes that are not UTF-8. So are combining marks that stand
// after no letter or digit, or after marksMax others: they would be drawn on what is not theirs.
//
// What is shown is shown again without change. A backslash of the text stays as it is, so a name made of the six
// characters \u202e looks like an escape; JSON tells them apart. Letters of different scripts that look alike, and normal
// forms of one letter, are different characters and shown as they are.
package visible

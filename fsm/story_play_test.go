package fsm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"zamok/clock"
)

// play carries out one step of a script and returns its transcript.
func (s *story) play(d *datadriven.TestData) string {
	s.t.Helper()
	lines := []string{command(d)}
	if d.Input != "" {
		lines = append(lines, strings.Split(d.Input, "\n")...)
	}
	var said []string
	for len(lines) > 0 {
		first, rest := s.line(lines[0]), lines[1:]
		draft := s.draft(first)
		switch first.words[0] {
		case "entry":
			for _, text := range rest {
				l := s.line(text)
				require.True(s.t, s.write(draft, l), "%s: this is not for an entry", text)
			}
			said, rest = append(said, s.send(draft)...), nil
		case "repeat":
			first.next()
			said, rest = append(said, s.repeat(int(first.number(first.next())), rest)...), nil
		default:
			said = append(said, s.do(draft, first)...)
		}
		lines = rest
	}
	if len(said) > linesMax {
		said = count(said)
	}
	return strings.Join(said, "\n")
}

// command is the first line of a step as it was written.
func command(d *datadriven.TestData) string {
	text := d.Cmd
	for _, arg := range d.CmdArgs {
		text += " " + arg.Key
		if arg.Vals != nil {
			text += "=(" + strings.Join(arg.Vals, ", ") + ")"
		}
	}
	return text
}

// do carries out one line: as an entry of its own, or beside the log.
func (s *story) do(d *draft, l *line) []string {
	s.t.Helper()
	if s.write(d, l) {
		return s.send(d)
	}
	var said []string
	switch word := l.next(); word {
	case "unwritten":
		s.now = s.now.Add(l.span(l.next()))
		said = []string{fmt.Sprintf("the leader's clock is at %v, and the log knows nothing of it", moment(s.now))}
	case "restart":
		said = s.reborn(bytes.NewReader(s.snapshot(s.m)), "every node starts again, from its snapshot")
	case "binary":
		s.known = l.bounds(l.option("knows", "1-1"))
		said = s.reborn(bytes.NewReader(s.snapshot(s.m)), fmt.Sprintf(
			"this program knows versions %d to %d; the cluster's are %d", s.known.Min, s.known.Max, s.m.Version()))
	case "backup":
		name := l.next()
		s.backups[name] = s.snapshot(s.m)
		said = []string{fmt.Sprintf("a backup, %s, is taken at index %d", name, s.m.index)}
	case "restore":
		said = s.rewrite(l)
	case "show", "why", "next", "index":
		said = s.answer(word, l)
	default:
		p := s.people[word]
		if p == nil || l.next() != "breaks" {
			l.fail("what is that?")
		}
		one, _ := s.m.Session(p.id)
		p.broke = &Detached{Session: p.id, Attachment: one.Attachment, Index: s.m.index}
		said = []string{fmt.Sprintf("the leader sees %s's stream break, at index %d", p.name, s.m.index)}
	}
	l.end()
	return said
}

// reborn replaces the machine by what a snapshot makes of it.
func (s *story) reborn(snapshot io.Reader, sentence string) []string {
	s.t.Helper()
	m, err := restore(snapshot, s.known)
	if err != nil {
		return []string{sentence, "it stops: " + err.Error()}
	}
	require.NoError(s.t, m.Check())
	s.m = m
	return []string{sentence}
}

// rewrite makes a new history out of a backup.
func (s *story) rewrite(l *line) []string {
	s.t.Helper()
	name := l.next()
	h := NewHistory{Cluster: ClusterID{2}, Above: l.number(l.option("above", "0"))}
	h.Clock = l.number(l.option("clock", "0"))
	h.HoldOff = l.span(l.option("quiet", "0s"))
	h.Time = clock.Time(l.span(l.option("time", "0s")))
	var b bytes.Buffer
	index, err := Rewrite(&b, bytes.NewReader(s.backups[name]), h)
	require.NoError(s.t, err)
	said := s.reborn(&b, fmt.Sprintf("a new history begins from %s, above index %d", name, index))
	s.now = s.m.Time()
	return append(said, fmt.Sprintf("it is %v; nothing is granted before %v", moment(s.m.Time()), moment(s.m.HoldOffUntil())))
}

// repeat plays lines many times and counts what is said. Lines of clients travel together, as they
// would from a busy cluster.
func (s *story) repeat(times int, lines []string) []string {
	s.t.Helper()
	var said []string
	var together *draft
	flush := func() {
		if together != nil {
			said = append(said, s.send(together)...)
			together = nil
		}
	}
	for i := range times {
		for _, text := range lines {
			l := s.line(strings.ReplaceAll(text, "%", fmt.Sprint(i+1)))
			if l.words[0] != "open" && s.people[l.words[0]] == nil {
				flush()
				said = append(said, s.do(s.draft(l), l)...)
				continue
			}
			if together == nil {
				together = s.draft(l)
			}
			require.True(s.t, s.write(together, l), "%s: this is not for an entry", text)
			if len(together.Commands) >= togetherMax {
				flush()
			}
		}
	}
	flush()
	return count(said)
}

// togetherMax is how many repeated commands share an entry.
const togetherMax = 500

// send applies the entry and tells what became of it.
func (s *story) send(d *draft) []string {
	s.t.Helper()
	b := d.Append(nil)
	if d.garble != nil {
		b = d.garble(b)
	}
	was := s.m.Time()
	a, err := s.apply(b)
	if stop := (*VersionError)(nil); errors.As(err, &stop) {
		return []string{"this node stops: " + stop.Error()}
	}
	require.NoError(s.t, err)
	switch a.Refused {
	case Malformed:
		return []string{fmt.Sprintf("these bytes are no entry: they take index %d and change nothing", a.Index)}
	case OtherVersion:
		return []string{fmt.Sprintf("not done, encode again: the entry is of version %d, the cluster's are %d (it takes index %d)",
			d.Version, s.m.Version(), a.Index)}
	}
	return append(s.tellTime(d, was), s.tell(d, a)...)
}

// tellTime says what became of the entry's reading, if the script asks by setting it.
func (s *story) tellTime(d *draft, was clock.Time) []string {
	is, read := moment(s.m.Time()), moment(d.Reading.Now)
	switch {
	case !d.marked:
		return nil
	case s.m.Time() == was && (s.m.Epoch() == 0 || d.Reading.Epoch != s.m.Epoch()):
		return []string{fmt.Sprintf("it is still %s: the reading %s is of an epoch that is not in force", is, read)}
	case d.Reading.Now < was:
		return []string{fmt.Sprintf("it is still %s: the reading says %s, and time never goes back", is, read)}
	case s.m.Time() == was:
		return []string{"it is still " + is}
	default:
		return []string{"it is " + is}
	}
}

// linesMax is how long a transcript is before it is counted rather than told.
const linesMax = 24

// count puts sentences together that differ only in numbers, and in which epoch it is.
func count(said []string) []string {
	var order []string
	alike := make(map[string][]string)
	for _, sentence := range said {
		form := regexp.MustCompile(`\d+(\.\d+)?|\b[A-Z]\b`).ReplaceAllString(sentence, "…")
		if alike[form] == nil {
			order = append(order, form)
		}
		alike[form] = append(alike[form], sentence)
	}
	for i, form := range order {
		if times := len(alike[form]); times > 1 {
			order[i] = fmt.Sprintf("%d × %s", times, form)
		} else {
			order[i] = alike[form][0]
		}
	}
	return order
}

package fsm

import (
	"bytes"
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
	var output []string
	for len(lines) > 0 {
		first, rest := s.parseLine(lines[0]), lines[1:]
		draft := s.newDraft(first)
		switch first.words[0] {
		case "entry":
			for _, text := range rest {
				l := s.parseLine(text)
				require.True(s.t, s.write(draft, l), "%s: this is not for an entry", text)
			}
			output, rest = append(output, s.applyDraft(draft)...), nil
		case "repeat":
			first.next()
			output, rest = append(output, s.repeat(int(first.number(first.next())), rest)...), nil
		default:
			output = append(output, s.playLine(draft, first)...)
		}
		lines = rest
	}
	if len(output) > transcriptLinesMax {
		output = summarize(output)
	}
	return strings.Join(output, "\n")
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

// playLine carries out one line: as an entry of its own, or beside the log.
func (s *story) playLine(d *entryDraft, l *scriptLine) []string {
	s.t.Helper()
	if s.write(d, l) {
		return s.applyDraft(d)
	}
	var output []string
	switch word := l.next(); word {
	case "unwritten":
		s.now = s.now.Add(l.span(l.next()))
		output = []string{fmt.Sprintf(
			"the leader's clock is at %v, and the log knows nothing of it", formatTime(s.now))}
	case "restart":
		output = s.reload(bytes.NewReader(s.snapshot(s.m)),
			"every node starts again, from its snapshot")
	case "binary":
		s.supported = l.versionRange(l.option("knows", "1-1"))
		output = s.reload(bytes.NewReader(s.snapshot(s.m)), fmt.Sprintf(
			"this program knows versions %d to %d; the cluster's are %d", s.supported.Min,
			s.supported.Max, s.m.Version()))
	case "backup":
		name := l.next()
		s.backups[name] = s.snapshot(s.m)
		output = []string{fmt.Sprintf("a backup, %s, is taken at index %d", name, s.m.index)}
	case "restore":
		output = s.rewrite(l)
	case "show", "why", "next", "index":
		output = s.query(word, l)
	default:
		p := s.clients[word]
		if p == nil || l.next() != "breaks" {
			l.fail("what is that?")
		}
		one, _ := s.m.Session(p.id)
		p.disconnected = &ReleaseOnDisconnect{Session: p.id, Attachment: one.Attachment,
			Index: s.m.index}
		output = []string{fmt.Sprintf("the leader sees %s's stream break, at index %d", p.name,
			s.m.index)}
	}
	l.end()
	return output
}

// reload replaces the machine by what a snapshot makes of it.
func (s *story) reload(snapshot io.Reader, sentence string) []string {
	s.t.Helper()
	m, err := RestoreWithVersions(snapshot, s.supported)
	if err != nil {
		return []string{sentence, "it stops: " + err.Error()}
	}
	require.NoError(s.t, m.Check())
	s.m = m
	return []string{sentence}
}

// rewrite makes a new history out of a backup.
func (s *story) rewrite(l *scriptLine) []string {
	s.t.Helper()
	name := l.next()
	h := NewHistory{Cluster: ClusterID{2}, AboveIndex: l.number(l.option("above", "0"))}
	h.Clock = l.number(l.option("clock", "0"))
	h.HoldOff = l.span(l.option("quiet", "0s"))
	h.Time = clock.Time(l.span(l.option("time", "0s")))
	var b bytes.Buffer
	index, _, err := RewriteBackup(&b, bytes.NewReader(s.backups[name]), h)
	require.NoError(s.t, err)
	output := s.reload(&b, fmt.Sprintf("a new history begins from %s, above index %d", name, index))
	s.now = s.m.Time()
	return append(output, fmt.Sprintf("it is %v; nothing is granted before %v",
		formatTime(s.m.Time()), formatTime(s.m.HoldOffUntil())))
}

// repeat plays lines many times and counts what is said. Lines of clients travel together, as they
// would from a busy cluster.
func (s *story) repeat(times int, lines []string) []string {
	s.t.Helper()
	var output []string
	var batch *entryDraft
	flush := func() {
		if batch != nil {
			output = append(output, s.applyDraft(batch)...)
			batch = nil
		}
	}
	for i := range times {
		for _, text := range lines {
			l := s.parseLine(strings.ReplaceAll(text, "%", fmt.Sprint(i+1)))
			if l.words[0] != "open" && s.clients[l.words[0]] == nil {
				flush()
				output = append(output, s.playLine(s.newDraft(l), l)...)
				continue
			}
			if batch == nil {
				batch = s.newDraft(l)
			}
			require.True(s.t, s.write(batch, l), "%s: this is not for an entry", text)
			if len(batch.Commands) >= batchMax {
				flush()
			}
		}
	}
	flush()
	return summarize(output)
}

// batchMax is how many repeated commands share an entry.
const batchMax = 500

// applyDraft applies the entry and describes the result.
func (s *story) applyDraft(d *entryDraft) []string {
	s.t.Helper()
	b := d.Append(nil)
	if d.corrupt != nil {
		b = d.corrupt(b)
	}
	before := s.m.Time()
	a, err := s.apply(b)
	if err != nil {
		return []string{"this node stops: " + strings.ReplaceAll(err.Error(), Format(), "F")}
	}
	if a.Refused == OtherVersion {
		return []string{fmt.Sprintf(
			"not done, encode again: the entry is of version %d, the cluster's are %d (it takes "+
				"index %d)",
			d.Version, s.m.Version(), a.Index)}
	}
	return append(s.describeTime(d, before), s.describe(d, a)...)
}

// describeTime says what became of the entry's reading, if the script asks by setting it.
func (s *story) describeTime(d *entryDraft, before clock.Time) []string {
	now, read := formatTime(s.m.Time()), formatTime(d.Reading.Now)
	switch {
	case !d.setsTime:
		return nil
	case s.m.Time() == before && (s.m.Epoch() == 0 || d.Reading.Epoch != s.m.Epoch()):
		return []string{fmt.Sprintf(
			"it is still %s: the reading %s is of an epoch that is not in force", now, read)}
	case d.Reading.Now < before:
		return []string{fmt.Sprintf("it is still %s: the reading says %s, and time never goes back",
			now, read)}
	case s.m.Time() == before:
		return []string{"it is still " + now}
	default:
		return []string{"it is " + now}
	}
}

// transcriptLinesMax is how long a transcript is before it is counted rather than shown.
const transcriptLinesMax = 24

// summarize puts sentences together that differ only in numbers, and in which epoch it is.
func summarize(sentences []string) []string {
	var order []string
	byForm := make(map[string][]string)
	for _, sentence := range sentences {
		form := regexp.MustCompile(`\d+(\.\d+)?|\b[A-Z]\b`).ReplaceAllString(sentence, "…")
		if byForm[form] == nil {
			order = append(order, form)
		}
		byForm[form] = append(byForm[form], sentence)
	}
	for i, form := range order {
		if times := len(byForm[form]); times > 1 {
			order[i] = fmt.Sprintf("%d × %s", times, form)
		} else {
			order[i] = byForm[form][0]
		}
	}
	return order
}

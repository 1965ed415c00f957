package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"zamok/jepsen/check"
)

// String is summary.md.
func (s *Summary) String() string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	say("# %s: %s\n\n%s\n\n", cell(s.Name), s.Verdict, s.Line())
	if s.Rerun != "" {
		say("Repeat it: `%s`\n\n", strings.ReplaceAll(s.Rerun, "`", "'"))
	}
	if len(s.Violations) > 0 {
		say("## Violations\n\n")
		for _, f := range s.Violations {
			say("- **%s** %s\n", f.Check, cell(f.Text))
		}
		say("\n")
	}
	for _, part := range []struct {
		title string
		lines []string
	}{{"Invalid, because", s.Invalid}, {"Notes", s.Notes}} {
		if len(part.lines) > 0 {
			say("## %s\n\n", part.title)
			for _, line := range part.lines {
				say("- %s\n", cell(line))
			}
			say("\n")
		}
	}
	s.tables(say)
	say("## What was looked at\n\n```\n%s```\n\n", strings.ReplaceAll(s.checked, "```", "'''"))
	say("%d acquisitions are unresolved: nobody knows what became of them.\n\n", s.Unresolved)
	say("## Files\n\n")
	for _, f := range s.Files {
		say("- [%s](%s): %s\n", f.Name, f.Name, cell(f.What))
	}
	return b.String()
}

// Line is the run in a few sentences.
func (s *Summary) Line() string {
	guessed := ""
	if s.Guessed {
		guessed = " at least"
	}
	return fmt.Sprintf("%v, the last %v of it after the healing; seed %d. %d operations: %d ok, %d refused, %d unknown. "+
		"%d faults of %d kinds, %d changes of leader%s; the longest outage was %v. "+
		"%d clients (%d died) with %d sessions held %d locks %d times (%d lost); "+
		"the fenced resources took %d writes and refused %d.",
		short(s.Lasted), short(s.Lasted-s.Healed), s.Seed,
		s.Operations, s.Outcomes[check.OK], s.Outcomes[check.Refused], s.Outcomes[check.Unknown],
		s.FaultCount, s.Kinds(), s.LeaderChanges, guessed, short(s.LongestOutage()),
		s.Clients, s.Died, s.Sessions, s.Locks, s.Holds, s.Lost, s.Writes, s.Fenced)
}

// Kinds is of how many kinds the faults were.
func (s *Summary) Kinds() (n int) {
	for _, k := range s.Faults {
		if k.Count > 0 {
			n++
		}
	}
	return n
}

// LongestOutage is 0 if there was none.
func (s *Summary) LongestOutage() time.Duration {
	if len(s.Outages) == 0 {
		return 0
	}
	return s.Outages[0].Lasted
}

func (s *Summary) tables(say func(string, ...any)) {
	say("## Operations\n\n| call | ok | refused | unknown |\n|---|---:|---:|---:|\n")
	for _, kind := range slices.Sorted(maps.Keys(s.Calls)) {
		n := s.Calls[kind]
		say("| %s | %d | %d | %d |\n", cell(string(kind)), n[check.OK], n[check.Refused], n[check.Unknown])
	}
	say("| all | %d | %d | %d |\n\n", s.Outcomes[check.OK], s.Outcomes[check.Refused], s.Outcomes[check.Unknown])
	say("| how long | calls | p50 | p99 | longest |\n|---|---:|---:|---:|---:|\n")
	for _, l := range s.Latencies {
		say("| %s | %d | %v | %v | %v |\n", l.Of, l.Count, short(l.P50), short(l.P99), short(l.Max))
	}
	say("\n## Faults\n\n| kind | how often | together | outages beside it | the longest |\n|---|---:|---:|---:|---:|\n")
	for _, k := range s.Faults {
		say("| %s | %d | %v | %d | %v |\n", cell(k.Kind), k.Count, short(k.Lasted), k.Outages, short(k.Longest))
	}
	say("\n")
	if len(s.Outages) > 0 {
		say("The longest outages:\n\n| from | for | of | beside |\n|---:|---:|---|---|\n")
		for _, o := range s.Outages {
			say("| %v | %v | %s | %s |\n", short(o.From), short(o.Lasted), cell(o.Prober), cell(strings.Join(o.Kinds, ", ")))
		}
		say("\n")
	}
}

// cell makes text harmless in a table: names come from whoever made them up.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "\r", " ", "<", "&lt;", "`", "'").Replace(text)
}

// short tells a time with as many digits as a reader needs.
func short(d time.Duration) time.Duration {
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return d.Round(unit / 100)
		}
	}
	return d
}

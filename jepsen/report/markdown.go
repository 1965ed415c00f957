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
	say("# %s: %s\n\n%s\n\n", tableCell(s.Name), s.Verdict, s.Line())
	if s.Command != "" {
		say("Repeat it: `%s`\n\n", strings.ReplaceAll(s.Command, "`", "'"))
	}
	if len(s.Violations) > 0 {
		say("## Violations\n\n")
		for _, f := range s.Violations {
			say("- **%s** %s\n", f.Check, tableCell(f.Text))
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
				say("- %s\n", tableCell(line))
			}
			say("\n")
		}
	}
	s.writeTables(say)
	say("## What was looked at\n\n```\n%s```\n\n", strings.ReplaceAll(s.checkText, "```", "'''"))
	say("%d acquisitions are unresolved: nobody knows what became of them.\n\n", s.Unresolved)
	say("## Files\n\n")
	for _, f := range s.Files {
		say("- [%s](%s): %s\n", f.Name, f.Name, tableCell(f.Description))
	}
	return b.String()
}

// Line is the run in a few sentences.
func (s *Summary) Line() string {
	guessed := ""
	if s.EpochsInferred {
		guessed = " at least"
	}
	return fmt.Sprintf("%v, the last %v of it after the healing; seed %d. %d operations: %d ok, %d refused, %d unknown. "+
		"%d faults of %d kinds, %d changes of leader%s; the longest outage was %v. "+
		"%d clients (%d died) with %d sessions held %d locks %d times (%d lost); "+
		"the fenced resources took %d writes and refused %d.",
		roundForDisplay(s.Duration), roundForDisplay(s.Duration-s.Healed), s.Seed,
		s.Operations, s.Outcomes[check.OK], s.Outcomes[check.Refused], s.Outcomes[check.Unknown],
		s.FaultCount, s.Kinds(), s.LeaderChanges, guessed, roundForDisplay(s.LongestOutage()),
		s.Clients, s.ClientsDied, s.Sessions, s.Locks, s.Holds, s.HoldsLost, s.WritesAccepted, s.WritesRejected)
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
	return s.Outages[0].Duration
}

func (s *Summary) writeTables(printf func(string, ...any)) {
	printf("## Operations\n\n| call | ok | refused | unknown |\n|---|---:|---:|---:|\n")
	for _, kind := range slices.Sorted(maps.Keys(s.Calls)) {
		n := s.Calls[kind]
		printf("| %s | %d | %d | %d |\n", tableCell(string(kind)), n[check.OK], n[check.Refused], n[check.Unknown])
	}
	printf("| all | %d | %d | %d |\n\n", s.Outcomes[check.OK], s.Outcomes[check.Refused], s.Outcomes[check.Unknown])
	printf("| how long | calls | p50 | p99 | longest |\n|---|---:|---:|---:|---:|\n")
	for _, l := range s.Latencies {
		printf("| %s | %d | %v | %v | %v |\n", l.Operation, l.Count, roundForDisplay(l.P50), roundForDisplay(l.P99), roundForDisplay(l.Max))
	}
	printf("\n## Faults\n\n| kind | how often | together | outages beside it | the longest |\n|---|---:|---:|---:|---:|\n")
	for _, k := range s.Faults {
		printf("| %s | %d | %v | %d | %v |\n", tableCell(k.Kind), k.Count, roundForDisplay(k.Duration), k.Outages, roundForDisplay(k.LongestOutage))
	}
	printf("\n")
	if len(s.Outages) > 0 {
		printf("The longest outages:\n\n| from | for | of | beside |\n|---:|---:|---|---|\n")
		for _, o := range s.Outages {
			printf("| %v | %v | %s | %s |\n", roundForDisplay(o.From), roundForDisplay(o.Duration), tableCell(o.Prober), tableCell(strings.Join(o.Kinds, ", ")))
		}
		printf("\n")
	}
}

// tableCell makes text harmless in a table: names come from whoever made them up.
func tableCell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "\r", " ", "<", "&lt;", "`", "'").Replace(text)
}

// roundForDisplay tells a time with as many digits as a reader needs.
func roundForDisplay(d time.Duration) time.Duration {
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return d.Round(unit / 100)
		}
	}
	return d
}

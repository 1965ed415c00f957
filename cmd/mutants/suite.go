package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// suite runs mutants of the module at root.
type suite struct {
	root     string
	parallel int
	timeout  time.Duration // for the tests of one mutant
	out      io.Writer
	table    bool // print the table of docs/testing.md at the end

	usual map[test]time.Duration // of the named tests without a mutation; set by baseline
}

// attemptsMax is how often the named test may run. The effect of a bug may depend on the scheduling
// of goroutines, which differs on a busy machine. The number of the run that catches it is printed.
const attemptsMax = 3

// verdict is the result for one mutant; doc.go explains the kinds.
type verdict struct {
	kind     string
	killedBy string // what failed first
	took     time.Duration
	detail   string // the reason, unless it was caught
}

// run prints a line per mutant, and returns an error unless each was caught by the test that it
// names.
func (s suite) run(ctx context.Context, mutants []mutant) error {
	s.usual = make(map[test]time.Duration)
	if err := s.baseline(ctx, mutants); err != nil {
		return err
	}
	survivors, table := 0, ""
	for i, v := range s.evaluateAll(ctx, mutants) {
		m := mutants[i]
		if v.kind != "caught" {
			survivors++
			fmt.Fprintf(s.out, "\n%s %s\n  mutation: %s\n  effect:   %s\n  %s\n", m.name, v.kind,
				m.mutation, m.effect,
				strings.ReplaceAll(strings.TrimSpace(v.detail), "\n", "\n  "))
		} else if s.table && m.shortName != "" {
			table += fmt.Sprintf("%s %v |\n", m.tableRow(), v.took.Round(time.Second))
		}
	}
	fmt.Fprintf(s.out, "%s\n%d of %d mutants caught\n", table, len(mutants)-survivors, len(mutants))
	if survivors > 0 {
		return fmt.Errorf("%d of %d mutants were not caught", survivors, len(mutants))
	}
	return nil
}

// baseline checks that the named tests exist and pass without any mutation.
func (s suite) baseline(ctx context.Context, mutants []mutant) error {
	killers := map[string][]test{}
	for _, m := range mutants {
		if m.stale == nil {
			killers[m.killer.pkg] = append(killers[m.killer.pkg], m.killer)
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(killers)) {
		tests := killers[pkg]
		var topLevels []string
		for _, t := range tests {
			name, _, _ := strings.Cut(t.name, "/")
			topLevels = append(topLevels, name)
		}
		pattern := "^(" + strings.Join(topLevels, "|") + ")$"
		o, err := s.goTest(ctx, pkg, pattern, "", 10*s.timeout) // many tests
		if err != nil {
			return err
		}
		if !o.passed {
			return fmt.Errorf("%s fails (%s) without any mutation, so it can't judge a mutant:\n%s",
				pkg, o.firstFailure(), tail(o.output))
		}
		for _, t := range tests {
			top, _, _ := strings.Cut(t.name, "/")
			s.usual[t] = o.took[top]
			if !o.started[t.name] {
				return fmt.Errorf("%s has no test %s, which a mutant names as its catcher (make "+
					"mutants runs tests with -short)", pkg, t.name)
			}
		}
	}
	return nil
}

// evaluateAll evaluates at most s.parallel mutants at a time and prints each verdict at once.
func (s suite) evaluateAll(ctx context.Context, mutants []mutant) []verdict {
	width := 0
	for _, m := range mutants {
		width = max(width, len(m.name))
	}
	fmt.Fprintf(s.out, "%-*s  %-9s  %6s  %s\n", width, "mutant", "verdict", "after", "by")
	verdicts := make([]verdict, len(mutants))
	var printing sync.Mutex // owns s.out
	var running sync.WaitGroup
	slots := make(chan struct{}, s.parallel)
	for i, m := range mutants {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			began := time.Now()
			v := s.evaluate(ctx, m)
			v.took = time.Since(began)
			verdicts[i] = v
			printing.Lock()
			defer printing.Unlock()
			fmt.Fprintf(s.out, "%-*s  %-9s  %5.1fs  %s\n", width, m.name, v.kind, v.took.Seconds(),
				v.killedBy)
		})
	}
	running.Wait()
	return verdicts
}

// evaluate inserts one mutant and runs the test that it names, and, if that passes, the others.
func (s suite) evaluate(ctx context.Context, m mutant) verdict {
	if m.stale != nil {
		return verdict{kind: "stale", detail: m.stale.Error()}
	}
	broken := func(err error) verdict { return verdict{kind: "broken", detail: err.Error()} }
	folder, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return broken(err)
	}
	defer os.RemoveAll(folder)
	overlay, err := s.writeOverlay(m, folder)
	if err != nil {
		return broken(err)
	}
	for try := 1; try <= attemptsMax; try++ {
		targeted, err := s.goTest(ctx, m.killer.pkg, m.killer.runPattern(), overlay,
			s.limit(m.killer))
		switch {
		case err != nil:
			return broken(err)
		case !targeted.compiled:
			return broken(fmt.Errorf("it does not compile:\n%s", tail(targeted.output)))
		case !targeted.passed && try == 1:
			return verdict{kind: "caught", killedBy: m.killerText(targeted)}
		case !targeted.passed:
			return verdict{kind: "caught",
				killedBy: fmt.Sprintf("%s, in run %d of it", m.killerText(targeted), try)}
		}
	}
	others, err := s.goTest(ctx, m.killer.pkg, ".", overlay, s.timeout)
	switch {
	case err != nil:
		return broken(err)
	case !others.passed:
		return verdict{kind: "elsewhere", killedBy: others.firstFailure(),
			detail: fmt.Sprintf("%s passes; %s fails. If that is the test which should, name it "+
				"in the patch.", m.killer.name, others.firstFailure())}
	}
	return verdict{kind: "survived",
		detail: fmt.Sprintf("%s passes, and so does all of %s: no test finds this bug.",
			m.killer.name, m.killer.pkg)}
}

// limit is how long a named test may run before it counts as failed. Many tests catch a mutation
// because they wait for something that never happens. Their own timeouts are long, for a busy
// machine, and would take four fifths of the time of all mutants.
func (s suite) limit(killer test) time.Duration {
	return min(s.timeout, 5*time.Second+5*s.usual[killer])
}

// killerText names the catcher; if it did not fail as a test does, also how it ended.
func (m mutant) killerText(o testResult) string {
	if len(o.failed) > 0 {
		return m.killer.name
	}
	return m.killer.name + " (" + o.firstFailure() + ")"
}

// tail is the end of an output: enough to see what happened.
func tail(output []byte) string {
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

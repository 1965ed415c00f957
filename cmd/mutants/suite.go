package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
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
	table    bool // at the end, of what was caught
	// rapid has the packages whose tests know rapid's flags. Set by run, which asks once: go list takes
	// as long as a short test.
	rapid map[string]bool
}

// tries is how often the named test may run. What a bug does may depend on how goroutines are scheduled,
// and on a busy machine they are scheduled otherwise; in which run the bug was caught is printed.
const tries = 3

// verdict is what became of one mutant. doc.go says what the words mean.
type verdict struct {
	word   string
	by     string // who failed first
	took   time.Duration
	detail string // what to know when the word is not caught
}

// run prints a line per mutant, and an error unless each was caught by the test that it names.
func (s suite) run(ctx context.Context, mutants []mutant) error {
	if err := s.askForRapid(ctx, mutants); err != nil {
		return err
	}
	if err := s.baseline(ctx, mutants); err != nil {
		return err
	}
	verdicts := s.judgeAll(ctx, mutants)
	var escaped int
	for i, v := range verdicts {
		if v.word == "caught" {
			continue
		}
		escaped++
		m := mutants[i]
		fmt.Fprintf(s.out, "\n%s %s\n  mutation: %s\n  effect:   %s\n  %s\n", m.name, v.word, m.plants, m.matters,
			strings.ReplaceAll(strings.TrimSpace(v.detail), "\n", "\n  "))
	}
	if s.table {
		table(s.out, mutants, verdicts)
	}
	fmt.Fprintf(s.out, "\n%d of %d mutants caught\n", len(mutants)-escaped, len(mutants))
	if escaped > 0 {
		return fmt.Errorf("%d of %d mutants were not caught", escaped, len(mutants))
	}
	return nil
}

func (s *suite) askForRapid(ctx context.Context, mutants []mutant) (err error) {
	s.rapid = map[string]bool{}
	for _, m := range mutants {
		pkg := m.catcher.pkg
		if _, asked := s.rapid[pkg]; asked || m.stale != nil {
			continue
		}
		if s.rapid[pkg], err = s.usesRapid(ctx, pkg); err != nil {
			return err
		}
	}
	return nil
}

// baseline shows that the named tests exist and pass as long as nothing is planted.
func (s suite) baseline(ctx context.Context, mutants []mutant) error {
	catchers := map[string][]test{}
	for _, m := range mutants {
		if m.stale == nil {
			catchers[m.catcher.pkg] = append(catchers[m.catcher.pkg], m.catcher)
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(catchers)) {
		tests := catchers[pkg]
		var tops []string
		for _, t := range tests {
			tops = append(tops, regexp.QuoteMeta(t.top()))
		}
		slices.Sort(tops)
		pattern := "^(" + strings.Join(slices.Compact(tops), "|") + ")$"
		o, err := s.goTest(ctx, pkg, pattern, "", 10*s.timeout) // many tests
		if err != nil {
			return err
		}
		if !o.ended {
			return fmt.Errorf("%s fails (%s) without any mutation, so it can't judge a mutant:\n%s", pkg, o.first(), tail(o.output))
		}
		for _, t := range tests {
			if !o.ran[t.name] {
				return fmt.Errorf("%s has no test %s, which a mutant names as its catcher (make mutants runs tests with -short)", pkg, t.name)
			}
		}
	}
	return nil
}

// judgeAll judges at most s.parallel mutants at a time and prints each verdict as it falls.
func (s suite) judgeAll(ctx context.Context, mutants []mutant) []verdict {
	width := 0
	for _, m := range mutants {
		width = max(width, len(m.name))
	}
	fmt.Fprintf(s.out, "%-*s  %-9s  %6s  %s\n", width, "mutant", "verdict", "after", "by")
	verdicts := make([]verdict, len(mutants))
	var (
		printing sync.Mutex // owns s.out
		judged   sync.WaitGroup
		places   = make(chan struct{}, s.parallel)
	)
	for i, m := range mutants {
		judged.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			began := time.Now()
			v := s.judge(ctx, m)
			v.took = time.Since(began)
			verdicts[i] = v
			printing.Lock()
			defer printing.Unlock()
			fmt.Fprintf(s.out, "%-*s  %-9s  %5.1fs  %s\n", width, m.name, v.word, v.took.Seconds(), v.by)
		})
	}
	judged.Wait()
	return verdicts
}

// judge plants one mutant and asks the test that it names, and then, to say more, the others.
func (s suite) judge(ctx context.Context, m mutant) verdict {
	if m.stale != nil {
		return verdict{word: "stale", detail: m.stale.Error()}
	}
	folder, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return verdict{word: "broken", detail: err.Error()}
	}
	defer os.RemoveAll(folder)
	overlay, err := s.writeOverlay(m, folder)
	if err != nil {
		return verdict{word: "broken", detail: err.Error()}
	}
	for try := 1; try <= tries; try++ {
		named, err := s.goTest(ctx, m.catcher.pkg, m.catcher.pattern(), overlay, s.timeout)
		switch {
		case err != nil:
			return verdict{word: "broken", detail: err.Error()}
		case !named.compiled:
			return verdict{word: "broken", detail: "it does not compile:\n" + tail(named.output)}
		case !named.ended && try == 1:
			return verdict{word: "caught", by: m.credit(named)}
		case !named.ended:
			return verdict{word: "caught", by: fmt.Sprintf("%s, in run %d of it", m.credit(named), try)}
		}
	}
	others, err := s.goTest(ctx, m.catcher.pkg, ".", overlay, s.timeout)
	switch {
	case err != nil:
		return verdict{word: "broken", detail: err.Error()}
	case !others.ended:
		return verdict{word: "elsewhere", by: others.first(),
			detail: fmt.Sprintf("%s passes; %s fails. If that is the test which should, name it in the patch.", m.catcher.name, others.first())}
	}
	return verdict{word: "survived",
		detail: fmt.Sprintf("%s passes, and so does all of %s: nothing would notice this bug.", m.catcher.name, m.catcher.pkg)}
}

// credit names the catcher; if it did not fail as a test does, also how it ended.
func (m mutant) credit(o outcome) string {
	if len(o.failed) > 0 {
		return m.catcher.name
	}
	return m.catcher.name + " (" + o.first() + ")"
}

// tail is the end of an output: enough to see what happened.
func tail(output []byte) string {
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

package check

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	// chunkMin is how many steps are searched at least before the search is cut where it can be:
	// at a moment when nothing is under way, so that only one state is possible.
	chunkMin = 256
	// chunkMax is how many steps a search can have in memory: it keeps a bit for each at each.
	chunkMax = 30_000
	// candidatesMax is how many calls a finding names that don't fit.
	candidatesMax = 4
)

// checkLinearizability looks for locks whose answers no order of the calls explains.
func checkLinearizability(f *checker) {
	for _, name := range f.lockNames {
		f.eachChunk(f.locks[name], func(c *chunk) bool {
			f.examined += len(c.steps)
			if len(c.steps) > chunkMax {
				f.invalidf("C1: lock %q has %d calls without a quiet moment between them; %d can be judged",
					name, len(c.steps), chunkMax)
				return false
			}
			model, history := c.model(), c.operations()
			switch porcupine.CheckOperationsTimeout(model, history, f.timeout) {
			case porcupine.Unknown:
				f.invalidf("C1: no order was found for %d calls of lock %q in %v, nor that there is none",
					len(c.steps), name, f.timeout)
				return false
			case porcupine.Illegal:
				f.reportIllegal(c, model, history)
				return false
			default:
				return true
			}
		})
	}
}

// Visualize writes a page that shows the order that was found for a lock's calls, with the faults beside
// it: the part of it where there is none, or else the first part.
func Visualize(h *History, name string, w io.Writer) error {
	f := &checker{historyIndex: newHistoryIndex(h), chunkMin: chunkMin, report: &Report{}}
	l := f.locks[name]
	if l == nil {
		return fmt.Errorf("draw: there is no lock %q in this history", name)
	}
	var model porcupine.Model
	var info porcupine.LinearizationInfo
	selected := false
	check := func(c *chunk) bool {
		m := c.model()
		result, i := porcupine.CheckOperationsVerbose(m, c.operations(), searchTimeout)
		if !selected || result == porcupine.Illegal {
			model, info, selected = m, i, true
		}
		return result == porcupine.Ok
	}
	f.eachChunk(l, check)
	if !selected { // the tokens alone exclude every order
		grants := f.grantsOf(l)
		c := &chunk{f.historyIndex, name, grants, f.stepsOf(l, grants), state{}}
		c.steps = c.steps[:min(len(c.steps), chunkMax)]
		check(c)
	}
	var annotations []porcupine.Annotation
	for _, fault := range h.Faults {
		annotations = append(annotations, porcupine.Annotation{
			Tag: "faults", Start: int64(fault.From), End: int64(fault.To), Description: fault.Kind + " " + fault.Target,
		})
	}
	info.AddAnnotations(annotations)
	return porcupine.Visualize(model, info, w)
}

// eachChunk cuts a lock's history where nothing is under way, and hands on each part until one is
// enough.
func (f *checker) eachChunk(l *lockRecords, check func(*chunk) bool) {
	grants := f.grantsOf(l)
	if !f.tightenBounds(l.name, grants) {
		return
	}
	steps := f.stepsOf(l, grants)
	current, from, openUntil := state{}, 0, time.Duration(-1)
	for i := range steps {
		if i-from >= f.chunkMin && steps[i].from > openUntil {
			c := &chunk{f.historyIndex, l.name, grants, steps[from:i], current}
			if !check(c) {
				return
			}
			current, from = c.finalState(), i
		}
		openUntil = max(openUntil, steps[i].to)
	}
	if from < len(steps) {
		check(&chunk{f.historyIndex, l.name, grants, steps[from:], current})
	}
}

// reportIllegal reports where the search came to an end.
func (f *checker) reportIllegal(c *chunk, model porcupine.Model, history []porcupine.Operation) {
	_, info := porcupine.CheckOperationsVerbose(model, history, f.timeout)
	var longest []porcupine.Operation
	for _, parts := range info.PartialLinearizationsOperations() {
		for _, ordered := range parts {
			if len(ordered) > len(longest) {
				longest = ordered
			}
		}
	}
	placed, current := map[*step]bool{}, c.initial
	for _, op := range longest {
		s := op.Input.(*step)
		placed[s] = true
		_, current = c.step(current, s)
	}
	var unplaced []*step
	for i := range c.steps {
		if s := &c.steps[i]; !placed[s] {
			unplaced = append(unplaced, s)
		}
	}
	slices.SortStableFunc(unplaced, func(a, b *step) int { return cmp.Compare(a.to, b.to) })
	text := ""
	for i, s := range unplaced[:min(len(unplaced), candidatesMax)] {
		if i > 0 {
			text += "; or "
		}
		text += c.describe(s)
	}
	f.violationf("lock %q: no order of the calls explains their answers. At best %d of %d can be ordered, and then %s; "+
		"after that should come %s", c.name, len(longest), len(c.steps), c.describeState(current), text)
}

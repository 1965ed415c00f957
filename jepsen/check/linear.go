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
	// stuckMax is how many calls a finding names that don't fit.
	stuckMax = 4
)

// linear looks for locks whose answers can't be explained by any order of what was called.
func linear(f *finder) {
	for _, name := range f.names {
		f.eachChunk(f.locks[name], func(c *chunk) bool {
			f.looked += len(c.steps)
			if len(c.steps) > chunkMax {
				f.invalid("C1: lock %q has %d calls without a quiet moment between them; %d can be judged",
					name, len(c.steps), chunkMax)
				return false
			}
			model, history := c.model(), c.operations()
			switch porcupine.CheckOperationsTimeout(model, history, f.limits.Linear) {
			case porcupine.Unknown:
				f.invalid("C1: no order was found for %d calls of lock %q in %v, nor that there is none",
					len(c.steps), name, f.limits.Linear)
				return false
			case porcupine.Illegal:
				f.stuck(c, model, history)
				return false
			default:
				return true
			}
		})
	}
}

// Draw writes a page that shows the order that was found for a lock's calls, with the faults beside
// it: the part of it where there is none, or else the first part.
func Draw(h *History, name string, limits Limits, w io.Writer) error {
	f := &finder{view: newView(h), limits: Limits{chunk: chunkMin}, report: &Report{Looked: map[string]int{}}}
	l := f.locks[name]
	if l == nil {
		return fmt.Errorf("draw: there is no lock %q in this history", name)
	}
	var model porcupine.Model
	var info porcupine.LinearizationInfo
	drawn := false
	judge := func(c *chunk) bool {
		m := c.model()
		result, i := porcupine.CheckOperationsVerbose(m, c.operations(), orElse(limits.Linear, linearMost))
		if !drawn || result == porcupine.Illegal {
			model, info, drawn = m, i, true
		}
		return result == porcupine.Ok
	}
	f.eachChunk(l, judge)
	if !drawn { // the tokens alone say that there is none
		grants := f.grantsOf(l)
		c := &chunk{f.view, name, grants, f.stepsOf(l, grants), state{}}
		c.steps = c.steps[:min(len(c.steps), chunkMax)]
		judge(c)
	}
	var bars []porcupine.Annotation
	for _, fault := range h.Faults {
		bars = append(bars, porcupine.Annotation{
			Tag: "faults", Start: int64(fault.From), End: int64(fault.To), Description: fault.Kind + " " + fault.Target,
		})
	}
	info.AddAnnotations(bars)
	return porcupine.Visualize(model, info, w)
}

// eachChunk cuts a lock's history where nothing is under way, and hands on each part until one is
// enough.
func (f *finder) eachChunk(l *lock, judge func(*chunk) bool) {
	grants := f.grantsOf(l)
	if !f.narrow(l.name, grants) {
		return
	}
	steps := f.stepsOf(l, grants)
	now, from, open := state{}, 0, time.Duration(-1)
	for i := range steps {
		if i-from >= f.limits.chunk && steps[i].from > open {
			c := &chunk{f.view, l.name, grants, steps[from:i], now}
			if !judge(c) {
				return
			}
			now, from = c.after(), i
		}
		open = max(open, steps[i].to)
	}
	if from < len(steps) {
		judge(&chunk{f.view, l.name, grants, steps[from:], now})
	}
}

// stuck tells where the search came to an end.
func (f *finder) stuck(c *chunk, model porcupine.Model, history []porcupine.Operation) {
	_, info := porcupine.CheckOperationsVerbose(model, history, f.limits.Linear)
	var longest []porcupine.Operation
	for _, parts := range info.PartialLinearizationsOperations() {
		for _, ordered := range parts {
			if len(ordered) > len(longest) {
				longest = ordered
			}
		}
	}
	placed, now := map[*step]bool{}, c.now
	for _, op := range longest {
		s := op.Input.(*step)
		placed[s] = true
		_, now = c.apply(now, s)
	}
	var left []*step
	for i := range c.steps {
		if s := &c.steps[i]; !placed[s] {
			left = append(left, s)
		}
	}
	slices.SortStableFunc(left, func(a, b *step) int { return cmp.Compare(a.to, b.to) })
	text := ""
	for i, s := range left[:min(len(left), stuckMax)] {
		if i > 0 {
			text += "; or "
		}
		text += c.describe(s)
	}
	f.wrong("lock %q: no order of the calls explains their answers. At best %d of %d can be ordered, and then %s; "+
		"after that should come %s", c.name, len(longest), len(c.steps), c.describeState(now), text)
}

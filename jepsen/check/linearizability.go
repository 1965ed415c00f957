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

// checkLinearizability looks for locks whose answers no order of the calls explains: holders fit,
// tokens rise, reads show the holders. Tokens give the order of the grants, which bounds the moment
// of each. So the history is cut where no call is in progress, and each part begins in one known
// state. The end of a grant that nobody requested, or nobody saw, is assumed where it permits most.
// What unknown calls did without an audit is counted as unresolved.
func checkLinearizability(f *checker) {
	for _, l := range f.locks {
		f.eachChunk(l, func(c *chunk) bool {
			f.examined += len(c.steps)
			if len(c.steps) > chunkMax {
				f.invalidf("C1: lock %q has %d calls without a quiet moment between them; %d can "+
					"be judged",
					l.name, len(c.steps), chunkMax)
				return false
			}
			model, history := c.model(), c.operations()
			switch porcupine.CheckOperationsTimeout(model, history, f.timeout) {
			case porcupine.Unknown:
				f.invalidf(
					"C1: no order was found for %d calls of lock %q in %v, nor that there is none",
					len(c.steps), l.name, f.timeout)
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

// Visualize writes a page that shows the order that was found for a lock's calls, with the faults
// beside it: the part of it where there is none, or else the first part.
func Visualize(h *History, name string, w io.Writer) error {
	f := &checker{historyIndex: newHistoryIndex(h), chunkMin: chunkMin, report: &Report{}}
	l := f.byName[name]
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
			Tag: "faults", Start: int64(fault.From), End: int64(fault.To),
			Description: fault.Kind + " " + fault.Target,
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
			// Of those of one length always the same, since porcupine returns them in any order.
			if cmp.Or(cmp.Compare(len(ordered), len(longest)),
				slices.CompareFunc(longest, ordered, compareInputs)) > 0 {
				longest = ordered
			}
		}
	}
	placed, current := map[int]bool{}, c.initial
	for _, op := range longest {
		n := op.Input.(int)
		placed[n] = true
		current = c.transition(current, &c.steps[n])
	}
	var unplaced []*step
	for n := range c.steps {
		if !placed[n] {
			unplaced = append(unplaced, &c.steps[n])
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
	f.violationf(
		"lock %q: no order of the calls explains their answers. At best %d of %d can be ordered, "+
			"and then %s; after that should come %s", c.name, len(longest), len(c.steps),
		c.describeState(current), text)
}

func compareInputs(a, b porcupine.Operation) int {
	return cmp.Compare(a.Input.(int), b.Input.(int))
}

// step is one thing that happened to a lock, somewhere in its span.
type step struct {
	span
	kind    stepKind
	grant   uint32   // take, give, share, check: which
	held    bool     // check: the answer
	holders []uint32 // get: the answer, as far as the grants are known; sorted
	op      *Op      // of a read
}

type stepKind uint8

const (
	stepGrant stepKind = iota
	stepRelease
	stepDowngrade
	stepCheck // a check
	stepGet   // a get
)

// chunk is a part of a lock's history that begins in one known state.
type chunk struct {
	*historyIndex
	name    string
	grants  []grant
	steps   []step
	initial state
}

// state is the holders of a lock. It is never changed.
type state struct {
	token uint64   // the greatest so far
	held  []uint32 // the grants, in order, each with downgradedBit once it is downgraded
}

const downgradedBit = 1 << 31

// stepsOf are the steps of a lock, in order of their beginning.
func (v *historyIndex) stepsOf(l *lockRecords, grants []grant) []step {
	var steps []step
	byRef := make(map[Ref]uint32, len(grants))
	for i := range grants {
		g, n := &grants[i], uint32(i)
		if g.Ref.known() {
			byRef[g.Ref] = n
		}
		steps = append(steps, step{span: g.span, kind: stepGrant, grant: n})
		if g.mayEndAtOnce {
			continue
		}
		steps = append(steps, step{span: g.end, kind: stepRelease, grant: n})
		if g.downgradedIn != nil {
			steps = append(steps, step{span: *g.downgradedIn, kind: stepDowngrade, grant: n})
		}
	}
	for _, op := range l.reads {
		s := step{span: span{op.Call, op.Return}, kind: stepCheck, op: op, held: op.Held}
		if n, known := byRef[op.Ref]; op.Kind == OpCheck && known && grants[n].token == op.Token {
			s.grant = n
			steps = append(steps, s)
		}
		if op.Kind == OpGet {
			s.kind = stepGet
			for _, ref := range op.Holders {
				if n, known := byRef[ref]; known {
					s.holders = append(s.holders, n)
				}
			}
			slices.Sort(s.holders)
			steps = append(steps, s)
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.from, b.from) })
	return steps
}

func (c *chunk) model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return c.initial },
		Step: func(current, input, _ any) (bool, any) {
			return c.step(current.(state), &c.steps[input.(int)])
		},
		Hash: func(current any) uint64 {
			s := current.(state)
			h := s.token
			for _, n := range s.held {
				h = (h ^ uint64(n)) * 1099511628211 // as in FNV-1a
			}
			return h
		},
		Equal: func(a, b any) bool {
			return a.(state).token == b.(state).token &&
				slices.Equal(a.(state).held, b.(state).held)
		},
		DescribeOperation: func(input, _ any) string { return c.describe(&c.steps[input.(int)]) },
		DescribeState:     func(current any) string { return c.describeState(current.(state)) },
	}
}

// operations are the steps as porcupine has them: the input of each is its number.
func (c *chunk) operations() []porcupine.Operation {
	clients := map[string]int{}
	ops := make([]porcupine.Operation, len(c.steps))
	for i := range c.steps {
		s := &c.steps[i]
		client := c.client(s)
		if _, known := clients[client]; !known {
			clients[client] = len(clients)
		}
		ops[i] = porcupine.Operation{ClientId: clients[client], Input: i, Call: int64(s.from),
			Return: int64(s.to)}
	}
	return ops
}

// step is the lock: whether a step is possible in a state, and the state after it.
func (c *chunk) step(current state, s *step) (bool, state) {
	_, held := current.find(s.grant)
	switch s.kind {
	case stepGrant:
		g := &c.grants[s.grant]
		stale := g.token < current.token || g.token == current.token && g.item.Mode == Exclusive
		if stale || !c.admits(current, g.item) {
			return false, current
		}
	case stepRelease:
		if !held {
			return false, current
		}
	case stepCheck:
		return s.held == held, current
	case stepGet:
		return slices.EqualFunc(current.held, s.holders,
			func(n, shown uint32) bool { return n&^downgradedBit == shown }), current
	}
	return true, c.transition(current, s)
}

// transition is the state after a step, whether or not it was possible.
func (c *chunk) transition(current state, s *step) state {
	at, held := current.find(s.grant)
	switch {
	case s.kind == stepGrant:
		g := &c.grants[s.grant]
		if current.token = max(current.token, g.token); !g.mayEndAtOnce {
			current.held = slices.Insert(slices.Clone(current.held), at, s.grant)
		}
	case s.kind == stepRelease && held:
		current.held = slices.Delete(slices.Clone(current.held), at, at+1)
	case s.kind == stepDowngrade && held:
		current.held = slices.Clone(current.held)
		current.held[at] |= downgradedBit
	}
	return current
}

// find is where a grant stands among the holders, or would stand.
func (s state) find(grant uint32) (at int, held bool) {
	return slices.BinarySearchFunc(s.held, grant,
		func(n, grant uint32) int { return cmp.Compare(n&^downgradedBit, grant) })
}

// admits reports whether an item fits beside the holders.
func (c *chunk) admits(current state, item Item) bool {
	permits := item.Permits
	for _, n := range current.held {
		held := c.holder(n)
		if permits += held.Permits; !compatible(held, item) {
			return false
		}
	}
	return item.Mode != Permits || permits <= item.Limit
}

func (c *chunk) holder(n uint32) Item {
	item := c.grants[n&^downgradedBit].item
	if n&downgradedBit != 0 {
		item.Mode = Shared
	}
	return item
}

// finalState is the one state in which the steps leave the lock. Nothing is under way then, so
// their order does not matter, but that of what happens to one grant.
func (c *chunk) finalState() state {
	current := c.initial
	for _, kind := range []stepKind{stepGrant, stepDowngrade, stepRelease} {
		for i := range c.steps {
			if c.steps[i].kind == kind {
				current = c.transition(current, &c.steps[i])
			}
		}
	}
	return current
}

func (c *chunk) client(s *step) string {
	if s.op != nil {
		return s.op.Client
	}
	return c.grants[s.grant].client
}

func (c *chunk) describe(s *step) string {
	when := fmt.Sprintf("(%s, between %s and %s)", c.client(s), c.formatTime(s.from),
		c.formatTime(s.to))
	if s.kind == stepGet {
		return fmt.Sprintf("get: holders %v %s", s.op.Holders, when)
	}
	g := &c.grants[s.grant]
	switch s.kind {
	case stepGrant:
		return fmt.Sprintf("grant of token %d, %v %s", g.token, g.item, when)
	case stepRelease:
		return fmt.Sprintf("end of token %d %s", g.token, when)
	case stepDowngrade:
		return fmt.Sprintf("downgrade of token %d %s", g.token, when)
	default:
		return fmt.Sprintf("check of token %d: held=%v %s", g.token, s.held, when)
	}
}

func (c *chunk) describeState(current state) string {
	if len(current.held) == 0 {
		return fmt.Sprintf("it is free (greatest token %d)", current.token)
	}
	text := "it is held by"
	for _, n := range current.held {
		g := &c.grants[n&^downgradedBit]
		text += fmt.Sprintf(" %s with token %d (%v)", g.client, g.token, c.holder(n))
	}
	return text
}

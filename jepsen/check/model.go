package check

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/anishathalye/porcupine"
)

// step is one thing that happened to a lock, somewhere in its span.
type step struct {
	span
	kind  stepKind
	grant uint32   // take, give, share, check: which
	held  bool     // check: the answer
	shows []uint32 // get: the answer, as far as the grants are known; sorted
	by    *Op      // of a read
}

type stepKind uint8

const (
	take stepKind = iota
	give
	share
	look // a check
	list // a get
)

// chunk is a part of a lock's history that begins in one known state.
type chunk struct {
	*view
	name   string
	grants []grant
	steps  []step
	now    state
}

// state is who holds a lock, in a form that can be compared: four bytes for each grant, in order, the
// first bit set once it is downgraded.
type state struct {
	token uint64 // the greatest so far
	held  string
}

const downgraded = 1 << 31

// stepsOf are the steps of a lock, in order of their beginning.
func (v *view) stepsOf(l *lock, grants []grant) []step {
	var steps []step
	byRef := make(map[Ref]uint32, len(grants))
	for i := range grants {
		g, n := &grants[i], uint32(i)
		if g.Ref.known() {
			byRef[g.Ref] = n
		}
		steps = append(steps, step{span: g.span, kind: take, grant: n})
		if g.passing {
			continue
		}
		steps = append(steps, step{span: g.end, kind: give, grant: n})
		if g.share != nil {
			steps = append(steps, step{span: *g.share, kind: share, grant: n})
		}
	}
	for _, op := range l.reads {
		s := step{span: span{op.Call, op.Return}, kind: look, by: op, held: op.Held}
		if n, known := byRef[op.Ref]; op.Kind == OpCheck && known && grants[n].token == op.Token {
			s.grant = n
			steps = append(steps, s)
		}
		if op.Kind == OpGet {
			s.kind = list
			for _, ref := range op.Holders {
				if n, known := byRef[ref]; known {
					s.shows = append(s.shows, n)
				}
			}
			slices.Sort(s.shows)
			steps = append(steps, s)
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.from, b.from) })
	return steps
}

func (c *chunk) model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return c.now },
		Step: func(now, input, _ any) (bool, any) {
			return c.apply(now.(state), input.(*step))
		},
		Hash: func(now any) uint64 {
			s := now.(state)
			h := s.token
			for i := range len(s.held) {
				h = (h ^ uint64(s.held[i])) * 1099511628211 // FNV-1a
			}
			return h
		},
		DescribeOperation: func(input, _ any) string { return c.describe(input.(*step)) },
		DescribeState:     func(now any) string { return c.describeState(now.(state)) },
	}
}

func (c *chunk) operations() []porcupine.Operation {
	clients := map[string]int{}
	ops := make([]porcupine.Operation, len(c.steps))
	for i := range c.steps {
		s := &c.steps[i]
		who := c.who(s)
		if _, known := clients[who]; !known {
			clients[who] = len(clients)
		}
		ops[i] = porcupine.Operation{ClientId: clients[who], Input: s, Call: int64(s.from), Return: int64(s.to)}
	}
	return ops
}

// apply is the lock: whether a step is possible in a state, and the state after it.
func (c *chunk) apply(now state, s *step) (bool, state) {
	_, held := now.find(s.grant)
	switch s.kind {
	case take:
		g := &c.grants[s.grant]
		if g.token < now.token || g.token == now.token && g.item.Mode == Exclusive || !c.free(now, g.item) {
			return false, now
		}
	case give:
		if !held {
			return false, now
		}
	case look:
		return s.held == held, now
	case list:
		if len(now.held) != 4*len(s.shows) {
			return false, now
		}
		for i, n := range s.shows {
			if now.at(4*i)&^downgraded != n {
				return false, now
			}
		}
	}
	return true, c.do(now, s)
}

// do is the state after a step, whether or not it was possible.
func (c *chunk) do(now state, s *step) state {
	at, held := now.find(s.grant)
	switch {
	case s.kind == take:
		g := &c.grants[s.grant]
		if now.token = max(now.token, g.token); !g.passing {
			now.held = now.held[:at] + four(s.grant) + now.held[at:]
		}
	case s.kind == give && held:
		now.held = now.held[:at] + now.held[at+4:]
	case s.kind == share && held:
		now.held = now.held[:at] + four(s.grant|downgraded) + now.held[at+4:]
	}
	return now
}

func four(n uint32) string { return string(binary.BigEndian.AppendUint32(nil, n)) }

func (s state) at(i int) uint32 { return binary.BigEndian.Uint32([]byte(s.held[i : i+4])) }

// find is where a grant stands among the holders, or would stand.
func (s state) find(grant uint32) (at int, held bool) {
	for ; at < len(s.held); at += 4 {
		if n := s.at(at) &^ downgraded; n >= grant {
			return at, n == grant
		}
	}
	return at, false
}

// free says whether an item fits beside the holders.
func (c *chunk) free(now state, item Item) bool {
	permits := item.Permits
	for i := 0; i < len(now.held); i += 4 {
		held := c.holder(now.at(i))
		if permits += held.Permits; !fits(held, item) {
			return false
		}
	}
	return item.Mode != Permits || permits <= item.Of
}

func (c *chunk) holder(n uint32) Item {
	item := c.grants[n&^downgraded].item
	if n&downgraded != 0 {
		item.Mode = Shared
	}
	return item
}

// after is the one state in which the steps leave the lock. Nothing is under way then, so their order
// does not matter, but that of what happens to one grant.
func (c *chunk) after() state {
	now := c.now
	for _, kind := range []stepKind{take, share, give} {
		for i := range c.steps {
			if c.steps[i].kind == kind {
				now = c.do(now, &c.steps[i])
			}
		}
	}
	return now
}

func (c *chunk) who(s *step) string {
	if s.by != nil {
		return s.by.Client
	}
	return c.grants[s.grant].client
}

func (c *chunk) describe(s *step) string {
	when := fmt.Sprintf("(%s, between %s and %s)", c.who(s), c.at(s.from), c.at(s.to))
	if s.kind == list {
		return fmt.Sprintf("get: holders %v %s", s.by.Holders, when)
	}
	g := &c.grants[s.grant]
	switch s.kind {
	case take:
		return fmt.Sprintf("grant of token %d, %v %s", g.token, g.item, when)
	case give:
		return fmt.Sprintf("end of token %d %s", g.token, when)
	case share:
		return fmt.Sprintf("downgrade of token %d %s", g.token, when)
	default:
		return fmt.Sprintf("check of token %d: held=%v %s", g.token, s.held, when)
	}
}

func (c *chunk) describeState(now state) string {
	if now.held == "" {
		return fmt.Sprintf("it is free (greatest token %d)", now.token)
	}
	text := "it is held by"
	for i := 0; i < len(now.held); i += 4 {
		n := now.at(i)
		g := &c.grants[n&^downgraded]
		text += fmt.Sprintf(" %s with token %d (%v)", g.client, g.token, c.holder(n))
	}
	return text
}

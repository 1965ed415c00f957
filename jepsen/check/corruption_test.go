package check

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// historiesMax is when to give up looking for a history that has what a corruption needs.
const historiesMax = 100

// corruption is one change to a valid history after which it is not valid any more, and the check
// that must see it. It reports whether the history had what it needs.
type corruption struct {
	name  string
	check string
	apply func(p *corruptor) bool
}

// corruptor finds places to corrupt.
type corruptor struct {
	*rand.Rand
	*historyIndex
}

// adjacentGrants picks two calls on one mutex that are next to each other in order of token, both exclusive and
// with an end that nothing excuses, and of which the second began as asked.
func (p *corruptor) adjacentGrants(fit func(a, b *Op) bool) (a, b *Op) {
	for _, at := range p.Perm(len(p.lockNames)) {
		grants := slices.Clone(p.locks[p.lockNames[at]].grants)
		slices.SortFunc(grants, func(a, b *Op) int { return int(a.Token) - int(b.Token) })
		for i := range grants {
			if i > 0 && p.isPlainGrant(grants[i-1]) && p.isPlainGrant(grants[i]) && fit(grants[i-1], grants[i]) {
				return grants[i-1], grants[i]
			}
		}
	}
	return nil, nil
}

// isPlainGrant is an exclusive grant that its holder released when it had had enough.
func (p *corruptor) isPlainGrant(op *Op) bool {
	t := p.tickets[op.Ref]
	return len(op.Items) == 1 && op.Items[0].Mode == Exclusive && t.downgrade == nil && t.unlock != nil &&
		t.unlock.Outcome == OK && t.hold.End == Unlocked && !p.isExcused(t.hold, t.unlock.Return)
}

// pickRecord picks a record that fits.
func pickRecord[T any](p *corruptor, all []T, fit func(*T) bool) *T {
	for _, i := range p.Perm(len(all)) {
		if fit(&all[i]) {
			return &all[i]
		}
	}
	return nil
}

func corruptions() []corruption {
	return slices.Concat(corruptOrder(), corruptHolds(), corruptReads(), corruptCluster())
}

func corruptOrder() []corruption {
	before := func(a, b *Op) bool { return a.Return < b.Call }
	return []corruption{{"tokens exchanged", "C4", func(p *corruptor) bool {
		a, b := p.adjacentGrants(before)
		if a == nil {
			return false
		}
		a.Token, b.Token = b.Token, a.Token
		return true
	}}, {"one token twice", "C4", func(p *corruptor) bool {
		a, b := p.adjacentGrants(before)
		if a == nil {
			return false
		}
		b.Token = a.Token
		return true
	}}, {"granted before the release", "C1", func(p *corruptor) bool {
		a, b := p.adjacentGrants(func(a, b *Op) bool { return b.Call < p.tickets[a.Ref].unlock.Call })
		if a == nil {
			return false
		}
		b.Return = p.tickets[a.Ref].unlock.Call - 1
		return true
	}}, {"overtaken", "C5", func(p *corruptor) bool {
		a, b := p.adjacentGrants(func(a, b *Op) bool { return a.Queued != 0 && a.Queued < b.Call })
		if a == nil {
			return false
		}
		a.Token, b.Token = b.Token, a.Token
		return true
	}}, {"a token from nowhere at the resource", "C3", func(p *corruptor) bool {
		w := pickRecord(p, p.Writes, func(w *Write) bool { return w.Accepted })
		w.Token++
		return true
	}}, {"a late write taken", "C3", func(p *corruptor) bool {
		w := pickRecord(p, p.Writes, func(w *Write) bool { return !w.Accepted })
		if w == nil {
			return false
		}
		w.Accepted = true
		return true
	}}}
}

func corruptHolds() []corruption {
	return []corruption{{"belief that goes on", "C2", func(p *corruptor) bool {
		a, b := p.adjacentGrants(func(a, b *Op) bool { return p.tickets[b.Ref].hold.To > p.tickets[b.Ref].hold.From })
		if a == nil {
			return false
		}
		p.tickets[a.Ref].hold.To = p.tickets[b.Ref].hold.From + 1
		return true
	}}, {"a loss told late", "C8", func(p *corruptor) bool {
		a, b := p.adjacentGrants(func(a, b *Op) bool { h := p.tickets[a.Ref].hold; return p.Plan.CompleteEvents && h.To > h.From })
		if a == nil {
			return false
		}
		p.tickets[b.Ref].granted.At = p.tickets[a.Ref].hold.To - 1
		return true
	}}, {"more permits than there are", "C2", func(p *corruptor) bool {
		for _, name := range p.lockNames {
			pieces := p.holdSpans(p.locks[name])
			for i := range pieces {
				if i > 0 && pieces[i].item.Mode == Permits && pieces[i].from < pieces[i-1].to {
					for j := range pieces[i].Items {
						pieces[i].Items[j].Permits = 3
					}
					return true
				}
			}
		}
		return false
	}}, {"lost, then released", "C9", func(p *corruptor) bool {
		b := pickRecord(p, p.Holds, func(b *Hold) bool { return b.End == Lost })
		if b == nil {
			return false
		}
		late := Op{Client: b.Client, Kind: OpUnlock, Ref: b.Ref, Call: b.To + 1, Return: b.To + 2, Outcome: OK}
		p.Ops = append(p.Ops, late)
		return true
	}}, {"lost with proof in hand", "C6", func(p *corruptor) bool {
		b := pickRecord(p, p.Holds, func(b *Hold) bool { return b.End == Lost && b.Reason == Expired && !p.isExcused(b, b.To) })
		if b == nil {
			return false
		}
		p.Renewals = append(p.Renewals, Renewal{b.Session, b.To - 2, b.To - 1})
		return true
	}}}
}

func corruptReads() []corruption {
	return []corruption{{"a holder denied", "C1", func(p *corruptor) bool {
		op := pickRecord(p, p.Ops, func(op *Op) bool {
			t := p.tickets[op.Ref]
			return op.Kind == OpCheck && op.Held && t.acquire != nil && t.acquire.Outcome == OK && p.isPlainGrant(t.acquire) &&
				t.acquire.Return < op.Call && op.Return < t.unlock.Call
		})
		if op == nil {
			return false
		}
		op.Held = false
		return true
	}}, {"a holder shown that has left", "C10", func(p *corruptor) bool {
		op := pickRecord(p, p.Ops, func(op *Op) bool {
			t := p.tickets[op.Ref]
			return op.Kind == OpCheck && !op.Held && op.Outcome == OK &&
				t.unlock != nil && t.unlock.Outcome == OK && t.unlock.Return < op.Call
		})
		if op == nil {
			return false
		}
		op.Held = true
		return true
	}}, {"a read against its stamp", "C13", func(p *corruptor) bool {
		op := pickRecord(p, p.Ops, func(op *Op) bool { return op.Kind == OpGet && len(op.Holders) > 0 })
		op.Holders = op.Holders[1:]
		return p.Plan.CompleteEvents
	}}, {"a leap of the clock", "C14", func(p *corruptor) bool {
		op := pickRecord(p, p.Ops, func(op *Op) bool {
			return op.Kind == OpNow && op.Outcome == OK && op.Call > 3*time.Second
		})
		op.Time += time.Minute
		return true
	}}, {"a call that never comes back", "C12", func(p *corruptor) bool {
		op := pickRecord(p, p.Ops, func(op *Op) bool {
			return op.Outcome == OK && p.diedAt[op.Client] == 0 && max(op.Call, p.Plan.Healed)+p.Plan.Drain < p.end
		})
		if op == nil {
			return false
		}
		op.Return, op.Outcome = 0, Unknown
		return true
	}}}
}

func corruptCluster() []corruption {
	event := func(fit func(p *corruptor, ev *Event) bool, spoil func(p *corruptor, ev *Event)) func(*corruptor) bool {
		return func(p *corruptor) bool {
			ev := pickRecord(p, p.Events, func(ev *Event) bool { return fit(p, ev) })
			if ev == nil {
				return false
			}
			spoil(p, ev)
			return true
		}
	}
	granted := func(p *corruptor, ev *Event) bool { return ev.Kind == EvGranted }
	return []corruption{
		{"granted again", "C10", event(granted, func(p *corruptor, ev *Event) {
			again := *ev
			again.Index++
			p.Events = append(p.Events, again)
		})},
		{"another token in the log", "C16", event(granted, func(p *corruptor, ev *Event) { ev.Token++ })},
		{"refused, and granted", "C11", event(func(p *corruptor, ev *Event) bool {
			t := p.tickets[ev.Ref]
			return ev.Kind == EvRefused && t != nil && t.acquire != nil && t.acquire.Outcome == Refused
		}, func(p *corruptor, ev *Event) {
			p.Events = append(p.Events, Event{
				Index: ev.Index, Token: ev.Index, At: ev.At, Kind: EvGranted, Ref: ev.Ref, Items: singleItem("z", Shared),
			})
		})},
		{"a session that lingers", "C7", event(func(p *corruptor, ev *Event) bool {
			return ev.Kind == EvEnded && p.sessions[ev.Session].Died != 0
		}, func(p *corruptor, ev *Event) {
			for i := range p.Events {
				if e := &p.Events[i]; e.Kind == EvEnded && e.Session == ev.Session {
					e.At += 10 * time.Minute
				}
			}
		})},
		{"expired in spite of a renewal", "C6", event(func(p *corruptor, ev *Event) bool {
			return ev.Kind == EvEnded && ev.Reason == Expired
		}, func(p *corruptor, ev *Event) { p.Renewals = append(p.Renewals, Renewal{ev.Session, ev.At, ev.At}) })},
		{"a release that is missing", "C16", func(p *corruptor) bool {
			a, _ := p.adjacentGrants(func(a, b *Op) bool { return p.Plan.CompleteEvents })
			if a == nil {
				return false
			}
			p.Events = slices.DeleteFunc(p.Events, func(ev Event) bool {
				return ev.Kind == EvReleased && ev.Ref == a.Ref
			})
			return true
		}},
		{"another digest", "C15", func(p *corruptor) bool { p.NodeStates[p.IntN(len(p.NodeStates))].Digest++; return true }},
		{"a session left over", "C17", func(p *corruptor) bool { p.IdleCounts[1].Counts["sessions"]++; return true }},
	}
}

// Each single corruption of a valid history is seen, by the check whose business it is. Some need what
// few histories have, so there are as many histories as it takes.
func TestCorruptionsAreDetected(t *testing.T) {
	base, times := seedOf(t), 4
	if testing.Short() {
		times = 2
	}
	left := map[string]int{}
	for _, c := range corruptions() {
		left[c.name] = times
	}
	for seed := base; len(left) > 0 && seed < base+historiesMax; seed++ {
		sh := serviceConfig{
			clients: 5, mutexes: 2, pools: 1, ttl: 2 * time.Second, healed: 9 * time.Second, end: 16 * time.Second,
			audit: seed%4 != 0, faults: true,
		}
		clean := simulate(seed, sh)
		require.Empty(t, Check(clean, Limits{}).Violations, "seed %d", seed)
		for _, c := range corruptions() {
			if left[c.name] == 0 {
				continue
			}
			h := simulate(seed, sh)
			if !c.apply(&corruptor{rand.New(rand.NewPCG(seed, 3)), newHistoryIndex(h)}) {
				continue
			}
			r := Check(h, Limits{})
			found := slices.ContainsFunc(r.Violations, func(f Finding) bool { return f.Check == c.check })
			if !assert.True(t, found, "seed %d: %s: not seen by %s:\n%v", seed, c.name, c.check, r) {
				return
			}
			if left[c.name]--; left[c.name] == 0 {
				delete(left, c.name)
			}
		}
	}
	assert.Empty(t, left, "seed %d: no history had what these need", base)
}

// The search is made short by what tokens say of the order, and by cutting where nothing is under way.
// Neither changes what it finds.
func TestChunkedSearchAgreesWithFullSearch(t *testing.T) {
	base, good, bad := seedOf(t), 0, 0
	for seed := base; seed < base+400; seed++ {
		h := simulate(seed, serviceConfig{
			clients: 3, mutexes: 1, pools: 1, ttl: 2 * time.Second, end: 1120 * time.Millisecond, audit: seed%2 == 0,
		})
		r := rand.New(rand.NewPCG(seed, 4))
		if seed%3 != 0 {
			addNoise(r, h)
		}
		v := newHistoryIndex(h)
		want := true
		twins := false
		for _, name := range v.lockNames {
			grants := v.grantsOf(v.locks[name])
			for i := range grants {
				twins = twins || i > 0 && grants[i].token == grants[i-1].token
			}
			c := &chunk{historyIndex: v, name: name, grants: grants, steps: v.stepsOf(v.locks[name], grants)}
			result := porcupine.CheckOperationsTimeout(c.model(), c.operations(), linearizabilityTimeoutDefault)
			require.NotEqual(t, porcupine.Unknown, result, "seed %d", seed)
			want = want && result == porcupine.Ok
		}
		if twins {
			continue // one token for two is one moment for two, which only the short search knows
		}
		f := &checker{historyIndex: v, limits: Limits{LinearizabilityTimeout: linearizabilityTimeoutDefault, chunkMin: 1}, report: &Report{}}
		checkLinearizability(f)
		require.Equal(t, want, len(f.report.Violations) == 0, "seed %d: %v", seed, f.report.Violations)
		if want {
			good++
		} else {
			bad++
		}
	}
	assert.Greater(t, good, 20, "seed %d", base)
	assert.Greater(t, bad, 20, "seed %d", base)
}

// addNoise changes one answer, which may or may not be wrong then.
func addNoise(r *rand.Rand, h *History) {
	op := &h.Ops[r.IntN(len(h.Ops))]
	switch {
	case op.Outcome != OK:
	case op.Kind == OpCheck:
		op.Held = !op.Held
	case op.Kind == OpGet && len(op.Holders) > 0:
		op.Holders = op.Holders[1:]
	case op.acquires() && r.IntN(2) == 0:
		op.Token += uint64(r.IntN(20)) - 10
	default:
		op.Return = op.Call + time.Duration(r.Int64N(int64(op.Return-op.Call)+1))
	}
}

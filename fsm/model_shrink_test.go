package fsm_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"zamok/clock"
	"zamok/fsm"
)

// record is one entry of a log, with the term of its leader.
type record struct {
	term  uint64
	entry *fsm.Entry // nil = a restore
	bytes []byte
	// restore, if there is one, is not an entry: a backup is taken here and restored.
	restore *fsm.NewHistory
}

func newRecord(term uint64, e *fsm.Entry) record {
	return record{term: term, entry: e, bytes: e.Append(nil)}
}

// comparison is a log that is applied to machine and model side by side, before a witness.
type comparison struct {
	*model
	machine  *fsm.Machine
	observer *observer
	log      []record
}

func newComparison() *comparison {
	return &comparison{model: newModel(), machine: fsm.New(), observer: newObserver()}
}

// apply applies one entry to both and says what was wrong with what they did.
func (p *comparison) apply(r record) (fsm.Applied, error) {
	p.log = append(p.log, r)
	if r.restore != nil {
		return fsm.Applied{}, p.restore(r.restore)
	}
	before := p.machine.Used()
	got, err := p.machine.Apply(r.term, r.bytes)
	if err != nil {
		return got, err
	}
	if err := p.checkQuotas(r, before); err != nil {
		return got, err
	}
	want := p.model.apply(r.term, r.entry)
	if err := p.model.compare(&want, &got); err != nil {
		return got, err
	}
	return got, p.observer.observe(r.entry, &got)
}

// restore takes a backup and begins a new history with it.
func (p *comparison) restore(h *fsm.NewHistory) error {
	var snapshot bytes.Buffer
	index, got, err := fsm.RewriteBackup(&snapshot, bytes.NewReader(machineSnapshot(p.machine)), *h)
	if err != nil {
		return err
	}
	if p.machine, err = fsm.Restore(&snapshot); err != nil {
		return err
	}
	holdOff := h.HoldOff
	if holdOff == 0 {
		holdOff = p.model.highestTTL + fsm.DelayMax
	}
	for _, s := range p.model.sessions { // who may have renewed after the backup, and believes so
		holdOff = max(holdOff, s.TTL+s.LockDelay)
	}
	p.model.startHistory(*h, p.machine.HoldOffUntil())
	if p.model.index != index || p.machine.HoldOff() != got ||
		p.model.holdOffUntil < p.model.time.Add(holdOff) {
		return fmt.Errorf("after a restore: want index %d, quiet at least until %v; got %d, %v",
			p.model.index,
			p.model.time.Add(holdOff), index, p.model.holdOffUntil)
	}
	return p.observer.startHistory(p.machine)
}

// check compares the whole state, which costs more than an entry does.
func (p *comparison) check() error {
	if err := p.machine.Check(); err != nil {
		return err
	}
	return p.model.compareState(p.machine)
}

// failureFinder is a way to look for what is wrong with a log: by what each entry does, or, which
// takes far longer, by the whole state after each as well.
type failureFinder func(p *comparison, r record) error

func findByResults(p *comparison, r record) error {
	_, err := p.apply(r)
	return err
}

func findByState(p *comparison, r record) error {
	if err := findByResults(p, r); err != nil {
		return err
	}
	return p.check()
}

// firstFailure is the place of the first entry at which something is wrong.
func (find failureFinder) firstFailure(log []record) (int, error) {
	p := newComparison()
	for i, r := range log {
		if err := find(p, r); err != nil {
			return i, err
		}
	}
	return 0, nil
}

// shrink takes out of a log whatever it can do without and still go wrong in the same way, and
// writes down what is left.
//
// Commands name each other by indexes, so what is taken out leaves its place: a command becomes
// one that does nothing but take its index (idle).
func shrink(log []record) string {
	s := shrinker{find: findByResults, budget: 1 << 20}
	last, err := s.find.firstFailure(log)
	if err == nil {
		s.find = findByState
		last, err = s.find.firstFailure(log)
	}
	if err == nil {
		return "nothing, when its entries alone are looked at"
	}
	s.log, s.errorKind = slices.Clone(log[:last+1]), errorKindOf(err)
	for size := len(s.log); size > 0; size /= 2 {
		for from := 0; from < len(s.log); from += size {
			s.try(from, min(from+size, len(s.log)), toNoops)
		}
	}
	for i, r := range s.log {
		if r.entry == nil {
			continue
		}
		s.try(i, i+1, editEntry(func(e *fsm.Entry) { e.Renewals = nil }))
		s.try(i, i+1, editEntry(func(e *fsm.Entry) { e.Reading = clock.Reading{} }))
		for at := range r.entry.Commands {
			s.try(i, i+1, editEntry(func(e *fsm.Entry) { e.Commands[at] = noopCommand() }))
		}
	}
	_, err = s.find.firstFailure(s.log)
	return fmt.Sprintf("%v\n%s", err, listing(s.log))
}

// shrinker is a log that goes wrong in one way.
type shrinker struct {
	log       []record
	find      failureFinder
	errorKind string
	budget    int // entries that may still be applied
}

// try puts something simpler into part of the log, and takes it back if that heals it.
func (s *shrinker) try(from, to int, simpler func(record) record) {
	if s.budget -= len(s.log); s.budget < 0 {
		return
	}
	before := slices.Clone(s.log[from:to])
	for i := from; i < to; i++ {
		s.log[i] = simpler(s.log[i])
	}
	if _, err := s.find.firstFailure(s.log); errorKindOf(err) != s.errorKind {
		copy(s.log[from:to], before)
	}
}

// errorKindOf is an error without its numbers.
func errorKindOf(err error) string {
	if err == nil {
		return ""
	}
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return -1
		}
		return r
	}, err.Error())
}

func editEntry(change func(*fsm.Entry)) func(record) record {
	return func(r record) record {
		e := *r.entry
		e.Commands = slices.Clone(e.Commands)
		change(&e)
		return newRecord(r.term, &e)
	}
}

func toNoops(r record) record {
	if r.entry == nil || r.entry.Version != 1 {
		return newRecord(r.term, &fsm.Entry{Version: 1})
	}
	return editEntry(func(e *fsm.Entry) {
		*e = fsm.Entry{Version: 1, Commands: e.Commands}
		for i := range e.Commands {
			e.Commands[i] = noopCommand()
		}
	})(r)
}

// noopCommand takes an index and does nothing: session 0 does not exist.
func noopCommand() fsm.Command { return &fsm.CloseSession{} }

// listing writes a log out, nearly as a Go test would.
func listing(log []record) string {
	var b strings.Builder
	skipped := 0 // indexes taken by entries that do nothing
	for _, r := range log {
		if isNoop(r) {
			skipped += 1 + len(r.entry.Commands)
			continue
		}
		if skipped > 0 {
			fmt.Fprintf(&b, "  // %d indexes pass\n", skipped)
			skipped = 0
		}
		if r.restore != nil {
			fmt.Fprintf(&b, "  restore(%s)\n", show(r.restore))
			continue
		}
		fmt.Fprintf(&b, "  apply(%d, Entry{Version: %d, Reading: %s, Renewals: %s, Commands: {\n",
			r.term, r.entry.Version, show(r.entry.Reading), show(r.entry.Renewals))
		for _, c := range r.entry.Commands {
			fmt.Fprintf(&b, "    %s,\n", show(c))
		}
		b.WriteString("  }})\n")
	}
	return strings.ReplaceAll(b.String(), show(noopCommand()), "idle")
}

func isNoop(r record) bool {
	return r.entry != nil && r.entry.Version == 1 && r.entry.Reading == (clock.Reading{}) &&
		len(r.entry.Renewals) == 0 &&
		!slices.ContainsFunc(r.entry.Commands,
			func(c fsm.Command) bool { return show(c) != show(noopCommand()) })
}

package fsm_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"zamok/clock"
	"zamok/fsm"
)

// played is a log that is applied to machine and model side by side, before a witness.
type played struct {
	*model
	machine *fsm.Machine
	witness *witness
	log     []record
}

func newPlayed() *played {
	return &played{model: newModel(), machine: fsm.New(), witness: newWitness()}
}

// apply applies one entry to both and says what was wrong with what they did.
func (p *played) apply(r record) (fsm.Applied, error) {
	p.log = append(p.log, r)
	if r.restore != nil {
		return fsm.Applied{}, p.restore(r.restore)
	}
	got, err := p.machine.Apply(r.term, r.bytes)
	if err != nil {
		return got, err
	}
	want := p.model.enter(r)
	if err := p.model.differs(&want, &got); err != nil || r.entry == nil {
		return got, err
	}
	return got, p.witness.saw(r.entry, &got)
}

// restore takes a backup and begins a new history with it.
func (p *played) restore(h *fsm.NewHistory) error {
	var snapshot bytes.Buffer
	index, err := fsm.Rewrite(&snapshot, bytes.NewReader(bytesOf(p.machine)), *h)
	if err != nil {
		return err
	}
	if p.machine, err = fsm.Restore(&snapshot); err != nil {
		return err
	}
	quiet := h.HoldOff
	if quiet == 0 {
		quiet = fsm.HoldOffMax
	}
	for _, s := range p.model.sessions { // who may have renewed after the backup, and believes so
		quiet = max(quiet, s.TTL+s.LockDelay)
	}
	p.model.restart(*h, p.machine.HoldOffUntil())
	if p.model.index != index || p.model.quiet < p.model.time.Add(quiet) {
		return fmt.Errorf("after a restore: want index %d, quiet at least until %v; got %d, %v", p.model.index,
			p.model.time.Add(quiet), index, p.model.quiet)
	}
	return p.witness.restarted(p.machine)
}

// check compares the whole state, which costs more than an entry does.
func (p *played) check() error {
	if err := p.machine.Check(); err != nil {
		return err
	}
	return p.model.stateDiffers(p.machine)
}

// faults is a way to look for what is wrong with a log: by what each entry does, or, which takes far
// longer, by the whole state after each as well.
type faults func(p *played, r record) error

func byDeeds(p *played, r record) error {
	_, err := p.apply(r)
	return err
}

func byState(p *played, r record) error {
	if err := byDeeds(p, r); err != nil {
		return err
	}
	return p.check()
}

// first is the place of the first entry at which something is wrong.
func (find faults) first(log []record) (int, error) {
	p := newPlayed()
	for i, r := range log {
		if err := find(p, r); err != nil {
			return i, err
		}
	}
	return 0, nil
}

// shrunk takes out of a log whatever it can do without and still go wrong in the same way, and
// writes down what is left.
//
// Commands name each other by indexes, so what is taken out leaves its place: a command becomes
// one that does nothing but take its index (idle).
func shrunk(log []record) string {
	s := shrinking{find: byDeeds, patience: 1 << 20}
	last, err := s.find.first(log)
	if err == nil {
		s.find = byState
		last, err = s.find.first(log)
	}
	if err == nil {
		return "nothing, when its entries alone are looked at"
	}
	s.log, s.kind = slices.Clone(log[:last+1]), kindOf(err)
	for size := len(s.log); size > 0; size /= 2 {
		for from := 0; from < len(s.log); from += size {
			s.try(from, min(from+size, len(s.log)), idled)
		}
	}
	for i, r := range s.log {
		if r.entry == nil {
			continue
		}
		s.try(i, i+1, changed(func(e *fsm.Entry) { e.Renewals = nil }))
		s.try(i, i+1, changed(func(e *fsm.Entry) { e.Reading = clock.Reading{} }))
		for at := range r.entry.Commands {
			s.try(i, i+1, changed(func(e *fsm.Entry) { e.Commands[at] = idle() }))
		}
	}
	_, err = s.find.first(s.log)
	return fmt.Sprintf("%v\n%s", err, listing(s.log))
}

// shrinking is a log that goes wrong in one way.
type shrinking struct {
	log      []record
	find     faults
	kind     string
	patience int // entries that may still be applied
}

// try puts something simpler into part of the log, and takes it back if that heals it.
func (s *shrinking) try(from, to int, simpler func(record) record) {
	if s.patience -= len(s.log); s.patience < 0 {
		return
	}
	before := slices.Clone(s.log[from:to])
	for i := from; i < to; i++ {
		s.log[i] = simpler(s.log[i])
	}
	if _, err := s.find.first(s.log); kindOf(err) != s.kind {
		copy(s.log[from:to], before)
	}
}

// kindOf is an error without its numbers.
func kindOf(err error) string {
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

func changed(change func(*fsm.Entry)) func(record) record {
	return func(r record) record {
		e := *r.entry
		e.Commands = slices.Clone(e.Commands)
		change(&e)
		return newRecord(r.term, &e)
	}
}

func idled(r record) record {
	if r.entry == nil || r.entry.Version != 1 {
		return newRecord(r.term, &fsm.Entry{Version: 1})
	}
	return changed(func(e *fsm.Entry) {
		*e = fsm.Entry{Version: 1, Commands: e.Commands}
		for i := range e.Commands {
			e.Commands[i] = idle()
		}
	})(r)
}

// idle takes an index and does nothing: nobody has session 0.
func idle() fsm.Command { return &fsm.CloseSession{} }

// listing writes a log out, nearly as a Go test would.
func listing(log []record) string {
	var b strings.Builder
	passing := 0 // indexes taken by entries that do nothing
	for _, r := range log {
		if isPassing(r) {
			passing += 1 + len(r.entry.Commands)
			continue
		}
		if passing > 0 {
			fmt.Fprintf(&b, "  // %d indexes pass\n", passing)
			passing = 0
		}
		if r.restore != nil {
			fmt.Fprintf(&b, "  restore(%s)\n", show(r.restore))
			continue
		}
		if r.entry == nil {
			fmt.Fprintf(&b, "  apply(%d, %x) // not an entry\n", r.term, r.bytes)
			continue
		}
		fmt.Fprintf(&b, "  apply(%d, Entry{Version: %d, Reading: %s, Renewals: %s, Commands: {\n",
			r.term, r.entry.Version, show(r.entry.Reading), show(r.entry.Renewals))
		for _, c := range r.entry.Commands {
			fmt.Fprintf(&b, "    %s,\n", show(c))
		}
		b.WriteString("  }})\n")
	}
	return strings.ReplaceAll(b.String(), show(idle()), "idle")
}

func isPassing(r record) bool {
	return r.entry != nil && r.entry.Version == 1 && r.entry.Reading == (clock.Reading{}) && len(r.entry.Renewals) == 0 &&
		!slices.ContainsFunc(r.entry.Commands, func(c fsm.Command) bool { return show(c) != show(idle()) })
}

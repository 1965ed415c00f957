package store

import (
	"encoding/binary"
	"fmt"

	"github.com/hashicorp/raft"

	"zamok/raftnode/tail"
)

// keyOwed is where votes.db keeps the end that this node owes (package tail); no value, or zeros:
// it owes nothing.
const keyOwed = "OwedEnd"

func (v Values) owed() (tail.End, error) {
	value, ok := v[keyOwed]
	if !ok {
		return tail.End{}, nil
	}
	if len(value) != 16 {
		return tail.End{}, fmt.Errorf("%w: the value of %s has %d bytes, an end has 16",
			errRecord, keyOwed, len(value))
	}
	term, index := binary.BigEndian.Uint64(value), binary.BigEndian.Uint64(value[8:])
	return tail.End{Term: term, Index: index}, nil
}

func owedBytes(end tail.End) []byte {
	return append(numberBytes(end.Term), numberBytes(end.Index)...)
}

// Tail returns where the log on the disk ends, or the newest snapshot if that reaches further, and
// which end this node owes.
func (s *Store) Tail() tail.State {
	return tail.State{Log: s.logs.durableEnd(), Owed: s.votes.owed()}
}

// Owe makes this node owe an end, too: the higher of that and what it owes already.
func (s *Store) Owe(end tail.End) error {
	return s.votes.changeOwed(func(owed tail.End) tail.End { return tail.Higher(owed, end) })
}

// Sink lowers what this node owes; to zero, it owes nothing any more. It does nothing if that was
// done already.
func (s *Store) Sink(owed, sunk tail.End) error {
	return s.votes.changeOwed(func(now tail.End) tail.End {
		if now == owed {
			return sunk
		}
		return now
	})
}

func (v *votes) owed() tail.End {
	owed, _ := v.values.Load().owed() // newVotes has looked for an error
	return owed
}

// changeOwed writes what this node owes, if that changes.
func (v *votes) changeOwed(change func(tail.End) tail.End) error {
	return v.write(OpSetting, 1, func() error {
		next := change(v.owed())
		if next == v.owed() {
			return nil
		}
		return v.replace(Values{keyOwed: owedBytes(next)})
	})
}

// durableEnd is where the log on the disk ends. If it can't be read it is taken for empty: the node
// ends.
func (l *raftLog) durableEnd() tail.End {
	for {
		newest := l.snapshots.newest()
		l.pending.mu.Lock()
		last := l.extent.Load().last
		if len(l.pending.entries) > 0 {
			last = l.pending.entries[0].Index - 1
		}
		l.pending.mu.Unlock()
		if last <= newest.Index {
			return tail.End{Term: newest.Term, Index: newest.Index}
		}
		var entry raft.Log
		switch err := l.GetLog(last, &entry); {
		case err == nil:
			return tail.End{Term: entry.Term, Index: last}
		case l.extent.Load().has(last):
			return tail.End{}
		}
	}
}

// Owed is what the node of this Memory owes.
func (m *Memory) Owed() tail.End {
	m.mu.Lock()
	defer m.mu.Unlock()
	owed, _ := m.votes.owed() // whoever opens it looks for an error
	return owed
}

// Owe is what Open does for a log in files that it has to cut. No Store uses the Memory.
func (m *Memory) Owe(end tail.End) error {
	return memoryTable{m}.Put(Values{keyOwed: owedBytes(tail.Higher(m.Owed(), end))})
}

// Cut is damage to the last entries of the log, as far as there are more than one, which the next
// process notices. No Store uses the Memory.
func (m *Memory) Cut(entries uint64) error {
	if m.logs == nil {
		return nil
	}
	all, err := extentOf(m.logs)
	if err != nil || all.last <= all.first {
		return err
	}
	var last raft.Log
	if err := m.logs.GetLog(all.last, &last); err != nil {
		return err
	}
	if err := m.Owe(tail.End{Term: last.Term, Index: last.Index}); err != nil {
		return err
	}
	return m.logs.DeleteRange(all.last-min(entries, all.last-all.first)+1, all.last)
}

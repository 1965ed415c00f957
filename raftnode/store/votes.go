package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
)

// The keys under which raft keeps a vote.
const (
	keyVoteTerm      = "LastVoteTerm"
	keyVoteCandidate = "LastVoteCand"
	keyCurrentTerm   = "CurrentTerm"
)

// A Table holds a few small values by name. There is one on the disk and one in
// memory; a test may put its own around either (Wrap).
type Table interface {
	// Values returns all values.
	Values() (Values, error)

	// Put changes some values in one transaction: after a crash all of them are changed, or none.
	Put(changes Values) error
}

// Values are the values of a Table.
type Values map[string][]byte

// number returns the value of key as a number, and 0 if there is none.
func (v Values) number(key string) (uint64, error) {
	value, ok := v[key]
	if !ok {
		return 0, nil
	}
	if len(value) != 8 {
		return 0, fmt.Errorf("%w: the value of %s has %d bytes, a number has 8", errRecord, key,
			len(value))
	}
	return binary.BigEndian.Uint64(value), nil
}

func numberBytes(number uint64) []byte { return binary.BigEndian.AppendUint64(nil, number) }

// votes implements raft.StableStore, with votes that can't be torn (S1).
type votes struct {
	serialWriter
	log    *raftLog
	table  Table
	values atomic.Pointer[Values] // what is written; it is read without waiting for the disk
	staged atomic.Pointer[uint64] // the term of a vote whose candidate is not known yet
}

func newVotes(table Table, writer serialWriter) (*votes, error) {
	v := &votes{serialWriter: writer, table: table}
	values, err := table.Values()
	for _, key := range []string{keyCurrentTerm, keyVoteTerm} {
		if err == nil {
			_, err = values.number(key)
		}
	}
	if err == nil {
		_, err = values.owed()
	}
	v.values.Store(&values)
	return v, err
}

var errHalfVote = errors.New("store: half a vote, " + keyVoteCandidate + " without " + keyVoteTerm +
	" just before it: nothing was written; set the term as a number first, then the candidate, " +
	"and both are written together")

// SetUint64 writes a number. The term of a vote is only remembered: raft's very
// next call sets its candidate, and until then the vote has not been cast.
func (v *votes) SetUint64(key []byte, value uint64) error {
	if string(key) == keyVoteTerm {
		v.staged.Store(&value)
		return nil
	}
	return v.put(OpSetting, Values{string(key): numberBytes(value)})
}

// Set writes a value; for the candidate of a vote, the vote's term with it.
func (v *votes) Set(key, value []byte) error {
	changes := Values{string(key): bytes.Clone(value)}
	switch string(key) {
	case keyVoteTerm:
		return errHalfVote
	case keyVoteCandidate:
		term := v.staged.Swap(nil)
		if term == nil {
			return errHalfVote
		}
		changes[keyVoteTerm] = numberBytes(*term)
		return v.put(OpVote, changes)
	}
	return v.put(OpSetting, changes)
}

// put writes values, when no entry is pending any more (S16).
func (v *votes) put(op Op, changes Values) error {
	if err := v.log.flush(); err != nil {
		return err
	}
	return v.write(op, len(changes), func() error { return v.replace(changes) })
}

// replace changes values on the disk, and then in memory. The caller holds the writer's lock.
func (v *votes) replace(changes Values) error {
	err := v.table.Put(changes)
	if err == nil {
		next := maps.Clone(*v.values.Load())
		maps.Copy(next, changes)
		v.values.Store(&next)
	}
	return err
}

// Get returns what is written. A vote of which only the term is known is not.
func (v *votes) Get(key []byte) ([]byte, error) {
	if value, ok := (*v.values.Load())[string(key)]; ok {
		return value, nil
	}
	return nil, errNotFound
}

// GetUint64 implements raft.StableStore.
func (v *votes) GetUint64(key []byte) (uint64, error) {
	if _, err := v.Get(key); err != nil {
		return 0, err
	}
	return v.values.Load().number(string(key))
}

// term is the term that this node is in, 0 if it was in none.
func (v *votes) term() uint64 {
	term, _ := v.values.Load().number(keyCurrentTerm) // newVotes has looked for an error
	return term
}

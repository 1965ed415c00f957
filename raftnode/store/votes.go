package store

import (
	"encoding/binary"
	"errors"
	"fmt"
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
	// Get returns the value of key, or an error whose text is "not found", which
	// raft compares with.
	Get(key string) ([]byte, error)

	// Put writes all pairs in one transaction: after a crash all of them are
	// there, or none.
	Put(pairs ...Pair) error
}

// A Pair is a named value of a Table.
type Pair struct {
	Key   string
	Value []byte
}

// votes implements raft.StableStore, with votes that can't be torn (S1).
type votes struct {
	serialWriter
	table   Table
	current atomic.Uint64          // the term that is written, for Store.Term, which must not wait for the disk
	staged  atomic.Pointer[uint64] // the term of a vote whose candidate is not known yet
}

func newVotes(table Table, writer serialWriter) (*votes, error) {
	v := &votes{serialWriter: writer, table: table}
	term, err := numberOrZero(table, keyCurrentTerm)
	v.current.Store(term)
	return v, err
}

var errHalfVote = errors.New("store: half a vote, " + keyVoteCandidate + " without " + keyVoteTerm + " just before it: nothing was written; " +
	"set the term as a number first, then the candidate, and both are written together")

// SetUint64 writes a number. The term of a vote is only remembered: raft's very
// next call sets its candidate, and until then the vote has not been cast.
func (v *votes) SetUint64(key []byte, value uint64) error {
	if string(key) == keyVoteTerm {
		v.staged.Store(&value)
		return nil
	}
	err := v.put(OpSetting, numberPair(string(key), value))
	if err == nil && string(key) == keyCurrentTerm {
		v.current.Store(value)
	}
	return err
}

// Set writes a value; for the candidate of a vote, the vote's term with it.
func (v *votes) Set(key, value []byte) error {
	switch string(key) {
	case keyVoteTerm:
		return errHalfVote
	case keyVoteCandidate:
		term := v.staged.Swap(nil)
		if term == nil {
			return errHalfVote
		}
		return v.put(OpVote, numberPair(keyVoteTerm, *term), Pair{keyVoteCandidate, value})
	}
	return v.put(OpSetting, Pair{string(key), value})
}

// Get returns what is written. A vote of which only the term is known is not.
func (v *votes) Get(key []byte) (value []byte, err error) {
	err = recovered(func() error {
		value, err = v.table.Get(string(key))
		return err
	})
	if err != nil && !errors.Is(err, errNotFound) {
		err = v.damaged(err)
	}
	return value, err
}

// GetUint64 implements raft.StableStore.
func (v *votes) GetUint64(key []byte) (uint64, error) {
	value, err := v.Get(key)
	if err != nil {
		return 0, err
	}
	number, err := parseNumber(string(key), value)
	if err != nil {
		err = v.damaged(err)
	}
	return number, err
}

func (v *votes) put(op Op, pairs ...Pair) error {
	bytes := 0
	for _, pair := range pairs {
		bytes += len(pair.Key) + len(pair.Value)
	}
	w := Write{Op: op, Entries: len(pairs), Bytes: bytes}
	return v.write(w, func() error { return v.table.Put(pairs...) })
}

func numberPair(key string, value uint64) Pair {
	return Pair{key, binary.BigEndian.AppendUint64(nil, value)}
}

// numberOrZero returns a number of a table, and 0 if there is no value.
func numberOrZero(table interface {
	Get(key string) ([]byte, error)
}, key string) (uint64, error) {
	value, err := table.Get(key)
	if errors.Is(err, errNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return parseNumber(key, value)
}

func parseNumber(key string, value []byte) (uint64, error) {
	if len(value) != 8 {
		return 0, fmt.Errorf("%w: the value of %s has %d bytes, a number has 8", errRecord, key, len(value))
	}
	return binary.BigEndian.Uint64(value), nil
}

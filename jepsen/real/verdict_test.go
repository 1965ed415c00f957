package main

import (
	"errors"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/client"
	"zamok/jepsen/check"
)

func TestQueuedTimeBelongsToGrantedSession(t *testing.T) {
	h := &check.History{
		Ops: []check.Op{
			{Kind: check.OpNow, Return: 10, Index: 100, Outcome: check.OK},
			{Kind: check.OpLock, Queued: 11, Return: 30, Token: 200, Outcome: check.OK,
				Ref: check.Ref{Session: 99, Ticket: 1}},
			{Kind: check.OpLock, Queued: 11, Return: 40, Token: 300, Outcome: check.OK,
				Ref: check.Ref{Session: 150, Ticket: 1}},
		},
	}
	dropStaleQueued(h)
	assert.EqualValues(t, 11, h.Ops[1].Queued)
	assert.Zero(t, h.Ops[2].Queued, "session 150 may have been opened later")
}

func TestShuffledKinds(t *testing.T) {
	order := func(seed uint64) (all []string) {
		d := &shuffledKinds{kinds: faultKinds(), random: rand.New(rand.NewPCG(seed, 1))}
		for range 2 * len(d.kinds) {
			all = append(all, d.next().name)
		}
		return all
	}
	first, half := order(7), len(faultKinds())
	assert.Equal(t, first, order(7))
	assert.NotEqual(t, first, order(8))
	assert.ElementsMatch(t, first[:half], first[half:])

	d := &shuffledKinds{kinds: faultKinds()[:3], random: rand.New(rand.NewPCG(1, 1))}
	wants := d.next()
	d.putBack(wants)
	d.skippedInRow = 0 // another one is injected
	var got []string
	for range 4 {
		got = append(got, d.next().name)
	}
	assert.Contains(t, got[:3], wants.name, "it gets its turn again before any comes twice")
	assert.Len(t, d.remaining, 2)
	for range 10 { // nothing has an occasion
		d.putBack(d.next())
	}
	assert.LessOrEqual(t, len(d.remaining), 2*len(d.kinds), "what waits does not pile up")
}

// A call that changes something is recorded before it is made, and its outcome after it.
func TestRecordedCalls(t *testing.T) {
	parts := t.TempDir()
	file := filepath.Join(parts, "c1.jsonl")
	r, err := newRecorder(file)
	require.NoError(t, err)
	for _, kind := range []check.OpKind{check.OpLock, check.OpDowngrade, check.OpGet} {
		for _, err := range []error{nil, client.ErrNotAcquired, errors.New(`"outcome":"ok"`)} {
			_ = r.Call(check.Op{Client: "c1", Kind: kind}, func(*check.Op) error { return err })
		}
	}
	assert.Equal(t, 3, countSucceeded(parts))
	require.NoError(t, r.close())
	h, err := readHistory([]string{file})
	require.NoError(t, err)
	assert.Len(t, h.Ops, 2*6+3)
	var outcomes []check.Outcome
	for _, op := range h.LatestOps() {
		outcomes = append(outcomes, op.Outcome)
	}
	assert.Equal(t, []check.Outcome{
		check.OK, check.Refused, check.Refused, check.OK, check.Unknown, check.Unknown, check.OK, check.Unknown, check.Unknown,
	}, outcomes)
}

// The kinds that a run has depend on its nodes, its disks, and what it asks for.
func TestSelectKinds(t *testing.T) {
	names := func(o options, hasDisks bool) (all []string) {
		kinds, err := o.selectKinds(hasDisks)
		require.NoError(t, err)
		for _, k := range kinds {
			all = append(all, k.name)
		}
		return all
	}
	assert.Len(t, faultKinds(), 47)
	assert.Len(t, names(options{nodes: 3, kindPattern: "."}, false), 32)
	assert.Len(t, names(options{nodes: 5, kindPattern: "."}, true), 46)
	assert.Equal(t, []string{"wipe node"}, names(options{nodes: 3, kindPattern: "wipe node"}, true))
	assert.Equal(t, []string{"two killed, one paused"}, names(options{nodes: 5, kindPattern: "two killed"}, false))
	_, err := (&options{kindPattern: "flood"}).selectKinds(true)
	assert.ErrorContains(t, err, "flood")
}

package service

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
)

// Calls that read much of the machine read one at a time, and of each connection one call at a time
// waits for that: a client is not behind everything that another one requested.
func TestReadersReadInTurn(t *testing.T) {
	const calls = 20
	s := startAlone(t)
	from := func() (any, context.Context) {
		l := new(int) // it only differs from others
		return l, soon(t, testCaller{conn: l})
	}
	greedy, oftenCtx := from()
	other, onceCtx := from()
	var order []string
	var running atomic.Int32
	var all sync.WaitGroup
	read := func(ctx context.Context, name string) {
		all.Go(func() {
			assert.NoError(t, s.read(ctx, func(*fsm.Machine) {
				assert.EqualValues(t, 1, running.Add(1), "one reads")
				order = append(order, name)
				running.Add(-1)
			}))
		})
	}
	waits := func(l any, calls int) {
		waitForReaders(t, s, reader{conn: l}, calls)
	}
	s.reading <- struct{}{}
	for range calls {
		read(oftenCtx, "greedy")
	}
	waits(greedy, calls)
	read(onceCtx, "other")
	waits(other, 1)
	ctx, cancel := context.WithCancel(oftenCtx)
	cancel()
	assert.Error(t, s.read(ctx, func(*fsm.Machine) {}), "a cancelled call stops waiting")
	<-s.reading
	all.Wait()
	require.Len(t, order, calls+1)
	assert.Less(t, slices.Index(order, "other"), calls/2)
	assert.Empty(t, s.reading)
}

// waitForReaders waits until so many calls read, or wait to do so.
func waitForReaders(t *testing.T, s *node, of reader, calls int) {
	require.Eventually(t, func() bool {
		s.readSlots.mu.Lock()
		defer s.readSlots.mu.Unlock()
		own := s.readSlots.of[of]
		return own == nil && calls == 0 || own != nil && own.calls == calls
	}, patience, time.Millisecond)
}

// TestReadersOfAnIdentityShareASlot: connections give a client no more of the reading than others
// have.
func TestReadersOfAnIdentityShareASlot(t *testing.T) {
	const calls = 20
	s := startAlone(t)
	var order []string
	var all sync.WaitGroup
	from := func(who string) context.Context {
		return soon(t, testCaller{name: who, conn: new(int)})
	}
	read := func(who string) {
		ctx := from(who)
		all.Go(func() {
			assert.NoError(t, s.read(ctx, func(*fsm.Machine) { order = append(order, who) }))
		})
	}
	waiting := func(who string, calls int) { waitForReaders(t, s, reader{principal: who}, calls) }
	s.reading <- struct{}{}
	for range calls {
		read("greedy")
	}
	waiting("greedy", calls)
	read("other")
	waiting("other", 1)
	<-s.reading
	all.Wait()
	require.Len(t, order, calls+1)
	assert.Less(t, slices.Index(order, "other"), calls/2)
	waiting("greedy", 0)
	assert.NoError(t, s.read(from("greedy"), func(*fsm.Machine) {}),
		"none of its calls waits any more")
}

// TestReadersOnOneConnectionReadInTurn: a connection may carry calls of several clients, as that of
// a node which relays does. A client with many calls on it does not delay those of the others.
func TestReadersOnOneConnectionReadInTurn(t *testing.T) {
	const calls = 20
	s := startAlone(t)
	shared := new(int)
	var order []string
	var all sync.WaitGroup
	read := func(who string) {
		ctx := soon(t, testCaller{name: who, conn: shared})
		all.Go(func() {
			assert.NoError(t, s.read(ctx, func(*fsm.Machine) { order = append(order, who) }))
		})
	}
	s.reading <- struct{}{}
	for range calls {
		read("greedy")
	}
	waitForReaders(t, s, reader{"greedy", shared}, calls)
	read("other")
	waitForReaders(t, s, reader{"other", shared}, 1)
	<-s.reading
	all.Wait()
	require.Len(t, order, calls+1)
	assert.Less(t, slices.Index(order, "other"), calls/2)
}

// Between two parts of a listing entries are applied, and others read.
func TestAListingInPartsHoldsNobodyUp(t *testing.T) {
	n := startAlone(t)
	ctx := soon(t, testCaller{})
	var began clock.Stamp
	var others sync.WaitGroup
	var otherRead atomic.Bool
	parts := 0
	require.NoError(t, n.readInParts(ctx, func(m *fsm.Machine) (more bool) {
		if parts++; parts == 1 {
			began = m.Stamp()
			others.Go(func() { until(n, &fsm.SetLongestTTL{TTL: clock.Hour}) })
			others.Go(func() {
				assert.NoError(t, n.read(ctx, func(*fsm.Machine) { otherRead.Store(true) }))
			})
		}
		return (m.Stamp() == began || !otherRead.Load()) && ctx.Err() == nil
	}))
	others.Wait()
	require.NoError(t, ctx.Err(), "neither was possible during %d parts", parts)
	require.Greater(t, parts, 1)
}

// A node streams few backups at a time; one more is refused, and may be requested again.
func TestBackupsAreBounded(t *testing.T) {
	n := startAlone(t)
	backup := func() error {
		return n.Backup(soon(t, testCaller{}), func(*zamokpb.BackupChunk) error { return nil })
	}
	for range backupsMax {
		n.backingUp <- struct{}{}
	}
	e := wire.Explain(backup())
	assert.Equal(t, zamokpb.Code_CODE_OVERLOADED, e.Code())
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, e.Info.Outcome)
	<-n.backingUp
	require.NoError(t, backup())
	require.NoError(t, backup(), "the one before has ended")
}

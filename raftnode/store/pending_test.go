package store

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A pendingTest is a store whose entries may be pending, on a disk that a test holds up.
type pendingTest struct {
	*Store
	cfg    Config
	memory *Memory
	refuse bool // entries may not be pending
	fatal  []error
	free   uint64

	gate   sync.Mutex // guards what follows
	held   chan struct{}
	failed error       // of the next write of entries
	writes [][2]uint64 // the first and the last entry of each append that began
}

// onPending runs a test in a bubble, on a store that has entries 1 to 5 of term 1.
func onPending(t *testing.T, test func(t *testing.T, st *pendingTest)) {
	synctest.Test(t, func(t *testing.T) {
		st := &pendingTest{memory: new(Memory), free: 1 << 40}
		st.cfg = Config{
			NodeID: "n1", Memory: st.memory,
			Postpone: func([]*raft.Log) bool { return !st.refuse },
			Fatal:    func(err error) { st.fatal = append(st.fatal, err) },
			Wrap: Wrap{Free: func() uint64 { return st.free },
				Logs: withFault(func(op Op, first, last uint64) error {
					st.gate.Lock()
					held := st.held
					if op == OpAppend {
						st.writes = append(st.writes, [2]uint64{first, last})
					}
					st.gate.Unlock()
					if held != nil {
						<-held
					}
					st.gate.Lock()
					defer st.gate.Unlock()
					return st.failed
				}).Logs},
		}
		var err error
		st.Store, err = Open(st.cfg)
		require.NoError(t, err)
		fill(t, st.Store, 1, 1, 5)
		synctest.Wait()
		st.writes = nil
		test(t, st)
		st.resume()
		require.NoError(t, st.Close())
	})
}

// hold lets writes to the log hang, resume lets them continue.
func (st *pendingTest) hold() {
	st.gate.Lock()
	defer st.gate.Unlock()
	st.held = make(chan struct{})
}

func (st *pendingTest) resume() {
	st.gate.Lock()
	defer st.gate.Unlock()
	if st.held != nil {
		close(st.held)
		st.held = nil
	}
}

// next lets the write that hangs continue; the one after it hangs.
func (st *pendingTest) next() {
	synctest.Wait()
	st.gate.Lock()
	held := st.held
	st.held = make(chan struct{})
	st.gate.Unlock()
	close(held)
	synctest.Wait()
}

// begin calls f, and returns whether it has ended, and its error then.
func begin(f func() error) (ended func() (bool, error)) {
	result := make(chan error, 1)
	go func() { result <- f() }()
	return func() (bool, error) {
		synctest.Wait()
		select {
		case err := <-result:
			return true, err
		default:
			return false, nil
		}
	}
}

// requireHeld requires that a call waits for the disk, and ends without an error when that
// continues.
func (st *pendingTest) requireHeld(t *testing.T, ended func() (bool, error), what string) {
	t.Helper()
	over, err := ended()
	require.False(t, over, "%s: %v", what, err)
	st.resume()
	over, err = ended()
	require.True(t, over, what)
	require.NoError(t, err, what)
}

func (st *pendingTest) waiting(ctx context.Context, index uint64) func() (bool, error) {
	return begin(func() error { return st.WaitWritten(ctx, index) })
}

// Raft sees what is pending as it sees any entry; a process that ends now leaves none of it.
func TestPendingEntriesAreSeenAndNotDurable(t *testing.T) {
	onPending(t, func(t *testing.T, st *pendingTest) {
		st.hold()
		require.NoError(t, st.Logs().StoreLogs(entries(1, 6, 8)))
		first, last := span(t, st.Logs())
		assert.Equal(t, [2]uint64{1, 8}, [2]uint64{first, last})
		synctest.Wait()
		w, writing := st.Writing()
		require.True(t, writing, "the watchdog sees it")
		assert.Equal(t, OpAppend, w.Op)

		left, err := st.memory.Copy()
		require.NoError(t, err)
		after := open(t, Config{Memory: left})
		_, last = span(t, after.Logs())
		assert.EqualValues(t, 5, last, "what a kill -9 leaves")

		st.resume()
		synctest.Wait()
		left, err = st.memory.Copy()
		require.NoError(t, err)
		_, last = span(t, open(t, Config{Memory: left}).Logs())
		assert.EqualValues(t, 8, last)
	})
}

func TestWhatGathersIsOneAppend(t *testing.T) {
	onPending(t, func(t *testing.T, st *pendingTest) {
		st.hold()
		for index := uint64(6); index < 10; index++ {
			require.NoError(t, st.Logs().StoreLogs(entries(1, index, index)))
			synctest.Wait()
		}
		st.resume()
		require.NoError(t, st.WaitWritten(t.Context(), 9))
		assert.Equal(t, [][2]uint64{{6, 6}, {7, 9}}, st.writes)
	})
}

// The result of an append is held back until the last of its entries is on this disk, and no
// longer.
func TestWaitingForEntries(t *testing.T) {
	onPending(t, func(t *testing.T, st *pendingTest) {
		st.hold()
		require.NoError(t, st.Logs().StoreLogs(entries(1, 6, 6)))
		synctest.Wait()
		require.NoError(t, st.Logs().StoreLogs(entries(1, 7, 7)))
		require.NoError(t, st.WaitWritten(t.Context(), 5), "it is on the disk")
		six, seven := st.waiting(t.Context(), 6), st.waiting(t.Context(), 7)
		over, _ := seven()
		require.False(t, over)
		st.next()
		over, err := six()
		require.True(t, over)
		require.NoError(t, err)
		st.requireHeld(t, seven, "its entry is pending still")
	})
}

func TestEachThatMayNotBePendingWaitsForAllBefore(t *testing.T) {
	onPending(t, func(t *testing.T, st *pendingTest) {
		st.hold()
		require.NoError(t, st.Logs().StoreLogs(entries(1, 6, 6)))
		st.refuse = true
		st.requireHeld(t, begin(func() error { return st.Logs().StoreLogs(entries(1, 7, 7)) }),
			"an append")
		assert.Equal(t, [][2]uint64{{6, 6}, {7, 7}}, st.writes)
	})
}

// The term, and a vote, are written when nothing is pending any more: what is pending is of the
// term before.
func TestTermAndVoteWaitForWhatIsPending(t *testing.T) {
	onPending(t, func(t *testing.T, st *pendingTest) {
		for i, write := range []func() error{
			func() error { return st.Votes().SetUint64([]byte(keyCurrentTerm), 2) },
			func() error {
				return errors.Join(st.Votes().SetUint64([]byte(keyVoteTerm), 2),
					st.Votes().Set([]byte(keyVoteCandidate), []byte("n2")))
			},
		} {
			st.hold()
			require.NoError(t, st.Logs().StoreLogs(entries(1, uint64(6+i), uint64(6+i))))
			st.requireHeld(t, begin(write), "a write of the table")
		}
		assert.EqualValues(t, 2, st.Term())
	})
}

// The question whether an entry may be pending was answered, and then the leadership ends and the
// term is to be written, on another goroutine.
func TestATermWaitsForWhatIsBecomingPending(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	held, begun := make(chan struct{}), make(chan struct{}, 1)
	leads := false
	st := open(t, Config{
		Memory: new(Memory),
		Postpone: func([]*raft.Log) bool {
			if leads {
				close(asked)
				<-answer
			}
			return leads
		},
		Wrap: withFault(func(_ Op, first, _ uint64) error {
			if first == 6 {
				begun <- struct{}{}
				<-held
			}
			return nil
		}),
	})
	fill(t, st, 1, 1, 5)
	leads = true
	stored, written := make(chan error, 1), make(chan error, 1)
	go func() { stored <- st.Logs().StoreLogs(entries(1, 6, 6)) }()
	<-asked
	go func() { written <- st.Votes().SetUint64([]byte(keyCurrentTerm), 2) }()
	require.Eventually(t, func() bool {
		stacks := make([]byte, 1<<20)
		return slices.ContainsFunc(strings.Split(string(stacks[:runtime.Stack(stacks, true)]),
			"\n\n"), func(stack string) bool {
			return strings.Contains(stack, "[sync.Mutex.Lock") && strings.Contains(stack, ".flush(")
		})
	}, 10*time.Second, time.Millisecond, "the writer of the term waits for the append")
	close(answer)
	require.NoError(t, <-stored)
	<-begun
	select {
	case <-written:
		close(held)
		t.Fatal("term 2 is on the disk, and an entry of term 1 is not")
	case <-time.After(20 * time.Millisecond): // it takes microseconds to write one to memory
	}
	close(held)
	require.NoError(t, <-written)
}

// Otherwise the append that is pending would bring back what was deleted.
func TestDeletionsWaitForWhatIsPending(t *testing.T) {
	onPending(t, func(t *testing.T, st *pendingTest) {
		st.hold()
		require.NoError(t, st.Logs().StoreLogs(entries(1, 6, 8)))
		st.requireHeld(t, begin(func() error { return st.Logs().DeleteRange(7, 8) }), "a deletion")
		fill(t, st.Store, 2, 7, 7)
		require.NoError(t, st.Close())
		after := open(t, Config{Memory: st.memory})
		_, last := span(t, after.Logs())
		assert.EqualValues(t, 7, last)
		var entry raft.Log
		require.NoError(t, after.Logs().GetLog(7, &entry))
		assert.EqualValues(t, 2, entry.Term)
	})
}

// Entries that take the place of others are never pending: what they replace goes when they are
// written.
func TestReplacementsAreNotPending(t *testing.T) {
	onPending(t, func(t *testing.T, st *pendingTest) {
		require.NoError(t, st.Logs().StoreLogs(entries(1, 6, 10)))
		require.NoError(t, st.WaitWritten(t.Context(), 10))
		require.NoError(t, st.Logs().DeleteRange(6, 10))
		st.hold()
		st.requireHeld(t, begin(func() error { return st.Logs().StoreLogs(entries(3, 6, 7)) }),
			"the append")
		_, last := span(t, st.Logs())
		assert.EqualValues(t, 7, last)

		// Another entry of an index that was on the disk before is not there yet.
		st.hold()
		require.NoError(t, st.Logs().StoreLogs(entries(3, 8, 8)))
		st.requireHeld(t, st.waiting(t.Context(), 8), "the wait for the entry")
	})
}

// While the front of the log is deleted, what is pending stays in raft's sight.
func TestPendingEntriesOutlastADeletion(t *testing.T) {
	onPending(t, func(t *testing.T, st *pendingTest) {
		require.NoError(t, st.Logs().StoreLogs(entries(1, 6, 5+pendingMax)))
		require.NoError(t, st.WaitWritten(t.Context(), 5+pendingMax))
		st.hold()
		first := begin(func() error { return st.Logs().DeleteRange(1, 100) })
		over, _ := first()
		require.False(t, over)
		second := begin(func() error { return st.Logs().DeleteRange(101, 200) })
		over, _ = second()
		require.False(t, over, "it waits for its turn")
		require.NoError(t, st.Logs().StoreLogs(entries(1, 6+pendingMax, 8+pendingMax)))
		st.next()
		over, err := first()
		require.True(t, over)
		require.NoError(t, err)
		require.NoError(t, st.Logs().StoreLogs(entries(1, 9+pendingMax, 9+pendingMax)))
		over, _ = second()
		require.False(t, over, "it deletes while some are pending")
		begins, ends := span(t, st.Logs())
		assert.Equal(t, [2]uint64{201, 9 + pendingMax}, [2]uint64{begins, ends})
		st.resume()
		require.NoError(t, st.WaitWritten(t.Context(), ends))
		over, err = second()
		require.True(t, over)
		require.NoError(t, err)
		span(t, st.Logs())
	})
}

func TestWhatIsPendingIsBounded(t *testing.T) {
	large := func(index uint64) []*raft.Log {
		return []*raft.Log{command(index, 1, make([]byte, pendingBytesMax/2-100))}
	}
	for name, fill := range map[string]func(t *testing.T, st *pendingTest) (next []*raft.Log){
		"entries": func(t *testing.T, st *pendingTest) []*raft.Log {
			require.NoError(t, st.Logs().StoreLogs(entries(1, 6, 5+pendingMax)))
			return entries(1, 6+pendingMax, 6+pendingMax)
		},
		"bytes": func(t *testing.T, st *pendingTest) []*raft.Log {
			require.NoError(t, st.Logs().StoreLogs(large(6)))
			require.NoError(t, st.Logs().StoreLogs(large(7)))
			return large(8)
		},
	} {
		t.Run(name, func(t *testing.T) {
			onPending(t, func(t *testing.T, st *pendingTest) {
				st.hold()
				next := fill(t, st)
				span(t, st.Logs())
				st.requireHeld(t, begin(func() error { return st.Logs().StoreLogs(next) }),
					"one more")
			})
		})
	}
}

// A disk that has room for one entry has none for a second one while the first is pending.
func TestWhatIsPendingCountsAgainstTheFreeSpace(t *testing.T) {
	onPending(t, func(t *testing.T, st *pendingTest) {
		st.hold()
		one := []*raft.Log{command(6, 1, make([]byte, 1000))}
		st.free = DefaultReservedSpace + 1500
		require.NoError(t, st.Logs().StoreLogs(one))
		require.ErrorIs(t, st.Logs().StoreLogs([]*raft.Log{command(7, 1, make([]byte, 1000))}),
			ErrDiskFull)
		st.resume()
		require.NoError(t, st.WaitWritten(t.Context(), 6))
		require.NoError(t, st.Logs().StoreLogs([]*raft.Log{command(7, 1, make([]byte, 1000))}))
	})
}

// Who waits for an entry that will not be written gets an error, never a success.
func TestAWaitInVainEndsWithAnError(t *testing.T) {
	errDisk := errors.New("input/output error")
	onPending(t, func(t *testing.T, st *pendingTest) {
		st.hold()
		require.NoError(t, st.Logs().StoreLogs(entries(1, 6, 6)))
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := st.waiting(ctx, 6)
		cancel(errDisk)
		over, err := ended()
		require.True(t, over)
		require.ErrorIs(t, err, errDisk)
		require.ErrorIs(t, st.WaitWritten(ctx, 6), errDisk)
	})
	onPending(t, func(t *testing.T, st *pendingTest) {
		st.hold()
		require.NoError(t, st.Logs().StoreLogs(entries(1, 6, 6)))
		synctest.Wait()
		require.NoError(t, st.Logs().StoreLogs(entries(1, 7, 7)))
		ended := st.waiting(t.Context(), 6)
		st.gate.Lock()
		st.failed = errDisk
		st.gate.Unlock()
		over, _ := ended()
		require.False(t, over)
		st.resume()
		over, err := ended()
		require.True(t, over)
		require.ErrorIs(t, err, ErrBroken)
		time.Sleep(time.Minute)
		assert.Len(t, st.writes, 1, "nothing is written after a failure")
		require.NotEmpty(t, st.fatal, "the process ends")
		require.ErrorIs(t, st.WaitWritten(t.Context(), 7), ErrBroken)
		require.ErrorIs(t, st.Logs().StoreLogs(entries(1, 8, 8)), ErrBroken)
		require.ErrorIs(t, st.Votes().SetUint64([]byte(keyCurrentTerm), 2), ErrBroken)
		require.ErrorIs(t, st.Logs().DeleteRange(6, 7), ErrBroken)
	})
}

// The end of a store, and the next start of raft on it, wait for what is pending.
func TestCloseAndRestartWriteWhatIsPending(t *testing.T) {
	onPending(t, func(t *testing.T, st *pendingTest) {
		st.hold()
		require.NoError(t, st.Logs().StoreLogs(entries(1, 6, 7)))
		st.requireHeld(t, begin(st.DropStale), "the next start of raft")
		st.hold()
		require.NoError(t, st.Logs().StoreLogs(entries(1, 8, 9)))
		st.requireHeld(t, begin(st.Close), "the end")
		_, last := span(t, open(t, Config{Memory: st.memory}).Logs())
		assert.EqualValues(t, 9, last)
	})
}

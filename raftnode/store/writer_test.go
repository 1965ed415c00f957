package store

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEveryWriteIsObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took []time.Duration
		free := uint64(1 << 40)
		st := open(t, Config{
			Memory:  new(Memory),
			Observe: func(d time.Duration) { took = append(took, d) },
			Wrap: Wrap{
				Logs: withFault(func(Op, uint64, uint64) error {
					time.Sleep(time.Second)
					return nil
				}).Logs,
				Free: func() uint64 { return free },
			},
		})
		fill(t, st, 1, 1, 300)
		require.NoError(t, st.Votes().SetUint64([]byte(keyVoteTerm), 1))
		require.NoError(t, st.Votes().Set([]byte(keyVoteCandidate), []byte("n1")))
		require.NoError(t, st.Logs().DeleteRange(1, 299), "in one write")
		free = 0
		require.ErrorIs(t, st.Logs().StoreLogs(entries(1, 301, 301)), ErrDiskFull,
			"which writes nothing")
		assert.Equal(t, []time.Duration{0, time.Second, 0, time.Second}, took)
	})
}

// A disk that hangs is seen from another goroutine while it hangs, and the write
// is not given up: it lands when the disk comes back (S4).
func TestHungWriteIsVisibleAndLands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := make(chan struct{})
		st := open(t, Config{Memory: new(Memory), Wrap: withFault(func(Op, uint64, uint64) error {
			<-back
			return nil
		})})
		_, writing := st.Writing()
		require.False(t, writing)

		hung := time.Now()
		var writers sync.WaitGroup
		writers.Go(func() { assert.NoError(t, st.Logs().StoreLogs(entries(1, 1, 3))) })
		synctest.Wait()
		time.Sleep(time.Minute)
		writers.Go(func() { assert.NoError(t, st.Logs().StoreLogs(entries(1, 4, 4))) })
		time.Sleep(9 * time.Minute)

		write, writing := st.Writing()
		require.True(t, writing)
		assert.Equal(t, OpAppend, write.Op)
		assert.Equal(t, hung, write.Since)
		assert.Equal(t, 10*time.Minute, time.Since(write.Since))
		require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm), 2),
			"the votes have a file of their own")

		close(back)
		writers.Wait()
		_, writing = st.Writing()
		assert.False(t, writing)
		_, last := span(t, st.Logs())
		assert.EqualValues(t, 4, last)
	})
}

// A writer that waits behind one that fails does not write either (S3).
func TestWaitingWriterIsStoppedByAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fatal atomic.Int32 // several call it at once
		var attempts int
		var st *Store
		fail := make(chan struct{})
		st = open(t, Config{
			Memory: new(Memory),
			Fatal:  func(error) { fatal.Add(1) },
			Wrap: withFault(func(Op, uint64, uint64) error {
				attempts++
				<-fail
				return errors.New("input/output error")
			}),
		})
		var writers sync.WaitGroup
		for index := uint64(1); index <= 5; index++ {
			writers.Go(func() {
				assert.ErrorIs(t, st.Logs().StoreLogs(entries(1, index, index)), ErrBroken)
			})
		}
		synctest.Wait()
		close(fail)
		writers.Wait()
		require.ErrorIs(t, st.Votes().SetUint64([]byte(keyCurrentTerm), 2), ErrBroken,
			"the other file neither")
		require.ErrorIs(t, st.RecordCluster(NewID()), ErrBroken)
		assert.Equal(t, 1, attempts)
		assert.EqualValues(t, 6, fatal.Load(), "Fatal is called by each that tried to write")
	})
}

func TestClosedStoreRefuses(t *testing.T) {
	onEach(t, func(t *testing.T, reopen func() *Store) {
		st := reopen()
		fill(t, st, 1, 1, 1)
		require.NoError(t, st.Close())
		require.ErrorIs(t, st.Logs().StoreLogs(entries(1, 2, 2)), ErrClosed)
		require.ErrorIs(t, st.Votes().SetUint64([]byte(keyCurrentTerm), 2), ErrClosed)
		require.ErrorIs(t, st.RecordCluster(NewID()), ErrClosed)
		require.NoError(t, st.Close())
		_, last := span(t, reopen().Logs())
		assert.EqualValues(t, 1, last)
	})
}

// The end of a process as a simulation plays it: Fatal ends the goroutine that
// wrote, raft shuts down around the hole, and the next start finds what was
// acknowledged.
func TestFatalMayEndOnlyItsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fatal error
		var appends int
		memory := new(Memory)
		cfg := Config{
			Memory: memory,
			Fatal:  func(err error) { fatal = err; runtime.Goexit() },
			Wrap: withFault(func(op Op, _, _ uint64) error {
				if appends++; appends == 20 {
					return errors.New("input/output error")
				}
				return nil
			}),
		}
		st := open(t, cfg)
		bootstrap(t, st)
		node, _ := startRaft(t, st)
		var acknowledged int
		for range 100 {
			future := apply(node, "x")
			answered := make(chan error, 1)
			go func() { answered <- future.Error() }()
			select {
			case err := <-answered:
				if err == nil {
					acknowledged++
				}
			case <-time.After(time.Minute): // a dead process writes nothing
			}
			if fatal != nil {
				break
			}
		}
		require.ErrorIs(t, fatal, ErrBroken)
		require.ErrorContains(t, fatal, "input/output error")
		require.NoError(t, node.Shutdown().Error())
		require.NoError(t, st.Close())

		st = open(t, Config{Memory: memory})
		node, machine := startRaft(t, st)
		require.NoError(t, node.Barrier(0).Error())
		assert.GreaterOrEqual(t, machine.count(), acknowledged)
		assert.Greater(t, acknowledged, 10)
		require.NoError(t, node.Shutdown().Error())
	})
}

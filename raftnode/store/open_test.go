package store

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// onEach runs a test on a directory and on a Memory. reopen closes
// the store that is open, if any, and opens it again on what that one left.
func onEach(t *testing.T, test func(t *testing.T, reopen func() *Store)) {
	for name, where := range map[string]func(t *testing.T) Config{
		"directory": func(t *testing.T) Config { return Config{Dir: t.TempDir()} },
		"memory":    func(*testing.T) Config { return Config{Memory: new(Memory)} },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := where(t)
			var st *Store
			test(t, func() *Store {
				if st != nil {
					require.NoError(t, st.Close())
				}
				st = open(t, cfg)
				return st
			})
		})
	}
}

// sized is how much of something a test does: in .ci/run, which sets ZAMOK_TEST_ALL; in make test;
// with -short.
func sized(all, quick, short int) int {
	switch {
	case testing.Short():
		return short
	case os.Getenv("ZAMOK_TEST_ALL") == "":
		return quick
	}
	return all
}

// open opens node n1 on cfg, and closes it when the test ends. Its log is not marked durable before
// that. Fatal, if the test has none of its own, fails the test.
func open(t testing.TB, cfg Config) *Store {
	t.Helper()
	if cfg.NodeID == "" {
		cfg.NodeID = "n1"
	}
	if cfg.Fatal == nil {
		cfg.Fatal = func(err error) { t.Errorf("the process would have ended: %v", err) }
	}
	st, err := Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	withoutIdleMark(t, st)
	return st
}

// withoutIdleMark has a log marked durable when it is closed, and not when it is idle: a test does
// not expect that write.
func withoutIdleMark(t testing.TB, st *Store) {
	if st.logs.idle != nil && !st.logs.idle.Stop() { // it is being marked now
		require.Eventually(t, func() bool {
			st.logs.mu.Lock()
			defer st.logs.mu.Unlock()
			return st.engine.(*segmentLog).durable
		}, 30*time.Second, time.Millisecond)
	}
	st.logs.idle = nil
}

// entries returns the entries from first to last of one term.
func entries(term, first, last uint64) []*raft.Log {
	var logs []*raft.Log
	for index := first; index <= last; index++ {
		logs = append(logs, command(index, term, fmt.Appendf(nil, "entry %d", index)))
	}
	return logs
}

// noise returns entries with random data, without zeros, which look like what is missing.
func noise(random *rand.Rand, term, first uint64, count, bytesMost int) (logs []*raft.Log) {
	for index := first; index < first+uint64(count); index++ {
		data := make([]byte, 1+random.IntN(bytesMost))
		for i := range data {
			data[i] = byte(1 + random.IntN(255))
		}
		logs = append(logs, command(index, term, data))
	}
	return logs
}

// command is an entry as it is proposed.
func command(index, term uint64, data []byte) *raft.Log {
	return &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: data,
		Extensions: Checksum(data)}
}

// fill writes the entries from first to last as one term, as raft does: the
// term before them.
func fill(t testing.TB, st *Store, term, first, last uint64) {
	t.Helper()
	require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm), term))
	require.NoError(t, st.Logs().StoreLogs(entries(term, first, last)))
}

// snapshot makes a snapshot of everything up to index.
func snapshot(t testing.TB, st *Store, term, index uint64, state string) {
	t.Helper()
	require.NoError(t, beginSnapshot(t, st, term, index, state).Close())
}

func bounds(log raft.LogStore) (first, last uint64, err error) {
	all, err := extentOf(log)
	return all.first, all.last, err
}

// beginSnapshot makes a snapshot that is neither closed nor cancelled.
func beginSnapshot(t testing.TB, st *Store, term, index uint64, state string) raft.SnapshotSink {
	t.Helper()
	sink, err := st.Snapshots().Create(1, index, term,
		raft.Configuration{Servers: []raft.Server{{ID: "n1", Address: "n1:1"}}}, 1, nil)
	require.NoError(t, err)
	_, err = io.WriteString(sink, state)
	require.NoError(t, err)
	return sink
}

// span returns the first and the last index of a log, and requires that it has
// every entry between them.
func span(t testing.TB, log raft.LogStore) (first, last uint64) {
	t.Helper()
	first, last, err := bounds(log)
	require.NoError(t, err)
	for index := first; index <= last && index > 0; index++ {
		var entry raft.Log
		require.NoError(t, log.GetLog(index, &entry), "entry %d of [%d, %d]", index, first, last)
		require.Equal(t, index, entry.Index)
	}
	return first, last
}

// faultyLog is a log with a fault in front of it: before each write it calls
// fault, and fails as that does without writing.
type faultyLog struct {
	raft.LogStore
	fault func(op Op, first, last uint64) error
}

func (l *faultyLog) StoreLogs(logs []*raft.Log) error {
	if err := l.fault(OpAppend, logs[0].Index, logs[len(logs)-1].Index); err != nil {
		return err
	}
	return l.LogStore.StoreLogs(logs)
}

func (l *faultyLog) DeleteRange(first, last uint64) error {
	if err := l.fault(OpDelete, first, last); err != nil {
		return err
	}
	return l.LogStore.DeleteRange(first, last)
}

// withFault is the Wrap that puts fault in front of the log.
func withFault(fault func(op Op, first, last uint64) error) Wrap {
	return Wrap{Logs: func(inner raft.LogStore) raft.LogStore { return &faultyLog{inner, fault} }}
}

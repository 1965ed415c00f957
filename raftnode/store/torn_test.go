package store

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/raftnode/tail"
)

// A crashedLog is a node's log as it is on the disk before its last append and behind it, both as
// after a crash.
type crashedLog struct {
	cfg           Config
	path          string // of the segment that is written
	before, after []byte
	begins        int64 // where the last frame begins
	length        int
	last          tail.End // of the log, with it
	id            ID
}

// crashed makes a log that ends with an append of so many entries.
func crashed(t *testing.T, random *rand.Rand, count int) *crashedLog {
	c := &crashedLog{cfg: Config{NodeID: "n1", Dir: t.TempDir(),
		Fatal: func(err error) { t.Error(err) }}}
	st := open(t, c.cfg)
	next := uint64(1)
	write := func(term uint64, count int) {
		require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm), term))
		require.NoError(t, st.Logs().StoreLogs(noise(random, term, next, count, 2000)))
		next += uint64(count)
	}
	for range 3 + random.IntN(9) {
		write(2, 1+random.IntN(4))
	}
	c.path = writtenFile(t, c.cfg)
	c.before = must(os.ReadFile(c.path))
	write(3, count)
	c.after = must(os.ReadFile(c.path))
	log := st.engine.(*segmentLog)
	c.id, c.length = log.id, log.last.length
	c.begins = log.end - int64(c.length)
	c.last = tail.End{Term: 3, Index: next - 1}
	require.NoError(t, st.Close())
	return c
}

// reopened opens the log with another content.
func (c *crashedLog) reopened(t *testing.T, text []byte) (last uint64, lost tail.End, err error) {
	require.NoError(t, os.WriteFile(c.path, text, 0o600))
	st, err := Open(c.cfg)
	if err != nil {
		require.ErrorIs(t, err, ErrDamaged)
		return 0, tail.End{}, err
	}
	lost = st.Tail().Owed
	require.Equal(t, lost == (tail.End{}), st.engine.lost() == (tail.End{}))
	require.NoError(t, st.Sink(lost, tail.End{}))
	first, last := span(t, st.Logs())
	require.EqualValues(t, 1, first)
	for _, path := range segmentsIn(t, c.cfg) {
		require.Equal(t, filepath.Base(c.path), path)
	}
	require.NoError(t, st.Close())
	return last, lost, nil
}

// Whichever sectors of the last append a power failure leaves out, the log continues before it or
// has all of it. If its record is there, it may have been acknowledged, and the store says so.
func TestATornAppendIsNotDamage(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	whole, cut := 0, 0
	for range sized(60, 20, 8) {
		c := crashed(t, random, 1+random.IntN(8))
		for range 10 {
			torn, sector := bytes.Clone(c.after), []int{512, pageBytes}[random.IntN(2)]
			share := random.IntN(4)
			for at := 0; at < len(torn); at += sector {
				if random.IntN(4) < share {
					copy(torn[at:at+sector], c.before[at:])
				}
			}
			end := c.begins + int64(c.length)
			hasFrame := bytes.Equal(torn[c.begins:end], c.after[c.begins:end])
			record, _ := readRecord(torn, c.id)
			hasRecord := record.end == c.last
			last, lost, err := c.reopened(t, torn)
			require.NoError(t, err)
			switch {
			case hasFrame:
				whole++
				require.Equal(t, c.last.Index, last)
				require.Zero(t, lost)
			case hasRecord:
				cut++
				require.Less(t, last, c.last.Index)
				require.Equal(t, c.last, lost)
			default:
				require.Less(t, last, c.last.Index)
				require.Zero(t, lost)
			}
		}
	}
	require.Positive(t, whole)
	require.Positive(t, cut)
}

// Whatever becomes of the last append when it is on the disk, and be it that all behind some place
// is gone, the append is missed: the store knows what it may have acknowledged, or the node does
// not start.
func TestALostTailIsNotSilent(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	fates := map[string]int{}
	judge := func(c *crashedLog, what string, text []byte) {
		last, lost, err := c.reopened(t, text)
		switch {
		case err != nil:
			fates["refused"]++
		case last == c.last.Index:
			fates["whole"]++
		default:
			fates["cut"]++
			require.GreaterOrEqual(t, lost.Term, c.last.Term, what)
			require.GreaterOrEqual(t, lost.Index, c.last.Index, what)
		}
	}
	for range sized(30, 8, 3) {
		c := crashed(t, random, 1+random.IntN(4))
		end := c.begins + int64(c.length)
		for range sized(60, 30, 20) {
			at := framesBegin + random.Int64N(end-framesBegin)
			if random.IntN(2) == 0 {
				at = c.begins + random.Int64N(end-c.begins)
			}
			text := bytes.Clone(c.after)
			switch what := random.IntN(5); what {
			case 0:
				text[at] ^= 1 << random.IntN(8)
			case 1:
				for i := range text[at:end] {
					text[at+int64(i)] = byte(random.Uint32())
				}
			case 2:
				clear(text[at:])
			case 3:
				copy(text[at:], text[framesBegin:][:min(int64(len(text))-at, 4096)])
			case 4: // a record, and perhaps a part of the frame
				slot := recordPlace(random.Uint64())
				text[slot+random.Int64N(recordBytes)] ^= 1 << random.IntN(8)
				if random.IntN(2) == 0 {
					text[at] ^= 1
				}
			}
			judge(c, fmt.Sprintf("at %d of %d to %d", at, c.begins, end), text)
		}
	}
	t.Log(fates)
	require.Positive(t, fates["refused"])
	require.Positive(t, fates["cut"])
}

// What is cut is owed before what is left of it is written over: also if the process ends between
// the two.
func TestWhatIsCutIsOwedFirst(t *testing.T) {
	c := crashed(t, rand.New(rand.NewPCG(1, 0)), 3)
	torn := bytes.Clone(c.after)
	torn[c.begins] ^= 1
	require.NoError(t, os.WriteFile(c.path, torn, 0o600))
	failing := c.cfg
	failing.Fatal = func(error) {}
	failing.Wrap.Votes = func(inner Table) Table { return unwritable{inner} }
	_, err := Open(failing)
	require.ErrorIs(t, err, ErrBroken)
	st := open(t, c.cfg)
	assert.Equal(t, c.last, st.Tail().Owed)
}

// unwritable is a table that can't be written.
type unwritable struct{ Table }

func (unwritable) Put(Values) error { return errors.New("input/output error") }

// When the log was idle for a moment, what is known to be on the disk is never taken for torn.
func TestADurableLogThatLostItsTailIsDamaged(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 0))
	c := crashed(t, random, 3) // and closed, which marks it durable
	text := must(os.ReadFile(c.path))
	for at := c.begins; at < c.begins+int64(c.length); at += 7 {
		text[at] ^= 1
		_, _, err := c.reopened(t, text)
		require.ErrorIs(t, err, ErrDamaged)
		text[at] ^= 1
	}
	require.NoError(t, os.WriteFile(c.path, text, 0o600))
	st := must(Open(c.cfg))
	defer st.Close()
	require.NoError(t, st.Logs().StoreLog(command(c.last.Index+1, 3, []byte("one more"))))
	marked := func() bool {
		record, _ := readRecord(must(os.ReadFile(c.path)), st.Identity().Incarnation)
		return record.durable && record.end.Index == c.last.Index+1
	}
	require.Eventually(t, marked, 30*time.Second, idleAfter, "a running log is marked by itself")
}

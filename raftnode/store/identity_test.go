package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestIdentityIsWrittenOnce(t *testing.T) {
	onEach(t, func(t *testing.T, reopen func() *Store) {
		born := reopen().Identity()
		assert.Equal(t, "n1", born.Node)
		assert.NotZero(t, born.Incarnation)
		assert.False(t, born.Bootstrapped)
		assert.Equal(t, born, reopen().Identity())

		other := open(t, Config{Memory: new(Memory)}).Identity()
		assert.NotEqual(t, born.Incarnation, other.Incarnation)
	})
}

// The marker is written after the bootstrap, without the cluster's id, and
// completed when the id is known (S9).
func TestMark(t *testing.T) {
	onEach(t, func(t *testing.T, reopen func() *Store) {
		st := reopen()
		require.Equal(t, "empty", stateOf(st))
		require.ErrorIs(t, st.RecordCluster(NewID()), ErrLost, "the next start would refuse it")
		require.Equal(t, "empty", stateOf(reopen()))
		st = reopen()
		fill(t, st, 1, 1, 1)
		st = reopen()
		require.Equal(t, "unmarked", stateOf(st), "a log without a marker")

		require.NoError(t, st.RecordCluster(ID{}))
		require.Equal(t, "marked", stateOf(st))
		st = reopen()
		require.Equal(t, "marked", stateOf(st))
		require.Zero(t, st.Identity().Cluster)

		cluster := NewID()
		require.NoError(t, st.RecordCluster(cluster))
		require.NoError(t, st.RecordCluster(cluster))
		require.NoError(t, st.RecordCluster(ID{}), "what is known is not forgotten")
		st = reopen()
		require.Equal(t, cluster, st.Identity().Cluster)

		require.ErrorIs(t, st.RecordCluster(NewID()), ErrOtherCluster)
		require.Equal(t, cluster, reopen().Identity().Cluster)
	})
}

// What the initial members agreed upon is written before the log, and stays through everything
// after. A node that holds nothing may agree anew, or join another cluster instead.
func TestFoundAndJoin(t *testing.T) {
	onEach(t, func(t *testing.T, reopen func() *Store) {
		st, cluster := reopen(), NewID()
		require.NoError(t, st.Bootstrap("first"))
		require.Equal(t, "first", reopen().Identity().Initial)
		st = reopen()
		require.NoError(t, st.Join(cluster))
		require.NoError(t, st.Join(cluster))
		st = reopen()
		require.Equal(t, "empty", stateOf(st))
		require.Empty(t, st.Identity().Initial, "what it agreed upon is void")
		require.Equal(t, cluster, st.Identity().Cluster)
		require.NoError(t, st.Bootstrap("second"))
		require.Zero(t, st.Identity().Cluster, "it does not wait for another cluster any more")
		fill(t, st, 1, 1, 1)
		require.ErrorContains(t, st.Bootstrap("third"), "nothing was changed")
		require.ErrorContains(t, st.Join(cluster), "nothing was changed")
		require.NoError(t, st.RecordCluster(cluster))
		require.Equal(t, "second", reopen().Identity().Initial)
	})
}

// Another binary's directory is refused, with both formats and the cure, and stays as it is: it is
// no damage.
func TestADirectoryOfAnotherFormatIsRefused(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), Format: "1a2b", NodeID: "n1", Fatal: func(error) {}}
	st, err := Open(cfg)
	require.NoError(t, err)
	fill(t, st, 1, 1, 1)
	require.NoError(t, st.RecordCluster(NewID()))
	require.NoError(t, st.Close())
	before, err := os.ReadFile(filepath.Join(cfg.Dir, identityName))
	require.NoError(t, err)

	other := cfg
	other.Format = "3c4d"
	_, err = Open(other)
	require.ErrorIs(t, err, ErrOtherFormat)
	require.NotErrorIs(t, err, ErrDamaged)
	require.Regexp(t,
		"have format 1a2b, .* reads format 3c4d; nothing was changed; start the binary that "+
			"wrote them", err)
	require.True(t, IsMember(cfg.Dir))
	after, err := os.ReadFile(filepath.Join(cfg.Dir, identityName))
	require.NoError(t, err)
	require.Equal(t, string(before), string(after))
	st, err = Open(cfg)
	require.NoError(t, err)
	require.NoError(t, st.Close())
}

// One Store at a time has the data, be it in a directory or in memory (S7).
func TestOneStoreAtATime(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"directory": {Dir: t.TempDir()},
		"memory":    {Memory: new(Memory)},
	} {
		t.Run(name, func(t *testing.T) {
			st := open(t, cfg)
			second := cfg
			second.NodeID, second.Fatal = "n1", func(error) {}
			_, err := Open(second)
			require.ErrorIs(t, err, ErrLocked)
			t.Log(err)
			fill(t, st, 1, 1, 1)
			require.NoError(t, st.Close())
			assert.Equal(t, "unmarked", stateOf(open(t, cfg)))
		})
	}
}

// A crash at any moment while the directory is made leaves one that the next
// start completes.
func TestMakingADirectoryCanBeCutShort(t *testing.T) {
	t.Parallel()
	for _, missing := range [][]string{
		{identityName},
		{identityName, votesName},
		{identityName, votesName, logName},
		{identityName, logName},
		{identityName, "snapshots"},
	} {
		cfg := Config{Dir: filepath.Join(t.TempDir(), "a", "b", "data")}
		require.NoError(t, open(t, cfg).Close())
		for _, name := range missing {
			require.NoError(t, os.RemoveAll(filepath.Join(cfg.Dir, name)))
		}
		require.NoError(t, os.WriteFile(filepath.Join(cfg.Dir, identityName+".tmp"),
			[]byte("{"), 0o600))
		st := open(t, cfg)
		assert.Equal(t, "empty", stateOf(st), "without %v", missing)
		fill(t, st, 1, 1, 1)
		require.NoError(t, st.Close())
		assert.Equal(t, "unmarked", stateOf(open(t, Config{Dir: cfg.Dir})))
	}
}

// What an operator reads when a directory is refused. Each word of the script is
// explained at its case below.
func TestRefusals(t *testing.T) {
	t.Parallel()
	datadriven.RunTest(t, "testdata/refusals",
		func() func(t *testing.T, d *datadriven.TestData) string {
			dirs := map[string]string{}
			return func(t *testing.T, d *datadriven.TestData) string {
				var name, other, file string
				d.ScanArgs(t, "dir", &name)
				if dirs[name] == "" {
					dirs[name] = t.TempDir()
				}
				dir := dirs[name]
				switch d.Cmd {
				case "live": // a node runs, with so many entries more, and ends
					var node string
					var more, term uint64
					d.ScanArgs(t, "node", &node)
					d.MaybeScanArgs(t, "entries", &more)
					term = 1
					d.MaybeScanArgs(t, "term", &term)
					return live(Config{NodeID: node, Dir: dir}, term, more, d.HasArg("mark"),
						strings.NewReplacer(dir, strings.ToUpper(name)))
				case "lose": // a file is gone
					d.ScanArgs(t, "file", &file)
					require.NoError(t, os.RemoveAll(filepath.Join(dir, file)))
				case "keep": // a file is copied aside
					d.ScanArgs(t, "file", &file)
					copyFile(t, filepath.Join(dir, file), filepath.Join(dir, file+".old"))
				case "put-back": // the copy takes the file's place
					d.ScanArgs(t, "file", &file)
					copyFile(t, filepath.Join(dir, file+".old"), filepath.Join(dir, file))
				case "exchange": // a file comes from another directory
					d.ScanArgs(t, "file", &file)
					d.ScanArgs(t, "from", &other)
					copyFile(t, filepath.Join(dirs[other], file), filepath.Join(dir, file))
				case "write": // a file is written by hand
					d.ScanArgs(t, "file", &file)
					text := []byte(d.Input)
					if d.HasArg("signed") {
						text = signed(text)
					}
					require.NoError(t, os.WriteFile(filepath.Join(dir, file), text, 0o600))
				case "shorten": // every entry of the log is deleted
					log, err := Open(Config{NodeID: "n1", Dir: dir, Fatal: func(error) {}})
					require.NoError(t, err)
					require.NoError(t, log.Logs().DeleteRange(0, 1<<40))
					require.NoError(t, log.Close())
				default:
					t.Fatalf("unknown word %q", d.Cmd)
				}
				return ""
			}
		}())
}

func live(cfg Config, term, more uint64, mark bool, hide *strings.Replacer) string {
	cfg.Fatal = func(error) {}
	st, err := Open(cfg)
	if err != nil {
		kind := "refused"
		for name, refusal := range map[string]error{"ErrOtherNode": ErrOtherNode,
			"ErrLost": ErrLost, "ErrDamaged": ErrDamaged} {
			if errors.Is(err, refusal) {
				kind = name
			}
		}
		return fmt.Sprintf("%s\n%s", kind,
			strings.ReplaceAll(hide.Replace(err.Error()), "; ", ";\n  "))
	}
	defer st.Close()
	found := stateOf(st)
	last, err := st.Logs().LastIndex()
	if err == nil && more > 0 {
		err = errors.Join(st.Votes().SetUint64([]byte(keyCurrentTerm), term),
			st.Logs().StoreLogs(entries(term, last+1, last+more)))
	}
	if mark {
		err = errors.Join(err, st.RecordCluster(ID{1}))
	}
	if err != nil {
		return err.Error()
	}
	return found + ", " + strconv.FormatUint(last, 10) + " entries"
}

// stateOf is what the marker and the data mean together (S9).
func stateOf(st *Store) string {
	switch {
	case !st.HoldsData():
		return "empty"
	case st.Identity().Bootstrapped:
		return "marked"
	}
	return "unmarked"
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(to))
	if info, err := os.Stat(from); err == nil && info.IsDir() {
		require.NoError(t, os.CopyFS(to, os.DirFS(from)))
		return
	}
	data, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, data, 0o600))
}

// A hangingMedium waits before it makes a file.
type hangingMedium struct {
	medium
	hanging chan<- struct{}
	goOn    <-chan struct{}
}

func (m hangingMedium) create(name string) (draft, error) {
	close(m.hanging)
	<-m.goOn
	return m.medium.create(name)
}

// While the identity is being written to a disk that hangs, other nodes are answered who this one
// is: as it was written before.
func TestIdentityDoesNotWaitForTheDisk(t *testing.T) {
	onEach(t, func(t *testing.T, reopen func() *Store) {
		st := reopen()
		fill(t, st, 1, 1, 1)
		before, found := st.Identity(), stateOf(st)
		hanging, goOn := make(chan struct{}), make(chan struct{})
		st.medium = hangingMedium{st.medium, hanging, goOn}
		marked, identified := make(chan error), make(chan Identity, 1)
		go func() { marked <- st.RecordCluster(ID{1}) }()
		<-hanging
		go func() {
			assert.Equal(t, found, stateOf(st))
			identified <- st.Identity()
		}()
		select {
		case id := <-identified:
			assert.Equal(t, before, id)
		case <-time.After(10 * time.Second):
			assert.Fail(t, "it waits for the disk")
		}
		close(goOn)
		require.NoError(t, <-marked)
		assert.Equal(t, ID{1}, st.Identity().Cluster)
		assert.Equal(t, "marked", stateOf(st))
	})
}

package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestVotesKeepWhatRaftWrites(t *testing.T) {
	onEach(t, func(t *testing.T, reopen func() *Store) {
		votes := reopen().Votes()
		_, err := votes.Get([]byte("LastVoteCand"))
		require.EqualError(t, err, "not found") // raft compares the text
		_, err = votes.GetUint64([]byte("CurrentTerm"))
		require.EqualError(t, err, "not found")

		require.NoError(t, votes.SetUint64([]byte("CurrentTerm"), 7))
		require.NoError(t, votes.SetUint64([]byte("LastVoteTerm"), 7))
		require.NoError(t, votes.Set([]byte("LastVoteCand"), []byte("a")))

		votes = reopen().Votes()
		for key, want := range map[string]uint64{"CurrentTerm": 7, "LastVoteTerm": 7} {
			got, err := votes.GetUint64([]byte(key))
			require.NoError(t, err)
			assert.Equal(t, want, got, key)
		}
		candidate, err := votes.Get([]byte("LastVoteCand"))
		require.NoError(t, err)
		assert.Equal(t, "a", string(candidate))
	})
}

func TestHalfAVoteIsRefused(t *testing.T) {
	onEach(t, func(t *testing.T, reopen func() *Store) {
		votes := reopen().Votes()
		require.ErrorIs(t, votes.Set([]byte("LastVoteCand"), []byte("a")), errHalfVote)
		require.ErrorIs(t, votes.Set([]byte("LastVoteTerm"), make([]byte, 8)), errHalfVote)
		_, err := votes.Get([]byte("LastVoteCand"))
		require.EqualError(t, err, "not found")

		require.NoError(t, votes.SetUint64([]byte("LastVoteTerm"), 7))
		require.NoError(t, votes.Set([]byte("LastVoteCand"), []byte("a")))
		require.ErrorIs(t, votes.Set([]byte("LastVoteCand"), []byte("b")), errHalfVote,
			"a term serves one candidate")
	})
}

// Whatever is written and wherever the process ends, the vote that is read
// afterwards is the last one that was cast whole (S1).
func TestVotesAreNeverTorn(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		memory := new(Memory)
		cfg := Config{NodeID: "n1", Memory: memory, Fatal: func(err error) { rt.Fatal(err) }}
		st, err := Open(cfg)
		require.NoError(rt, err)
		var term uint64
		var candidate string
		for range rapid.IntRange(1, 20).Draw(rt, "elections") {
			nextTerm := term + rapid.Uint64Range(1, 3).Draw(rt, "step")
			nextCandidate := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "candidate")
			require.NoError(rt, st.Votes().SetUint64([]byte(keyCurrentTerm), nextTerm))
			require.NoError(rt, st.Votes().SetUint64([]byte(keyVoteTerm), nextTerm))
			if rapid.Bool().Draw(rt, "ends between the writes") {
				require.NoError(rt, st.Close())
				st, err = Open(cfg)
				require.NoError(rt, err)
			} else {
				require.NoError(rt, st.Votes().Set([]byte(keyVoteCandidate), []byte(nextCandidate)))
				term, candidate = nextTerm, nextCandidate
			}
			if term == 0 {
				continue
			}
			gotTerm, err := st.Votes().GetUint64([]byte(keyVoteTerm))
			require.NoError(rt, err)
			gotCandidate, err := st.Votes().Get([]byte(keyVoteCandidate))
			require.NoError(rt, err)
			require.Equal(rt, term, gotTerm)
			require.Equal(rt, candidate, string(gotCandidate))
		}
		require.NoError(rt, st.Close())
	})
}

// The road on which a torn vote loses acknowledged entries, through a real raft:
// node b, with 19 entries, once voted for x in term 3. It votes for y in term 5,
// and the process ends between raft's two writes. Then x, with one entry, asks
// for the vote of term 5. A store that tore the vote now holds (5, x), so raft
// takes x for the one it has voted for and grants without looking at x's log.
func TestTornVoteElectsNoNodeWithAShorterLog(t *testing.T) {
	t.Run("with the rule", func(t *testing.T) {
		cfg := Config{Dir: t.TempDir()}
		granted := voteAcrossACrash(t, func(t *testing.T) voter {
			st := open(t, cfg)
			return voter{st.Logs(), st.Votes(), st.Snapshots(), st.Close}
		})
		assert.False(t, granted, "b voted for a candidate whose log lacks what b acknowledged")
	})
	t.Run("without the rule", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "raft.db")
		granted := voteAcrossACrash(t, func(t *testing.T) voter {
			db, err := raftboltdb.NewBoltStore(path)
			require.NoError(t, err)
			return voter{db, db, raft.NewInmemSnapshotStore(), db.Close}
		})
		assert.True(t, granted, "raft no longer needs the rule S1: the test has lost its meaning")
	})
}

// A voter is what raft runs on, and how to end it.
type voter struct {
	logs      raft.LogStore
	stable    raft.StableStore
	snapshots raft.SnapshotStore
	close     func() error
}

// voteAcrossACrash walks the road above, and returns whether b granted its vote.
func voteAcrossACrash(t *testing.T, openVoter func(t *testing.T) voter) (granted bool) {
	b := openVoter(t)
	configuration := raft.Configuration{Servers: []raft.Server{
		{ID: "b", Address: "b"}, {ID: "x", Address: "x"}, {ID: "y", Address: "y"},
	}}
	require.NoError(t, b.stable.SetUint64([]byte(keyCurrentTerm), 4))
	require.NoError(t, b.stable.SetUint64([]byte(keyVoteTerm), 3))
	require.NoError(t, b.stable.Set([]byte(keyVoteCandidate), []byte("x")))
	require.NoError(t,
		b.logs.StoreLog(&raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration,
			Data: raft.EncodeConfiguration(configuration)}))
	require.NoError(t, b.logs.StoreLogs(entries(4, 2, 19)))

	crashing := b
	crashing.stable = &endsInsideVote{StableStore: b.stable}
	require.False(t, askVote(t, crashing, "y", 19, 4),
		"the vote was acknowledged though the process ended inside it")
	require.NoError(t, b.close())

	b = openVoter(t)
	granted = askVote(t, b, "x", 1, 1)
	require.NoError(t, b.close())
	return granted
}

// askVote starts node b, and asks it for its vote in term 5, for a candidate
// whose log ends in (index, term).
func askVote(t *testing.T, b voter, candidate raft.ServerID, index, term uint64) (granted bool) {
	conf := raft.DefaultConfig()
	conf.LocalID = "b"
	conf.Logger = hclog.NewNullLogger()
	conf.HeartbeatTimeout, conf.ElectionTimeout = time.Hour, time.Hour // b never stands itself
	conf.LeaderLeaseTimeout = time.Hour
	_, transport := raft.NewInmemTransport("b")
	_, asking := raft.NewInmemTransport(raft.ServerAddress(candidate))
	asking.Connect("b", transport)

	node, err := raft.NewRaft(conf, &raft.MockFSM{}, b.logs, b.stable, b.snapshots, transport)
	require.NoError(t, err)
	defer func() { require.NoError(t, node.Shutdown().Error()) }()

	var answer raft.RequestVoteResponse
	err = asking.RequestVote("b", "b", &raft.RequestVoteRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: 3, ID: []byte(candidate),
			Addr: []byte(candidate)},
		Term:         5,
		LastLogIndex: index,
		LastLogTerm:  term,
	}, &answer)
	require.NoError(t, err)
	return answer.Granted
}

// endsInsideVote is a stable store of a process that ends after the first of the
// two writes of a vote.
type endsInsideVote struct {
	raft.StableStore
	ended bool
}

var errEnded = errors.New("the process has ended")

func (s *endsInsideVote) SetUint64(key []byte, value uint64) error {
	if s.ended {
		return errEnded
	}
	s.ended = string(key) == keyVoteTerm
	return s.StableStore.SetUint64(key, value)
}

func (s *endsInsideVote) Set(key, value []byte) error {
	if s.ended {
		return errEnded
	}
	return s.StableStore.Set(key, value)
}

// A vote whose transaction fails leaves both halves as they were, and ends the
// process.
func TestFailedVoteKeepsTheOneBefore(t *testing.T) {
	memory := new(Memory)
	st := open(t, Config{Memory: memory})
	require.NoError(t, st.Votes().SetUint64([]byte(keyVoteTerm), 3))
	require.NoError(t, st.Votes().Set([]byte(keyVoteCandidate), []byte("x")))
	require.NoError(t, st.Close())

	var fatal []error
	st = open(t, Config{
		Memory: memory,
		Fatal:  func(err error) { fatal = append(fatal, err) },
		Wrap:   Wrap{Votes: func(inner Table) Table { return failingTable{inner} }},
	})
	require.NoError(t, st.Votes().SetUint64([]byte(keyVoteTerm), 5))
	require.ErrorIs(t, st.Votes().Set([]byte(keyVoteCandidate), []byte("y")), ErrBroken)
	require.Len(t, fatal, 1)

	term, err := st.Votes().GetUint64([]byte(keyVoteTerm))
	require.NoError(t, err)
	candidate, err := st.Votes().Get([]byte(keyVoteCandidate))
	require.NoError(t, err)
	assert.Equal(t, "3 x", fmt.Sprintf("%d %s", term, candidate))
}

type failingTable struct{ Table }

func (failingTable) Put(Values) error { return errors.New("input/output error") }

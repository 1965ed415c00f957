package peer

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// appender opens n2's end of Raft. It takes down what it is sent; an append of term 1 is answered a
// second later, every other at once.
func appender(t *testing.T, n2 testNode) (sent *[][]uint64) {
	tr, err := n2.Transport(hclog.NewNullLogger())
	require.NoError(t, err)
	tr.Start(new(raft.Raft))
	sent = &[][]uint64{}
	go func() {
		for {
			select {
			case call := <-tr.Consumer():
				args := call.Command.(*raft.AppendEntriesRequest)
				var indexes []uint64
				for _, entry := range args.Entries {
					indexes = append(indexes, entry.Index)
				}
				*sent = append(*sent, indexes)
				pause := time.Duration(0)
				if args.Term == 1 {
					pause = time.Second
				}
				time.AfterFunc(pause, func() {
					call.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
				})
			case <-tr.ctx.Done():
				return
			}
		}
	}()
	return sent
}

// A server was in contact when the latest of the appends that it has answered was sent. Heartbeats
// overtake appends: an answer that comes late takes nothing back.
func TestContactIsTheLatestAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n1, n2 := pair(t, newTestNetwork())
		defer n1.Close()
		defer n2.Close()
		caller := openTransport(t, n1)
		to := serverOf("n2").ID()
		send := func(term uint64) error {
			return caller.AppendEntries(to, "h2:5751",
				&raft.AppendEntriesRequest{RPCHeader: caller.header(), Term: term},
				&raft.AppendEntriesResponse{})
		}
		require.Error(t, send(2), "n2 runs no Raft yet")
		assert.Zero(t, caller.Contact(to).At)
		appender(t, n2)
		slow := make(chan error)
		go func() { slow <- send(1) }()
		time.Sleep(500 * time.Millisecond)
		latest := time.Now()
		require.NoError(t, send(2))
		assert.Equal(t, latest, caller.Contact(to).At)
		require.NoError(t, <-slow)
		assert.Equal(t, latest, caller.Contact(to).At)
		assert.Zero(t, caller.Contact(serverAfterWipe("n2").ID()), "another directory")
		require.Error(t, caller.AppendEntries(serverAfterWipe("n2").ID(), "h2:5751",
			&raft.AppendEntriesRequest{}, &raft.AppendEntriesResponse{}))
		assert.Zero(t, caller.Contact(serverAfterWipe("n2").ID()))
	})
}

// While a server is being removed it is sent neither its removal nor what comes behind it. What is
// committed it is sent, with every past configuration that lacks it; so is every other server.
func TestARemovalIsNotSentToTheRemoved(t *testing.T) {
	three := initialMembersOf(mustList(t, threeNodes))
	configuration := func(index uint64, c raft.Configuration) *raft.Log {
		return &raft.Log{Index: index, Term: 1, Type: raft.LogConfiguration,
			Data: raft.EncodeConfiguration(c)}
	}
	with := three.Configuration()
	without := raft.Configuration{Servers: []raft.Server{with.Servers[0], with.Servers[2]}}
	again := raft.Configuration{
		Servers: append([]raft.Server{{ID: serverAfterWipe("n2").ID(), Address: "h2:5751"}},
			without.Servers...)}
	command := func(index uint64) *raft.Log {
		return &raft.Log{Index: index, Term: 1, Data: []byte("x")}
	}
	for name, c := range map[string]struct {
		removing bool
		commit   uint64
		entries  []*raft.Log
		want     []uint64
	}{
		"no removal": {true, 1,
			[]*raft.Log{command(2), configuration(3, with), command(4)}, []uint64{2, 3, 4}},
		"its removal": {true, 1,
			[]*raft.Log{command(2), configuration(3, without), command(4)}, []uint64{2}},
		"nothing else": {true, 1, []*raft.Log{configuration(2, without)}, nil},
		"another directory instead": {true, 1,
			[]*raft.Log{configuration(2, again), command(3)}, nil},
		"a heartbeat": {true, 1, nil, nil},
		"not removed now": {false, 1, []*raft.Log{configuration(2, without), command(3)},
			[]uint64{2, 3}},
		"catching up": {true, 3,
			[]*raft.Log{configuration(2, without), command(3), configuration(4, with), command(5),
				configuration(6, without)},
			[]uint64{2, 3, 4, 5}},
		"deleted while it was read": {false, 1,
			[]*raft.Log{command(2), {Index: 3, Term: 1, Type: 0xff}, command(4)}, []uint64{2}},
		"nonsense behind it": {true, 1,
			[]*raft.Log{configuration(2, without), {Index: 3, Type: raft.LogConfiguration}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n1, n2 := pair(t, newTestNetwork())
				defer n1.Close()
				defer n2.Close()
				caller, sent := openTransport(t, n1), appender(t, n2)
				to := serverOf("n2").ID()
				if c.removing {
					caller.Removing(to)
				} else {
					caller.Removing(serverOf("n3").ID())
				}
				args := &raft.AppendEntriesRequest{RPCHeader: caller.header(), Term: 2,
					PrevLogEntry: 1, PrevLogTerm: 1, LeaderCommitIndex: c.commit,
					Entries: c.entries}
				require.NoError(t, caller.AppendEntries(to, "h2:5751", args,
					&raft.AppendEntriesResponse{}))
				require.Len(t, args.Entries, len(c.want), "Raft looks at them again")
				assert.Equal(t, [][]uint64{c.want}, *sent)
			})
		})
	}
}

// n3 is removed while n2 is cut off, so the removal is written and can't be committed; then n1 goes
// down. n2, which has never received it, and n3 are a majority of the members that are, and
// continue.
func TestARemovalThatComesToNothingCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, false)
		defer w.stopAll()
		d1, d2, d3 := threeDisks(t, mustList(t, threeNodes))
		p1, p2, p3 := w.start(d1), w.start(d2), w.start(d3)
		leader := w.write("before ", acknowledged, p1, p2, p3)
		others := slices.DeleteFunc([]*raftProcess{p1, p2, p3},
			func(p *raftProcess) bool { return p == leader })
		cut, removed := others[0], others[1]
		for _, p := range []*raftProcess{p1, p2, p3} {
			w.requireApplied(p, "before ", acknowledged)
		}

		w.disconnect(cut.address)
		leader.trans.Removing(removed.ID())
		future := leader.RemoveServer(removed.ID(), 0, 0)
		failed := make(chan error, 1)
		go func() { failed <- future.Error() }()
		time.Sleep(5 * time.Second) // raft gives up to lead without a majority
		require.Error(t, <-failed)

		// An append that had to wait is made now: the removal is in the log, and will not be
		// committed.
		late := &raft.AppendEntriesRequest{
			RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax,
				ID: []byte(leader.ID()), Addr: []byte(leader.address)}, Term: removed.CurrentTerm(),
			PrevLogEntry: removed.LastIndex()}
		var before, entry raft.Log
		require.NoError(t, leader.logs.GetLog(late.PrevLogEntry, &before))
		require.NoError(t, leader.logs.GetLog(late.PrevLogEntry+1, &entry))
		require.Equal(t, raft.LogConfiguration, entry.Type)
		late.PrevLogTerm, late.Entries = before.Term, []*raft.Log{&entry}
		require.NoError(t, leader.trans.AppendEntries(removed.ID(),
			raft.ServerAddress(removed.address), late, &raft.AppendEntriesResponse{}))
		assert.Len(t, removed.GetConfiguration().Configuration().Servers, 3,
			"it has not been sent its removal")

		w.stop(leader)
		w.reconnect(cut.address)
		w.write("after ", acknowledged, cut, removed)
		w.requireApplied(cut, "after ", acknowledged)
		w.requireApplied(removed, "after ", acknowledged)
		leader = w.start(leader.nodeData)
		w.requireApplied(leader, "after ", acknowledged)
		assert.Len(t, leader.GetConfiguration().Configuration().Servers, 3)
	})
}

// n3 is given its vote while n2 is cut off; then n1, which led, is gone for good. n2 knows n3 as
// one that is being caught up, and its own log is behind: only n3 can be elected, and only with
// n2's vote.
func TestANewVoterIsElected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, false)
		defer w.stopAll()
		d1, d2, d3 := threeDisks(t, mustList(t, threeNodes))
		p1, p2, p3 := w.start(d1), w.start(d2), w.start(d3)
		leader := w.write("before ", acknowledged, p1, p2, p3)
		others := slices.DeleteFunc([]*raftProcess{p1, p2, p3},
			func(p *raftProcess) bool { return p == leader })
		away, newcomer := others[0], others[1]
		require.NoError(t, leader.DemoteVoter(newcomer.ID(), 0, 0).Error())
		w.write("caught up ", acknowledged, leader)
		w.requireApplied(away, "caught up ", acknowledged)
		w.requireApplied(newcomer, "caught up ", acknowledged)

		w.disconnect(away.address)
		vote := leader.AddVoter(newcomer.ID(), raft.ServerAddress(newcomer.address), 0, 0)
		// Raft ignores an answer of the newcomer that comes before it counts the new voter. The
		// next entry makes up for it.
		require.NoError(t, leader.Barrier(0).Error())
		require.NoError(t, vote.Error())
		w.stop(leader)
		w.reconnect(away.address)
		require.Same(t, newcomer, w.write("after ", acknowledged, away, newcomer))
		w.requireApplied(away, "after ", acknowledged)
	})
}

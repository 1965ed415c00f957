package peer

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/raftnode/tail"
)

// The leader and n3 have acknowledged entries, n2 has not got them yet. The leader fails, and n3
// has lost them. Neither leads before a node is back that has them.
func TestALostTailElectsNobodyWithoutIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, all := threeRunning(t)
		defer w.stopAll()
		for _, p := range all {
			w.stop(p)
		}
		last, err := all[0].logs.LastIndex()
		require.NoError(t, err)
		for _, p := range all[1:] {
			end, err := p.logs.LastIndex()
			require.NoError(t, err)
			require.NoError(t, p.logs.DeleteRange(last-9, end))
		}
		all[2].owe(tail.End{Term: all[0].tail().Log.Term, Index: last})
		n2, n3 := w.start(all[1].nodeData), w.start(all[2].nodeData)
		require.Nil(t, w.leader(20*time.Second, n2, n3))
		assert.Contains(t, n3.member.logs.String(), "rejected a vote")

		n1 := w.start(all[0].nodeData)
		require.Same(t, n1, w.leader(20*time.Second, n1, n2, n3))
		for _, p := range []*raftProcess{n1, n2, n3} {
			w.requireApplied(p, "before ", acknowledged)
		}
		assert.False(t, n3.tail().Owes())
		w.stop(n1)
		require.NotNil(t, w.leader(20*time.Second, n2, n3), "both have everything")
	})
}

// A node that owes takes no leadership that is handed over. The leader stays.
func TestANodeThatOwesTakesNoLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, all := threeRunning(t)
		defer w.stopAll()
		leader := w.leader(time.Second, all[:]...)
		for _, p := range all {
			if p == leader {
				continue
			}
			p.owe(tail.End{Term: p.CurrentTerm() + 1})
			require.ErrorContains(t,
				leader.LeadershipTransferToServer(p.ID(), raft.ServerAddress(p.address)).Error(),
				"takes no leadership")
			p.owe(tail.End{})
		}
		require.Same(t, leader, w.leader(time.Second, all[:]...))
	})
}

// A node that is queried enters a later term, on its disk, and leads no longer. That is no vote.
func TestRaisingATerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, all := threeRunning(t)
		defer w.stopAll()
		leader := w.leader(time.Second, all[:]...)
		term := leader.CurrentTerm()
		require.NoError(t, leader.trans.RaiseTerm(t.Context(), term-1))
		require.Equal(t, raft.Leader, leader.State(), "it is in a later term")
		for _, p := range all {
			before, _ := p.logs.Get([]byte("LastVoteCand"))
			require.NoError(t, p.trans.RaiseTerm(t.Context(), term))
			assert.Greater(t, p.term(), term)
			assert.NotEqual(t, raft.Leader, p.State())
			after, _ := p.logs.Get([]byte("LastVoteCand"))
			assert.Equal(t, before, after)
		}
		for _, far := range []uint64{math.MaxUint64, term + termAdvanceMax + 9} {
			require.ErrorIs(t, leader.trans.RaiseTerm(t.Context(), far), ErrImplausible)
		}
		w.serves(all, "after ")

		ended, end := context.WithCancel(t.Context())
		end()
		w.stop(all[0])
		require.Error(t, all[0].trans.RaiseTerm(ended, all[0].term()+9))
	})
}

// A node that owes refuses votes and pre-votes as raft does, without an error, and to candidates
// whose logs end below.
func TestWhomANodeThatOwesVotesFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, all := threeRunning(t)
		defer w.stopAll()
		from, to := all[0], all[1]
		log := to.tail().Log
		owed := tail.End{Term: log.Term + 1, Index: log.Index}
		w.stop(all[2])
		to.owe(owed)
		for end, granted := range map[tail.End]bool{
			{Term: owed.Term, Index: owed.Index - 1}: false,
			{Term: log.Term, Index: owed.Index + 9}:  false,
			owed:                                     true, {Term: owed.Term + 1, Index: 1}: true,
		} {
			term := to.CurrentTerm() + 9
			before := raft.RequestPreVoteRequest{RPCHeader: header(from), Term: term,
				LastLogIndex: end.Index, LastLogTerm: end.Term}
			asked := raft.RequestVoteRequest{
				RPCHeader: header(from), Term: term, LastLogIndex: end.Index, LastLogTerm: end.Term,
				LeadershipTransfer: true,
			}
			var vote raft.RequestVoteResponse
			at := raft.ServerAddress(to.address)
			require.NoError(t, from.trans.RequestVote(to.ID(), at, &asked, &vote))
			assert.Equal(t, granted, vote.Granted, end)
			assert.Equal(t, granted, to.CurrentTerm() == term,
				"the term of a rejected candidate is not taken over")
			assert.LessOrEqual(t, vote.Term, term)
			if !granted { // else there may be a leader, for whose sake raft refuses
				var preVote raft.RequestPreVoteResponse
				require.NoError(t, from.trans.RequestPreVote(to.ID(), at, &before, &preVote))
				assert.False(t, preVote.Granted)
			}
		}
	})
}

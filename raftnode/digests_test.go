package raftnode

import (
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"zamok/fsm"
)

func TestWhoStopsWhenDigestsDiffer(t *testing.T) {
	const entry = 77
	for name, c := range map[string]struct {
		mine     uint64
		reports  map[string]uint64
		found    bool
		outvoted bool
	}{
		"all agree": {1, map[string]uint64{"n1": 1, "n2": 1, "n3": 1},
			false, false},
		"one has not reported": {1, map[string]uint64{"n1": 1, "n2": 2},
			false, false},
		"a majority differs from mine": {1, map[string]uint64{"n2": 2, "n3": 2},
			true, true},
		"mine and one more against one": {1, map[string]uint64{"n1": 1, "n2": 1, "n3": 2},
			true, false},
		"mine, not reported yet, and one more against one": {1, map[string]uint64{"n2": 1, "n3": 2},
			true, false},
		"all three differ": {1, map[string]uint64{"n1": 1, "n2": 2, "n3": 3},
			true, false},
		"only what I reported once differs": {1, map[string]uint64{"n1": 9, "n2": 1, "n3": 1},
			false, false},
		"who has no vote does not count": {1, map[string]uint64{"n2": 2, "n4": 2, "n5": 2},
			false, false},
		"not known what mine was, so no answer": {0, map[string]uint64{"n2": 2, "n3": 2},
			false, false},
	} {
		d := &digests{}
		if c.mine != 0 {
			d.answer("n1", entry, c.mine)
		}
		for node, value := range c.reports {
			d.apply(entry+5, &fsm.Digest{Node: node, Index: entry, Value: value}, nil)
		}
		voters := servers{{ID: "n1"}, {ID: "n2"}, {ID: "n3"}}
		got := d.compare(voters, "n1")
		require.Equal(t, c.found, got != nil, name)
		require.Equal(t, c.outvoted, got != nil && got.outvoted, name)
		require.Nil(t, d.compare(voters, "n1"), "%s: reported once", name)
	}
}

func TestAQuestionIsDue(t *testing.T) {
	q, now := question{}, time.Now()
	require.True(t, q.ask(now, digestDistance), "a node that knows of no question")
	require.False(t, q.ask(now.Add(digestRetry-1), digestDistance))
	require.True(t, q.ask(now.Add(digestRetry), digestDistance), "it was not applied")
	for _, c := range []struct {
		later time.Duration
		index uint64
		due   bool
	}{
		{digestInterval, 100 + digestDistance, true},
		{digestInterval, 100 + digestDistance - 1, false},
		{digestInterval - 1, 100 + digestDistance, false},
	} {
		q = question{asked: now, index: 100}
		require.Equal(t, c.due, q.ask(now.Add(c.later), c.index), c)
	}
}

// A question of which an entry has two is one, and each state is hashed once.
func TestTheLatestQuestionIsAnswered(t *testing.T) {
	d, m := &digests{}, fsm.New()
	for _, entry := range []uint64{5, 8, 8} {
		d.apply(entry, &fsm.Digest{Node: "n1"}, m)
		require.Equal(t, entry, d.question.entry)
		require.NotNil(t, d.question.state)
	}
	d.question.state = nil // hashed
	d.apply(8, &fsm.Digest{Node: "n1"}, m)
	require.Nil(t, d.question.state)
	require.Empty(t, d.points, "a question is not a report")
}

// A node that has not reported hides a difference between two others for a while only.
func TestAMissingReportDoesNotHideADifference(t *testing.T) {
	d := &digests{}
	d.answer("n1", 5, 1)
	d.apply(7, &fsm.Digest{Node: "n2", Index: 5, Value: 2}, nil)
	voters := servers{{ID: "n1"}, {ID: "n2"}, {ID: "n3"}}
	require.Nil(t, d.compare(voters, "n1"))
	d.at(5).since = time.Now().Add(-digestInterval)
	got := d.compare(voters, "n1")
	require.NotNil(t, got)
	require.False(t, got.outvoted)
}

func TestAReportComesAfterItsQuestion(t *testing.T) {
	d := &digests{}
	for _, index := range []uint64{8, 9} {
		d.apply(8, &fsm.Digest{Node: "n2", Index: index, Value: 2}, nil)
	}
	require.Empty(t, d.points, "a node that says so is ill, and would displace what is real")
}

func TestOldPointsAreForgotten(t *testing.T) {
	d := &digests{}
	const last = digestsKept + 9
	for i := range uint64(last) {
		d.at((i*7)%last + 1).byNode["n2"] = i // in any order
	}
	require.Len(t, d.points, digestsKept)
	for i := range uint64(digestsKept) {
		require.Equal(t, last-digestsKept+1+i, d.points[i].index)
	}
	d.at(3).byNode["n2"] = 1
	require.Equal(t, uint64(last-digestsKept+1), d.points[0].index, "too old to be kept")
	d.at(last).byNode["n3"] = 1
	require.Len(t, d.points[digestsKept-1].byNode, 2)
}

// askForDigests makes the leader ask, and waits for what follows. It returns raft's index of the
// question.
func askForDigests(b *bubble, leader *bubbleNode) uint64 {
	leader.state.mu.Lock()
	leader.state.digests.question.asked = time.Time{}
	leader.state.digests.question.index = leader.state.machine.Stamp().Index - digestDistance
	leader.state.mu.Unlock()
	time.Sleep(2 * maintenanceTick)
	leader.state.mu.Lock()
	defer leader.state.mu.Unlock()
	return leader.state.digests.question.entry
}

// reported is what a node knows of the digests after a question.
func reported(n *bubbleNode, entry uint64) digestPoint {
	n.state.mu.Lock()
	defer n.state.mu.Unlock()
	return *n.state.digests.at(entry)
}

func TestNodesAnswerAQuestion(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.quietLeader()
		log := leader.runs.latest.Load().raft
		before := log.LastIndex()
		entry := askForDigests(b, leader)
		require.Equal(b, before+1, entry, "raft's index, whatever the state machine counts")
		last := log.LastIndex()
		require.Equal(b, []string{"n1", "n2", "n3"}, reportersIn(b, leader, entry+1, last),
			"each node reports once")
		for _, n := range b.nodes {
			p := reported(n, entry)
			require.True(b, p.known)
			require.Equal(b, map[string]uint64{"n1": p.mine, "n2": p.mine, "n3": p.mine}, p.byNode)
		}
		time.Sleep(5 * digestInterval)
		require.Equal(b, last, log.LastIndex(), "an idle cluster is silent")
	})
}

// reportersIn are the nodes whose reports are in a part of the log, sorted. Reports that come at
// the same moment share an entry.
func reportersIn(b *bubble, n *bubbleNode, first, last uint64) (reporters []string) {
	for i := first; i <= last; i++ {
		var l raft.Log
		require.NoError(b, n.store.Logs().GetLog(i, &l))
		entry, err := fsm.DecodeEntry(l.Data)
		require.NoError(b, err)
		for _, c := range entry.Commands {
			reporters = append(reporters, c.(*fsm.Digest).Node)
		}
	}
	slices.Sort(reporters)
	return reporters
}

func TestALostReportIsRepeated(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.quietLeader()
		leader.door.deaf.Store(true)
		entry := askForDigests(b, leader)
		require.Len(b, reported(leader, entry).byNode, 1, "nothing that others begin reaches it")
		leader.door.deaf.Store(false)
		time.Sleep(5 * maintenanceTick)
		require.Len(b, reported(leader, entry).byNode, 3)
	})
}

func TestOnlyTheLeaderAsksForDigests(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.quietLeader()
		other := b.others(leader)[0]
		before := leader.runs.latest.Load().raft.LastIndex()
		for _, c := range []fsm.Digest{{Node: other.self.ID}, {Node: leader.self.ID, Index: 1}} {
			entry := fsm.Entry{Commands: []fsm.Command{&c}}
			_, err := other.announcer.call(b.Context(), leader.Node.self.ID(),
				raft.ServerAddress(leader.self.Address), nodeRequest{Entry: entry.Append(nil)})
			require.ErrorContains(b, err, "may only announce itself")
		}
		require.Equal(b, before, leader.runs.latest.Load().raft.LastIndex())
	})
}

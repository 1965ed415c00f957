package peer

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAskTellsWhatANodeHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		list, yes := mustList(t, threeNodes), func() bool { return true }
		n1 := open(t, f, Config{ID: "n1", List: list})
		n2 := open(t, f, Config{
			ID: "n2", List: mustList(t, otherThree), Cluster: clusterOf("away"),
			Holds: yes, Known: records("n1", "n1 first"),
		})
		n3 := open(t, f, Config{ID: "n3"})
		defer n1.Close()
		defer n2.Close()
		defer n3.Close()

		// A node of another cluster answers, and one that isn't the node asked: that is what the
		// question is for.
		answer, err := n1.Ask(t.Context(), Node{"n7", "h2:5751"})
		require.NoError(t, err)
		assert.Equal(t, n2.answer(n2.self(), "n1"), answer)
		assert.Equal(t, Answer{
			ID: "n2", Incarnation: incarnationOf("n2 first"), Holds: true, Cluster: clusterOf("away"),
			List: mustList(t, otherThree), Yours: incarnationOf("n1 first"),
		}, answer)

		require.NoError(t, n3.Close())
		replies := n1.AskAll(t.Context())
		require.Len(t, replies, 2, "everybody but itself")
		assert.Equal(t, Reply{Node: Node{"n2", "h2:5751"}, Answer: answer}, replies[0])
		assert.Equal(t, "n3", replies[1].Node.ID)
		assert.ErrorContains(t, replies[1].Err, "connection refused")
	})
}

// The longest list there can be fits into an answer.
func TestAskCarriesTheLongestList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		n1 := open(t, f, Config{ID: "n1"})
		n2 := open(t, f, Config{ID: "n2", List: mustList(t, longestList())})
		defer n1.Close()
		defer n2.Close()
		answer, err := n1.Ask(t.Context(), Node{"n2", "h2:5751"})
		require.NoError(t, err)
		assert.Equal(t, n2.config.List, answer.List)
	})
}

// decision is a case of Decide.
type decision struct {
	name    string
	mine    Answer
	replies []Reply
	want    Act
	reasons []string
}

func decisions(t *testing.T) []decision {
	list, longer := mustList(t, threeNodes), mustList(t, threeNodes+",n4=h4:5751")
	empty := func(id string) Answer {
		return Answer{ID: id, Incarnation: incarnationOf(id + " first"), List: list}
	}
	with := func(a Answer, change func(*Answer)) Answer { change(&a); return a }
	at := func(id string) Node { return Node{id, "h" + id[1:] + ":5751"} }
	reply := func(id string, a Answer) Reply { return Reply{Node: at(id), Answer: a} }
	refused := errors.New("connection refused")
	silent := func(id string) Reply { return Reply{Node: at(id), Err: refused} }
	holds := func(a *Answer) { a.Holds, a.Cluster = true, clusterOf("home") }
	countsMeIn := func(a *Answer) { a.Holds, a.Yours = true, incarnationOf("n1 first") }
	has := func(l List) func(*Answer) { return func(a *Answer) { a.List = l } }
	bears := func(name string) func(*Answer) {
		return func(a *Answer) { a.Incarnation = incarnationOf(name) }
	}
	return []decision{
		{
			"all answered, all empty, one list", empty("n1"),
			[]Reply{reply("n2", empty("n2")), reply("n3", empty("n3"))},
			Bootstrap, []string{"every node"},
		},
		{
			"one node alone", with(empty("n1"), has(mustList(t, "n1=h1:5751"))), nil,
			Bootstrap, []string{"every node"},
		},
		{
			"one is silent", empty("n1"), []Reply{reply("n2", empty("n2")), silent("n3")},
			Wait, []string{"n3 at h3:5751", "connection refused", "start"},
		},
		{
			"one was not asked", empty("n1"), []Reply{reply("n2", empty("n2"))},
			Wait, []string{"n3 at h3:5751", "not asked yet"},
		},
		{
			"one holds data", empty("n1"),
			[]Reply{reply("n2", with(empty("n2"), holds)), reply("n3", empty("n3"))},
			Refuse, []string{"n2 at h2:5751 holds data of cluster 686f6d65",
				"nothing on record for n1", "`zamok join`"},
		},
		{
			"one holds data, another is silent", empty("n1"),
			[]Reply{reply("n2", with(empty("n2"), holds)), silent("n3")},
			Refuse, []string{"`zamok join`"},
		},
		{
			"one holds data of another list", empty("n1"),
			[]Reply{reply("n2", with(with(empty("n2"), countsMeIn), has(longer))), silent("n3")},
			Refuse, []string{"`zamok join`"},
		},
		{
			"one began a moment ago and counts this node in", empty("n1"),
			[]Reply{reply("n2", with(empty("n2"), countsMeIn)), reply("n3", empty("n3"))},
			Bootstrap, nil,
		},
		{
			"this node was wiped after the others began", with(empty("n1"), bears("n1 again")),
			[]Reply{reply("n2", with(empty("n2"), countsMeIn)), reply("n3", with(empty("n3"), countsMeIn))},
			Refuse, []string{"incarnation " + incarnationOf("n1 first").String(),
				incarnationOf("n1 again").String(), "`zamok remove`"},
		},
		{
			"lists differ", empty("n1"),
			[]Reply{reply("n2", empty("n2")), reply("n3", with(empty("n3"), has(longer)))},
			Refuse, []string{"n1 has " + list.String(), "n3 has " + longer.String(),
				"give every node the same"},
		},
		{
			"another answers at an address", empty("n1"), []Reply{reply("n2", empty("n3")), silent("n3")},
			Refuse, []string{"the node at h2:5751 is n3", "says n2"},
		},
		{
			"a copied directory", empty("n1"),
			[]Reply{reply("n2", empty("n2")), reply("n3", with(empty("n3"), bears("n2 first")))},
			Refuse, []string{"n2 and n3 have the same incarnation", "copy"},
		},
		{
			"this node isn't in its list", with(empty("n9"), func(*Answer) {}), nil,
			Refuse, []string{"doesn't name this node, n9"},
		},
		{
			"this node holds data", with(empty("n1"), holds), nil,
			Refuse, []string{"n1 holds data", "open the data directory"},
		},
	}
}

func TestDecide(t *testing.T) {
	for _, c := range decisions(t) {
		t.Run(c.name, func(t *testing.T) {
			got := Decide(c.mine, c.replies)
			assert.Equal(t, c.want, got.Act, got.Reason)
			for _, reason := range c.reasons {
				assert.Contains(t, got.Reason, reason)
			}
			if c.want != Bootstrap {
				assert.Nil(t, got.Founders)
				return
			}
			for _, node := range c.mine.List.Nodes() {
				assert.Equal(t, incarnationOf(node.ID+" first"), got.Founders[node.ID])
			}
			assert.Len(t, got.Founders, len(c.mine.List.Nodes()))
		})
	}
}

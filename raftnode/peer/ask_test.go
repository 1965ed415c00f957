package peer

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAskTellsWhatANodeHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		list, other := mustList(t, threeNodes), mustList(t, "n1=h1:5751,n2=h2:5751,n3=h9:5751")
		n1 := open(t, f, Config{ID: "n1", List: list})
		n2 := open(t, f, Config{
			ID: "n2", List: other, Cluster: clusterOf("away"),
			Condition: func(asker Server) Condition {
				return Condition{
					Holds: true, Member: true, Initial: foundersOf(other), Configuration: 9, Listed: asker == serverOf("n1"),
				}
			},
		})
		n3 := open(t, f, Config{ID: "n3", Condition: says(Condition{Unready: "the disk is\nfull"})})
		defer n1.Close()
		defer n2.Close()
		defer n3.Close()

		// A node of another cluster answers, and one that isn't the node asked: that is what the
		// question is for.
		answer, err := n1.Ask(t.Context(), Node{"n7", "h2:5751"})
		require.NoError(t, err)
		assert.Equal(t, Answer{
			Server: serverOf("n2"), Cluster: clusterOf("away"), List: other,
			Condition: Condition{
				Holds: true, Member: true, Initial: foundersOf(other), Configuration: 9, Listed: true,
			},
		}, answer)
		assert.False(t, n2.Mine().Listed, "this is about the one who asks")
		answer.Listed = false
		assert.Equal(t, answer, n2.Mine())
		full, err := n1.Ask(t.Context(), Node{"n3", "h3:5751"})
		require.NoError(t, err)
		assert.Equal(t, "the disk is?full", full.Unready, "fit to print")
		answer.Listed = true

		require.NoError(t, n3.Close())
		replies := n1.AskAll(t.Context(), list.Nodes())
		require.Len(t, replies, 2, "all but itself")
		assert.Equal(t, Reply{Node: Node{"n2", "h2:5751"}, Answer: answer}, replies[0])
		assert.Equal(t, "n3", replies[1].Node.ID)
		assert.ErrorContains(t, replies[1].Err, "connection refused")
		assert.Empty(t, n1.AskAll(t.Context(), []Node{{serverAgain("n1").String(), "h1:5751"}}), "itself, of whatever directory")
	})
}

// The longest answer there can be fits: 32 nodes with the longest names and hosts, agreed upon, and the
// longest reason.
func TestAskCarriesTheLongestAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		longest := mustList(t, longestList())
		incarnations := map[string]Incarnation{}
		for i, node := range longest.Nodes() {
			incarnations[node.ID] = Incarnation{byte(i + 1)}
		}
		n1 := open(t, f, Config{ID: "n1"})
		n2 := open(t, f, Config{ID: "n2", List: longest, Condition: says(Condition{
			Initial: NewInitialMembers(longest, incarnations), Unready: strings.Repeat("x", 2*factBytesMax),
		})})
		defer n1.Close()
		defer n2.Close()
		answer, err := n1.Ask(t.Context(), Node{"n2", "h2:5751"})
		require.NoError(t, err)
		assert.Equal(t, longest, answer.List)
		assert.Equal(t, n2.Mine().Initial, answer.Initial)
		assert.Len(t, answer.Unready, factBytesMax)
		assert.Len(t, answer.Initial.members, nodesMax)
	})
}

// The longest name there can be fits a call, with its incarnation and all.
func TestLongestNamesSpeak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		one, two := "n"+strings.Repeat("1", idBytesMax-1), "n"+strings.Repeat("2", idBytesMax-1)
		list := mustList(t, one+"=[fd00::1]:5751,"+two+"=[fd00::2]:5751")
		n1 := open(t, f, Config{ID: one, List: list, Advertise: "[fd00::1]:5751"})
		n2 := open(t, f, Config{ID: two, List: list, Advertise: "[fd00::2]:5751"})
		defer n1.Close()
		defer n2.Close()
		require.NoError(t, connect(t, n1, n2))
		caller := transport(t, n1)
		transport(t, n2)
		requireCode(t, OtherIncarnation, voteOf(caller, Server{two, incarnationOf("again")}, "[fd00::2]:5751"))
	})
}

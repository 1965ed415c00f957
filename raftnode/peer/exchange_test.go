package peer

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAskReturnsWhatANodeHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestNetwork()
		list, other := mustList(t, threeNodes), mustList(t, "n1=h1:5751,n2=h2:5751,n3=h9:5751")
		n1 := openNode(t, f, Config{ID: "n1", List: list})
		n2 := openNode(t, f, Config{
			ID: "n2", List: other, Cluster: clusterOf("away"),
			Condition: func(asker Server) Condition {
				return Condition{
					HasData: true, Member: true, Initial: initialMembersOf(other), Configuration: 9,
					Listed: asker == serverOf("n1"),
				}
			},
		})
		n3 := openNode(t, f, Config{ID: "n3",
			Condition: fixedCondition(Condition{Unready: "the disk is\nfull"})})
		defer n1.Close()
		defer n2.Close()
		defer n3.Close()

		// A node of another cluster answers, and one that isn't the node asked: that is what the
		// question is for.
		answer, err := n1.Ask(t.Context(), Node{"n7", "h2:5751"})
		require.NoError(t, err)
		assert.Equal(t, Answer{
			Server: serverOf("n2"), Generation: n2.generation, Cluster: clusterOf("away"),
			List: other,
			Condition: Condition{
				HasData: true, Member: true, Initial: initialMembersOf(other), Configuration: 9,
				Listed: true,
			},
		}, answer)
		assert.False(t, n2.Mine().Listed, "it is about the node that asks")
		answer.Listed = false
		assert.Equal(t, answer, n2.Mine())
		full, err := n1.Ask(t.Context(), Node{"n3", "h3:5751"})
		require.NoError(t, err)
		assert.Equal(t, `the disk is\nfull`, full.Unready, "fit to print")
		answer.Listed = true

		require.NoError(t, n3.Close())
		replies := n1.AskAll(t.Context(), list.Nodes())
		require.Len(t, replies, 2, "all but itself")
		assert.Equal(t, Reply{Node: Node{"n2", "h2:5751"}, Answer: answer}, replies[0])
		assert.Equal(t, "n3", replies[1].Node.ID)
		assert.ErrorContains(t, replies[1].Err, "connection refused")
		assert.Empty(t, n1.AskAll(t.Context(), []Node{{serverAfterWipe("n1").String(), "h1:5751"}}),
			"itself, of whatever directory")
	})
}

// The longest answer there can be fits: 32 nodes with the longest names and hosts, agreed upon, the
// longest reason, and the names of twice as many servers.
func TestAskCarriesTheLongestAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestNetwork()
		longest := mustList(t, longestList())
		incarnations, names := map[string]Incarnation{}, []string(nil)
		for i, node := range longest.Nodes() {
			incarnations[node.ID] = Incarnation{byte(i + 1)}
			names = append(names, node.ID, node.ID)
		}
		n1 := openNode(t, f, Config{ID: "n1"})
		n2 := openNode(t, f, Config{ID: "n2", List: longest, Condition: fixedCondition(Condition{
			Initial: NewInitialMembers(longest, incarnations),
			Unready: strings.Repeat("x", 2*detailBytesMax), Names: names,
		})})
		defer n1.Close()
		defer n2.Close()
		answer, err := n1.Ask(t.Context(), Node{"n2", "h2:5751"})
		require.NoError(t, err)
		assert.Equal(t, longest, answer.List)
		assert.Equal(t, n2.Mine().Initial, answer.Initial)
		assert.Len(t, answer.Unready, detailBytesMax)
		assert.Len(t, answer.Initial.Nodes(), nodesMax)
		assert.Equal(t, names, answer.Names)
	})
}

// The longest name there can be fits a call, with its incarnation and all.
func TestLongestNamesConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestNetwork()
		one, two := "n"+strings.Repeat("1", idBytesMax-1), "n"+strings.Repeat("2", idBytesMax-1)
		list := mustList(t, one+"=[fd00::1]:5751,"+two+"=[fd00::2]:5751")
		n1 := openNode(t, f, Config{ID: one, List: list, Advertise: "[fd00::1]:5751"})
		n2 := openNode(t, f, Config{ID: two, List: list, Advertise: "[fd00::2]:5751"})
		defer n1.Close()
		defer n2.Close()
		require.NoError(t, connect(t, n1, n2))
		caller := openTransport(t, n1)
		openTransport(t, n2)
		requireCode(t, OtherIncarnation,
			voteOf(caller, Server{two, incarnationOf("again")}, "[fd00::2]:5751"))
	})
}

// nodeAt is the first server of a name, where it is reached.
func nodeAt(name, address string) Node { return Node{serverOf(name).String(), address} }

func TestCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestNetwork()
		list := mustList(t, threeNodes)
		n1 := openNode(t, f, Config{ID: "n1", List: list})
		echo := func(_ context.Context, from Server, what []byte) []byte {
			return append([]byte(from.Name+": "), what...)
		}
		n2 := openNode(t, f, Config{ID: "n2", List: list, Handle: echo})
		n3 := openNode(t, f, Config{ID: "n3", List: list})
		defer n1.Close()
		defer n2.Close()
		defer n3.Close()
		answer, err := n1.Call(t.Context(), nodeAt("n2", "h2:5751"), []byte("hello"))
		require.NoError(t, err, "n2 runs no Raft, and need not")
		assert.Equal(t, "n1: hello", string(answer))
		answer, err = n2.Call(t.Context(), nodeAt("n3", "h3:5751"), nil)
		require.NoError(t, err)
		assert.Empty(t, answer, "n3 replies with nothing")

		_, err = n1.Call(t.Context(), nodeAt("n4", "h2:5751"), []byte("hello"))
		requireCode(t, OtherNode, err)

		longest := bytes.Repeat([]byte("x"), 16*1024-len("n1: "))
		answer, err = n1.Call(t.Context(), nodeAt("n2", "h2:5751"), longest)
		require.NoError(t, err)
		assert.Len(t, answer, 16*1024)
		longest = bytes.Repeat([]byte("x"), (frameBytesMax-len(`.{"Body":""}`))/4*3)
		_, err = n1.Call(t.Context(), nodeAt("n2", "h2:5751"), append(longest, 'x'))
		require.ErrorContains(t, err, "it was not sent")
		_, err = n1.Call(t.Context(), nodeAt("n2", "h2:5751"), longest)
		require.Error(t, err, "the answer is longer")
		synctest.Wait()
		assert.Contains(t, n2.logs.String(), "it was not sent")
	})
}

// What is intended for a lost directory does not reach the one after it, and a caller with other
// initial members is refused.
func TestCallGoesThroughTheHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestNetwork()
		list := mustList(t, threeNodes)
		arrived := func(context.Context, Server, []byte) []byte { panic("it arrived") }
		n1 := openNode(t, f, Config{ID: "n1", List: list, Handle: arrived})
		n3 := openNode(t, f, Config{
			ID: "n3", List: list, Incarnation: serverAfterWipe("n3").Incarnation, Handle: arrived,
			Condition: fixedCondition(
				Condition{Initial: initialMembersOf(list, serverAfterWipe("n3"))}),
		})
		defer n1.Close()
		defer n3.Close()
		_, err := n1.Call(t.Context(), nodeAt("n3", "h3:5751"), []byte("hello"))
		requireCode(t, OtherIncarnation, err)
		_, err = n3.Call(t.Context(), nodeAt("n1", "h1:5751"), []byte("hello"))
		requireCode(t, OtherInitialMembers, err)
		_, err = n1.Call(t.Context(), Node{"n3", "h3:5751"}, []byte("hello"))
		require.ErrorContains(t, err, "no server id", "it does not say which directory is intended")
	})
}

// Nodes whose binaries write other entries exchange nothing, answers to questions included, so they
// begin no cluster either. Both formats are named at both ends.
func TestNodesOfOtherFormatsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestNetwork()
		list := mustList(t, threeNodes)
		arrived := func(context.Context, Server, []byte) []byte { panic("it arrived") }
		n1 := openNode(t, f, Config{ID: "n1", List: list, Format: "1a2b", Handle: arrived})
		n2 := openNode(t, f, Config{ID: "n2", List: list, Format: "3c4d", Handle: arrived})
		defer n1.Close()
		defer n2.Close()
		_, err := n1.Ask(t.Context(), nodeAt("n2", "h2:5751"))
		requireCode(t, OtherFormat, err)
		require.ErrorContains(t, err,
			"the binary of n2 has format 3c4d and that of n1 has format 1a2b; no message of Raft "+
				"passed between them; run one binary")
		_, err = n2.Call(t.Context(), nodeAt("n1", "h1:5751"), []byte("hello"))
		requireCode(t, OtherFormat, err)
		require.Equal(t, Wait, Decide(n1.Mine(), n1.AskAll(t.Context(), list.Nodes())).Action)
	})
}

// A handler that takes long holds no place in the handshake limiter, and its context ends when the
// time is over.
func TestCallEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestNetwork()
		list := mustList(t, threeNodes)
		var over error
		n1 := openNode(t, f, Config{ID: "n1", List: list})
		waitForEnd := func(ctx context.Context, _ Server, _ []byte) []byte {
			<-ctx.Done()
			over = ctx.Err()
			return nil
		}
		n2 := openNode(t, f, Config{ID: "n2", List: list, Handle: waitForEnd,
			HandshakeTimeout: 3 * time.Second})
		defer n1.Close()
		defer n2.Close()
		start, answered := time.Now(), make(chan error)
		go func() {
			_, err := n1.Call(t.Context(), nodeAt("n2", "h2:5751"), []byte("hello"))
			answered <- err
		}()
		synctest.Wait()
		assert.Zero(t, n2.handshakes.Len())
		require.ErrorContains(t, <-answered, "no answer within 2s")
		assert.Equal(t, n1.config.HandshakeTimeout, time.Since(start))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		assert.True(t, errors.Is(over, context.DeadlineExceeded))
	})
}

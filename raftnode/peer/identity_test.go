package peer

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// knowledge is what one end of a connection knows, a row or column of the table of checkIdentities.
type knowledge struct {
	name    string
	cluster string
	initial InitialMembers
}

// reach is which server a caller finds where it looks for n2@first.
type reach struct {
	name   string
	server Server
	want   RefusalCode // 0: it is the intended one
}

// wantCode is what becomes of a connection between two kinds of knowledge.
func wantCode(caller, called knowledge, r reach) RefusalCode {
	bothIDs := caller.cluster != "" && called.cluster != ""
	one, other := caller.initial.String(), called.initial.String()
	switch {
	case bothIDs && caller.cluster != called.cluster:
		return OtherCluster
	case r.want != 0:
		return r.want
	case caller.cluster+one == "" || called.cluster+other == "":
		return NothingInCommon
	case !bothIDs && one != "" && other != "" && one != other:
		return OtherInitialMembers
	}
	return 0
}

// Every cell of the table, with the same and with other ids and initial members, when the intended
// server is reached, another directory of its name, and another name: over real connections, so
// that both ends and their order take part. Initial members differ as soon as one of them had
// another directory.
func TestHandshakeTable(t *testing.T) {
	three := mustList(t, threeNodes)
	home, other := initialMembersOf(three), initialMembersOf(three, serverAfterWipe("n3"))
	kinds := []knowledge{
		{"nothing", "", InitialMembers{}},
		{"initial members", "", home}, {"other initial members", "", other},
		{"id", "home", InitialMembers{}}, {"other id", "away", InitialMembers{}},
		{"id and initial members", "home", home}, {"id and other initial members", "home", other},
		{"other id and initial members", "away", home},
	}
	reaches := []reach{
		{"the intended server", serverOf("n2"), 0},
		{"another directory", serverAfterWipe("n2"), OtherIncarnation},
		{"another name", serverOf("n4"), OtherNode},
	}
	for _, caller := range kinds {
		for _, called := range kinds {
			for _, r := range reaches {
				t.Run(fmt.Sprintf("%s calls %s, reaches %s", caller.name, called.name, r.name),
					func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) { checkCell(t, caller, called, r) })
					})
			}
		}
	}
}

func checkCell(t *testing.T, caller, called knowledge, r reach) {
	f := newTestNetwork()
	node := func(s Server, host string, k knowledge) testNode {
		return openNode(t, f, Config{
			ID: s.Name, Incarnation: s.Incarnation, Advertise: host, Cluster: clusterOf(k.cluster),
			Condition: fixedCondition(Condition{Initial: k.initial}),
		})
	}
	n1, n2 := node(serverOf("n1"), "h1:5751", caller), node(r.server, "h2:5751", called)
	defer n1.Close()
	defer n2.Close()
	tr := openTransport(t, n1)
	openTransport(t, n2)
	err := vote(tr, "n2", "h2:5751")
	synctest.Wait() // both ends have logged
	want := wantCode(caller, called, r)
	if want == 0 {
		require.NoError(t, err)
		return
	}
	refusal, ok := errors.AsType[*RefusedError](err)
	require.True(t, ok, "%v", err)
	assert.Equal(t, want.String(), refusal.Code.String())
	assert.ErrorContains(t, err, want.remedy())
	assert.Contains(t, n1.logs.String(), want.String(), "the caller's log")
	assert.Contains(t, n2.logs.String(), want.String(), "the called node's log")
}

// The rules themselves, one by one, in the order in which they are looked at.
func TestCheckIdentities(t *testing.T) {
	three := mustList(t, threeNodes)
	answer := func(name string, cluster string, initial InitialMembers) Answer {
		return Answer{Server: serverOf(name), Cluster: clusterOf(cluster),
			Condition: Condition{Initial: initial}}
	}
	members, none := initialMembersOf(three), InitialMembers{}
	home, peer := answer("n1", "home", members), answer("n2", "home", members)
	joined, lagging, away := answer("n2", "home", none), answer("n2", "", members),
		answer("n2", "away", members)
	otherwise, blank := answer("n2", "", initialMembersOf(three, serverAfterWipe("n2"))),
		answer("n2", "", none)
	lost, third := serverAfterWipe("n2"), serverOf("n3")
	for _, c := range []struct {
		name         string
		mine, theirs Answer
		intended     Server
		want         RefusalCode
		fact         string
	}{
		{"a peer", home, peer, peer.Server, 0, ""},
		{"a peer that joined", home, joined, peer.Server, 0, ""},
		{"an initial member that lags", home, lagging, peer.Server, 0, ""},
		{"seen by an initial member that lags", lagging, home, home.Server, 0, ""},
		{"two initial members that lag", lagging, lagging, peer.Server, 0, ""},
		{"a node of another cluster and another name", home, away, third, OtherCluster,
			"cluster 61776179"},
		{"another node", home, peer, third, OtherNode, "wants n3, and the node at"},
		{"another node of other initial members", home, otherwise, third, OtherNode,
			"wants n3, and the node at"},
		{"another directory", home, peer, lost, OtherIncarnation,
			"another data directory under the same name"},
		{"another directory of other initial members", home, otherwise, lost, OtherIncarnation,
			lost.Incarnation.String()},
		{"an initial member of something else", home, otherwise, peer.Server, OtherInitialMembers,
			"initial members differ"},
		{"one that joined and an initial member that lags", joined, lagging, peer.Server, 0, ""},
		{"an initial member that lags and one that joined", lagging, joined, peer.Server, 0, ""},
		{"one that knows nothing", lagging, blank, peer.Server, NothingInCommon,
			"n2 knows only the initial members of its cluster and n2 knows no cluster"},
	} {
		refusal := checkIdentities(c.mine, c.theirs, c.intended, c.theirs.Server)
		if c.want == 0 {
			assert.Nil(t, refusal, c.name)
			continue
		}
		require.NotNil(t, refusal, c.name)
		assert.Equal(t, c.want.String(), refusal.Code.String(), c.name)
		assert.ErrorContains(t, refusal, c.fact, c.name)
	}
}

// While the first LeaderStart travels, some nodes know the cluster's id and some don't: initial
// members must continue speaking, in every order in which they learn it.
func TestClusterIDIsLearnedWhileRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestNetwork()
		list := mustList(t, threeNodes)
		n1, n2 := openNode(t, f, Config{ID: "n1", List: list}),
			openNode(t, f, Config{ID: "n2", List: list})
		defer n1.Close()
		defer n2.Close()
		require.NoError(t, connect(t, n1, n2))

		require.NoError(t, n1.SetCluster(clusterOf("home")))
		require.NoError(t, connect(t, n1, n2), "the caller has learned it")
		require.NoError(t, connect(t, n2, n1), "the called node has learned it")
		require.NoError(t, n2.SetCluster(clusterOf("home")))
		require.NoError(t, connect(t, n1, n2), "both have")

		require.NoError(t, n1.SetCluster(clusterOf("home")), "again")
		assert.ErrorContains(t, n1.SetCluster(clusterOf("away")), "nothing was changed")
		assert.ErrorContains(t, n1.SetCluster(ClusterID{}), "nothing was changed")
		assert.Equal(t, clusterOf("home"), n1.Mine().Cluster)
	})
}

func TestParseServer(t *testing.T) {
	digits := "6e312066697273740000000000000000"
	s, err := ParseServer(raft.ServerID("n1@" + digits))
	require.NoError(t, err)
	assert.Equal(t, serverOf("n1"), s)
	assert.Equal(t, "n1@"+digits, string(s.ID()))
	assert.Equal(t, "n1", NameOf(s.ID()))
	assert.Equal(t, "n1", NameOf("n1"), "of what is no server id")
	for text, want := range map[string]string{
		"":                                  "id is missing",
		"n1":                                "32 hexadecimal digits",
		"n1@":                               "32 hexadecimal digits",
		"@" + digits:                        "id is missing",
		"N1@" + digits:                      "lower-case",
		"n1@" + digits[2:]:                  "32 hexadecimal digits",
		"n1@" + digits + "00":               "32 hexadecimal digits",
		"n1@" + digits[1:] + "x":            "32 hexadecimal digits",
		"n1@" + digits + "@":                "32 hexadecimal digits",
		"n1@" + strings.ToUpper(digits):     "not as this release writes it",
		"n1@" + strings.Repeat("0", 32):     "not as this release writes it",
		"n1@" + digits + "=h1:5751":         "32 hexadecimal digits",
		"n1@" + digits + "," + "n2@" + "00": "32 hexadecimal digits",
	} {
		_, err := ParseServer(raft.ServerID(text))
		assert.ErrorContains(t, err, want, "%q", text)
	}
}

// What is read is written the same again, and fits the wire.
func FuzzParseServer(f *testing.F) {
	f.Add("n1@6e312066697273740000000000000000")
	f.Add("n1@" + hex.EncodeToString(make([]byte, 16)))
	f.Add("n@@")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseServer(raft.ServerID(text))
		if err != nil {
			return
		}
		if s.String() != text || NameOf(s.ID()) != s.Name || s.Incarnation == (Incarnation{}) ||
			len(text) > 255 {
			t.Fatalf("%q is read as %+v", text, s)
		}
	})
}

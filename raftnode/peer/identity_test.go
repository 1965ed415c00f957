package peer

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// knowledge is what one end of a connection knows: a row or column of the table in doc.go.
type knowledge struct {
	name    string
	cluster string
	list    string
}

const otherThree = "n1=h1:5751,n2=h2:5751,n3=h9:5751"

// cell is what becomes of a connection between two kinds of knowledge, where the called node is
// or isn't on the caller's record and the other way round.
func cell(caller, called knowledge, callerOnRecord, calledOnRecord bool) Code {
	switch {
	case caller.cluster != "" && called.cluster != "":
		if caller.cluster != called.cluster {
			return OtherCluster
		}
		return 0
	case caller.list == "" || called.list == "":
		return NothingInCommon
	case caller.list != called.list:
		return OtherList
	case caller.cluster != "" && !calledOnRecord, called.cluster != "" && !callerOnRecord:
		return NotOnRecord
	}
	return 0
}

// Every cell of the table, with the same and with other ids and lists, each end with and without
// a record of the other: over real connections, so that both ends and their order take part.
func TestTable(t *testing.T) {
	kinds := []knowledge{
		{"nothing", "", ""},
		{"list", "", threeNodes}, {"other list", "", otherThree},
		{"id", "home", ""}, {"other id", "away", ""},
		{"id and list", "home", threeNodes}, {"id and other list", "home", otherThree},
		{"other id and list", "away", threeNodes},
	}
	for _, caller := range kinds {
		for _, called := range kinds {
			for records := range 4 {
				callerOnRecord, calledOnRecord := records&1 != 0, records&2 != 0
				name := fmt.Sprintf("%s calls %s, records %02b", caller.name, called.name, records)
				want := cell(caller, called, callerOnRecord, calledOnRecord)
				t.Run(name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						tryCell(t, caller, called, callerOnRecord, calledOnRecord, want)
					})
				})
			}
		}
	}
}

func tryCell(t *testing.T, caller, called knowledge,
	callerOnRecord, calledOnRecord bool, want Code) {
	f := newFabric()
	node := func(id string, k knowledge, other string, onRecord bool) member {
		c := Config{ID: id, Cluster: clusterOf(k.cluster)}
		if k.list != "" {
			c.List = mustList(t, k.list)
		}
		if onRecord {
			c.Known = records(other, other+" first")
		}
		return open(t, f, c)
	}
	n1 := node("n1", caller, "n2", calledOnRecord)
	n2 := node("n2", called, "n1", callerOnRecord)
	defer n1.Close()
	defer n2.Close()
	err := connect(t, n1, n2)
	synctest.Wait() // both ends have logged
	if want == 0 {
		require.NoError(t, err)
		return
	}
	refusal, ok := errors.AsType[*RefusedError](err)
	require.True(t, ok, "%v", err)
	assert.Equal(t, want.String(), refusal.Code.String())
	assert.ErrorContains(t, err, want.cure())
	assert.Contains(t, n1.diary.String(), want.String(), "the caller's log")
	assert.Contains(t, n2.diary.String(), want.String(), "the called node's log")
}

// The rules themselves, one by one, in the order in which they are looked at.
func TestJudge(t *testing.T) {
	list := mustList(t, threeNodes).Hash()
	home := identity{"n1", incarnationOf("n1"), run{1}, clusterOf("home"), list}
	peer := identity{"n2", incarnationOf("n2"), run{2}, home.cluster, home.list}
	wiped, lagging, away := peer, peer, peer
	wiped.incarnation = incarnationOf("n2 again")
	lagging.cluster = ClusterID{}
	away.cluster = clusterOf("away")
	none, first := Incarnation{}, incarnationOf("n2")
	for _, c := range []struct {
		name           string
		mine, theirs   identity
		meant, reached string
		record         Incarnation
		want           Code
		fact           string
	}{
		{"a peer", home, peer, "n2", "n2", first, 0, ""},
		{"a peer without record", home, peer, "n2", "n2", none, 0, ""},
		{"a lagging founder", home, lagging, "n2", "n2", first, 0, ""},
		{"seen by a lagging founder", lagging, home, "n1", "n1", none, 0, ""},
		{"two founders", lagging, lagging, "n2", "n2", none, 0, ""},
		{"a foreign node of another id", home, away, "n3", "n2", none, OtherCluster, "cluster 61776179"},
		{"another node", home, peer, "n3", "n2", none, NotMeant, "means n3, and the node at"},
		{"a wiped node", home, wiped, "n2", "n2", first, OtherIncarnation, "another data directory"},
		{"a wiped founder", lagging, wiped, "n2", "n2", first, OtherIncarnation, "on record for n2"},
		{"an unknown founder", home, lagging, "n2", "n2", none, NotOnRecord, "no incarnation on record"},
	} {
		refusal := judge(c.mine, c.theirs, c.meant, c.reached, c.record)
		if c.want == 0 {
			assert.Nil(t, refusal, c.name)
			continue
		}
		require.NotNil(t, refusal, c.name)
		assert.Equal(t, c.want, refusal.Code, c.name)
		assert.ErrorContains(t, refusal, c.fact, c.name)
	}
}

// While the first LeaderStart travels, some nodes know the cluster's id and some don't: founders
// must go on speaking, in every order in which they learn it.
func TestClusterIDIsLearnedWhileRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		list := mustList(t, threeNodes)
		n1 := open(t, f, Config{ID: "n1", List: list, Known: records("n2", "n2 first")})
		n2 := open(t, f, Config{ID: "n2", List: list, Known: records("n1", "n1 first")})
		defer n1.Close()
		defer n2.Close()
		require.NoError(t, connect(t, n1, n2))

		require.NoError(t, n1.SetCluster(clusterOf("home")))
		require.NoError(t, connect(t, n1, n2), "the caller has learned it")
		require.NoError(t, n2.SetCluster(clusterOf("home")))
		require.NoError(t, connect(t, n1, n2), "both have")

		require.NoError(t, n1.SetCluster(clusterOf("home")), "again")
		assert.ErrorContains(t, n1.SetCluster(clusterOf("away")), "nothing was changed")
		assert.ErrorContains(t, n1.SetCluster(ClusterID{}), "nothing was changed")
		assert.Equal(t, clusterOf("home"), n1.Mine().Cluster)
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		list := mustList(t, threeNodes)
		n1 := open(t, f, Config{ID: "n1", List: list})
		n2 := open(t, f, Config{ID: "n2", List: list, Known: records("n1", "n1 first")})
		defer n1.Close()
		defer n2.Close()
		require.NoError(t, n2.SetCluster(clusterOf("home")))
		require.NoError(t, connect(t, n1, n2), "the called node has learned it")
	})
}

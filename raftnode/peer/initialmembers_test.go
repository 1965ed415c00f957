package peer

import (
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestFounders(t *testing.T) {
	list := mustList(t, "n2=[fd00::2]:5751,n1=h1:5751,n3=h3:5751")
	f := foundersOf(list)
	text := serverOf("n1").String() + "=h1:5751," + serverOf("n2").String() + "=[fd00::2]:5751," +
		serverOf("n3").String() + "=h3:5751"
	assert.Equal(t, text, f.String())
	again, err := ParseInitialMembers(text)
	require.NoError(t, err)
	assert.Equal(t, f, again)
	assert.Equal(t, list, f.list())
	assert.True(t, f.Has(serverOf("n2")))
	assert.False(t, f.Has(serverAgain("n2")), "another directory is another server")
	assert.False(t, f.Has(serverOf("n4")))
	assert.Equal(t, raft.Configuration{Servers: []raft.Server{
		{Suffrage: raft.Voter, ID: serverOf("n1").ID(), Address: "h1:5751"},
		{Suffrage: raft.Voter, ID: serverOf("n2").ID(), Address: "[fd00::2]:5751"},
		{Suffrage: raft.Voter, ID: serverOf("n3").ID(), Address: "h3:5751"},
	}}, f.Configuration())

	none, err := ParseInitialMembers("")
	require.NoError(t, err)
	assert.Equal(t, InitialMembers{}, none)
	assert.Equal(t, "", none.String())
	assert.Empty(t, none.Configuration().Servers)
}

// Two lists of initial members are compared by their text. Each part of an initial member is in it.
func TestInitialMembersDifferInEveryPart(t *testing.T) {
	list := mustList(t, threeNodes)
	seen := map[string]bool{"": true}
	for _, f := range []InitialMembers{
		foundersOf(list), foundersOf(list, serverAgain("n3")), foundersOf(mustList(t, "n1=h1:5751,n2=h2:5751")),
		foundersOf(mustList(t, "n1=h1:5751,n2=h2:5751,n3=h9:5751")), foundersOf(mustList(t, "n1=h1:5751,n2=h2:5751,n3=h3:5752")),
	} {
		assert.False(t, seen[f.String()], "%v", f)
		seen[f.String()] = true
	}
}

func TestFoundersAreReadStrictly(t *testing.T) {
	n1, n2 := serverOf("n1").String()+"=h1:5751", serverOf("n2").String()+"=h2:5751"
	for text, want := range map[string]string{
		"n1=h1:5751":                       "no server id",
		n1 + ",":                           "no server id",
		serverOf("n1").String():            "no host and port",
		serverOf("n1").String() + "=h1":    "no host and port",
		n2 + "," + n1:                      "not as this release writes them",
		n1 + ", " + n2:                     "no server id",
		strings.Replace(n1, "h1", "H1", 1): "not as this release writes them",
		n1 + "," + serverAgain("n1").String() + "=h2:5751": "the same id n1",
		n1 + "," + strings.Replace(n2, "h2", "h1", 1):      "same address h1:5751",
		strings.Repeat(n1+",", nodesMax) + n1:              "32 is the most",
	} {
		_, err := ParseInitialMembers(text)
		assert.ErrorContains(t, err, want, "%q", text)
	}
}

// A list that two initial members agreed upon is on both their disks in the same words.
func TestFoundersReadTheirCanonicalForm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z0-9][a-z0-9._-]{0,20}`), 1, nodesMax,
			rapid.ID[string]).Draw(t, "names")
		incarnations := map[string]Incarnation{}
		for i, name := range names {
			incarnation := Incarnation{byte(i + 1)}
			copy(incarnation[1:], rapid.SliceOfN(rapid.Byte(), 15, 15).Draw(t, "incarnation"))
			incarnations[name] = incarnation
			host := rapid.SampledFrom([]string{"Host", "10.1.2.3", "[FD00::1]"}).Draw(t, "host")
			names[i] = name + "=" + host + ":1" + string(rune('0'+i/10)) + string(rune('0'+i%10))
		}
		one, err := ParseList(strings.Join(names, ","))
		require.NoError(t, err)
		other, err := ParseList(strings.Join(rapid.Permutation(names).Draw(t, "order"), " , "))
		require.NoError(t, err)
		f, again := NewInitialMembers(one, incarnations), NewInitialMembers(other, incarnations)
		assert.Equal(t, f.String(), again.String())
		read, err := ParseInitialMembers(f.String())
		require.NoError(t, err)
		assert.Equal(t, f, read)
	})
}

func FuzzParseFounders(f *testing.F) {
	f.Add(foundersOf(mustList(f, threeNodes)).String())
	f.Add(foundersOf(mustList(f, "n1=[fd00::1]:5751")).String())
	f.Add("n1@,=,=")
	f.Fuzz(func(t *testing.T, text string) {
		founders, err := ParseInitialMembers(text)
		if err == nil && founders.String() != text {
			t.Fatalf("%q is written as %q", text, founders)
		}
	})
}

package peer

import (
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestListIsTheSameHoweverItIsSpelled(t *testing.T) {
	want := mustList(t, "n1=a.example:5751,n2=10.0.0.2:5751,n3=[fd00::3]:5751")
	for _, text := range []string{
		"n3=[fd00::3]:5751,n1=a.example:5751,n2=10.0.0.2:5751",
		" n1=A.Example:5751 , n2=10.0.0.2:05751,n3=[FD00:0:0::3]:5751\n",
		"n1=a.example:5751,n2=[::ffff:10.0.0.2]:5751,n3=[fd00::3]:5751",
	} {
		got := mustList(t, text)
		assert.Equal(t, want, got, text)
	}
	assert.Equal(t, "n1=a.example:5751,n2=10.0.0.2:5751,n3=[fd00::3]:5751", want.String())
	assert.True(t, want.Has("n2"))
	assert.False(t, want.Has("n4"))
}

func TestListNamesTheItemAtFault(t *testing.T) {
	longID, longHost := strings.Repeat("n", 65), strings.Repeat("h", 254)
	for text, want := range map[string][]string{
		"":                           {"is empty", "n1=host:5751"},
		"n1=a:1,":                    {"item 2", "no '='"},
		"n1=a:1,b:2":                 {"item 2", `"b:2"`, "no '='"},
		"=a:1":                       {"item 1", "id is missing"},
		longID + "=a:1":              {"item 1", "65 bytes", "64"},
		"N1=a:1":                     {"item 1", `'N' at byte 1`, "lower-case"},
		"-n=a:1":                     {`'-' at byte 1`},
		"n 1=a:1":                    {`' ' at byte 2`},
		"n1=a":                       {"item 1", "missing port", "n1=host:5751"},
		"n1=fd00::1:5751":            {"too many colons", "brackets"},
		"n1=:5751":                   {"item 1", "host is 0 bytes"},
		"n1=" + longHost + ":1":      {"254 bytes"},
		"n1=a b:1":                   {`' '`, "no host name"},
		"n1=a=b:1":                   {`'='`},
		"n1=a:0":                     {"1 to 65535"},
		"n1=a:65536":                 {"1 to 65535"},
		"n1=a:http":                  {"1 to 65535"},
		"n1=0.0.0.0:1":               {"something else on every machine"},
		"n1=[fe80::1%eth0]:1":        {"something else on every machine"},
		"n1=a:1,n2=b:1,n1=c:1":       {"items 1 and 3", "same id n1"},
		"n1=a:1,n2=A:01":             {"items 1 and 2", "n1 and n2", "same address a:1"},
		strings.Repeat("n=a:1,", 33): {"names 34 nodes", "32"},
	} {
		_, err := ParseList(text)
		for _, part := range want {
			assert.ErrorContains(t, err, part, "%q", text)
		}
	}
	_, err := ParseList(strings.Repeat("n", 64) + "=" + strings.Repeat("h", 253) + ":65535")
	assert.NoError(t, err)
}

func TestListReadsItsCanonicalForm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		items := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z0-9][a-z0-9._-]{0,20}`), 1,
			nodesMax,
			rapid.ID[string]).Draw(t, "ids")
		for i, id := range items {
			host := rapid.SampledFrom([]string{"Host", "10.1.2.3", "[fd00::1]"}).Draw(t, "host")
			items[i] = id + "=" + host + ":" + rapid.StringMatching(`0?[1-9]`).Draw(t, "tens") +
				string(rune('0'+i/10)) + string(rune('0'+i%10))
		}
		l, err := ParseList(strings.Join(items, ","))
		require.NoError(t, err)
		again, err := ParseList(l.String())
		require.NoError(t, err)
		assert.Equal(t, l, again)
		assert.Equal(t, l.String(), again.String())
		shuffled, err := ParseList(strings.Join(rapid.Permutation(items).Draw(t, "order"), " , "))
		require.NoError(t, err)
		assert.Equal(t, l, shuffled)
	})
}

func longestList() string {
	var items []string
	for i := range nodesMax {
		tens, ones := string(rune('0'+i/10)), string(rune('0'+i%10))
		items = append(items, strings.Repeat("n", idBytesMax-2)+tens+ones+"="+
			strings.Repeat("h", hostBytesMax-2)+tens+ones+":65535")
	}
	return strings.Join(items, ",")
}

func TestInitialMembers(t *testing.T) {
	list := mustList(t, "n2=[fd00::2]:5751,n1=h1:5751,n3=h3:5751")
	f := initialMembersOf(list)
	text := serverOf("n1").String() + "=h1:5751," + serverOf("n2").String() + "=[fd00::2]:5751," +
		serverOf("n3").String() + "=h3:5751"
	assert.Equal(t, text, f.String())
	again, err := ParseInitialMembers(text)
	require.NoError(t, err)
	assert.Equal(t, f, again)
	assert.Equal(t, list, f.list())
	assert.True(t, f.Has(serverOf("n2")))
	assert.False(t, f.Has(serverAfterWipe("n2")), "another directory is another server")
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
		initialMembersOf(list), initialMembersOf(list, serverAfterWipe("n3")),
		initialMembersOf(mustList(t, "n1=h1:5751,n2=h2:5751")),
		initialMembersOf(mustList(t, "n1=h1:5751,n2=h2:5751,n3=h9:5751")),
		initialMembersOf(mustList(t, "n1=h1:5751,n2=h2:5751,n3=h3:5752")),
	} {
		assert.False(t, seen[f.String()], "%v", f)
		seen[f.String()] = true
	}
}

func TestInitialMembersAreReadStrictly(t *testing.T) {
	n1, n2 := serverOf("n1").String()+"=h1:5751", serverOf("n2").String()+"=h2:5751"
	for text, want := range map[string]string{
		"n1=h1:5751":                       "no server id",
		n1 + ",":                           "no '='",
		serverOf("n1").String():            "no '='",
		serverOf("n1").String() + "=h1":    "no host and port",
		n2 + "," + n1:                      "not as this release writes them",
		n1 + ", " + n2:                     "not as this release writes them",
		strings.Replace(n1, "h1", "H1", 1): "not as this release writes them",
		n1 + "," + serverAfterWipe("n1").String() + "=h2:5751": "the same id n1",
		n1 + "," + strings.Replace(n2, "h2", "h1", 1):          "same address h1:5751",
		strings.Repeat(n1+",", nodesMax) + n1:                  "32 is the most",
	} {
		_, err := ParseInitialMembers(text)
		assert.ErrorContains(t, err, want, "%q", text)
	}
}

// A list that two initial members agreed upon is on both their disks in the same words.
func TestInitialMembersReadTheirCanonicalForm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z0-9][a-z0-9._-]{0,20}`), 1,
			nodesMax,
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

func FuzzParseInitialMembers(f *testing.F) {
	f.Add(initialMembersOf(mustList(f, threeNodes)).String())
	f.Add(initialMembersOf(mustList(f, "n1=[fd00::1]:5751")).String())
	f.Add("n1@,=,=")
	f.Fuzz(func(t *testing.T, text string) {
		members, err := ParseInitialMembers(text)
		if err == nil && members.String() != text {
			t.Fatalf("%q is written as %q", text, members)
		}
	})
}

package peer

import (
	"strings"
	"testing"

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
		items := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z0-9][a-z0-9._-]{0,20}`), 1, nodesMax,
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

package record

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSumDistinguishesAdjacentStrings(t *testing.T) {
	seen := map[Sum]string{}
	for _, parts := range [][]string{
		{}, {""}, {"", ""}, {"a"}, {"a", ""}, {"", "a"}, {"ab"}, {"a", "b"}, {"12345678"},
		{"1234567", "8"}, {"123456789"}, {"12345678", "9"}, {"a\x00"}, {"a\x00\x00"},
	} {
		var s Sum
		for _, p := range parts {
			s = s.Text(p)
		}
		other, collision := seen[s]
		require.False(t, collision, "%q and %q have one sum", parts, other)
		seen[s] = fmt.Sprintf("%q", parts)
	}
}

package record

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A description has a line for each field, and the record stays as it is but for what is counted.
func TestDescriptionNamesEveryField(t *testing.T) {
	var e every
	d := NewDescriber([]byte("every\n"))
	e.code(&d)
	assert.NoError(t, d.Err())
	assert.Equal(t, every{Strings: []string{""}}, e)
	assert.Equal(t, `every
"number" number 18446744073709551615
"narrow" number 4294967295
"at" number 9223372036854775807
"span" number 31622400000000000
"signed" signed
"kind" number 255
"text" text
"hash" raw 4
"strings" count 9223372036854775807 1
"string" text
`, string(d.Bytes()))
}

func TestWholeChecksum(t *testing.T) {
	for _, text := range []string{"", "a", "a record"} {
		assert.EqualValues(t, WholeChecksum, UpdateChecksum(0, AppendChecksum([]byte(text), 0)))
	}
}

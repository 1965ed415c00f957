package web

import (
	"encoding/json"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/zamokpb"
)

// FuzzRequest reads a request of any bytes, as a body and as a query. What is accepted is the same
// when it is written and read again; what is refused names a field, and has changed nothing.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"name":"a/b","ttl":"15s","wait":"forever","session":"18446744073709551615"}`,
		`{"items":[{"name":"a","mode":"shared"},{"permits":1,"of":2}]}`,
		`{"name":null,"secret":"00112233445566778899aabbccddeeff"}`, `{"name":"\ud800"}`,
		"{\"name\":\"\xff\"}", `{"name":"a","name":"b"}`, `[]`, ``, `{"a":`,
		"name=a&name=b&wait=1h&permits=3&of=4", "name=%ff", "a;b", `{"ttl":"1e400h","wait":-1}`,
		"\x1a0",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, into := range []any{&acquireRequest{}, &holdRequest{}, &held{}, &sessionRequest{}} {
			body := httptest.NewRequest("POST", "http://localhost/v1/x", strings.NewReader(text))
			err := read(httptest.NewRecorder(), body, into)
			checkRead(t, err)
			if err == nil {
				again := reflect.New(reflect.TypeOf(into).Elem()).Interface()
				written, err := json.Marshal(into)
				require.NoError(t, err)
				require.NoError(t, readObject("", written, again), "%s", written)
				rewritten, err := json.Marshal(again)
				require.NoError(t, err)
				assert.Equal(t, string(written), string(rewritten))
			}
			checkRead(t, readQuery(text, reflect.New(reflect.TypeOf(into).Elem()).Interface()))
		}
	})
}

func checkRead(t *testing.T, err error) {
	if err == nil {
		return
	}
	info := infoOf(err)
	assert.Equal(t, zamokpb.Code_CODE_INVALID, info.Code)
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, info.Outcome)
	assert.True(t, strings.HasPrefix(info.Message, info.Field+": "))
	_, err = json.Marshal(newErrorBody(info))
	require.NoError(t, err)
	assert.True(t, utf8.ValidString(info.Field))
}

package api

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/visible"
)

// curl prints what comes to a terminal: whatever others call their locks and themselves, answers,
// errors and events have only printable characters.
func TestTextOfOthersIsEscapedOverHTTP(t *testing.T) {
	t.Parallel()
	n := startCluster(t, 1, serveHTTP).leader()
	ctx := soon(t)
	answer := func(code int, method, path, body string, headers ...string) reply {
		r := send(ctx, t, n, method, path, body, headers...)
		assert.Equal(t, code, r.code, "%s %s: %s", method, path, r.text)
		assert.Equal(t, visible.Lines(r.text), r.text, "%s %s", method, path)
		return r
	}
	misleading := []string{
		"\u202ecod\u202c", "\u2066a\u2069\u200e\u061c", "st\u200bo\ufeffck", "so\u00adft",
		"\U000e0001\U000e0041", "a\ufe0f\u3164", "a\u2028b\u2029",
		"\u0301a", "a" + strings.Repeat("\u0301", 40), "\ue000\U0010ffff",
	}
	for _, text := range misleading {
		control := text + "\x1b[2J\u009b31m\x7f\r\n"
		quote := func(text string) string {
			quoted, err := json.Marshal(text)
			require.NoError(t, err)
			return string(quoted)
		}
		query := url.QueryEscape("v/" + text)
		taken := answer(200, "POST", "/v1/acquire",
			`{"name":`+quote("v/"+text)+`,"label":`+quote(text)+`,"meta":`+quote(control)+
				`,"owner":"o"}`)
		shown := answer(200, "GET", "/v1/lock?name="+query, "")
		assert.Equal(t, "v/"+text, shown.fields["name"], "it means the same")
		answer(409, "POST", "/v1/acquire", `{"name":`+quote("v/"+text)+`}`)
		answer(409, "POST", "/v1/acquire",
			`{"name":`+quote("v/"+text)+`,"mode":"permits","permits":1,"of":2}`)
		answer(423, "LOCK", "/v1/terraform/lock?name="+query, `{"ID":"1"}`)
		answer(200, "LOCK", "/v1/terraform/lock?name=v/t"+query,
			"{\n\"ID\":\"2\",\"Who\":\"w\",\"Info\":"+quote(text)+"}")
		answer(423, "LOCK", "/v1/terraform/lock?name=v/t"+query, `{"ID":"3"}`)
		answer(400, "POST", "/v1/acquire", `{"name":`+quote(control)+`}`)
		answer(400, "POST", "/v1/acquire", `{`+quote(control)+`:1}`)
		answer(400, "GET", "/v1/lock?name=a&"+url.QueryEscape(control)+"=1", "")
		answer(404, "GET", "/v1/"+url.PathEscape(control), "")
		answer(403, "GET", "/v1/now", "", "Origin", "http://"+text)
		answer(200, "POST", "/v1/admin/release",
			`{"name":`+quote("v/"+text)+`,"token":"1","reason":`+quote(text)+`}`)
		answer(200, "POST", "/v1/release", taken.text)
	}
	for _, path := range []string{"/v1/locks", "/v1/sessions", "/v1/members", "/metrics",
		"/readyz"} {
		answer(200, "GET", path, "")
	}
	request, err := http.NewRequestWithContext(ctx, "GET",
		"http://"+n.HTTP()+"/v1/watch?from=1&prefix=v/", nil)
	require.NoError(t, err)
	events, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer events.Body.Close()
	lines := bufio.NewScanner(events.Body)
	for found := 0; found < 3*len(misleading) && lines.Scan(); {
		line := lines.Text()
		assert.Equal(t, visible.Line(line), line)
		switch kind, data, _ := strings.Cut(line, ": "); kind {
		case "", "id", "event":
		case "data":
			found++
			assert.True(t, json.Valid([]byte(data)), line)
		default:
			t.Errorf("an event has a line %q", line)
		}
	}
}

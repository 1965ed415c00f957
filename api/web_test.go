package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// serveHTTP lets a node of a test serve HTTP.
func serveHTTP(cfg *NodeConfig) { cfg.ListenHTTP = "127.0.0.1:0" }

// reply is an answer over HTTP.
type reply struct {
	code   int
	header http.Header
	text   string
	fields map[string]any
}

// send sends a request over HTTP; headers are pairs.
func send(ctx context.Context, t testing.TB, n *Node, method, path, body string,
	headers ...string) reply {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, method, "http://"+n.HTTP()+path,
		strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			request.Host = headers[i+1]
		}
	}
	hurry := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := hurry.Do(request)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	r := reply{code: answer.StatusCode, header: answer.Header, text: string(text)}
	if method != "HEAD" && strings.HasPrefix(answer.Header.Get("Content-Type"),
		"application/json") {
		require.NoError(t, json.Unmarshal(text, &r.fields), r.text)
		described(t).checkAnswer(t, method, request.URL.Path, r)
	}
	return r
}

// sendWhenLed is send while the leader may change: on a busy machine the election of the next one
// takes longer than a node holds up a request, which is then refused before the log.
func sendWhenLed(ctx context.Context, t testing.TB, n *Node, method, path, body string,
	headers ...string) reply {
	t.Helper()
	for {
		r := send(ctx, t, n, method, path, body, headers...)
		if r.fields["code"] != "not_leader" {
			return r
		}
	}
}

// A lock is taken, renewed and released over HTTP, at any node, and the answer of the first call is
// the body of the others.
func TestALockOverHTTP(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, serveHTTP)
	ctx := soon(t)
	n := c.follower()
	first := send(ctx, t, n, "POST", "/v1/acquire",
		`{"name":"account/200","ttl":"10s","meta":"a test"}`)
	require.Equal(t, 200, first.code, first.text)
	assert.Equal(t, "granted", first.fields["state"])
	assert.Equal(t, "9.5s", first.fields["valid_for"])

	second := send(ctx, t, c.leader(), "POST", "/v1/acquire", `{"name":"account/200"}`)
	assert.Equal(t, 409, second.code)
	assert.Equal(t, "not_acquired", second.fields["code"])
	assert.Equal(t, "not_done", second.fields["outcome"])
	assert.Equal(t, first.fields["token"],
		second.fields["blockers"].([]any)[0].(map[string]any)["token"])

	assert.Equal(t, 200, send(ctx, t, n, "POST", "/v1/renew", first.text).code)
	check := "/v1/check?name=account/200&token=" + first.fields["token"].(string)
	assert.Equal(t, true, send(ctx, t, n, "GET", check, "").fields["held"])
	assert.Equal(t, 200, send(ctx, t, n, "POST", "/v1/release", first.text).code)
	assert.Equal(t, false, send(ctx, t, n, "GET", check, "").fields["held"])
	again := send(ctx, t, n, "POST", "/v1/release", first.text)
	assert.Equal(t, 200, again.code, "may be repeated")
	assert.Equal(t, "dropped", again.fields["reason"])
}

// A renewal, and the release, say that a lock was taken away although its session is alive.
func TestALossIsSentOverHTTP(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, serveHTTP)
	ctx, n := soon(t), c.leader()
	first := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"stock"}`)
	require.Equal(t, 200, first.code)
	require.Equal(t, 200, send(ctx, t, n, "POST", "/v1/renew", first.text).code)
	forced := send(ctx, t, n, "POST", "/v1/admin/release",
		fmt.Sprintf(`{"name":"stock","token":%q,"reason":"a test"}`, first.fields["token"]))
	require.Equal(t, 200, forced.code, forced.text)
	renewed := send(ctx, t, n, "POST", "/v1/renew", first.text)
	assert.Equal(t, 410, renewed.code)
	assert.Equal(t, "ticket_ended", renewed.fields["code"])
	assert.Equal(t, "force_released", renewed.fields["reason"])
	released := send(ctx, t, n, "POST", "/v1/release", first.text)
	assert.Equal(t, 200, released.code)
	assert.Equal(t, "force_released", released.fields["reason"])
	assert.Equal(t, first.fields["token"], released.fields["token"])
}

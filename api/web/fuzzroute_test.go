package web

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"zamok/api/gate"
	"zamok/api/wire"
	"zamok/api/zamokpb"
)

// filledConn answers calls with a text in each field that can have one. It has no streams.
type filledConn struct {
	t     *testing.T
	text  string
	calls int
	of    *http.Request
}

func (c *filledConn) Do(_ context.Context, from gate.Arrival,
	request proto.Message) (proto.Message, error) {
	c.calls++
	c.check(from)
	_, err := proto.Marshal(request)
	require.NoError(c.t, err)
	name := strings.TrimSuffix(string(request.ProtoReflect().Descriptor().FullName()), "Request") +
		"Response"
	kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(name))
	require.NoError(c.t, err)
	response := kind.New().Interface()
	fill(response.ProtoReflect(), c.text, 0)
	return response, nil
}

func (c *filledConn) Stream(_ context.Context, from gate.Arrival, _ string, _ gate.Messages) error {
	c.calls++
	c.check(from)
	return wire.Errorf(zamokpb.Code_CODE_DENIED, "not done: no stream; %s", c.text)
}

func (*filledConn) Cluster() string { return "00ff" }

// check demands that a request of HTTP becomes no other caller's, as a relayed call would say.
func (c *filledConn) check(from gate.Arrival) {
	assert.Nil(c.t, from.Via)
	assert.Empty(c.t, from.Caller)
	assert.False(c.t, from.First)
	assert.True(c.t, from.Relay)
	named := c.of.Header.Values(zamokpb.ClusterKey)
	assert.LessOrEqual(c.t, len(from.Clusters), len(named)+1, "and one in the body or in the query")
	for i, cluster := range named {
		assert.Equal(c.t, cluster, from.Clusters[i])
	}
	shown := c.of.Header["Authorization"]
	if _, password, basic := c.of.BasicAuth(); basic && len(shown) == 1 &&
		c.of.URL.Path == "/v1/terraform/lock" {
		shown = []string{"Bearer " + password}
	}
	assert.Equal(c.t, shown, from.Tokens)
}

func fill(m protoreflect.Message, text string, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		var value protoreflect.Value
		switch field.Kind() {
		case protoreflect.StringKind:
			// a message has no other
			value = protoreflect.ValueOfString(strings.ToValidUTF8(text, ""))
		case protoreflect.BytesKind:
			value = protoreflect.ValueOfBytes([]byte(text))
		case protoreflect.MessageKind:
			if depth > 4 {
				continue
			}
			if field.IsList() {
				value = m.NewField(field).List().NewElement()
			} else {
				value = m.NewField(field)
			}
			fill(value.Message(), text, depth+1)
		default:
			continue
		}
		if field.IsList() {
			m.Mutable(field).List().Append(value)
		} else if !field.IsMap() {
			m.Set(field, value)
		}
	}
}

// FuzzRoute serves a request of any bytes, as it comes over a connection, and answers with texts of
// others. A page of another site makes no call; every answer has an outcome, and can be read.
func FuzzRoute(f *testing.F) {
	body := func(request, body string) string {
		return request + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
			strconv.Itoa(len(body)) + "\r\n\r\n" + body
	}
	for _, seed := range []string{
		body("POST /v1/acquire", `{"name":"a/b","ttl":"15s","wait":"1s"}`),
		body("POST /v1/release", `{"session":"7","secret":"00112233445566778899aabbccddeeff"}`),
		body("LOCK /v1/terraform/lock?name=a&ttl=1h&wait=5s",
			`{"ID":"00112233","Who":"me@here","Info":"plan"}`),
		body("UNLOCK /v1/terraform/lock?name=a", ""),
		"UNLOCK /v1/terraform/lock?name=a HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic " +
			"bWU6emFtb2tfYQ==\r\n\r\n",
		body("POST /v1/sessions", `{"ttl":"30s","label":"x"}`),
		body("DELETE /v1/sessions/7?secret=1", ""),
		body("POST /v1/admin/join", `{"id":"n4","peer":"h4:5751"}`),
		"GET /v1/hold?name=a HTTP/1.1\r\nHost: localhost\r\nUser-Agent: Mozilla/5.0\r\nReferer: " +
			"http://localhost/x\r\n\r\n",
		"GET /v1/watch?prefix=a HTTP/1.1\r\nHost: [::1]:1\r\nAuthorization: Bearer " +
			"x\r\nAuthorization: Bearer y\r\nZamok-Cluster: 00\r\n\r\n",
		"GET /v1/locks?prefix=a&limit=10 HTTP/1.1\r\nHost: 127.0.0.1:1\r\nOrigin: " +
			"http://127.0.0.1:1\r\nSec-Fetch-Site: same-origin\r\nZamok-Caller-Bin: " +
			"cm9vdA==\r\n\r\n",
		"GET /v1/lock?name=a HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n",
		"HEAD /v1/hold?name=a HTTP/1.0\r\n\r\n",
		"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: " +
			"00112233445566778899aabbccddeefF\r\nTransfer-Encoding: " +
			"chunked\r\n\r\n7\r\n{\"name\"\r\n5\r\n:\"a\"}\r\n0\r\n\r\n",
	} {
		f.Add(seed, "{\"ID\":\"\u202e\x1b[2J\xff\"}")
	}
	conn := &filledConn{}
	config := fakeConfig(conn)
	handler := New(config)
	f.Fuzz(func(t *testing.T, sent, text string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(sent)))
		if err != nil {
			return // net/http answers that
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r, r.RemoteAddr = r.WithContext(ctx), "10.0.0.1:7"
		*conn = filledConn{t: t, text: text, of: r}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		answer, err := io.ReadAll(w.Result().Body)
		require.NoError(t, err)
		if strings.HasPrefix(r.URL.Path, "/v1/") && w.Code != http.StatusMovedPermanently &&
			w.Code != http.StatusTemporaryRedirect {
			assert.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"), "%d", w.Code)
		}
		if origin := r.Header.Get("Origin"); origin != "" && !sameHost(origin, r.Host) ||
			r.Header.Get("Sec-Fetch-Site") == "cross-site" {
			assert.Zero(t, conn.calls, "%q", sent)
		}
		if strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") {
			assert.True(t, utf8.Valid(answer))
			assert.True(t, json.Valid(answer), "%q", answer)
			assert.NotContains(t, string(answer), "\x1b")
			assert.NotContains(t, string(answer), "\u202e")
			assert.Less(t, len(answer), 64<<10+200*(len(sent)+len(text)))
		}
	})
}

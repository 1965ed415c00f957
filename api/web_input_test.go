package api

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/fsm"
)

// itemsOf is so many items of the same lock.
func itemsOf(count int) string {
	return `{"items":[` + strings.TrimSuffix(strings.Repeat(`{"name":"x"},`, count), ",") + `]}`
}

// inSession names a session.
const inSession = `"session":"1","secret":"00000000000000000000000000000000"`

// wrongAcquisitions are bodies of /v1/acquire, with the field that is wrong and what is said of it.
var wrongAcquisitions = []struct{ body, field, says string }{
	{`{"name":3}`, "name", "is a number in JSON, where a text is needed"},
	{`{"name":["a"]}`, "name", "where a text is needed"},
	{`{"name":"a","ttl":30}`, "ttl", `a text such as "30s"`},
	{`{"name":"a","wait":"soon"}`, "wait", `nor "forever"`},
	{`{"name":"a","wait":"-1s"}`, "wait", "is not a duration"},
	{`{"name":"a","wait":"9999999999h"}`, "wait", "is not a duration"},
	{`{"name":"a","wait":"900000h"}`, "wait", "between"},
	{`{"name":"a","max_hold":"-5m"}`, "max_hold", "is not a duration"},
	{`{"name":"a","ttl":"1s"}`, "ttl", "not between"},
	{`{"name":"a","lock_delay":"2h"}`, "lock_delay", "not between"},
	{`{"name":"a","label":"` + strings.Repeat("l", 257) + `"}`, "label", "at most 256"},
	{`{"name":"a","owner":"` + strings.Repeat("o", 257) + `"}`, "owner", "at most 256"},
	{`{"name":"a","meta":"` + strings.Repeat("m", 4097) + `"}`, "meta", "at most 4096"},
	{`{"name":"a","mode":"write"}`, "mode", "must be exclusive"},
	{`{"name":"a","mode":"permits"}`, "of", "not between"},
	{`{"name":"a","permits":2,"of":1}`, "permits", "not between"},
	{`{"name":"a","mode":"exclusive","permits":1}`, "permits", "is set"},
	{`{"name":"a","permits":-1}`, "permits", "2^32-1"},
	{`{"name":"a","permits":4294967296}`, "permits", "2^32-1"},
	{`{"name":"a","permits":"1"}`, "permits", "2^32-1"},
	{`{}`, "name", "is empty"},
	{``, "name", "is empty"},
	{`{"name":""}`, "name", "is empty"},
	{`{"name":"a\u0000b"}`, "name", "control character"},
	{`{"name":"` + strings.Repeat("n", 513) + `"}`, "name", "at most 512"},
	{`{"name":"\ud800"}`, "name", "half of a character"},
	{"{\"name\":\"a\xff\"}", "body", "UTF-8"},
	{`{"nmae":"a"}`, "nmae", "known are: name"},
	{`{"Name":"a"}`, "Name", "is not known"},
	{`{"name":"a","name":"b"}`, "name", "more than once"},
	{`{"name":"a"}{"name":"b"}`, "body", "after top-level value"},
	{`{"name":"a"`, "body", "unexpected end"},
	{`name=a`, "body", "is no JSON object"},
	{`["a"]`, "body", "is no JSON object"},
	{`null`, "body", "is no JSON object"},
	{strings.Repeat("[", 30_000), "body", "is no JSON object"},
	{`{"items":[]}`, "name", "is empty"},
	{itemsOf(65), "items", "not 1 to 64"},
	{itemsOf(2), "name", "(item 2 of 2)"},
	{`{"items":[{"name":"a"},{"name":"b","of":1,"permits":2}]}`, "permits", "(item 2 of 2)"},
	{`{"items":[{"name":"a","permits":0,"mode":"permits"}]}`, "of", "not between"},
	{`{"items":[{"name":"a","ttl":"2s"}]}`, "items[0].ttl", "is not known"},
	{`{"items":["a"]}`, "items[0]", "is no JSON object"},
	{`{"items":{}}`, "items", "is no list"},
	{`{"name":"a","items":[{"name":"b"}]}`, "items", "give either"},
	{`{"name":"a","ticket":1}`, "session", "is missing"},
	{`{"name":"a",` + inSession + `}`, "ticket", "numbered from 1"},
	{`{"name":"a","ticket":1,"session":"1"}`, "secret", "0 bytes"},
	{`{"name":"a","ticket":1,"session":"1","secret":"abc"}`, "secret", "32 hexadecimal digits"},
	{`{"name":"a","ticket":1,"ttl":"9s",` + inSession + `}`, "session",
		"belong to a session of its own"},
	{`{"name":"a","ticket":1,"poll":"900000h",` + inSession + `}`, "poll", "not between"},
	{`{"session":-1}`, "session", "2^64-1"},
	{`{"session":18446744073709551616}`, "session", "2^64-1"},
	{`{"session":1.5}`, "session", "2^64-1"},
	{`{"session":{}}`, "session", "2^64-1"},
}

// Every field that is wrong is named as the request has it, at each node, and nothing is done.
func TestWrongRequestsNameTheirField(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, serveHTTP)
	ctx := soon(t)
	for _, n := range []*Node{c.follower(), c.leader()} {
		for _, r := range wrongAcquisitions {
			answer := send(ctx, t, n, "POST", "/v1/acquire", r.body)
			assert.Equal(t, 400, answer.code, "%s: %s", r.body, answer.text)
			assert.Equal(t, r.field, answer.fields["field"], "%.200s: %s", r.body, answer.text)
			message, _ := answer.fields["message"].(string)
			assert.Contains(t, message, r.says, r.body)
			assert.True(t, strings.HasPrefix(message, r.field+": "), message)
			assert.Equal(t, "not_done", answer.fields["outcome"])
		}
		for path, field := range map[string]string{
			"/v1/lock": "name", "/v1/lock?name=": "name", "/v1/lock?name=a&name=b": "name",
			"/v1/lock?nmae=a":   "nmae",
			"/v1/lock?name=%ff": "name", "/v1/lock?name=%zz": "query", "/v1/lock?name=a;b": "query",
			"/v1/lock?name=a%00":        "name",
			"/v1/lock?name=a&limit=201": "limit", "/v1/lock?name=a&limit=-1": "limit",
			"/v1/locks?limit=1001":                        "limit",
			"/v1/locks?prefix=%c3%28":                     "prefix",
			"/v1/locks?after=" + strings.Repeat("a", 513): "after",
			"/v1/check?name=a":                            "token",
			"/v1/check?name=a&token=x":                    "token",
			"/v1/check?name=a&token=99999999999999999999": "token",
			"/v1/check?name=a&token=9999999999999999999":  "token",
			"/v1/check?name=a&token=1&ticket=1":           "ticket",
			"/v1/watch?from=-1":                           "from", "/v1/watch?prefix=%ff": "prefix",
			"/v1/sessions?after=x": "after", "/v1/now?x=1": "x",
			"/v1/hold?name=%ff": "name", "/v1/hold?name=a&secret=1": "secret",
			"/v1/hold?name=a&ttl=2s&ttl=3s": "ttl",
		} {
			answer := send(ctx, t, n, "GET", path, "")
			assert.Equal(t, 400, answer.code, "%s: %s", path, answer.text)
			assert.Equal(t, field, answer.fields["field"], "%s: %s", path, answer.text)
		}
		large := send(ctx, t, n, "POST", "/v1/acquire",
			`{"name":"`+strings.Repeat("a", 64<<10)+`"}`)
		assert.Equal(t, 413, large.code, large.text)
		assert.Equal(t, "query", send(ctx, t, n, "POST", "/v1/acquire?name=a", "").fields["field"])
		for _, method := range []string{"GET", "DELETE"} {
			unread := send(ctx, t, n, method,
				map[string]string{"GET": "/v1/hold?name=a", "DELETE": "/v1/sessions/1"}[method],
				"{}")
			assert.Equal(t, 400, unread.code, unread.text)
			assert.Equal(t, "body", unread.fields["field"])
		}
		inAddress := send(ctx, t, n, "DELETE", "/v1/sessions/1?secret="+strings.Repeat("0", 32), "")
		assert.Equal(t, 400, inAddress.code, inAddress.text)
		assert.Equal(t, "secret", inAddress.fields["field"])
		for path, header := range map[string]string{
			"/v1/lock?name=a&secret=5ec4e7":           "Zamok-Secret",
			"/v1/lock?name=a&access_token=5ec4e7":     "Authorization",
			"/v1/status?Authorization=Bearer+5ec4e7":  "Authorization",
			"/v1/hold?name=a&Idempotency-Key=5ec4e7":  "Idempotency-Key",
			"/v1/sessions/1/renew?secret=5ec4e7":      "Zamok-Secret",
			"/v1/terraform/lock?name=a&secret=5ec4e7": "Zamok-Secret",
		} {
			method := map[bool]string{true: "POST", false: "GET"}[strings.Contains(path, "renew")]
			if strings.Contains(path, "terraform") {
				method = "LOCK"
			}
			answer := send(ctx, t, n, method, path, "")
			assert.Equal(t, 400, answer.code, "%s: %s", path, answer.text)
			assert.Contains(t, answer.text, "send it in the header "+header, path)
			assert.NotContains(t, answer.text, "5ec4e7", path)
		}
		assert.NotContains(t, send(ctx, t, n, "GET", "/v1/check?name=a&token=5ec4e7", "").text,
			"5ec4e7", "a token of another kind, perhaps")
		assert.Equal(t, 400, send(ctx, t, n, "GET", "/v1/watch", "", "Last-Event-ID", "x").code)
	}
	assert.Zero(t, sessionsOf(c.leader()))
}

// Names are any text: in a body and in a query, and back.
func TestNamesOfAllKinds(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, serveHTTP)
	ctx, n := soon(t), c.leader()
	for _, name := range []string{
		"account/200", "/", "a//b/../c", `"quoted" \ back`, "ключ 鍵 🔑", "a b+c%2fd?e&f#g",
		"<script>&amp;", strings.Repeat("é", 256), "\u2028", "\ufffd",
	} {
		quoted := fmt.Sprintf("%q", name)
		if strings.ContainsAny(name, "\u2028\ufffd") {
			quoted = `"` + name + `"`
		}
		taken := send(ctx, t, n, "POST", "/v1/acquire", `{"name":`+quoted+`}`)
		require.Equal(t, 200, taken.code, taken.text)
		shown := send(ctx, t, n, "GET", "/v1/lock?name="+url.QueryEscape(name), "")
		assert.Equal(t, name, shown.fields["name"])
		assert.EqualValues(t, 1, shown.fields["holders"], name)
		require.Equal(t, 200, send(ctx, t, n, "POST", "/v1/release", taken.text).code)
		held := listen(ctx, t, n, hold(name))
		assert.Equal(t, []any{name}, held.next("granted").data["name"])
		held.cut()
	}
	var names []string
	for i := range 64 {
		names = append(names, fmt.Sprintf(`{"name":"item/%02d"}`, i))
	}
	all := send(ctx, t, n, "POST", "/v1/acquire",
		`{"items":[`+strings.Join(names, ",")+`],"label":null}`)
	require.Equal(t, 200, all.code, all.text)
	page := send(ctx, t, n, "GET", "/v1/locks?prefix=item/&limit=60", "")
	assert.Equal(t, "item/59", page.fields["next"])
	page = send(ctx, t, n, "GET", "/v1/locks?prefix=item/&limit=60&after=item/59", "")
	assert.Len(t, page.fields["locks"], 4)
	assert.NotContains(t, page.fields, "next")
	permits := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"pool","permits":2,"of":3}`)
	require.Equal(t, 200, permits.code, permits.text)
	refused := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"pool","permits":2,"of":3}`)
	assert.Equal(t, 409, refused.code, refused.text)
	mismatch := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"pool"}`)
	assert.Equal(t, "kind_mismatch", mismatch.fields["code"], mismatch.text)
}

// What belongs to a session: its ticket, its secret in either place, and errors of the leader at
// another node.
func TestTicketsOverHTTP(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, serveHTTP)
	ctx := soon(t)
	for i, n := range []*Node{c.follower(), c.leader()} {
		name := fmt.Sprintf("tickets/%d", i)
		opened := send(ctx, t, n, "POST", "/v1/sessions", `{"ttl":"20s"}`)
		id, secret := opened.fields["session"].(string), opened.fields["secret"].(string)
		again := send(ctx, t, n, "POST", "/v1/sessions", `{"ttl":"20s","secret":"`+secret+`"}`)
		assert.Equal(t, id, again.fields["session"], "a repetition with the secret finds it")
		post := func(path, body string, want int, headers ...string) fields {
			t.Helper()
			r := send(ctx, t, n, "POST", path, body, headers...)
			require.Equal(t, want, r.code, r.text)
			return r.fields
		}
		ticket := `{"session":` + id + `,"ticket":"1"` // a number is read as well as its text
		acquire := ticket + `,"name":"` + name + `"}`
		granted := post("/v1/acquire", acquire, 200, "Zamok-Secret", secret)
		assert.Equal(t, granted["token"],
			post("/v1/acquire", acquire, 200, "Zamok-Secret", secret)["token"],
			"each ticket acts once")
		post("/v1/acquire", acquire, 403, "Zamok-Secret", strings.Repeat("a", 32))
		post("/v1/acquire", acquire, 400, "Zamok-Secret", secret, "Idempotency-Key", newKey())

		blocked := post("/v1/acquire", `{"session":`+id+`,"ticket":2,"name":"`+name+`"}`, 409,
			"Zamok-Secret", secret)
		assert.Equal(t, "not_acquired", blocked["code"])
		assert.Equal(t, "not_done", blocked["outcome"])
		assert.Equal(t, granted["token"], blocked["blockers"].([]any)[0].(fields)["token"],
			"the leader's details arrive")

		post("/v1/downgrade", ticket+`}`, 403, "Zamok-Secret", strings.Repeat("a", 32))
		post("/v1/downgrade", ticket+`}`, 200, "Zamok-Secret", secret)
		shared := post("/v1/acquire",
			`{"session":`+id+`,"ticket":3,"name":"`+name+`","mode":"shared","secret":"`+secret+`"}`,
			200)
		check := "/v1/check?name=" + name + "&token=" + shared["token"].(string) + "&session=" +
			id + "&ticket="
		assert.Equal(t, true, send(ctx, t, n, "GET", check+"3", "").fields["held"])
		assert.Equal(t, false, send(ctx, t, n, "GET", check+"2", "").fields["held"])

		post("/v1/renew", `{"session":`+id+`}`, 403, "Zamok-Secret", strings.Repeat("a", 32))
		post("/v1/release", ticket+`}`, 403, "Zamok-Secret", strings.Repeat("a", 32))
		ended := post("/v1/release", ticket+`}`, 200, "Zamok-Secret", secret)
		assert.Equal(t, "ended", ended["state"])
		assert.Equal(t, granted["token"], ended["token"])
		assert.Equal(t, ended, post("/v1/release", ticket+`}`, 200, "Zamok-Secret", secret),
			"may be repeated")
		post("/v1/acquire", acquire, 410, "Zamok-Secret", secret)

		other := post("/v1/acquire", `{"name":"other"}`, 409, "Zamok-Cluster",
			strings.Repeat("0", 32))
		assert.Equal(t, "wrong_cluster", other["code"])
		assert.Equal(t, "unknown", other["outcome"], "another node may have done it for a proxy")
		cluster := send(ctx, t, n, "GET", "/v1/members", "").fields["cluster"].(string)
		post("/v1/renew", `{"session":`+id+`}`, 200, "Zamok-Cluster", cluster,
			"Zamok-Secret", secret)

		require.Equal(t, 200, send(ctx, t, n, "DELETE", "/v1/sessions/"+id, "", "Zamok-Secret",
			secret).code)
		again = send(ctx, t, n, "DELETE", "/v1/sessions/"+id, "", "Zamok-Secret", secret)
		assert.Equal(t, 200, again.code, "may be repeated")
		assert.Equal(t, "closed", again.fields["reason"])
		post("/v1/sessions/"+id+"/renew", "", 410, "Zamok-Secret", secret)
		assert.Equal(t, 400, send(ctx, t, n, "DELETE", "/v1/sessions/x", "").code)
	}
}

// Web pages of other sites are refused, by whatever a browser says of them.
func TestPagesOfOtherSitesAreRefused(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, func(cfg *NodeConfig) {
		cfg.ListenHTTP, cfg.HTTPHosts = "127.0.0.1:0", []string{"locks.example"}
	})
	ctx, n := soon(t), c.leader()
	const browser = "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/130.0"
	for _, r := range []struct {
		headers []string
		code    int
	}{
		{nil, 200},
		{[]string{"Host", "localhost:5752"}, 200}, {[]string{"Host", "LOCALHOST"}, 200},
		{[]string{"Host", "127.0.0.1"}, 200},
		{[]string{"Host", "[::1]:5752"}, 200}, {[]string{"Host", "192.168.0.7:5752"}, 200},
		{[]string{"Host", "locks.example"}, 200},
		{[]string{"Host", "Locks.Example:80"}, 200},
		{[]string{"Host", "evil.example"}, 403}, {[]string{"Host", "evil.example:5752"}, 403},
		{[]string{"Host", "localhost.evil.example"}, 403},
		{[]string{"Host", "127.0.0.1.evil.example"}, 403},
		{[]string{"Host", "xlocks.example"}, 403},
		{[]string{"Origin", "http://evil.example"}, 403}, {[]string{"Origin", "null"}, 403},
		{[]string{"Origin", "http://localhost"}, 403},
		{[]string{"Host", "localhost:5752", "Origin", "http://localhost:5752"}, 200},
		{[]string{"Host", "localhost:5752", "Origin", "http://localhost:3000"}, 403},
		{[]string{"Host", "localhost:5752", "Origin", "http://localhost:5752.evil.example"}, 403},
		{[]string{"Sec-Fetch-Site", "same-origin"}, 200}, {[]string{"Sec-Fetch-Site", "none"}, 200},
		{[]string{"Sec-Fetch-Site", "same-site"}, 403},
		{[]string{"Sec-Fetch-Site", "cross-site"}, 403},
		{[]string{"User-Agent", browser, "Sec-Fetch-Site", "none"}, 200},
		{[]string{"User-Agent", browser, "Host", "localhost:5752", "Referer",
			"http://localhost:5752/ui/"}, 200},
		{[]string{"User-Agent", browser, "Host", "localhost:5752", "Referer",
			"http://evil.example/"}, -403},
		{[]string{"User-Agent", browser}, -403}, {[]string{"User-Agent", "curl/8.5.0"}, 200},
	} {
		for _, path := range []string{"/v1/now", "/v1/locks"} {
			answer := send(ctx, t, n, "GET", path, "", r.headers...)
			want := r.code
			if want < 0 { // only what takes a lock is refused
				want = 200
			}
			assert.Equal(t, want, answer.code, "%s %v: %s", path, r.headers, answer.text)
			if want == 403 {
				assert.Equal(t, "denied", answer.fields["code"])
			}
		}
		if r.code == 200 {
			continue
		}
		before := sessionsOf(n)
		refused := send(ctx, t, n, "GET", "/v1/hold?name=page", "", r.headers...)
		assert.Equal(t, 403, refused.code, "%v: %s", r.headers, refused.text)
		if r.code == 403 {
			assert.Equal(t, 403, send(ctx, t, n, "POST", "/v1/acquire", `{"name":"page"}`,
				r.headers...).code, r.headers)
		}
		assert.Equal(t, before, sessionsOf(n))
	}
}

// Only the methods of the table are served. A HEAD takes no lock, and streams nothing.
func TestMethodsOfTheTable(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, serveHTTP)
	ctx, n := soon(t), c.leader()
	for _, r := range []struct {
		method, path string
		code         int
		allow        string
	}{
		{"HEAD", "/v1/now", 200, ""}, {"HEAD", "/v1/hold?name=head", 405, "GET"},
		{"HEAD", "/v1/watch", 405, "GET"},
		{"HEAD", "/v1/admin/backup", 405, "GET"}, {"HEAD", "/v1/acquire", 405, "POST"},
		{"OPTIONS", "/v1/acquire", 405, "POST"},
		{"GET", "/v1/acquire", 405, "POST"}, {"PATCH", "/v1/sessions", 405, "POST, GET"},
		{"POST", "/v1/sessions/1", 405, "DELETE"},
		{"GET", "/v1/sessions/1/renew", 405, "POST"}, {"POST", "/v1/hold", 405, "GET"},
		{"GET", "/v1/", 404, ""}, {"GET", "/v1/nothing", 404, ""},
		{"GET", "/v1/sessions/1/2", 404, ""}, {"POST", "/v1/openapi.json", 405, "GET"},
		{"GET", "/v2/now", 404, ""},
	} {
		answer := send(ctx, t, n, r.method, r.path, "")
		assert.Equal(t, r.code, answer.code, "%s %s: %s", r.method, r.path, answer.text)
		assert.Equal(t, r.allow, answer.header.Get("Allow"), r.path)
		if strings.HasPrefix(r.path, "/v1/") {
			assert.Equal(t, "nosniff", answer.header.Get("X-Content-Type-Options"), r.path)
		}
	}
	assert.Zero(t, sessionsOf(n))
}

// wireTo is a plain connection to a node's HTTP port.
func wireTo(t testing.TB, n *Node) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", n.HTTP())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn, bufio.NewReader(conn)
}

// readAnswer reads the next answer of a connection.
func readAnswer(t testing.TB, from *bufio.Reader) (code int, body string) {
	t.Helper()
	answer, err := http.ReadResponse(from, nil)
	require.NoError(t, err)
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, string(text)
}

// A connection serves many requests, one after another or sent ahead, and clients of HTTP/1.0 are
// served as well.
func TestConnectionsOfAllKinds(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, serveHTTP)
	ctx, n := soon(t), c.leader()
	post := func(path, body string) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s",
			path, len(body), body)
	}
	conn, answers := wireTo(t, n)
	for range 50 {
		_, err := io.WriteString(conn, post("/v1/acquire", `{"name":"cycle"}`))
		require.NoError(t, err)
		code, text := readAnswer(t, answers)
		require.Equal(t, 200, code, text)
		_, err = io.WriteString(conn, post("/v1/release", text))
		require.NoError(t, err)
		code, text = readAnswer(t, answers)
		require.Equal(t, 200, code, text)
	}
	_, err := io.WriteString(conn,
		post("/v1/acquire", `{"name":"first"}`)+post("/v1/acquire", `{"name":3}`)+
			post("/v1/acquire", `{"name":"first"}`))
	require.NoError(t, err)
	for _, want := range []int{200, 400, 409} {
		code, text := readAnswer(t, answers)
		assert.Equal(t, want, code, text)
	}

	conn, answers = wireTo(t, n)
	_, err = io.WriteString(conn, "GET /v1/now HTTP/1.0\r\n\r\n")
	require.NoError(t, err)
	code, text := readAnswer(t, answers)
	assert.Equal(t, 200, code, text)
	_, err = answers.ReadByte()
	assert.ErrorIs(t, err, io.EOF)

	conn, answers = wireTo(t, n)
	_, err = io.WriteString(conn, "GET /v1/hold?name=old HTTP/1.0\r\n\r\n")
	require.NoError(t, err)
	for line := ""; !strings.HasPrefix(line, "event: granted"); {
		line, err = answers.ReadString('\n')
		require.NoError(t, err)
	}
	waits := listen(ctx, t, n, hold("old"))
	waits.next("queued")
	require.NoError(t, conn.Close())
	waits.next("granted")
}

// What the client sends ahead of the answer hides from the server that the connection has ended:
// the wait goes on, and a lock that is granted then ends with its ttl (api/web, W3).
func TestARequestSentAheadHidesTheEnd(t *testing.T) {
	takesTime(t)
	t.Parallel()
	c := startCluster(t, 1, serveHTTP)
	ctx, n := soon(t), c.leader()
	holder := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"ahead"}`)
	conn, _ := wireTo(t, n)
	body := `{"name":"ahead","wait":"30s","ttl":"2s"}`
	_, err := fmt.Fprintf(conn,
		"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s",
		len(body), body)
	require.NoError(t, err)
	lockIs(ctx, t, n, "ahead", 1, 1)
	_, err = io.WriteString(conn, "GET")
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	next, _ := inBackground(ctx, t, n, "/v1/acquire", `{"name":"ahead","wait":"30s"}`)
	lockIs(ctx, t, n, "ahead", 1, 2)
	require.Equal(t, 200, send(ctx, t, n, "POST", "/v1/release", holder.text).code)
	granted := answered(t, next)
	assert.Equal(t, 200, granted.code, granted.text)
	n.Raft().View(func(m *fsm.Machine) { require.NoError(t, m.Check()) })
}

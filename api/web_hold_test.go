package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// serverEvent is one Server-Sent Event.
type serverEvent struct {
	name, id string
	data     fields
}

// listening is a stream of events, each checked against the description.
type listening struct {
	testing.TB
	path    string
	answer  *http.Response
	cut     func()
	events  chan serverEvent // closed at the end
	refused reply            // instead of a stream
}

// listen requests a stream of events; headers are pairs.
func listen(ctx context.Context, t testing.TB, n *Node, path string, headers ...string) *listening {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, "GET", "http://"+n.HTTP()+path, nil)
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	hurry := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := hurry.Do(request)
	require.NoError(t, err)
	l := &listening{TB: t, path: request.URL.Path, answer: answer, cut: cancel,
		events: make(chan serverEvent, 1000)}
	if answer.StatusCode != http.StatusOK {
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		_ = answer.Body.Close()
		l.refused = reply{code: answer.StatusCode, header: answer.Header, text: string(text)}
		require.NoError(t, json.Unmarshal(text, &l.refused.fields))
		described(t).checkAnswer(t, "GET", l.path, l.refused)
		return l
	}
	require.Equal(t, "text/event-stream", answer.Header.Get("Content-Type"))
	require.Equal(t, "no-store", answer.Header.Get("Cache-Control"))
	require.Equal(t, "no", answer.Header.Get("X-Accel-Buffering"))
	go l.read()
	return l
}

func (l *listening) read() {
	defer close(l.events)
	defer l.answer.Body.Close()
	var e serverEvent
	for lines := bufio.NewScanner(l.answer.Body); lines.Scan(); {
		switch name, value, _ := strings.Cut(lines.Text(), ": "); name {
		case "event":
			e.name = value
		case "id":
			e.id = value
		case "data":
			if !assert.NoError(l, json.Unmarshal([]byte(value), &e.data), value) {
				return
			}
		case "":
			if e.name != "" {
				l.events <- e
			}
			e = serverEvent{}
		}
	}
}

// any is the next event, whatever it is; its name is "" at the end.
func (l *listening) any() serverEvent {
	l.Helper()
	if l.refused.code != 0 {
		require.FailNow(l, "refused", l.refused.text)
	}
	select {
	case e, more := <-l.events:
		if more {
			d := described(l)
			ok := d.operation("GET", l.path)["responses"].(fields)["200"].(fields)
			media := ok["content"].(fields)["text/event-stream"].(fields)
			schema := media["x-events"].(fields)[e.name]
			require.NotNil(l, schema, "the event %s is not described", e.name)
			require.NoError(l, d.check(e.name, schema, e.data))
		}
		return e
	case <-time.After(patience):
		require.FailNow(l, "no event came in time")
		return serverEvent{}
	}
}

// next is the next event that is neither a heartbeat nor a position, unless such a one is wanted.
func (l *listening) next(want string) serverEvent {
	l.Helper()
	e := l.any()
	for e.name != want && (e.name == "heartbeat" || e.name == "queued") {
		e = l.any()
	}
	require.Equal(l, want, e.name, "%v", e.data)
	return e
}

func hold(name string) string { return "/v1/hold?name=" + url.QueryEscape(name) }

// A lock is held for as long as its connection lives: it is renewed beyond its ttl, and a waiter
// has it at once when the connection ends.
func TestHoldLivesAsItsConnection(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, serveHTTP)
	ctx, n := soon(t), c.leader()
	first := listen(ctx, t, n, hold("held")+"&ttl=2s")
	granted := first.next("granted")
	began := time.Now()
	second := listen(ctx, t, n, hold("held"))
	third := listen(ctx, t, n, hold("held"))
	assert.EqualValues(t, 0, second.next("queued").data["ahead"])
	assert.EqualValues(t, 1, third.next("queued").data["ahead"])
	for time.Since(began) < 3*time.Second {
		left, err := time.ParseDuration(first.next("heartbeat").data["valid_for"].(string))
		require.NoError(t, err)
		assert.Greater(t, left, time.Second)
		assert.LessOrEqual(t, left, 2*time.Second)
	}
	cut := time.Now()
	first.cut()
	after := second.next("granted")
	assert.Less(t, time.Since(cut), time.Second)
	assert.NotEqual(t, granted.data["session"], after.data["session"])
	assert.EqualValues(t, 0, third.next("queued").data["ahead"])
	second.cut()
	third.next("granted")
	list := send(ctx, t, n, "GET", "/v1/sessions", "")
	require.Eventually(t, func() bool {
		list = send(ctx, t, n, "GET", "/v1/sessions", "")
		return len(list.fields["sessions"].([]any)) == 1
	}, patience, 5*time.Millisecond, list.text)
}

// What ends a hold is said: by a status if nothing was sent before, and else by an event.
func TestHoldSaysHowItEnded(t *testing.T) {
	takesTime(t)
	t.Parallel()
	c := startCluster(t, 3, serveHTTP)
	ctx := soon(t)
	for _, n := range []*Node{c.follower(), c.leader()} {
		expired := listen(ctx, t, n, hold("expired by operator"))
		session := expired.next("granted").data["session"].(string)
		require.Equal(t, 200, send(ctx, t, n, "POST", "/v1/admin/expire",
			`{"session":"`+session+`","reason":"a test"}`).code)
		assert.Equal(t, fields{"reason": "expired_by_operator", "text": "a test"},
			expired.next("lost").data)
		assert.Empty(t, expired.any().name, "lost is the last event")

		forced := listen(ctx, t, n, hold("forced"))
		token := forced.next("granted").data["token"].(string)
		require.Equal(t, 200, send(ctx, t, n, "POST", "/v1/admin/release",
			`{"name":"forced","token":"`+token+`","reason":"too long"}`).code)
		assert.Equal(t, fields{"reason": "force_released", "text": "too long"},
			forced.next("lost").data)

		short := listen(ctx, t, n, hold("short")+"&max_hold=100ms")
		short.next("granted")
		assert.Equal(t, "max_hold_exceeded", short.next("lost").data["reason"])

		holder := listen(ctx, t, n, hold("taken"))
		holder.next("granted")
		at := time.Now()
		refused := listen(ctx, t, n, hold("taken")+"&wait=0s").refused
		assert.Equal(t, 409, refused.code)
		assert.Equal(t, "not_acquired", refused.fields["code"])
		assert.NotEmpty(t, refused.fields["blockers"])
		assert.Less(t, time.Since(at), 5*time.Second)
		waited := listen(ctx, t, n, hold("taken")+"&wait=1s")
		waited.next("queued")
		over := waited.next("error")
		assert.Equal(t, "not_acquired", over.data["code"])
		assert.Equal(t, "wait_timeout", over.data["reason"])
		assert.Equal(t, "not_done", over.data["outcome"])

		several := listen(ctx, t, n, hold("one")+"&name=two&mode=shared")
		assert.Equal(t, []any{"one", "two"}, several.next("granted").data["name"])
		for path, field := range map[string]string{
			"/v1/hold": "name", "/v1/hold?name=": "name", hold("a") + "&ttl=1s": "ttl",
			hold("a") + "&name=a":    "name",
			hold("a") + "&wait=soon": "wait", hold("a") + "&permits=1&of=0": "of",
			hold("a") + "&max_hold=900000h": "max_hold",
		} {
			refused := listen(ctx, t, n, path).refused
			assert.Equal(t, 400, refused.code, path)
			assert.Equal(t, field, refused.fields["field"], "%s: %s", path, refused.text)
		}
		holder.cut()
		several.cut()
	}
}

// The leader is killed while a node that lives on holds a lock for a connection: the same token, no
// second event.
func TestHoldOutlivesTheLeader(t *testing.T) {
	takesTime(t)
	t.Parallel()
	c := startCluster(t, 3, serveHTTP)
	ctx, n := soon(t), c.follower()
	held := listen(ctx, t, n, hold("steady"))
	token := held.next("granted").data["token"].(string)
	waits := listen(ctx, t, n, hold("steady"))
	waits.next("queued")
	require.NoError(t, c.leader().Kill())
	for e := held.any(); e.name != "heartbeat"; e = held.any() {
		require.Equal(t, "heartbeat", e.name, "%v", e.data)
	}
	check := sendWhenLed(ctx, t, n, "GET", "/v1/check?name=steady&token="+token, "")
	assert.Equal(t, true, check.fields["held"], check.text)
	held.cut()
	assert.Greater(t, waits.next("granted").data["token"].(string), token)
}

// No answer says that a lock is certain for longer than its max_hold.
func TestCertaintyEndsWithTheMaximumHold(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, serveHTTP)
	ctx, n := soon(t), c.leader()
	certain := func(of fields) time.Duration {
		d, err := time.ParseDuration(of["valid_for"].(string))
		require.NoError(t, err)
		return d
	}
	first := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"brief","max_hold":"10s","ttl":"15s"}`)
	require.Equal(t, 200, first.code, first.text)
	assert.Equal(t, "9.5s", first.fields["valid_for"])
	assert.NotContains(t, first.fields, "hold_left", "one number says how long the lock is certain")
	renewed := send(ctx, t, n, "POST", "/v1/renew", first.text)
	require.Equal(t, 200, renewed.code, renewed.text)
	assert.LessOrEqual(t, certain(renewed.fields), 9500*time.Millisecond)
	opened := send(ctx, t, n, "POST", "/v1/sessions", `{"ttl":"15s"}`)
	in := fmt.Sprintf(`"session":%q,"secret":%q,"ticket":"1"`, opened.fields["session"],
		opened.fields["secret"])
	require.Equal(t, 200, send(ctx, t, n, "POST", "/v1/acquire",
		`{"name":"in a session","max_hold":"10s",`+in+`}`).code)
	assert.LessOrEqual(t, certain(send(ctx, t, n, "POST", "/v1/renew", "{"+in+"}").fields),
		9500*time.Millisecond)
	whole := send(ctx, t, n, "POST", "/v1/sessions/"+opened.fields["session"].(string)+"/renew", "",
		"Zamok-Secret", opened.fields["secret"].(string))
	assert.Equal(t, "14.25s", whole.fields["valid_for"], "the session lives on")
	tiny := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"tiny","max_hold":"100ms"}`)
	require.Equal(t, 200, tiny.code, tiny.text)
	assert.Equal(t, "0s", tiny.fields["valid_for"], "it is there, also when nothing is certain")

	held := listen(ctx, t, n, hold("held")+"&max_hold=4s&ttl=6s")
	assert.LessOrEqual(t, certain(held.next("granted").data), 4*time.Second)
	assert.LessOrEqual(t, certain(held.next("heartbeat").data), 4*time.Second)
	held.cut()
}

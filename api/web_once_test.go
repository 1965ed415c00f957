package api

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/gate"
	"zamok/clock"
	"zamok/fsm"
)

// newKey is an Idempotency-Key.
func newKey() string { return hex.EncodeToString(newSecret()) }

// inBackground sends a request on a goroutine of its own; the function that it returns breaks its
// connection.
func inBackground(ctx context.Context, t testing.TB, n *Node, path, body string,
	headers ...string) (<-chan reply, func()) {
	ctx, cut := context.WithCancel(ctx)
	t.Cleanup(cut)
	done := make(chan reply, 1)
	request, err := http.NewRequestWithContext(ctx, "POST", "http://"+n.HTTP()+path,
		strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	go func() {
		hurry := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		answer, err := hurry.Do(request)
		if err != nil {
			close(done)
			return
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		done <- reply{code: answer.StatusCode, header: answer.Header, text: string(text)}
	}()
	return done, cut
}

// answered waits for an answer.
func answered(t testing.TB, done <-chan reply) reply {
	t.Helper()
	select {
	case r, ok := <-done:
		require.True(t, ok, "the connection broke")
		return r
	case <-time.After(patience):
		require.FailNow(t, "no answer in time")
		return reply{}
	}
}

// lockIs waits until a lock has so many holders and waiters, and returns it.
func lockIs(ctx context.Context, t testing.TB, n *Node, name string, holders, waiters int) fields {
	t.Helper()
	var r reply
	require.Eventually(t, func() bool {
		r = send(ctx, t, n, "GET", "/v1/lock?name="+name, "")
		return r.code == 200 && r.fields["holders"] == float64(holders) &&
			r.fields["waiters"] == float64(waiters)
	}, patience, 5*time.Millisecond, "%s: not %d holders and %d waiters", name, holders, waiters)
	return r.fields
}

// sessionsOf counts the sessions alive.
func sessionsOf(n *Node) int {
	count := 0
	n.Raft().View(func(m *fsm.Machine) { count = len(m.Sessions(0, 1000)) })
	return count
}

// W4: the same key has the same session, at any node, as long as that lives.
func TestAKeyNamesOneAcquisition(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, serveHTTP)
	ctx, leader, key := soon(t), c.leader(), newKey()
	const body = `{"name":"once","ttl":"20s"}`
	killed := leader
	first := send(ctx, t, leader, "POST", "/v1/acquire", body, "Idempotency-Key", key)
	require.Equal(t, 200, first.code, first.text)
	for _, n := range c.nodes {
		again := send(ctx, t, n, "POST", "/v1/acquire", ` {"ttl": "20s", "name": "once"} `,
			"Idempotency-Key", key)
		require.Equal(t, 200, again.code, again.text)
		for _, same := range []string{"session", "secret", "token", "ttl"} {
			assert.Equal(t, first.fields[same], again.fields[same])
		}
		other := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"once","ttl":"21s"}`,
			"Idempotency-Key", key)
		assert.Equal(t, 409, other.code)
		assert.Equal(t, "key_reused", other.fields["code"])
		assert.Equal(t, "not_done", other.fields["outcome"])
	}
	assert.Equal(t, true, send(ctx, t, leader, "GET",
		"/v1/check?name=once&token="+first.fields["token"].(string), "").fields["held"],
		"another request under the key has not ended it")

	require.NoError(t, leader.Kill())
	for _, n := range c.nodes {
		if n != killed {
			again := sendWhenLed(ctx, t, n, "POST", "/v1/acquire", body, "Idempotency-Key", key)
			require.Equal(t, 200, again.code, again.text)
			assert.Equal(t, first.fields["token"], again.fields["token"])
			leader = n
		}
	}
	require.Equal(t, 200, send(ctx, t, leader, "POST", "/v1/release", first.text).code)
	late := send(ctx, t, leader, "POST", "/v1/acquire", body, "Idempotency-Key", key)
	assert.Equal(t, 410, late.code, "it would take the lock for nobody: %s", late.text)
	assert.Equal(t, "closed", late.fields["reason"])
	assert.Equal(t, "not_done", late.fields["outcome"])
	lockIs(ctx, t, leader, "once", 0, 0)
	fresh := send(ctx, t, leader, "POST", "/v1/acquire", body, "Idempotency-Key", newKey())
	require.Equal(t, 200, fresh.code, fresh.text)
	assert.Greater(t, fresh.fields["token"], first.fields["token"])
}

// W1: a release is repeated, also at another leader. It is answered 200 again only because the
// cluster remembers that the lock's owner has released it. If the lock was lost, no change of the
// leader hides that.
func TestARepeatedReleaseIsAnsweredAsItEnded(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, serveHTTP)
	ctx, leader, n := soon(t), c.leader(), c.follower()
	acquire := func(name, more string) reply {
		held := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"`+name+`","ttl":"1m"`+more+`}`,
			"Idempotency-Key", newKey())
		require.Equal(t, 200, held.code, held.text)
		return held
	}
	released, lost, held := acquire("released", ""), acquire("lost", ""),
		acquire("held", `,"max_hold":"1ms"`)
	left := `{"session":"` + held.fields["session"].(string) + `","secret":"` +
		held.fields["secret"].(string) + `"}`
	expired := send(ctx, t, n, "POST", "/v1/admin/expire",
		`{"session":"`+lost.fields["session"].(string)+`","reason":"a test"}`)
	require.Equal(t, 200, expired.code, expired.text)
	require.Equal(t, 200, send(ctx, t, n, "POST", "/v1/acquire", `{"name":"lost"}`).code,
		"another has it")
	for _, hold := range []reply{released, held} {
		require.Equal(t, 200, send(ctx, t, n, "POST", "/v1/release", hold.text).code)
	}
	waits := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"lost","wait":"1m","poll":"1ms"}`,
		"Idempotency-Key", newKey())
	require.Equal(t, 202, waits.code, waits.text)
	require.Equal(t, 200, send(ctx, t, n, "POST", "/v1/release", waits.text).code,
		"it leaves the queue")

	require.NoError(t, leader.Kill())
	for range 2 {
		for _, test := range []struct {
			of     string
			code   int
			reason any
		}{
			{released.text, 200, "dropped"}, {lost.text, 410, "expired_by_operator"},
			{held.text, 200, "max_hold_exceeded"}, {left, 200, "closed"},
			{waits.text, 200, "closed"},
			{`{"session":"7","secret":"5d41402abc4b2a76b9719d911017c592","token":"9"}`, 410, nil},
			{`{"session":"7","secret":"` + released.fields["secret"].(string) + `","token":"9"}`,
				410, nil},
			{`{"session":"` + released.fields["session"].(string) +
				`","secret":"5d41402abc4b2a76b9719d911017c592","token":"9"}`, 410, nil},
		} {
			again := sendWhenLed(ctx, t, n, "POST", "/v1/release", test.of)
			assert.Equal(t, test.code, again.code, "%s: %s", test.of, again.text)
			assert.Equal(t, test.reason, again.fields["reason"], "%s: %s", test.of, again.text)
		}
	}
}

// Keys that can be guessed are refused, and an empty one differs from none.
func TestKeysThatCanBeGuessed(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, serveHTTP)
	ctx, n := soon(t), c.leader()
	for _, key := range []string{
		"", "1", "order-4711", "0123456789abcdef", "550e8400-e29b-41d4-a716-446655440000",
		strings.Repeat("ab", 16),
		strings.Repeat("0", 64), strings.Repeat("abcdefgh", 40), "with space " + newKey(),
		newKey() + "é", "0123456789abcdefghijk",
	} {
		r := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"guess"}`, "Idempotency-Key", key)
		assert.Equal(t, 400, r.code, "%q: %s", key, r.text)
		assert.Equal(t, "Idempotency-Key", r.fields["field"], key)
	}
	assert.Zero(t, sessionsOf(n))
	for _, key := range []string{newKey(), strings.ToUpper(newKey()), "Zm9vYmFyYmF6cXV4MTIzNA==",
		newKey() + newKey()} {
		r := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"good `+key+`"}`,
			"Idempotency-Key", key)
		assert.Equal(t, 200, r.code, "%q: %s", key, r.text)
	}
	request, err := http.NewRequestWithContext(ctx, "POST", "http://"+n.HTTP()+"/v1/acquire",
		strings.NewReader(`{"name":"two keys"}`))
	require.NoError(t, err)
	request.Header["Idempotency-Key"] = []string{newKey(), newKey()}
	answer, err := http.DefaultTransport.RoundTrip(request)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	assert.Equal(t, 400, answer.StatusCode)
	http.DefaultClient.CloseIdleConnections()
}

// Two calls with one key wait, at two nodes, and the connection of the first breaks: the second has
// the ticket, in its place in the queue. Then its connection breaks as well, and the wait ends; a
// repetition begins anew.
func TestARepetitionTakesOver(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, serveHTTP)
	ctx, n, key := soon(t), c.leader(), newKey()
	holder := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"over"}`)
	require.Equal(t, 200, holder.code)
	const body = `{"name":"over","wait":"forever"}`
	_, cut := inBackground(ctx, t, n, "/v1/acquire", body, "Idempotency-Key", key)
	session := lockIs(ctx, t, n, "over", 1, 1)["queue"].([]any)[0].(fields)["session"]
	behind, _ := inBackground(ctx, t, n, "/v1/acquire", body)
	lockIs(ctx, t, n, "over", 1, 2)
	repeated, cutRepeated := inBackground(ctx, t, c.follower(), "/v1/acquire", body,
		"Idempotency-Key", key)
	require.Eventually(t, func() bool { return n.server.hub.Counts().Calls == 3 }, patience,
		5*time.Millisecond, "the leader has all calls")
	cut()
	require.Eventually(t, func() bool { return n.server.hub.Counts().Calls == 2 }, patience,
		5*time.Millisecond, "the first call has ended")
	assert.Equal(t, session,
		lockIs(ctx, t, n, "over", 1, 2)["queue"].([]any)[0].(fields)["session"])
	assert.Equal(t, 3, sessionsOf(n), "no second session")
	require.Equal(t, 200, send(ctx, t, n, "POST", "/v1/release", holder.text).code)
	granted := answered(t, repeated)
	require.Equal(t, 200, granted.code, granted.text)
	assert.Contains(t, granted.text, `"session":"`+session.(string)+`"`)
	cutRepeated()

	key2 := newKey()
	_, cut = inBackground(ctx, t, c.follower(), "/v1/acquire", body, "Idempotency-Key", key2)
	lockIs(ctx, t, n, "over", 1, 2)
	cut()
	lockIs(ctx, t, n, "over", 1, 1)
	anew, _ := inBackground(ctx, t, n, "/v1/acquire", body, "Idempotency-Key", key2)
	lockIs(ctx, t, n, "over", 1, 2)
	require.Equal(t, 200, send(ctx, t, n, "POST", "/v1/release", granted.text).code)
	require.Equal(t, 200, send(ctx, t, n, "POST", "/v1/release", answered(t, behind).text).code)
	last := answered(t, anew)
	require.Equal(t, 200, last.code, last.text)
}

// W3: the session of an acquisition without a key ends with its connection, so the next in the
// queue has the lock long before that session would have expired.
func TestAWaitEndsWithItsConnection(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, serveHTTP)
	ctx, n := soon(t), c.leader()
	for _, at := range []*Node{n, c.follower()} {
		before := sessionsOf(n)
		holder := sendWhenLed(ctx, t, n, "POST", "/v1/acquire", `{"name":"broken"}`)
		require.Equal(t, 200, holder.code, holder.text)
		_, cut := inBackground(ctx, t, at, "/v1/acquire",
			`{"name":"broken","wait":"forever","ttl":"1m"}`)
		lockIs(ctx, t, n, "broken", 1, 1)
		next, _ := inBackground(ctx, t, at, "/v1/acquire", `{"name":"broken","wait":"30s"}`)
		lockIs(ctx, t, n, "broken", 1, 2)
		cut()
		lockIs(ctx, t, n, "broken", 1, 1)
		require.Eventually(t, func() bool { return sessionsOf(n) == before+2 }, patience,
			5*time.Millisecond, "its session is closed")
		released := sendWhenLed(ctx, t, n, "POST", "/v1/release", holder.text)
		require.Equal(t, 200, released.code, released.text)
		granted := answered(t, next)
		require.Equal(t, 200, granted.code, granted.text)
		released = sendWhenLed(ctx, t, n, "POST", "/v1/release", granted.text)
		require.Equal(t, 200, released.code, released.text)
	}
	lone := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"poll","poll":"1s"}`)
	assert.Equal(t, 400, lone.code,
		"without a key, the repetition that 202 calls for would be another acquisition")
	assert.Equal(t, "poll", lone.fields["field"])
}

// With poll, answers of 202 come while the lock is waited for; repetitions keep the place in the
// queue, and the session alive beyond its ttl.
func TestPollsKeepTheirPlace(t *testing.T) {
	takesTime(t)
	t.Parallel()
	c := startCluster(t, 1, serveHTTP)
	ctx, n, key := soon(t), c.leader(), newKey()
	holder := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"polled","ttl":"1m"}`)
	const body = `{"name":"polled","ttl":"2s","wait":"1m","poll":"200ms"}`
	first := send(ctx, t, n, "POST", "/v1/acquire", body, "Idempotency-Key", key)
	require.Equal(t, 202, first.code, first.text)
	assert.Equal(t, "waiting", first.fields["state"])
	behind, _ := inBackground(ctx, t, n, "/v1/acquire", `{"name":"polled","wait":"forever"}`)
	lockIs(ctx, t, n, "polled", 1, 2)
	for began := time.Now(); time.Since(began) < 2500*time.Millisecond; {
		again := send(ctx, t, n, "POST", "/v1/acquire", body, "Idempotency-Key", key)
		require.Equal(t, 202, again.code, again.text)
		require.Equal(t, first.fields["session"], again.fields["session"])
	}
	longer := strings.Replace(body, `"200ms"`, `"20s"`, 1)
	// poll may change
	waits, _ := inBackground(ctx, t, n, "/v1/acquire", longer, "Idempotency-Key", key)
	require.Equal(t, 200, send(ctx, t, n, "POST", "/v1/release", holder.text).code)
	granted := answered(t, waits)
	require.Equal(t, 200, granted.code, granted.text)
	again := send(ctx, t, n, "POST", "/v1/acquire", body, "Idempotency-Key", key)
	require.Equal(t, 200, again.code, again.text)
	assert.Equal(t, first.fields["session"], again.fields["session"])
	require.Equal(t, 200, send(ctx, t, n, "POST", "/v1/release", again.text).code)
	require.Equal(t, 200, answered(t, behind).code)

	opened := send(ctx, t, n, "POST", "/v1/sessions", `{}`) // the same in an open session
	ticket := `{"name":"polled","wait":"forever","poll":"50ms","session":"` +
		opened.fields["session"].(string) +
		`","secret":"` + opened.fields["secret"].(string) + `","ticket":1}`
	for range 2 {
		r := send(ctx, t, n, "POST", "/v1/acquire", ticket)
		require.Equal(t, 202, r.code, r.text)
	}
}

// A wait that the client gives up, or whose limit passes, is answered 409, and leaves no session.
func TestAWaitThatTimesOutLeavesNothing(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, serveHTTP)
	ctx, n := soon(t), c.leader()
	holder := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"busy"}`)
	require.Equal(t, 200, holder.code)
	for _, headers := range [][]string{nil, {"Idempotency-Key", newKey()}} {
		r := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"busy","wait":"50ms"}`, headers...)
		assert.Equal(t, 409, r.code, r.text)
		assert.Equal(t, "wait_timeout", r.fields["reason"])
		assert.Equal(t, "not_done", r.fields["outcome"])
		require.Eventually(t, func() bool { return sessionsOf(n) == 1 }, patience,
			5*time.Millisecond)
	}
}

// The leader is killed while acquisitions with and without a key wait at another node: they keep
// waiting, under the same ticket, and are granted.
func TestAWaitOutlivesTheLeader(t *testing.T) {
	takesTime(t)
	t.Parallel()
	c := startCluster(t, 3, serveHTTP)
	ctx, n, leader := soon(t), c.follower(), c.leader()
	holder := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"steady"}`)
	require.Equal(t, 200, holder.code)
	first, _ := inBackground(ctx, t, n, "/v1/acquire", `{"name":"steady","wait":"forever"}`,
		"Idempotency-Key", newKey())
	session := lockIs(ctx, t, n, "steady", 1, 1)["queue"].([]any)[0].(fields)["session"].(string)
	second, _ := inBackground(ctx, t, n, "/v1/acquire", `{"name":"steady","wait":"forever"}`)
	lockIs(ctx, t, n, "steady", 1, 2)
	require.NoError(t, leader.Kill())
	released := sendWhenLed(ctx, t, n, "POST", "/v1/release", holder.text)
	require.Equal(t, 200, released.code, released.text)
	granted := answered(t, first)
	require.Equal(t, 200, granted.code, granted.text)
	assert.Contains(t, granted.text, `"session":"`+session+`"`)
	require.Equal(t, 200, send(ctx, t, n, "POST", "/v1/release", granted.text).code)
	granted = answered(t, second)
	require.Equal(t, 200, granted.code, granted.text)
}

// A call that was delayed arrives after its repetition was granted, and its connection breaks: the
// lock stays.
func TestALateCallThatBreaksEndsNothing(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	ctx, n := soon(t), c.leader()
	s := openSession(t, ctx, call(t, n))
	request := s.next("late", clock.Minute)
	granted, err := s.Acquire(ctx, request)
	require.NoError(t, err)
	broken, cancel := context.WithCancel(ctx)
	cancel()
	// as it arrives, with its connection broken already
	_, err = n.server.gate.Do(broken, gate.Arrival{Address: "127.0.0.1:1"}, request)
	require.Error(t, err)
	_, _, err = n.Raft().ReadBarrier(ctx)
	require.NoError(t, err)
	held := false
	n.Raft().View(func(m *fsm.Machine) {
		held = m.Holds("late", granted.State.Token, fsm.TicketRef{})
	})
	assert.True(t, held)
}

// Many calls with one key at once, at all nodes: one session, one grant, the same answer to all.
func TestAKeyTakenByManyCallsAtOnce(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, serveHTTP)
	ctx, leader := soon(t), c.leader()
	for _, body := range []string{`{"name":"many"}`,
		`{"name":"many","wait":"forever","ttl":"20s"}`} {
		key := newKey()
		before := sessionsOf(leader)
		var all []<-chan reply
		for i := range 12 {
			done, _ := inBackground(ctx, t, c.nodes[i%3], "/v1/acquire", body,
				"Idempotency-Key", key)
			all = append(all, done)
		}
		first := answered(t, all[0])
		require.Equal(t, 200, first.code, first.text)
		var a, b held
		require.NoError(t, json.Unmarshal([]byte(first.text), &a))
		for _, done := range all[1:] {
			r := answered(t, done)
			require.Equal(t, 200, r.code, r.text)
			require.NoError(t, json.Unmarshal([]byte(r.text), &b))
			assert.Equal(t, a, b)
		}
		assert.Equal(t, before+1, sessionsOf(leader))
		require.Equal(t, 200, send(ctx, t, leader, "POST", "/v1/release", first.text).code)
	}
}

// held is what every repetition of an acquisition has in its answer.
type held struct{ Session, Secret, Token, State string }

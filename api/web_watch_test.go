package api

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/fsm"
)

// A watch that is resumed at another node by Last-Event-ID has each event once.
func TestWatchResumesAtAnotherNode(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, serveHTTP)
	ctx, n := soon(t), c.leader()
	watch := listen(ctx, t, c.follower(), "/v1/watch?prefix=w/")
	from := watch.next("index").id
	var want []string
	for i := range 12 {
		name := fmt.Sprintf("w/%d", i)
		held := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"`+name+`"}`)
		require.Equal(t, 200, held.code, held.text)
		require.Equal(t, 200, send(ctx, t, n, "POST", "/v1/release", held.text).code)
		want = append(want, "granted "+name, "released "+name)
	}
	var got []string
	last := from
	for at := 0; len(got) < len(want); at++ {
		// the header counts
		watch := listen(ctx, t, c.nodes[at%3], "/v1/watch?prefix=w/&from=1", "Last-Event-ID", last)
		for range 3 {
			e := watch.any()
			if e.name == "index" {
				last = e.id
				continue
			}
			got = append(got, e.name+" "+e.data["items"].([]any)[0].(fields)["name"].(string))
			require.NotEmpty(t, e.id)
			last = e.id
			if len(got) == len(want) {
				break
			}
		}
		watch.cut()
	}
	assert.Equal(t, want, got)
	watch.cut()
}

// past is the next event that is no progress.
func (l *listening) past(want string) serverEvent {
	l.Helper()
	e := l.any()
	for e.name == "index" {
		e = l.any()
	}
	require.Equal(l, want, e.name)
	return e
}

// Of several events of one index only the last has the id: a client that has some of them receives
// all again.
func TestOneIndexHasOneID(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, serveHTTP)
	ctx, n := soon(t), c.leader()
	opened := send(ctx, t, n, "POST", "/v1/sessions", `{}`)
	id, secret := opened.fields["session"].(string), opened.fields["secret"].(string)
	for i := range 3 {
		body := fmt.Sprintf(`{"session":%s,"secret":%q,"ticket":%d,"name":"m/%d"}`, id,
			secret, i+1, i)
		require.Equal(t, 200, send(ctx, t, n, "POST", "/v1/acquire", body).code)
	}
	watch := listen(ctx, t, n, "/v1/watch?prefix=m/")
	watch.next("index")
	require.Equal(t, 200, send(ctx, t, n, "DELETE", "/v1/sessions/"+id, "", "Zamok-Secret",
		secret).code)
	var ids []string
	var index any
	for range 3 {
		e := watch.past("released")
		ids = append(ids, e.id)
		if index != nil {
			assert.Equal(t, index, e.data["index"])
		}
		index = e.data["index"]
	}
	assert.Equal(t, []string{"", "", index.(string)}, ids)
	before, err := strconv.ParseUint(index.(string), 10, 64)
	require.NoError(t, err)
	again := listen(ctx, t, n, "/v1/watch?prefix=m/", "Last-Event-ID",
		strconv.FormatUint(before-1, 10))
	for range 3 {
		assert.Equal(t, index, again.past("released").data["index"])
	}
	watch.cut()
	again.cut()
}

// Events that a node has forgotten are answered 410, before anything else.
func TestForgottenEventsAreGone(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, serveHTTP)
	ctx, n := soon(t), c.leader()
	held := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"forgotten"}`)
	require.Equal(t, 200, held.code)
	n.Raft().View(func(m *fsm.Machine) { // as applied under its lock; the indexes are made up
		for i := range uint64(70_000) {
			index := m.Stamp().Index + 1000 + i
			n.server.history.Applied(fsm.Applied{Index: index,
				Stamp: clock.Stamp{Term: 1, Index: index}, Events: []fsm.Event{{
					Index: index, Kind: fsm.EvGranted, Token: index,
					Items: []fsm.Item{{Name: "x", Mode: fsm.Exclusive}},
				}}})
		}
	})
	refused := listen(ctx, t, n, "/v1/watch", "Last-Event-ID", "1").refused
	assert.Equal(t, 410, refused.code, refused.text)
	assert.Equal(t, "compacted", refused.fields["code"])
	assert.Equal(t, "not_done", refused.fields["outcome"])
}

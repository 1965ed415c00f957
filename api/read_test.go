package api

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"zamok/api/service"
	"zamok/api/zamokpb"
	"zamok/fsm"
	"zamok/session"
)

// widest is the largest acquisition there is, but for the names that are given.
func widest(id session.ID, ticket uint64, names ...string) *fsm.Acquire {
	c := &fsm.Acquire{
		Session: id, Ticket: ticket, Wait: fsm.Forever,
		Owner: long(fmt.Sprint("owner", ticket), fsm.OwnerBytesMax),
		Meta:  long("", fsm.MetaBytesMax),
	}
	for _, name := range names {
		c.Items = append(c.Items, fsm.Item{Name: long(name, fsm.NameBytesMax), Mode: fsm.Exclusive})
	}
	for i := len(names); i < fsm.ItemsMax; i++ {
		c.Items = append(c.Items,
			fsm.Item{Name: long(fmt.Sprint(id, "/", ticket, "/", i, "/"), fsm.NameBytesMax),
				Mode: fsm.Exclusive})
	}
	return c
}

// long fills a text up to so many bytes, of a kind that is longest in JSON.
func long(begin string, bytes int) string { return begin + strings.Repeat("<", bytes-len(begin)) }

// What Get returns is bounded in bytes, whatever waits there, and so is what it costs while nothing
// can be applied.
func TestALongAnswerOfGetIsCutOff(t *testing.T) {
	n := startCluster(t, 1, serveHTTP).leader()
	id := session.ID(openSession(t, soon(t), call(t, n)).id)
	for ticket := range uint64(service.ShowMax) {
		until(n, widest(id, ticket+1, "wanted"))
	}
	c := call(t, n)
	name := long("wanted", fsm.NameBytesMax)
	all, err := c.Get(soon(t), &zamokpb.GetRequest{Name: name, Limit: service.ShowMax})
	require.NoError(t, err)
	assert.EqualValues(t, service.ShowMax-1, all.Lock.Waiters)
	assert.Len(t, all.Holders, 1)
	assert.Greater(t, len(all.Queue), 10)
	assert.Less(t, len(all.Queue), service.ShowMax-1, "it is cut off")
	assert.Less(t, proto.Size(all), answerBytesMax+100<<10)
	assert.EqualValues(t, 2, all.Queue[0].State.Ticket, "in order")
	some, err := c.Get(soon(t), &zamokpb.GetRequest{Name: name, Limit: 3})
	require.NoError(t, err)
	assert.Len(t, some.Queue, 3)

	// Over HTTP a byte may be written as six.
	for _, path := range []string{"/v1/lock?limit=200&name=" + url.QueryEscape(name),
		"/v1/locks?limit=1000"} {
		answer := send(soon(t), t, n, "GET", path, "")
		assert.Equal(t, http.StatusOK, answer.code)
		assert.Less(t, len(answer.text), longestAnswer)
		assert.Greater(t, len(answer.text), longestAnswer/2)
	}
}

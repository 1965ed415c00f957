package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"zamok/api/access"
	"zamok/api/access/limits"
	"zamok/api/conns"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// widest is the largest acquisition there is, but for the names that are given.
func widest(id session.ID, ticket uint64, names ...string) *fsm.Acquire {
	c := &fsm.Acquire{
		Session: id, Ticket: ticket, WaitFor: fsm.Forever,
		Owner: long(fmt.Sprint("owner", ticket), fsm.OwnerBytesMax), Metadata: long("", fsm.MetadataBytesMax),
	}
	for _, name := range names {
		c.Items = append(c.Items, fsm.Item{Name: long(name, fsm.NameBytesMax), Mode: fsm.Exclusive})
	}
	for i := len(names); i < fsm.ItemsMax; i++ {
		c.Items = append(c.Items, fsm.Item{Name: long(fmt.Sprint(id, "/", ticket, "/", i, "/"), fsm.NameBytesMax), Mode: fsm.Exclusive})
	}
	return c
}

// long fills a text up to so many bytes, of a kind that is longest in JSON.
func long(begin string, bytes int) string { return begin + strings.Repeat("<", bytes-len(begin)) }

// What Get returns is bounded in bytes, whatever waits there, and so is what it costs while nothing can be applied.
func TestALongAnswerOfGetIsCutOff(t *testing.T) {
	n := startCluster(t, 1, serveHTTP).leader()
	st := attachDirectly(t, n, 1)
	for ticket := range uint64(access.ShowMax) {
		until(n, widest(st.queue.Session, ticket+1, "wanted"))
	}
	c := call(t, n)
	name := long("wanted", fsm.NameBytesMax)
	all, err := c.Get(soon(t), &zamokpb.GetRequest{Name: name, Limit: access.ShowMax})
	require.NoError(t, err)
	assert.EqualValues(t, access.ShowMax-1, all.Lock.Waiters)
	assert.Len(t, all.Holders, 1)
	assert.Greater(t, len(all.Queue), 10)
	assert.Less(t, len(all.Queue), access.ShowMax-1, "it is cut off")
	assert.Less(t, proto.Size(all), answerBytesMax+100<<10)
	assert.EqualValues(t, 2, all.Queue[0].State.Ticket, "in order")
	some, err := c.Get(soon(t), &zamokpb.GetRequest{Name: name, Limit: 3})
	require.NoError(t, err)
	assert.Len(t, some.Queue, 3)

	// Over HTTP a byte may be written as six.
	for _, path := range []string{"/v1/lock?limit=200&name=" + url.QueryEscape(name), "/v1/locks?limit=1000"} {
		answer := send(soon(t), t, n, "GET", path, "")
		assert.Equal(t, http.StatusOK, answer.code)
		assert.Less(t, len(answer.text), longestAnswer)
		assert.Greater(t, len(answer.text), longestAnswer/2)
	}
}

// Calls that read much of the machine take turns, and of each connection one call at a time waits for its turn: a
// client is not behind everything that another one asked for.
func TestReadersTakeTurns(t *testing.T) {
	const calls = 20
	s := startAlone(t).server
	from := func() (*conns.Conn, context.Context) {
		l := &conns.Conn{Conn: &net.TCPConn{}}
		return l, peer.NewContext(soon(t), &peer.Peer{Addr: l.RemoteAddr()})
	}
	greedy, asksOften := from()
	other, asksOnce := from()
	var order []string
	var running atomic.Int32
	var all sync.WaitGroup
	read := func(ctx context.Context, name string) {
		all.Go(func() {
			assert.NoError(t, s.read(ctx, func(*fsm.Machine) {
				assert.EqualValues(t, 1, running.Add(1), "one reads")
				order = append(order, name)
				running.Add(-1)
			}))
		})
	}
	waits := func(l *conns.Conn, calls int) {
		waitForReaders(t, s, reader{account: access.CallerOf(asksOnce).Account(), conn: l}, calls)
	}
	s.reading <- struct{}{}
	for range calls {
		read(asksOften, "greedy")
	}
	waits(greedy, calls)
	read(asksOnce, "other")
	waits(other, 1)
	ctx, cancel := context.WithCancel(asksOften)
	cancel()
	assert.Error(t, s.read(ctx, func(*fsm.Machine) {}), "a cancelled call stops waiting")
	<-s.reading
	all.Wait()
	require.Len(t, order, calls+1)
	assert.Less(t, slices.Index(order, "other"), calls/2)
	assert.Empty(t, s.reading)
}

// waitForReaders waits until so many calls read, or wait to do so.
func waitForReaders(t *testing.T, s *Server, of reader, calls int) {
	require.Eventually(t, func() bool {
		s.turns.mu.Lock()
		defer s.turns.mu.Unlock()
		own := s.turns.of[of]
		return own == nil && calls == 0 || own != nil && own.calls == calls
	}, patience, time.Millisecond)
}

// TestReadersOfAnIdentityShareATurn: connections give a client no more of the reading than others have, and its calls that wait
// count in its limit.
func TestReadersOfAnIdentityShareATurn(t *testing.T) {
	const calls = 20
	set, err := limits.Parse([]string{fmt.Sprintf("held-calls-per-identity=%d", calls)})
	require.NoError(t, err)
	s := startCluster(t, 1, func(cfg *NodeConfig) { cfg.Limits = set }).leader().server
	var order []string
	var all sync.WaitGroup
	from := func(who string) context.Context {
		l := &conns.Conn{Conn: &net.TCPConn{}}
		return access.NewContext(peer.NewContext(soon(t), &peer.Peer{Addr: l.RemoteAddr()}), access.Caller{Identity: who})
	}
	read := func(who string) {
		ctx := from(who)
		all.Go(func() { assert.NoError(t, s.read(ctx, func(*fsm.Machine) { order = append(order, who) })) })
	}
	waiting := func(who string, calls int) { waitForReaders(t, s, reader{account: who}, calls) }
	s.reading <- struct{}{}
	for range calls {
		read("greedy")
	}
	waiting("greedy", calls)
	err = s.read(from("greedy"), func(*fsm.Machine) {})
	info := limitedBy(t, err, "held-calls-per-identity")
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, info.Outcome)
	read("other")
	waiting("other", 1)
	<-s.reading
	all.Wait()
	require.Len(t, order, calls+1)
	assert.Less(t, slices.Index(order, "other"), calls/2)
	waiting("greedy", 0)
	assert.NoError(t, s.read(from("greedy"), func(*fsm.Machine) {}), "none of its calls waits any more")
}

// TestReadersOnOneConnectionTakeTurns: a connection may carry calls of several clients, as that of a node which relays does. A
// client with many calls on it does not delay those of the others.
func TestReadersOnOneConnectionTakeTurns(t *testing.T) {
	const calls = 20
	s := startAlone(t).server
	shared := &conns.Conn{Conn: &net.TCPConn{}}
	var order []string
	var all sync.WaitGroup
	read := func(who string) {
		ctx := peer.NewContext(soon(t), &peer.Peer{Addr: shared.RemoteAddr()})
		ctx = access.NewContext(ctx, access.Caller{Identity: who})
		all.Go(func() { assert.NoError(t, s.read(ctx, func(*fsm.Machine) { order = append(order, who) })) })
	}
	s.reading <- struct{}{}
	for range calls {
		read("greedy")
	}
	waitForReaders(t, s, reader{"greedy", shared}, calls)
	read("other")
	waitForReaders(t, s, reader{"other", shared}, 1)
	<-s.reading
	all.Wait()
	require.Len(t, order, calls+1)
	assert.Less(t, slices.Index(order, "other"), calls/2)
}

// Between two parts of a listing entries are applied, and others read.
func TestAListingInPartsHoldsNobodyUp(t *testing.T) {
	n := startAlone(t)
	ctx := soon(t)
	var began clock.Stamp
	var others sync.WaitGroup
	var otherRead atomic.Bool
	parts := 0
	require.NoError(t, n.server.readInParts(ctx, func(m *fsm.Machine) (more bool) {
		if parts++; parts == 1 {
			began = m.Stamp()
			others.Go(func() { until(n, &fsm.SetLongestTTL{TTL: clock.Hour}) })
			others.Go(func() {
				assert.NoError(t, n.server.read(ctx, func(*fsm.Machine) { otherRead.Store(true) }))
			})
		}
		return (m.Stamp() == began || !otherRead.Load()) && ctx.Err() == nil
	}))
	others.Wait()
	require.NoError(t, ctx.Err(), "neither was possible during %d parts", parts)
	require.Greater(t, parts, 1)
}

// A node streams few backups at a time; one more is refused, and may be asked for again.
func TestBackupsAreBounded(t *testing.T) {
	n := startAlone(t)
	c := call(t, n)
	backup := func() error {
		stream, err := c.admin.Backup(soon(t), &zamokpb.BackupRequest{})
		for err == nil {
			_, err = stream.Recv()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
	for range backupsMax {
		n.server.backingUp <- struct{}{}
	}
	info := infoOf(t, backup())
	assert.Equal(t, zamokpb.Code_CODE_OVERLOADED, info.Code)
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, info.Outcome)
	<-n.server.backingUp
	require.NoError(t, backup())
	require.NoError(t, backup(), "the one before has ended")
}

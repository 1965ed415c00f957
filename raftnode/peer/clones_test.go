package peer

import (
	"context"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCloneDetection(t *testing.T) {
	var d cloneDetector
	start, later := time.Now(), time.Now().Add(time.Minute)
	observe := func(name string, current generation, wantFresh, wantClone bool, reason string) {
		t.Helper()
		fresh, cloned := d.observe(serverOf(name), current, later)
		assert.Equal(t, [2]bool{wantFresh, wantClone}, [2]bool{fresh, cloned}, reason)
	}
	observe("n3", 1, true, false, "the first")
	observe("n3", 1, false, false, "the same")
	observe("n3", 2, true, false, "a restart")
	observe("n2", 1, true, false, "another node")
	observe("n3", 1, false, true, "the process before the restart is alive")
	observe("n3", 1, false, false, "the same")
	observe("n3", 2, false, true, "and so is the one after it")

	fresh, cloned := d.observe(serverAfterWipe("n3"), 1, start)
	assert.Equal(t, [2]bool{true, false}, [2]bool{fresh, cloned}, "another directory is no clone")
	fresh, cloned = d.observe(serverOf("n3"), 1, start)
	assert.Equal(t, [2]bool{false, false}, [2]bool{fresh, cloned},
		"it may have ended before the latest began")
	fresh, cloned = d.observe(serverOf("n3"), 3, start)
	assert.Equal(t, [2]bool{false, false}, [2]bool{fresh, cloned},
		"so may a process that is new here")
	observe("n3", 2, false, false, "which changes nothing")

	for i := range 100 {
		observe("n4", generation(9+i), true, false, "a node that restarts often")
		d.observe(serverOf(fmt.Sprint("invented-", i, "-", len(d.seen))), 1, later)
	}
	for i := range 10 * serversMax {
		d.observe(serverOf(fmt.Sprint("invented-", i)), 1, later)
	}
	assert.LessOrEqual(t, len(d.seen), serversMax)
	assert.LessOrEqual(t, len(d.seen[serverOf("n4")].generations), generationsMax)
}

// The last message of a process that has ended can arrive after the node was started again and has
// connected: a retransmission, or a receiver that was suspended. It neither accuses the new process
// nor ends its connections.
func TestAStaleHandshakeIsNoClone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestNetwork()
		n1, n2 := pair(t, f)
		defer n1.Close()
		receiving := openTransport(t, n1)
		ended := n2.Mine()
		require.NoError(t, n2.Close())

		// n2 sends its hello to n1, reads the answer, and ends when it has sent the go-ahead.
		called := dialRaw(t, f, "h1:5751")
		defer called.Close()
		require.NoError(t, writeFrame(called, &hello{purposeCall, serverOf("n1"), ended}))
		require.NoError(t, readFrame(called, &Answer{}))
		// n1 sends its hello to n2, which ends when it has sent its answer.
		old := f.listen("h2:5751")
		calling := make(chan net.Conn)
		go func() {
			conn, err := old.Accept()
			assert.NoError(t, err)
			assert.NoError(t, readFrame(conn, &hello{}))
			calling <- conn
		}()
		go func() { _, _ = n1.Call(context.Background(), nodeAt("n2", "h2:5751"), nil) }()
		caller := <-calling
		defer caller.Close()

		time.Sleep(time.Second)
		n2 = openNode(t, f, Config{ID: "n2", List: n2.config.List, Cluster: clusterOf("home")})
		defer n2.Close()
		transport := openTransport(t, n2)
		require.NoError(t, vote(transport, "n1", "h1:5751"))
		time.Sleep(time.Millisecond)
		require.NoError(t, writeFrame(called, &payload{kindProceed, nil}))
		require.NoError(t, writeFrame(caller, &ended))
		synctest.Wait()
		assert.Len(t, receiving.open, 1, "the connection of the new process stays")
		_, err := n2.Call(t.Context(), nodeAt("n1", "h1:5751"), nil)
		require.NoError(t, err)
		synctest.Wait()
		assert.NotContains(t, n1.logs.String(), "clone detected")

		// A handshake that began after the new process was seen shows that both are alive.
		clone := dialRaw(t, f, "h1:5751")
		defer clone.Close()
		require.NoError(t, writeFrame(clone, &hello{purposeCall, serverOf("n1"), ended}))
		require.NoError(t, readFrame(clone, &Answer{}))
		require.NoError(t, writeFrame(clone, &payload{kindProceed, nil}))
		time.Sleep(time.Millisecond)
		_, err = n2.Call(t.Context(), nodeAt("n1", "h1:5751"), nil)
		require.NoError(t, err)
		synctest.Wait()
		assert.Contains(t, n1.logs.String(), "clone detected")
	})
}

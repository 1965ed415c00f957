package peer

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// nodeAt is the first server of a name, where it is reached.
func nodeAt(name, address string) Node { return Node{serverOf(name).String(), address} }

func TestTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		list := mustList(t, threeNodes)
		n1 := open(t, f, Config{ID: "n1", List: list})
		echo := func(_ context.Context, from Server, what []byte) []byte {
			return append([]byte(from.Name+": "), what...)
		}
		n2 := open(t, f, Config{ID: "n2", List: list, Handle: echo})
		n3 := open(t, f, Config{ID: "n3", List: list})
		defer n1.Close()
		defer n2.Close()
		defer n3.Close()
		answer, err := n1.Call(t.Context(), nodeAt("n2", "h2:5751"), []byte("hello"))
		require.NoError(t, err, "n2 runs no Raft, and need not")
		assert.Equal(t, "n1: hello", string(answer))
		answer, err = n2.Call(t.Context(), nodeAt("n3", "h3:5751"), nil)
		require.NoError(t, err)
		assert.Empty(t, answer, "n3 has nothing to say")

		_, err = n1.Call(t.Context(), nodeAt("n4", "h2:5751"), []byte("hello"))
		requireCode(t, NotMeant, err)

		longest := bytes.Repeat([]byte("x"), callBytesMax-len("n1: "))
		answer, err = n1.Call(t.Context(), nodeAt("n2", "h2:5751"), longest)
		require.NoError(t, err)
		assert.Len(t, answer, callBytesMax)
		_, err = n1.Call(t.Context(), nodeAt("n2", "h2:5751"), append(longest, "12345"...))
		require.ErrorContains(t, err, "nothing was sent")
		_, err = n1.Call(t.Context(), nodeAt("n2", "h2:5751"), append(longest, 'x'))
		require.Error(t, err)
		synctest.Wait()
		assert.Contains(t, n2.diary.String(), "it was not sent")
	})
}

// What is meant for a lost directory does not reach the one after it, and one of other initial members is not
// listened to.
func TestTellGoesThroughTheHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		list := mustList(t, threeNodes)
		said := func(context.Context, Server, []byte) []byte { panic("it arrived") }
		n1 := open(t, f, Config{ID: "n1", List: list, Handle: said})
		n3 := open(t, f, Config{
			ID: "n3", List: list, Incarnation: serverAgain("n3").Incarnation, Handle: said,
			Condition: says(Condition{Initial: foundersOf(list, serverAgain("n3"))}),
		})
		defer n1.Close()
		defer n3.Close()
		_, err := n1.Call(t.Context(), nodeAt("n3", "h3:5751"), []byte("hello"))
		requireCode(t, OtherIncarnation, err)
		_, err = n3.Call(t.Context(), nodeAt("n1", "h1:5751"), []byte("hello"))
		requireCode(t, OtherInitialMembers, err)
		_, err = n1.Call(t.Context(), Node{"n3", "h3:5751"}, []byte("hello"))
		require.ErrorContains(t, err, "no server id", "it doesn't say which directory is meant")
	})
}

// Who listens for long holds no place in the handshake limiter, and is told when the time is over.
func TestTellIsOverInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		list := mustList(t, threeNodes)
		var over error
		n1 := open(t, f, Config{ID: "n1", List: list})
		brood := func(ctx context.Context, _ Server, _ []byte) []byte {
			<-ctx.Done()
			over = ctx.Err()
			return nil
		}
		n2 := open(t, f, Config{ID: "n2", List: list, Handle: brood, HandshakeTimeout: 3 * time.Second})
		defer n1.Close()
		defer n2.Close()
		start, told := time.Now(), make(chan error)
		go func() {
			_, err := n1.Call(t.Context(), nodeAt("n2", "h2:5751"), []byte("hello"))
			told <- err
		}()
		synctest.Wait()
		assert.Zero(t, n2.handshakes.pending.Len())
		require.ErrorContains(t, <-told, "no answer within 2s")
		assert.Equal(t, n1.config.HandshakeTimeout, time.Since(start))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		assert.True(t, errors.Is(over, context.DeadlineExceeded))
	})
}

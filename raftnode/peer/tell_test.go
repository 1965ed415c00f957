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

func TestTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		list := mustList(t, threeNodes)
		n1 := open(t, f, Config{ID: "n1", List: list})
		echo := func(_ context.Context, from string, what []byte) []byte {
			return append([]byte(from+": "), what...)
		}
		n2 := open(t, f, Config{ID: "n2", List: list, Told: echo})
		n3 := open(t, f, Config{ID: "n3", List: list})
		defer n1.Close()
		defer n2.Close()
		defer n3.Close()
		answer, err := n1.Tell(t.Context(), Node{"n2", "h2:5751"}, []byte("hello"))
		require.NoError(t, err, "n2 runs no Raft, and need not")
		assert.Equal(t, "n1: hello", string(answer))
		answer, err = n2.Tell(t.Context(), Node{"n3", "h3:5751"}, nil)
		require.NoError(t, err)
		assert.Empty(t, answer, "n3 has nothing to say")

		_, err = n1.Tell(t.Context(), Node{"n4", "h2:5751"}, []byte("hello"))
		requireCode(t, NotMeant, err)

		longest := bytes.Repeat([]byte("x"), tellBytesMax-len("n1: "))
		answer, err = n1.Tell(t.Context(), Node{"n2", "h2:5751"}, longest)
		require.NoError(t, err)
		assert.Len(t, answer, tellBytesMax)
		_, err = n1.Tell(t.Context(), Node{"n2", "h2:5751"}, append(longest, "12345"...))
		require.ErrorContains(t, err, "nothing was sent")
		_, err = n1.Tell(t.Context(), Node{"n2", "h2:5751"}, append(longest, 'x'))
		require.Error(t, err)
		synctest.Wait()
		assert.Contains(t, n2.diary.String(), "it was not sent")
	})
}

// A wiped node is told nothing and is not heard.
func TestTellGoesThroughTheHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		list := mustList(t, threeNodes)
		said := func(context.Context, string, []byte) []byte { panic("heard") }
		n1 := open(t, f, Config{ID: "n1", List: list, Known: records("n3", "n3 first"), Told: said})
		n3 := open(t, f, Config{ID: "n3", List: list, Incarnation: incarnationOf("n3 again"), Told: said})
		defer n1.Close()
		defer n3.Close()
		_, err := n1.Tell(t.Context(), Node{"n3", "h3:5751"}, []byte("hello"))
		requireCode(t, OtherIncarnation, err)
		_, err = n3.Tell(t.Context(), Node{"n1", "h1:5751"}, []byte("hello"))
		requireCode(t, OtherIncarnation, err)
	})
}

// Who listens for long holds no place in the lobby, and is told when the time is over.
func TestTellIsOverInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		list := mustList(t, threeNodes)
		var over error
		n1 := open(t, f, Config{ID: "n1", List: list})
		brood := func(ctx context.Context, _ string, _ []byte) []byte {
			<-ctx.Done()
			over = ctx.Err()
			return nil
		}
		n2 := open(t, f, Config{ID: "n2", List: list, Told: brood, HandshakeTimeout: 3 * time.Second})
		defer n1.Close()
		defer n2.Close()
		start, told := time.Now(), make(chan error)
		go func() {
			_, err := n1.Tell(t.Context(), Node{"n2", "h2:5751"}, []byte("hello"))
			told <- err
		}()
		synctest.Wait()
		assert.Zero(t, n2.lobby.guests.Len())
		require.ErrorContains(t, <-told, "no answer within 2s")
		assert.Equal(t, n1.config.HandshakeTimeout, time.Since(start))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		assert.True(t, errors.Is(over, context.DeadlineExceeded))
	})
}

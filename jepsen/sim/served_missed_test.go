package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/client"
)

// A push that comes while its client is cut off is lost. The client finds the grant when it is back.
func TestGrantDuringOutageIsFoundOnReconnect(t *testing.T) {
	t.Parallel()
	runServed(t, 3, func(w *servedCluster) {
		a, b := w.program("a", nil), w.program("b", func(c *client.Config) { c.TTL = time.Minute })
		held := w.lock(a, "x")
		waits := w.wait(w.Within(2*time.Minute), b, "x")
		time.Sleep(time.Second) // it has been told that it waits
		w.cut("b")
		require.NoError(t, held.Unlock(w.Within(time.Second)))
		time.Sleep(30 * time.Second) // long enough for it to give its stream up
		w.heal()
		next := w.awaitResult(waits, 10*time.Second)
		require.NoError(t, next.Unlock(w.Within(time.Second)))
	})
}

package sim

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"zamok/client"
)

// An operator ends a session, and the answer is lost. The next attempt finds no such session, which does not
// mean that nothing was done.
func TestExpireWithUnknownOutcome(t *testing.T) {
	t.Parallel()
	runServed(t, 3, func(w *servedCluster) {
		holder, operator := w.program("holder", nil), w.program("operator", nil)
		session := w.lock(holder, "x").Session()
		_, err := operator.Now(w.Within(time.Minute)) // it knows who leads
		assert.NoError(w, err)

		w.Network.Cut(w.leader().id, operator.host) // what it says arrives, and no answer does
		time.AfterFunc(700*time.Millisecond, w.heal)
		err = operator.ExpireSession(w.Within(time.Minute), session, "gone mad")
		var failed *client.Error
		assert.ErrorIs(w, err, client.ErrSessionExpired)
		if assert.True(w, errors.As(err, &failed)) {
			assert.Equal(w, client.Unknown, failed.Outcome, "%v", err)
		}

		// Asked again, it is known that this call did nothing.
		err = operator.ExpireSession(w.Within(time.Minute), session, "gone mad")
		if assert.True(w, errors.As(err, &failed)) {
			assert.Equal(w, client.NotDone, failed.Outcome, "%v", err)
		}
	})
}

// The same of a lock that is taken from its holder.
func TestForceReleaseWithUnknownOutcome(t *testing.T) {
	t.Parallel()
	runServed(t, 3, func(w *servedCluster) {
		holder, operator := w.program("holder", nil), w.program("operator", nil)
		token := w.lock(holder, "x").Token()
		_, err := operator.Now(w.Within(time.Minute)) // it knows who leads
		assert.NoError(w, err)

		w.Network.Cut(w.leader().id, operator.host)
		time.AfterFunc(700*time.Millisecond, w.heal)
		ended, err := operator.ForceRelease(w.Within(time.Minute), "x", token, "gone mad")
		var failed *client.Error
		assert.Empty(w, ended)
		if assert.True(w, errors.As(err, &failed)) {
			assert.Equal(w, client.Unknown, failed.Outcome, "%v", err)
		}

		ended, err = operator.ForceRelease(w.Within(time.Minute), "x", token, "gone mad")
		assert.NoError(w, err)
		assert.Empty(w, ended)
	})
}

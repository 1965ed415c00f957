package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/client"
	"zamok/jepsen/check"
)

// An operator ended a session in the first half second, before the sessions were listed for the first time, and
// its client was killed later. So no list ever showed the session; its end is in the watch. At first it was not,
// and the run was called violated: the session "was never ended".
func TestUnlistedSessionIsRecordedAsEnded(t *testing.T) {
	const session, second = 7, time.Second
	judged := func(moments ...client.EventBatch) []check.Finding {
		file := filepath.Join(t.TempDir(), "audit.jsonl")
		r, err := newRecorder(file)
		require.NoError(t, err)
		a := &audit{subprocess: &subprocess{record: r}, released: map[check.Ref]bool{}}
		for _, m := range moments {
			a.recordBatch(m)
		}
		live := map[uint64]string{}
		a.recordEndedSessions(live, []client.SessionInfo{{Session: 9, Label: "c1-1.2"}}, monotonicNow())
		a.recordEndedSessions(live, nil, monotonicNow())
		require.NoError(t, r.close())
		text, err := os.Open(file)
		require.NoError(t, err)
		defer text.Close()
		h := &check.History{}
		require.NoError(t, h.Read(text))
		h.Plan = check.Plan{Begin: monotonicNow(), End: monotonicNow() + 60*second, CompleteEvents: true}
		h.Sessions = append(h.Sessions, // as the program recorded it when it was granted a lock
			check.Session{Session: session, Client: "c1-1.1", TTL: 4 * second, Died: monotonicNow() + 20*second})
		assert.Contains(t, h.Sessions, check.Session{Session: 9, Client: "c1-1.2"})
		return check.Check(h).Violations
	}
	ended := client.Event{Index: 12, Kind: client.EventEnded, Session: session, Reason: "evicted",
		Text: "a test", Label: "c1-1.1"}
	assert.Empty(t, judged(client.EventBatch{Index: 12, Events: []client.Event{ended}}))

	found := judged()
	require.Len(t, found, 1)
	assert.Contains(t, found[0].Text, "was never ended", "and one that did not end is found")
}

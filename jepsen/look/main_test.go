package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/jepsen/check"
	"zamok/jepsen/report"
)

// Two files are one run; the second one shows that what the first one believed was wrong.
func TestRecheck(t *testing.T) {
	item := []check.Item{{Name: "a", Mode: check.Exclusive}}
	recorded := func(client string, session, token uint64, from, to time.Duration) string {
		ref := check.Ref{Session: session, Ticket: 1}
		h := check.History{Plan: check.Plan{Begin: 1, End: time.Minute}}
		h.Ops = []check.Op{
			{Client: client, Kind: check.OpLock, Ref: ref, Items: item, Call: from - 1, Return: from, Outcome: check.OK, Token: token},
			{Client: client, Kind: check.OpUnlock, Ref: ref, Items: item, Call: to, Return: to + 1, Outcome: check.OK},
		}
		h.Holds = []check.Hold{{Client: client, Ref: ref, Token: token, Items: item, From: from, To: to, End: check.Unlocked}}
		name := filepath.Join(t.TempDir(), client)
		file, err := os.Create(name)
		require.NoError(t, err)
		require.NoError(t, h.Write(file))
		require.NoError(t, file.Close())
		return name
	}
	one := recorded("one", 7, 8, 10*time.Second, 20*time.Second)
	verdict, err := recheck("", []string{one})
	require.NoError(t, err)
	assert.Equal(t, report.Passed, verdict)

	dir := t.TempDir()
	verdict, err = recheck(dir, []string{one, recorded("two", 9, 10, 15*time.Second, 25*time.Second)})
	require.NoError(t, err)
	assert.Equal(t, report.Violated, verdict)
	assert.FileExists(t, filepath.Join(dir, "timeline.html"))

	_, err = recheck("", []string{filepath.Join(dir, "no such file")})
	assert.ErrorContains(t, err, "no such file")
	_, err = recheck("", []string{filepath.Join(dir, "timeline.html")})
	assert.ErrorContains(t, err, "timeline.html: history, record 1")
}

package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/api/visible"
)

func TestALineEscapesTextOfOthers(t *testing.T) {
	var out bytes.Buffer
	l := New(Config{Out: &out, Node: "n1", Failed: func(err error) { require.NoError(t, err) }})
	sent := Event{
		Time: time.Unix(1, 0), Who: "al\u202eice\u200b", From: "[::1]:7", Call: "ForceRelease",
		Outcome: "not done", Code: "DENIED",
		On: map[string]string{"lock": "a\nb\x7f\u0085\u2028𝄞\U000e0041\xff<"}, Message: "\x1b[2J",
	}
	l.Record(sent)
	line := out.Bytes()
	require.Equal(t, 1, bytes.Count(line, []byte("\n")))
	require.Equal(t, visible.Line(string(line[:len(line)-1])), string(line[:len(line)-1]))
	var got Event
	require.NoError(t, json.Unmarshal(line, &got))
	sent.Node, sent.Time = "n1", sent.Time.UTC()
	sent.On["lock"] = "a\nb\x7f\u0085\u2028𝄞\U000e0041\ufffd<"
	require.Equal(t, sent, got)
}

func TestAFileIsReopened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	f, err := Open(path)
	require.NoError(t, err)
	l := New(Config{Out: f, Failed: func(err error) { t.Error(err) }})
	var writers sync.WaitGroup
	for range 8 {
		writers.Go(func() {
			for range 100 {
				l.Record(Event{Who: "a"})
			}
		})
	}
	require.NoError(t, os.Rename(path, path+".1"))
	require.NoError(t, f.Reopen())
	writers.Wait()
	l.Record(Event{Who: "last"})
	require.NoError(t, f.file.Close())
	lines := 0
	for _, name := range []string{path, path + ".1"} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode())
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for line := range bytes.Lines(text) {
			require.True(t, json.Valid(line), "%q", line)
			lines++
		}
	}
	require.Equal(t, 801, lines)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(text), `"who":"last"`)

	var failure error
	New(Config{Out: f, Failed: func(err error) { failure = err }}).Record(Event{})
	require.True(t, errors.Is(failure, os.ErrClosed))
	_, err = Open(filepath.Join(path, "none"))
	require.Error(t, err)
}

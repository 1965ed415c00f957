package main

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/api"
	"zamok/api/gate/rules"
)

func TestChangedFilesAreReloaded(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(dir, "file")
		put := func(text string) {
			require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
			require.NoError(t, os.Rename(path+".new", path))
		}
		parse := func(texts [][]byte) (string, error) {
			if text := string(texts[0]); text != "broken" {
				return text, nil
			}
			return "", errors.New("it is broken")
		}
		log := slog.New(slog.DiscardHandler)
		_, err := reload(log, "a test", parse, path)
		require.ErrorIs(t, err, os.ErrNotExist)
		put("broken")
		_, err = reload(log, "a test", parse, path)
		require.ErrorContains(t, err, path+": it is broken")

		put("one")
		r, err := reload(log, "a test", parse, path)
		require.NoError(t, err)
		require.Equal(t, "one", r.get())
		put("two")
		require.Equal(t, "one", r.get(), "it was checked a moment ago")
		time.Sleep(reloadEvery)
		require.Equal(t, "two", r.get())
		put("broken")
		time.Sleep(reloadEvery)
		require.Equal(t, "two", r.get())
		require.False(t, r.usable())
		require.NoError(t, os.Remove(path))
		time.Sleep(reloadEvery)
		require.Equal(t, "two", r.get())
		put("three")
		r.now()
		require.Equal(t, "three", r.get())
		require.True(t, r.usable())
	})
}

// TestBrokenRulesChangeNothing: an error in a rules file is logged with its line, and the previous
// rules stay in force.
func TestBrokenRulesChangeNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yaml")
	put := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	put("rules:\n- {identities: [alice], names: [x], may: [lock]}\n")
	var log bytes.Buffer
	var cfg api.NodeConfig
	all := &reloadSet{}
	require.NoError(t, (&accessFlags{rules: path}).configure(&cfg,
		slog.New(slog.NewTextHandler(&log, nil)), all))
	hangups := make(chan os.Signal)
	stop := all.keepCurrent(hangups)
	hangup := func() {
		hangups <- syscall.SIGHUP
		hangups <- syscall.SIGHUP // the first was carried out when this one is taken
	}
	mayLock := func() bool {
		return cfg.Rules().May(rules.Caller{Identity: "alice"}, rules.Lock, "x")
	}
	put("rules:\n- identities: [alice]\n  names: [x]\n  may: [lok]\n")
	hangup()
	require.True(t, mayLock())
	require.Equal(t, map[string]bool{"access rules": false}, all.files())
	put("rules: []\n")
	hangup()
	require.False(t, mayLock())
	require.Equal(t, map[string]bool{"access rules": true}, all.files())
	stop()
	require.Contains(t, log.String(), "the previous version stays in force")
	require.Contains(t, log.String(), "rules.yaml: line 4: \\\"lok\\\" is not a verb")
}

// TestAnIdleServerSeesEveryChange: without a single call, a server puts a valid edit of its rules
// in force, and keeps it when an invalid one follows, which it reports.
func TestAnIdleServerSeesEveryChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yaml")
	synctest.Test(t, func(t *testing.T) {
		put := func(text string) {
			require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
			require.NoError(t, os.Rename(path+".new", path))
			time.Sleep(2 * reloadEvery) // the longest that it may take
			synctest.Wait()
		}
		const allowed = "rules:\n- {identities: [alice], names: [x], may: [lock]}\n"
		require.NoError(t, os.WriteFile(path, []byte(allowed), 0o600))
		var log bytes.Buffer
		var cfg api.NodeConfig
		all := &reloadSet{}
		require.NoError(t, (&accessFlags{rules: path}).configure(&cfg,
			slog.New(slog.NewTextHandler(&log, nil)), all))
		stop := all.keepCurrent(nil)
		put("rules: []\n")
		require.Contains(t, log.String(), "files reloaded")
		put(allowed + "- {}\n")
		require.Contains(t, log.String(), "the previous version stays in force")
		stop()
		require.NoError(t, os.Remove(path)) // what is asked below finds nothing to read
		require.False(t, cfg.Rules().May(rules.Caller{Identity: "alice"}, rules.Lock, "x"),
			"the valid edit is in force, not what was before it")
		require.Equal(t, map[string]bool{"access rules": false}, all.files())
	})
}

package main

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestChangedFilesAreReadAnew(t *testing.T) {
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
		require.Equal(t, "one", r.get(), "it was looked just now")
		time.Sleep(reloadEvery)
		require.Equal(t, "two", r.get())
		put("broken")
		time.Sleep(reloadEvery)
		require.Equal(t, "two", r.get())
		require.True(t, r.broken.Load())
		require.NoError(t, os.Remove(path))
		time.Sleep(reloadEvery)
		require.Equal(t, "two", r.get())
		put("three")
		r.now()
		require.Equal(t, "three", r.get())
		require.False(t, r.broken.Load())
	})
}

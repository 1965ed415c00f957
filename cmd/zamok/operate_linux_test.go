package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/api/view"
)

// At a terminal the holder is shown, and the person decides.
func TestReleaseAsksForConfirmation(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	holder := holdLock(t, c, "tty/release", "--meta", "the night job")
	release := []string{"release", "tty/release", "--force", "--reason", "it hangs"}
	p := startAtTerminal(t, c, binary, release...)
	p.awaitOutput(t, "[y/N]")
	p.awaitOutput(t, "the night job")
	p.typeKeys(t, ctrlC)
	require.Equal(t, 128+2, p.wait(t).code)
	require.EqualValues(t, 1, readJSON[view.Lock](t, c, "show", "tty/release").Holders)

	p = startAtTerminal(t, c, binary, release...)
	p.awaitOutput(t, "[y/N]")
	p.typeKeys(t, "y\n")
	if p.wait(t).code != 0 {
		p.awaitOutput(t, "nobody holds tty/release with a token up to") // see requireReleased
	}
	require.Equal(t, exitLost, holder.wait(t).code)
}

// A person sees how far a measurement is, and may end it.
func TestBenchShowsProgress(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	p := startAtTerminal(t, c, binary, "bench", "--clients", "2", "--duration", "1h", "--prefix",
		"tty/bench/")
	p.awaitOutput(t, "cycles after")
	p.typeKeys(t, ctrlC)
	require.Equal(t, 128+2, p.wait(t).code)
	require.NotContains(t, p.stdout.String(), "p99")
	awaitCondition(t, "no lock is left", func() bool {
		return strings.HasPrefix(runZamok(t, c, "ls", "tty/bench/").stdout, "No lock ")
	})
}

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// At a terminal a person is shown who holds the lock, and decides.
func TestAPersonDecidesOnARelease(t *testing.T) {
	t.Parallel()
	c := here(t)
	holder := hold(t, c, "tty/release", "--meta", "the night job")
	release := []string{"release", "tty/release", "--force", "--reason", "it hangs"}
	p := sitDown(t, c, binary, release...)
	p.says(t, "[y/N]")
	p.says(t, "the night job")
	p.types(t, ctrlC)
	require.Equal(t, 128+2, p.wait(t).code)
	require.Equal(t, 1, read[detailDoc](t, c, "show", "tty/release").Holders)

	p = sitDown(t, c, binary, release...)
	p.says(t, "[y/N]")
	p.types(t, "y\n")
	if p.wait(t).code != 0 {
		p.says(t, "nobody holds tty/release with a token up to") // see requireReleased
	}
	require.Equal(t, exitLost, holder.wait(t).code)
}

// A person sees how far a measurement is, and may end it.
func TestBenchShowsProgress(t *testing.T) {
	t.Parallel()
	c := here(t)
	p := sitDown(t, c, binary, "bench", "--clients", "2", "--duration", "1h", "--prefix", "tty/bench/")
	p.says(t, "rounds after")
	p.types(t, ctrlC)
	require.Equal(t, 128+2, p.wait(t).code)
	require.NotContains(t, p.out.String(), "p99")
	comes(t, "no lock is left", func() bool { return strings.HasPrefix(zamok(t, c, "ls", "tty/bench/").out, "No lock ") })
}

//go:build unix

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/client"
	"zamok/client/admin"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	holder := startZamok(t, c, "lock", "codes/held", "--", "sh", "-c",
		"echo holding; exec sleep 1000")
	holder.awaitOutput(t, "holding")
	plain := filepath.Join(t.TempDir(), "plain")
	require.NoError(t, os.WriteFile(plain, nil, 0o600))
	for name, test := range map[string]struct {
		args []string
		code int
		want string
	}{
		"the command's own":   {[]string{"lock", "codes/a", "--", "sh", "-c", "exit 42"}, 42, ""},
		"a command that ends": {[]string{"lock", "codes/b", "--", "true"}, 0, ""},
		"not acquired": {[]string{"lock", "codes/held", "--try", "--", "true"}, 121,
			"held by session"},
		"the wait timed out": {[]string{"lock", "codes/held", "--wait", "3s", "--", "true"}, 122,
			"codes/held not acquired within 3s (--wait)"},
		"can't be run": {[]string{"lock", "codes/c", "--", plain}, 126,
			"permission denied"},
		"not found": {[]string{"lock", "codes/d", "--", "no-such-command-anywhere"}, 127,
			"not found"},
		"ended by a signal": {[]string{"lock", "codes/e", "--", "sh", "-c", "kill -KILL $$"},
			137, ""},
		"no name": {[]string{"lock"}, 125,
			"the name of the lock and the command are missing"},
		"no dashes":    {[]string{"lock", "x", "true"}, 125, "put -- before"},
		"no command":   {[]string{"lock", "x", "--"}, 125, "the command to run is missing"},
		"two names":    {[]string{"lock", "x", "y", "--", "true"}, 125, "--with"},
		"no such flag": {[]string{"lock", "--frob", "x", "--", "true"}, 125, "--frob"},
		"no such command": {[]string{"lokc"}, 125,
			`there is no command "lokc"; is it lock?` + "\n"},
		"no unit": {[]string{"lock", "x", "--wait", "5", "--", "true"}, 125,
			`for "--wait" flag: a duration needs a unit`},
		"an empty name": {[]string{"lock", "", "--", "true"}, 125,
			"invalid: name: is empty; nothing was done"},
		"a bad name": {[]string{"lock", "a\nb", "--", "true"}, 125, "name"},
		"try and wait": {[]string{"lock", "x", "--try", "--wait", "1s", "--", "true"}, 125,
			"exclude"},
		"no wait": {[]string{"lock", "x", "--wait", "0s", "--", "true"}, 125, "--try"},
		"a ttl too short": {[]string{"lock", "x", "--ttl", "9s", "--", "true"}, 125,
			"--kill-after"},
		"a hold too short": {[]string{"lock", "x", "--max-hold", "9s", "--", "true"}, 125,
			"--max-hold"},
		"a shorter one": {[]string{"lock", "x", "--max-hold", "800ms", "--kill-after", "0s",
			"--", "true"}, 125, "800ms"},
		"a hold with no rest": {[]string{"lock", "x", "--max-hold", "11s", "--", "true"}, 125,
			"11.556s"},
		"permits without of": {[]string{"lock", "x", "--permits", "2", "--", "true"}, 125,
			"--of"},
		"shared and permits": {[]string{"lock", "x", "--shared", "--permits", "1", "--of", "2",
			"--", "true"}, 125, "--shared"},
		"another kind of lock": {[]string{"lock", "codes/held", "--permits", "1", "--of", "2", "--",
			"true"}, 125, "another kind"},
		"unavailable": {[]string{"lock", "x", "--try", "--endpoints", "127.0.0.1:1", "--",
			"true"}, 124, "127.0.0.1:1: nobody listens there"},
		"no certificate": {[]string{"lock", "x", "--cacert", plain, "--", "true"}, 125,
			"no certificate"},
		"a token without TLS": {[]string{"lock", "x", "--token-file", plain, "--", "true"}, 125,
			"needs TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := runUntilAvailable
			if test.code == exitUnavailable {
				run = runZamok
			}
			r := run(t, c, test.args...)
			require.Equal(t, test.code, r.code, r.stderr)
			require.Contains(t, r.stderr, test.want)
			require.Empty(t, r.stdout, "stdout is the command's")
		})
	}
}

func TestCommandEnvironment(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	r := startZamok(t, c, "lock", "env/a", "--with", "env/b", "--meta", "month's end", "--",
		"sh", "-c",
		`echo "$ZAMOK_LOCK_NAME $ZAMOK_LOCK_TOKEN $ZAMOK_LOCK_SESSION $ZAMOK_LOCK_TICKET $ZAMOK_LOCK_DEADLINE"; exec sleep 1000`)
	r.awaitOutput(t, "Z\n")
	words := strings.Fields(r.stdout.String())
	require.Len(t, words, 5)
	require.Equal(t, "env/a", words[0])
	for _, name := range []string{"env/a", "env/b"} {
		detail, err := c.client(t).Get(context.Background(), name, 0)
		require.NoError(t, err)
		require.Len(t, detail.Held, 1)
		held := detail.Held[0]
		require.Equal(t, words[1:4], []string{
			strconv.FormatUint(uint64(held.Token), 10), strconv.FormatUint(held.Session, 10),
			strconv.FormatUint(held.Ticket, 10),
		})
		require.Equal(t, "month's end", string(held.Meta))
	}
	deadline, err := time.Parse(time.RFC3339Nano, words[4])
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), deadline, commandTTL)
	require.NoError(t, r.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 128+15, r.wait(t).code)
	c.awaitFree(t, "env/b")
}

// A wait that timed out names the blockers.
func TestWaitTimeoutNamesHolder(t *testing.T) {
	t.Parallel()
	v := &acquisitionFlags{wait: 5 * time.Second, with: []string{"b"}}
	var s statusLine
	s.show(client.Position{Name: "a", Ahead: 1,
		Blockers: []client.Blocker{{Name: "a", Session: 7, Label: "kim@db7"}, {Name: "b"}}})
	err := v.notAcquiredError("a", s.blockers, errWaitTimeout)
	require.ErrorContains(t, err,
		`a, b not acquired within 5s (--wait); "a" is held by session 7 (kim@db7), …`)
}

// The version is printed as other programs print it.
func TestVersionOutput(t *testing.T) {
	t.Parallel()
	for _, ask := range []string{"version", "--version"} {
		r := runZamok(t, sharedCluster(t), ask)
		require.Equal(t, versionLine(), r.stdout)
		require.Regexp(t, `^zamok \S+ \(commit \S.*, go\S+, \w+/\w+, format [0-9a-f]{16}\)\n$`,
			r.stdout)
		require.Zero(t, r.code, r.stderr)
	}
}

func TestDefaultMetadata(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	r := startZamok(t, c, "lock", "who", "--", "sh", "-c", "echo holding; exec sleep 1000")
	r.awaitOutput(t, "holding")
	detail, err := c.client(t).Get(context.Background(), "who", 0)
	require.NoError(t, err)
	require.Equal(t, pidText(r.Process.Pid)+": sh -c echo holding; exec sleep 1000",
		string(detail.Held[0].Meta))
	require.Equal(t, pidText(r.Process.Pid), detail.Held[0].Label)
}

func pidText(pid int) string {
	return strings.TrimSuffix(processLabel(), strconv.Itoa(os.Getpid())) + strconv.Itoa(pid)
}

func TestSharedLocksAndPermits(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	for name, flags := range map[string][]string{"shared": {"--shared"},
		"permits": {"--permits", "1", "--of", "2"}} {
		for range 2 {
			r := startZamok(t, c, append(append([]string{"lock", "modes/" + name}, flags...), "--",
				"sh", "-c", "echo holding; exec sleep 1000")...)
			r.awaitOutput(t, "holding")
		}
	}
	require.Equal(t, 121, runZamok(t, c, "lock", "modes/shared", "--try", "--", "true").code)
	require.Equal(t, 0, runZamok(t, c, "lock", "modes/shared", "--try", "--shared", "--",
		"true").code)
	require.Equal(t, 121, runZamok(t, c, "lock", "modes/permits", "--try", "--permits", "1", "--of",
		"2", "--", "true").code)
}

func TestCommandReceivesSignals(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	r := startZamok(t, c, "lock", "signals", "--", "sh", "-c",
		`trap 'echo usr1' USR1; trap 'echo hup' HUP; trap 'echo term; exit 7' TERM; echo ready; while :; do sleep 0.02; done`)
	r.awaitOutput(t, "ready")
	for _, s := range []struct {
		signal syscall.Signal
		word   string
	}{{syscall.SIGUSR1, "usr1"}, {syscall.SIGHUP, "hup"}, {syscall.SIGTERM, "term"}} {
		require.NoError(t, r.Process.Signal(s.signal))
		r.awaitOutput(t, s.word)
	}
	end := r.wait(t)
	require.Equal(t, 7, end.code)
	require.Equal(t, "ready\nusr1\nhup\nterm\n", end.stdout)
}

func TestSignalCancelsWait(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	startZamok(t, c, "lock", "waits", "--", "sh", "-c",
		"echo holding; exec sleep 1000").awaitOutput(t, "holding")
	r := startZamok(t, c, "lock", "waits", "--", "true")
	c.awaitWaiters(t, "waits", 1)
	require.NoError(t, r.Process.Signal(syscall.SIGINT))
	require.Equal(t, 128+2, r.wait(t).code)
	c.awaitWaiters(t, "waits", 0)
}

func TestCommandDiesWithWrapper(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux signals a parent's death to a process")
	}
	t.Parallel()
	r := startZamok(t, sharedCluster(t), "lock", "orphan", "--", "sh", "-c",
		"echo pid $$; exec sleep 1000")
	r.awaitOutput(t, "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(r.stdout.String(), "pid ")))
	require.NoError(t, err)
	require.True(t, isRunning(pid))
	require.NoError(t, r.Process.Kill())
	require.Eventually(t, func() bool { return !isRunning(pid) }, testTimeout, 5*time.Millisecond,
		"the command runs on")
}

// The cluster stops answering: the command gets TERM before the lease ends, and zamok prints why.
func TestUnreachableClusterTerminatesCommand(t *testing.T) {
	takesTime(t)
	t.Parallel()
	c := startCluster(t, "--nodes", "1")
	r := startZamok(t, c, "lock", "silent", "--ttl", "15s", "--kill-after", "5s", "--", "sh", "-c",
		`trap 'echo terminated; exit 0' TERM; echo ready; while :; do sleep 0.02; done`)
	r.awaitOutput(t, "ready")
	silent := time.Now()
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGSTOP))
	r.awaitOutput(t, "terminated")
	// It runs as long as it surely may, which is from the last renewal: up to a third of the lease
	// before, and then some on a busy machine.
	terminated := time.Since(silent)
	require.Greater(t, terminated, time.Second, "terminated although the lease would have lasted")
	end := r.wait(t)
	require.Equal(t, exitLost, end.code, end.stderr)
	require.Contains(t, end.stderr, "the command was ended")
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGCONT))
}

func TestForcedReleaseTerminatesCommand(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	cl := c.client(t)
	requireLost(t, "for a test", func(bool) *process {
		r := startZamok(t, c, "lock", "forced", "--", "sh", "-c",
			`trap 'sleep 0.3; echo cleaned up; exit 0' TERM; echo ready; while :; do sleep 0.02; done`)
		r.awaitOutput(t, "ready")
		detail, err := cl.Get(context.Background(), "forced", 0)
		require.NoError(t, err)
		_, err = admin.New(cl).ForceRelease(context.Background(), "forced", detail.Held[0].Token,
			"for a test")
		require.NoError(t, err)
		require.Contains(t, r.wait(t).stdout, "cleaned up")
		return r
	})
}

func TestMaxHoldTerminatesCommand(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	r := runZamok(t, sharedCluster(t), "lock", "held long", "--max-hold", "5s", "--kill-after",
		"1s", "--", "sleep", "1000")
	require.Equal(t, exitLost, r.code, r.stderr)
	require.Regexp(t,
		`: (--max-hold is nearly over|the maximum hold is over) \(lock "held long", token [0-9]+\); the command was ended`, r.stderr)
	require.Greater(t, time.Since(begun), 2*time.Second)
}

// The wait of the one ends as the other's command does, and not before.
func TestSecondCommandWaits(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	first := startZamok(t, c, "lock", "line", "--", "sh", "-c", "echo holding; read -r go")
	second := startZamok(t, c, "lock", "line", "--", "echo", "second")
	require.Equal(t, 0, second.wait(t).code) // the first one's stdin is empty
	require.Equal(t, 1, first.wait(t).code)
}

func TestElect(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	cl := c.client(t)
	var candidates [2]*process
	for i := range candidates {
		candidates[i] = startZamok(t, c, "elect", "epoch", "--", "sh", "-c",
			`trap 'echo steps down; exit 0' TERM; echo leads; while :; do sleep 0.02; done`)
		if i == 0 {
			candidates[i].awaitOutput(t, "leads")
		}
	}
	c.awaitWaiters(t, "epoch", 1)
	detail, err := cl.Get(context.Background(), "epoch", 0)
	require.NoError(t, err)
	err = admin.New(cl).ExpireSession(context.Background(), detail.Held[0].Session, "for a test")
	// the renewal was repeated: an answer came too late on a busy machine
	if !errors.Is(err, client.ErrSessionExpired) {
		require.NoError(t, err)
	}
	candidates[0].awaitOutput(t, "steps down")
	candidates[1].awaitOutput(t, "leads")
	c.awaitWaiters(t, "epoch", 1) // the first stands again
	require.NoError(t, candidates[1].Process.Signal(syscall.SIGTERM))
	require.Equal(t, 0, candidates[1].wait(t).code,
		"a signal passed on to the command ends it, and its code is ours")
	require.Eventually(t, func() bool {
		return strings.Count(candidates[0].stdout.String(), "leads") == 2
	}, testTimeout, 5*time.Millisecond)
	require.NoError(t, candidates[0].Process.Signal(syscall.SIGTERM))
	require.Equal(t, 0, candidates[0].wait(t).code)
}

// Two clusters in one list: neither runs the command, whichever answers first, and both are named.
func TestRejectsEndpointsOfTwoClusters(t *testing.T) {
	t.Parallel()
	one, two := startCluster(t, "--nodes", "1"), startCluster(t, "--nodes", "1")
	both := one.endpoint() + "," + two.endpoint()
	for _, args := range [][]string{
		{"lock", "x", "--endpoints", both, "--", "echo", "ran"},
		{"lock", "x", "--try", "--endpoints", both, "--", "echo", "ran"},
		{"elect", "x", "--endpoints", both, "--", "echo", "ran"},
		{"members", "--endpoints", both},
		{"ls", "--endpoints", both},
		{"watch", "--endpoints", both},
		{"release", "x", "--force", "--token", "1", "--reason", "a test", "--endpoints", both},
	} {
		for range 3 {
			r := runZamok(t, nil, args...)
			require.Equal(t, exitGeneral, r.code, "%v: %s", args, r.stdout+r.stderr)
			require.Empty(t, r.stdout, "%v", args)
			require.Contains(t, r.stderr, "another cluster")
			require.Contains(t, r.stderr, one.endpoint())
			require.Contains(t, r.stderr, two.endpoint())
		}
	}
	require.Equal(t, 0, runZamok(t, one, "members", "--endpoints",
		one.endpoint()+",127.0.0.1:1").code, "a silent one is no error")
}

// A command that ends by itself while its wrapper sleeps through the lease has not run alone to its
// end.
func TestLossFoundOnReleaseExits123(t *testing.T) {
	t.Parallel()
	c, enough := startCluster(t, "--nodes", "1"), filepath.Join(t.TempDir(), "enough")
	r := startZamok(t, c, "lock", "late", "--ttl", "5s", "--kill-after", "1s", "--", "sh", "-c",
		`echo $$ ready; while [ ! -e "$0" ]; do sleep 0.02; done`, enough)
	r.awaitOutput(t, " ready")
	pid, err := strconv.Atoi(strings.Fields(r.stdout.String())[0])
	require.NoError(t, err)
	require.NoError(t, r.Process.Signal(syscall.SIGSTOP))
	// it must not end before: the lock would be released in time
	require.NoError(t, os.WriteFile(enough, nil, 0o600))
	require.Eventually(t, func() bool { return !isRunning(pid) }, testTimeout, 5*time.Millisecond,
		"the command does not end")
	cl := c.client(t)
	require.Eventually(t, func() bool {
		detail, err := cl.Get(t.Context(), "late", 0)
		return err == nil && detail.Holders == 0
	}, testTimeout, 20*time.Millisecond, "the lease did not end")
	require.NoError(t, r.Process.Signal(syscall.SIGCONT))
	end := r.wait(t)
	require.Equal(t, exitLost, end.code, end.stderr)
	require.Regexp(t, `(?s)^zamok: .*lost.* \(lock "late", token [0-9]+\)`, end.stderr)
}

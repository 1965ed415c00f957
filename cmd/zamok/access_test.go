//go:build unix

package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/api/gate/identity"
)

// offline runs a verb that asks no node.
func offline(t *testing.T, args ...string) exitResult {
	t.Helper()
	var out, problems strings.Builder
	cmd := zamokCommand(args...)
	cmd.Stdout, cmd.Stderr = &out, &problems
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return exitResult{cmd.ProcessState.ExitCode(), out.String(), problems.String()}
}

func TestRulesCheck(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	write(`groups:
  sre: token
rules:
  - identities: [ci-billing]
    names: [account/*]
    may: [lock, read]
  - groups: [sre]
    may: [operate]
`)
	for args, want := range map[string]exitResult{
		"":                                 {0, file + " is valid\n", ""},
		"--as ci-billing lock account/200": {0, "allowed by the rule in line 4\n", ""},
		"--as ci-billing release account/200": {exitDenied,
			"no rule allows it; allowed: lock, read\n", ""},
		"--as ci-billing lock account": {exitDenied,
			"no rule allows it or any other verb\n", ""},
		"--as anonymous lock account/200": {exitDenied,
			"no rule allows it or any other verb\n", ""},
		"--as bob operate": {exitDenied,
			"no rule allows it or any other verb\n", ""},
		"--as ci-billing operate": {exitDenied,
			"no rule allows it; allowed: lock, read\n", ""},
		"--as bob --group sre operate":   {0, "allowed by the rule in line 7\n", ""},
		"--as bob --group sre,x operate": {0, "allowed by the rule in line 7\n", ""},
		"lock account/200":               {exitGeneral, "", "--as is missing"},
		"--as bob steal account/200":     {exitGeneral, "", "\"steal\" is not a verb"},
		"--as bob operate account/200":   {exitGeneral, "", "remove \"account/200\""},
		"--as bob lock":                  {exitGeneral, "", "the name of the lock is missing"},
		"--as anonymous@127.0.0.1 lock a": {exitGeneral, "",
			"--as: an identity must not begin with anonymous@"},
	} {
		r := offline(t, append([]string{"rules", "check", file}, strings.Fields(args)...)...)
		require.Equal(t, want.code, r.code, "%s: %s", args, r.stderr)
		require.Equal(t, want.stdout, r.stdout, args)
		require.Contains(t, r.stderr, want.stderr, args)
	}
	write("rules:\n- identities: [a]\n  names: [x]\n  may: [lok]\n")
	r := offline(t, "rules", "check", file, "--as", "a", "lock", "x")
	require.Equal(t, exitGeneral, r.code)
	require.Contains(t, r.stderr, file+": line 4: \"lok\" is not a verb")
	r = offline(t, "rules", "chek", file)
	require.Equal(t, exitGeneral, r.code,
		"a job that checks rules must not pass by a misspelled verb")
	require.Contains(t, r.stderr, `there is no command "chek"; is it check?`)
	require.Equal(t, 0, offline(t, "rules").code)
}

func TestTokenNew(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens")
	first := offline(t, "token", "new", "alice", "--file", file)
	require.Equal(t, 0, first.code, first.stderr)
	second := offline(t, "token", "new", "bob", "--file", file, "--valid", "1h")
	require.Equal(t, 0, second.code, second.stderr)
	require.Regexp(t, regexp.MustCompile(`^zamok_[a-z2-7]{8}_[a-z2-7]{52}\n$`), first.stdout)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	text := string(readFile(t, file))
	for _, token := range []string{first.stdout, second.stdout} {
		require.NotContains(t, text, token[15:], "the secret part is printed once and kept nowhere")
	}
	known, err := identity.ParseTokens([]byte(text))
	require.NoError(t, err)
	require.Len(t, known, 2)

	for _, args := range [][]string{{"alice"}, {"a b", "--file", file},
		{"anonymous@x", "--file", file}, {"", "--file", file},
		{"x", "--file", file, "--valid", "-1h"}} {
		require.Equal(t, exitGeneral,
			offline(t, append([]string{"token", "new"}, args...)...).code, args)
	}
	require.NoError(t, os.WriteFile(file, []byte("rules: []\n"), 0o600))
	r := offline(t, "token", "new", "alice", "--file", file)
	require.Equal(t, exitGeneral, r.code)
	require.Empty(t, r.stdout)
	require.Contains(t, r.stderr, "nothing was added")
}

func TestATokenFileIsReloaded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	c := &tokenFileCredentials{path: file}
	_, err := c.GetRequestMetadata(t.Context())
	require.ErrorContains(t, err, "can't be read")
	for _, step := range []struct{ text, want string }{{"one\n", "one"}, {"two", "two"},
		{"", "two"}, {"three\n", "three"}} {
		require.NoError(t, os.WriteFile(file, []byte(step.text), 0o600))
		sent, err := c.GetRequestMetadata(t.Context())
		require.NoError(t, err)
		require.Equal(t, map[string]string{"authorization": "Bearer " + step.want}, sent)
	}
	require.NoError(t, os.Remove(file))
	sent, err := c.GetRequestMetadata(t.Context())
	require.NoError(t, err)
	require.Equal(t, "Bearer three", sent["authorization"])
	_, err = (&connectionFlags{app: &app{}, tokenFile: file}).config()
	require.ErrorContains(t, err, "--token-file needs TLS")
	r := offline(t, "ls", "--cacert", file, "--token-file", file)
	require.Equal(t, exitGeneral, r.code, "no node has denied anything")
	require.Contains(t, r.stderr, "--token-file: the bearer token can't be read")
}

// TestAccess runs the steps of docs/guide/access.md with the command.
func TestAccess(t *testing.T) {
	t.Parallel()
	takesTime(t)
	ca := newTestCA(t)
	s := &serverSet{dir: t.TempDir(), ca: ca}
	s.port = freePorts(t)
	path := func(name string) string { return filepath.Join(s.dir, name) }
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(path(name), []byte(text), 0o600))
	}
	with := map[string][]string{}
	for _, who := range []string{"alice", "root"} {
		r := offline(t, "token", "new", who, "--file", path("tokens"))
		require.Equal(t, 0, r.code, r.stderr)
		write(who, r.stdout)
		with[who] = []string{"--cacert", ca.file, "--token-file", path(who)}
	}
	const before = "rules:\n- {identities: [alice], names: [a/*], may: [lock, read]}\n- " +
		"{identities: [root], may: [operate]}\n"
	write("rules", before)
	cert, key := ca.issue(t, "n1")
	s.extra = func(string) []string {
		return []string{"--tls-cert", cert, "--tls-key", key, "--tokens", path("tokens"), "--rules",
			path("rules"), "--audit", path("audit"), "--audit-grants",
			"--peer-cert", cert, "--peer-key", key, "--peer-ca", ca.file, "--cluster",
			"n1=" + s.address(0, 1)}
	}
	s.start(t, 0)
	s.awaitReady(t, 0)
	run := func(who string, args ...string) exitResult {
		return runZamok(t, &s.devCluster,
			append(append([]string{args[0]}, with[who]...), args[1:]...)...)
	}
	held := startZamok(t, &s.devCluster,
		append(append([]string{"lock", "a/x", "--meta", "root"}, with["alice"]...), "--", "sh",
			"-c", "echo holding; exec sleep 1000")...)
	held.awaitOutput(t, "holding")
	shown := run("alice", "show", "a/x")
	require.Regexp(t, `(?m)IDENTITY\s*$(.|\n)*root +alice`, shown.stdout,
		"what a holder says of itself, and who it is")
	require.Contains(t, run("root", "sessions").stdout, "alice")
	require.Regexp(t, `IDENTITY +SESSIONS +TICKETS +BYTES +USED\nalice +\d+ +\d+ +\d+ +0%\n`,
		run("root", "sessions", "--by", "identity").stdout)
	require.Contains(t, run("alice", "sessions", "--by", "identity").stderr,
		"alice may not operate")

	denied := run("alice", "lock", "b", "--try", "--", "true")
	require.Equal(t, exitDenied, denied.code)
	require.Contains(t, denied.stderr,
		`alice may not lock "b": no rule allows it or any other verb`)
	require.Equal(t, exitDenied, run("root", "show", "a/x").code, "to operate is not to read")
	with["nobody"] = []string{"--cacert", ca.file}
	require.Contains(t, run("nobody", "show", "a/x").stderr, "anonymous@127.0.0.1 may not read")

	write("rules", before+"- {identities: [alice], names: [b], may: [lock]}\n")
	require.NoError(t, s.nodes[0].Process.Signal(syscall.SIGHUP))
	awaitCondition(t, "the rules are reloaded",
		func() bool { return run("alice", "lock", "b", "--try", "--", "true").code == 0 })
	expired := run("root", "expire", "1", "--reason", "a test")
	require.Contains(t, []int{0, exitTargetNotFound}, expired.code, expired.stderr)
	calls := map[string]bool{}
	for line := range strings.Lines(string(readFile(t, path("audit")))) {
		var e struct{ Who, Call, Outcome, Code string }
		require.NoError(t, json.Unmarshal([]byte(line), &e))
		calls[e.Who+" "+e.Call+" "+e.Code] = true
	}
	require.True(t, calls["alice granted "], "%v", calls)
	require.True(t, calls["alice Acquire DENIED"] && calls["root Get DENIED"] &&
		calls["anonymous@127.0.0.1 Get DENIED"], "%v", calls)
	require.True(t, calls["root ExpireSession "] || calls["root ExpireSession NO_SESSION"],
		"%v", calls)
}

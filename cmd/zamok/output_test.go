//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"zamok/client"
)

// Each verb has a description, and one with arguments an example; the defaults are the promised
// ones.
func TestHelp(t *testing.T) {
	t.Parallel()
	flags := map[string][]string{
		"server": {"--listen", `"5750"`, "--peer", "5751", "--http", `"5752"`, "--token-base",
			"--tls-cert", "--peer-ca"},
		"lock": {"--ttl", "15s", "--kill-after", "5s", "--endpoints", "127.0.0.1:5750",
			"ZAMOK_ENDPOINTS", "ZAMOK_LOCK_TOKEN"},
		"dev": {"--nodes", "default 3", "default 5750"},
	}
	verbs := newRoot(&app{getenv: func(string) string { return "" }}).Commands()
	require.Greater(t, len(verbs), 15)
	for _, verb := range verbs {
		verbs = append(verbs, verb.Commands()...)
	}
	for _, verb := range verbs {
		help := runZamok(t, nil, append(strings.Fields(verb.CommandPath())[1:], "--help")...).stdout
		for line := range strings.Lines(help) {
			shell := strings.HasPrefix(line, "  zamok ") || strings.Contains(line, "$")
			require.True(t, shell || utf8.RuneCountInString(line) <= helpWidth+1, "%s: %s",
				verb.Name(), line)
		}
		require.NotEmpty(t, verb.Short, verb.Name())
		name := verb.Name()
		// those are cobra's
		if strings.Contains(verb.Use, " ") && name != "help" && name != "completion" {
			require.Contains(t, verb.Example, verb.CommandPath())
			require.NotEmpty(t, verb.Long, name)
		}
	}
	for verb, texts := range flags {
		r := runZamok(t, nil, verb, "--help")
		require.Equal(t, 0, r.code, r.stderr)
		for _, text := range texts {
			require.Contains(t, r.stdout, text)
		}
	}
	r := runZamok(t, nil, "completion", "bash")
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout, "__start_zamok")
	require.Contains(t, runZamok(t, nil, "__complete", "memb").stdout, "members\t")
}

// A flag's value can come from the environment, and the flag takes precedence.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing")
	for name, test := range map[string]struct {
		env  string
		args []string
		code int
		want string
	}{
		"json": {"ZAMOK_OUTPUT=json", []string{"version"}, 0, `"version":`},
		"the flag is stronger": {"ZAMOK_OUTPUT=json", []string{"version", "-o", "text"}, 0,
			"zamok "},
		"an odd format": {"ZAMOK_OUTPUT=xml", []string{"version"}, exitGeneral,
			"text or json"},
		"endpoints": {"ZAMOK_ENDPOINTS=127.0.0.1:1,127.0.0.1:2",
			[]string{"ls", "--timeout", "1s"}, exitUnavailable, "127.0.0.1:2"},
		"authorities":        {"ZAMOK_CACERT=" + missing, []string{"ls"}, exitGeneral, missing},
		"half a certificate": {"ZAMOK_CERT=" + missing, []string{"ls"}, exitGeneral, "key"},
		"half a key": {"ZAMOK_KEY=" + missing, []string{"ls"}, exitGeneral,
			"certificate"},
		"a token without TLS": {"ZAMOK_TOKEN_FILE=" + missing, []string{"ls"}, exitGeneral,
			"needs TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &process{Cmd: zamokCommand(test.args...), done: make(chan struct{})}
			r.Env = append(r.Env, test.env)
			r.Stdout, r.Stderr = &r.stdout, &r.stderr
			r.start(t)
			end := r.wait(t)
			require.Equal(t, test.code, end.code, end.stderr)
			require.Contains(t, end.stdout+end.stderr, test.want)
		})
	}
}

// A server's log is for programs if that is asked for, every line of it, raft's too; so are
// profiles.
func TestServerJSONLogsAndPprof(t *testing.T) {
	t.Parallel()
	port := freePorts(t)
	at := func(i int) string { return "127.0.0.1:" + strconv.Itoa(port+i) }
	r := startZamok(t, nil, "server", "--id", "n1", "--data", filepath.Join(t.TempDir(), "n1"),
		"--cluster", "n1="+at(1),
		"--listen", at(0), "--http", at(2), "--profile", "--log-format", "json")
	r.awaitOutput(t, `"leading"`)
	answer, err := http.Get("http://" + at(2) + "/debug/pprof/cmdline")
	require.NoError(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Contains(t, string(body), "--profile")
	require.NoError(t, r.Process.Signal(syscall.SIGTERM))
	end := r.wait(t)
	require.Equal(t, 0, end.code, end.stderr)
	require.Empty(t, end.stdout)
	raft := false
	for line := range strings.Lines(end.stderr) {
		var entry map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &entry), line)
		require.Contains(t, entry, "time")
		require.Contains(t, entry, "level")
		raft = raft || strings.HasPrefix(entry["msg"].(string), "raft: ")
	}
	require.True(t, raft, "raft logs something too")
}

// What the release of a lock reports after the command has ended by itself.
func TestLossIsDistinguishedFromUnconfirmedRelease(t *testing.T) {
	var errs bytes.Buffer
	b := &lockRunner{
		holdFlags: &holdFlags{
			connectionFlags: connectionFlags{
				app: &app{stderr: &errs, getenv: func(string) string { return "" }}}}}
	require.NoError(t, b.lossOnRelease(nil))
	require.Empty(t, errs.String())
	require.NoError(t,
		b.lossOnRelease(&client.Error{Kind: client.ErrUnavailable, Outcome: client.Unknown,
			Message: "no answer"}))
	require.Contains(t, errs.String(), "did not confirm")
	require.Contains(t, errs.String(), "no answer")
	require.ErrorIs(t,
		b.lossOnRelease(&client.Error{Kind: client.ErrLost, Outcome: client.Unknown}),
		client.ErrLost)
}

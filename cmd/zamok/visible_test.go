//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/view"
	"zamok/api/visible"
	"zamok/client"
	"zamok/client/admin"
)

// misleading are texts that the cluster takes as names and labels, and that a terminal should not
// be shown as they are. Meta may also have control characters and bytes that are no text.
var misleading = []string{
	"\u202ecod.tsil\u202c", "\u2066\u2067\u2068a\u2069", "\u200e\u200f\u061c",
	"st\u200bo\u200cc\u200dk\ufeff\u2060", "so\u00adft",
	"\U000e0001\U000e0061\U000e007f", "a\ufe0f\U000e0100", "\u034f\u115f\u1160\u3164\uffa0\u2800",
	"a\u2028b\u2029c", "a\u00a0b\u3000c",
	"\u0301\u0302a", "a" + strings.Repeat("\u0301", 40), "東京の在庫", "\ue000\U0010ffff",
	"stock  mutex  7  0", "a (exclusive), b", " ",
	strings.Repeat("\U000e0041", 64), strings.Repeat("long", 64),
}

// here runs a verb in this process.
func here(t *testing.T, c *devCluster, args ...string) exitResult {
	var stdout, stderr bytes.Buffer
	getenv := func(name string) string {
		return map[string]string{"ZAMOK_ENDPOINTS": c.endpoint()}[name]
	}
	code := run(t.Context(),
		app{name: "zamok", stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr,
			getenv: getenv}, withTestTimeout(args))
	return exitResult{code, stdout.String(), stderr.String()}
}

// TestUntrustedTextIsEscaped: whatever names and labels clients choose, every verb prints visible
// characters only, and each record in one line.
func TestUntrustedTextIsEscaped(t *testing.T) {
	t.Parallel()
	const prefix = "visible/"
	c := sharedCluster(t)
	began, err := admin.New(c.client(t)).Now(context.Background())
	require.NoError(t, err)
	for _, text := range misleading {
		cl, err := client.New(client.Config{Endpoints: []string{c.endpoint()}, TTL: 3 * testTimeout,
			RequestTimeout: testTimeout, Label: text, Meta: []byte(text + "\x1b[2J\r\n\xff")})
		require.NoError(t, err)
		t.Cleanup(func() { cl.Close() })
		_, err = cl.Lock(context.Background(), prefix+text,
			client.WithMeta([]byte(text+"\x1b[2J\r\n\x00\u009b")))
		require.NoError(t, err)
	}
	check := func(code int, args ...string) exitResult {
		r := here(t, c, args...)
		assert.Equal(t, code, r.code, "%q: %s", args, r.stderr)
		assert.Equal(t, visible.Lines(r.stdout), r.stdout, "%q", args)
		assert.Equal(t, visible.Lines(r.stderr), r.stderr, "%q", args)
		return r
	}
	inJSON := func(args ...string) {
		r := check(0, append(args, "-o", "json")...)
		assert.True(t, json.Valid([]byte(r.stdout)), "%q: %s", args, r.stdout)
	}
	lines := func(text string) int { return strings.Count(text, "\n") }

	assert.Equal(t, 1+len(misleading), lines(check(0, "ls", prefix).stdout))
	assert.Equal(t, 1+len(misleading),
		lines(check(0, "ls", prefix, "--limit", strconv.Itoa(len(misleading)-1)).stdout))
	inJSON("ls", prefix)
	check(0, "sessions")
	inJSON("sessions")
	for _, text := range misleading {
		name := prefix + text
		assert.Equal(t, 4, lines(check(0, "show", name).stdout), "%+q", name)
		assert.Equal(t, 1,
			lines(check(exitNotAcquired, "lock", name, "--try", "--", "true").stderr), "%+q", name)
		inJSON("show", name)
	}
	for _, name := range []string{prefix + misleading[0], prefix + misleading[len(misleading)-2]} {
		file := filepath.Join(t.TempDir(), "file")
		check(exitNotAcquired, "acquire", name, "--for", "1m", "--try", "--file", file)
		// long enough to find the leader
		check(exitWaitTimeout, "lock", name, "--with", prefix+"x\u202e", "--wait", "2s",
			"--", "true")
		check(exitGeneral, "release", name, "--force", "--reason", "a\u202e")
		check(exitTargetNotFound, "release", name+"free", "--force", "--token", "1", "--reason",
			"a\u202e")
		check(0, "acquire", name+"\u200b", "--for", "1m", "--file", file)
		check(0, "renew", file)
		check(0, "release", "--mine", file)
		check(0, "show", name+"free")
		check(exitGeneral, "lock", name+"\x1b", "--try", "--", "true")
		check(exitGeneral, "\u202e"+name)
		check(exitGeneral, "ls", "--\x1b[2J\u202e")
		check(0, "release", name, "--force", "--token",
			fmt.Sprint(readJSON[view.Lock](t, c, "show", name).Holding[0].Token), "--reason",
			"\u202ea\u200b")
	}

	for _, format := range []string{"text", "json"} {
		var out lockedBuffer
		watched, stop := context.WithCancel(t.Context())
		defer stop()
		done := make(chan struct{})
		go func() {
			defer close(done)
			getenv := func(name string) string {
				return map[string]string{"ZAMOK_ENDPOINTS": c.endpoint()}[name]
			}
			run(watched, app{stdout: &out, stderr: &out, getenv: getenv},
				[]string{"watch", prefix, "--from", strconv.FormatUint(began.Index, 10), "-o",
					format})
		}()
		awaitCondition(t, "the events",
			func() bool { return lines(out.String()) >= len(misleading)+4 })
		text := out.String()
		stop()
		<-done
		assert.Equal(t, visible.Lines(text), text)
		for line := range strings.Lines(text) {
			if format == "json" {
				assert.True(t, json.Valid([]byte(line)), line)
			} else {
				assert.Regexp(t, `^\d+  [a-z]+ +\S.*session \d+`, line)
			}
		}
	}
}

// TestLogsAreVisible: slog quotes what is no text and leaves some characters that can't be seen,
// and JSON passes them on.
func TestLogsAreVisible(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		for _, text := range append([]string{"\x1b[2J\r\n", "\u009b", "\xff\x00"}, misleading...) {
			var out bytes.Buffer
			a := &app{stderr: &out, logFormat: format, logLevel: "info"}
			a.logger().Info(text, text, text, "error", client.Blocker{Name: text, Label: text})
			line, found := strings.CutSuffix(out.String(), "\n")
			require.True(t, found)
			assert.Equal(t, visible.Line(line), line, "%s: %+q", format, text)
			if format == "json" {
				assert.True(t, json.Valid([]byte(line)), line)
			}
		}
	}
}

// TestAShellReadsWhatWasMeant: a name that is printed for the next command line is that name again.
func TestAShellReadsWhatWasMeant(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"it's": `'it'\''s'`, "a\\b": `'a\b'`, "\u202ea'\\b": `$'\u202ea\'\\b'`,
		"\U000e0041": `$'\U000e0041'`,
	} {
		require.Equal(t, want, shellQuote(text))
	}
}

// TestACommandGetsNoSecret: its environment has what the guide lists, and the process list shows
// the command line as given.
func TestACommandGetsNoSecret(t *testing.T) {
	t.Parallel()
	script :=
		`tr '\0' '\n' </proc/$$/environ | cut -d= -f1; echo; tr '\0' '\n' </proc/$PPID/cmdline; echo; tr '\0' '\n' </proc/$PPID/environ | cut -d= -f1`
	p := startZamok(t, sharedCluster(t), "lock", "visible-to-a-child", "--", "sh", "-c", script)
	r := p.wait(t)
	require.Equal(t, 0, r.code, r.stderr)
	parts := strings.Split(r.stdout, "\n\n")
	require.Len(t, parts, 3)
	extra := map[string]bool{}
	for _, name := range strings.Fields(parts[0]) {
		extra[name] = true
	}
	for _, name := range strings.Fields(parts[2]) {
		delete(extra, name)
	}
	delete(extra, "PWD") // some shells'
	require.Equal(t, map[string]bool{
		"ZAMOK_LOCK_NAME": true, "ZAMOK_LOCK_TOKEN": true, "ZAMOK_LOCK_DEADLINE": true,
		"ZAMOK_LOCK_SESSION": true, "ZAMOK_LOCK_TICKET": true,
	}, extra)
	require.Equal(t, strings.Join(p.Args, "\n"), strings.TrimSuffix(parts[1], "\n"))
}

// TestNoFlagIsASecret: what stands in a command line is seen by every user of the machine.
func TestNoFlagIsASecret(t *testing.T) {
	t.Parallel()
	// and what it takes: "" is a bool
	named := regexp.MustCompile(`--(\S*(?:token|key|secret|pass)\S*)( \S+)? {2,}`)
	var look func(cmd *cobra.Command)
	found := 0
	look = func(cmd *cobra.Command) {
		for _, flag := range named.FindAllStringSubmatch(cmd.Flags().FlagUsages(), -1) {
			found++
			assert.Contains(t, []string{"file", "number", ""}, strings.TrimSpace(flag[2]),
				"%s --%s", cmd.CommandPath(), flag[1])
		}
		for _, verb := range cmd.Commands() {
			look(verb)
		}
	}
	look(newRoot(&app{getenv: func(string) string { return "" }}))
	require.Greater(t, found, 5)
}

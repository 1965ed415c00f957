//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/client"
)

// readJSON runs a verb that must succeed, as JSON.
func readJSON[D any](t *testing.T, c *devCluster, args ...string) (doc D) {
	t.Helper()
	r := runZamok(t, c, append(args, "-o", "json")...)
	require.Equal(t, 0, r.code, r.stderr)
	decoder := json.NewDecoder(strings.NewReader(r.stdout))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&doc), r.stdout)
	require.False(t, decoder.More(), "one document: %s", r.stdout)
	return doc
}

type lsDoc struct {
	Locks []lockDoc `json:"locks"`
	More  bool      `json:"more"`
	Stamp stampDoc  `json:"stamp"`
}

// holdLock has a command hold a lock until the test ends.
func holdLock(t *testing.T, c *devCluster, args ...string) *process {
	t.Helper()
	r := startZamok(t, c, append(append([]string{"lock"}, args...), "--", "sh", "-c", "echo holding; exec sleep 1000")...)
	r.awaitOutput(t, "holding")
	return r
}

func TestShow(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	holdLock(t, c, "look/a", "--meta", "the nightly\x1b[2J report", "--max-hold", "1h")
	startZamok(t, c, "lock", "look/a", "--meta", "the second", "--wait", "1h", "--", "true")
	c.awaitWaiters(t, "look/a", 1)
	startZamok(t, c, "lock", "look/a", "--meta", "the third", "--shared", "--", "true")
	c.awaitWaiters(t, "look/a", 2)
	holdLock(t, c, "look/pool", "--permits", "2", "--of", "5")

	lock := readJSON[detailDoc](t, c, "show", "look/a")
	require.Len(t, lock.Held, 1)
	require.Len(t, lock.Queue, 2)
	holder, second, third := lock.Held[0], lock.Queue[0], lock.Queue[1]
	require.Equal(t, "the nightly\x1b[2J report", holder.Metadata, "programs get what was written")
	require.Equal(t, []itemDoc{{Name: "look/a", Mode: "exclusive"}}, holder.Items)
	require.NotEmpty(t, holder.Held)
	require.NotEmpty(t, holder.LeaseLeft)
	require.NotEmpty(t, holder.HoldLeft)
	require.NotZero(t, holder.Token)
	require.NotEmpty(t, second.Waited)
	require.Equal(t, "shared", third.Items[0].Mode)
	require.Equal(t, holder.Session, second.Blockers[0].Session)
	require.Equal(t, "holder", second.Blockers[0].By)

	text := runZamok(t, c, "show", "look/a").stdout
	for _, want := range []string{
		"look/a (mutex): held by 1, 2 waiting", `the nightly\x1b[2J report`, "the second", "the third", strconv.FormatUint(holder.Token, 10),
		fmt.Sprintf("session %d, the holder", holder.Session), fmt.Sprintf("session %d, ahead", second.Session), "AT MOST",
	} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "\x1b", "what others wrote moves no cursor here")
	require.Contains(t, runZamok(t, c, "show", "look/pool").stdout, "2 of 5")
	require.Equal(t, "look/nobody is free.\n", runZamok(t, c, "show", "look/nobody").stdout)

	all := readJSON[lsDoc](t, c, "ls", "look/")
	require.Equal(t, []lockDoc{
		{Name: "look/a", Kind: "mutex", Holders: 1, Waiters: 2}, {Name: "look/pool", Kind: "permits", Limit: 5, Holders: 1},
	}, all.Locks)
	first := runZamok(t, c, "ls", "look/", "--limit", "1").stdout
	require.Contains(t, first, "look/a")
	require.NotContains(t, first, "look/pool")
	require.Contains(t, first, "--after 'look/a'")
	require.Contains(t, runZamok(t, c, "ls", "look/", "--limit", "1", "--after", "look/a").stdout, "look/pool")
	require.Equal(t, `No lock whose name begins with "look/none" is in use.`+"\n", runZamok(t, c, "ls", "look/none").stdout)

	sessions := readJSON[struct {
		Sessions []sessionDoc `json:"sessions"`
		More     bool         `json:"more"`
		Stamp    stampDoc     `json:"stamp"`
	}](t, c, "sessions", "--after", strconv.FormatUint(holder.Session-1, 10), "--limit", "1")
	require.Len(t, sessions.Sessions, 1)
	require.Equal(t, holder.Session, sessions.Sessions[0].Session)
	require.Equal(t, 1, sessions.Sessions[0].Tickets)
	require.Equal(t, "15s", sessions.Sessions[0].TTL)
	require.Contains(t, runZamok(t, c, "sessions").stdout, strconv.FormatUint(holder.Session, 10))

	token := strconv.FormatUint(holder.Token, 10)
	r := runZamok(t, c, "check", "look/a", token)
	require.Equal(t, exitResult{0, "held\n", ""}, r)
	require.Equal(t, exitResult{exitNotHeld, "not held\n", ""}, runZamok(t, c, "check", "look/a", "1"))
	require.Equal(t, exitNotHeld, runZamok(t, c, "check", "look/a", "1", "-o", "json").code)
	grant := []string{"--session", strconv.FormatUint(holder.Session, 10), "--ticket", strconv.FormatUint(holder.Ticket, 10)}
	require.Equal(t, 0, runZamok(t, c, append([]string{"check", "look/a", token}, grant...)...).code)
}

// An endpoint may be a name of several nodes; what can't be one is refused.
func TestEndpointsMayBeNames(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	r := runUntilAvailable(t, c, "now", "--endpoints", fmt.Sprintf("dns:///localhost:%d", c.port))
	require.Equal(t, 0, r.code, r.stderr)
	r = runZamok(t, c, "now", "--endpoints", "srv:///localhost:5750")
	require.Equal(t, exitGeneral, r.code)
	require.Contains(t, r.stderr, "srv:///_zamok._tcp.example.com")
}

// However many locks there are, all can be listed, page by page.
func TestLsPages(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	cl := c.client(t)
	const perTicket, tickets = 60, 2*pageSizeMax/60 + 1
	for i := range tickets {
		var items []client.Item
		for j := range perTicket {
			items = append(items, client.ExclusiveItem(fmt.Sprintf("many/%05d", i*perTicket+j)))
		}
		_, err := cl.LockAll(t.Context(), items)
		require.NoError(t, err)
	}
	for limit, want := range map[string]int{"0": perTicket * tickets, "1500": 1500, "1000": 1000, "2040": perTicket * tickets} {
		all := readJSON[lsDoc](t, c, "ls", "many/", "--limit", limit)
		require.Len(t, all.Locks, want, limit)
		require.Equal(t, want < perTicket*tickets, all.More, limit)
		for i, l := range all.Locks {
			require.Equal(t, fmt.Sprintf("many/%05d", i), l.Name)
		}
	}
}

func TestNowIsMonotonic(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	one, two := readJSON[stampDoc](t, c, "now"), readJSON[stampDoc](t, c, "now")
	require.True(t, one.Term < two.Term || one.Term == two.Term && one.Index < two.Index, "%v, then %v", one, two)
	require.Contains(t, runZamok(t, c, "now").stdout, "term ")
}

func TestWatchLocks(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	from := strconv.FormatUint(readJSON[stampDoc](t, c, "now").Index, 10)
	text, lines := startZamok(t, c, "watch", "watched/", "--from", from), startZamok(t, c, "watch", "watched/", "--from", from, "-o", "json")
	require.Equal(t, 0, runZamok(t, c, "lock", "watched/a", "--with", "hidden", "--", "true").code)
	text.awaitOutput(t, "released")
	lines.awaitOutput(t, "released")
	var happened []string
	scanner := bufio.NewScanner(strings.NewReader(lines.stdout.String()))
	for scanner.Scan() {
		var e eventDoc
		require.NoError(t, json.Unmarshal(scanner.Bytes(), &e), "one event a line")
		require.Equal(t, []itemDoc{{Name: "watched/a", Mode: "exclusive"}}, e.Items)
		happened = append(happened, e.Event)
	}
	require.Equal(t, []string{"granted", "released"}, happened)
	require.Contains(t, text.stdout.String(), "watched/a (exclusive)")
	require.NotContains(t, text.stdout.String()+lines.stdout.String(), "hidden")
	for _, r := range []*process{text, lines} {
		require.NoError(t, r.Process.Signal(syscall.SIGINT))
		end := r.wait(t)
		require.Equal(t, 0, end.code, end.stderr)
		require.Empty(t, end.stderr)
	}
}

// A watch without a prefix shows the ends of sessions, too.
func TestWatchSessions(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	from := strconv.FormatUint(readJSON[stampDoc](t, c, "now").Index, 10)
	require.Equal(t, 0, runZamok(t, c, "lock", "ends/a", "--", "true").code)
	text, lines := startZamok(t, c, "watch", "--from", from), startZamok(t, c, "watch", "--from", from, "-o", "json")
	sentence := regexp.MustCompile(`(?m)^\d+  ended       session \d+ \(.+\): (closed|expired|disconnected|evicted)`)
	awaitCondition(t, "the end of a session, for people", func() bool { return sentence.MatchString(text.stdout.String()) })
	awaitCondition(t, "the end of a session, for programs", func() bool {
		for line := range strings.Lines(lines.stdout.String()) {
			var e map[string]string
			if json.Unmarshal([]byte(line), &e) == nil && e["event"] == "ended" {
				return e["session"] != "" && e["reason"] != "" && e["label"] != "" && e["ticket"] == ""
			}
		}
		return false
	})
	for _, r := range []*process{text, lines} {
		require.NoError(t, r.Process.Signal(syscall.SIGINT))
		require.Equal(t, 0, r.wait(t).code)
	}
}

// Every verb names the nodes that did not answer, and every usage error says what to type.
func TestOperatorCommandErrors(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no server":         {[]string{"ls", "--endpoints", "127.0.0.1:1", "--timeout", "300ms"}, "127.0.0.1:1"},
		"no server, watch":  {[]string{"watch", "--endpoints", "127.0.0.1:1", "--timeout", "300ms"}, "unavailable"},
		"no server, backup": {[]string{"backup", os.DevNull + "x", "--endpoints", "127.0.0.1:1", "--timeout", "300ms"}, "no backup was made"},
		"no time":           {[]string{"now", "--timeout", "0s"}, "--timeout is 0s"},
		"a bad name":        {[]string{"show", "a\nb"}, "name"},
		"no name":           {[]string{"show"}, "accepts 1 arg"},
		"a word as token":   {[]string{"check", "x", "one"}, "it is a whole number"},
		"half a grant":      {[]string{"check", "x", "1", "--session", "1"}, "give both"},
		"no limit":          {[]string{"sessions", "--limit", "0"}, "above 0"},
		"by something else": {[]string{"sessions", "--by", "label"}, "must be identity"},
		"identities after":  {[]string{"sessions", "--by", "identity", "--after", "3"}, "use --limit"},
		"no force":          {[]string{"release", "x", "--reason", "y"}, "--force"},
		"no reason":         {[]string{"release", "x", "--force"}, "--reason"},
		"nobody holds it":   {[]string{"release", "mistake/x", "--force", "--reason", "y"}, "nobody holds mistake/x; nothing was done"},
		"nor this token":    {[]string{"release", "mistake/x", "--force", "--reason", "y", "--token", "7"}, "nobody holds mistake/x with a token up to 7"},
		"nobody to ask":     {[]string{"release", "x", "--force", "--reason", "y", "-o", "json"}, "--token"},
		"never issued":      {[]string{"check", "x", "9007199254740992000"}, "this cluster has issued none above"},
		"release of that":   {[]string{"release", "x", "--force", "--reason", "y", "--token", "9007199254740992000"}, "this cluster has issued none above"},
		"no such session":   {[]string{"expire", "7", "--reason", "y"}, "no session 7 lives; nothing was done"},
		"a silent expiry":   {[]string{"expire", "7"}, "--reason"},
		"no such node":      {[]string{"remove", "n9"}, `"n9" is no node`},
		"transfer to none":  {[]string{"transfer", "n9"}, `"n9" is no node`},
		"a bad address":     {[]string{"join", "n9", "nowhere"}, "peer"},
		"another address":   {[]string{"join", "n1", "127.0.0.1:1"}, "n1 is a member at"},
		"a bad shape":       {[]string{"bench", "sideways"}, "sideways"},
		"no clients":        {[]string{"bench", "--clients", "0"}, "--clients is 0"},
		"too many waiters":  {[]string{"bench", "parked", "--clients", "1", "--waiters", "5000"}, "--waiters is 5000"},
		"no backup there":   {[]string{"restore", "no-such-file", "--id", "r1", "--data", "x", "--cluster", "r1=h:1"}, "no such file"},
		"half a restore":    {[]string{"restore", "f", "--id", "r1"}, "--cluster"},
		"too wide":          {[]string{"restore", "f", "--id", "r1", "--data", "x", "--cluster", "r1=h:1,r2=h:2"}, "name r1 alone"},
		"too quiet":         {[]string{"restore", "f", "--id", "r1", "--data", "x", "--cluster", "r1=h:1", "--quiet", "169h"}, "at most 168h1m"},
		"too long a ttl":    {[]string{"settings", "--longest-ttl", "169h"}, "longest_ttl: is 169h0m0s, which is not between 1m0s and 168h0m0s"},
		"no ttl at all":     {[]string{"settings", "--longest-ttl", "0s"}, "above 0"},
		"no quota at all":   {[]string{"settings", "--max-bytes", "0"}, "above 0"},
		"too large a share": {[]string{"settings", "--identity-share", "101"}, "quotas.share: is 101"},
		"two settings":      {[]string{"settings", "--longest-ttl", "1h", "--max-bytes", "5"}, "one after the other"},
		"an odd format":     {[]string{"ls", "-o", "xml"}, "text or json"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, run := exitGeneral, runUntilAvailable
			switch {
			case strings.HasPrefix(name, "no server"):
				code, run = exitUnavailable, runZamok
			case slices.Contains([]string{"no such session", "no such node", "transfer to none", "nobody holds it", "nor this token"}, name):
				code = exitTargetNotFound
			}
			r := run(t, c, test.args...)
			require.Equal(t, code, r.code, r.stdout+r.stderr)
			require.NotContains(t, r.stderr, "may have taken effect")
			require.Contains(t, r.stderr, test.want)
			require.Empty(t, r.stdout)
		})
	}
}

func TestDevHTTPEndpoints(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ready\n", "/metrics": "zamok_build_info{version="} {
		require.Eventually(t, func() bool {
			answer, err := http.Get("http://127.0.0.1:" + strconv.Itoa(c.port+2) + path)
			if err != nil {
				return false
			}
			defer answer.Body.Close()
			body, err := io.ReadAll(answer.Body)
			return err == nil && answer.StatusCode == http.StatusOK && strings.Contains(string(body), want)
		}, testTimeout, 20*time.Millisecond, path)
	}
}

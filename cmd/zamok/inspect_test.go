//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/view"
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

// holdLock has a command hold a lock until the test ends.
func holdLock(t *testing.T, c *devCluster, args ...string) *process {
	t.Helper()
	r := startZamok(t, c, append(append([]string{"lock"}, args...), "--", "sh", "-c",
		"echo holding; exec sleep 1000")...)
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

	lock := readJSON[view.Lock](t, c, "show", "look/a")
	require.Len(t, lock.Holding, 1)
	require.Len(t, lock.Queue, 2)
	holder, second, third := lock.Holding[0], lock.Queue[0], lock.Queue[1]
	require.Equal(t, "the nightly\x1b[2J report", holder.Meta, "programs get what was written")
	require.Equal(t, []view.Item{{Name: "look/a", Mode: "exclusive"}}, holder.Items)
	require.NotNil(t, holder.Held)
	require.Positive(t, holder.LeaseLeft)
	require.Positive(t, *holder.HoldLeft)
	require.NotZero(t, holder.Token)
	require.NotNil(t, second.Waited)
	require.EqualValues(t, "shared", third.Items[0].Mode)
	require.Equal(t, holder.Session, second.Blockers[0].Session)
	require.Equal(t, "holder", second.Blockers[0].By)

	text := runZamok(t, c, "show", "look/a").stdout
	for _, want := range []string{
		"look/a (mutex): held by 1, 2 waiting", `the nightly\x1b[2J report`, "the second",
		"the third", fmt.Sprint(holder.Token),
		fmt.Sprintf("session %d, the holder", holder.Session),
		fmt.Sprintf("session %d, ahead", second.Session), "HOLD LEFT",
	} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "\x1b", "what others wrote moves no cursor here")
	require.Contains(t, runZamok(t, c, "show", "look/pool").stdout, "2 of 5")
	require.Equal(t, "look/nobody is free.\n", runZamok(t, c, "show", "look/nobody").stdout)

	all := readJSON[view.Locks](t, c, "ls", "look/")
	require.Equal(t, []view.LockBrief{
		{Name: "look/a", Kind: "mutex", Holders: 1, Waiters: 2},
		{Name: "look/pool", Kind: "permits", Of: 5, Holders: 1},
	}, all.Locks)
	first := runZamok(t, c, "ls", "look/", "--limit", "1").stdout
	require.Contains(t, first, "look/a")
	require.NotContains(t, first, "look/pool")
	require.Contains(t, first, "--after 'look/a'")
	require.Contains(t, runZamok(t, c, "ls", "look/", "--limit", "1", "--after", "look/a").stdout,
		"look/pool")
	require.Equal(t, `No lock whose name begins with "look/none" is in use.`+"\n",
		runZamok(t, c, "ls", "look/none").stdout)

	sessions := readJSON[view.Sessions](t, c, "sessions", "--after", fmt.Sprint(holder.Session-1),
		"--limit", "1")
	require.Len(t, sessions.Sessions, 1)
	require.Equal(t, holder.Session, sessions.Sessions[0].Session)
	require.EqualValues(t, 1, sessions.Sessions[0].Tickets)
	require.Equal(t, view.Duration(15*time.Second), sessions.Sessions[0].TTL)
	require.Equal(t, holder.Session, sessions.Next)
	require.Contains(t, runZamok(t, c, "sessions").stdout, fmt.Sprint(holder.Session))

	token := fmt.Sprint(holder.Token)
	r := runZamok(t, c, "check", "look/a", token)
	require.Equal(t, exitResult{0, "held\n", ""}, r)
	require.Equal(t, exitResult{exitNotHeld, "not held\n", ""},
		runZamok(t, c, "check", "look/a", "1"))
	require.Equal(t, exitNotHeld, runZamok(t, c, "check", "look/a", "1", "-o", "json").code)
	grant := []string{"--session", fmt.Sprint(holder.Session), "--ticket",
		fmt.Sprint(holder.Ticket)}
	require.Equal(t, 0, runZamok(t, c,
		append([]string{"check", "look/a", token}, grant...)...).code)
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
	for limit, want := range map[string]int{"0": perTicket * tickets, "1500": 1500, "1000": 1000,
		"2040": perTicket * tickets} {
		all := readJSON[view.Locks](t, c, "ls", "many/", "--limit", limit)
		require.Len(t, all.Locks, want, limit)
		if want < perTicket*tickets {
			require.Equal(t, all.Locks[want-1].Name, all.Next, limit)
		} else {
			require.Empty(t, all.Next, limit)
		}
		for i, l := range all.Locks {
			require.Equal(t, fmt.Sprintf("many/%05d", i), l.Name)
		}
	}
}

func TestNowIsMonotonic(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	one, two := readJSON[view.Stamp](t, c, "now"), readJSON[view.Stamp](t, c, "now")
	require.True(t, one.Term < two.Term || one.Term == two.Term && one.Index < two.Index,
		"%v, then %v", one, two)
	require.Contains(t, runZamok(t, c, "now").stdout, "term ")
}

func TestWatchLocks(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	from := fmt.Sprint(readJSON[view.Stamp](t, c, "now").Index)
	text, lines := startZamok(t, c, "watch", "watched/", "--from", from),
		startZamok(t, c, "watch", "watched/", "--from", from, "-o", "json")
	require.Equal(t, 0, runZamok(t, c, "lock", "watched/a", "--with", "hidden", "--", "true").code)
	text.awaitOutput(t, "released")
	lines.awaitOutput(t, "released")
	var happened []string
	scanner := bufio.NewScanner(strings.NewReader(lines.stdout.String()))
	for scanner.Scan() {
		var e eventDoc
		require.NoError(t, json.Unmarshal(scanner.Bytes(), &e), "one event a line")
		require.Equal(t, []view.Item{{Name: "watched/a", Mode: "exclusive"}}, e.Items)
		happened = append(happened, e.Kind)
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
	from := fmt.Sprint(readJSON[view.Stamp](t, c, "now").Index)
	require.Equal(t, 0, runZamok(t, c, "lock", "ends/a", "--", "true").code)
	text, lines := startZamok(t, c, "watch", "--from", from),
		startZamok(t, c, "watch", "--from", from, "-o", "json")
	sentence := regexp.MustCompile(
		`(?m)^\d+  ended       session \d+ \(.+\): (closed|expired|disconnected|expired by operator)`)
	awaitCondition(t, "the end of a session, for people",
		func() bool { return sentence.MatchString(text.stdout.String()) })
	awaitCondition(t, "the end of a session, for programs", func() bool {
		for line := range strings.Lines(lines.stdout.String()) {
			var e map[string]string
			if json.Unmarshal([]byte(line), &e) == nil && e["event"] == "ended" {
				return e["session"] != "" && e["reason"] != "" && e["label"] != "" &&
					e["ticket"] == ""
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
		"no server": {[]string{"ls", "--endpoints", "127.0.0.1:1", "--timeout", "300ms"},
			"127.0.0.1:1"},
		"no server, watch": {[]string{"watch", "--endpoints", "127.0.0.1:1", "--timeout", "300ms"},
			"unavailable"},
		"no server, backup": {[]string{"backup", os.DevNull + "x", "--endpoints", "127.0.0.1:1",
			"--timeout", "300ms"}, "no backup was made"},
		"no time":           {[]string{"now", "--timeout", "0s"}, "--timeout is 0s"},
		"a bad name":        {[]string{"show", "a\nb"}, "name"},
		"no name":           {[]string{"show"}, "accepts 1 arg"},
		"a word as token":   {[]string{"check", "x", "one"}, "must be a whole number"},
		"half a grant":      {[]string{"check", "x", "1", "--session", "1"}, "give both"},
		"no limit":          {[]string{"sessions", "--limit", "0"}, "above 0"},
		"by something else": {[]string{"sessions", "--by", "label"}, "must be identity"},
		"identities after": {[]string{"sessions", "--by", "identity", "--after", "3"},
			"use --limit"},
		"no force":  {[]string{"release", "x", "--reason", "y"}, "--force"},
		"no reason": {[]string{"release", "x", "--force"}, "--reason"},
		"nobody holds it": {[]string{"release", "mistake/x", "--force", "--reason", "y"},
			"nobody holds mistake/x; nothing was done"},
		"nor this token": {[]string{"release", "mistake/x", "--force", "--reason", "y",
			"--token", "7"}, "nobody holds mistake/x with a token up to 7"},
		"nobody to ask": {[]string{"release", "x", "--force", "--reason", "y", "-o", "json"},
			"--token"},
		"never issued": {[]string{"check", "x", "9007199254740992000"},
			"this cluster has issued none above"},
		"release of that": {[]string{"release", "x", "--force", "--reason", "y", "--token",
			"9007199254740992000"}, "this cluster has issued none above"},
		"no such session": {[]string{"expire", "7", "--reason", "y"},
			"no live session 7; nothing was done"},
		"a silent expiry":  {[]string{"expire", "7"}, "--reason"},
		"no such node":     {[]string{"remove", "n9"}, `"n9" is no node`},
		"transfer to none": {[]string{"transfer", "n9"}, `"n9" is no node`},
		"a bad address":    {[]string{"join", "n9", "nowhere"}, "peer"},
		"another address":  {[]string{"join", "n1", "127.0.0.1:1"}, "n1 is a member at"},
		"a bad shape":      {[]string{"bench", "sideways"}, "sideways"},
		"no clients":       {[]string{"bench", "--clients", "0"}, "--clients is 0"},
		"too many waiters": {[]string{"bench", "parked", "--clients", "1", "--waiters", "5000"},
			"--waiters is 5000"},
		"no backup there": {[]string{"restore", "no-such-file", "--id", "r1", "--data", "x",
			"--cluster", "r1=h:1"}, "no such file"},
		"half a restore": {[]string{"restore", "f", "--id", "r1"}, "--cluster"},
		"too wide": {[]string{"restore", "f", "--id", "r1", "--data", "x", "--cluster",
			"r1=h:1,r2=h:2"}, "name r1 alone"},
		"too quiet": {[]string{"restore", "f", "--id", "r1", "--data", "x", "--cluster",
			"r1=h:1", "--hold-off", "169h"}, "from 0 to 168h1m"},
		"too long a ttl": {[]string{"settings", "--longest-ttl", "169h"},
			"longest_ttl: is 169h0m0s, which is not between 1m0s and 168h0m0s"},
		"no ttl at all":   {[]string{"settings", "--longest-ttl", "0s"}, "above 0"},
		"no quota at all": {[]string{"settings", "--max-bytes", "0"}, "above 0"},
		"too large a share": {[]string{"settings", "--identity-share", "101"},
			"quotas.share: is 101"},
		"two settings": {[]string{"settings", "--longest-ttl", "1h", "--max-bytes", "5"},
			"one after the other"},
		"an odd format": {[]string{"ls", "-o", "xml"}, "text or json"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, run := exitGeneral, runUntilAvailable
			switch {
			case strings.HasPrefix(name, "no server"):
				code, run = exitUnavailable, runZamok
			case slices.Contains([]string{"no such session", "no such node", "transfer to none",
				"nobody holds it", "nor this token"}, name):
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
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ready\n",
		"/metrics": "zamok_build_info{version="} {
		require.Eventually(t, func() bool {
			answer, err := http.Get("http://127.0.0.1:" + strconv.Itoa(c.port+2) + path)
			if err != nil {
				return false
			}
			defer answer.Body.Close()
			body, err := io.ReadAll(answer.Body)
			return err == nil && answer.StatusCode == http.StatusOK &&
				strings.Contains(string(body), want)
		}, testTimeout, 20*time.Millisecond, path)
	}
}

// TestJSONIsThatOfHTTP: a document of -o json has the fields of the answer over HTTP, and each
// field has the same form.
func TestJSONIsThatOfHTTP(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "--nodes", "1")
	holdLock(t, c, "same/a", "--max-hold", "1h", "--lock-delay", "1s")
	// until the test ends
	for _, path := range []string{"?wait=1h&name=same/a&owner=x&meta=m",
		"?name=same/pool&permits=2&of=5"} {
		waiting, err := http.NewRequestWithContext(t.Context(), "GET",
			fmt.Sprintf("http://127.0.0.1:%d/v1/hold%s", c.port+2, path), nil)
		require.NoError(t, err)
		answer, err := http.DefaultClient.Do(waiting)
		require.NoError(t, err)
		defer answer.Body.Close()
	}
	c.awaitWaiters(t, "same/a", 1)
	acquireReserved(t, c, filepath.Join(t.TempDir(), "f"), "same/reserved", "--for", "1h")
	for path, args := range map[string][]string{
		"lock?name=same/a":          {"show", "same/a"},
		"lock?name=same/pool":       {"show", "same/pool"},
		"lock?name=same/reserved":   {"show", "same/reserved"},
		"lock?name=same/free":       {"show", "same/free"},
		"locks?prefix=same/":        {"ls", "same/"},
		"locks?limit=1":             {"ls", "--limit", "1"},
		"sessions?limit=2":          {"sessions", "--limit", "2"},
		"check?name=same/a&token=1": {"check", "same/a", "1"},
		"members":                   {"members"},
		"now":                       {"now"},
	} {
		// for longer than one look if the leader changes meanwhile
		awaitCondition(t, path, func() bool {
			answer, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/v1/%s", c.port+2, path))
			require.NoError(t, err)
			defer answer.Body.Close()
			var overHTTP, ofCommand any
			require.NoError(t, json.NewDecoder(answer.Body).Decode(&overHTTP))
			r := runZamok(t, c, append(args, "-o", "json")...)
			if err := json.Unmarshal([]byte(r.stdout), &ofCommand); err != nil {
				return false
			}
			want, got := withoutTimes(overHTTP), withoutTimes(ofCommand)
			if !assert.ObjectsAreEqual(want, got) {
				t.Logf("%s: HTTP %v, command %v", path, want, got)
				return false
			}
			return true
		})
	}
}

// withoutTimes replaces what differs between two looks: spans of time, and the readings of the
// clock.
func withoutTimes(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for name, field := range v {
			if v[name] = withoutTimes(field); name == "index" || name == "free_bytes" {
				v[name] = fmt.Sprintf("%T", field)
			}
		}
	case []any:
		for i := range v {
			v[i] = withoutTimes(v[i])
		}
	case string:
		if _, err := time.ParseDuration(v); err == nil && v != "0" {
			return "a span"
		}
	}
	return value
}

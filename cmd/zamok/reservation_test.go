//go:build unix

package main

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/api/view"
)

// acquireReserved reserves a lock with a file, and requires that this succeeds.
func acquireReserved(t *testing.T, c *devCluster, file string,
	args ...string) (doc reservationDoc) {
	t.Helper()
	r := runUntilAvailable(t, c,
		append([]string{"acquire", "--file", file, "-o", "json"}, args...)...)
	require.Equal(t, 0, r.code, r.stderr)
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &doc), r.stdout)
	require.Equal(t, file, doc.Path)
	return doc
}

func readStored(t *testing.T, file string) (s storedReservation) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &s))
	return s
}

// requireNoFile requires that no file of a reservation is left, nor a part of one.
func requireNoFile(t *testing.T, file string) {
	t.Helper()
	left, err := filepath.Glob(file + "*")
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestReservation(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	file := filepath.Join(t.TempDir(), "it's.zamok")
	args := []string{"reserve/a", "--with", "reserve/b", "--for", "30m", "--meta", "load test"}
	began := time.Now()
	got := acquireReserved(t, c, file, args...)
	require.Equal(t, view.Duration(30*time.Minute), got.TTL)
	ends, err := time.Parse(time.RFC3339, got.Until)
	require.NoError(t, err)
	require.WithinDuration(t, began.Add(30*time.Minute), ends, time.Since(began)+time.Second)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	require.Equal(t, 0, runZamok(t, c, "check", "reserve/b",
		strconv.FormatUint(got.Token, 10)).code)

	shown := readJSON[view.Lock](t, c, "show", "reserve/a")
	require.True(t, shown.Holding[0].Reserved)
	require.NotEmpty(t, shown.ReservedLeft)
	require.Equal(t, "load test", shown.Holding[0].Meta)
	require.Regexp(t,
		`(?m)^Reserved until .*\d\d:\d\d.* by session `+strconv.FormatUint(got.Session, 10)+
			", unless renewed.$", runZamok(t, c, "show", "reserve/a").stdout)
	holdLock(t, c, "reserve/held")
	require.Regexp(t,
		`(?s)DELAY +RESERVED UNTIL\n.*reserve/a .* \d\d:\d\d.*\n.*reserve/held .* -\n`,
		runZamok(t, c, "ls", "reserve/").stdout)
	require.False(t, readJSON[view.Lock](t, c, "show", "reserve/held").Holding[0].Reserved)

	other := filepath.Join(filepath.Dir(file), "other.zamok")
	r := runUntilAvailable(t, c, "acquire", "reserve/a", "--for", "1m", "--try", "--file", other)
	require.Equal(t, exitNotAcquired, r.code, r.stderr)
	require.Contains(t, r.stderr,
		"held by session "+strconv.FormatUint(got.Session, 10)+" ("+userLabel()+")")
	requireNoFile(t, other)

	// Again: the same reservation, and only that, from whatever was saved when the first one may
	// have been interrupted.
	again := acquireReserved(t, c, file, args...)
	require.Equal(t, got.Token, again.Token)
	whole := readStored(t, file)
	for _, cut := range []func(*storedReservation){
		func(s *storedReservation) { s.Token = 0 },
		func(s *storedReservation) { s.Token, s.Session, s.Ticket, s.Cluster = 0, 0, 0, "" },
	} {
		before := whole
		cut(&before)
		text, err := json.Marshal(before)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, text, 0o600))
		again := acquireReserved(t, c, file, args...)
		require.Equal(t, got.Token, again.Token)
		require.Equal(t, whole, readStored(t, file))
	}
	for _, differs := range [][]string{{"reserve/c", "--for", "30m"},
		{"reserve/a", "--with", "reserve/b", "--for", "31m"}} {
		r := runZamok(t, c, append([]string{"acquire", "--file", file}, differs...)...)
		require.Equal(t, exitGeneral, r.code, r.stderr)
		require.Contains(t, r.stderr,
			"belongs to another reservation, of reserve/a, reserve/b for 30m; nothing was done")
	}
	require.Equal(t, whole, readStored(t, file))

	// The file knows the endpoints.
	text := runUntilAvailable(t, nil, "renew", file, "--timeout", testTimeout.String())
	require.Equal(t, 0, text.code, text.stderr)
	require.Contains(t, text.stdout, "reserve/a, reserve/b: reserved for 30m\nuntil    about ")
	require.Contains(t, text.stdout, "release  zamok release --mine "+shellQuote(file)+"\n")
	for _, secret := range []string{base64.StdEncoding.EncodeToString(whole.Secret),
		hex.EncodeToString(whole.Secret)} {
		require.NotContains(t, text.stdout+text.stderr, secret)
	}
	for line := range strings.Lines(
		strings.ReplaceAll(strings.ReplaceAll(text.stdout, shellQuote(file), "x.zamok"), file,
			"x.zamok")) {
		require.LessOrEqual(t, len(line), helpWidth+1, line)
	}

	released := runUntilAvailable(t, c, "release", "--mine", file)
	require.Equal(t, 0, released.code, released.stderr)
	require.Contains(t, released.stdout, "reserve/a, reserve/b: released")
	requireNoFile(t, file)
	c.awaitFree(t, "reserve/a")
	c.awaitFree(t, "reserve/b")
	for _, verb := range [][]string{{"release", "--mine", file}, {"renew", file}} {
		r := runZamok(t, c, verb...)
		require.Equal(t, exitTargetNotFound, r.code, r.stderr)
		require.Contains(t, r.stderr, "there is no file")
	}
}

// A reservation that ended is reported as lost by every command, by whatever it ended.
func TestReservationLost(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	for name, end := range map[string]func(t *testing.T, name string, got reservationDoc){
		"by force": func(t *testing.T, name string, got reservationDoc) {
			r := runUntilAvailable(t, c, "release", name, "--force", "--reason", "a test",
				"--token", strconv.FormatUint(got.Token, 10))
			requireReleased(t, name, r)
		},
		"by its lease": func(t *testing.T, name string, _ reservationDoc) {
			c.awaitFree(t, name)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lock := "reserve/lost " + name
			file := filepath.Join(t.TempDir(), "f")
			length := map[string]string{"by force": "1h"}[name]
			if length == "" {
				length = "9s"
			}
			end(t, lock, acquireReserved(t, c, file, lock, "--for", length))
			for _, args := range [][]string{
				{"renew", file}, {"acquire", lock, "--for", length, "--file", file},
				{"release", "--mine", file},
			} {
				require.FileExists(t, file)
				r := runUntilAvailable(t, c, args...)
				require.Equal(t, exitLost, r.code, r.stderr)
				require.Contains(t, r.stderr, "the reservation in "+file+" has ended")
				require.Contains(t, r.stderr, "others may hold "+lock+" since")
			}
			requireNoFile(t, file)
			c.awaitFree(t, lock)
		})
	}
}

// A wait that ends without the lock leaves nothing, and one whose process was killed continues.
func TestReservationWaits(t *testing.T) {
	takesTime(t)
	t.Parallel()
	c := sharedCluster(t)
	holder := holdLock(t, c, "reserve/wait")
	file := filepath.Join(t.TempDir(), "f")
	args := []string{"acquire", "reserve/wait", "--for", "1h", "--file", file}
	r := runUntilAvailable(t, c, append(args, "--wait", "3s")...)
	require.Equal(t, exitWaitTimeout, r.code, r.stderr)
	require.Contains(t, r.stderr, "reserve/wait not acquired within 3s (--wait)")
	requireNoFile(t, file)

	waits := startZamok(t, c, args...)
	c.awaitWaiters(t, "reserve/wait", 1)
	require.NoError(t, waits.Process.Signal(syscall.SIGINT))
	require.Equal(t, exitSignalBase+int(syscall.SIGINT), waits.wait(t).code, waits.stderr.String())
	requireNoFile(t, file)
	c.awaitWaiters(t, "reserve/wait", 0)

	waits = startZamok(t, c, args...)
	c.awaitWaiters(t, "reserve/wait", 1)
	require.NoError(t, waits.Process.Kill())
	waits.wait(t)
	c.awaitWaiters(t, "reserve/wait", 0)
	session := readStored(t, file).Session
	waits = startZamok(t, c, args...)
	c.awaitWaiters(t, "reserve/wait", 1)
	require.NoError(t, holder.Process.Signal(syscall.SIGTERM))
	end := waits.wait(t)
	require.Equal(t, 0, end.code, end.stderr)
	require.Equal(t, session, readStored(t, file).Session, "it continued")
	require.Equal(t, 0, runUntilAvailable(t, c, "release", "--mine", file).code)
}

// What is not confirmed as given up keeps its file, and the command says so.
func TestReservationGivenUpWithoutCluster(t *testing.T) {
	takesTime(t)
	t.Parallel()
	c := startCluster(t, "--nodes", "1")
	_, err := c.client(t).Lock(t.Context(), "wanted")
	require.NoError(t, err)
	dir := t.TempDir()
	waits := map[string]*process{}
	for name, args := range map[string][]string{"interrupted": nil, "timed": {"--wait", "5s"}} {
		file := filepath.Join(dir, name)
		waits[name] = startZamok(t, c,
			append([]string{"acquire", "wanted", "--for", "1h", "--file", file}, args...)...)
	}
	c.awaitWaiters(t, "wanted", 2)
	c.end()
	require.NoError(t, waits["interrupted"].Process.Signal(syscall.SIGINT))
	for name, code := range map[string]int{"interrupted": exitSignalBase + int(syscall.SIGINT),
		"timed": exitUnavailable} {
		end := waits[name].wait(t)
		file := filepath.Join(dir, name)
		require.Equal(t, code, end.code, end.stderr)
		require.Contains(t, end.stderr, "the cluster may hold wanted for this ")
		require.Contains(t, end.stderr, file+" is kept: run the command again")
		require.Contains(t, end.stderr, "zamok release --mine "+file)
		require.NotZero(t, readStored(t, file).Session)
		require.Equal(t, exitUnavailable,
			runZamok(t, c, "release", "--mine", file, "--timeout", "1s").code)
		require.FileExists(t, file)
	}
}

// A reservation is renewed and released after the leader that granted it was killed, as often as
// that happens.
func TestReservationSurvivesLeaders(t *testing.T) {
	takesTime(t)
	t.Parallel()
	s := startServers(t, nil)
	for i := range s.nodes {
		s.awaitReady(t, i)
	}
	// The first node may be the one that is killed.
	all := strings.Join([]string{s.address(0, 0), s.address(1, 0), s.address(2, 0)}, ",")
	run := func(args ...string) exitResult {
		r := runUntilAvailable(t, nil, append(args, "--endpoints", all)...)
		require.Equal(t, 0, r.code, r.stderr)
		return r
	}
	killLeader := func() {
		var members view.Members
		require.NoError(t, json.Unmarshal([]byte(run("members", "-o", "json").stdout), &members))
		i, err := strconv.Atoi(strings.TrimPrefix(members.Leader, "n"))
		require.NoError(t, err, "%v", members)
		require.NoError(t, s.nodes[i-1].Process.Kill())
		s.nodes[i-1].wait(t)
		s.start(t, i-1)
	}
	file := filepath.Join(t.TempDir(), "f")
	acquire := []string{"acquire", "kept", "--for", "10m", "--file", file}
	run(acquire...)
	token := readStored(t, file).Token
	for _, args := range [][]string{{"renew", file}, acquire} {
		killLeader()
		require.Contains(t, run(args...).stdout, strconv.FormatUint(uint64(token), 10))
	}
	killLeader()
	require.Contains(t, run("release", "--mine", file).stdout, "kept: released")
	requireNoFile(t, file)
	require.Contains(t, run("show", "kept").stdout, "is free")
}

// A command that reaches no node, or another cluster, changes no reservation: its file stays.
func TestReservationElsewhere(t *testing.T) {
	t.Parallel()
	c, other := sharedCluster(t), startCluster(t, "--nodes", "1")
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	args := []string{"acquire", "reserve/else", "--for", "10m", "--file", file}
	acquireReserved(t, c, file, args[1:]...)
	before := readStored(t, file)
	for _, verb := range [][]string{{"renew", file}, args, {"release", "--mine", file}} {
		for endpoint, code := range map[string]int{other.endpoint(): exitGeneral,
			"127.0.0.1:1": exitUnavailable} {
			run := runUntilAvailable
			if code == exitUnavailable {
				run = runZamok
			}
			r := run(t, other, append(verb, "--endpoints", endpoint)...)
			if code == exitUnavailable {
				require.Contains(t, r.stderr, "nobody listens there")
			} else {
				require.Contains(t, r.stderr, "another cluster")
				require.Contains(t, r.stderr, before.Cluster)
			}
			require.Equal(t, code, r.code, r.stderr)
			require.Equal(t, before, readStored(t, file))
		}
	}
	require.Equal(t, "reserve/else is free.\n", runZamok(t, other, "show", "reserve/else").stdout)
	require.Equal(t, 0, runUntilAvailable(t, c, "renew", file).code)

	r := runZamok(t, nil, "acquire", "x", "--for", "1h", "--file", filepath.Join(dir, "new"),
		"--endpoints", "127.0.0.1:1")
	require.Equal(t, exitUnavailable, r.code, r.stderr)
	requireNoFile(t, filepath.Join(dir, "new"))
}

func TestReservationMistakes(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"empty": "", "newer": `{"version":2}`,
		"damaged": `{"version":1,"ttl":1,"secret":"AA=="}`} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	// each has its own: they run at the same time
	made := func(test string) string { return at("made by " + test) }
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no time": {[]string{"acquire", "x"}, "--for is missing"},
		"a short time": {[]string{"acquire", "x", "--for", "1s"},
			"--for is 1s: it must be at least 2s"},
		"a long time": {[]string{"acquire", "x", "--for", "1000h", "--file",
			made("a long time")}, "ttl"},
		"try and wait": {[]string{"acquire", "x", "--for", "1h", "--try", "--wait", "1s"},
			"exclude"},
		"no name": {[]string{"acquire", "--for", "1h"}, "accepts 1 arg"},
		"a bad name": {[]string{"acquire", "a\nb", "--for", "1h", "--file", made("a bad name")},
			"name"},
		"no directory": {[]string{"acquire", "x", "--for", "1h", "--file", at("none/f")},
			"none/f"},
		"no reservation": {[]string{"acquire", "x", "--for", "1h", "--file", at("empty")},
			"is not a complete file of a reservation"},
		"a newer format": {[]string{"renew", at("newer")}, "has format 2"},
		"damaged":        {[]string{"release", "--mine", at("damaged")}, "is damaged"},
		"mine by force": {[]string{"release", "--mine", at("empty"), "--force"},
			"--mine releases"},
		"mine, and name": {[]string{"release", "x", "--mine", at("empty")}, "--mine takes no NAME"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := runUntilAvailable(t, c, test.args...)
			require.Equal(t, exitGeneral, r.code, r.stdout+r.stderr)
			require.Contains(t, r.stderr, test.want)
			requireNoFile(t, made(name))
		})
	}
}

// Without --file the name of the lock gives that of the file.
func TestReservationFileName(t *testing.T) {
	t.Parallel()
	for lock, want := range map[string]string{
		"staging": "staging.zamok", "terraform/prod": "terraform-prod.zamok", "../x": "x.zamok",
		"--": "lock.zamok", "-f": "f.zamok",
		"größe 2": "größe-2.zamok",
	} {
		require.Equal(t, want, reservationFileName(lock))
	}
	require.Less(t, len(reservationFileName(strings.Repeat("ö", 250))), 255)

	c := sharedCluster(t)
	dir := t.TempDir()
	r := &process{Cmd: zamokCommand("acquire", "reserve/named", "--for", "1h"),
		done: make(chan struct{})}
	r.Dir, r.Stdout, r.Stderr = dir, &r.stdout, &r.stderr
	r.Env = append(r.Env, "ZAMOK_ENDPOINTS="+c.endpoint())
	r.start(t)
	end := r.wait(t)
	require.Equal(t, 0, end.code, end.stderr)
	require.Regexp(t, regexp.MustCompile(`(?m)^file +reserve-named.zamok `), end.stdout)
	require.Equal(t, 0, runUntilAvailable(t, c, "release", "--mine",
		filepath.Join(dir, "reserve-named.zamok")).code)
}

func TestReservationTimes(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 26, 23, 0, 0, 0, time.Local)
	require.Equal(t, "23:30:00", clockText(now.Add(30*time.Minute), now))
	require.Equal(t, "Fri Nov 27 01:00", clockText(now.Add(2*time.Hour), now))
	require.Equal(t, []string{"2h", "1h30m", "30m", "45s", "1h0m5s"}, mapSlice([]time.Duration{
		2 * time.Hour, 90 * time.Minute, 30 * time.Minute, 45 * time.Second,
		time.Hour + 5*time.Second,
	}, spanText))
}

// The recipes of docs/guide/shell.md for pipelines, step by step, with what GitLab and GitHub set.
func TestRecipesOfPipelines(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	recipes := docBlocks(t, "docs/guide/shell.md", "yaml")
	require.Len(t, recipes, 2)
	for i, name := range []string{"CI_PROJECT_DIR", "RUNNER_TEMP"} {
		dir, lock := t.TempDir(), "pipeline/"+strconv.Itoa(i)
		// No files written here: one could be busy, for a process that is being started has it
		// open, too.
		for _, program := range []string{"jq", "load-test"} {
			path, err := filepath.Abs("testdata/pipeline/" + program)
			require.NoError(t, err)
			require.NoError(t, os.Symlink(path, filepath.Join(dir, program)))
		}
		require.NoError(t, os.Symlink(binary, filepath.Join(dir, "zamok")))
		steps := regexp.MustCompile(`(?m)^ *- (?:run: )?(.*)$`).FindAllStringSubmatch(recipes[i],
			-1)
		require.Len(t, steps, 3)
		for n, step := range steps {
			job := exec.Command("sh", "-eu", "-c",
				strings.ReplaceAll(step[1], "acquire staging", "acquire "+lock))
			job.Dir, job.Env = dir, []string{"PATH=" + dir + ":" + os.Getenv("PATH"),
				name + "=" + dir, "ZAMOK_ENDPOINTS=" + c.endpoint()}
			out, err := job.CombinedOutput()
			require.NoError(t, err, "%s\n%s", step[1], out)
			require.Equal(t, n < 2, len(readJSON[view.Lock](t, c, "show", lock).Holding) > 0)
		}
		require.Regexp(t, `^--fencing-token \d+\n$`,
			string(readFile(t, filepath.Join(dir, "tested"))))
		requireNoFile(t, filepath.Join(dir, "staging.zamok"))
	}
}

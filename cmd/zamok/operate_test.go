//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/api/view"
	"zamok/api/zamokpb"
	"zamok/client"
)

// A lock is taken away from its holder, by a person who was asked, by a script, and with its
// session.
func TestReleaseAndExpire(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	answer := func(name, line string) exitResult {
		release := withTestTimeout([]string{"release", name, "--force", "--reason", "host is gone"})
		r := &process{Cmd: zamokCommand(release...), done: make(chan struct{})}
		r.Env = append(r.Env, "ZAMOK_ENDPOINTS="+c.endpoint())
		r.Stdin, r.Stdout, r.Stderr = strings.NewReader(line), &r.stdout, &r.stderr
		r.start(t)
		return r.wait(t)
	}
	holder := holdLock(t, c, "operate/a", "--meta", "the holder")
	no := answer("operate/a", "\n")
	require.Equal(t, exitGeneral, no.code)
	require.Contains(t, no.stderr, "the holder")
	require.Contains(t, no.stderr, "[y/N]")
	require.Contains(t, no.stderr, "nothing was done")
	require.EqualValues(t, 1, readJSON[view.Lock](t, c, "show", "operate/a").Holders)
	requireLost(t, "host is gone", func(again bool) *process {
		if again {
			holder = holdLock(t, c, "operate/a")
		}
		requireReleased(t, "operate/a", answer("operate/a", "y\n"))
		return holder
	})

	// With the token of the grant before, a later one is not touched.
	holder = holdLock(t, c, "operate/b")
	old := readJSON[view.Lock](t, c, "show", "operate/b").Holding[0].Token
	require.NoError(t, holder.Process.Signal(syscall.SIGTERM))
	holder.wait(t)
	holder = holdLock(t, c, "operate/b")
	late := runZamok(t, c, "release", "operate/b", "--force", "--reason", "late", "--token",
		fmt.Sprint(old))
	require.Equal(t, exitTargetNotFound, late.code)
	require.Contains(t, late.stderr, "nothing was done")
	require.Greater(t, readJSON[view.Lock](t, c, "show", "operate/b").Holding[0].Token, old)

	requireLost(t, "it is time", func(again bool) *process {
		if again {
			holder = holdLock(t, c, "operate/b")
		}
		held := readJSON[view.Lock](t, c, "show", "operate/b").Holding[0]
		expired := runZamok(t, c, "expire", fmt.Sprint(held.Session), "--reason", "it is time")
		// see requireReleased
		if !strings.Contains(expired.stderr,
			"it is not known whether this command has expired it") {
			require.Equal(t, 0, expired.code, expired.stderr)
		}
		return holder
	})
}

// requireLost takes a lock from its holder, and checks what the holder prints. The reason comes on
// the holder's stream: a client that is just reconnecting, as on a busy machine, learns only that
// it lost the lock; then another holder must learn why.
func requireLost(t *testing.T, reason string, release func(again bool) (holder *process)) {
	t.Helper()
	again := false
	awaitCondition(t, "a holder that hears "+reason, func() bool {
		end := release(again).wait(t)
		again = true
		require.Equal(t, exitLost, end.code, end.stderr)
		return strings.Contains(end.stderr, reason)
	})
}

// requireReleased checks how `zamok release` ended; the holder shows that the lock was released. On
// a busy machine the first request may take effect and its answer come too late: the repeated
// request then finds no holder.
func requireReleased(t *testing.T, name string, r exitResult) {
	t.Helper()
	if strings.Contains(r.stdout+r.stderr, "nobody holds "+name+" with a token up to") {
		return
	}
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout, "no longer holds "+name)
}

// A node without contact to the leader stands out.
func TestUnreachableMemberIsReported(t *testing.T) {
	t.Parallel()
	member := func(id string, behind *uint64, lastContact ...time.Duration) *zamokpb.Member {
		m := &zamokpb.Member{Id: id, Voter: true, Client: "127.0.0.1:5750", Peer: "127.0.0.1:5751",
			FreeBytes: 1 << 36, Version: "v0.1.0",
			Behind: behind, Leader: len(lastContact) == 0}
		for _, d := range lastContact {
			m.LastContact = new(int64(d))
		}
		return m
	}
	var text strings.Builder
	doc := view.NewMembers(&zamokpb.MembersResponse{Cluster: "c", Members: []*zamokpb.Member{
		member("n1", nil), member("n2", new(uint64(34)), 12345678901),
		member("n3", new(uint64(0)), 25*time.Millisecond), member("n4", nil, 2*time.Hour),
	}})
	writeMembers(&text, doc)
	for _, want := range []string{
		"n1  leader  -        -       127", "n2  voter   12s      34      127",
		"n3  voter   now      0       127", "n4  voter   2h0m0s   -       127",
		"\nn2: no contact for 12s. ", "\nn4: no contact for 2h0m0s. ",
	} {
		require.Contains(t, text.String(), want)
	}
	require.NotContains(t, text.String(), "n3: ")
	for line := range strings.Lines(text.String()) {
		require.LessOrEqual(t, len(line), 81, line)
	}
	text.Reset()
	require.NoError(t, json.NewEncoder(&text).Encode(doc))
	require.Contains(t, text.String(), `"last_contact":"12.346s","behind":"34"`)
	require.NotContains(t, text.String(), `"last_contact":"0s"`, "of the leader")
}

// The leadership is transferred to the named node, and the id of a removed node is used up.
func TestTransferAndRemove(t *testing.T) {
	t.Parallel()
	s := startServers(t, nil)
	for i := range s.nodes {
		s.awaitReady(t, i)
	}
	c := &s.devCluster
	before := readJSON[view.Members](t, c, "members")
	require.Len(t, before.Members, 3)
	require.Len(t, before.Cluster, 32)
	require.Contains(t, runZamok(t, c, "members").stdout, before.Cluster)
	to := "" // the last target
	awaitCondition(t, "the leadership is transferred", func() bool {
		leader := readJSON[view.Members](t, c, "members").Leader
		if leader == "" || leader == to {
			return leader != ""
		}
		if to = "n1"; leader == to {
			to = "n2"
		}
		// A busy machine may be too late for the others, or elect another meanwhile.
		if runZamok(t, c, "transfer", to).code != 0 {
			to = ""
		}
		return false
	})

	// a busy machine may change its leader before that is known
	awaitCondition(t, "n3 is removed", func() bool {
		r := runZamok(t, c, "remove", "n3")
		return r.code == 0 || strings.Contains(r.stderr, "is no node")
	})
	require.Len(t, readJSON[view.Members](t, c, "members").Members, 2)
	r := runZamok(t, c, "join", "n3", s.address(2, 1), "--timeout", "2s")
	require.Equal(t, exitGeneral, r.code)
	require.Regexp(t, "was removed from this cluster|n3 does not answer", r.stderr,
		"its data does not come back, and it ends")
}

// backupTTL is the lease of what is in a backup: longer than a busy machine takes to make one, and
// not so long that its end in the restored cluster would be waited for in vain.
const backupTTL = 6 * time.Second

// After the death of a cluster a backup of it becomes a new one, with tokens above the old ones.
func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	old := startCluster(t, "--nodes", "1")
	cl, err := client.New(client.Config{Endpoints: []string{old.endpoint()}, TTL: backupTTL})
	require.NoError(t, err)
	lock, err := cl.Lock(t.Context(), "kept")
	require.NoError(t, err)
	dir := t.TempDir()
	file := filepath.Join(dir, "locks.zamok")
	made := readJSON[backupDoc](t, old, "backup", file)
	require.Equal(t, 1, made.Locks)
	require.Equal(t, 1, made.Sessions)
	quotas := quotasDoc{1 << 17, 1 << 18, 128 << 20, 50}
	begun := readJSON[settingsDoc](t, old, "settings")
	require.Equal(t, settingsDoc{view.Duration(time.Hour), view.Duration(time.Hour + time.Minute),
		quotas, begun.Used}, begun)
	require.EqualValues(t, 1, begun.Used.Tickets)
	quotas.Tickets = 2_000_000
	require.Equal(t, quotas,
		readJSON[settingsDoc](t, old, "settings", "--max-tickets", "2000000").Quotas)
	refused := runZamok(t, old, "lock", "long", "--ttl", "2h", "--", "true")
	require.Equal(t, exitGeneral, refused.code)
	require.Contains(t, refused.stderr,
		"ttl: is longer than 1h0m0s, the longest ttl of this cluster")
	raised := runZamok(t, old, "settings", "--longest-ttl", "48h")
	require.Equal(t, 0, raised.code, raised.stderr)
	require.Contains(t, raised.stdout, "The longest ttl of a session is 48h0m0s.")
	require.Contains(t, raised.stdout, "restore those with --hold-off 48h1m0s at\nleast")
	allowed := runZamok(t, old, "lock", "long", "--ttl", "2h", "--", "true")
	require.Equal(t, 0, allowed.code, allowed.stderr)
	lowered := readJSON[settingsDoc](t, old, "settings", "--longest-ttl", "1h")
	require.Equal(t, settingsDoc{view.Duration(time.Hour),
		view.Duration(48*time.Hour + time.Minute), quotas, lowered.Used}, lowered)
	later := filepath.Join(dir, "later.zamok") // knows that 48 hours were allowed
	require.Equal(t, 0, runZamok(t, old, "backup", later).code)
	stdout := runZamok(t, old, "backup", "-")
	require.Equal(t, 0, stdout.code, stdout.stderr)
	require.NotEmpty(t, stdout.stdout)
	old.end()
	_ = cl.Close() // no node answers

	port := freePorts(t)
	address := func(i int) string { return "127.0.0.1:" + strconv.Itoa(port+i) }
	data := filepath.Join(dir, "it's data")
	flags := []string{"--id", "r1", "--data", data, "--cluster", "r1=" + address(1)}
	damaged := filepath.Join(dir, "damaged")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(damaged, text[:len(text)-1], 0o600))
	r := runZamok(t, nil, append([]string{"restore", damaged}, flags...)...)
	require.Equal(t, exitGeneral, r.code)
	require.Contains(t, r.stderr, "no cluster was made")

	r = runZamok(t, nil, append([]string{"restore", file, "--hold-off", "2s"}, flags...)...)
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout,
		fmt.Sprintf(`zamok server --id r1 --data '%s' --cluster r1=%s`,
			strings.ReplaceAll(data, "'", `'\''`), address(1)))
	again := runZamok(t, nil, append([]string{"restore", file}, flags...)...)
	require.Equal(t, exitGeneral, again.code)
	require.Contains(t, again.stderr, "is not empty")

	startZamok(t, nil, append([]string{"server", "--listen", address(0), "--http", ""},
		flags...)...).awaitOutput(t, "msg=leading")
	c := &devCluster{port: port}
	holder := holdLock(t, c, "kept", "--wait", "1m")
	_ = holder
	now := readJSON[view.Lock](t, c, "show", "kept")
	require.Greater(t, now.Holding[0].Token, uint64(lock.Token()))

	joinNode(t, "r2", filepath.Join(dir, "r2"), "r1="+address(1), address(10), address(11))
	require.Len(t, readJSON[view.Members](t, c, "members").Members, 2)
	requireHoldOffShown(t, file)

	for restored, holdOff := range map[string]string{file: "1h1m0s", later: "48h1m0s"} {
		flags[3] = filepath.Join(dir, "of "+holdOff)
		r := runZamok(t, nil, append([]string{"restore", restored}, flags...)...)
		require.Equal(t, 0, r.code, r.stderr)
		require.Contains(t, r.stdout, "It grants no lock for its first "+holdOff)
	}
}

// requireHoldOffShown restores a backup with the longest hold-off: every look, try and wait reports
// that nothing is granted, and why.
func requireHoldOffShown(t *testing.T, file string) {
	c := &devCluster{port: freePorts(t)}
	address := func(i int) string { return "127.0.0.1:" + strconv.Itoa(c.port+i) }
	flags := []string{"--id", "r1", "--data", filepath.Join(t.TempDir(), "data"), "--cluster",
		"r1=" + address(1)}
	r := runZamok(t, nil, append([]string{"restore", file}, flags...)...)
	require.Equal(t, 0, r.code, r.stderr)
	server := startZamok(t, nil,
		append([]string{"server", "--listen", address(0), "--http", address(2)}, flags...)...)
	server.awaitOutput(t, "msg=leading")
	server.awaitOutput(t, "restore hold-off: no lock is granted yet")

	const left = `(1h1m|1h0m|59m\d\ds|5\dm)`
	require.Regexp(t, "No lock is granted for another "+left+".*: a backup was restored",
		runZamok(t, c, "members").stdout)
	require.NotEmpty(t, readJSON[view.Members](t, c, "members").HoldOff)
	require.Regexp(t, "free is free, but no lock is granted for another "+left+
		".*: a backup was restored", runZamok(t, c, "show", "free").stdout)
	r = runUntilAvailable(t, c, "lock", "free", "--try", "--", "true")
	require.Equal(t, exitNotAcquired, r.code, r.stderr)
	require.Regexp(t, "no lock is granted for another "+left+".*: a backup was restored", r.stderr)

	startZamok(t, c, "lock", "wanted", "--", "true")
	c.awaitWaiters(t, "wanted", 1)
	shown := runZamok(t, c, "show", "wanted").stdout
	require.Regexp(t, "wanted.*1 waiting; no lock is granted for another "+left, shown)
	require.Regexp(t, "the restore hold-off, "+left, shown, "what the waiter waits for")
	require.NotContains(t, shown, "was lost")
	require.Equal(t, "hold_off",
		readJSON[view.Lock](t, c, "show", "wanted").Queue[0].Blockers[0].By)
	places := make(chan client.Position, 1)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	_, err := c.client(t).Lock(ctx, "wanted", client.OnPosition(func(p client.Position) {
		if len(p.Blockers) > 0 && len(places) == 0 { // the first news may be the place alone
			places <- p
			cancel()
		}
	}))
	// as it is while a stream that fell silent is opened anew
	if !errors.Is(err, client.ErrUnavailable) {
		require.ErrorIs(t, err, client.ErrNotAcquired)
	}
	require.NotEmpty(t, places, "the wait ended before its queue position was reported: %v", err)
	require.Regexp(t, "^no lock is granted for another "+left+".*: a backup was restored$",
		(<-places).Blockers[0].String())

	answer, err := http.Get("http://" + address(2) + "/readyz")
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, answer.StatusCode)
	require.Regexp(t, "^ready; no lock is granted for another "+left, string(text))
}

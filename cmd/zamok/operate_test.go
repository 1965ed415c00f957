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

	"zamok/client"
)

// A lock is taken away from its holder, by a person who was asked, by a script, and with its session.
func TestReleaseAndExpire(t *testing.T) {
	t.Parallel()
	c := here(t)
	answer := func(name, line string) result {
		release := patient([]string{"release", name, "--force", "--reason", "host is gone"})
		r := &running{Cmd: command(release...), ended: make(chan struct{})}
		r.Env = append(r.Env, "ZAMOK_ENDPOINTS="+c.endpoint())
		r.Stdin, r.Stdout, r.Stderr = strings.NewReader(line), &r.out, &r.errs
		r.start(t)
		return r.wait(t)
	}
	holder := hold(t, c, "operate/a", "--meta", "the holder")
	no := answer("operate/a", "\n")
	require.Equal(t, exitOurs, no.code)
	require.Contains(t, no.errs, "the holder")
	require.Contains(t, no.errs, "[y/N]")
	require.Contains(t, no.errs, "nothing was done")
	require.Equal(t, 1, read[detailDoc](t, c, "show", "operate/a").Holders)
	losesFor(t, "host is gone", func(again bool) *running {
		if again {
			holder = hold(t, c, "operate/a")
		}
		requireReleased(t, "operate/a", answer("operate/a", "y\n"))
		return holder
	})

	// With the token of the grant before, a later one is not touched.
	holder = hold(t, c, "operate/b")
	old := read[detailDoc](t, c, "show", "operate/b").Held[0].Token
	require.NoError(t, holder.Process.Signal(syscall.SIGTERM))
	holder.wait(t)
	holder = hold(t, c, "operate/b")
	late := zamok(t, c, "release", "operate/b", "--force", "--reason", "late", "--token", strconv.FormatUint(old, 10))
	require.Equal(t, exitNoSuch, late.code)
	require.Contains(t, late.errs, "nothing was done")
	require.Greater(t, read[detailDoc](t, c, "show", "operate/b").Held[0].Token, old)

	losesFor(t, "it is time", func(again bool) *running {
		if again {
			holder = hold(t, c, "operate/b")
		}
		held := read[detailDoc](t, c, "show", "operate/b").Held[0]
		expired := zamok(t, c, "expire", strconv.FormatUint(held.Session, 10), "--reason", "it is time")
		if !strings.Contains(expired.errs, "whether this call has ended it is not known") { // see requireReleased
			require.Equal(t, 0, expired.code, expired.errs)
		}
		return holder
	})
}

// losesFor takes a lock from its holder, and looks at what that says of it. The reason comes by the holder's
// stream: a client that is just connecting again, as on a busy machine, hears only that it lost the lock, so
// then another holder must hear why.
func losesFor(t *testing.T, reason string, take func(again bool) (holder *running)) {
	t.Helper()
	again := false
	comes(t, "a holder that hears "+reason, func() bool {
		end := take(again).wait(t)
		again = true
		require.Equal(t, exitLost, end.code, end.errs)
		return strings.Contains(end.errs, reason)
	})
}

// requireReleased looks at how `zamok release` ended; the holder tells that it was released. On a busy machine
// the first word may be heard and the answer come too late: then it is said again, and nobody holds it.
func requireReleased(t *testing.T, name string, r result) {
	t.Helper()
	if strings.Contains(r.out+r.errs, "nobody holds "+name+" with a token up to") {
		return
	}
	require.Equal(t, 0, r.code, r.errs)
	require.Contains(t, r.out, "does not hold "+name+" any more")
}

func (d membersDoc) leader() string {
	for _, m := range d.Members {
		if m.Role == "leader" {
			return m.ID
		}
	}
	return ""
}

// A node that the leader does not hear is told from the others at a glance.
func TestASilentMemberIsTold(t *testing.T) {
	t.Parallel()
	member := func(id string, m client.Member) client.Member {
		m.ID, m.Voter, m.Client, m.Peer, m.FreeBytes, m.Version = id, true, "127.0.0.1:5750", "127.0.0.1:5751", 1<<36, "v0.1.0"
		return m
	}
	doc := membersDoc{Cluster: "c", Members: each([]client.Member{
		member("n1", client.Member{Leader: true}),
		member("n2", client.Member{LastHeard: 12345678901, Behind: new(uint64(34))}),
		member("n3", client.Member{LastHeard: 25 * time.Millisecond, Behind: new(uint64(0))}),
		member("n4", client.Member{LastHeard: 2 * time.Hour}),
	}, newMemberDoc)}
	var text strings.Builder
	doc.text(&text)
	for _, want := range []string{
		"n1  leader  -       -       127", "n2  voter   12s     34      127", "n3  voter   now     0       127", "n4  voter   2h0m0s  -       127",
		"\nn2: not heard for 12s. ", "\nn4: not heard for 2h0m0s. ",
	} {
		require.Contains(t, text.String(), want)
	}
	require.NotContains(t, text.String(), "n3: ")
	for line := range strings.Lines(text.String()) {
		require.LessOrEqual(t, len(line), 81, line)
	}
	text.Reset()
	require.NoError(t, json.NewEncoder(&text).Encode(doc))
	require.Contains(t, text.String(), `"last_heard":"12.346s","behind":"34"`)
	require.NotContains(t, text.String(), `"last_heard":"0s"`, "of the leader")
}

// The leadership goes where it is told, and the id of a node that was removed is used up.
func TestTransferAndRemove(t *testing.T) {
	t.Parallel()
	s := startServers(t, nil)
	for i := range s.nodes {
		s.ready(t, i)
	}
	c := &s.cluster
	before := read[membersDoc](t, c, "members")
	require.Len(t, before.Members, 3)
	require.Len(t, before.Cluster, 32)
	require.Contains(t, zamok(t, c, "members").out, before.Cluster)
	to := "" // where it was told to go last
	comes(t, "the leadership goes where it is told", func() bool {
		leader := read[membersDoc](t, c, "members").leader()
		if leader == "" || leader == to {
			return leader != ""
		}
		if to = "n1"; leader == to {
			to = "n2"
		}
		// A busy machine may be too late for the others, or elect another meanwhile.
		if zamok(t, c, "transfer", to).code != 0 {
			to = ""
		}
		return false
	})

	comes(t, "n3 is removed", func() bool { // a busy machine may change its leader before that is known
		r := zamok(t, c, "remove", "n3")
		return r.code == 0 || strings.Contains(r.errs, "is no node")
	})
	require.Len(t, read[membersDoc](t, c, "members").Members, 2)
	r := zamok(t, c, "join", "n3", s.address(2, 1), "--timeout", "2s")
	require.Equal(t, exitOurs, r.code)
	require.Regexp(t, "was removed from this cluster|n3 does not answer", r.errs, "its data does not come back, and it ends")
}

// backupTTL is the lease of what is in a backup: longer than a busy machine takes to make one, and not so long
// that its end in the restored cluster would be waited for in vain.
const backupTTL = 6 * time.Second

// After the death of a cluster a backup of it becomes a new one, with tokens above the old ones.
func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	old := own(t, "--nodes", "1")
	cl, err := client.New(client.Config{Endpoints: []string{old.endpoint()}, TTL: backupTTL})
	require.NoError(t, err)
	lock, err := cl.Lock(t.Context(), "kept")
	require.NoError(t, err)
	dir := t.TempDir()
	file := filepath.Join(dir, "locks.zamok")
	made := read[backupDoc](t, old, "backup", file)
	require.Equal(t, 1, made.Locks)
	require.Equal(t, 1, made.Sessions)
	stdout := zamok(t, old, "backup", "-")
	require.Equal(t, 0, stdout.code, stdout.errs)
	require.NotEmpty(t, stdout.out)
	old.end()
	_ = cl.Close() // nobody answers

	port := freePorts(t)
	address := func(i int) string { return "127.0.0.1:" + strconv.Itoa(port+i) }
	data := filepath.Join(dir, "it's data")
	flags := []string{"--id", "r1", "--data", data, "--cluster", "r1=" + address(1)}
	damaged := filepath.Join(dir, "damaged")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(damaged, text[:len(text)-1], 0o600))
	r := zamok(t, nil, append([]string{"restore", damaged}, flags...)...)
	require.Equal(t, exitOurs, r.code)
	require.Contains(t, r.errs, "no cluster was made")

	r = zamok(t, nil, append([]string{"restore", file, "--quiet", "2s"}, flags...)...)
	require.Equal(t, 0, r.code, r.errs)
	require.Contains(t, r.out, fmt.Sprintf(`zamok server --id r1 --data '%s' --cluster r1=%s`, strings.ReplaceAll(data, "'", `'\''`), address(1)))
	again := zamok(t, nil, append([]string{"restore", file}, flags...)...)
	require.Equal(t, exitOurs, again.code)
	require.Contains(t, again.errs, "is not empty")

	begin(t, nil, append([]string{"server", "--listen", address(0), "--http", ""}, flags...)...).says(t, "msg=leading")
	c := &cluster{port: port}
	holder := hold(t, c, "kept", "--wait", "1m")
	_ = holder
	now := read[detailDoc](t, c, "show", "kept")
	require.Greater(t, now.Held[0].Token, uint64(lock.Token()))

	c.takesIn(t, "r2", filepath.Join(dir, "r2"), address(10), address(11))
	require.Len(t, read[membersDoc](t, c, "members").Members, 2)
	holdOffIsTold(t, file)
}

// holdOffIsTold restores a backup with the longest hold-off: whoever looks, tries or waits is told that nothing is
// granted, and why.
func holdOffIsTold(t *testing.T, file string) {
	c := &cluster{port: freePorts(t)}
	address := func(i int) string { return "127.0.0.1:" + strconv.Itoa(c.port+i) }
	flags := []string{"--id", "r1", "--data", filepath.Join(t.TempDir(), "data"), "--cluster", "r1=" + address(1)}
	r := zamok(t, nil, append([]string{"restore", file}, flags...)...)
	require.Equal(t, 0, r.code, r.errs)
	server := begin(t, nil, append([]string{"server", "--listen", address(0), "--http", address(2)}, flags...)...)
	server.says(t, "msg=leading")
	server.says(t, "restore hold-off: no lock is granted yet")

	const left = `(1h1m|1h0m|59m\d\ds|5\dm)`
	require.Regexp(t, "No lock is granted for another "+left+".*: a backup was restored", zamok(t, c, "members").out)
	require.NotEmpty(t, read[membersDoc](t, c, "members").HoldOff)
	require.Regexp(t, "free is free, but no lock is granted for another "+left+".*: a backup was restored", zamok(t, c, "show", "free").out)
	r = answered(t, c, "lock", "free", "--try", "--", "true")
	require.Equal(t, exitNotAcquired, r.code, r.errs)
	require.Regexp(t, "no lock is granted for another "+left+".*: a backup was restored", r.errs)

	begin(t, c, "lock", "wanted", "--", "true")
	c.queue(t, "wanted", 1)
	shown := zamok(t, c, "show", "wanted").out
	require.Regexp(t, "wanted.*1 waiting; no lock is granted for another "+left, shown)
	require.Regexp(t, "the restored backup, "+left, shown, "what the waiter waits for")
	require.NotContains(t, shown, "was lost")
	require.Equal(t, "hold-off", read[detailDoc](t, c, "show", "wanted").Queue[0].Blockers[0].By)
	places := make(chan client.Position, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := c.client(t).Lock(ctx, "wanted", client.OnPosition(func(p client.Position) {
		if len(p.Blockers) > 0 && len(places) == 0 { // the first news may be the place alone
			places <- p
			cancel()
		}
	}))
	if !errors.Is(err, client.ErrUnavailable) { // as it is while a stream that fell silent is opened anew
		require.ErrorIs(t, err, client.ErrNotAcquired)
	}
	require.NotEmpty(t, places, "the wait was over before it was told what it waits for: %v", err)
	require.Regexp(t, "^no lock is granted for another "+left+".*: a backup was restored$", (<-places).Blockers[0].String())

	answer, err := http.Get("http://" + address(2) + "/readyz")
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, answer.StatusCode)
	require.Regexp(t, "^ready; no lock is granted for another "+left, string(text))
}

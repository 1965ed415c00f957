//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// requireTools skips a test where a tool is missing: Go and make suffice to work here. CI installs
// them, so there it fails.
func requireTools(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			require.Empty(t, os.Getenv("ZAMOK_TEST_ALL"),
				"%s is missing, and ZAMOK_TEST_ALL forbids to skip: see .ci/run", tool)
			t.Skipf("needs %s: %v", tool, err)
		}
	}
}

// httpClients are the clients over HTTP in client/, as a test runs them: count FILE ROUNDS, hold
// NAME, use NAME.
var httpClients = map[string][]string{
	"python": {"python3", "testdata/http/program.py"},
	"node":   {"node", "testdata/http/program.mjs"},
	"shell":  {"sh", "testdata/http/program.sh"},
}

// startHTTPClient starts a program that uses one of the clients.
func (s *serverSet) startHTTPClient(t *testing.T, language string, args ...string) *process {
	t.Helper()
	var nodes []string
	for i := range s.nodes {
		nodes = append(nodes, "http://"+s.address(i, 2))
	}
	return startHTTPClient(t, httpClients[language], nodes, nil, args...)
}

func startHTTPClient(t *testing.T, program, nodes, env []string, args ...string) *process {
	t.Helper()
	r := &process{Cmd: exec.Command(program[0], append(slices.Clone(program[1:]), args...)...),
		done: make(chan struct{})}
	r.Env = append(append(os.Environ(), "ZAMOK_HTTP="+strings.Join(nodes, " "),
		"PYTHONPATH="+filepath.Join(repositoryRoot, "client", "python"),
		"PYTHONDONTWRITEBYTECODE=1"), env...)
	r.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	r.WaitDelay = testTimeout
	r.Stdout, r.Stderr = &r.stdout, &r.stderr
	r.start(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%v\n%s%s", r.Args, r.stdout.String(), r.stderr.String())
		}
	})
	return r
}

// startHolders starts one program of each client that holds a lock.
func (s *serverSet) startHolders(t *testing.T, prefix string) map[string]*process {
	t.Helper()
	holders := make(map[string]*process)
	for language := range httpClients {
		holders[language] = s.startHTTPClient(t, language, "hold", prefix+language)
	}
	for _, holder := range holders {
		holder.awaitOutput(t, "holding")
	}
	return holders
}

// awaitLost waits until each holder has noticed that its lock is lost, and has ended as a loss
// makes it.
func awaitLost(t *testing.T, holders map[string]*process, since time.Time, within time.Duration) {
	t.Helper()
	for language, holder := range holders {
		holder.awaitOutput(t, "lost")
		took := time.Since(since)
		t.Logf("%s noticed after %v", language, took)
		require.Less(t, took, within, language)
	}
	for _, holder := range holders {
		end := holder.wait(t)
		require.Equal(t, exitLost, end.code, "%v\n%s%s", holder.Args, end.stdout, end.stderr)
	}
}

// ask sends a request to a node over HTTP.
func (s *serverSet) ask(t *testing.T, node int, method, path, body string, into any) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://"+s.address(node, 2)+path,
		strings.NewReader(body))
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, path, answer.Status)
	}
	return json.NewDecoder(answer.Body).Decode(into)
}

// leader is the node that leads.
func (s *serverSet) leader(t *testing.T) int {
	t.Helper()
	leader := 0
	awaitCondition(t, "a leader", func() bool {
		var members struct{ Leader string }
		if s.ask(t, 0, "GET", "/v1/members", "", &members) != nil || members.Leader == "" {
			return false
		}
		n, err := strconv.Atoi(strings.TrimPrefix(members.Leader, "n"))
		require.NoError(t, err)
		leader = n - 1
		return true
	})
	return leader
}

// holder is the session and the token of who holds a lock.
func (s *serverSet) holder(t *testing.T, name string) (session, token string) {
	t.Helper()
	var lock struct {
		Holding []struct{ Session, Token string }
	}
	require.NoError(t, s.ask(t, 0, "GET", "/v1/lock?name="+name, "", &lock))
	require.Len(t, lock.Holding, 1, name)
	return lock.Holding[0].Session, lock.Holding[0].Token
}

// Programs in three languages count in one file under one lock, and the leader is killed meanwhile:
// no count is lost. Each also compares its token with that of the count before.
func TestHTTPClientsCountWhileLeaderIsKilled(t *testing.T) {
	takesTime(t)
	requireTools(t, "python3", "node", "curl")
	t.Parallel()
	const poll = 5 * time.Second // of all three, with their usual ttl
	s := startServers(t, nil)
	for i := range s.nodes {
		s.awaitReady(t, i)
	}
	file := filepath.Join(t.TempDir(), "count")
	require.NoError(t, os.WriteFile(file, []byte("0 0\n"), 0o600))
	rounds := map[string]int{"python": 60, "node": 60, "shell": 15}
	var grant json.RawMessage
	require.NoError(t, s.ask(t, 0, "POST", "/v1/acquire", `{"name":"counter","ttl":"60s"}`, &grant))
	var programs []*process
	total := 0
	for language, n := range rounds {
		for range 2 {
			programs = append(programs,
				s.startHTTPClient(t, language, "count", file, strconv.Itoa(n)))
			total += n
		}
	}
	// Each waits for longer than one request of it does, and keeps its place.
	awaitCondition(t, "all wait", func() bool {
		var lock struct{ Queue []struct{ Waited string } }
		if s.ask(t, 0, "GET", "/v1/lock?name=counter", "", &lock) != nil ||
			len(lock.Queue) != len(programs) {
			return false
		}
		waited, err := time.ParseDuration(lock.Queue[len(programs)-1].Waited)
		return err == nil && waited > poll+time.Second
	})
	require.NoError(t, s.ask(t, 0, "POST", "/v1/release", string(grant), &struct{}{}))
	count := func() int {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		so, _, _ := strings.Cut(string(text), " ")
		n, _ := strconv.Atoi(so) // it may just be written
		return n
	}
	awaitCondition(t, "a third of the counts", func() bool {
		for _, program := range programs {
			select {
			case <-program.done:
				require.Equal(t, 0, exitCodeOf(program.ProcessState), program.Args)
			default:
			}
		}
		return count() > total/3
	})
	leader := s.leader(t)
	require.NoError(t, s.nodes[leader].Process.Kill())
	before := count()
	require.Less(t, before, total*2/3, "the leader was to be killed in the middle")
	for _, program := range programs {
		end := program.waitFor(t, 2*testTimeout)
		require.Equal(t, 0, end.code, "%v\n%s%s", program.Args, end.stdout, end.stderr)
	}
	require.Equal(t, total, count())
	t.Logf("%d counts, n%d was killed after %d", total, leader+1, before)
}

// A client whose session or lock an operator ends notices when it renews; one that reaches no node
// any more considers its lock lost before the cluster could grant it to another: that is one ttl
// after the last renewal at the earliest.
func TestHTTPClientsNoticeLoss(t *testing.T) {
	takesTime(t)
	requireTools(t, "python3", "node", "curl")
	t.Parallel()
	const ttl, validFor = 10 * time.Second, 9500 * time.Millisecond // as the programs ask
	s := startServers(t, nil)
	for i := range s.nodes {
		s.awaitReady(t, i)
	}
	expired := s.startHolders(t, "expired/")
	released := s.startHolders(t, "force-released/")
	cutOff := s.startHolders(t, "cut-off/")
	since := time.Now()
	for language := range httpClients {
		session, _ := s.holder(t, "expired/"+language)
		require.NoError(t, s.ask(t, 0, "POST", "/v1/admin/expire",
			`{"session":"`+session+`","reason":"a test"}`, &struct{}{}))
		_, token := s.holder(t, "force-released/"+language)
		body := `{"name":"force-released/` + language + `","token":"` + token +
			`","reason":"a test"}`
		require.NoError(t, s.ask(t, 0, "POST", "/v1/admin/release", body, &struct{}{}))
	}
	awaitLost(t, expired, since, validFor)
	awaitLost(t, released, since, validFor)

	since = time.Now()
	for _, node := range s.nodes {
		require.NoError(t, node.Process.Kill())
	}
	awaitLost(t, cutOff, since, ttl)
}

// A lock with max_hold is granted to another program at the end of it. Clients whose clocks are 4 %
// slow have stopped believing in it by then. zamok.sh has no max_hold.
func TestHTTPClientsStopBeforeTheNextGrant(t *testing.T) {
	takesTime(t)
	requireTools(t, "python3", "node")
	t.Parallel()
	c := sharedCluster(t)
	for _, language := range []string{"python", "node"} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			nodes := []string{"http://127.0.0.1:" + strconv.Itoa(c.port+2)}
			holder := startHTTPClient(t, httpClients[language], nodes,
				[]string{"ZAMOK_TEST_RATE=0.96"}, "believe", "brief/"+language, "5s")
			holder.awaitOutput(t, "holding")
			answer, err := http.Post(nodes[0]+"/v1/acquire", "application/json",
				strings.NewReader(`{"name":"brief/`+language+`","wait":"60s"}`))
			granted := time.Now() // a little later than the grant
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, answer.StatusCode)
			require.NoError(t, answer.Body.Close())
			_, text, is := strings.Cut(holder.wait(t).stdout, "believed ")
			require.True(t, is)
			believed, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			require.NoError(t, err)
			before := granted.Sub(time.UnixMicro(int64(believed * 1e6)))
			t.Logf("it stopped %v before the next grant", before)
			require.Positive(t, before)
		})
	}
}

// The commands of docs/guide/http.md are typed, block by block, and show what it says. A block that
// begins with curl -sN streams until Ctrl-C.
func TestHTTPGuide(t *testing.T) {
	requireTools(t, "curl", "openssl")
	t.Parallel()
	c := startCluster(t)
	shell := &readmeShell{dir: t.TempDir(), port: c.port}
	// A busy machine may be without a leader for longer than a node repeats a request: the reader
	// sends it again.
	again := fmt.Sprintf("fail\nretry = 20\nretry-max-time = %.0f\n", testTimeout.Seconds())
	require.NoError(t, os.WriteFile(filepath.Join(shell.dir, ".curlrc"), []byte(again), 0o600))
	// Regular expressions. The token is missing if the release was repeated, as its first answer
	// was lost.
	expected := []struct{ begins, shows string }{
		{"curl -s http://127.0.0.1:5752/v1/acquire -d '{\"name\":\"stock\"",
			`"state":"granted".*"token":"\d+","ttl":"1m0s","valid_for":"57s"`},
		{"curl -s http://127.0.0.1:5752/v1/release", `"state":"ended"`},
		{"curl -s http://127.0.0.1:5752/v1/acquire", `"valid_for":"57s"(?s:.*)"state":"ended"`},
		{"umask 077", `"state":"granted"(?s:.*)"state":"ended"`},
		{"while ", `^{"state":"ended","reason":"dropped"`},
		{"curl -sN 'http://127.0.0.1:5752/v1/hold",
			`event: granted\ndata: .*"token":"\d+".*\n\nevent: heartbeat\ndata: {"valid_for":"[\d.]+s"`},
		{"curl -s http://127.0.0.1:5752/v1/acquire -d '{\"items\"",
			`"state":"granted"(?s:.*)"state":"ended"`},
		{"curl -s http://127.0.0.1:5752/v1/sessions",
			`("state":"granted"(?s:.*)){2}"valid_for":"28.5s"(?s:.*)"state":"ended"(?s:.*)"state":"ended"`},
		{"curl -s http://127.0.0.1:5752/v1/acquire",
			`"meta":"a look"(?s:.*)"held":true(?s:.*)"name":"stock"`},
		{"curl -sN 'http://127.0.0.1:5752/v1/watch", `id: \d+\nevent: index`},
	}
	for i, block := range docBlocks(t, "docs/guide/http.md", "sh") {
		require.Less(t, i, len(expected), "what does this show?\n%s", block)
		want := expected[i]
		require.True(t, strings.HasPrefix(block, want.begins), "block %d\n%s", i+1, block)
		r := shell.shell(t, shell.dir, movePorts(block, c.port))
		if strings.HasPrefix(block, "curl -sN") {
			awaitCondition(t, want.shows, func() bool {
				return regexp.MustCompile(want.shows).MatchString(r.stdout.String())
			})
			require.NoError(t, syscall.Kill(-r.Process.Pid, syscall.SIGINT))
			r.wait(t)
			c.awaitFree(t, "stock")
			continue
		}
		end := r.wait(t)
		require.Equal(t, 0, end.code, "%s\n%s%s", block, end.stdout, end.stderr)
		require.Regexp(t, want.shows, end.stdout, block)
	}
}

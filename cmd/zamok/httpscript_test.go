//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
)

// The clients over HTTP against nodes whose answers a test writes.

// scriptedNode answers as one of its functions says, and as a node that grants everything where it
// has none.
type scriptedNode struct {
	// 0: the answer is lost
	acquire, renew, release func(r scriptedRequest) (status int, body string)

	cluster string // its header Zamok-Cluster
	url     string

	mu   sync.Mutex
	seen []scriptedRequest
}

// scriptedRequest is a request as it arrived.
type scriptedRequest struct {
	path   string
	header http.Header
	body   map[string]any
	before int // how many for this path came before
}

const scriptedCluster = "00112233445566778899aabbccddeeff"

// start serves until the test ends.
func (n *scriptedNode) start(t *testing.T) *scriptedNode {
	server := httptest.NewServer(n)
	t.Cleanup(server.Close)
	n.url = server.URL
	return n
}

func (n *scriptedNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	came := scriptedRequest{path: r.URL.Path, header: r.Header}
	_ = json.NewDecoder(r.Body).Decode(&came.body) // a request without a body has no fields
	n.mu.Lock()
	for _, earlier := range n.seen {
		if earlier.path == came.path {
			came.before++
		}
	}
	n.seen = append(n.seen, came)
	n.mu.Unlock()
	cluster := n.cluster
	if cluster == "" {
		cluster = scriptedCluster
	}
	scripted := map[string]func(scriptedRequest) (int, string){"/v1/acquire": n.acquire,
		"/v1/renew": n.renew, "/v1/release": n.release}[r.URL.Path]
	status, body := http.StatusOK, map[string]string{
		"/v1/acquire": scriptedGrant(cluster, "9.5s"),
		"/v1/renew":   `{"session":"57","valid_for":"9.5s"}`,
		"/v1/release": `{"state":"ended","reason":"dropped"}`,
	}[r.URL.Path]
	if scripted != nil {
		status, body = scripted(came)
	}
	if status == 0 {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Zamok-Cluster", cluster)
	w.WriteHeader(status)
	fmt.Fprintln(w, body)
}

// requests are those for a path that have come.
func (n *scriptedNode) requests(path string) []scriptedRequest {
	n.mu.Lock()
	defer n.mu.Unlock()
	var of []scriptedRequest
	for _, r := range n.seen {
		if r.path == path {
			of = append(of, r)
		}
	}
	return of
}

func scriptedGrant(cluster, validFor string) string {
	return fmt.Sprintf(
		`{"state":"granted","session":"57","secret":"5d41402abc4b2a76b9719d911017c592","token":"59","ttl":"10s","valid_for":%q,"cluster":%q}`,
		validFor, cluster)
}

// always answers each request alike.
func always(status int, body string) func(scriptedRequest) (int, string) {
	return func(scriptedRequest) (int, string) { return status, body }
}

// refusing is an address at which nothing listens, nor can while the test runs: the port is bound.
func refusing(t *testing.T) string {
	t.Helper()
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, syscall.Close(socket)) })
	syscall.CloseOnExec(socket)
	require.NoError(t, syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	bound, err := syscall.Getsockname(socket)
	require.NoError(t, err)
	return fmt.Sprint("http://127.0.0.1:", bound.(*syscall.SockaddrInet4).Port)
}

// eachHTTPClient runs a test for each client, beside the others.
func eachHTTPClient(t *testing.T, test func(t *testing.T, language string, program []string)) {
	requireTools(t, "python3", "node", "curl")
	t.Parallel()
	for language, program := range httpClients {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			test(t, language, program)
		})
	}
}

// What a server answers is parsed, never evaluated: who may listen on the port would run
// commands. In $(( )) of bash, a text is a variable's name, and its index a command.
func TestHTTPClientsEvaluateNothing(t *testing.T) {
	requireTools(t, "bash", "python3", "node", "curl")
	t.Parallel()
	programs := maps.Clone(httpClients)
	programs["bash"] = []string{"bash",
		filepath.Join(repositoryRoot, "client", "shell", "zamok.sh")}
	for language, program := range programs {
		for field, evil := range map[string]string{"valid_for": `"9.5s"`, "token": `"59"`} {
			t.Run(language+"/"+field, func(t *testing.T) {
				t.Parallel()
				made := filepath.Join(t.TempDir(), "made")
				text, err := json.Marshal("1h1m1sttl[$(touch " + made + ";echo 0)]+")
				require.NoError(t, err)
				node :=
					(&scriptedNode{acquire: always(200,
						strings.Replace(scriptedGrant(scriptedCluster, "9.5s"), evil, string(text),
							1))}).start(t)
				args := []string{"use", "stock"}
				if language == "bash" {
					args = []string{"stock", "--", "bash", "-c", "echo $((ZAMOK_LOCK_TOKEN)) used"}
				}
				end := startHTTPClient(t, program, []string{node.url}, nil, args...).wait(t)
				assert.NotEqual(t, 0, end.code, end.stderr)
				assert.NotContains(t, end.stdout, "used")
				_, err = os.Stat(made)
				assert.ErrorIs(t, err, os.ErrNotExist, "a command of the server was run")
			})
		}
	}
}

// A token is for the nodes: over plain HTTP everybody on the way would have it.
func TestHTTPClientsKeepTheirToken(t *testing.T) {
	takesTime(t) // a dozen programs start
	eachHTTPClient(t, func(t *testing.T, _ string, program []string) {
		file := filepath.Join(t.TempDir(), "token")
		require.NoError(t, os.WriteFile(file, []byte("zamok_x3t7\n"), 0o600))
		env := []string{"ZAMOK_TOKEN_FILE=" + file}
		node := (&scriptedNode{}).start(t)
		end := startHTTPClient(t, program, []string{node.url}, env, "use", "stock").wait(t)
		require.Equal(t, 0, end.code, end.stderr)
		require.Equal(t, "Bearer zamok_x3t7",
			node.requests("/v1/acquire")[0].header.Get("Authorization"), "on loopback")
		for _, outside := range []string{"http://192.0.2.1:5752",
			"http://127.0.0.1.example.com:5752", "http://127.0.0.1@192.0.2.1:5752"} {
			node := (&scriptedNode{}).start(t)
			end := startHTTPClient(t, program, []string{node.url, outside}, env, "use",
				"stock").wait(t)
			assert.NotEqual(t, 0, end.code)
			assert.Empty(t, node.requests("/v1/acquire"),
				"the list is refused before anything is sent")
			assert.Regexp(t, "https|no address of a node", end.stderr, outside)
			assert.NotContains(t, end.stderr, "zamok_x3t7")
		}
	})
}

// A list of nodes may have one of another cluster by mistake. Then two programs may hold a lock: so
// each request names the cluster that answered first, and what another one answers is refused.
func TestHTTPClientsRefuseASecondCluster(t *testing.T) {
	eachHTTPClient(t, func(t *testing.T, _ string, program []string) {
		const another = "ffeeddccbbaa99887766554433221100"
		first := (&scriptedNode{acquire: func(r scriptedRequest) (int, string) {
			if r.before == 0 {
				return 202, strings.Replace(scriptedGrant(scriptedCluster, "9.5s"), "granted",
					"waiting", 1)
			}
			return 503, `{"code":"not_leader","message":"no leader is known","outcome":"not_done"}`
		}}).start(t)
		second := (&scriptedNode{cluster: another}).start(t)
		end := startHTTPClient(t, program, []string{first.url, second.url}, nil, "use",
			"stock").wait(t)
		assert.NotEqual(t, 0, end.code)
		assert.NotContains(t, end.stdout, "used")
		assert.Contains(t, end.stderr, another)
		assert.Contains(t, end.stderr, scriptedCluster)
		assert.Equal(t, scriptedCluster,
			second.requests("/v1/acquire")[0].header.Get("Zamok-Cluster"))

		node := (&scriptedNode{}).start(t)
		end = startHTTPClient(t, program, []string{node.url}, nil, "use", "stock").wait(t)
		require.Equal(t, 0, end.code, end.stderr)
		released := node.requests("/v1/release")[0]
		assert.Equal(t, scriptedCluster, released.header.Get("Zamok-Cluster"))
		assert.Equal(t, scriptedCluster, released.body["cluster"])
	})
}

// A release that finds no session is a loss, whatever became of the attempt before: the cluster
// remembers who has released. What answers without an outcome is something else than a node, and
// does not know.
func TestHTTPClientsReportALossAtTheRelease(t *testing.T) {
	takesTime(t) // a dozen programs start
	eachHTTPClient(t, func(t *testing.T, _ string, program []string) {
		gone :=
			(&scriptedNode{release: always(410,
				`{"code":"no_session","message":"it has ended","outcome":"not_done"}`)}).start(t)
		refuses :=
			(&scriptedNode{release: always(503,
				`{"code":"not_leader","message":"no leader is known","outcome":"not_done"}`)}).start(t)
		unknown :=
			(&scriptedNode{release: always(503,
				`{"code":"unknown","message":"perhaps","outcome":"unknown"}`)}).start(t)
		silent := (&scriptedNode{release: always(0, "")}).start(t)
		proxy := (&scriptedNode{release: always(410, `{"code":"gone","message":"perhaps"}`)}).start(
			t)
		for what, test := range map[string]struct {
			before, last string
			want         int
		}{
			"a refused connection":            {refusing(t), gone.url, exitLost},
			"a refusal":                       {refuses.url, gone.url, exitLost},
			"a lost answer":                   {silent.url, gone.url, exitLost},
			"an unknown outcome":              {unknown.url, gone.url, exitLost},
			"an unknown outcome, and a proxy": {unknown.url, proxy.url, 0},
		} {
			end := startHTTPClient(t, program, []string{test.before, test.last}, nil, "use",
				"stock").wait(t)
			assert.Equal(t, test.want, end.code, "%s\n%s", what, end.stderr)
			assert.Contains(t, end.stdout, "used", what)
		}
	})
}

// An acquisition may be granted and lost while its program is suspended between two polls. Its key
// has been used up, so it begins anew with another one.
func TestHTTPClientsBeginAnewAfterALossThatTheyMissed(t *testing.T) {
	eachHTTPClient(t, func(t *testing.T, _ string, program []string) {
		node := (&scriptedNode{acquire: func(r scriptedRequest) (int, string) {
			switch r.before {
			case 0:
				return 202, strings.Replace(scriptedGrant(scriptedCluster, "9.5s"), "granted",
					"waiting", 1)
			case 1:
				return 410, `{"code":"no_session","message":"it has ended","outcome":"not_done"}`
			}
			return 200, scriptedGrant(scriptedCluster, "9.5s")
		}}).start(t)
		end := startHTTPClient(t, program, []string{node.url}, nil, "use", "stock").wait(t)
		require.Equal(t, 0, end.code, end.stderr)
		assert.Contains(t, end.stdout, "used")
		var keys []string
		for _, r := range node.requests("/v1/acquire") {
			keys = append(keys, r.header.Get("Idempotency-Key"))
		}
		require.Len(t, keys, 3)
		assert.Equal(t, keys[0], keys[1])
		assert.Regexp(t, "^[0-9a-f]{32}$", keys[2])
		assert.NotEqual(t, keys[1], keys[2])
	})
}

// What was acquired, or may have been, is released also if the block is never entered.
func TestHTTPClientsLeaveNothingBehind(t *testing.T) {
	takesTime(t)
	eachHTTPClient(t, func(t *testing.T, language string, program []string) {
		if language == "shell" {
			t.Skip("it has no block: its trap releases")
		}
		late :=
			(&scriptedNode{acquire: always(200, scriptedGrant(scriptedCluster, "1ms")),
				renew: always(410, `{"code":"no_session","message":"it has ended"}`)}).start(t)
		waits := (&scriptedNode{acquire: func(r scriptedRequest) (int, string) {
			if r.before == 0 {
				return 202, strings.Replace(scriptedGrant(scriptedCluster, "9.5s"), "granted",
					"waiting", 1)
			}
			return 503, "a proxy"
		}}).start(t)
		silent := (&scriptedNode{acquire: func(r scriptedRequest) (int, string) {
			if r.body["poll"] != "1ms" {
				return 0, ""
			}
			return 200, scriptedGrant(scriptedCluster, "9.5s")
		}}).start(t)
		for what, node := range map[string]*scriptedNode{"a failed renewal": late,
			"a wait without an end": waits, "a lost answer": silent} {
			end := startHTTPClient(t, program, []string{node.url}, nil, "brief", "stock").wait(t)
			assert.NotEqual(t, 0, end.code)
			assert.NotContains(t, end.stdout, "used", what)
			if assert.Len(t, node.requests("/v1/release"), 1, what) {
				assert.Equal(t, "57", node.requests("/v1/release")[0].body["session"])
			}
		}
		end := startHTTPClient(t, program, []string{refusing(t)}, nil, "brief", "stock").wait(t)
		assert.Contains(t, end.stderr, "no node has answered in time")
	})
}

// An address that is no node's is explained at once, and not after all attempts.
func TestHTTPClientsExplainWrongAddresses(t *testing.T) {
	takesTime(t)
	eachHTTPClient(t, func(t *testing.T, language string, program []string) {
		plain := (&scriptedNode{}).start(t)
		secured := httptest.NewTLSServer(http.NotFoundHandler())
		t.Cleanup(secured.Close)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		forGRPC := grpc.NewServer()
		t.Cleanup(forGRPC.Stop)
		go func() { _ = forGRPC.Serve(l) }()
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, "<html>")
		}))
		t.Cleanup(other.Close)
		for what, address := range map[string]string{
			"no scheme":         strings.TrimPrefix(plain.url, "http://"),
			"the port for gRPC": "http://" + l.Addr().String(), "another server": other.URL,
			"http to https":        strings.Replace(secured.URL, "https", "http", 1),
			"https to http":        strings.Replace(plain.url, "http", "https", 1),
			"an unknown authority": secured.URL,
		} {
			began := time.Now()
			end := startHTTPClient(t, program, []string{address}, nil, "use", "stock").wait(t)
			assert.NotEqual(t, 0, end.code, what)
			assert.Contains(t, end.stderr, "no address of a node", what)
			assert.Contains(t, end.stderr, address, what)
			assert.Less(t, time.Since(began), 30*time.Second,
				"%s: it tried for all of its wait", what)
			t.Logf("%s: %v, %s", what, time.Since(began), end.stderr)
		}
		if language != "shell" {
			end := startHTTPClient(t, program, []string{plain.url}, nil, "text", "stock").wait(t)
			assert.Contains(t, end.stderr, "not a list")
		}
	})
}

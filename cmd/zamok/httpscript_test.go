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
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The clients over HTTP against nodes whose answers a test writes.

// scriptedNode answers as one of its functions says, and as a node that grants everything where it has none.
type scriptedNode struct {
	acquire, renew, release func(n int) (status int, body string) // n: how many such requests came before

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
	before := 0
	for _, earlier := range n.seen {
		if earlier.path == came.path {
			before++
		}
	}
	n.seen = append(n.seen, came)
	n.mu.Unlock()
	cluster := n.cluster
	if cluster == "" {
		cluster = scriptedCluster
	}
	scripted := map[string]func(int) (int, string){"/v1/acquire": n.acquire, "/v1/renew": n.renew, "/v1/release": n.release}[r.URL.Path]
	status, body := http.StatusOK, map[string]string{
		"/v1/acquire": scriptedGrant(cluster, "9.5s"), "/v1/renew": `{"session":"57","valid_for":"9.5s"}`, "/v1/release": `{"state":"ended","reason":"dropped"}`,
	}[r.URL.Path]
	if scripted != nil {
		status, body = scripted(before)
	}
	if status == 0 { // the answer is lost
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
	return fmt.Sprintf(`{"state":"granted","session":"57","secret":"5d41402abc4b2a76b9719d911017c592","token":"59","ttl":"10s","valid_for":%q,"cluster":%q}`,
		validFor, cluster)
}

// always answers each request alike.
func always(status int, body string) func(int) (int, string) {
	return func(int) (int, string) { return status, body }
}

// refusing is an address at which nothing listens.
func refusing(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return "http://" + l.Addr().String()
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

// What a server answers is parsed, never evaluated: whoever may listen on the port would run commands. In $(( )) of bash, a text
// is a variable's name, and its index a command.
func TestHTTPClientsEvaluateNothing(t *testing.T) {
	requireTools(t, "bash", "python3", "node", "curl")
	t.Parallel()
	programs := maps.Clone(httpClients)
	programs["bash"] = []string{"bash", filepath.Join(repositoryRoot, "client", "shell", "zamok.sh")}
	for language, program := range programs {
		for field, evil := range map[string]string{"valid_for": `"9.5s"`, "token": `"59"`} {
			t.Run(language+"/"+field, func(t *testing.T) {
				t.Parallel()
				made := filepath.Join(t.TempDir(), "made")
				text, err := json.Marshal("1h1m1sttl[$(touch " + made + ";echo 0)]+")
				require.NoError(t, err)
				node := (&scriptedNode{acquire: always(200, strings.Replace(scriptedGrant(scriptedCluster, "9.5s"), evil, string(text), 1))}).start(t)
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
	eachHTTPClient(t, func(t *testing.T, _ string, program []string) {
		file := filepath.Join(t.TempDir(), "token")
		require.NoError(t, os.WriteFile(file, []byte("zamok_x3t7\n"), 0o600))
		env := []string{"ZAMOK_TOKEN_FILE=" + file}
		node := (&scriptedNode{}).start(t)
		end := startHTTPClient(t, program, []string{node.url}, env, "use", "stock").wait(t)
		require.Equal(t, 0, end.code, end.stderr)
		require.Equal(t, "Bearer zamok_x3t7", node.requests("/v1/acquire")[0].header.Get("Authorization"), "on loopback")
		for _, outside := range []string{"http://192.0.2.1:5752", "http://127.0.0.1.example.com:5752", "http://127.0.0.1@192.0.2.1:5752"} {
			node := (&scriptedNode{}).start(t)
			end := startHTTPClient(t, program, []string{node.url, outside}, env, "use", "stock").wait(t)
			assert.NotEqual(t, 0, end.code)
			assert.Empty(t, node.requests("/v1/acquire"), "the list is refused before anything is sent")
			assert.Contains(t, end.stderr, "https", outside)
			assert.NotContains(t, end.stderr, "zamok_x3t7")
		}
	})
}
